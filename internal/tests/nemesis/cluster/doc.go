// Package cluster starts clusters of real `keystead server` processes on this
// machine, and does to them what machines and networks do: it kills, stops,
// restarts, wipes, slows down and cuts off.
//
// # Picture
//
//	clients ─▶ Connect ─▶ [Proxy] ─▶ node: a process, a disk, four ports, a log
//	                                  ▲ raft, gossip, forwarded calls: [Proxy]
//
// On loopback all nodes reach each other. With Proxied, each node tells the
// others another address of loopback, at which a Proxy listens that can delay
// what goes to the node. With Islands (root, on Linux, iproute2 and iptables),
// each node has a network namespace of its own and hangs on one bridge, and the
// nodes can be cut off from each other, but never from the clients: an owner that
// is cut off and still answers is what there is to be found.
// With Disks (root, loop devices), each node has a file system of its own, which can be
// filled, and frozen so that writes wait.
//
// # Non-guarantees
//
// Gossip over UDP is delayed one packet at a time and never lost or reordered.
// Processes end with the process that started them only on Linux.
package cluster
