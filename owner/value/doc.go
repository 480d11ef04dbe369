// Package value is the state machine of a register: some bytes under a version, with a fence.
// It is pure: state, operation and time in, state and result out.
//
// # Guarantee
//
//   - A change happens if all its conditions hold at that moment, and else changes nothing.
//     A condition is the version that the register must have (0: it must not exist), a
//     hold that must not be over, and a fencing token that must not be below the fence.
//   - Each change has a version above all before it, that of a deletion too. The caller says
//     what it is, and takes it from a sequence that never repeats.
//   - The fence is the greatest foreign token under which something was changed. It never
//     falls. A deletion keeps it: what is made again is fenced as before.
//
// # Picture
//
//	                Set: value, version ↑
//	absent ───────────────────────────────────▶ there ─┐ Set: value, version ↑
//	   ▲ ▲                                        │ ▲──┘
//	   │ └─────────── Delete, no fence ───────────┤
//	   │                                          │
//	   └── Forget ── deleted ◀── Delete, fenced ──┘
//	                 fence stays
//
// # Holds
//
// A holder of a lock under the same key may have the write say so. Both objects have one owner
// and one mutex there, so whether the hold is over is asked in the step that writes: a late
// holder is refused from the moment at which its lease ended, even if nobody has written
// since. Conditions.Over is what the caller has found.
//
// A token of elsewhere is judged by the fence alone: it is refused once something was
// changed under a greater one.
//
// # Time
//
// Time is an argument, in nanoseconds of a monotonic clock, and decides nothing: it is kept
// for people.
//
// # Non-guarantee
//
// A change without a fencing token is not judged by the fence: all writers have to give
// one. A change that is refused does not raise the fence. Versions are not consecutive.
package value
