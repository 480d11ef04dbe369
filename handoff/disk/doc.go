// Package disk keeps what a process holds on disk: objects by key, the log of request
// ids, and a head that says whose they are and of which moment. A Store is over the
// engine Pebble; a Keeper fills it in rounds.
//
// # Guarantee of a Keeper
//
// What is decided is in memory, and a round writes what has changed since the one before
// (owner.Store.Gather). When a round has ended, a crash loses nothing that was decided before it
// began. All objects of a key come back from one moment, with the request ids that they had
// then: an operation that is lost is lost with its id. Times go on where the last round
// had them: downtime does not count.
//
// Durable and Await say when an answer may be told. Under Always that is when the round has
// ended that takes what it tells, and all that wait at a time share one sync. Under Interval it is
// at once, as long as what is not on disk is younger than the interval; so a crash loses
// no more than what was answered within it, as the process has lived. A disk that does not keep up makes
// answers wait; one that does not answer for long, or fails, has operations refused (Admit)
// until it takes what is decided again.
//
// What a round promises is of its beginning: the epoch of its head, and what Config.Noted has noted. A shard is taken at
// one moment of a round, and another one at a later one.
//
// What is discarded as a stretch of positions (owner.Store.DiscardSpans) is deleted as one, and what was told of request ids
// there before is void: Load does not bring back what only these know.
//
// The processes of a node in a cluster that have had the disk are on a list in it. A row of the table that names
// one of them can go on from the disk.
//
// After a failure of the store all that the objects are is written to another one, in a directory beside
// it. That counts when it is whole; until then a crash goes on from the old one, which has what it
// had synced.
//
// # Guarantee of a Store
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
