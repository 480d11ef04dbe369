// Package fallback decides checks of limits whose owner cannot be asked in time: by a cap
// of this process, or by the last answer of the owner that this process knows.
//
// # Guarantee
//
// Of one limit of one key, one Table admits
//
//   - by LocalCap, at most Cap tokens in any time shorter than Period;
//   - by LastKnown, at most what the owner said was left, less what the Table has admitted
//     since and in the time KnownFor before, and nothing when that answer is as old as
//     KnownFor. So at most the limit's capacity in any time shorter than KnownFor.
//
// What is admitted by one of them counts for the other, and for whatever rule comes next: it
// counts for the longest time that a rule has said while some of it counts. So rules that
// change, callers that disagree and an owner that comes and goes give nothing twice.
//
// Limits of one key that are decided together (DecideAll) are spent together, or not at all, and each within its own
// bound.
//
// A Table has at most MaxKeys entries, and forgets none whose tokens count. If there is no
// room, nothing is admitted.
//
// # Picture
//
//	owner answers ──▶ Learn: 40 left                    (LastKnown alone)
//	owner silent  ──▶ Decide: 40 left, 0 since  ──▶ allowed, 39 left
//	owner silent  ──▶ Decide: 40 left, 40 since ──▶ denied
//	owner answers ──▶ what it says goes
//
// # Non-guarantee
//
// Tables know nothing of each other: several nodes, or clients, admit as much each. What is
// admitted here is not charged at the owner.
package fallback
