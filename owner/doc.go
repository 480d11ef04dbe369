// Package owner keeps the objects of the keys that this process owns: exact
// counters, rate limits and locks, in memory.
//
// # Guarantee
//
// Every operation on an object takes effect at one moment, under the lock of
// the object's shard, in the order in which the operations came there; what it
// answers is the state at that moment. An operation with a request id acts once
// however often it is sent (package reqid). A refused operation changes nothing.
// An object is forgotten only when it equals one that never was and its request
// ids are forgotten too.
//
// Fencing tokens of a lock only rise: they are made of the epoch of the serving
// rule and a sequence, and a shard never hands out one that is not greater than
// all before it.
//
// # Picture
//
//	hash(key) ── top bits ──▶ shard ─ mutex
//	                            ├ index   hash(key, name) → entry
//	                            ├ cells   kind, state, key and name of an entry, together
//	                            ├ holds   states of locks and all that is held, which have pointers
//	                            ├ ids     request ids of the objects
//	                            └ version rises with every change
//
// The state machines are pure: owner/limit, owner/counter and owner/hold decide,
// this package finds the state, asks the serving rule (Rule), stores what
// changed and gives it to the Sink as a Record: the absolute new state of one
// object. The rule is asked twice: when an operation is let in, under the shard
// lock, and by the caller just before the answer leaves (Store.Confirm).
//
// # Kinds
//
// What the store knows of a kind of object beside its operations is one machine, in the list
// of kinds.go: where its states are, when one is absent or over, how it is written and read.
// A state travels as bytes that only its kind reads; parts of it that change by themselves
// (Member), such as the places in a queue, one by one. Check and Add call no machine.
//
// # Holds
//
// What is held under leases by holders with weights (package hold) is one family: a kind of it
// is a few numbers (family) and its operations, which are those of hold.go in the words of the
// kind. State, records, members, copies, waits and claims are the family's.
//
// # Copies
//
// Records carry objects to other stores, change by change (Sink) and as a whole
// (Export); Install takes them in. What a store has installed is a copy: it is what
// the owner has, its times a little later, and decides nothing, until the serving
// rule lets operations in and Own has begun the grace of the queues. A caller that
// waits is not carried; its place is, until the caller's retry comes. Dismiss and
// Discard are for what is another's from now on, kept as a copy or not.
//
// # Waiting
//
// An operation that cannot be answered yet returns a Wait. The machine of its object
// has a queue with a place for it (package queue) and decides when it is served; the
// store has the caller, and the time:
//
//	operation ──▶ machine: queue.Push ──▶ Wait ──▶ Done, Answer
//	                 │ step                ▲
//	Wake, at NextWake┘─── effects ─────────┘
//
// A retry with the same request id takes the place over, here or at the next owner. A
// caller that leaves calls GiveUp, and one whose way here has ended Detach: its place
// is kept for a while.
//
// # Parts
//
// An object that is hot may be split: users then meet parts of it, each an object
// with a key of its own, so that copies, request ids and all else is as for others.
// Read and Put carry an object to its parts and back, as a whole and in one step
// each; an operation names in what capacity it acts (Role), and the serving rule
// decides whether it may now (Splits). A part of a limit counts under a weight (package
// limit), one of a counter from 0. What a part cannot decide is ErrWhole.
//
// A part of a limit that is lost is not full, as others are, but empty: all of it may
// have been spent. No part is forgotten before its split is (Config.Stale), but a
// counter that nobody added to.
//
// # Time
//
// Nothing here reads a clock: `now` is an argument, in nanoseconds of a clock
// that never goes back. Nothing waits either: the program that runs the store calls
// Wake at NextWake, and Sweep now and then.
//
// # Limits
//
// Keys, names, objects, memory, waiters and request ids are bounded by named
// constants and Config; going over is an *Error and changes nothing. Checks and
// counters allocate nothing, start no goroutine and hold one shard lock.
package owner
