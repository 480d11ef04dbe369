// Package handoff keeps copies of what a node decides where the table wants them,
// and hands rows over to processes that have a copy. One stream of records serves
// standbys, joins and drains: a process that gets a row has stood by for it before.
//
// # Guarantee
//
// No answer is told before the row's synced standby has acknowledged what it
// speaks of (Source.Replicated, Source.Await); so if the owner dies, nothing that was
// acknowledged is lost. A row changes hands only to a process that has all of it
// (Source.flip): planned changes lose nothing.
//
// # Picture
//
//	operation → store → Sink ──► feed to the standby ──► acknowledged ──► answer
//	                        └──► feed to a process that gets a copy
//
//	a copy:    Begin(rows) → every object once, mixed with what changes → caught up
//	a standby: answers wait for it too → it has all that was told before → Sync
//	           agreed → the old one is out
//	slow:      Unsync agreed → answers wait for it no more → a new copy
//	a flip:    freeze → all have everything → close → Flip agreed: the new owner's
//	           standby is the old owner, until it has made the one that the ring wants
//
// # Disks
//
// Where the table says that disks count (table.Durable), the disk of each process that it names
// for a row has what was told of the row: the same waits are for disks as well (Source.has,
// Source.ownHas). Under always an answer waits for the last round of its own disk and of the disks of
// those whose memory it waits for; under interval, while one of them is behind by more than that.
// A Sync and a Flip are proposed when the target's disk has all. A standby whose disk does not
// keep up is taken out (slowDisk). Decision 66 has the protocol, model/cold.pml its model.
//
// # How it holds
//
// All records of a source to a target go over one ordered stream (package feed),
// and each is the absolute state of an object, or of some of its places (package
// record), so a copy needs no pause: it is caught up when the record is acknowledged that was last when the
// last object had been sent. Copies keep to a rate (Config.CopyRate), to leave the
// network to requests; records of changes do not wait for it. Source.Progress tells
// how far copies are.
//
// What answers wait for (route.wait) grows before a Sync is proposed, and by a
// barrier before that everything is acknowledged that may have been told without
// waiting. Once the Sync is proposed, it shrinks only by a table that this node goes by.
// While a Sync is undecided, answers wait for both, the old standby and the new. If the
// new one does not keep up before anything is proposed, the Sync is given up. A process
// that was removed never comes back as what it was: nothing waits for it any more.
//
// The target takes a record in only if its own table names the source, in its
// very incarnation, as the owner of the row (serving.Rule.Accepts), asked under the
// lock of the shard. Tables come to both in the same order, and both judge by each
// of them which process may hold a copy; a Sync and a Flip name the last change of the wanted
// ring, so that they are refused if one of the two had looked away.
//
// # Non-guarantee
//
// A row without a standby, in a cluster of one node or just after a failure, is
// acknowledged by its owner alone. Should the owner die then, the row's loss is
// declared (table.Row.Lost). Unprotected rows are counted in the status.
package handoff
