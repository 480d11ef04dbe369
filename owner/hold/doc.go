// Package hold is the state machine of what is held under leases: holders with
// weights under a capacity, the fencing token and the end of each lease, and one line
// for all that wait (owner/queue). A mutex is capacity 1. A semaphore is N, and each
// holder has a weight. A read-write lock is N, its readers 1 and its writer N.
//
// # Guarantee
//
//   - The weights of the grants that are in force, and of those whose Delay runs, are
//     together at most the capacity, unless that was lowered since: then nothing is
//     granted until they are below it.
//   - A grant ends when it is released or revoked, or at Expires, whichever is first: at
//     Expires itself it is over, and what is asked under its token from then on is
//     answered "not held", even if nobody has taken the room since.
//   - Tokens rise: each grant's is greater than all before it in this state, of all
//     holders. A token names one grant: what is done under it touches no other.
//   - First come, first served. What is free goes to the head of the queue before any
//     newcomer, and a head that does not fit lets nobody pass, so that a large waiter
//     and a writer have their turn. What package queue promises of callers that give up
//     or are away, and of retries, holds for grants.
//   - A TTL starts at the grant, for a waiter too. Waited counts from the moment the
//     waiter came, which is not before its client sent the request.
//   - The capacity is part of the object. It is what the first holder said, until nobody
//     holds or waits, or what SetCapacity said, until that takes it back. Another one
//     in an Acquire is refused.
//
// # Picture
//
//	          Acquire, it fits                Acquire, it does not, or others wait
//	caller ──────────────────▶ held          caller ──────────────────────▶ queue
//	                            │ ▲                                          │ │ Cancel, GiveUp
//	                            │ │           the head, as long as it fits   │ └────▶ gone
//	     Release, TTL, Revoke   │ └──────────── Grant, Grant … ◀─────────────┘
//	                            ▼
//	          TTL, Revoke: the Delay runs ──▶ free
//
// A step is a call of a method with an Effects. It first removes the waiters whose time
// is over, then ends the grants whose TTL is over, then does what was asked, then grants
// what is free to the queue; an Acquire comes after the queue. A step grants MaxGrants at
// most, and no more than it has Tokens for: NextWake is now then, and the next step goes
// on. Nobody passes in between.
//
// # An unclean end
//
// A grant that was not released may still be used by a holder that does not know. Its
// holder may have asked for a Delay: for so long after the end, nobody is granted its
// room, though its token is over. A Release that comes late ends the delay, for its
// holder says that it has stopped.
//
// # Time
//
// Time is an argument: nanoseconds, 0 or more, of the owner's monotonic clock. Callers race
// for the state, so `now` may lie a little behind the last change; it then counts as the
// moment of that change (State.At). What reads return is not remembered: call Expire before
// Inspect or Find when a later step with an earlier `now` must not contradict them.
//
// While somebody waits, Expire must be called at NextWake. Nothing need be called for an
// object that nobody waits for: Absent reports that it can be forgotten.
//
// # Moving
//
// A state may move to another node, and its callers come after it. There the places of the
// queue are Away until retries have taken them over (Supersede). When the turn of a place
// comes that is away, what it asks for is kept for it until the Grace of the queue ends. That
// is not prolonged by others that leave, nor is it while such a head wants more than is free.
//
// # Loss
//
// If a state is lost with all its copies, the object begins as one that never was, while
// grants from before may be in force for their holders. The store then grants nothing for
// as long as a grant can last, and accepts claims: Reclaim restores a grant under its own
// token. Claims come in any order, and are honoured from the highest token down while they
// fit: one that does not fit beside higher ones ends, or is refused, and does not come back.
//
// # Watching
//
// Effects.News reports that what is held is another than before: a grant, its end, another
// weight, other metadata, or another capacity that was set. The machine has no version of what is
// held: the store gives one to those states that somebody looks at.
//
// # Groups
//
// A group is a hold that nobody waits for. Its grants are Unique: of a name there is one, and an
// Acquire ends the one before in the same step, unless the caller has had one that is older still
// (After). Nobody keeps another out, so grants go on while claims are accepted (Amid).
//
// # Members
//
// Holders and places are recorded one by one: a change of one sends that one. A holder is
// known by its token, a place by the request id of its caller.
//
// # Non-guarantees
//
// Holds are not re-entrant, and nothing is granted in parts. A weight may be lowered under
// a token, never raised: two holders that both want more would wait for each other for
// ever. The machine does not tell a retry from a new call: the store does. No overtaking
// costs room: what is free may stay free while the head wants more.
//
// Steps allocate nothing, except that there is no room yet for one more holder or waiter.
package hold
