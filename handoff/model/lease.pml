/*
 * The lease: at any moment at most one process may act for a key.
 *
 * One key. Process A owns it; when A is removed, B does. Leaders of raft come one
 * after the other, each in a term of its own, and one that was deposed may go on
 * without knowing it. A renews its lease; a leader grants it, or removes A when
 * the lease has run out. B is taken to have a lease at all times: that it may
 * have none only makes it act less.
 *
 * Time is discrete and the same for all. What is kept of it are ages and what is
 * left, so that runs may be as long as they like.
 *
 * Each guard of the protocol can be taken out by a macro NO_...; README.md lists
 * them. WITNESS_... makes an error of something that has to be possible.
 */

#ifndef TTL
#define TTL   2 /* ticks */
#endif
#ifndef TERMS
#define TERMS 2 /* of raft */
#endif

/* The table, by the commands that were committed: Remove(A), Admit(A). */
#define MEMBER  0 /* A is a member and owns the key */
#define REMOVED 1 /* B owns it */
#define BACK    2 /* A is a member again, under the same incarnation; B owns the key */

#define max(a, b) ((a) > (b) -> (a) : (b))

/* Raft: what is committed, and one entry that is not committed yet. */
byte term = 1;   /* of the leader that was elected last */
byte table = MEMBER;
byte entry;      /* the state of the table that it would lead to; 0 = no entry */
bool inlog;      /* the last leader has it in its log; otherwise others may have it */

/* The processes. */
byte until;      /* of A: how long its lease still lasts */
byte viewA;      /* the table that A has applied */
bool mayB;       /* B has applied one that names it as the owner */
bool inside;     /* A has let an operation in and not answered it yet */

#define mayA (until > 0 && viewA == MEMBER)

typedef Leader {
  bool leads;    /* it thinks so */
  bool ready;    /* it may grant */
  bool asked;    /* some proof of leadership has succeeded in this term */
  bool removing; /* it has proposed the removal of A */
  byte view;     /* the table that it has applied */
  byte left;     /* when that is 0, A's lease is certainly over */
}
Leader l[TERMS + 1]; /* by term; 0 is not used */

/* A renewal on its way from A to a leader, and the answer on its way back: one at
   a time for each leader, which may be lost and sent anew. */
mtype = { idle, sent, received, granted };
typedef Call {
  mtype at = idle;
  byte age;      /* since it was sent */
  byte waits;    /* since it was received */
  byte epoch;    /* the table that A had applied when it sent it */
  bool proved;   /* the leader has proved its leadership for this renewal */
}
Call c[TERMS + 1]; /* by term */

#ifdef NO_ANSWER_CHECK
#define CHECKED true
#else
#define CHECKED mayA
#endif

#ifdef NO_PROOF
#define PROVED true
#else
#define PROVED c[t].proved
#endif

#ifdef NO_PROOF_AFTER_RECEIPT /* a proof of before counts for it: VerifyLeader */
#define PROVED_BEFORE l[t].asked
#else
#define PROVED_BEFORE false
#endif

#ifdef NO_BARRIER
#define BARRIER false
#else
#define BARRIER true
#endif

#ifdef NO_FULL_TTL_WAIT
#define FIRST 0
#else
#define FIRST TTL
#endif

#ifdef NO_EXPIRY /* gossip's word is enough */
#define EXPIRED true
#else
#define EXPIRED (l[t].left == 0)
#endif

#ifdef NO_SILENCE_AFTER_REMOVAL
#define SILENT false
#else
#define SILENT l[t].removing
#endif

#ifdef NO_COUNT_FROM_SEND
#define GAINED TTL
#else
#define GAINED (TTL - c[i].age)
#endif

#ifdef NO_RENEWAL_EPOCH
#define FOLLOWS(table) true
#else
#define FOLLOWS(table) (c[t].epoch >= table)
#endif

inline clear(i) { c[i].at = idle; c[i].age = 0; c[i].waits = 0; c[i].epoch = 0; c[i].proved = false }

/* A tick of all clocks. */
active proctype Time() {
  byte i;
end:
  do
  :: d_step {
    until = (until > 0 -> until - 1 : 0);
    for (i : 1 .. TERMS) { l[i].left = (l[i].left > 0 -> l[i].left - 1 : 0) }
    for (i : 1 .. TERMS) {
      if
      :: c[i].at != idle ->
        c[i].age = (c[i].age < TTL -> c[i].age + 1 : TTL);
        if
        :: c[i].at == received -> c[i].waits = (c[i].waits < TTL -> c[i].waits + 1 : TTL)
        :: else
        fi
      :: else
      fi
    }
    i = 0
  }
  od
}

/* Raft commits, elects and is applied. */
active proctype Raft() {
end:
  do
  :: atomic { entry != 0 && inlog -> table = entry; entry = 0; inlog = false }

  :: atomic { /* an election; an entry that is not committed is in the new log, or is not */
    term < TERMS ->
    term++;
    if
    :: entry != 0 -> inlog = true
    :: inlog = false
    fi;
    l[term].leads = true;
    l[term].left = FIRST;
    l[term].ready = !BARRIER
  }

  :: atomic { viewA < table -> viewA++ }
  :: atomic { table >= REMOVED && !mayB -> mayB = true }
  od
}

/* A renews its lease and answers operations. Any message may be lost. */
active proctype Owner() {
  byte i;
end:
  do
  :: atomic {
    select (i : 1 .. TERMS);
    if
    :: c[i].at == idle ->
      c[i].at = sent;
      c[i].epoch = viewA
    :: c[i].at == granted ->
      until = max(until, GAINED);
      clear(i)
    :: c[i].at != idle -> clear(i)
    fi;
    i = 0
  }
  :: atomic { mayA && !inside -> inside = true }
  :: atomic { inside && CHECKED -> /* the answer */
    assert(!mayB);
    inside = false
#ifdef WITNESS_RENEWED
    assert(term < TERMS || viewA != MEMBER || l[TERMS].left < TTL)
#endif
  }
  :: atomic { inside -> inside = false } /* the outcome is unknown */
  od
}

/* The leader of each term. */
proctype Leading(byte t) {
end:
  do
  :: atomic { l[t].leads && t < term -> l[t].leads = false; l[t].ready = false } /* it hears of another */
  :: atomic { l[t].leads && l[t].view < table -> /* it applies what is committed */
    l[t].view++;
    l[t].removing = false;
    if
    :: l[t].view == BACK -> l[t].left = TTL
    :: else
    fi
  }
  :: atomic { /* the barrier: all before it is committed and applied, or gone for good */
    l[t].leads && !l[t].ready && t == term && !(entry != 0 && inlog) ->
    entry = 0;
    if
    :: l[t].view < table -> l[t].removing = false
    :: else
    fi;
    l[t].view = table;
    l[t].ready = true
  }
#ifdef NO_PROOF_AFTER_RECEIPT
  :: atomic { l[t].leads && t == term && !l[t].asked -> l[t].asked = true }
#endif

  :: atomic { /* a renewal arrives, is proved for, or is answered */
    l[t].leads ->
    if
    :: c[t].at == sent ->
      c[t].at = received;
      c[t].proved = PROVED_BEFORE
    :: c[t].at == received && !c[t].proved && t == term ->
      c[t].proved = true /* a majority says that the term is still its */
    :: c[t].at == received && PROVED && l[t].ready && !SILENT &&
       (l[t].view == MEMBER || l[t].view == BACK && FOLLOWS(BACK)) ->
      c[t].at = granted;
      l[t].left = max(l[t].left, TTL - c[t].waits);
      c[t].waits = 0; c[t].epoch = 0; c[t].proved = false
    :: c[t].at == received && PROVED && l[t].ready &&
       l[t].view == REMOVED && FOLLOWS(REMOVED) -> /* it may be admitted again */
      clear(t);
      if
      :: t == term && table == REMOVED && entry == 0 -> entry = BACK; inlog = true
      :: else
      fi
    :: else
    fi
  }
  :: atomic { /* the removal, once the lease has run out; a deposed leader's comes to nothing */
    l[t].leads && l[t].ready && l[t].view == MEMBER && EXPIRED && !(entry != 0 && inlog && t == term) ->
    l[t].removing = true;
    if
    :: t == term && table == MEMBER -> entry = REMOVED; inlog = true
    :: else
    fi
  }
  od
}

/* The property, beside the one at the answer. */
active proctype SingleOwner() {
end:
  do
  :: atomic { mayA && mayB -> assert(false) }
#ifdef WITNESS_REPLACED
  :: atomic { mayB && term == TERMS -> assert(false) }
#endif
#ifdef WITNESS_READMITTED
  :: atomic { table == BACK && viewA == BACK && until > 0 -> assert(false) }
#endif
  od
}

init {
  byte t;
  atomic {
    l[1].leads = true; l[1].ready = true; l[1].left = TTL;
    for (t : 1 .. TERMS) { run Leading(t) }
  }
}
