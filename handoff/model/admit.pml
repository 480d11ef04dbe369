/*
 * Admission across owners: an Admit with demands under three keys is charged at all of
 * their owners or at none, whatever dies, and nothing waits for its coordinator.
 *
 * One request id. A, B and C are its participants, the owners of the keys. Each holds what
 * is demanded of it, or refuses; each has a standby. The coordinator may stop at any step,
 * and so may owners, with their standby or without. A participant that holds asks the
 * others at any time it likes: so no clock matters, and none is here.
 *
 * Any number of coordinators, for the caller's retries, are one that knows what any of
 * them does, and tells the caller more than once. The Holds are on their way from the
 * start, and stay there, so that they come late and again; one that is lost was never
 * sent. What a message tells is kept where it goes, and read at any later time. The three
 * participants are alike, so the first that dies is A, and the next A or B.
 *
 * Each guard of the protocol can be taken out by a macro NO_...; README.md lists
 * them. WITNESS_... makes an error of something that has to be possible.
 */

#ifndef DEATHS
#define DEATHS 2 /* of owners; 3 were searched, too, with C among them */
#endif

#define A   0
#define B   1
#define C   2
#define ALL 7

/* What a participant knows of the request. */
#define NONE     0
#define HELD     1 /* and does not know whether all do */
#define CHARGED  2 /* all hold, or did: what follows is between it and the caller */
#define RELEASED 3 /* it has held, and one of the others does not */
#define REFUSED  4
#define ABORTED  5 /* it has said that it never saw the request: the mark */

typedef Participant {
  byte state;
  byte copy;     /* the standby's */
  bool alone;    /* there is no standby */
  bool lost;     /* the state was, since the request was sent */
  bool hold = true; /* a Hold is on its way here */
  bool yes;      /* ... or a word that all hold */
  bool no;       /* ... or one that one of them does not */
  byte heard;    /* others that have said that they hold */
  byte done;     /* what it has done for good: CHARGED, RELEASED or nothing */
}
Participant p[3];

/* The coordinator. */
bool gone;
byte held;       /* participants that hold, by their word */
bool denied;     /* by the word of one it does not */

bool admitted;   /* the caller was told so */
bool refused;    /* the caller was told so */
bool late;       /* the id window is over */
bool calm;       /* nothing fails any more */
byte deaths;
bool loss;

#define bit(i)    (1 << (i))
#define same(i)   (p[i].alone || p[i].copy == p[i].state)
#define holds(i)  (p[i].state == HELD || p[i].state == CHARGED)
#define denies(i) (p[i].state == RELEASED || p[i].state == REFUSED || p[i].state == ABORTED)

#ifdef NO_COPY_OF_VOTE
#define VOTED(i)   true
#else
#define VOTED(i)   same(i)
#endif
#ifdef NO_COPY_OF_MARK
#define DENIED(i)  (p[i].state == ABORTED || same(i))
#else
#define DENIED(i)  same(i)
#endif
#ifdef NO_COPY_OF_OUTCOME
#define KNOWS(i)   (p[i].state != HELD)
#else
#define KNOWS(i)   (p[i].state != HELD && same(i)) /* once true, always: so its word needs no place */
#endif
#ifdef NO_LOST_AS_HELD
#define LOST(i)    false
#else
#define LOST(i)    p[i].lost
#endif
#ifdef NO_VOTE_OF_LOST /* a Hold of before the loss is like any other */
#define VOTES(i)   true
#else
#define VOTES(i)   (!p[i].lost)
#endif
#ifdef NO_TOO_OLD
#define YOUNG      true
#else
#define YOUNG      (!late)
#endif
#ifdef NO_MARK_KEPT
#define FORGETS    true
#else
#define FORGETS    late
#endif
#ifdef NO_OUTCOME_KEPT
#define ALLKNOW    true
#else
#define ALLKNOW    (KNOWS(A) && KNOWS(B) && KNOWS(C))
#endif
#ifdef NO_QUESTION_TO_ALL
#define ENOUGH(i)  (p[i].heard != 0) /* one other is enough */
#else
#define ENOUGH(i)  ((p[i].heard | bit(i)) == ALL)
#endif
#ifdef NO_ANSWER_OF_ALL
#define ADMITS     (held != 0)
#else
#define ADMITS     (held == ALL)
#endif

/* What is at the standby, too, others may have seen the effect of. */
inline effect(i) {
  if
  :: p[i].state == CHARGED -> p[i].done = CHARGED
  :: denies(i) -> p[i].done = RELEASED
  :: else
  fi
}
inline become(i, s) {
  p[i].state = s;
  p[i].heard = 0; p[i].yes = false; p[i].no = false;
  if
  :: p[i].alone -> effect(i)
  :: else
  fi
}

/* A participant. */
proctype Owner(byte i) {
end:
  do
  :: atomic { p[i].hold && p[i].state == NONE && VOTES(i) && YOUNG ->
    if
    :: become(i, HELD)
#ifdef NO_REFUSAL_KEPT /* it refuses, and thinks no more of it */
    :: !gone && !denied -> denied = true
#else
    :: become(i, REFUSED)
#endif
    fi
  }
  :: atomic { !p[i].alone && p[i].copy != p[i].state -> p[i].copy = p[i].state; effect(i) }

  /* A Cancel that overtakes the Hold leaves the mark; one after a loss does nothing. */
  :: atomic { p[i].no && p[i].state == HELD -> become(i, RELEASED) }
  :: atomic { p[i].no && p[i].state == NONE && !LOST(i) && YOUNG -> become(i, ABORTED) }
  :: atomic { p[i].yes && p[i].state == HELD -> become(i, CHARGED) }
  :: atomic { p[i].state == HELD && ENOUGH(i) -> become(i, CHARGED) }
#ifdef NO_QUESTION /* what has expired is released */
  :: atomic { p[i].state == HELD -> become(i, RELEASED) }
#endif
#ifdef NO_QUESTION_OF_CHARGE /* ... or charged */
  :: atomic { p[i].state == HELD -> become(i, CHARGED) }
#endif

  :: atomic { FORGETS && denies(i) && same(i) -> become(i, NONE) }
  :: atomic { late && p[i].state == CHARGED && same(i) && ALLKNOW -> become(i, NONE) }
  od
}

/* Participant i is asked by j, and tells j what it knows. */
proctype Between(byte i, j) {
end:
  do
  :: atomic { p[j].state == HELD && p[i].state == HELD && VOTED(i) && !(p[j].heard & bit(i)) -> p[j].heard = p[j].heard | bit(i) }
  :: atomic { p[j].state == HELD && p[i].state == NONE && LOST(i) && !(p[j].heard & bit(i)) -> p[j].heard = p[j].heard | bit(i) }
  :: atomic { p[j].state == HELD && p[i].state == CHARGED && VOTED(i) && !p[j].yes -> p[j].yes = true }
  :: atomic { p[j].state == HELD && denies(i) && DENIED(i) && !p[j].no -> p[j].no = true }
#ifdef NO_MARK
  :: atomic { p[j].state == HELD && p[i].state == NONE && !LOST(i) && !p[j].no -> p[j].no = true }
#else
  :: atomic { p[j].state == HELD && p[i].state == NONE && !LOST(i) -> become(i, ABORTED) }
#endif
#ifdef NO_OPEN_QUESTION /* what does not answer has not held */
  :: atomic { p[j].state == HELD && !p[j].no -> p[j].no = true }
#endif

  od
}

/* The coordinator, and participant i. */
proctype Coordinator(byte i) {
end:
  do
  :: atomic { !gone && holds(i) && VOTED(i) && !(held & bit(i)) && !admitted -> held = held | bit(i) }
  :: atomic { !gone && denies(i) && DENIED(i) && !denied -> denied = true }
  :: atomic { !gone && ADMITS && !admitted -> admitted = true; held = ALL }
  :: atomic { !gone && denied && !refused -> refused = true }
  :: atomic { !gone && admitted && p[i].state == HELD && !p[i].yes -> p[i].yes = true }
  :: atomic { !gone && refused && (p[i].state == HELD || p[i].state == NONE) && !p[i].no -> p[i].no = true }
#ifdef NO_REASON_OF_CANCEL /* it gives up, and says so */
  :: atomic { !gone && !admitted && p[i].state == HELD && !p[i].no -> p[i].no = true }
#endif
  od
}

proctype Faults() {
  byte i;
end:
  do
  :: atomic { !calm && !gone -> gone = true; held = 0; denied = false }
  :: atomic { !calm && !late -> /* a coordinator has given up before */
    late = true;
#ifndef NO_TOO_OLD
    gone = true; held = 0; denied = false;
    p[A].hold = false; p[B].hold = false; p[C].hold = false
#endif
  }
  :: atomic { !calm && p[A].hold -> p[A].hold = false }
  :: atomic { !calm && p[B].hold -> p[B].hold = false }
  :: atomic { !calm && p[C].hold -> p[C].hold = false }
  :: atomic { !calm && deaths < DEATHS -> /* an owner dies: its standby acts, or there is none */
    if
    :: i = A
    :: deaths > 0 -> i = B
    fi;
    deaths++;
    p[i].heard = 0;
    if
    :: !p[i].alone -> p[i].state = p[i].copy; p[i].copy = NONE; p[i].alone = true; effect(i)
    :: p[i].alone -> p[i].state = NONE; p[i].lost = true; p[i].done = NONE; loss = true
    fi;
    i = 0
  }
  :: atomic { !calm && p[A].alone -> p[A].copy = p[A].state; p[A].alone = false } /* a standby, again */
  :: atomic { !calm && p[B].alone -> p[B].copy = p[B].state; p[B].alone = false }
  :: atomic { !calm -> calm = true; gone = true; held = 0; denied = false } /* and no coordinator helps */
  od
}

#define one(what)     (what(A) || what(B) || what(C))
#define charged(i)    (p[i].done == CHARGED)
#define released(i)   (p[i].done == RELEASED)
#define open(i)       (p[i].state == HELD)
#define unpaid(i)     (p[i].done != CHARGED && !p[i].lost)

/* The properties. */
proctype Observer() {
end:
  do
  :: atomic { admitted && one(released) -> assert(false) } /* also after a loss */
  :: atomic { admitted && refused -> assert(false) }
  :: atomic { !loss && one(charged) && one(released) -> assert(false) }
  :: atomic { !loss && one(charged) && refused -> assert(false) }
  :: atomic { timeout && calm && one(open) -> assert(false) } /* a question that stays open */
  :: atomic { timeout && calm && admitted && one(unpaid) -> assert(false) }
#ifdef WITNESS_ABANDONED /* the coordinator has told the caller nothing, and all are charged */
  :: atomic { gone && !admitted && charged(A) && charged(B) && charged(C) -> assert(false) }
#endif
#ifdef WITNESS_OVERTAKEN /* a Hold comes where the mark is, and others have held */
  :: atomic { p[A].state == ABORTED && p[A].hold && p[B].state == HELD && p[C].done == RELEASED -> assert(false) }
#endif
#ifdef WITNESS_PROMOTED /* a standby goes on with the question */
  :: atomic { admitted && gone && !loss && p[A].alone && p[A].done == CHARGED && p[B].state == HELD -> assert(false) }
#endif
#ifdef WITNESS_LOST /* ... and others are charged for what was lost */
  :: atomic { admitted && gone && p[A].lost && charged(B) && charged(C) -> assert(false) }
#endif
#ifdef WITNESS_OVERCHARGED /* what errs after a loss: some are charged for what was refused */
  :: atomic { refused && charged(B) && released(C) -> assert(false) }
#endif
#ifdef WITNESS_FORGOTTEN /* at the end nothing is kept */
  :: atomic { admitted && late && p[A].state == NONE && p[B].state == NONE && p[C].state == NONE && !loss -> assert(false) }
#endif
  od
}

init {
  atomic {
    run Faults(); run Owner(A); run Owner(B); run Owner(C);
    run Between(A, B); run Between(A, C); run Between(B, A); run Between(B, C); run Between(C, A); run Between(C, B);
    run Coordinator(A); run Coordinator(B); run Coordinator(C); run Observer()
  }
}
