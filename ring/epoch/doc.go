// Package epoch agrees by raft on who owns what, and keeps the lease that lets
// this node act. It is a thin shell: the table is package table, the leases are
// package lease, the rule by which the node acts is package serving, and this
// package feeds them from the log, the network and the clock.
//
// # Picture
//
//	            raft log ──► Table ──► serving.Rule ◄── lease
//	               ▲                                     ▲
//	leader: admits, begins, ends, removes     renewals, every third of the TTL,
//	source: flips what it has frozen          answered after a proof of leadership
//
// One goroutine, the keeper, owns the protocol's state: the node's lease, and on
// the leader the leases of all, the candidates for admission and the proposals
// that are under way. It never waits for the network; what does runs beside it
// and reports back. Readers get immutable tables.
//
// # Guarantee
//
// That of package lease and package table together: at any moment at most one
// process acts for a key. Requests never wait for consensus.
//
// The table never goes back in a process. A snapshot of the log is judged before raft
// gets it: see transport.
//
// # Identity
//
// A raft server is an identity drawn when its log is made, and kept in it. Every
// connection between nodes begins with a handshake that names the cluster and
// the identity that is meant, and is refused by anybody else: a node whose disk
// was wiped is a new server at an old address, and never votes for the old one.
// A cluster is made once, by the node that is told to (Bootstrap); a wiped disk
// alone never makes one.
package epoch
