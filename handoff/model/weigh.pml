/*
 * Weights: the parts of a split limit count under weights that change, and what they
 * go by is never more than the whole.
 *
 * Part 0 is A's, and S stands by; part 1 is B's. H is the home, and G stands by. H or
 * A may die at any step. Somebody cuts weights; a home hears from the owners of the parts
 * that they go by that, and raises others; then it begins again. Everybody
 * applies the table when it likes, and a part goes by what its owner has applied.
 *
 * A command that was proposed may be committed at any later time, more than once, or
 * never. It lowers or raises, and names the change of weights that it follows.
 *
 * Each guard of the protocol can be taken out by a macro NO_...; README.md lists
 * them. WITNESS_... makes an error of something that has to be possible.
 */

#ifndef COMMITS
#define COMMITS 4
#endif
#define ALL     4      /* the weight of the whole */

#define H 0
#define G 1
#define A 2
#define S 3
#define B 4

/* The table after each commit: weights, and the commit that changed them last. */
typedef Table { byte w0 = 2; byte w1 = 2; byte weighed; byte home = H; byte part = A }
Table table[COMMITS + 1];
byte last;             /* commit */
byte view[5];          /* the last that each has applied */
bool lease[5];         /* once it is over, it stays so */

/* What a home has proposed last. */
typedef Proposal { byte w0; byte w1; byte after /* the change that it follows */ }
Proposal raise[2];     /* w0 == 0: nothing */
byte said[2];          /* parts whose owners go by the weights that the home knows */

#define at(n)    table[view[n]]
#define now      table[last]
#define home(n)  (at(n).home == n && lease[n])
#define owner(n) (n == B || at(n).part == n && lease[n])
#define bit(n)   (n == B -> 2 : 1)

#ifdef NO_EVIDENCE
#define SAID(h)      true
#else
#define SAID(h)      (said[h] == 3)
#endif
#ifdef NO_EVIDENCE_OF_OWNER /* the standby knows it, too */
#define SPEAKS(n)    true
#else
#define SPEAKS(n)    owner(n)
#endif
#ifdef NO_WEIGHED
#define FOLLOWS(c)   true
#else
#define FOLLOWS(c)   (c.after == now.weighed)
#endif
#ifdef NO_CUT_FIRST /* what one part loses another gets at once */
#define FREE(c, w)   (ALL - c)
#else
#define FREE(c, w)   w
#endif
#define RAISES(c, t) (c.w0 >= t.w0 && c.w1 >= t.w1 && c.w0 + c.w1 <= ALL)

inline next() {
  table[last + 1].w0 = now.w0;
  table[last + 1].w1 = now.w1;
  table[last + 1].weighed = now.weighed;
  table[last + 1].home = now.home;
  table[last + 1].part = now.part;
  last++
}
inline weigh(c) { next(); now.w0 = c.w0; now.w1 = c.w1; now.weighed = last }

proctype Raft() {
  byte i;
end:
  do
  :: atomic { last < COMMITS && now.w0 > 1 -> /* a cut, whoever wants it */
    next();
    select (i : 1 .. now.w0 - 1); now.w0 = i;
    select (i : 1 .. FREE(now.w0, now.w1)); now.w1 = i;
    now.weighed = last; i = 0
  }
  :: atomic { last < COMMITS && now.w1 > 1 ->
    next();
    select (i : 1 .. now.w1 - 1); now.w1 = i;
    select (i : 1 .. FREE(now.w1, now.w0)); now.w0 = i;
    now.weighed = last; i = 0
  }
  :: atomic { last < COMMITS && raise[H].w0 != 0 && FOLLOWS(raise[H]) && RAISES(raise[H], now) -> weigh(raise[H]) }
  :: atomic { last < COMMITS && raise[G].w0 != 0 && FOLLOWS(raise[G]) && RAISES(raise[G], now) -> weigh(raise[G]) }

  :: atomic { lease[H] && lease[A] -> lease[H] = false; said[H] = 0; view[H] = 0 } /* H dies, or is cut off */
  :: atomic { lease[H] && lease[A] -> lease[A] = false; view[A] = 0 }
  :: atomic { last < COMMITS && !lease[H] && now.home == H -> next(); now.home = G } /* Remove(H) */
  :: atomic { last < COMMITS && !lease[A] && now.part == A -> next(); now.part = S } /* Remove(A) */
  od
}

/* A home. */
proctype Home(byte h) {
  byte i;
end:
  do
  :: atomic { home(h) && view[h] < last ->
    view[h]++;
#ifndef NO_EVIDENCE_OF_CHANGE /* what was said of another change counts */
    if
    :: at(h).weighed == view[h] -> said[h] = 0
    :: else
    fi
#endif
  }
  :: atomic { h == G && at(G).home != G && now.home == G -> view[G] = last }

  :: atomic { home(h) && SAID(h) && at(h).w0 + at(h).w1 < ALL -> /* what there is room for */
    select (i : at(h).w0 .. ALL - at(h).w1);
    raise[h].w0 = i; raise[h].w1 = ALL - i; raise[h].after = at(h).weighed;
    i = 0
  }
  od
}

/* The owner of a part, or who stands by for it. */
proctype Part(byte n) {
end:
  do
  :: atomic { n == S && at(S).part != S && now.part == S -> view[S] = last }
#ifdef NO_EVIDENCE_OF_OWNER
  :: atomic { lease[n] && view[n] < last -> view[n]++ }
#else
  :: atomic { owner(n) && view[n] < last -> view[n]++ }
#endif
  :: atomic { home(H) && SPEAKS(n) && view[n] >= at(H).weighed && !(said[H] & bit(n)) -> said[H] = said[H] | bit(n) }
  :: atomic { home(G) && SPEAKS(n) && view[n] >= at(G).weighed && !(said[G] & bit(n)) -> said[G] = said[G] | bit(n) }
  od
}

/* What the parts go by. */
#define goesBy0 (owner(A) -> at(A).w0 : (owner(S) -> at(S).w0 : 0))
#define goesBy1 at(B).w1

/* The property. */
proctype Observer() {
end:
  do
  :: atomic { owner(A) && owner(S) || goesBy0 + goesBy1 > ALL -> assert(false) }
#ifdef WITNESS_RAISED /* by a home that has not seen the cut */
  :: atomic { goesBy1 == 3 && now.home == G && now.weighed == last && view[B] == last && raise[H].w0 == 0 -> assert(false) }
#endif
#ifdef WITNESS_LATE /* a part goes by more than it should */
  :: atomic { goesBy1 > now.w1 && goesBy0 < now.w0 -> assert(false) }
#endif
  od
}

init {
  atomic {
    lease[H] = true; lease[G] = true; lease[A] = true; lease[S] = true; lease[B] = true;
    run Raft(); run Home(H); run Home(G); run Part(A); run Part(S); run Part(B); run Observer()
  }
}
