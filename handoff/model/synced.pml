/*
 * The synced set: an operation that was acknowledged is in the state of whoever
 * becomes the owner, unless the row's loss was declared.
 *
 * One row, one object. A owns the row, B stands by for it and is synced, and the
 * ring wants C in B's place. A makes a copy at C, has it agreed on as the synced
 * standby, takes out those that do not keep up, and does all of it anew, any number
 * of times. Then A is gone, and the table's standby acts.
 *
 * A command that was proposed may be committed at any later time, more than once
 * (it is proposed again while its outcome is unknown), or never. The table may be
 * ahead of what A has applied by up to LAG commits. Every commit here changes the
 * row, so a Sync is as the row was if nothing was committed since A's table.
 *
 * The state of the object is the number of A's operations that it holds; what the
 * next owner decides is added as NEW. A record is a state, so that a stream is known
 * by the last record that was appended and the last that was installed.
 *
 * Each guard of the protocol can be taken out by a macro NO_...; README.md lists
 * them. WITNESS_... makes an error of something that has to be possible.
 */

#ifndef OPERATIONS
#define OPERATIONS 3 /* of A that change something */
#endif
#define LAG 2 /* commits */

#define NEW 8

#define NONE 0
#define B    1
#define C    2
#define A    3

/* The table. Who stands in a row is synced, or it would not stand there. */
byte owner = A;           /* after the last commit */
byte standby[LAG + 1];    /* in A's table, and after each commit since */
byte ahead;               /* commits that A has not applied */
#define standing(t) (standby[0] == t)

/* What A has proposed. */
bool out[3];              /* Unsync(t) */
mtype = { unproposed, stale, fresh };
mtype sync = unproposed;    /* Sync(C); fresh: the row is as it names it */

/* The source. */
bool lease = true;        /* A's; once it is over for good, it stays so */
bool lapsed;              /* it is over, and A may get it back */
byte state;               /* of the object at A */
byte told;                /* what somebody has acknowledged */

/* A stream and the copy at its end. */
mtype = { holds, discarded, acts };
typedef Copy {
  bool fed;               /* records are appended */
  byte appended;          /* the last record */
  byte installed;         /* the last that the target has taken, or passed over */
  byte state;             /* of the object at the target */
  mtype is = holds;       /* by the table that the target has applied */
}
Copy x[3];                /* B and C */

/* How far A has got with making C the standby. */
mtype = { idle, copying, caught, required, ready };
mtype making = idle;
byte mark;                /* the record that has to be acknowledged for the next step */
bool asked;               /* the Sync was proposed */
#define pending (making == required || making == ready)

/* An operation at A: done under the lock, then waiting, then answered. */
mtype = { done, waiting };
mtype call = idle;
byte answer;              /* the state that it speaks of */
byte need[3];             /* the record that it waits for, by target; 0 = none */

/* Whom answers wait for. */
#ifdef NO_OUT_BEFORE_ALONE  /* the proposal to take a standby out is enough */
#define STANDS(t)    (standing(t) && !out[t])
#else
#define STANDS(t)    standing(t)
#endif
#if defined(NO_UNION_NEW)   /* while a Sync is undecided: the old standby alone */
#define waitsFor(t)  STANDS(t)
#elif defined(NO_UNION_OLD) /* the new one alone */
#define waitsFor(t)  (STANDS(t) && !(t == B && asked) || t == C && pending)
#else
#define waitsFor(t)  (STANDS(t) || t == C && pending)
#endif

#ifdef NO_WAIT
#define MISSING(t)   false
#else
#define MISSING(t)   (waitsFor(t) && x[t].installed < need[t])
#endif

#ifdef NO_SYNC_CAS
#define ASITWAS      (sync != unproposed)
#else
#define ASITWAS      (sync == fresh)
#endif

#ifdef NO_RECORD_CHECK      /* records of a former owner are taken */
#define TAKES        true
#else
#define TAKES        (x[t].is == holds)
#endif

#ifdef NO_INCARNATION
bool restarted[3];          /* it does not know its stream any more */
#define KNOWS        !restarted[t]
#else
#define KNOWS        true
#endif

#ifdef WITNESS_AGAIN
byte entered;               /* how often A has seen C become the standby */
#endif

inline commit(who) {
  ahead++;
  standby[ahead] = who;
  sync = (sync == fresh -> stale : sync)
}
inline skipAhead() { /* without its lease, what A knows does not matter any more */
  standby[0] = standby[ahead];
  standby[1] = NONE; standby[2] = NONE;
  ahead = 0
}
inline forget() { call = idle; answer = 0; need[B] = 0; need[C] = 0 }
inline tell(s) { told = (told > s -> told : s) }

/* Raft commits what was proposed, and removes A when its lease is over. */
proctype Raft() {
end:
  do
  :: atomic { owner == A && ahead < LAG && ASITWAS -> commit(C) }
  :: atomic { owner == A && ahead < LAG && out[B] -> commit((standby[ahead] == B -> NONE : standby[ahead])) }
  :: atomic { owner == A && ahead < LAG && out[C] -> commit((standby[ahead] == C -> NONE : standby[ahead])) }
  :: atomic { lease && !lapsed -> lapsed = true }
  :: atomic { lease && lapsed -> lapsed = false } /* nobody had to remove A */
  :: atomic { lease -> /* A dies, or cannot renew it; what is on its way stays so */
    lease = false; lapsed = false;
    state = 0; making = idle; mark = 0; asked = false;
    forget();
    skipAhead()
  }
  :: atomic { !lease && owner == A && ahead < LAG -> /* Remove(A): its standby, or a declared loss */
    owner = standby[ahead];
    skipAhead();
    standby[0] = NONE
  }
  :: atomic { !lease && ahead > 0 -> skipAhead() }
  od
}

/* A decides, and answers when those have it that have to. */
proctype Owner() {
  byte t;
end:
  do
  :: atomic { lease && !lapsed && call == idle -> /* under the shard's lock */
    if
    :: state < OPERATIONS ->
      state++;
      for (t : B .. C) { x[t].appended = (x[t].fed -> state : 0) }
      call = done
    :: call = done /* it changes nothing, like a read or a refusal */
#ifdef NO_WAIT_OF_READS
      ;
      tell(state)
#endif
    fi;
    answer = state;
    t = 0
  }
  :: atomic { call == done -> /* what there is to wait for now */
    for (t : B .. C) { need[t] = (waitsFor(t) -> x[t].appended : 0) }
    call = waiting;
    t = 0
  }
  :: atomic { call == waiting && !MISSING(B) && !MISSING(C) && lease && !lapsed -> tell(answer); forget() }
#ifdef NO_RESULT_OF_WAIT    /* a wait that ended with the lease counts when it is back */
  :: atomic { call == waiting && lapsed -> need[B] = 0; need[C] = 0 }
#endif
  :: atomic { call == waiting -> forget() } /* nobody is told */
  od
}

/* A tends its copies and applies tables. */
proctype Source() {
end:
  do
  :: atomic { lease && making == idle && !standing(C) -> /* Begin, and the walk over the shards */
    x[C].state = 0; x[C].installed = 0; /* C forgets what it has */
    x[C].fed = true;
#ifdef NO_COPY
    x[C].appended = 0;
#else
    x[C].appended = state;
#endif
    need[C] = 0; /* nobody waits for the stream of before */
    mark = x[C].appended;
    making = copying
  }
  :: atomic { lease && making == copying && x[C].installed >= mark -> mark = 0; making = caught }
#ifdef NO_REQUIRED_FIRST
  :: atomic { lease && making == caught && !standing(C) -> making = ready }
#else
  :: atomic { lease && making == caught && !standing(C) -> /* answers wait for C too */
    mark = x[C].appended; /* after the way through all locks */
    making = required
  }
  :: atomic { lease && making == required && x[C].installed >= mark -> mark = 0; making = ready }
#endif
  :: atomic { lease && making == ready -> /* proposed, or proposed again */
    asked = true;
    sync = (ahead == 0 -> fresh : stale)
  }
#ifdef NO_WAIT_FOR_OUTCOME /* an unknown outcome is taken for a refusal */
  :: atomic { lease && making == ready && asked -> making = caught; asked = false }
#endif
  :: atomic { lease && standing(B) && !out[B] -> out[B] = true } /* B is slow */
  :: atomic { lease && (standing(C) || asked) && !out[C] -> out[C] = true } /* C is */
  :: atomic { lease && making != idle && !pending && !standing(C) -> making = idle; mark = 0 } /* the stream has failed */

  :: atomic { lease && ahead > 0 && owner == A -> /* a table; a Sync of before is decided by it */
#ifdef WITNESS_AGAIN /* C was in, and out, and is in again */
    entered = entered + (standby[1] == C && !standing(C) -> 1 : 0);
    assert(entered < 2);
#endif
    standby[0] = standby[1]; standby[1] = standby[2]; standby[2] = NONE;
    ahead--;
    if
    :: pending -> making = caught; asked = false; mark = 0
    :: else
    fi
  }
  od
}

/* A copy takes records in, applies tables, and acts when it is the owner. That it
   may do nothing more at any moment stands for its death and for a broken stream. */
proctype Target(byte t) {
end:
  do
  :: atomic { KNOWS && x[t].installed < x[t].appended ->
    x[t].installed++;
    if
    :: TAKES -> x[t].state = x[t].installed
    :: else /* it is passed over */
    fi
  }
  :: atomic { owner == A && x[t].is == holds && t == B && standby[ahead] != B -> /* it is not to hold it */
    x[t].is = discarded;
    x[t].state = 0
  }
  :: atomic { owner == t && x[t].is != acts ->
    x[t].is = acts;
    assert(x[t].state >= told);
#ifdef WITNESS_PROMOTED
    assert(t != C || told < OPERATIONS);
#endif
    x[t].state = x[t].state + NEW; /* it decides something */
    told = x[t].state
  }
  :: atomic { x[t].is == acts -> assert(x[t].state >= told) }
#ifdef NO_INCARNATION /* its process restarts with an empty memory, and counts as the one before */
  :: atomic { !restarted[t] && x[t].is != acts -> restarted[t] = true; x[t].state = 0 }
#endif
#ifdef WITNESS_LATE
  :: atomic { x[t].is == acts && x[t].installed < x[t].appended -> assert(false) }
#endif
  od
}

init {
  atomic {
    x[B].fed = true; standby[0] = B;
    run Raft(); run Owner(); run Source(); run Target(B); run Target(C)
  }
}
