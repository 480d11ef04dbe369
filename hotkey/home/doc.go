// Package home is a node's part in what becomes of its hot objects: it finds out which of
// the objects that the node owns are busy, decides which of them are split, and takes
// each split from phase to phase. The home of an object is the node that owns its key.
//
// # Guarantee
//
// What a home does with an object is agreed on first, in the ownership table, and each
// phase begins when all that acted in the one before have heard of its end:
//
//	opening   the whole is frozen: the home reads it (Read), divides it, and plants the
//	          parts. It is opened when every part and its standby have what is theirs.
//	open      the parts serve. The home asks them how they do, tells each of the others,
//	          and moves weight between those of a limit: cut first, raise after.
//	closing   the parts are frozen: the home reaps them, unites what they have, and puts
//	          it in the place of the whole (Put). The split ends when the standby has it.
//
// A home reads and writes its own store, waits for the copies as any answer does, and asks
// the store whether what it read still counts. It reaches the parts of other nodes by
// [Parts]; which transport that is, it does not know.
//
// # Picture
//
//	owner.Store ── sketches ──▶ Observer.poll ──▶ HotKeys        observer.go
//	                                                │
//	ring/epoch/table ── splits ──▶ Home.scene ◀─────┘            decide.go
//	                                  │  plan.Planner
//	                                  ▼
//	person ── Split, Merge ──▶ Home.begin, Home.close            order.go
//	                                  │  Cluster.Propose
//	                                  ▼
//	                  table: opening, open, closing, gone
//	                                  │  Home.follow             home.go
//	                                  ▼
//	                              drive.step                     drive.go
//	       readWhole, putWhole ◀──────┼──────▶ Plant, Ask, Reap
//	       Store, Copies     whole.go │        Parts
//	                                  ▼
//	                            drive.balance                    balance.go
//
// # Not guaranteed
//
// A decision may come to nothing: another one came first, the leader was away, or the
// object turned out to be indivisible and is left alone for a minute. All that a home
// remembers may be lost. The next home of the object finds it out again, and goes on with
// the split where the table says it is.
package home
