package owner

import (
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/wire"
)

// AdmissionLevel is the level of the cluster from which on there are admissions, and records have
// what else their step changed (Record.Beside).
const AdmissionLevel = 8

// admissions is the kind of what was admitted and is held. Its states point to memory of their own, so
// they are in a slab. Its members are holds, by their ids.
type admissions struct{}

var admissionMachine = machine{name: "admission", level: AdmissionLevel, states: admissions{}, slab: admissions{}, timed: admissions{}}

const _ = uint(MaxMember - admission.MaxMember)

// admitting is what a shard has of admissions.
type admitting struct {
	steps   []demandStep       // of the operation that is under way; reused
	counted bool               // one of them has changed a counter
	demands []admission.Demand // of the hold that it is about; reused
	ended   []admission.ID     // holds that changed since the last record; reused
	beside  []Record           // what the same step changed; reused
	spare   uint32             // in admissions: the room of one that had its last hold ended, as most have few, one after the other; 0 = none
}

func (admissions) room(sh *shard) bool { return sh.admissions.Room() }

func (admissions) refers(_ *shard, e *entry) int { return int(e.counted) }

func (admissions) absent(_ *shard, e *entry, _ int64) bool { return e.rest == 0 }

func (admissions) spent(_ *shard, e *entry) bool { return e.rest != 0 }

func (admissions) fades() bool { return false }

func (admissions) clear(sh *shard, e *entry) {
	if e.rest == 0 {
		return
	}
	sh.text -= int(e.counted)
	if s := sh.admissions.At(e.rest); sh.spare == 0 && s.Absent() {
		s.At, s.votes, s.pruned = 0, nil, 0
		sh.spare = e.rest
	} else {
		sh.admissions.Free(e.rest)
	}
	e.rest, e.counted = 0, 0
}

// admissionOf returns the state of an admission, which is empty if it had none.
func (sh *shard) admissionOf(e *entry) *reservations {
	if e.rest == 0 {
		if e.rest, sh.spare = sh.spare, 0; e.rest == 0 {
			e.rest = sh.admissions.Add()
		}
	}
	return sh.admissions.At(e.rest)
}

// account counts the memory of the state, and lets go of one that has no holds.
func (admissions) account(sh *shard, e *entry) {
	s := sh.admissions.At(e.rest)
	if s.absent() {
		admissions{}.clear(sh, e)
		return
	}
	n := s.bytes()
	sh.text += n - int(e.counted)
	e.counted = uint32(n)
}

func (admissions) record(sh *shard, e *entry, r *Record, partial bool) {
	if r.Partial = partial; e.rest == 0 {
		return
	}
	s := sh.admissions.At(e.rest)
	r.State = State{sh: sh, e: e}
	w := wire.Writer{B: sh.memberText[:0]}
	if partial {
		for _, id := range sh.ended {
			r.addAdmitted(&w, s, id)
		}
	} else {
		s.Each(func(n uint32) bool {
			r.addAdmitted(&w, s, s.Hold(n).ID)
			return true
		})
		s.eachVote(func(v *across.Vote) bool {
			r.addAdmitted(&w, s, admission.ID(v.ID))
			return true
		})
	}
	if sh.memberText = w.B; cap(w.B) > keepMembers {
		sh.memberText = nil
	}
}

// addAdmitted adds the hold of an id to the members, or says that it is gone.
func (r *Record) addAdmitted(w *wire.Writer, s *reservations, id admission.ID) {
	from := len(w.B)
	n, ok := s.Find(id)
	if ok {
		s.AppendHold(w, n)
	} else if v := s.vote(across.ID(id)); v != nil {
		ok = true
		appendVote(w, v, s.At)
	}
	r.Members = append(r.Members, Member{ID: MemberID(id), Gone: !ok, State: w.B[from:len(w.B):len(w.B)]})
}

// write writes what holds are told from: the moment of the last change.
func (admissions) write(r *Record, to []byte, now int64) []byte {
	w := wire.Writer{B: to, Now: now}
	at, _ := r.AdmittedAt()
	w.Byte(1)
	w.Moment(at)
	return w.B
}

// AdmittedAt returns the moment of the last change of an admission; ok is false of what is none.
func (r *Record) AdmittedAt() (at int64, ok bool) {
	if r.Kind != KindAdmission || r.State.Absent() {
		return r.At, false
	}
	if e := r.State.e; e != nil {
		return r.State.sh.admissions.At(e.rest).At, true
	}
	from := r.State.reader()
	ok = from.Byte() == 1
	at = from.Moment()
	return at, ok && from.Ends()
}

// Held returns how many holds an admission has here, those that are only remembered included; of a record
// that is not of a store, those of the record.
func (r *Record) Held() int {
	if r.Kind != KindAdmission || r.State.Absent() {
		return 0
	}
	if e := r.State.e; e != nil {
		return r.State.sh.admissions.At(e.rest).Len()
	}
	return len(r.Members)
}

// admitted is what a record says of an admission.
type admitted struct {
	at    int64
	holds []admittedHold
	votes []across.Vote
	gone  []admission.ID
}

type admittedHold struct {
	admission.Hold
	demands []admission.Demand
}

// judge returns what the record says as *admitted, nil if the admission is absent.
func (admissions) judge(r *Record, now int64) (judged any, absent bool, err error) {
	if r.State.Absent() {
		return (*admitted)(nil), true, nil
	}
	q := &admitted{}
	var ok bool
	if q.at, ok = r.AdmittedAt(); !ok {
		return nil, false, errState
	}
	if q.at > now || q.at < -maxMoment || len(r.Members) > maxAdmitted {
		return nil, false, errTime
	}
	for i := range r.Members {
		m := &r.Members[i]
		if m.Gone {
			if !r.Partial || len(m.State) > 0 {
				return nil, false, invalid("record", "hold %d is not one", i+1)
			}
			q.gone = append(q.gone, admission.ID(m.ID))
			continue
		}
		if isVote(m.State) {
			v, ok := readVote(m, q.at)
			if !ok {
				return nil, false, invalid("record", "vote %d is not one", i+1)
			}
			q.votes = append(q.votes, v)
			continue
		}
		from := wire.Reader{B: m.State}
		h, demands, ok := admission.ReadHold(&from, admission.ID(m.ID), q.at)
		if !ok {
			return nil, false, invalid("record", "hold %d is not one", i+1)
		}
		q.holds = append(q.holds, admittedHold{h, demands})
	}
	return q, false, nil
}

func (admissions) grows(r *Record) bool { return len(r.Members) > 0 }

// install makes the object what a record says. What does not fit was never an owner's.
func (admissions) install(t target, r *Record, judged any) {
	q, sh := judged.(*admitted), t.sh
	if q == nil || !r.Partial {
		admissions{}.clear(sh, t.e)
	}
	if q == nil {
		return
	}
	s := sh.admissionOf(t.e)
	s.At = q.at
	for _, id := range q.gone {
		if n, ok := s.Find(id); ok {
			s.Drop(n)
		}
		s.forget(across.ID(id))
	}
	for i := range q.holds {
		h := &q.holds[i]
		if n, ok := s.Find(h.ID); ok {
			s.Drop(n)
		}
		s.forget(across.ID(h.ID))
		if s.Room(h.demands) != nil {
			continue
		}
		for n, ok := s.InTheWay(h.demands); ok; n, ok = s.InTheWay(h.demands) {
			s.Drop(n)
		}
		s.Add(h.Hold, h.demands)
	}
	if len(q.votes) > 0 {
		s.makeVotes(sh.ids.Window())
	}
	for _, v := range q.votes {
		if n, ok := s.Find(admission.ID(v.ID)); ok {
			s.Drop(n)
		}
		s.votes.Install(v)
	}
	admissions{}.account(sh, t.e)
}

func (admissions) next(sh *shard, e *entry) (at int64, ok bool) {
	if e.rest == 0 {
		return 0, false
	}
	s := sh.admissions.At(e.rest)
	if _, at, ok = s.Next(); s.votes != nil {
		if due, more := s.votes.Next(); more && (!ok || due < at) {
			at, ok = due, true
		}
	}
	return at, ok
}

func (admissions) lapse(t target) error {
	t.passLocked()
	return nil
}
