package owner

import (
	"math"

	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// locks is the kind of locks. Their states point to memory of their own, so they are in a
// slab.
type locks struct{}

var lockMachine = machine{name: "lock", states: locks{}, slab: locks{}, grants: locks{}, waits: locks{}, old: oldLocks{}}

func (locks) room(sh *shard) bool { return sh.locks.Room() }

func (locks) refers(_ *shard, e *entry) int { return int(e.counted) }

func (locks) absent(sh *shard, e *entry, now int64) bool {
	return e.lock == 0 || sh.locks.At(e.lock).Absent(now)
}

func (locks) spent(sh *shard, e *entry) bool { return e.lock != 0 && sh.locks.At(e.lock).Token != 0 }

func (locks) fades() bool { return false }

func (locks) clear(sh *shard, e *entry) {
	if e.lock == 0 {
		return
	}
	sh.text -= int(e.counted)
	sh.locks.Free(e.lock)
	e.lock, e.counted = 0, 0
}

func (locks) record(sh *shard, e *entry, r *Record, partial bool) {
	if r.Partial = partial; e.lock == 0 {
		return
	}
	s := sh.locks.At(e.lock)
	if partial && s.Token == 0 && s.Queue.Len() == 0 {
		return
	}
	r.State = State{sh: sh, e: e}
	w := wire.Writer{B: sh.memberText[:0]}
	if partial {
		for i := range sh.moves {
			r.addPlace(&w, &sh.moves[i], s.At)
		}
	} else {
		for i := range s.Queue.Places {
			r.addPlace(&w, &Move{Waiter: s.Queue.Places[i]}, s.At)
		}
	}
	if sh.memberText = w.B; cap(w.B) > keepMembers {
		sh.memberText = nil
	}
}

const (
	_ = uint(MaxState - lock.MaxGrant)
	_ = uint(MaxMember - (wire.MaxNumber + 4 + lock.MaxWaiter))
)

// keepMembers is the room for members, in bytes, that a shard keeps: a crowd comes now and
// then.
const keepMembers = 1 << 16

// addPlace adds a place in the queue of a lock whose last change was at a moment to the
// members. One without a request id is nobody's elsewhere, for its caller cannot come back
// to it.
func (r *Record) addPlace(w *wire.Writer, m *Move, at int64) {
	id := &m.Caller.ID
	if !id.Given() {
		return
	}
	from := len(w.B)
	if !m.Gone {
		w.Uint(id.Settled)
		w.Fixed32(m.Caller.Print)
		lock.AppendWaiter(w, &m.Waiter, at)
	}
	r.Members = append(r.Members, Member{ID: MemberID{id.Client, id.Sequence}, Gone: m.Gone, State: w.B[from:len(w.B):len(w.B)]})
}

// place reads a member that is a place.
func (m *Member) place(at int64) (Move, bool) {
	to := Move{Gone: m.Gone}
	to.Caller.ID = reqid.ID{Client: m.ID.Client, Sequence: m.ID.Sequence}
	if m.Gone {
		return to, len(m.State) == 0
	}
	from := wire.Reader{B: m.State}
	caller := queue.Caller{ID: to.Caller.ID, Print: 0}
	caller.ID.Settled, caller.Print = from.Uint(math.MaxUint64), from.Fixed32()
	to.Waiter = lock.ReadWaiter(&from, at)
	to.Caller = caller
	return to, from.Ends()
}

// Lock returns the state of a lock with its queue, of which only places that have a request
// id are told; nil if it is absent, cannot be read, or is another kind's. Of a record that
// is Partial, the queue has the places that have changed and are not gone.
func (r *Record) Lock() *lock.State {
	if r.Kind != KindLock || r.State.Absent() {
		return nil
	}
	s, ok := r.grant()
	for i := range r.Members {
		m, is := r.Members[i].place(s.At)
		if ok = ok && is; !m.Gone {
			m.Ticket = uint64(s.Queue.Len())
			s.Queue.Places = append(s.Queue.Places, m.Waiter)
		}
	}
	if !ok {
		return nil
	}
	return &s
}

// grant returns the lock without its queue.
func (r *Record) grant() (s lock.State, ok bool) {
	if e := r.State.e; e != nil {
		s = *r.State.sh.locks.At(e.lock)
		s.Queue = queue.Queue[lock.Request]{}
		return s, true
	}
	from := r.State.reader()
	s.ReadFrom(&from)
	return s, from.Ends()
}

// SetLock makes the record that of a lock with all its queue, and returns it.
func (r *Record) SetLock(s lock.State) *Record {
	moves := make([]Move, s.Queue.Len())
	for i := range moves {
		moves[i].Waiter = s.Queue.Places[i]
	}
	r.SetMoves(s, moves...)
	r.Partial = false
	return r
}

// SetMoves makes the record that of a change of a lock that changed these places in its
// queue, and returns it.
func (r *Record) SetMoves(s lock.State, moves ...Move) *Record {
	var state, places wire.Writer
	state.Now = s.At
	s.AppendTo(&state)
	r.Kind, r.Partial, r.State, r.Members = KindLock, true, ReadState(state.B, s.At), nil
	for i := range moves {
		r.addPlace(&places, &moves[i], s.At)
	}
	return r
}

func (locks) write(r *Record, to []byte, now int64) []byte {
	w := wire.Writer{B: to, Now: now}
	if e := r.State.e; e != nil {
		r.State.sh.locks.At(e.lock).AppendTo(&w)
		return w.B
	}
	s, _ := r.grant()
	s.AppendTo(&w)
	return w.B
}

func (locks) remembers(sh *shard, e *entry) bool {
	return e.lock != 0 && sh.locks.At(e.lock).LastToken != 0
}

func (locks) holds(t target, token uint64) (bool, error) {
	//guard:hold-unknown
	if t.missesLocked(token) {
		return false, t.recovering(unknownRecovering)
	}
	if t.e.lock == 0 {
		return false, nil
	}
	// What is shown to be over must be over: the expiry is a change of its own.
	if err := t.expireLocked(); err != nil {
		return false, err
	}
	return token != 0 && t.sh.locks.At(t.e.lock).Holding(t.now).Token == token, nil
}

func (locks) line(sh *shard, e *entry) line {
	if e.lock == 0 {
		return line{}
	}
	state := sh.locks.At(e.lock)
	return line{&state.Queue, state}
}

func (locks) step(t target) error { return t.expireLocked() }

func (locks) changed(sh *shard, e *entry, ticket uint64) {
	if place := sh.locks.At(e.lock).Queue.Find(ticket); sh.store.partial != nil && place.Caller.ID.Given() {
		sh.moves = append(sh.moves, Move{Waiter: *place})
	}
}

func (locks) account(sh *shard, e *entry) { sh.countTextLocked(e) }
