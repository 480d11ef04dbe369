// Package forward brings calls to the owner of their key.
//
// It knows the ownership table, and of an operation its number, how to read its
// messages, and whether a lost answer is harmless. It knows no kind of object and no
// service of the API: those describe their operations to it (Operation).
//
// Links (links.go, link.go) are streams to other nodes, with bounded queues; each
// attempt of a call is answered, or ends with what is known of it. What is tried next is
// for the caller: internal/rpc, as yet.
//
// Between nodes a call travels in one of two envelopes (envelope.go), by the level that
// the cluster uses.
package forward
