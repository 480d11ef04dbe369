package owner

import (
	"github.com/keystead/keystead/owner/gather"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// BarrierLevel is the level of the cluster from which on there are barriers, and counters are
// awaited.
const BarrierLevel = 7

// barriers is the kind of barriers and phasers. Their states point to memory of their own, so
// they are in a slab. Their members are parties, whose ids have no client and the party's number.
type barriers struct{}

var barrierMachine = machine{name: "barrier", level: BarrierLevel, states: barriers{}, slab: barriers{}, timed: barriers{}}

const (
	_ = uint(MaxState - gather.MaxObject)
	_ = uint(MaxMember - gather.MaxMember)
)

func (barriers) room(sh *shard) bool { return sh.gathers.Room() }

func (barriers) refers(_ *shard, e *entry) int { return int(e.counted) }

func (barriers) absent(sh *shard, e *entry, now int64) bool {
	return e.rest == 0 || sh.gathers.At(e.rest).Absent(now)
}

func (barriers) spent(_ *shard, e *entry) bool { return e.rest != 0 }

func (barriers) fades() bool { return false }

func (barriers) clear(sh *shard, e *entry) {
	if e.rest == 0 {
		return
	}
	sh.endPhaseLocked(e.rest, PhaseAnswer{}, true)
	delete(sh.children, e.rest)
	sh.text -= int(e.counted)
	sh.gathers.Free(e.rest)
	e.rest, e.counted = 0, 0
}

func (barriers) account(sh *shard, e *entry) {
	n := sh.gathers.At(e.rest).Bytes()
	sh.text += n - int(e.counted)
	e.counted = uint32(n)
}

func (barriers) record(sh *shard, e *entry, r *Record, partial bool) {
	if r.Partial = partial; e.rest == 0 || sh.gathers.At(e.rest).Phase == 0 {
		return
	}
	s := sh.gathers.At(e.rest)
	r.State = State{sh: sh, e: e}
	w := wire.Writer{B: sh.memberText[:0]}
	if partial {
		for _, number := range sh.parties {
			r.addParty(&w, number, s.Numbered(number), s.At)
		}
	} else {
		for i := range s.Parties {
			r.addParty(&w, s.Parties[i].Number, &s.Parties[i], s.At)
		}
	}
	if sh.memberText = w.B; cap(w.B) > keepMembers {
		sh.memberText = nil
	}
}

// addParty adds the party of a number to the members, or says that it is gone.
func (r *Record) addParty(w *wire.Writer, number uint64, p *gather.Party, at int64) {
	from := len(w.B)
	if p != nil {
		gather.AppendParty(w, p, at)
	}
	r.Members = append(r.Members, Member{ID: MemberID{Sequence: number}, Gone: p == nil, State: w.B[from:len(w.B):len(w.B)]})
}

func (barriers) write(r *Record, to []byte, now int64) []byte {
	w := wire.Writer{B: to, Now: now}
	s, _ := r.barrier()
	s.AppendTo(&w)
	return w.B
}

// barrier returns the barrier without its parties.
func (r *Record) barrier() (s gather.State, ok bool) {
	if e := r.State.e; e != nil {
		s = *r.State.sh.gathers.At(e.rest)
		return s.Head(), true
	}
	from := r.State.reader()
	s.ReadFrom(&from)
	return s, from.Ends()
}

// Barrier returns the state of a barrier with its parties; nil if it is absent, cannot be read,
// or is another kind's. Of a record that is Partial, it has those that have changed and are not
// gone.
func (r *Record) Barrier() *gather.State {
	if r.Kind != KindBarrier || r.State.Absent() {
		return nil
	}
	s, ok := r.barrier()
	for i := range r.Members {
		if m := &r.Members[i]; ok && !m.Gone {
			p, is := partyOf(m, &s)
			ok = is && s.Add(p) == nil
		}
	}
	if !ok {
		return nil
	}
	return &s
}

// Phase returns a barrier without its parties; the zero State if it is another kind's or absent. With
// it, it returns how many of them have arrived, and how many there are: of a record that is not
// of this store, those of the record.
func (r *Record) Phase() (s gather.State, arrived, parties int) {
	if r.Kind != KindBarrier || r.State.Absent() {
		return s, 0, 0
	}
	all := (*gather.State)(nil)
	if e := r.State.e; e != nil {
		all = r.State.sh.gathers.At(e.rest)
	} else if all = r.Barrier(); all == nil {
		return s, 0, 0
	}
	return all.Head(), all.Arrived, all.Quorum()
}

// SetBarrier makes the record that of a barrier with all its parties, and returns it.
func (r *Record) SetBarrier(s *gather.State) *Record {
	var state, members wire.Writer
	state.Now = s.At
	s.AppendTo(&state)
	r.Kind, r.Partial, r.State, r.Members = KindBarrier, false, ReadState(state.B, s.At), nil
	for i := range s.Parties {
		r.addParty(&members, s.Parties[i].Number, &s.Parties[i], s.At)
	}
	return r
}

// partyOf reads a member of a barrier.
func partyOf(m *Member, s *gather.State) (p gather.Party, ok bool) {
	if m.Gone {
		return gather.Party{Number: m.ID.Sequence}, len(m.State) == 0 && m.ID.Client == (reqid.Client{})
	}
	from := wire.Reader{B: m.State}
	p = gather.ReadParty(&from, m.ID.Sequence, s.At)
	return p, from.Ends() && m.ID.Client == (reqid.Client{})
}

// gathered is what a record says of a barrier: of one that is Partial, the state without its
// parties, and those that have changed; else the state with all of them.
type gathered struct {
	state gather.State
	moves []gather.Party
	gone  []uint64
}

// judge returns what the record says as *gathered, nil if the barrier is absent.
func (barriers) judge(r *Record, now int64) (judged any, absent bool, err error) {
	if r.State.Absent() {
		return (*gathered)(nil), true, nil
	}
	state, ok := r.barrier()
	switch {
	case !ok:
		return nil, false, errState
	case state.At > now || state.At < -maxMoment:
		return nil, false, errTime
	}
	if err := state.ValidHead(); err != nil {
		return nil, false, invalid("record", "%v", err)
	}
	q := &gathered{state: state}
	for i := range r.Members {
		p, ok := partyOf(&r.Members[i], &state)
		gone := r.Members[i].Gone
		if !ok || gone && !r.Partial {
			return nil, false, invalid("record", "member %d is not one that a barrier has", i+1)
		}
		if !gone {
			err = q.state.ValidParty(&p)
		}
		switch {
		case err != nil:
		case gone:
			q.gone = append(q.gone, p.Number)
		case r.Partial:
			q.moves = append(q.moves, p)
		default:
			err = q.state.Add(p)
		}
		if err != nil {
			return nil, false, invalid("record", "%v", err)
		}
	}
	return q, false, nil
}

func (barriers) grows(r *Record) bool { return len(r.Members) > 0 }

// install makes the object what a record says. Callers that wait here learn that it has moved.
func (barriers) install(t target, r *Record, judged any) {
	q, sh := judged.(*gathered), t.sh
	if q == nil {
		barriers{}.clear(sh, t.e)
		return
	}
	s := t.barrierLocked()
	sh.endPhaseLocked(t.e.rest, PhaseAnswer{}, true)
	//guard:phase-floor
	sh.lastToken = max(sh.lastToken, q.state.Phase)
	switch at := s.At; {
	case !r.Partial:
		*s = q.state
	default:
		s.SetHead(&q.state)
		if s.At = max(at, q.state.At); at == 0 {
			s.At = q.state.At
		}
		for _, number := range q.gone {
			s.Drop(number)
		}
		for _, p := range q.moves {
			if other := s.Find(p.Name); other != nil && other.Number != p.Number {
				s.Drop(other.Number)
			}
			//guard:copy-parties
			if s.Numbered(p.Number) != nil || len(s.Parties) < gather.MaxParties {
				s.Put(p)
			}
		}
	}
	sh.childLocked(s, t.e.rest, t.slot)
	barriers{}.account(sh, t.e)
}

func (barriers) next(sh *shard, e *entry) (at int64, ok bool) {
	if e.rest == 0 {
		return 0, false
	}
	return sh.gathers.At(e.rest).NextWake()
}

func (barriers) lapse(t target) error { return t.settleLocked() }
