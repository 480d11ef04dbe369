// Command peers measures Keystead beside etcd and Redis, in one run on one machine: locks,
// their handover, semaphores, and values that are written.
//
//	apt-get install etcd-server redis-server
//	go -C internal/tests/peers run .                            # some three minutes
//	go -C internal/tests/peers run . -rounds 7 -json > peers.json
//
// Each server is a process, and so is what calls them all: this one. They take turns, in an
// order that changes from round to round, so that whatever else the machine does falls on
// all of them. A figure is the median of the rounds, a ratio the median of the rounds' ratios.
//
// # What is compared
//
//   - etcd, one member, with clientv3 and its package concurrency: a session for each caller,
//     a Mutex for each lock. Its data is in memory (-data says where), so that it waits for no
//     disk: with one it is slower.
//   - Redis, one, without persistence: SET NX PX, and a script that deletes the key if it still
//     has the caller's value. Over bare connections, each caller its own; and in batches of
//     64 on one connection, where the lock of no caller waits for that of another.
//   - Keystead, one node and three, with the Go client; and one node by bare gRPC. In three
//     nodes each answer waits for the standby.
//
// # What is not
//
// The promises differ. etcd's locks are agreed on by a majority and are on disk where it
// has one; those of three nodes here are in the memory of two; those of one node of
// Keystead, and of Redis, are in the memory of one process. Redis has no queue, so there is
// no handover of it: its callers poll. There is no network between caller and server, and all
// of them share the processors.
package main
