// Package feed carries records from the process that decides to one that keeps a
// copy: Sender is the source's end of a stream, Intake the target's, for all of
// its sources. What a record says is not its business.
//
// # Guarantee
//
// The target installs the records of a session in the order in which they were
// appended, each once, without a gap, and one at a time. What Acked says is
// installed. Once a sender has failed it acknowledges nothing more, and never what
// is appended after that; so a caller that waits for an acknowledgement waits rather than go
// on without the copy.
//
// # Picture
//
//	under a shard's lock                 one goroutine
//	Append ─┐                     ┌─────────────────────────┐   gRPC   ┌────────────────────┐
//	Append ─┼─▶ batch│batch│batch │▶ at most 2 in flight, or├─────────▶│ Await the epoch    │
//	Begin ──┘    gathers   kept   │  8 if they are full     │          │ Begin, Install ... │
//	             until acknowledged └───────────────────────┘◀─────────┤ ack                │
//	Wait ◀──── one channel a batch ◀──────── ack                       └────────────────────┘
//
// A batch is what has gathered while others were under way (group commit): a
// record on an idle stream goes out at once and takes one round trip, and a busy
// stream has few and large messages. Copies of rows (Begin, and a record for each
// object, then Versions) and what changes meanwhile go over the same stream; Room holds a copy
// back while much of it is unacknowledged.
//
// # What is said
//
//	source                                            target
//	hello  version 1, n1/7 → n2/3, session 12, connection 1
//	                                  welcome  unknown, applied 0
//	batch  12: 1..1, epoch 90
//	batch  12: 2..40, epoch 90
//	                                      ack  1
//	batch  12: 41..57, epoch 91        (waits until it goes by the table of epoch 91)
//	                                      ack  40
//	       ╳ the connection breaks; 41..57 were installed, and the ack is lost
//	hello  version 1, n1/7 → n2/3, session 12, connection 2
//	                                  welcome  known, applied 57
//	batch  12: 58..60, epoch 91
//	                                  refusal  NOT_TAKEN: the memory is full
//
// After a refusal, other than SUPERSEDED and BEHIND, the session is over: a
// source that wants a copy makes a new Sender and begins anew. So it is when the target does
// not know a session that it has acknowledged something of, because it had to
// forget the source (Intake.Forget, MaxSources).
//
// A later session of a source ends the ones before it, and a later connection of a
// session its earlier ones, however late their messages come: the numbers decide,
// not the order of arrival. A batch names its session, and is checked as a whole
// (lengths, CRC-32C) before any record of it is installed.
//
// # What is on disk
//
// An acknowledgement has a second number: up to that one, all records are on the target's disk
// (Sender.Kept). The disk is written in rounds. What is installed when a round begins is noted
// (Intake.Note), and told when all of the round is synced, whether a record has come since or
// not. A round that began before a copy did tells nothing of the copy: the Begin has a greater
// number. What the target dropped counts as kept, as it counts as installed: nobody that may
// still answer waits for it. A new session begins at 0; a later connection of a session tells the
// number again. A target that keeps nothing on disk, or is older, says 0 for ever.
//
// Rounds come by themselves; a batch that is urgent asks for one: it has a record of a kind of
// which answers wait for the disk, or ends a copy.
//
// # Non-guarantees
//
// A record may be installed that is never acknowledged. Nothing is kept on disk here,
// and nobody is asked who the sender is: that is for the connection's handshake.
// Whether the source may say anything about a record's object is for Install to
// judge.
package feed
