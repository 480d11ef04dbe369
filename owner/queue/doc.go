// Package queue is the line in which callers wait for an object: in what order,
// for how long, and whose place it is. It knows neither the object nor what a
// caller waits for. The machine of a kind embeds a Queue and decides when the head
// is served.
//
// # Guarantee
//
//   - First come, first served. A place never overtakes another, and a place that
//     changes hands keeps its position.
//   - A place whose time is over is never served, not even when both fall on one
//     instant: Expire comes before Head in every step of a machine.
//   - A place that is Away is never served. Its caller has gone elsewhere for now, or
//     has yet to come: the place moved here from another node. All places that are
//     Away share one Grace, at whose end Expire removes them together.
//   - A place that is Kept stands until its GiveUp, whether or not its caller is here.
//   - A place belongs to the request of its Caller. A retry takes the place over
//     (Supersede) and an attempt that was held up does not (Caller.Judge): of two
//     attempts the one that was sent later has it. Those under an idempotency key say not
//     when they were sent: the one that comes later has it.
//   - A place whose time is over and that Expire has left, for it removes MaxExpire at a
//     time, is Over: the machine serves nobody until the next step.
//   - Nothing is served twice: what is popped, cancelled or expired has left the
//     queue, and its ticket finds nothing any more.
//
// # Picture
//
//	               Push                     Head, Pop
//	newcomer ───────────▶ ┌─────────────┐ ──────────▶ served
//	                      │   present   │
//	retry ── Supersede ─▶ │             │ ──────────▶ gone: Cancel, or Expire at GiveUp
//	                      └──┬───────▲──┘
//	                  Detach │       │ Supersede
//	                      ┌──▼───────┴──┐
//	copy ──── Append ───▶ │    away     │ ──────────▶ gone: Expire at GiveUp or Grace
//	                      └─────────────┘
//
// # Members
//
// Places are recorded one by one: a change of one of them does not send the queue.
// A place is known elsewhere by the request id of its Caller; its ticket means
// something in one process only. Nobody can come back to a place without a request
// id, so no copy has it. All places of a long queue are told in parts, by After: what changes
// in between is told as well, and a part that names a place puts it to the end (ToEnd), so that
// in the end they stand as they do where they come from.
//
// # Time
//
// Time is an argument: nanoseconds of the owner's monotonic clock. The machine sees
// to it that moments never fall. While somebody waits, Expire must be called at
// NextExpiry.
//
// # Non-guarantees
//
// The queue has no bound of its own: the machine asks Len before it pushes. It does
// not know whether a caller is still connected: the store does, and calls Cancel or
// Detach.
//
// # Cost
//
// Places stand in segments, each of which knows when the first of its places gives up. A step
// looks through two segments at most, and now and then once at all of them, a 64th of the
// queue. Drop, DetachAll, Clone and Valid look at all places, Expire at those whose time
// is over.
//
// Steps allocate nothing, except that the queue grows.
package queue
