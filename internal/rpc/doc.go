// Package rpc is the gRPC face of the owner: it turns requests into operations
// on the store and answers into responses.
//
// Each handler reads the clock once, lets the store decide, and asks the
// serving rule a second time just before the answer leaves; a batch does so for
// all its items at once. Errors are translated in one file, errors.go. Nothing
// is queued for callers: a handler works only while its caller takes the answers,
// so a slow reader holds up itself alone.
//
// What an operation is stands in one line of kinds.go: from it come its method, its
// metrics, what settings know of it, and how it is forwarded. The files of the services
// (limits.go, counters.go, locks.go) convert fields.
//
// A call whose key the table has at another node, or that the store did not let in
// because another node owns it, is passed on by internal/forward, and decided here when
// another node passes it on (forward.go has what the two give each other). What is sent a
// second time has a request id; all else that is sent and not answered has an unknown
// outcome.
//
// Panics are not recovered. A broken invariant under a shard lock must stop the
// process rather than leave it answering.
package rpc
