/*
 * The flip: a row moves from a living owner to a process that has a copy. At any
 * moment at most one process acts for it, and who acts has all that was
 * acknowledged.
 *
 * One row, one object. S owns the row, B stands by for it, and the transition gives
 * it to T, which gets all records and is caught up. S freezes the row, goes through
 * all locks, flushes, closes, and proposes the flip; S is then the standby of T.
 * Any of them may die at any step. T may come back as T2, with an empty memory.
 *
 * A flip that was proposed may be committed at any later time, more than once, or
 * never. Everybody applies the table when it likes.
 *
 * The state of the object is the set of operations that it holds. A record is a
 * state; those of one stream come in order.
 *
 * Each guard of the protocol can be taken out by a macro NO_...; README.md lists
 * them. WITNESS_... makes an error of something that has to be possible.
 */

#ifndef COMMITS
#define COMMITS 4
#endif
#define WIRE    2 /* records under way in a stream */

#define NONE 0
#define B    1
#define S    2
#define T    3
#define T2   4 /* the next process of T's node */

/* Operations. */
#define S1   1
#define S2   2
#define T1   4
#define B1   8
#define S3   16 /* when the row has come back */

/* The table after each commit. Who stands in a row is synced. */
typedef Table { byte owner = S; byte standby = B; byte target = T /* the member of T's node */ }
Table table[COMMITS + 1];
byte last;             /* commit */
byte view[4];          /* the last that B, S and T have applied */
bool flip;             /* it was proposed */

bool lease[4];         /* once it is over, it stays so */
byte state[4];         /* of the object */
byte told;             /* all that was acknowledged */

/* Streams, by their ends, and what was appended and acknowledged last. */
chan toB = [WIRE] of { byte };       /* from S */
chan toT = [WIRE] of { byte };       /* from S */
chan toS = [WIRE] of { byte, byte }; /* from T: and the epoch of its table */
byte sent[4], acked[4];              /* by target */

mtype = { idle, locked, done };
mtype call[4] = idle;  /* an operation: let in under the lock, done, answered */
byte answer[4];

/* How far S has got. */
mtype = { open, frozen, passed, flushed, closed, proposed };
mtype giving = open;

#define owns(p)   (table[view[p]].owner == p)
#define before(n) (table[view[S]].standby == n)

#ifdef NO_FREEZE
#define FROZEN    (giving == closed || giving == proposed)
#else
#define FROZEN    (giving != open)
#endif
#ifdef NO_CLOSE
#define CLOSED    false
#else
#define CLOSED    (giving == closed || giving == proposed)
#endif

/* Who may let an operation in, and who may let an answer out. */
#define mayS      (lease[S] && owns(S) && !FROZEN)
#define stillS    (lease[S] && owns(S) && !CLOSED)
#define actsT     (lease[T] && owns(T))
#define actsB     (lease[B] && owns(B))
#define actsT2    (table[last].owner == T2)

#ifdef NO_WAY_THROUGH_LOCKS
#define NOBODY    true
#else
#define NOBODY    (call[S] != locked)
#endif
#ifdef NO_FLUSH
#define FLUSHED   true
#else
#define FLUSHED   (acked[T] == sent[T] && (!before(B) || acked[B] == sent[B]))
#endif
#ifdef NO_FLIP_CAS
#define UNCHANGED true
#else
#define UNCHANGED (table[last].owner == S)
#endif
#ifdef NO_TARGET_INCARNATION
#define SAME      (table[last].target != NONE)
#else
#define SAME      (table[last].target == T)
#endif
#ifdef NO_RECORD_CHECK /* records are taken whoever the owner is */
#define TAKES(p, from) true
#else
#define TAKES(p, from) (table[view[p]].owner == from)
#endif
#ifdef NO_EPOCH_OF_BATCH /* a target that is behind does not wait */
#define FOLLOWS(e) true
#else
#define FOLLOWS(e) (view[S] >= e)
#endif
#ifdef NO_WAIT
#define HAVE(p)   true
#else
#define HAVE(p)   (acked[p] == sent[p]) /* at least what the answer speaks of */
#endif

inline next() {
  table[last + 1].owner = table[last].owner;
  table[last + 1].standby = table[last].standby;
  table[last + 1].target = table[last].target;
  last++
}
inline forget(p) { call[p] = idle; answer[p] = 0 }

/* Raft commits, and leases run out. */
proctype Raft() {
end:
  do
  :: atomic { flip && last < COMMITS && UNCHANGED && SAME ->
    next();
    table[last].owner = table[last].target;
    table[last].standby = S
  }
  :: atomic { lease[S] -> lease[S] = false; forget(S); giving = open } /* S dies, or is cut off */
  :: atomic { lease[T] -> lease[T] = false; forget(T) }
  :: atomic { !lease[S] && last < COMMITS && (table[last].owner == S || table[last].standby == S) -> /* Remove(S) */
    next();
    if
    :: table[last].owner == S -> table[last].owner = table[last].standby
    :: else
    fi;
    table[last].standby = NONE
  }
  :: atomic { !lease[T] && last < COMMITS && table[last].target == T -> /* Remove(T); what was to be is aborted */
    next();
    table[last].target = NONE;
    if
    :: table[last].owner == T -> table[last].owner = table[last].standby; table[last].standby = NONE
    :: else
    fi
  }
  :: atomic { last < COMMITS && table[last].target == NONE -> next(); table[last].target = T2 } /* Admit(T2) */
  od
}

/* S decides. */
proctype Owner() {
end:
  do
  :: atomic { mayS && call[S] == idle -> call[S] = locked } /* it takes a shard's lock and looks */
  :: atomic { lease[S] && call[S] == locked && nfull(toB) && nfull(toT) ->
    if
    :: !(state[S] & S1) -> state[S] = state[S] | S1
    :: (state[S] & S1) && !(state[S] & S2) -> state[S] = state[S] | S2
    :: (state[S] & T1) && !(state[S] & S3) -> state[S] = state[S] | S3
    :: true /* it changes nothing, like a read or a refusal */
    fi;
    if
    :: before(B) && sent[B] != state[S] -> toB!state[S]; sent[B] = state[S]
    :: else
    fi;
    if
    :: table[view[S]].target == T && sent[T] != state[S] -> toT!state[S]; sent[T] = state[S]
    :: else
    fi;
    answer[S] = state[S];
    call[S] = done
  }
  :: atomic { call[S] == done && stillS && (!before(B) || HAVE(B)) ->
    told = told | answer[S];
    forget(S)
  }
  :: atomic { call[S] == done -> forget(S) } /* nobody is told */
  od
}

/* S hands the row over, and is a standby afterwards. */
proctype Source() {
  byte r, e;
end:
  do
  :: atomic { lease[S] && giving == open && owns(S) && table[view[S]].target == T -> giving = frozen }
  :: atomic { giving == frozen && NOBODY -> giving = passed }
  :: atomic { giving == passed && FLUSHED -> giving = flushed }
  :: atomic { giving == flushed -> giving = closed } /* answers have had time to leave */
  :: atomic { giving == closed -> giving = proposed; flip = true }
  :: atomic { giving == frozen || giving == passed -> giving = open } /* nothing was proposed yet */
#ifdef NO_UNFREEZE_BY_TABLE /* the outcome is unknown, and time is up */
  :: atomic { giving == proposed -> giving = open }
#endif

  :: atomic { view[S] < last -> /* a table: it alone shows that the flip has happened, or cannot any more */
    view[S]++;
    if
    :: !owns(S) || table[view[S]].target != T -> giving = open
    :: else
    fi;
#ifdef NO_KEEP /* who gives a row away discards it */
    if
    :: table[view[S]].owner == T && table[view[S] - 1].owner == S -> state[S] = 0
    :: else
    fi
#endif
  }
  :: atomic { toS?<r, e> ->
    if
    :: FOLLOWS(e) ->
      toS?r, e;
      if
      :: TAKES(S, T) -> state[S] = r
      :: else /* it is passed over, and acknowledged */
      fi;
      acked[S] = r
    :: else /* it waits for the table */
    fi;
    r = 0; e = 0
  }
  od
}

/* T gets a copy, and acts when the row is its own. */
proctype Target() {
  byte r;
end:
  do
  :: atomic { lease[T] && toT?[r] ->
    toT?r;
    if
    :: TAKES(T, S) -> state[T] = r
    :: else
    fi;
    acked[T] = r; r = 0
  }
  :: atomic { lease[T] && view[T] < last -> view[T]++ }
  :: atomic { actsT && call[T] == idle && nfull(toS) ->
    if
    :: !(state[T] & T1) ->
      state[T] = state[T] | T1;
      if
      :: table[view[T]].standby == S -> toS!state[T], view[T]; sent[S] = state[T]
      :: else
      fi
    :: true
    fi;
    answer[T] = state[T];
    call[T] = done
  }
  :: atomic { call[T] == done && actsT && (table[view[T]].standby != S || HAVE(S)) ->
    told = told | answer[T];
    forget(T)
  }
  :: atomic { call[T] == done -> forget(T) }
  od
}

/* B stands by for S, and acts when S is gone. */
proctype Standby() {
  byte r;
end:
  do
  :: atomic { toB?[r] ->
    toB?r;
    if
    :: TAKES(B, S) -> state[B] = r
    :: else
    fi;
    acked[B] = r; r = 0
  }
  :: atomic { view[B] < last ->
    view[B]++;
    if
    :: !owns(B) && table[view[B]].standby != B -> state[B] = 0 /* it is not to hold it */
    :: else
    fi
  }
  :: atomic { actsB && !(state[B] & B1) -> state[B] = state[B] | B1; told = told | state[B] }
  od
}

#define lacks(p) (told & ~state[p])

/* The properties. */
proctype Observer() {
end:
  do
  :: atomic { stillS && (actsT || actsB || actsT2) || actsT && (actsB || actsT2) || actsB && actsT2 -> assert(false) }
  :: atomic { mayS && lacks(S) || actsT && lacks(T) || actsB && lacks(B) || actsT2 && told != 0 -> assert(false) }
#ifdef WITNESS_FLIPPED
  :: atomic { (told & (S1 | S2 | T1)) == (S1 | S2 | T1) -> assert(false) }
#endif
#ifdef WITNESS_BACK /* T has acted and died, and S acts again */
  :: atomic { (told & T1) && (told & S3) -> assert(false) }
#endif
#ifdef WITNESS_PROMOTED /* S has proposed the flip, and B acts */
  :: atomic { flip && (told & B1) && (told & S1) -> assert(false) }
#endif
#ifdef WITNESS_ABORTED /* T is gone before the flip, and S goes on */
  :: atomic { flip && mayS && !(told & T1) && (told & S1) && table[view[S]].target == T2 -> assert(false) }
#endif
  od
}

init {
  atomic {
    lease[B] = true; lease[S] = true; lease[T] = true;
    run Raft(); run Owner(); run Source(); run Target(); run Standby(); run Observer()
  }
}
