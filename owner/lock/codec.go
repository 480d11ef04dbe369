package lock

import "github.com/keystead/keystead/owner/wire"

// MaxText is the most that a holder and its metadata take in bytes.
const MaxText = 2 + MaxHolder + 2 + MaxMetadata

// MaxGrant is the most that AppendTo writes, and MaxWaiter what AppendWaiter does.
const (
	MaxGrant  = 3*wire.MaxNumber + MaxText + 3*wire.MaxNumber
	MaxWaiter = MaxText + 3*wire.MaxNumber
)

// AppendTo writes the lock without its queue. Moments but for that of the last change are
// written from that one.
func (s *State) AppendTo(w *wire.Writer) {
	w.Moment(s.At)
	w.Uint(s.LastToken)
	w.Uint(s.Token)
	if s.Token != 0 {
		w.Text(s.Holder)
		w.Bytes(s.Metadata)
		w.Uint(uint64(s.At - s.Since))
		w.Uint(uint64(s.Expires - s.Since))
		w.Uint(uint64(s.Waited))
	}
}

// ReadFrom reads what AppendTo wrote: a lock that nobody waits for. What is read is not
// judged: see Valid.
func (s *State) ReadFrom(r *wire.Reader) {
	*s = State{At: r.Moment(), LastToken: r.Uint(MaxToken), Token: r.Uint(MaxToken)}
	if s.Token != 0 {
		s.Holder, s.Metadata = string(r.Bytes(MaxHolder)), r.Copied(MaxMetadata)
		s.Since = s.At - int64(r.Uint(wire.MaxAge))
		s.Expires = s.Since + int64(r.Uint(wire.MaxAge))
		s.Waited = int64(r.Uint(wire.MaxAge))
	}
}

// AppendWaiter writes a place in the queue of a lock whose last change was at a moment,
// without its caller.
func AppendWaiter(w *wire.Writer, q *Waiter, at int64) {
	w.Text(q.Request.Holder)
	w.Bytes(q.Request.Metadata)
	w.Uint(uint64(q.Request.TTL))
	w.Uint(uint64(at - q.Since))
	w.Uint(uint64(q.GiveUp - q.Since))
}

// ReadWaiter reads what AppendWaiter wrote.
func ReadWaiter(r *wire.Reader, at int64) (q Waiter) {
	q.Request = Request{Holder: string(r.Bytes(MaxHolder)), Metadata: r.Copied(MaxMetadata), TTL: int64(r.Uint(MaxTTL))}
	q.Since = at - int64(r.Uint(wire.MaxAge))
	q.GiveUp = q.Since + int64(r.Uint(wire.MaxAge))
	return q
}
