// Package workload lets clients work on counters, limits and locks of a cluster
// while faults happen, and records what they were told.
//
// # Picture
//
//	Workers: add, set-if, reset │ check │ acquire, write under it, renew, release
//	  one thing at a time each, under a request id, again and again until it is
//	  answered, at whichever node answers
//	Probes: one for each object: reads it at a steady pace ─▶ how long it paused
//	  │
//	  └─▶ internal/tests/history.Recorder ─▶ Record: calls by kind, writes to what the
//	      locks protect, when each object was served
//
// Objects may be split meanwhile: clients need not know, but say in how many parts the
// object was that answered them.
//
// # What an attempt without an answer means
//
// An attempt that no connection took, or that was answered with a reason that says
// that nothing happened, did nothing. Any other one may have acted, at any time
// from then on: it stays in the history as lost, until a retry under the same
// request id tells. Reads that fail are left out.
package workload
