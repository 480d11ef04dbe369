// Package node puts a node together and takes it apart: the store, the serving
// rule, the gRPC server, the admin server, and the timers that the store asks
// for. It is the only package that imports everything.
//
// Start brings the parts up in order, each ready before the next; Stop takes
// them down in the reverse order. Both are in node.go.
package node
