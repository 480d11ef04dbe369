// Package lock is the state machine of one lock: its holder, the fencing token and
// the end of its lease. Callers that have to wait stand in a queue (owner/queue),
// which the lock embeds and serves.
//
// # Guarantee
//
//   - At any moment at most one grant is in force. It ends when it is released
//     or at Expires, whichever is first: at Expires itself it is over, and a
//     Renew or Release from then on is answered "not held", even if nobody has
//     taken the lock since.
//   - Tokens rise: each grant's is greater than all before it in this state.
//   - A free lock goes to the head of the queue before any newcomer. What package
//     queue promises of the order, of callers that give up or are away, and of retries,
//     holds for grants.
//   - A TTL starts at the grant, for a waiter too. Waited counts from the moment
//     the waiter came, which is not before its client sent the request: the
//     client that counts its lease from its (first) send plus Waited never
//     believes in it for too long.
//
// # Picture
//
//	          Acquire             Acquire, the lock is held
//	caller ──────────▶ held      caller ──────────────────▶ queue
//	                    │  ▲                                 │ │ Cancel, GiveUp
//	     Release, TTL ended │          head                  │ └──────▶ gone
//	                    │  └──────────── Grant ◀─────────────┘
//	                    ▼
//	                  free, if nobody waits
//
// A step is a call of a method with an Effects. It first removes the waiters whose
// time is over, then ends a grant whose TTL is over, then grants a free lock to the
// head, and only then does what was asked. So a step grants at most once. Every step
// is given a candidate for the token of that grant; one that was not needed may be
// offered again.
//
// # Time
//
// Time is an argument: nanoseconds, 0 or more, of the owner's monotonic clock.
// Callers race for the state, so `now` may lie a little behind the last change;
// it then counts as the moment of that change (State.At). What reads return is
// not remembered: call Expire before Inspect, Holding or Held when a later step
// with an earlier `now` must not contradict them (and when copies of the state
// must have the expiry before a caller learns of it).
//
// While somebody waits, Expire must be called at NextWake. Nothing need be called
// for a lock that nobody waits for: its end is a matter of reading, and Absent
// reports that it can be forgotten.
//
// # Moving
//
// A state may move to another node, and its callers come after it. There the places
// of the queue are Away until retries have taken them over (Supersede). When the turn
// of a place comes that is away, the lock is free and kept for it, and nobody else is
// granted it, until the Grace of the queue ends.
//
// # Loss
//
// If a state is lost with all its copies, the lock begins as one that never was,
// while a grant from before may be in force for its holder. The store then grants
// nothing for as long as a grant can last, and accepts claims: Reclaim restores a
// grant under its own token, and the highest token wins.
//
// # Non-guarantees
//
// Locks are not re-entrant: the holder that acquires again is a caller like any
// other. The machine does not tell a retry from a new call: the store does, and calls
// Supersede. Nor does it know whether a waiter's client is still there: a grant that
// cannot be delivered is given back with Release. A lock decides who may act; only the
// fencing token, checked by what the lock protects, stops a holder that acts late.
//
// Uncontended steps allocate nothing.
package lock
