// Package gather is the state machine of a barrier: parties arrive for a phase, and when all
// have, the phase is passed and the next one begins. It is pure: state, operation, time and
// the number of the next phase in, state and effects out.
//
// # Guarantee
//
//   - A phase is passed when as many parties have arrived for it as a barrier has, or all
//     that are registered, and no earlier. A party counts once in a phase, however often it
//     arrives.
//   - An arrival for a phase counts in that one or in none. What comes late for a phase
//     that is over changes nothing, and is told what became of the phase.
//   - A phase that ends is passed or broken, and stays what it was: see State.Judge. Of a
//     phase that is not known here, it says so; such a phase never was passed here.
//   - The numbers of phases come from the caller, who takes them from a sequence that never
//     repeats. So they rise over owners, deletions and losses, and a phase of before a loss
//     is not one of those after it.
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
// A barrier has a number of them (State.Need): whoever arrives is one, and is forgotten when
// the phase ends. A phaser has those that are registered: each under a lease, which it renews.
// It comes and goes when it likes. A party whose lease ends is gone: as it said when it
// registered, the phase is broken, or goes on without it.
//
// A phaser without parties does not end its phase: nobody has arrived.
//
// # Time
//
// Time is an argument, in nanoseconds of a monotonic clock. It ends leases and deadlines, in
// Expire, some parties at a time. A State that nobody has used for Keep, and that has no
// parties, equals one that never was.
//
// # Non-guarantee
//
// A party that was told that a phase was passed may be alone with that: the others learn it
// when they ask. Of broken phases only the last is told apart, with its cause; those before it
// are unknown, and with them the phases that were passed before.
package gather
