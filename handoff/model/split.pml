/*
 * A split: an object becomes parts, and whole again. Whole and part never both serve,
 * what was acknowledged is counted once, and no operation acts twice, whoever dies, and
 * also if the home's row is lost while the object is split.
 *
 * One counter. H is its home, and G stands by; part 0 is A's, and S stands by; part 1
 * is B's. H or A may die at any step. The operations X and Y add one each and have a
 * request id: each is sent any number of times, by tables of any age, X to the whole and
 * to part 0, Y to part 1. The home reads the object and plants the parts, which is
 * delivered late, repeatedly or never; parts are reaped and joined. The object is split
 * a second time, so that everything of the first may turn up in the second.
 *
 * A command that was proposed may be committed at any later time, more than once, or
 * never. Everybody applies the table when it likes.
 *
 * That a lease holds what it promises is lease.pml's business, and that a standby has
 * what was acknowledged is synced.pml's: here a copy is made in one step, and a member
 * is removed when its lease is over.
 *
 * Each guard of the protocol can be taken out by a macro NO_...; README.md lists
 * them. WITNESS_... makes an error of something that has to be possible.
 */

#ifndef COMMITS
#define COMMITS 5
#endif
#define SPLITS  2

#define H 0
#define G 1
#define A 2
#define S 3
#define B 4

/* Operations, and parts by what hashes to them. */
#define X 1
#define Y 2

#define WHOLE   0
#define OPENING 1
#define OPEN    2
#define CLOSING 3

/* The table after each commit. The owner of part 1 is B. */
typedef Table { byte phase; byte split; byte home = H; byte part = A; byte base }
Table table[COMMITS + 1];
byte last;             /* commit */
byte view[5];          /* the last that each has applied; B has applied all */

/* The object, or its part, at each node. */
typedef Object {
  byte value;          /* how often X was added, and four times how often Y was */
  byte ids;
  byte split;           /* the split of which it is a part */
}
Object o[5];
bool lease[5];         /* once it is over, it stays so */
byte told;             /* what somebody has acknowledged */

/* What a home does about a split, by home and split. */
typedef Work {
  bool read;           /* the object was read; what is planted from there on: */
  byte value;
  byte ids;
  byte planted;        /* parts that have said that they have it */
  byte reaped;         /* parts that have said what they have, and that: */
  byte sum;
  byte sumIds;
  bool joined;         /* the whole object is put together */
  bool opened;         /* proposed: Opened */
  bool cancelled;      /* proposed: Merged, from Opening */
  bool merged;         /* proposed: Merged, from Closing */
}
Work w[4];

#ifdef WITNESS_KEPT
bool lost;             /* the home's row was, while its object was split */
#endif

#define at(n)       table[(n == B -> last : view[n])]
#define now         table[last]
#define job(h, s)   ((h) * SPLITS + (s) - 1)
#define home(n)     (at(n).home == n && lease[n])
#define owner(n)    (n == B || at(n).part == n && lease[n])
#define alike(n, m) (o[n].value == o[m].value && o[n].ids == o[m].ids && o[n].split == o[m].split)
#define copied(n)   (n == H && alike(H, G) || n == A && alike(A, S) || n != H && n != A)
#define has(v, op)  (op == X -> (v) & 3 : (v) / 4)
#define plus(a, b)  ((a) + (b)) /* no operation is in both more than once, or it was found */

#ifdef NO_FREEZE
#define SERVES_WHOLE(n) (at(n).phase == WHOLE || at(n).phase == OPENING)
#else
#define SERVES_WHOLE(n) (at(n).phase == WHOLE)
#endif
#if defined(NO_WAIT_FOR_OPEN)
#define SERVES_PART(n)  (at(n).phase == OPENING || at(n).phase == OPEN)
#elif defined(NO_FREEZE_OF_PARTS)
#define SERVES_PART(n)  (at(n).phase == OPEN || at(n).phase == CLOSING)
#else
#define SERVES_PART(n)  (at(n).phase == OPEN)
#endif

/* A plant is of the split, in its phase, and of the home. */
#ifdef NO_PLANT_IN_OPENING
#define PLANTS_NOW(n)   (at(n).phase == OPENING || at(n).phase == OPEN)
#else
#define PLANTS_NOW(n)   (at(n).phase == OPENING)
#endif
#if defined(NO_PLANT_OF_HOME) || defined(NO_READ_OF_COPIED)
#define PLANTS_BY(n, h) true
#else
#define PLANTS_BY(n, h) (at(n).home == h)
#endif
#ifdef NO_READ_OF_COPIED /* one guard too many as long as plants are the home's, which is for losses */
#define READABLE(n)     true
#define LOSABLE         false
#else
#define READABLE(n)     copied(n)
#define LOSABLE         true
#endif
#ifdef NO_IDS_PLANTED
#define IDS(h, s, op)   0
#else
#define IDS(h, s, op)   (w[job(h, s)].ids & op)
#endif
#ifdef NO_PLANT_OF_COPIED
#define PLANTED(n)      true
#else
#define PLANTED(n)      copied(n)
#endif
#ifdef NO_REAP_IN_CLOSING
#define REAPS_NOW(n)    (at(n).phase == OPEN || at(n).phase == CLOSING)
#else
#define REAPS_NOW(n)    (at(n).phase == CLOSING)
#endif
#ifdef NO_JOIN_OF_COPIED
#define JOINED(n)       true
#else
#define JOINED(n)       copied(n)
#endif
#ifdef NO_OPENED_OF_SPLIT
#define OPENS(s)        true
#else
#define OPENS(s)        (now.split == s)
#endif
#ifdef NO_OPENED_OF_HOME
#define OPENER(h)       true
#else
#define OPENER(h)       (now.home == h)
#endif
#ifdef NO_MERGED_OF_HOME
#define MERGER(h)       true
#else
#define MERGER(h)       (now.home == h)
#endif
#ifdef NO_MERGED_OF_PHASE
#define CANCELS         (now.phase == OPENING || now.phase == CLOSING)
#else
#define CANCELS         (now.phase == OPENING)
#endif

inline next() {
  table[last + 1].phase = now.phase;
  table[last + 1].split = now.split;
  table[last + 1].home = now.home;
  table[last + 1].part = now.part;
  table[last + 1].base = now.base;
  last++
}
inline copy(n, m) { o[m].value = o[n].value; o[m].ids = o[n].ids; o[m].split = o[n].split }
inline clear(n) { o[n].value = 0; o[n].ids = 0; o[n].split = 0 }

/* An operation that was not done before. */
inline add(n, op) {
  o[n].value = o[n].value + (op == X -> 1 : 4);
  o[n].ids = o[n].ids | op
}

/* Commands of a home, whenever they come. */
inline commits(h) {
  if
  :: last < COMMITS && now.phase == OPENING && (w[job(h, 1)].opened && OPENS(1) || w[job(h, 2)].opened && OPENS(2)) && OPENER(h) ->
    next(); now.phase = OPEN;
    now.base = (w[job(h, 1)].opened && OPENS(1) -> w[job(h, 1)].value : w[job(h, 2)].value);
    w[job(H, now.split)].planted = 0; w[job(G, now.split)].planted = 0 /* that does not matter any more */
  :: last < COMMITS && now.split > 0 && w[job(h, now.split)].cancelled && CANCELS && MERGER(h) ->
    next(); now.phase = WHOLE
  :: last < COMMITS && now.split > 0 && w[job(h, now.split)].merged && now.phase == CLOSING && MERGER(h) ->
    next(); now.phase = WHOLE
  fi
}

proctype Raft() {
end:
  do
  :: atomic { last < COMMITS && now.phase == WHOLE && now.split < SPLITS -> /* Split */
    next(); now.phase = OPENING; now.split++; now.base = 0
  }
  :: atomic { last < COMMITS && now.phase == OPEN -> next(); now.phase = CLOSING } /* Merge */
  :: atomic { commits(H) }
  :: atomic { commits(G) }

  :: atomic { lease[H] && lease[A] -> lease[H] = false; view[H] = 0 } /* H dies, or is cut off */
  :: atomic { lease[H] && lease[A] -> lease[A] = false; view[A] = 0 }
  :: atomic { last < COMMITS && !lease[H] && now.home == H -> /* Remove(H) */
    next(); now.home = G;
    if
    :: true
    :: LOSABLE -> /* its standby is gone, too: G is another one, and has nothing */
#ifdef WITNESS_KEPT
      lost = (now.phase == OPEN || now.phase == CLOSING);
#endif
      clear(G);
      view[G] = last;
      if
      :: now.phase == WHOLE || now.phase == OPENING -> told = 0 /* the loss is declared */
      :: else
      fi
    fi
  }
  :: atomic { last < COMMITS && !lease[A] && now.part == A -> next(); now.part = S } /* Remove(A) */
  od
}

/* A home, and who stands by for it. */
proctype Home(byte h) {
  byte s;
end:
  do
  :: atomic { lease[h] && at(h).home == h && view[h] < last -> view[h]++ }
  :: atomic { at(h).home != h && now.home == h -> view[h] = last; clear(H) } /* no records of H from here on */
  :: atomic { h == G && at(G).home == H && !alike(H, G) -> copy(H, G) } /* records */

  :: atomic { home(h) && SERVES_WHOLE(h) && !(o[h].ids & X) -> add(h, X) }
  :: atomic { home(h) && (at(h).phase == WHOLE || at(h).phase == OPENING) && copied(h) && (o[h].ids & ~told) -> told = told | o[h].ids }

  :: atomic { home(h) && at(h).phase == OPENING && !w[job(h, at(h).split)].read && READABLE(h) ->
    s = job(h, at(h).split);
    w[s].read = true;
    w[s].value = o[h].value;
    w[s].ids = o[h].ids;
    s = 0
  }
  :: atomic { home(h) && at(h).phase == OPENING && w[job(h, at(h).split)].planted == (X | Y) && !w[job(h, at(h).split)].opened ->
    w[job(h, at(h).split)].opened = true
  }
  :: atomic { h == H && home(h) && at(h).phase == OPENING && at(h).split == 1 && !w[job(h, 1)].cancelled -> w[job(h, 1)].cancelled = true }
  :: atomic { home(h) && at(h).phase == CLOSING && w[job(h, at(h).split)].reaped == (X | Y) && !w[job(h, at(h).split)].joined ->
    s = job(h, at(h).split);
#ifdef NO_JOIN_OF_ALL
    o[h].value = plus(o[h].value, w[s].sum); /* what was there is what was split */
#else
    o[h].value = plus(at(h).base, w[s].sum);
#endif
#ifdef NO_IDS_JOINED
    o[h].ids = 0;
#else
    o[h].ids = w[s].sumIds;
#endif
    w[s].joined = true; w[s].sum = 0; w[s].sumIds = 0;
    s = 0
  }
  :: atomic { home(h) && at(h).phase == CLOSING && w[job(h, at(h).split)].joined && !w[job(h, at(h).split)].merged && JOINED(h) ->
    w[job(h, at(h).split)].merged = true
  }
  od
}

/* The plant of a home arrives. It is for a part of one split: a key of its own. */
inline plant(n, op, h) {
  if
  :: owner(n) && PLANTS_NOW(n) && PLANTS_BY(n, h) && w[job(h, at(n).split)].read &&
     (o[n].split != at(n).split || o[n].value != 0 || o[n].ids != IDS(h, at(n).split, op)) ->
    o[n].value = 0;
    o[n].ids = IDS(h, at(n).split, op);
    o[n].split = at(n).split
  fi
}
/* The part answers, and the answer is as late as the home acts on it. */
inline reap(n, op, h) {
  if
  :: owner(n) && REAPS_NOW(n) && copied(n) && !(w[job(h, at(n).split)].reaped & op) ->
    w[job(h, at(n).split)].reaped = w[job(h, at(n).split)].reaped | op;
    if
    :: o[n].split == at(n).split ->
      w[job(h, at(n).split)].sum = plus(w[job(h, at(n).split)].sum, o[n].value);
      w[job(h, at(n).split)].sumIds = w[job(h, at(n).split)].sumIds | o[n].ids
    :: else /* it was lost */
    fi
  fi
}

#define ask(n) job(at(n).home, at(n).split) /* the work of who plants it */

/* The owner of a part, and who stands by for it. */
proctype Part(byte n, op) {
end:
  do
  :: atomic { owner(n) && n != B && view[n] < last ->
    view[n]++;
    if
    :: at(n).phase == WHOLE -> clear(n) /* the parts are forgotten */
    :: else
    fi
  }
  :: atomic { n == S && at(S).part != S && now.part == S -> view[S] = last; clear(A) }
  :: atomic { n == S && at(S).part == A && !alike(A, S) -> copy(A, S) }

  :: atomic { owner(n) && SERVES_PART(n) && (o[n].split != at(n).split || !(o[n].ids & op)) ->
    if
    :: o[n].split != at(n).split -> o[n].value = 0; o[n].ids = 0; o[n].split = at(n).split /* lost */
    :: else
    fi;
    add(n, op)
  }
  :: atomic { owner(n) && (SERVES_PART(n) || at(n).phase == CLOSING) && o[n].split == at(n).split && copied(n) && (o[n].ids & ~told) &&
       now.split == at(n).split && now.phase != WHOLE -> /* an answer may leave later, but tells no more */
    told = told | o[n].ids
  }

  :: atomic { plant(n, op, H) }
  :: atomic { plant(n, op, G) }
  :: atomic { owner(n) && now.phase == OPENING && at(n).phase == OPENING && o[n].split == now.split && at(n).split == now.split &&
       w[ask(n)].read && o[n].ids == IDS(at(n).home, now.split, op) && o[n].value == 0 && !(w[ask(n)].planted & op) && PLANTED(n) ->
    w[ask(n)].planted = w[ask(n)].planted | op /* it says that it has what was planted */
  }
  :: atomic { reap(n, op, H) }
  :: atomic { reap(n, op, G) }
  od
}

/* What counts, by the last table. */
#define part(n, op)  (o[n].split == now.split -> has(o[n].value, op) : 0)
#define count(op)    (now.phase == WHOLE || now.phase == OPENING -> has(o[now.home].value, op) : \
                      has(now.base, op) + part(now.part, op) + part(B, op))
#define servesWhole  (home(H) && SERVES_WHOLE(H) || home(G) && SERVES_WHOLE(G))
#define servesPart   (owner(A) && SERVES_PART(A) || owner(S) && SERVES_PART(S) || SERVES_PART(B))

/* The properties. */
proctype Observer() {
end:
  do
  :: atomic { count(X) > 1 || count(Y) > 1 -> assert(false) }
  :: atomic { now.phase != OPENING && ((told & X) && count(X) == 0 || (told & Y) && count(Y) == 0) -> assert(false) }
#if !defined(NO_FREEZE) && !defined(NO_WAIT_FOR_OPEN) && !defined(NO_FREEZE_OF_PARTS)
  :: atomic { servesWhole && servesPart -> assert(false) } /* in those it is what was taken out */
#endif
#ifdef WITNESS_AGAIN /* the second split counts what was done in the first and before */
  :: atomic { now.split == 2 && now.phase == OPEN && told == (X | Y) && now.base == 1 && o[B].split == 2 && o[B].value == 4 -> assert(false) }
#endif
#ifdef WITNESS_CANCELLED
  :: atomic { now.split == 2 && now.phase == OPEN && w[job(H, 1)].opened && !w[job(H, 1)].reaped && !w[job(G, 1)].reaped -> assert(false) }
#endif
#ifdef WITNESS_REPLACED /* G puts together what H had */
  :: atomic { now.phase == WHOLE && now.split == 1 && w[job(H, 1)].joined && w[job(G, 1)].joined && told == (X | Y) -> assert(false) }
#endif
#ifdef WITNESS_PROMOTED /* S has what A was given */
  :: atomic { now.phase == WHOLE && now.split == 1 && now.part == S && w[job(H, 1)].joined && told == (X | Y) -> assert(false) }
#endif
#ifdef WITNESS_KEPT /* the home was lost, and nothing is */
  :: atomic { now.phase == WHOLE && now.split == 1 && now.home == G && w[job(G, 1)].joined && lost && told == (X | Y) -> assert(false) }
#endif
  od
}

init {
  atomic {
    lease[H] = true; lease[G] = true; lease[A] = true; lease[S] = true; lease[B] = true;
    run Raft(); run Home(H); run Home(G); run Part(A, X); run Part(S, X); run Part(B, Y); run Observer()
  }
}
