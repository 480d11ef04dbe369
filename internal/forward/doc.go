// Package forward brings calls to the owner of their key.
//
// It knows the ownership table, functions that decide a call and confirm what was decided,
// and of an operation its number, how to read its messages, and whether a lost answer is
// harmless. It knows no kind of object and no service of the API: those describe their
// operations to it (Operation), and internal/rpc gives it the rest (Config, ServiceConfig).
//
// # The way out
//
// A Router has a call answered by whichever node owns its key by the present table. A route
// (route.go) is one call on its way: where the next attempt goes (aim.go, which knows of
// objects that are split), what became of it, and what follows. Many calls at once
// (many.go) leave together. Links (links.go, link.go) are streams to other nodes, with
// bounded queues; each attempt of a call is answered, or ends with what is known of it.
//
// What is sent a second time has a request id; all else that is sent and not answered has
// an unknown outcome.
//
// # The way in
//
// A Service answers the calls of other nodes (service.go). A call that was passed on is
// never passed on again: a receiver that is behind waits for the table that the sender goes
// by. Answers wait in lanes (lanes.go) until the copies have what they tell, and are
// confirmed just before they leave; what a process that hangs holds back stands in nobody
// else's way.
//
// Between nodes a call travels in one of two envelopes (envelope.go), by the level that
// the cluster uses.
package forward
