package owner

import (
	"bytes"

	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
)

// validMoves returns the state of the lock without its queue, as a copy takes it.
func (r *Record) validMoves(now int64) (*lock.State, error) {
	if r.Lock == nil {
		return nil, nil
	}
	if r.Lock.At > now {
		return nil, invalid("record", "a time is out of range")
	}
	s := *r.Lock
	s.Queue = queue.Queue[lock.Request]{}
	if err := s.Valid(); err != nil {
		return nil, invalid("record", "%v", err)
	}
	for i := range r.Moves {
		m := &r.Moves[i]
		if !m.Caller.ID.Given() || !validID(&m.Caller.ID) {
			return nil, invalid("record", "the request id of change %d of the queue is out of range", i+1)
		}
		if m.Gone {
			continue
		}
		one := lock.State{Queue: queue.Queue[lock.Request]{Places: []lock.Waiter{m.Waiter}}, At: s.At}
		one.Queue.Places[0].Away = true
		if err := one.Valid(); err != nil {
			return nil, invalid("record", "%v", err)
		}
	}
	s = s.Clone()
	return &s, nil
}

// overfullLocked reports whether the moves of a record would make the queue of the copy
// longer than any can be: it is not that of the owner's.
func (t *target) overfullLocked(r *Record) bool {
	n := 0
	if t.e != nil && t.e.lock != 0 {
		n = t.sh.locks.At(t.e.lock).Queue.Len()
	}
	for i := range r.Moves {
		m := &r.Moves[i]
		here := t.sh.waiterLocked(t.slot, &m.Caller.ID) != nil
		switch {
		case m.Gone && here:
			n--
		case !m.Gone && !here:
			n++
		}
	}
	//guard:place-most false
	return n > MaxQueue
}

// installMovesLocked makes a lock what a record says of its grant and of some places.
// The others stay as they are. Moments of a copy do not go back when a record was quicker
// than the one before it, nor do places overtake one another.
func (t *target) installMovesLocked(r *Record, from *lock.State) {
	sh := t.sh
	//guard:place-callers
	if t.e.lock != 0 && !sh.isCopyLocked(t.slot) {
		sh.detachLocked(t.slot) // who waits here is told that the lock has moved
	}
	s := t.lockLocked()
	//guard:place-moments max(s.At, from.At) -> from.At
	from.Queue, from.At = s.Queue, max(s.At, from.At)
	*s = *from
	sh.lastToken = max(sh.lastToken, s.LastToken)
	ref := Ref{Key: string(r.Key), Name: string(r.Name)}
	for i := range r.Moves {
		m := &r.Moves[i]
		w := sh.waiterLocked(t.slot, &m.Caller.ID)
		switch {
		case m.Gone && w == nil:
		case m.Gone:
			s.Cancel(w.ticket, s.At)
			w.removeLocked(t.slot, &m.Caller, errMoved)
		case w != nil:
			if place := s.Queue.Find(w.ticket); place != nil {
				place.Caller.ID, place.GiveUp = m.Caller.ID, max(m.GiveUp, place.Since)
			}
		default:
			place := m.Waiter
			place.Ticket, place.Away, place.Request.Metadata = sh.store.tickets.Add(1), true, bytes.Clone(place.Request.Metadata)
			s.Append(place)
			sh.addAwayLocked(t.slot, place.Ticket, ref, &place.Caller.ID, textOf(&place))
		}
	}
	switch {
	case s.Queue.Len() > 0:
		sh.countTextLocked(t.e)
		sh.copyLocked(t.slot)
	case s.Token == 0:
		delete(sh.copies, t.slot)
		locks{}.clear(sh, t.e)
	default:
		sh.countTextLocked(t.e)
		delete(sh.copies, t.slot)
	}
}
