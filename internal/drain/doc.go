// Package drain has a node give away all that it owns and stands by for, so that it may
// be stopped and nobody notices.
//
// An order comes in four ways, and all of them end in Drainer.Give, which has it agreed
// on as a command of the table (table.Drain):
//
//	keystead drain n2        Give        by any node, about any node
//	serf event keystead-drain n2   Heard       by the node that the event names
//	POST /drain              Drain       by this node; waits until it is empty
//	SIGTERM                  BeforeStop  by this node, which is about to stop; waits
//
// # Promise
//
// Give returns when the order is agreed on, or an error whose reason reports whether
// anything happened. It is refused if nobody would be left to take what the node has
// (LastNode), and, unless forced, if too few voters would be left that are not drained
// (TooFewLeft). Saying it again does no harm: State.Already tells that it changed nothing.
// A process that follows its own drain gives each row away with its state, and serves it
// until then; a failed or an abandoned wait takes no order back.
//
// # States
//
// The states are the phases of a member in the table (table.DrainState):
//
//	           order                    its rows move                 the transition ends
//	active ──────────────▶ leaving ─────────────────────▶ (empty) ──────────────────────▶ drained
//	  ▲                       │ undo                                                        │ undo
//	  └───────────────────────┘                        joining ◀────────────────────────────┘
//
// A process that is about to stop and keeps its state says so (Order.Stop). When all that
// have anything say so, nobody is left to give it to: each is active again, gives nothing
// away and keeps what it has for its next process. The last of those that stop one after
// the other gives nothing away either: it waits for those that still give it theirs.
//
// # What it does not do
//
// It moves no row: the leader plans the transition, and handoff makes the copies and flips.
// It does not stop the process. It imports no transport: what it needs of raft and gossip
// are Group and Event.
package drain
