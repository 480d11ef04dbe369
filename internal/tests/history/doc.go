// Package history checks what concurrent clients of Keystead were told: whether
// all their answers can be explained by operations that took effect once each,
// one after the other, each at a moment between its call and its answer
// (linearizability, by github.com/anishathalye/porcupine).
//
//	clients ──▶ Recorder ──▶ Fold ──▶ Check(model)
//	  calls        Calls      request ids       Counter, Bucket, Window, Lock, Register
//
// # What is checked
//
//   - Request ids (Fold): of the attempts of one request at most one acted, all
//     answers repeat its result, a replay's age leads back to a moment at which
//     an attempt was under way, and what the replay says of the state as it is
//     now is checked as a read.
//   - Counters: values, bounds, versions (they rise with every change), add, get,
//     compare-and-set and reset.
//   - Token buckets, exactly as GCRA, but for the uncertainty of when within its
//     call an operation was decided: see Bucket. Refunds to them.
//   - Counters and token buckets that are split into parts, and made whole: see
//     Model.Split.
//   - Sliding windows of at most 17 tokens: see Window. No refunds to them.
//   - Registers: values, versions (they rise with every change, over deletions too), the
//     greatest fencing token, and that changes under locks follow each other as their grants
//     do. What a watch was told are reads.
//   - Work that is done once: at most one turn is in force, tokens rise, a lease ends when its
//     time is over and not before; a result is that of the complete that was accepted, and is
//     what all are told until its retention ends.
//   - Admissions of several keys, at each of their counters: what is charged is all that was
//     admitted and not given back, never above the bound, and a refused one holds for a moment
//     only. See Across.
//   - Epochs of answers about one object do not go back: see Epochs.
//   - Locks: one holder at a time, tokens rise, a grant ends by a release or when
//     its TTL is over, not before and not later; renewals, releases, what refused
//     callers are told of the holder.
//   - An operation whose answer was lost may have acted, at any moment from its
//     call on, or never.
//
// # What is not checked
//
// The order in which waiters are served; places in the queue; idle TTLs of
// counters; fixed windows and larger sliding ones; limits whose parameters change. That an operation
// was refused with an error although it could have been decided: availability
// is for others to judge. Two clocks that run at different speeds are allowed for by
// as much as the model is told (Model.Drifting); else recorder and node must follow the
// same one. What becomes of a state whose loss was declared (Model.Unsure).
//
// A model accepts no history that is illegal but for the relaxations that it
// names. Checks are exponential at worst: keep the number of concurrent calls
// on one object near ten, and of lost calls that are never retried below that.
package history
