// Package replay decides the entries of an access log: as limit checks, or as adds
// to counters. In the node's time it sends them to a server, as fast as that answers:
//
//	            ┌ worker ─ batches ─┐
//	log ─ feed ─┼ worker ─ batches ─┼→ server        tallies of each key ─→ Report
//	            └ worker ─ batches ─┘
//
// In the log's own time it decides them itself, by a store of package owner, each at
// the moment that stands in the log:
//
//	log ─ order ─ store        tallies of each key ─→ Report
//
// There is no server then, because no call carries a time. Entries are put in order
// first; see order and maxHeld. What follows is about the node's time.
//
// One goroutine reads the log and hands each entry to a worker; a key stays
// with the worker that got its first entry. A worker has one call under way at
// a time.
//
// # Guarantee
//
// Each entry is checked or added exactly once, also when calls fail and are
// sent again: every item carries a request id, and a retry repeats it. Each
// worker is a client of its own to the server. With one call under way, all
// that came before is settled, so a server has to remember no more than one
// batch of a client's ids on an object; MaxBatch keeps that below the number
// that a node remembers, even if a log has a single key. (One client for all
// workers could not promise that: while one call waits for its retry, the
// others run far ahead of it on the same counter.)
//
// The entries of one key are sent in the order of the log.
//
// # What stays open
//
// When a run ends early, by an error or because it is cancelled, the last call
// of each worker may or may not have acted. The report says how many entries
// have no answer.
//
// # Keys
//
// A key has 1 to 512 bytes of UTF-8. One that is longer, or is not UTF-8, is
// sent as its beginning, with "~sha256:" and 32 hexadecimal digits of the
// SHA-256 of the whole in place of the rest: different keys stay different, and
// each run makes the same of them.
package replay
