// Package workload lets clients work on objects of all kinds of a cluster while faults
// happen, and records what they were told.
//
// # Picture
//
//	Workers: one thing at a time each (kinds.Kind.Work), under a request id, again and
//	  again until it is answered, at whichever node answers
//	Probes: one for each object: reads it at a steady pace ─▶ how long it paused
//	  │
//	  └─▶ kinds.Recording ─▶ Record: calls by kind, writes to what the locks protect,
//	      when each object was served
//
// Objects may be split meanwhile: clients need not know, but say in how many parts the
// object was that answered them.
package workload
