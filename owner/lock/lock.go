package lock

import (
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/wire"
)

// Weights.
const (
	All = hold.MaxCapacity // the capacity of a lock, and what an exclusive grant has
	One = 1                // what a shared grant has
)

// Weight returns what a grant has.
func Weight(shared bool) uint32 {
	if shared {
		return One
	}
	return All
}

// MaxText is the most that a holder and its metadata take in bytes.
const MaxText = 2 + hold.MaxName + 2 + hold.MaxMetadata

// MaxGrant is the most that AppendTo writes, and MaxWaiter what AppendWaiter does.
const (
	MaxGrant  = 3*wire.MaxNumber + MaxText + 3*wire.MaxNumber
	MaxWaiter = MaxText + 3*wire.MaxNumber
)

// Plain reports whether the old form says all of a lock.
func Plain(s *hold.State) bool {
	return len(s.Holders) == 0 || len(s.Holders) == 1 && s.Holders[0].Weight == All && s.Holders[0].Delay == 0 && !s.Holders[0].Session.Given()
}

// AppendTo writes a lock that is Plain without its queue, in the old form. Moments but for that
// of the last change are written from that one.
func AppendTo(w *wire.Writer, s *hold.State) {
	w.Moment(s.At)
	w.Uint(s.LastToken)
	if len(s.Holders) == 0 {
		w.Uint(0)
		return
	}
	h := &s.Holders[0]
	w.Uint(h.Token)
	w.Text(h.Name)
	w.Bytes(h.Metadata)
	w.Uint(uint64(s.At - h.Since))
	w.Uint(uint64(h.Expires - h.Since))
	w.Uint(uint64(h.Waited))
}

// Old reports whether the bytes of a state are of the old form.
func Old(r wire.Reader) bool {
	r.Moment()
	r.Uint(hold.MaxToken)
	return r.Uint(hold.MaxToken) == 0 || !r.Ends()
}

// ReadFrom reads what AppendTo wrote: a lock that nobody waits for. What is read is not judged.
func ReadFrom(r *wire.Reader) (s hold.State) {
	s.At, s.LastToken = r.Moment(), r.Uint(hold.MaxToken)
	h := hold.Holder{Token: r.Uint(hold.MaxToken), Weight: All}
	if h.Token == 0 {
		return s
	}
	h.Name, h.Metadata = string(r.Bytes(hold.MaxName)), r.Copied(hold.MaxMetadata)
	h.Since = s.At - int64(r.Uint(wire.MaxAge))
	h.Expires = h.Since + int64(r.Uint(wire.MaxAge))
	h.Waited = int64(r.Uint(wire.MaxAge))
	s.Capacity = All
	s.Put(h)
	return s
}

// AppendWaiter writes a place in the queue of a lock whose last change was at a moment, without
// its caller, in the old form.
func AppendWaiter(w *wire.Writer, q *hold.Waiter, at int64) {
	w.Text(q.Request.Name)
	w.Bytes(q.Request.Metadata)
	w.Uint(uint64(q.Request.TTL))
	w.Uint(uint64(at - q.Since))
	w.Uint(uint64(q.GiveUp - q.Since))
}

// ReadWaiter reads what AppendWaiter wrote.
func ReadWaiter(r *wire.Reader, caller queue.Caller, at int64) (q hold.Waiter) {
	q.Caller = caller
	q.Request = hold.Request{Name: string(r.Bytes(hold.MaxName)), Metadata: r.Copied(hold.MaxMetadata), Weight: All, TTL: int64(r.Uint(hold.MaxTTL))}
	q.Since = at - int64(r.Uint(wire.MaxAge))
	q.GiveUp = q.Since + int64(r.Uint(wire.MaxAge))
	return q
}
