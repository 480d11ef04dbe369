package hold

import (
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/wire"
)

// The most that AppendTo, AppendHolder and AppendWaiter write.
const (
	maxText    = 2 + MaxName + 2 + MaxMetadata
	maxSession = 1 + maxGeneration
	maxWeight  = 3 // bytes of a weight and of a delay in ms
	MaxObject  = 4 * wire.MaxNumber
	MaxWaiter  = maxText + 2*maxWeight + 3*maxTime + maxSession + 1
	MaxHolding = maxText + 2*maxWeight + 1 + 3*maxTime + 16 + maxSession
	maxTime    = 9
)

// AppendTo writes the object without its holders and its queue.
func (s *State) AppendTo(w *wire.Writer) {
	w.Moment(s.At)
	w.Uint(s.LastToken)
	fixed := uint64(0)
	if s.Fixed {
		fixed = 1
	}
	w.Uint(uint64(s.Capacity)<<1 | fixed)
}

// ReadFrom reads what AppendTo wrote. What is read is not judged: see Valid.
func (s *State) ReadFrom(r *wire.Reader) {
	*s = State{At: r.Moment(), LastToken: r.Uint(MaxToken)}
	n := r.Uint(MaxCapacity<<1 | 1)
	s.Capacity, s.Fixed = uint32(n>>1), n&1 == 1
}

// AppendHolder writes a holder, without its token, of an object whose last change was at a
// moment.
func AppendHolder(w *wire.Writer, h *Holder, at int64) {
	w.Text(h.Name)
	w.Bytes(h.Metadata)
	w.Uint(uint64(h.Weight))
	w.Uint(uint64(h.Delay / delayUnit))
	ended := byte(0)
	if h.Ended {
		ended = 1
	}
	w.Byte(ended)
	w.Uint(wire.Age(at, h.Since))
	w.Uint(wire.Age(h.Expires, h.Since))
	w.Uint(min(uint64(h.Waited), wire.MaxAge))
	appendSession(w, h.Session)
}

// ReadHolder reads what AppendHolder wrote of the holder with a token.
func ReadHolder(r *wire.Reader, token uint64, at int64) (h Holder) {
	h = Holder{Token: token, Name: string(r.Bytes(MaxName)), Metadata: r.Copied(MaxMetadata), Weight: uint32(r.Uint(MaxCapacity)), Delay: int64(r.Uint(MaxDelay/delayUnit)) * delayUnit}
	ended := r.Uint(1)
	h.Ended = ended == 1
	h.Since = at - int64(r.Uint(wire.MaxAge))
	h.Expires = h.Since + int64(r.Uint(wire.MaxAge))
	h.Waited = int64(r.Uint(wire.MaxAge))
	h.Session = readSession(r)
	return h
}

// AppendWaiter writes a place in the queue, without its caller, of an object whose last
// change was at a moment.
func AppendWaiter(w *wire.Writer, q *Waiter, at int64) {
	r := &q.Request
	w.Text(r.Name)
	w.Bytes(r.Metadata)
	w.Uint(uint64(r.Weight))
	w.Uint(uint64(r.Delay / delayUnit))
	w.Uint(uint64(r.TTL))
	w.Uint(wire.Age(at, q.Since))
	w.Uint(wire.Age(q.GiveUp, q.Since))
	appendGeneration(w, r.Session)
	if q.Kept {
		w.Byte(withTicket)
	}
}

// ReadWaiter reads what AppendWaiter wrote.
func ReadWaiter(r *wire.Reader, caller queue.Caller, at int64) (q Waiter) {
	q.Caller = caller
	q.Request = Request{Name: string(r.Bytes(MaxName)), Metadata: r.Copied(MaxMetadata), Weight: uint32(r.Uint(MaxCapacity)), Delay: int64(r.Uint(MaxDelay/delayUnit)) * delayUnit, TTL: int64(r.Uint(MaxTTL))}
	q.Since = at - int64(r.Uint(wire.MaxAge))
	q.GiveUp = q.Since + int64(r.Uint(wire.MaxAge))
	q.Request.Session = readGeneration(r, caller.ID.Client)
	q.Kept = readTicket(r)
	return q
}
