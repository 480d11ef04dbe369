// Package lock is the state machine of one lock: who holds it, under which
// fencing token and until when, and who waits for it, in order.
//
// # Guarantee
//
//   - At any moment at most one grant is in force. It ends when it is released
//     or at Expires, whichever is first: at Expires itself it is over, and a
//     Renew or Release from then on is answered "not held", even if nobody has
//     taken the lock since.
//   - Tokens rise: each grant's is greater than all before it in this state.
//   - The queue is first come, first served. A free lock goes to the head of the
//     queue before any newcomer. A waiter that left, or whose time to give up has
//     come, is never granted the lock, also when both happen at one instant.
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
// A step is a call of a method with an Effects: it first drops the waiters whose
// time is up, then ends a grant whose TTL is over, then hands a free lock to the
// head, and only then does what was asked. So a step grants at most once, and
// every step takes a candidate for the token of that grant; one that was not
// needed may be offered again.
//
// # Time
//
// Time is an argument: nanoseconds, 0 or more, of the owner's monotonic clock.
// Callers race for the state, so `now` may lie a little behind the last change;
// it then counts as the moment of that change (State.At). What reads show is
// not remembered: call Expire before Inspect, Holding or Held when a later step
// with an earlier `now` must not contradict them (and when copies of the state
// must have heard of the expiry before it is shown).
//
// While somebody waits, Expire must be called when NextWake says so. Nothing
// need be called for a lock that nobody waits for: its end is a matter of
// reading, and Absent says that it can be forgotten.
//
// # Moving
//
// A state may go to another node, and its callers come after it. There the places
// of the queue are Away until their callers have taken them over (Supersede). The
// lock is never granted to a place that is away: when its turn comes, the lock is
// free, and kept for it, and nobody else gets it. That ends with Grace, when all
// places that are still away are dropped at once.
//
// # Loss
//
// If a state is lost with all its copies, the lock begins as one that never was,
// while a grant of before may be in force for its holder. Whoever runs the lock then
// grants nothing for as long as a grant can last, and takes claims: Reclaim gives a
// grant back under its own token, and the highest token wins.
//
// # Non-guarantees
//
// Locks are not re-entrant: the holder that acquires again is a caller like any
// other. The machine does not know request ids (a retry is told from a new call
// by whoever calls it: see Supersede), nor whether a waiter's client is still
// there: a grant that cannot be delivered is given back with Release. A lock
// says who may act; only the fencing token, checked by what the lock protects,
// stops one who acts late.
//
// Uncontended steps allocate nothing.
package lock
