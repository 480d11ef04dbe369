// Package rpc is the gRPC face of the owner: it turns requests into operations
// on the store and answers into responses.
//
// Each handler reads the clock once, lets the store decide, and asks the
// serving rule a second time just before the answer leaves; a batch does so for
// all its items at once. Errors are translated in one file, errors.go. Nothing
// is queued here: a handler works only while its caller takes the answers, so a
// slow reader holds up itself alone.
//
// Panics are not recovered. A broken invariant under a shard lock must stop the
// process rather than leave it answering.
package rpc
