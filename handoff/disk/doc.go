// Package disk keeps what a process holds on disk: objects by key, the log of request
// ids, and a head that says whose they are and of which moment. It is a store over the
// engine Pebble.
//
// # Guarantee
//
// A batch is on disk whole or not at all, after any death of the process or the machine, and
// batches are there in the order of their commits: if one is missing, so are all after it.
// What Commit has taken with sync is there. The head is that of the last batch that is
// there.
//
// A store that is read gives what was written or an error. A part that has changed since, by a
// medium that rots or a hand, is ErrDamaged: when the store is opened, or when that part is read.
//
// No failure of the disk ends the process, none is tried again, and none is taken for one that worked
// later: with the first write, sync, creation or renaming that fails, the store is
// failed. Commit reports that, also to calls that wait; nothing of the directory changes any
// more, as if the machine had stopped at this moment. Close does not hang, and frees the
// directory, so that it can be removed and another store be made.
//
// # Picture
//
//	Batch ──► Commit ──► memtable ──► tables, merged in the background
//	             └─────► log, synced ──► "synced": how much of it, and its checksum
//
//	engine ──► gate ──► file system
//	            └── the first error closes it: the engine goes on and nothing is written
//
// # Layout
//
// The file "format" says that the directory is ours, and which format it has; it is written
// last when a store is made, so a directory without it holds nothing. "synced" says how
// much of the engine's log and manifest has been synced, with a checksum. The engine cuts
// both where they cannot be read, because a crash leaves them so; with this file, that is told
// from bytes that have changed. All other files are the engine's. Keys are in keys.go.
//
// # How it holds
//
// The engine panics or ends the process when a write to its log or manifest fails, at times with
// locks that nobody can release. So it never sees an error of writing: its file system (gate)
// notes the error first and answers that all is well, from then on for everything, without
// doing it. Commit asks for the error after the engine's answer. Where the engine ends
// the process for another reason, the goroutine that does so stands still for ever, and the
// store is failed; the files are closed behind its back.
//
// Errors of reading in the background, those of a merge, fail the store too: the engine
// would try again and again.
//
// # Non-guarantees
//
// What was committed without sync may be lost with the machine, and the last batches with it. A disk
// that loses what it said is synced is not noticed if it loses a log and "synced" together.
// A disk that does not answer keeps Commit waiting, without an error; Close waits ten seconds for it. A
// store is for one process at a time. What values mean is not this package's business.
package disk
