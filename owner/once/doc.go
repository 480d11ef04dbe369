// Package once is the state machine of work that is to be done once under a key: whose turn it is
// to do it, and, when it is done, its result. It is pure: state, operation and time in, state and
// result out.
//
// # Guarantee
//
//   - At any moment at most one token is in force. It is, from the Begin that was First until
//     the work is completed, abandoned or forgotten, or until another Begin is First; that is
//     so at the earliest when the lease of the turn is over.
//   - Tokens rise: each turn's is greater than all before it.
//   - A result is that of one Complete, by the token that was in force. From then on, every
//     Begin is told that result, until its retention ends. No later Complete changes it.
//   - A Begin with another fingerprint than that of the key is Other, and changes nothing:
//     while the work is under way, when it is done, and after a turn that nobody concluded.
//   - A holder that is gone blocks nobody for longer than its lease. The next Begin gets the
//     turn, and is told that it is not the first attempt.
//
// # Picture
//
//	              Begin: First                       Complete
//	absent ───────────────────────▶ under way ──────────────────────▶ done
//	   ▲ ▲                           │     ▲ │ lease over              │
//	   │ │         Abandon           │     │ ▼                         │
//	   │ └───────────────────────────┘   Begin: First,                 │
//	   │                                 a higher token                │
//	   └────── Linger over ── nobody concluded it    retention over ───┤
//	   └───────────────────────────────────────────────────────────────┘
//
// The end of a lease is no step. A holder whose lease is over is still the last one, as long as
// nobody else has begun: its Complete is accepted, for a refusal would only have the work done
// again. It must not rely on that: from the end of its lease on, another may have begun.
//
// # Time
//
// Time is an argument: nanoseconds of a monotonic clock that does not run backwards from one
// step of a state to the next.
//
// # Loss
//
// If a state is lost with all its copies, the store lets nobody begin for as long as a lease of
// before can last. A holder shows its token and fingerprint meanwhile, and Reclaim makes the
// turn what it was: the highest token wins. A result that was lost is lost: after that time its
// work may be done again.
//
// # Non-guarantee
//
// The work itself may be done more than once. A holder that dies between the effect of its work
// and Complete has the next one repeat it; a holder that is paused for longer than its lease may
// act beside the next one. What the work changes has to refuse a lower token, or bear a
// repetition.
//
// A retry that comes when the result has been forgotten is a first attempt. After Abandon the
// key is as good as new, for another fingerprint, too.
package once
