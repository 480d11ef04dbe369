// Package table is the ownership table: who owns each segment of the hash space
// now, agreed by raft. It is the state machine alone; the log that feeds it is
// package epoch's.
//
// # Guarantee
//
// A Table never changes. Apply makes the next one of a Command, or refuses it
// with an error and changes nothing; every Command that takes effect raises the
// epoch, and stamps the rows that it changed with it (Row.Since). Commands name
// what they expect to find, so that one that is repeated, late or reordered does
// nothing. Apply is a function of its arguments: all nodes that apply the same
// log hold the same tables.
//
// No Command takes a segment from a member that is still there, but for Flip,
// which the owner itself proposes after it has stopped acting for the segment,
// and Remove, which the raft leader proposes after the lease has run out. Remove
// gives away what the removed had, and nothing else: it never moves a segment
// between survivors. A segment comes to a process that has not all of its state
// only by Remove, which says so (Row.Lost). Its owner then is told that what
// was lost may still be held elsewhere (Row.Grace), until an owner says that it has
// waited for all of that (EndGrace); and that ids of before may be sent again (Row.Unsure),
// likewise.
//
// A member stands by for a segment from the Sync on that its owner proposes when
// the member has all of it, or from a Flip on, whose source has; until it is
// removed, or an Unsync takes it out, or another takes its place. A Sync or a Flip
// that was refused once is refused for ever, so its proposer may ask again.
//
// # Picture
//
//	Init   → Admit n1 → Begin {n1}     unowned segments get their owner at once
//	       → Admit n2 → Begin {n1 n2}  n2's points split segments; n1 keeps them all
//	       → Flip n1→n2 {segments}…    by n1, when n2 has all and n1 has frozen it; n1 stands by
//	       → Sync n1: n2 {segments}…   by n1, when n2 has caught up: n2 stands by
//	       → End                       all is as the ring wants: n2 is active
//	       → Unsync n1: n2 {segments}  by n1, before it goes on without n2
//	       → Drain n1                  n1 is leaving: Begin {n2}, Flip n1→n2, Sync, End: drained
//	       → Remove {n1}               n1's segments go to their standbys, or with a
//	                                   declared loss to the next on the ring
//	       → EndGrace n2 {segments}    by n2, when no lock of before the loss can be
//	                                   held any more
//
// # Non-guarantee
//
// That a row names a node does not mean that the node may act: for that it needs
// its lease too. And the table that a node holds may be an old one: the same
// lease, and the stamps, make that harmless.
package table
