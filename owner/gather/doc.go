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
// # Trees
//
// A phaser can be a party of another one, its parent (State.Parent): so many parties cost the
// parent one arrival for each child. A phase of the child is for one of the parent (State.Above),
// and ends as that does. The owner of the child speaks to that of the parent; to the parent a
// child is a party like others, but for its number (Party.Child): the child's own phase.
//
//	parties      child, phase c           parent, phase p
//	─Arrive────▶ ─Register, c───────────▶ party x: the last number is c
//	             Bind c to p ◀──────── p─
//	─Arrive────▶ all have: Sent
//	             ─Arrive for p, c───────▶ x has arrived
//	             ─Await p, again────────▶ under way
//	                                      all have arrived: p is passed
//	             Conclude c ◀────── passed─
//	◀───── passed  c', Register, c' ─────▶
//
// Everything that the owner sends is in the record of the child, and is sent only when the copies
// have it. It may be sent again at any time:
//
//   - Lost, or the child has another owner: it is sent again. A party counts once in p.
//   - Repeated, reordered or late: an Arrive names p, which is over then, or counts once. What
//     carries a number below the last one of x is refused: a Register and an Arrive do not bring
//     a child back, a Leave does not take away one that has parties again.
//   - An answer that is late names c and p: Bind and Conclude do nothing for others.
//   - The parent has another owner: it knows x and for what it has arrived.
//   - The parent is lost, or does not know p any more: c is unknown, to its parties as well. They
//     come again, the child registers and arrives again.
//   - The child is lost: its parties register again, and c is greater. Its arrival of before does
//     not count for p any more: those that come again have not arrived.
//   - The phase of the parent is broken: c is broken (OfParent). A child whose parties have not all
//     arrived may be broken by itself: the parent waits on. When they have, only the parent is.
//   - The child has no parties any more: it leaves the parent. With the next one it begins
//     another phase, and registers again.
//   - No owner of the child is heard of: its lease at the parent ends, and breaks p.
//
// A party that registers when all have arrived takes part from the next phase on.
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
