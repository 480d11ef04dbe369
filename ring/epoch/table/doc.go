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
// between survivors.
//
// # Picture
//
//	Init   → Admit n1 → Begin {n1}     unowned segments get their owner at once
//	       → Admit n2 → Begin {n1 n2}  n2's points split segments; n1 keeps them all
//	       → Flip n1→n2 {segments}…    proposed by n1 when it has frozen them
//	       → End                       all is as the ring wants: n2 is active
//	       → Remove {n1}               n1's segments go to the next on the ring
//
// # Non-guarantee
//
// That a row names a node does not mean that the node may act: for that it needs
// its lease too. And the table that a node holds may be an old one: the same
// lease, and the stamps, make that harmless.
package table
