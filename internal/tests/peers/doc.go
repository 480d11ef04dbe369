// Command peers measures Keystead beside etcd and Redis, in one run on one machine: locks
// one by one and in batches, their handover, semaphores, work that is done once, elections whose
// leader is killed, and values that are written and watched by 10,000.
//
//	apt-get install etcd-server redis-server
//	go -C internal/tests/peers run .                            # some five minutes
//	go -C internal/tests/peers run . -rounds 7 -json > peers.json
//	go -C internal/tests/peers run . durable                    # another four
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
//   - Keystead, one node and three, with the Go client; and by bare gRPC, alone and 64 in a
//     batch. In three nodes each answer waits for the standby.
//   - Leaders are processes with a lease of 2 s, the shortest of etcd, and are killed with SIGKILL
//     while another one waits. Servers live on.
//   - 10,000 watch one key of etcd, and one register, over four connections; the time is that
//     from the write until 9,900 have heard it.
//
// # What is on disk
//
// durable measures what is on disk before it is answered, beside the disk itself: all servers have
// their data in one directory that is not in memory (-data says where), 1, 64 and 256 callers each
// write one of 10,000 keys at a time, and a first round does not count.
//
//   - etcd, one member and three: puts of 8 bytes with clientv3, over four connections.
//   - Redis with its append-only file synced always, and every second: INCRBY over bare
//     connections, one a caller, alone and 100 in a pipeline.
//   - Keystead with each --durability that it has, one node: adds by bare gRPC over four
//     connections, without request ids; 100 of them in a batch; and by the Go client, which gathers
//     what its callers add, and gives each a request id. And three nodes.
//   - The file system, when nobody else writes: 4 KiB appended and synced, and 4 KiB written over
//     what is there, as logs do that make room before.
//
// How many answers share a sync is counted: by the metrics of etcd and of a node, and at Redis by its
// write calls, which are one for each reply and one for what is synced. The processor time of a server
// for an item says less of what else the machine does than a rate. All servers run all the time;
// those whose turn it is not are idle, but for what an interval, or everysec, writes late: that falls on
// what comes next, the less the longer a -duration is.
//
// # What is not
//
// The promises differ. etcd's locks are agreed on by a majority and are on disk where it
// has one; those of three nodes here are in the memory of two; those of one node of
// Keystead, and of Redis, are in the memory of one process. Redis has no queue, so there is
// no handover of it: its callers poll. There is no network between caller and server, and all
// of them share the processors.
package main
