// Package hotkey is the wing of hot keys. It has no code of its own: its packages find
// the keys that get a large part of a node's operations, decide what is done about them,
// and do it.
//
// # Guarantee
//
// A key that gets more than one node can do is served by several, and nothing that was
// promised of it changes: a limit that is split admits at most what it would admit whole,
// a counter's adds take effect once, a retry finds the answer of its request id. Whether
// a key is split is agreed on in the ownership table; nobody acts by anything else.
//
// # Picture
//
//	an operation at the owner
//	   │  owner/shard.go: one touch, under the shard's mutex
//	   ▼
//	heat.Sketch      sketch.go     counts by tag, in a cache line
//	   │  four times a second: home.Observer, observer.go
//	   ▼
//	heat.Watch       watch.go      which keys are surely hot
//	   │  home.Home: decide.go
//	   ▼
//	plan.Planner     plan.go       split, resize, respread, merge or nothing;
//	   │             parts.go      how many parts, on which nodes;
//	   │             weigh.go      how much of a limit each part may spend
//	   ▼
//	home.Home        order.go      has that agreed on, in ring/epoch/table
//	   │             drive.go      does what each phase of the split needs
//	   │             whole.go      reads and writes the object, in the node's own store
//	   ▼
//	divide.Divide    divide.go     records of the whole → records of the parts
//	divide.Unite                   and back
//	divide.May       may.go        which operation may act on the object and on its parts
//
// Parts on other nodes are reached by home.Parts, which internal/rpc implements. What
// users are told and may ask, and how a call finds a part, is internal/rpc's as well;
// internal/node gives each what it needs.
//
// The home of an object is the node that owns its key. It alone decides about the object
// and drives its split.
package hotkey
