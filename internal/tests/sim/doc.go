// Package sim runs whole clusters in one process: real nodes with raft, serf and
// gRPC, over wires in memory, in the simulated time of testing/synctest bubbles.
// A minute of a cluster with faults takes about a second.
//
//	Cluster   starts, kills, stops, pauses and restarts nodes, and breaks the
//	   │      wires between them
//	   ├─ Net              streams between hosts: gRPC, raft, leases
//	   ├─ gossip.Network   packets between hosts: serf
//	   ├─ Verifier         asks every node at the same instant whether it would
//	   │                   acknowledge an operation: at most one may
//	   ├─ Client           calls through gRPC, on objects of all kinds
//	   └─ Judge            holds the answers against the models of the kinds
//
// Everything must be made and used inside of one bubble. Because simulated time
// stands still while a goroutine runs, what the Verifier asks of several nodes
// is asked at one instant: there is no tolerance in its verdicts.
//
// # What is seeded, and what is not
//
// The faults, their times and the delays of streams are drawn from the seed of a
// run. What raft, serf and gRPC draw themselves, and the order in which
// goroutines of one instant run, is not: a seed leads to the same faults, not to
// the same run.
//
// # Pauses
//
// A paused node (SIGSTOP, a long collection of garbage, a suspended machine)
// is stopped wherever it touches the world: its clocks, its log, its disk, its
// connections and its timers' first step into one of them. Its kernel goes on:
// connections to it are established, and bytes arrive in its sockets. When it
// resumes, a reading of the clock that was under way returns, by chance, the
// time before the pause or after it. What is not modelled: goroutines that touch
// nothing but memory go on, so that a paused node may fill its own queues; and
// packets of gossip that come during a pause are lost instead of kept.
//
// # Snapshots and late connections
//
// Logs are cut short after a few entries, so that nodes that were away for a moment get
// the table as a snapshot. A single connection can be late while others between the same
// hosts are not (Faults.Stuck, Net.Delay): what was written arrives seconds later, also
// when the sender has closed its end long ago.
//
// # Stuck scenes
//
// Simulated time stands still, too, while a goroutine waits for a mutex. So a scene
// does not end in which nodes try something again and again without a pause, or
// one reads its clock, writes its log or sends under a mutex, is paused there, and
// another goroutine wants that. A watchdog in real time ends the tests then, and
// shows what all goroutines do.
package sim
