/*
 * The cold start: what was acknowledged under `always` is in the state of the process that
 * owns the row after any deaths, unless the operator gave it up.
 *
 * One row, two objects (of two shards), three nodes. A owns the row at first, alone,
 * with an empty disk. The owner makes standbys, takes them out, and hands the row over;
 * processes die at any moment, also all of them, or stop in order, and are started again
 * in any order, each as the next incarnation of its node, with an empty memory and the
 * disk that the one before has left; once, somebody empties a disk. Which of the dead
 * are removed together is the leader's choice. So is which disk a row goes on from, of
 * those that count: any.
 *
 * Commands are committed at any time after they were proposed, or never; a Recover, of
 * which nothing changes before it is committed, at once. Everybody goes by a table when
 * it likes. That the dead are dead is lease.pml's business, how records get over and are
 * waited for in memory that of synced.pml.
 *
 * The state of the row is the set of operations that it holds. A round of a disk notes
 * what the memory holds, and goes through the shards one after the other; what it says
 * of itself is committed last. One goes on at a time here.
 *
 * Each guard of the protocol can be taken out by a macro NO_...; README.md lists
 * them. WITNESS_... makes an error of something that has to be possible.
 */

/* Bounds. MORE_... is searched as the model as it is, beyond them. BOTH has operations on either object. */
#ifndef OPERATIONS
#ifdef WITNESS_FORGOTTEN
#define OPERATIONS 2
#else
#define OPERATIONS 1
#endif
#endif
#ifndef STARTS /* of processes, beyond the first of each node */
#if defined(NO_INCARNATION_OF_CLEAN) || defined(WITNESS_NEXT_BUT_ONE)
#define STARTS 2
#else
#define STARTS 1
#endif
#endif
#ifndef LOSSES /* of all of the row, that are declared */
#if defined(MORE_LOSSES) || defined(NO_EPOCH_OF_LOSS) || defined(NO_DISCARD_WITH_EPOCH) || \
    defined(NO_OPERATOR) || defined(NO_ROUND_OF_LOSS)
#define LOSSES 1
#else
#define LOSSES 0
#endif
#endif
#if defined(MORE_ROUNDS) || defined(NO_NOTE_FIRST) || defined(NO_WHOLE_ROUND) || defined(NO_ROUND_OF_LOSS)
#define SLOW /* other steps come between the two of a round */
#endif

#define A    0
#define B    1
#define C    2
#define NONE 3

#define FIRST  5  /* operations on the object of the shard that a round comes to first */
#define SECOND 10 /* ... on the other one */

/* A node: its process, and its disk. */
typedef Node {
  bool up;
  byte inc;      /* of its process, or of the last one */
  byte mem;      /* the state in memory */
  bool holds;    /* it has to do with the row: rounds write it */
  bool whole;    /* it has all of the row, not a copy under way */
  byte view;     /* the losses that it knows of */
  /* The disk. */
  byte disk;     /* the state */
  byte loss;     /* the losses that it knows of */
  byte opened;   /* the incarnations that have had it: bits */
  byte clean;    /* those of them that stopped in order: bits */
  byte sure;     /* the part of the state that the process knows to be there and to count */
  /* What the owner is told of it. */
  byte kept;     /* all of this is there */
  bool keeps     /* and all of the copy */
}
Node x[3];
byte starts;
bool wiped;

/* The round that is under way. */
byte walks = NONE;       /* whose */
byte note;
bool noted;              /* the memory was whole when it began, and no copy began since */
byte known;              /* the losses known then */

/* The row, as committed last. A dead owner and a dead standby stay named while it is
   cold: their disks count. */
byte own = A, owninc = 1, stb = NONE, stbinc;
bool cold;
mtype = { memory, fromdisk, nothing };
mtype from = memory;     /* what the owner begins with */
byte lost;               /* losses */

/* Proposals that are as the row is. */
bool sync, flip;
byte whom, whominc;      /* a Sync or a Flip names */
bool out;                /* Unsync, of the present owner */
byte outof;
#ifdef NO_RECOVER_CAS
byte rec = NONE, recinc;
#endif

/* The process that acts, and what it goes by. */
byte act = A;
byte vs = NONE, vsinc;   /* its standby */
mtype = { idle, copying, required, proposed, frozen, handed };
mtype making = idle;     /* a standby, or the next owner */
byte tgt = NONE, tgtinc;
byte mark;

byte ops, all;           /* operations that were done: how many, which */
byte told, toldi;        /* acknowledged under always, and under interval too */
byte dead;               /* operations that the row has gone on without */

#define LIVE(n, i)  (n < NONE && x[n].up && x[n].inc == i)
#define DEAD(n, i)  (n < NONE && !(x[n].up && x[n].inc == i))
#define CURRENT     (own == act && stb == vs && stbinc == vsinc) /* who acts goes by the last table */

/* A disk that was heard counts for a process that the row names. */
#ifdef NO_INCARNATION /* that of its node, which process ever had it */
#define COUNTS(n, i) (n < NONE && x[n].up)
#else
#define COUNTS(n, i) (n < NONE && x[n].up && (x[n].opened & (1 << i)))
#endif
#ifdef NO_EPOCH_OF_LOSS
#define CONTENT(n)  x[n].disk
#else
#define CONTENT(n)  (x[n].loss >= lost -> x[n].disk : 0)
#endif
#ifdef NO_INCARNATION_OF_CLEAN /* somebody has stopped in order */
#define CLEAN(n, i) (x[n].clean != 0)
#else
#define CLEAN(n, i) ((x[n].clean & (1 << i)) != 0)
#endif

/* What answers wait for. */
#ifdef NO_OWN_DISK
#define OWN(s)      true
#else
#define OWN(s)      ((x[act].sure & s) == s)
#endif
#define HAS(t, i, s)   (LIVE(t, i) && (x[t].mem & s) == s)
#define KEEPS(t, i, s) (LIVE(t, i) && x[t].keeps && (x[t].kept & s) == s)
#define PENDING     (making == required || making == proposed)
#define MEMORY(s)   ((vs == NONE || HAS(vs, vsinc, s)) && (!PENDING || HAS(tgt, tgtinc, s)))
#if defined(NO_DISK_OF_STANDBY)
#define DISKS(s)    true
#elif defined(NO_UNION_OF_DISKS) /* while a Sync is undecided: that of the old standby alone */
#define DISKS(s)    (vs == NONE || KEEPS(vs, vsinc, s))
#else
#define DISKS(s)    ((vs == NONE || KEEPS(vs, vsinc, s)) && (!PENDING || KEEPS(tgt, tgtinc, s)))
#endif

#ifdef NO_MEMBER_BEFORE_OUT /* the next process of a node is a member while a row names the one before */
#define MEMBER(t)   (t != vs || DEAD(vs, vsinc))
#else
#define MEMBER(t)   (t != vs && t != stb)
#endif
#ifdef NO_SYNC_OF_DISK
#define SYNCS       HAS(tgt, tgtinc, mark)
#else
#define SYNCS       (HAS(tgt, tgtinc, mark) && KEEPS(tgt, tgtinc, mark))
#endif
#define FLUSHED     (HAS(tgt, tgtinc, x[act].mem) && (vs == NONE || HAS(vs, vsinc, x[act].mem)))
#ifdef NO_FLIP_OF_DISK
#define FLIPS       FLUSHED
#else
#define FLIPS       (FLUSHED && KEEPS(tgt, tgtinc, x[act].mem))
#endif
#ifdef NO_MEMORY_FIRST /* a disk is taken although the standby lives */
#define BOTHDEAD    DEAD(own, owninc)
#define PROMOTES    (DEAD(own, owninc) && stb != NONE && !LIVE(stb, stbinc))
#else
#define BOTHDEAD    (DEAD(own, owninc) && (stb == NONE || DEAD(stb, stbinc)))
#define PROMOTES    (DEAD(own, owninc) && stb != NONE)
#endif

#ifdef NO_WHOLE_ROUND /* a copy that began while the round went on */
#define CUTS(n)     false
#else
#define CUTS(n)     (walks == n)
#endif

/* What is on a disk does not matter: nobody is named for it, or will be before it is written anew. Of B's and C's what
   is left is forgotten at once, so that there are fewer states. */
#define NAMED(n)    (own == n || stb == n || whom == n && (sync || flip))
#define IDLE(n)     (!x[n].holds && !NAMED(n) && (n != A || lost == LOSSES))
inline spoil(n) {
  if
  :: IDLE(n) -> x[n].disk = 0; x[n].loss = lost; x[n].clean = 0
  :: else
  fi
}
inline age() { /* the row was changed */
  sync = false; flip = false; whom = 0; whominc = 0;
  spoil(A); spoil(B); spoil(C)
}
inline rest() { making = idle; tgt = NONE; tgtinc = 0; mark = 0 }
inline retire() { act = NONE; vs = NONE; vsinc = 0; rest() }
inline clear(n) { /* its memory of the row is gone */
  x[n].mem = 0; x[n].holds = false; x[n].whole = false; x[n].view = 0; x[n].keeps = false; x[n].kept = 0; x[n].sure = 0;
  noted = noted && !CUTS(n)
}
inline cut() { walks = NONE; note = 0; noted = false; known = 0 }
inline blank(n) { x[n].disk = 0; x[n].loss = 0; x[n].opened = 0; x[n].clean = 0 }
inline down(n) {
  x[n].up = false;
  clear(n);
  if
  :: starts == STARTS -> blank(n) /* nobody comes to see it */
  :: else
  fi;
  if
  :: walks == n -> cut()
  :: else
  fi;
  if
  :: act == n -> retire()
  :: else
  fi;
  spoil(n)
}
inline discard(n) {
  if
  :: walks == n -> cut()
  :: else
  fi;
  clear(n);
  spoil(n)
}
inline giveUp() { /* what the target has of the copy is forgotten at once, which it may be */
  if
  :: LIVE(tgt, tgtinc) && stb != tgt && own != tgt -> discard(tgt)
  :: else
  fi;
  rest()
}

/* A round would write something, or say something. */
#define NEWS(n)     (x[n].disk != x[n].mem || x[n].loss != x[n].view || x[n].sure != x[n].mem || \
                     x[n].whole && (!x[n].keeps || x[n].kept != x[n].mem))

inline begin(n) {
  walks = n;
  note = x[n].mem;
  noted = x[n].whole;
  known = x[n].view
}
inline commit(n) {
  x[n].disk = (note & FIRST) | (x[n].mem & SECOND);
#ifdef NO_NOTE_FIRST /* what the memory holds at the end */
  x[n].kept = x[n].mem;
#else
  x[n].kept = note;
#endif
  x[n].keeps = noted;
  x[n].kept = (x[n].keeps -> x[n].kept : 0);
  x[n].loss = known;
#ifdef NO_ROUND_OF_LOSS /* an earlier round will do */
  x[n].sure = x[n].disk;
#else
  x[n].sure = (known == x[n].view -> x[n].disk : 0);
#endif
  cut()
}

/* A node. */
proctype Process(byte n) {
end:
  do
  :: atomic { x[n].up -> down(n) }
  :: atomic { x[n].up && NAMED(n) && walks != n && (x[n].whole || !x[n].holds) -> /* it stops in order */
    if
    :: x[n].whole -> x[n].disk = x[n].mem; x[n].loss = x[n].view
    :: else
    fi;
    x[n].clean = x[n].clean | (1 << x[n].inc);
    down(n)
  }
  :: atomic { !x[n].up && starts < STARTS -> /* its disk knows it before it asks for anything */
    starts++;
    x[n].up = true;
    x[n].inc++;
    x[n].opened = x[n].opened | (1 << x[n].inc);
    if
    :: starts == STARTS -> /* as in down */
      if
      :: !x[A].up -> blank(A)
      :: else
      fi;
      if
      :: !x[B].up -> blank(B)
      :: else
      fi;
      if
      :: !x[C].up -> blank(C)
      :: else
      fi
    :: else
    fi
  }
  :: atomic { n == A && !x[n].up && !wiped && starts < STARTS -> /* somebody empties the disk */
    wiped = true;
    blank(n)
  }

  /* A round: at once, or in two steps. */
  :: atomic { x[n].holds && walks == NONE && NEWS(n) ->
    begin(n);
    if
    :: commit(n)
#ifdef SLOW /* it is large: its parts are committed one after the other, and what it says of itself with the last */
    :: x[n].disk = (note & FIRST) | (x[n].disk & SECOND)
#endif
    fi
  }
#ifdef SLOW
  :: atomic { walks == n -> commit(n) }
#endif
  /* The epoch on a disk is that of the node, and rises with other rows, too: with what is to be discarded. */
  :: atomic { x[n].up && !x[n].holds && x[n].loss < lost && own != n ->
    x[n].loss = lost;
#ifndef NO_DISCARD_WITH_EPOCH
    x[n].disk = 0
#endif
  }
#ifdef NO_KEEPING_OF_COLD /* it discards what it has of a row that waits for a disk */
  :: atomic { x[n].up && !x[n].holds && cold && x[n].disk != 0 -> x[n].disk = 0 }
#endif

  /* It becomes the owner. */
  :: atomic { act != n && !cold && own == n && LIVE(n, owninc) ->
    assert(act == NONE || making == handed); /* nobody else acts */
    retire();
    act = n; vs = stb; vsinc = stbinc;
    if
    :: from == fromdisk -> clear(n); x[n].mem = CONTENT(n); x[n].sure = CONTENT(n)
    :: from == nothing -> clear(n)
    :: else
    fi;
    x[n].holds = true; x[n].whole = true; x[n].view = lost;
#ifdef WITNESS_FORGOTTEN /* what nobody was told is gone, and what somebody was told is there */
    assert((all & ~x[n].mem) == 0 || told == 0);
#endif
#ifdef WITNESS_CLEAN /* what was told under interval is there */
    assert(from != fromdisk || (toldi & ~told) == 0);
#endif
#ifdef WITNESS_NEXT_BUT_ONE /* the third process of a node goes on from what the first has left */
    assert(from != fromdisk || x[n].inc < 3 || told == 0);
#endif
    assert((told & ~x[n].mem) == 0);  /* it has all that was acknowledged under always, */
    assert((toldi & ~x[n].mem) == 0); /* and under interval, if no loss was declared, */
    assert((dead & x[n].mem) == 0);   /* and nothing comes back */
    dead = all & ~x[n].mem
  }
  od
}

/* Who acts decides, and answers when those disks have it that have to. */
proctype Owner() {
  byte s, t;
end:
  do
  :: atomic { act != NONE && making != frozen && making != handed && ops < OPERATIONS ->
    if
#if !defined(NO_ROUND_OF_LOSS) || defined(BOTH)
    :: s = 1 /* on the object of the first shard */
#endif
#if defined(NO_ROUND_OF_LOSS) || defined(BOTH)
    :: s = 2 /* of the second */
#endif
    fi;
    s = s << (2 * ops);
    x[act].mem = x[act].mem | s;
    all = all | s;
    ops++;
    s = 0
  }
  :: atomic { act != NONE && making != handed -> /* an answer about one of the objects */
    if
    :: s = x[act].mem & FIRST
    :: s = x[act].mem & SECOND
    fi;
    if
    :: MEMORY(s) -> toldi = toldi | s
    :: MEMORY(s) && OWN(s) && DISKS(s) -> told = told | s; toldi = toldi | s
    :: else
    fi;
    s = 0
  }

  /* Records get over. */
  :: atomic { act != NONE && LIVE(vs, vsinc) && x[vs].mem != x[act].mem -> x[vs].mem = x[act].mem }
  :: atomic { act != NONE && making != idle && LIVE(tgt, tgtinc) && !(x[tgt].whole && x[tgt].mem == x[act].mem) ->
    x[tgt].mem = x[act].mem; x[tgt].whole = true
  }

  /* A copy, and a standby. */
  :: atomic { act != NONE && making == idle && own == act ->
    if
    :: t = A
    :: t = B
    :: t = C
    fi;
    if
    :: t != act && x[t].up && MEMBER(t) -> /* Begin: it forgets what it has */
      clear(t);
      tgt = t; tgtinc = x[t].inc; making = copying;
      x[t].holds = true; x[t].view = x[act].view
    :: else
    fi;
    t = 0
  }
  :: atomic { making == copying && LIVE(tgt, tgtinc) && x[tgt].whole -> making = required; mark = x[act].mem }
  :: atomic { making == required && SYNCS ->
    making = proposed; mark = 0;
    if
    :: CURRENT -> sync = true; whom = tgt; whominc = tgtinc
    :: else
    fi
  }
  :: atomic { making == copying || making == required || making == frozen -> giveUp() }
  :: atomic { act != NONE && own == act && !out && (vs != NONE || making == proposed) -> /* Unsync */
    out = true;
    if
    :: vs != NONE -> outof = vs
    :: making == proposed -> outof = tgt
    fi
  }

  /* The row is handed over. */
  :: atomic { making == copying && LIVE(tgt, tgtinc) && x[tgt].whole -> making = frozen }
  :: atomic { making == frozen && FLIPS ->
    making = handed;
    if
    :: CURRENT -> flip = true; whom = tgt; whominc = tgtinc
    :: else
    fi
  }

  /* It goes by the table. */
  :: atomic { act != NONE && own == act && (!CURRENT || making == proposed && !sync || making == handed && !flip) ->
    if
    :: LIVE(vs, vsinc) && stb != vs && !(making != idle && tgt == vs) -> discard(vs)
    :: else
    fi;
    vs = stb; vsinc = stbinc;
    if
    :: making == proposed || making == handed ->
      if
      :: stb == tgt -> rest()
      :: else -> giveUp()
      fi
    :: else
    fi
  }
  :: atomic { act != NONE && own != act -> retire() }
  od
}

/* Raft commits what was proposed. The leader judges the dead, and the disks. */
proctype Raft() {
end:
  do
  :: atomic { sync -> stb = whom; stbinc = whominc; age() }
  :: atomic { out && !cold ->
    if
    :: stb == outof -> stb = NONE; stbinc = 0
    :: else
    fi;
    out = false; outof = 0;
    age()
  }
  :: atomic { flip ->
    stb = own; stbinc = owninc; own = whom; owninc = whominc; from = memory;
    out = false; outof = 0;
    age()
  }
  :: atomic { flip && DEAD(whom, whominc) -> flip = false; whom = 0; whominc = 0 } /* the target is removed */

  /* Remove. */
  :: atomic { !cold && DEAD(stb, stbinc) -> stb = NONE; stbinc = 0; age() }
  :: atomic { !cold && PROMOTES ->
    own = stb; owninc = stbinc; stb = NONE; stbinc = 0; from = memory;
    out = false; outof = 0;
    age()
  }
  :: atomic { !cold && BOTHDEAD -> cold = true; out = false; outof = 0; age() }

  /* Recover, from the disk of the last owner or standby. */
  :: atomic { cold && (COUNTS(own, owninc) || COUNTS(stb, stbinc)) ->
    if
    :: COUNTS(own, owninc) ->
#ifdef WITNESS_DISK_OF_OWNER
      assert(told == 0);
#endif
      toldi = (CLEAN(own, owninc) -> toldi : told); /* what may be lost is declared */
      assert(!LIVE(stb, stbinc));                   /* never while somebody has all */
      owninc = x[own].inc
    :: COUNTS(stb, stbinc) ->
#ifdef WITNESS_DISK_OF_STANDBY
      assert(told == 0);
#endif
      toldi = (CLEAN(stb, stbinc) -> toldi : told);
      assert(!LIVE(stb, stbinc));
      own = stb; owninc = x[stb].inc
    fi;
    stb = NONE; stbinc = 0; from = fromdisk; cold = false;
#ifdef NO_RECOVER_CAS
    rec = own; recinc = owninc;
#endif
    age()
  }
#ifdef NO_RECOVER_CAS /* it is committed again, whatever the row is */
  :: atomic { rec != NONE ->
    own = rec; owninc = recinc; stb = NONE; stbinc = 0; from = fromdisk; cold = false;
    out = false; outof = 0;
    age()
  }
#endif

  /* All of the row is given up. */
  :: atomic { cold && lost < LOSSES && (x[A].up || x[B].up || x[C].up) ->
    if
    :: x[A].up -> own = A
    :: x[B].up -> own = B
    :: x[C].up -> own = C
    fi;
    owninc = x[own].inc; stb = NONE; stbinc = 0; from = nothing; cold = false;
    lost++;
#ifndef NO_OPERATOR /* a timer does it, as under interval */
    told = 0;
#endif
    toldi = 0;
    age()
  }
  od
}

init {
  atomic {
    x[A].up = true; x[A].inc = 1; x[A].opened = 2; x[A].holds = true; x[A].whole = true;
    x[B].up = true; x[B].inc = 1; x[B].opened = 2;
    x[C].up = true; x[C].inc = 1; x[C].opened = 2;
    run Process(A); run Process(B); run Process(C); run Owner(); run Raft()
  }
}
