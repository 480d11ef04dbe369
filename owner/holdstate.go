package owner

import (
	"math"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// holds are the kinds whose objects are held under leases: states of package hold. They point
// to memory of their own, so they are in a slab, one for all these kinds.
type holds struct{}

// family is what one kind of holds has of its own, beside its operations.
type family struct {
	// Operations, for fingerprints.
	acquire, release, revoke, setCapacity, update uint64
	queue                                         int          // how many wait at most before QueueLevel
	single                                        bool         // the capacity never changes: see hold.State.Outlived
	holders                                       reqid.Client // that of the ids of members that are holders, whose sequence is their token; no request has it
	open                                          bool         // nobody keeps another out: there are grants in a grace period, too
	lost                                          string       // why nothing is granted while the row is in grace
	never                                         string       // why a claim with a token of after the loss is refused
}

// kindOfHold returns the machine of a kind of holds.
func kindOfHold(name string, level uint32, f *family) machine {
	return machine{name: name, level: level, states: holds{}, slab: holds{}, grants: holds{}, waits: holds{}, hold: f}
}

// family returns what a kind of holds has of its own, nil if its objects are not held.
func (k Kind) family() *family {
	if !k.Known() {
		return nil
	}
	return machines[k].hold
}

// keepMembers is the room for members, in bytes, that a shard keeps: a crowd comes now and
// then.
const keepMembers = 1 << 16

const (
	_ = uint(MaxState - hold.MaxObject)
	_ = uint(MaxMember - hold.MaxHolding)
	_ = uint(MaxMember - (wire.MaxNumber + 4 + hold.MaxWaiter))
)

func (holds) room(sh *shard) bool { return sh.holds.Room() }

func (holds) refers(_ *shard, e *entry) int { return int(e.counted) }

func (holds) absent(sh *shard, e *entry, now int64) bool {
	return e.rest == 0 || sh.holds.At(e.rest).Absent(now)
}

func (holds) spent(sh *shard, e *entry) bool {
	if e.rest == 0 {
		return false
	}
	s := sh.holds.At(e.rest)
	return len(s.Holders) > 0 || s.Fixed
}

func (holds) fades() bool { return false }

func (holds) clear(sh *shard, e *entry) {
	if e.rest == 0 {
		return
	}
	sh.text -= int(e.counted)
	sh.holds.Free(e.rest)
	e.rest, e.counted = 0, 0
}

func (holds) record(sh *shard, e *entry, r *Record, partial bool) {
	if r.Partial = partial; e.rest == 0 {
		return
	}
	s := sh.holds.At(e.rest)
	if s.Vacant() {
		return
	}
	r.State = State{sh: sh, e: e, plain: e.kind == KindLock && sh.store.writesPlain(s)}
	w := wire.Writer{B: sh.memberText[:0]}
	if partial {
		for i := range sh.gone {
			r.addEntrant(&w, &hold.Waiter{Caller: sh.gone[i]}, true, s.At)
		}
		for _, token := range sh.holders {
			r.addHolder(&w, token, s.Holder(token), s.At)
		}
		for i := range sh.entrants {
			r.addEntrant(&w, &sh.entrants[i], false, s.At)
		}
	} else {
		r.addMembers(&w, s, 0, math.MaxInt)
	}
	sh.keepText(w.B)
}

// keepText keeps the room of members for the next record.
func (sh *shard) keepText(b []byte) {
	if sh.memberText = b; cap(b) > keepMembers {
		sh.memberText = nil
	}
}

func (holds) part(sh *shard, e *entry, r *Record, after uint64) (last uint64) {
	if r.State.Absent() {
		return 0
	}
	w := wire.Writer{B: sh.memberText[:0]}
	last = r.addMembers(&w, sh.holds.At(e.rest), after, MaxPart)
	sh.keepText(w.B)
	return last
}

// addMembers adds some members: the holders, if after is 0, and the places behind the one of that
// number. It returns the number of the last place that it has added, 0 if there are none behind.
func (r *Record) addMembers(w *wire.Writer, s *hold.State, after uint64, most int) (last uint64) {
	if after == 0 {
		for i := range s.Holders {
			r.addHolder(w, s.Holders[i].Token, &s.Holders[i], s.At)
		}
	}
	s.Queue.After(after, func(p *hold.Waiter) bool {
		if len(r.Members) == most {
			last = after
			return false
		}
		r.addEntrant(w, p, false, s.At)
		after = p.Number()
		return true
	})
	return last
}

// addHolder adds the holder with a token to the members, or says that it is gone. In the old form
// of locks it is no member.
func (r *Record) addHolder(w *wire.Writer, token uint64, h *hold.Holder, at int64) {
	if r.plain() {
		return
	}
	from := len(w.B)
	if h != nil {
		hold.AppendHolder(w, h, at)
	}
	r.Members = append(r.Members, Member{ID: MemberID{r.Kind.family().holders, token}, Gone: h == nil, State: w.B[from:len(w.B):len(w.B)]})
}

// addEntrant adds a place in the queue to the members, or says that it is gone. One without a
// request id is nobody's elsewhere.
func (r *Record) addEntrant(w *wire.Writer, p *hold.Waiter, gone bool, at int64) {
	id, plain := &p.Caller.ID, r.plain()
	if !id.Given() || !plain && id.Client == r.Kind.family().holders {
		return
	}
	from := len(w.B)
	switch {
	case gone:
	case plain:
		w.Uint(id.Settled)
		w.Fixed32(p.Caller.Print)
		lock.AppendWaiter(w, p, at)
	default:
		w.Uint(id.Settled)
		w.Fixed32(p.Caller.Print)
		hold.AppendWaiter(w, p, at)
	}
	r.Members = append(r.Members, Member{ID: MemberID{id.Client, id.Sequence}, Gone: gone, State: w.B[from:len(w.B):len(w.B)]})
}

// holdMember is a member of an object that is held, as a record has it: a holder or a place.
type holdMember struct {
	holder bool
	gone   bool
	hold.Holder
	place hold.Waiter
}

// holdMember reads a member of an object that is held, whose last change was at a moment.
func (r *Record) holdMember(m *Member, at int64) (p holdMember, ok bool) {
	plain := r.plain()
	p.gone, p.holder = m.Gone, !plain && m.ID.Client == r.Kind.family().holders
	if p.holder {
		p.Token = m.ID.Sequence
	} else {
		p.place.Caller.ID = reqid.ID{Client: m.ID.Client, Sequence: m.ID.Sequence}
	}
	if m.Gone {
		return p, len(m.State) == 0
	}
	from := wire.Reader{B: m.State}
	if p.holder {
		p.Holder = hold.ReadHolder(&from, p.Token, at)
		return p, from.Ends() && hold.ValidMember(&p.Holder, nil, at) == nil
	}
	caller := queue.Caller{ID: p.place.Caller.ID}
	caller.ID.Settled, caller.Print = from.Uint(math.MaxUint64), from.Fixed32()
	if plain {
		p.place = lock.ReadWaiter(&from, caller, at)
	} else {
		p.place = hold.ReadWaiter(&from, caller, at)
	}
	return p, from.Ends() && validID(&caller.ID) && hold.ValidMember(nil, &p.place, at) == nil
}

// Hold returns the state of an object that is held, with its holders, and with the waiters
// under request ids; nil if it is absent, cannot be read, or is of a kind that is not held. Of a
// record that is Partial, it has those that have changed and are not gone.
func (r *Record) Hold() *hold.State {
	if r.Kind.family() == nil || r.State.Absent() {
		return nil
	}
	s, ok := r.holdHead()
	if r.plain() {
		holders := s.Holders
		s.Holders = nil
		s.Only(holders)
		if len(r.Members) > 0 {
			s.Capacity = lock.All
		}
	}
	for i := range r.Members {
		p, is := r.holdMember(&r.Members[i], s.At)
		switch ok = ok && is; {
		case p.gone:
		case p.holder:
			s.Put(p.Holder)
		default:
			p.place.Ticket = uint64(s.Queue.Len())
			s.Queue.Places = append(s.Queue.Places, p.place)
		}
	}
	if !ok {
		return nil
	}
	return &s
}

// HoldAlone returns an object that is held without its members, and how much is held or kept after
// an unclean end, and the first grant in force; all are zero if it is of a kind that is not held.
// Of a record that is not of this store, it tells those of the record.
func (r *Record) HoldAlone(now int64) (s hold.State, held uint64, first hold.Holding) {
	if r.Kind.family() == nil || r.State.Absent() {
		return s, 0, first
	}
	s, _ = r.holdHead()
	var all *hold.State
	if e := r.State.e; e != nil {
		all = r.State.sh.holds.At(e.rest)
	} else if all = r.Hold(); all == nil {
		return s, 0, first
	}
	in, blocked := all.Held(now)
	return s, in + blocked, all.First(now)
}

// plain reports whether the record is that of a lock in the old form.
func (r *Record) plain() bool {
	switch {
	case r.Kind != KindLock || r.State.Absent():
		return false
	case r.State.e != nil:
		return r.State.plain
	}
	return lock.Old(r.State.reader())
}

// holdHead returns the object without its members: in the old form of locks, with its grant.
func (r *Record) holdHead() (s hold.State, ok bool) {
	if e := r.State.e; e != nil {
		from := r.State.sh.holds.At(e.rest)
		s = hold.State{At: from.At, LastToken: from.LastToken, Capacity: from.Capacity, Fixed: from.Fixed}
		if r.State.plain {
			s.Holders = from.Holders
		}
		return s, true
	}
	from := r.State.reader()
	if r.plain() {
		s = lock.ReadFrom(&from)
	} else {
		s.ReadFrom(&from)
	}
	return s, from.Ends()
}

// SetHold makes the record that of an object of a kind that is held, with all that belongs to
// it, and returns it.
func (r *Record) SetHold(kind Kind, s *hold.State) *Record {
	var state, members wire.Writer
	state.Now = s.At
	s.AppendTo(&state)
	r.Kind, r.Partial, r.State, r.Members = kind, false, ReadState(state.B, s.At), nil
	for i := range s.Holders {
		r.addHolder(&members, s.Holders[i].Token, &s.Holders[i], s.At)
	}
	for _, p := range s.Queue.All() {
		r.addEntrant(&members, p, false, s.At)
	}
	return r
}

func (holds) write(r *Record, to []byte, now int64) []byte {
	w := wire.Writer{B: to, Now: now}
	if s, _ := r.holdHead(); r.plain() {
		lock.AppendTo(&w, &s)
	} else {
		s.AppendTo(&w)
	}
	return w.B
}

func (holds) remembers(sh *shard, e *entry) bool {
	if e.rest == 0 {
		return false
	}
	s := sh.holds.At(e.rest)
	return s.LastToken != 0 || s.Remembers()
}

func (holds) holds(t target, token uint64) (bool, error) {
	//guard:hold-unknown
	if t.missesHoldLocked(token) {
		return false, t.recovering(unknownRecovering)
	}
	if t.e.rest == 0 {
		return false, nil
	}
	// What is shown to be over must be over: the expiry is a change of its own.
	if err := t.expireHoldLocked(); err != nil {
		return false, err
	}
	return t.sh.holds.At(t.e.rest).Find(token, t.now).Token != 0, nil
}

func (holds) line(sh *shard, e *entry) line {
	if e.rest == 0 {
		return line{}
	}
	state := sh.holds.At(e.rest)
	return line{&state.Queue, state}
}

func (holds) step(t target) error { return t.expireHoldLocked() }

func (holds) end(t target, ticket uint64) {
	t.sh.holds.At(t.e.rest).End(ticket, t.now, &t.sh.holdFx)
	t.holdSteppedLocked(&reqid.ID{}, reqid.Outcome{}, 0)
}

func (holds) changed(sh *shard, e *entry, ticket uint64) {
	if place := sh.holds.At(e.rest).Queue.Find(ticket); sh.store.partial != nil && place.Caller.ID.Given() {
		sh.entrants = append(sh.entrants, *place)
	}
}

func (holds) account(sh *shard, e *entry) {
	n := sh.holds.At(e.rest).Bytes()
	sh.text += n - int(e.counted)
	e.counted = uint32(n)
}
