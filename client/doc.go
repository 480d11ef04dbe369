// Package client is the Go client of Keystead: exact counters, rate limits, locks,
// registers, semaphores and barriers, each decided by the one node that owns its key.
//
//	c, err := client.Dial(ctx, "n1:7400", "n2:7400")
//	d, err := c.Limit("api", client.PerMinute(20)).Check(ctx, tenant)
//	v, err := c.Counter("stock").Add(ctx, "sku-42", -1, client.AtLeast(0))
//	l, err := c.Lock("nightly").Acquire(ctx, "report")
//	w, err := c.Register("config").Put(ctx, "shop", []byte("open"))
//	p, err := c.Semaphore("db", 10).Acquire(ctx, "orders", 2)
//	b, err := c.Once("orders").Do(ctx, "order-7", hash, work)
//	a, err := c.Barrier("build", 3).Wait(ctx, "17")
//
// A Limit, a Counter, a Lock, a Register, a Semaphore and a Barrier name what is meant; each key has its own
// of that name.
//
// # Guarantee
//
//   - An operation takes effect at most once, however often it has to be sent:
//     each carries a request id, and is sent again under it when the connection
//     breaks, the owner moves, dies or is overloaded, until the context ends.
//   - A call that returns no error took effect. One that fails with
//     ErrOutcomeUnknown or ErrRequestTooOld may have; with ErrClosed its message
//     tells; with any other error it did not.
//   - An Acquire that fails holds nothing: with ErrLockHeld another has the lock, with
//     ErrNoPermits too few permits were free; with
//     ErrOutcomeUnknown a grant that was on its way is given back in the background, or
//     by its TTL.
//   - The context of a lock ends before its lease does, by its Margin,
//     and Held looks at the clock: a process that was stopped for too long sees
//     that its time is over when it goes on.
//   - What a node of a later version says, and this client does not know, is judged by its
//     gRPC code, and shown as unknown: never as something else.
//   - Everything is bounded: calls under way, how many go in one message,
//     the connections (one or a few to each member).
//
// # Picture
//
//	            hash(key) ─▶ row of the table ─▶ its owner
//	                  ┌───────────────────────────────┐
//	Check, Add ─▶ 4 messages under way? ── no ─▶ alone, at once ─▶ n1
//	                  └─ yes ─▶ gather ── one is back ─▶ together ─▶ n1
//	other calls ────────────────────────────────────────────────▶ n1, n2 …
//	Watch ◀── the table, and its changes ── some node; another when that one fails
//
// TryAcquire and Release of locks go as Check and Add do.
//
// The table is a hint: nodes forward what they do not own. A client with an old
// table, or none for a key, loses the time of a hop and nothing else. Calls that
// have no key go to the one of two random nodes that has less to do (package p2c).
//
// The table also lists the limits and counters that are split into parts, because they
// are hot. A Check or an Add of such an object goes to the owner of the part that its
// request id belongs to; a Get or a peek to any of these owners, chosen as above. What a
// part cannot do (an Add with bounds or an IdleTTL, CompareAndSet, Reset, windows) goes to the
// owner of the key as always. Answers carry the number of parts (Decision.Parts,
// Change.Parts, Count.Parts), and what that means for them is said there.
//
// # Non-guarantees
//
//   - Calls are not ordered among each other, unless one begins after the other
//     has returned. Items of a batch for one key are done in order as long as none
//     of them must be sent again, and what they are about is not split.
//   - A lock does not stop a holder that acts late. Its fencing token does, if what the
//     lock protects checks it. Timers stand still while the whole machine is suspended:
//     look at Held (or the context's Err) before what matters.
//   - Close does not give locks back. They end by their TTL.
//
// # Compared with the gRPC API
//
// The API can be called with the generated code in proto/keystead, through any
// node. What this package adds is what has to be right then: a client id and
// sequence numbers, the settled number and the age of retries; which errors may be
// retried; the way to the owner without a hop; batches; and the counting of
// leases. docs/guarantees.md has the rules.
package client
