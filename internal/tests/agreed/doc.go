// Package agreed is what a cluster agrees on, without the raft: a real table to which each
// command is applied at once. It is for tests of what goes by the table, or proposes
// changes of it, where a cluster of whole nodes would be too much.
//
// A Cluster is the table that is agreed on; a View is what one process knows of it. A test
// embeds the one that it needs in a type of its own, and adds what else the interface of
// the part that it tests has.
package agreed
