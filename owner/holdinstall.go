package owner

import (
	"fmt"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
)

// judgedHold is what a record says of an object that is held: if it is Partial, the state without its
// members, and those that have changed; else the state with all of them. All places are away.
type judgedHold struct {
	state hold.State
	moves []holdMember
	plain bool // it is in the old form of locks: the state has all holders
}

// judge returns what the record says as *judgedHold, nil if the object is absent.
func (holds) judge(r *Record, now int64) (judged any, absent bool, err error) {
	if r.State.Absent() {
		return (*judgedHold)(nil), true, nil
	}
	state, ok := r.holdHead()
	switch {
	case !ok:
		return nil, false, errState
	case state.At > now:
		return nil, false, errTime
	}
	q := &judgedHold{state: state, plain: r.plain()}
	if err := q.validHead(len(r.Members)); err != nil {
		return nil, false, invalid("record", "%v", err)
	}
	if r.Partial {
		q.moves = make([]holdMember, 0, len(r.Members))
	}
	for i := range r.Members {
		p, ok := r.holdMember(&r.Members[i], state.At)
		if !ok || !p.holder && !p.place.Caller.ID.Given() || p.gone && (!r.Partial || r.More) {
			return nil, false, invalid("record", "member %d is not one that an object of kind %s has", i+1, r.Kind)
		}
		//guard:queue-away true -> false
		p.place.Ticket, p.place.Away = uint64(i), true
		switch {
		case r.Partial:
			q.moves = append(q.moves, p)
		case p.holder:
			q.state.Holders = append(q.state.Holders, p.Holder)
		default:
			q.state.Queue.Places = append(q.state.Queue.Places, p.place)
		}
	}
	if r.Partial {
		return q, false, nil
	}
	q.state.Count()
	if err := q.state.Valid(); err != nil {
		return nil, false, invalid("record", "%v", err)
	}
	return q, q.state.Vacant(), nil
}

// validHead returns what in a state without its members cannot be.
func (q *judgedHold) validHead(members int) error {
	if q.plain {
		for i := range q.state.Holders {
			h := &q.state.Holders[i]
			if h.Token != q.state.LastToken {
				return fmt.Errorf("hold: held under token %d, but the last token is %d", h.Token, q.state.LastToken)
			}
			if err := hold.ValidMember(h, nil, q.state.At); err != nil {
				return err
			}
		}
		if members > 0 {
			q.state.Capacity = lock.All
		}
	}
	return q.state.ValidHead()
}

func (holds) grows(r *Record) bool { return len(r.Members) > 0 }

// fits reports an error if the members of a record would make the copy larger than any can be:
// it is not that of the owner's.
func (holds) fits(t target, r *Record, judged any) error {
	q := judged.(*judgedHold)
	if q == nil || !r.Partial {
		return nil
	}
	var state hold.State
	if t.e != nil && t.e.rest != 0 {
		state = *t.sh.holds.At(t.e.rest)
	}
	holders, places := len(state.Holders), state.Queue.Len()
	if q.plain {
		holders = len(q.state.Holders)
	}
	for i := range q.moves {
		m := &q.moves[i]
		here, n := state.Holder(m.Token) != nil, &holders
		if !m.holder {
			here, n = t.sh.waiterLocked(t.slot, &m.place.Caller.ID) != nil, &places
		}
		switch {
		case m.gone && here:
			*n--
		case !m.gone && !here:
			*n++
		}
	}
	//guard:place-most
	if holders > hold.MaxHolders || places > MaxQueue {
		return invalid("record", "more members than an object of kind %s may have", r.Kind)
	}
	return nil
}

func (holds) install(t target, r *Record, judged any) {
	t.sh.watchedChangedLocked(t.e)
	q := judged.(*judgedHold)
	if q != nil && r.Partial {
		t.installHoldersLocked(r, q)
		return
	}
	if t.e.rest != 0 {
		t.sh.dropQueueLocked(t.slot)
	}
	if q == nil || q.state.Vacant() {
		holds{}.clear(t.sh, t.e)
		return
	}
	t.installHoldLocked(r, &q.state)
}

// installHoldLocked puts the state of an object in the place of the one that was here, with
// all that wait.
func (t *target) installHoldLocked(r *Record, state *hold.State) {
	sh := t.sh
	//guard:token-floor
	sh.lastToken = max(sh.lastToken, state.LastToken)
	all := state.Queue.Places
	state.Queue = queue.Queue[hold.Request]{Grace: state.Queue.Grace}
	ref := Ref{Key: string(r.Key), Name: string(r.Name)}
	for _, place := range all {
		id := &place.Caller.ID
		if sh.waiterLocked(t.slot, id) != nil {
			continue
		}
		place.Ticket = sh.store.tickets.Add(1)
		sh.addAwayLocked(t.slot, place.Ticket, ref, id, len(place.Request.Name)+len(place.Request.Metadata))
		//guard:queue-order state.Append(place) -> state.Queue.Places = append([]hold.Waiter{place}, state.Queue.Places...)
		state.Append(place)
	}
	if state.Vacant() {
		holds{}.clear(sh, t.e)
		return
	}
	*t.holdLocked() = *state
	holds{}.account(sh, t.e)
	if t.sh.waitingLocked(t.e) > 0 {
		sh.copyLocked(t.slot)
	}
}

// installHoldersLocked makes an object what a record says of some of its holders and places.
// The others stay as they are. Moments of a copy do not go back when a record was quicker than
// the one before it, nor do places overtake one another.
func (t *target) installHoldersLocked(r *Record, q *judgedHold) {
	sh, from := t.sh, &q.state
	//guard:place-callers
	if t.e.rest != 0 && !sh.isCopyLocked(t.slot) {
		if sh.waitingLocked(t.e) > queue.MaxExpire {
			sh.copyLocked(t.slot) // Dismiss tells its callers, some at a time
		} else {
			sh.detachLocked(t.slot) // a caller that waits here is told that the object has moved
		}
	}
	s := t.holdLocked()
	//guard:place-moments max(s.At, from.At) -> from.At
	s.At = max(s.At, from.At)
	s.LastToken = max(s.LastToken, from.LastToken)
	if s.Capacity, s.Fixed = from.Capacity, from.Fixed; q.plain {
		sh.unlistAllLocked(t.slot)
		s.Only(from.Holders)
		s.Capacity = lock.All
	}
	sh.lastToken = max(sh.lastToken, s.LastToken)
	ref := Ref{Key: string(r.Key), Name: string(r.Name)}
	for i := range q.moves {
		switch m := &q.moves[i]; {
		case m.holder && m.gone:
			s.Drop(m.Token)
		case m.holder:
			s.Put(m.Holder)
		default:
			t.installEntrantLocked(s, ref, m, r.More)
		}
		if m := &q.moves[i]; m.holder {
			sh.holderLocked(t.slot, s, m.Token)
		}
	}
	switch {
	case s.Vacant():
		delete(sh.copies, t.slot)
		holds{}.clear(sh, t.e)
		return
	case s.Queue.Len() > 0:
		sh.copyLocked(t.slot)
	default:
		delete(sh.copies, t.slot)
	}
	holds{}.account(sh, t.e)
}

// installEntrantLocked makes a place in the queue of a copy what a record says. In a part of a
// whole, it stands behind those of the parts before it, though a change may have told of it already.
func (t *target) installEntrantLocked(s *hold.State, ref Ref, m *holdMember, part bool) {
	sh, place := t.sh, m.place
	w := sh.waiterLocked(t.slot, &place.Caller.ID)
	switch {
	case m.gone && w == nil:
	case m.gone:
		s.Queue.Cancel(w.ticket, s.At)
		w.removeLocked(t.slot, &place.Caller, errMoved)
	//guard:part-in-order
	case w != nil && part:
		place.Ticket = w.ticket
		s.ToEnd(place)
		s.Keep(w.ticket, place.Kept)
	case w != nil:
		s.Queue.Change(w.ticket, place.Caller.ID, place.GiveUp)
		//guard:ticket-copied
		s.Keep(w.ticket, place.Kept)
	default:
		place.Ticket = sh.store.tickets.Add(1)
		s.Append(place)
		sh.addAwayLocked(t.slot, place.Ticket, ref, &place.Caller.ID, len(place.Request.Name)+len(place.Request.Metadata))
	}
}
