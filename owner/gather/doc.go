// Package gather is the state machine of a barrier: parties arrive for a phase, and when all
// have, the phase is passed and the next one begins. It is pure: state, operation, time and
// the number of the next phase in, state and effects out.
//
// # Guarantee
//
//   - A phase is passed when as many parties have arrived for it as a barrier has, or all
//     that are registered, and no earlier. A party counts once in a phase, however often it
//     arrives.
//   - An arrival that names its phase counts in that one or in none. One that comes late, for
//     a phase that is over, changes nothing, and is told what became of the phase.
//   - A phase that ends is passed or broken, and stays what it was: see State.Judge. Of a
//     phase that is not known here, it says so; such a phase never was passed here.
//   - The numbers of phases come from the caller, who takes them from a sequence that never
//     repeats. So they rise over owners, deletions and losses: no phase after a loss has the
//     number of one before it.
//
// # Picture
//
//	          Arrive: the last one
//	          ┌──────────────────────▶ passed ─┐
//	phase p ──┤                                ├─▶ phase p' > p
//	          └──────────────────────▶ broken ─┘
//	          Reset, deadline, lease of a party under Break
//
// # Two ways to have parties
//
// A barrier has a number of them (State.Need): each that arrives is one, and is forgotten when
// the phase ends. A phaser has those that are registered, each under a lease that it renews;
// they come and go at any time. A party whose lease ends is gone: as it said when it registered,
// the phase is broken, or goes on without it.
//
// A phaser without parties does not end its phase: nobody has arrived.
//
// # Time
//
// Time is an argument, in nanoseconds of a monotonic clock. It ends leases and deadlines, in
// Expire. A State without parties that was not used for Keep equals one that never was.
//
// # Non-guarantee
//
// A party may be told that a phase was passed before the others are: they learn it when they ask.
// Of broken phases only the last is known, with its cause. The phases before the one that follows
// an earlier break are unknown, passed or not.
package gather
