// Package power cuts the power of real nodes whose data directories are on disks that forget
// what was not synced. There are tests only.
//
//	go -C internal/tests/forgetfs test ./power
//	go -C internal/tests/forgetfs test ./power -cycles 1000 -timeout 2h    # by hand
//
// # What is tried
//
// A node that runs alone, and a cluster of three, are cut off at moments that are chosen by
// chance, also while they start: their processes are killed, and their disks crash. In every
// second cycle the disks keep some of what was not synced, in pieces. Every start has to
// succeed, and no epoch, no fencing token and no term is ever lower than one that was seen.
//
// A node that keeps its state on disk dies so under a load of counters, limits, locks and
// ids, by kill -9 alone as well. All that it had acknowledged is there when it is back, and
// is answered the same when it is sent again; with --durability interval what it had
// acknowledged in the last interval may be missing, and that is declared. The test prints how
// much was lost, and how long it took until the node served. So do all three nodes of a cluster.
//
// The package needs root and /dev/fuse, and fails without them.
package power
