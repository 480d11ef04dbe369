package owner

import (
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
)

// Move is what a change did to one place in the queue of a lock: it is gone, or is what the
// Waiter says. Ticket and Away mean nothing. Places without a request id are nobody's
// elsewhere, and are not mentioned.
type Move struct {
	lock.Waiter
	Gone bool
}

// queued is what a record says of a lock: of one that is Partial, the lock without its
// queue, and the places that have changed; else the lock with all its queue. All places are
// away.
type queued struct {
	state lock.State
	moves []Move
}

// judge returns what the record says as *queued, nil if the lock is absent.
func (locks) judge(r *Record, now int64) (judged any, absent bool, err error) {
	if r.State.Absent() {
		return (*queued)(nil), true, nil
	}
	state, ok := r.grant()
	switch {
	case !ok:
		return nil, false, errState
	case state.At > now:
		return nil, false, errTime
	}
	q := &queued{state: state}
	if err := q.state.Valid(); err != nil {
		return nil, false, invalid("record", "%v", err)
	}
	if len(r.Members) > 0 && r.Partial {
		q.moves = make([]Move, 0, len(r.Members))
	} else if len(r.Members) > 0 {
		q.state.Queue.Places = make([]lock.Waiter, 0, len(r.Members))
	}
	for i := range r.Members {
		m, ok := r.Members[i].place(state.At)
		if id := &m.Caller.ID; !ok || !id.Given() || !validID(id) || m.Gone && !r.Partial {
			return nil, false, invalid("record", "place %d of the queue is not one that a lock has", i+1)
		}
		//guard:queue-away true -> false
		if m.Ticket, m.Away = uint64(i), true; !r.Partial {
			q.state.Queue.Places = append(q.state.Queue.Places, m.Waiter)
			continue
		}
		q.moves = append(q.moves, m)
		if m.Gone {
			continue
		}
		one := lock.State{Queue: queue.Queue[lock.Request]{Places: []lock.Waiter{m.Waiter}}, At: state.At}
		if err := one.Valid(); err != nil {
			return nil, false, invalid("record", "%v", err)
		}
	}
	if err := q.state.Valid(); err != nil {
		return nil, false, invalid("record", "%v", err)
	}
	return q, !r.Partial && state.Token == 0 && len(r.Members) == 0, nil
}

func (locks) grows(r *Record) bool { return len(r.Members) > 0 }

// fits reports an error if the moves of a record would make the queue of the copy longer
// than any can be: it is not that of the owner's.
func (locks) fits(t target, r *Record, judged any) error {
	q := judged.(*queued)
	if q == nil || !r.Partial {
		return nil
	}
	n := 0
	if t.e != nil && t.e.lock != 0 {
		n = t.sh.locks.At(t.e.lock).Queue.Len()
	}
	for i := range q.moves {
		m := &q.moves[i]
		here := t.sh.waiterLocked(t.slot, &m.Caller.ID) != nil
		switch {
		case m.Gone && here:
			n--
		case !m.Gone && !here:
			n++
		}
	}
	//guard:place-most
	if n > MaxQueue {
		return invalid("record", "more places than a queue may have")
	}
	return nil
}

func (locks) install(t target, r *Record, judged any) {
	q := judged.(*queued)
	if q != nil && r.Partial {
		t.installMovesLocked(r, q)
		return
	}
	if t.e.lock != 0 {
		t.sh.dropQueueLocked(t.slot)
	}
	if q == nil || q.state.Token == 0 && q.state.Queue.Len() == 0 {
		locks{}.clear(t.sh, t.e)
		return
	}
	t.installLockLocked(r, &q.state)
}

// installLockLocked puts the state of a lock in the place of the one that was here, with
// all that wait.
func (t *target) installLockLocked(r *Record, state *lock.State) {
	sh := t.sh
	//guard:token-floor
	sh.lastToken = max(sh.lastToken, state.LastToken)
	all := state.Queue.Places
	kept := all[:0]
	ref := Ref{Key: string(r.Key), Name: string(r.Name)}
	for _, place := range all {
		id := &place.Caller.ID
		if sh.waiterLocked(t.slot, id) != nil {
			continue
		}
		place.Ticket = sh.store.tickets.Add(1)
		sh.addAwayLocked(t.slot, place.Ticket, ref, id, textOf(&place))
		//guard:queue-order append(kept, place) -> append([]lock.Waiter{place}, kept...)
		kept = append(kept, place)
	}
	clear(all[len(kept):])
	state.Queue.Places = kept
	if state.Token == 0 && len(kept) == 0 {
		locks{}.clear(sh, t.e)
		return
	}
	*t.lockLocked() = *state
	sh.countTextLocked(t.e)
	if len(kept) > 0 {
		sh.copyLocked(t.slot)
	}
}

// installMovesLocked makes a lock what a record says of its grant and of some places.
// The others stay as they are. Moments of a copy do not go back when a record was quicker
// than the one before it, nor do places overtake one another.
func (t *target) installMovesLocked(r *Record, q *queued) {
	sh, from := t.sh, &q.state
	//guard:place-callers
	if t.e.lock != 0 && !sh.isCopyLocked(t.slot) {
		sh.detachLocked(t.slot) // a caller that waits here is told that the lock has moved
	}
	s := t.lockLocked()
	//guard:place-moments max(s.At, from.At) -> from.At
	from.Queue, from.At = s.Queue, max(s.At, from.At)
	*s = *from
	sh.lastToken = max(sh.lastToken, s.LastToken)
	ref := Ref{Key: string(r.Key), Name: string(r.Name)}
	for i := range q.moves {
		m := &q.moves[i]
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
			place.Ticket = sh.store.tickets.Add(1)
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
