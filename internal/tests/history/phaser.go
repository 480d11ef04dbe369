package history

import "math/bits"

// PhaserOp is what is done to a phaser.
type PhaserOp uint8

const (
	PhaserRegister PhaserOp = iota + 1
	PhaserRenew
	PhaserArrive
	PhaserAwait
	PhaserLeave
	PhaserBreak
	PhaserInspect
)

func (op PhaserOp) String() string {
	return [...]string{"", "register", "renew", "arrive", "await", "leave", "break", "inspect"}[op]
}

// PhaserParties is how many parties a phaser of the model has at most.
const PhaserParties = 8

// PhaserInput is an operation on a phaser or on its parent. An arrive names its phase.
type PhaserInput struct {
	Op    PhaserOp
	Child bool // … on the one that has a parent
	Party uint8
	TTL   int64  // ns; of a register and a renew
	Phase uint64 // of an arrive and an await
}

// PhaserOutput is the answer to it.
type PhaserOutput struct {
	OK      bool      // registered, renewed, arrived, left or broken
	Last    bool      // the phase was passed by the arrival
	Over    bool      // why the party did not arrive: the phase is over; else it is not registered
	Fate    PhaseFate // of the phase of an arrive or an await
	Current uint64    // the phase that is under way
	Here    uint32    // how many have arrived for that, …
	Parties uint32    // … of so many
	Counted bool      // whether the answer has these two
	Bare    bool      // what is said of the phaser as it is now is not known
	Replay
}

func (o PhaserOutput) first() any { return PhaserOutput{OK: o.OK, Last: o.Last, Over: o.Over} }

func (o PhaserOutput) bare() any {
	return PhaserOutput{OK: o.OK, Last: o.Last, Over: o.Over, Bare: true}
}

func (o PhaserOutput) reads(in any) (readIn, readOut any) {
	i := in.(PhaserInput)
	if i.Op != PhaserArrive || !o.OK {
		return nil, nil
	}
	o.OK, o.Last, o.Replay = false, false, Replay{}
	return PhaserInput{Op: PhaserAwait, Child: i.Child, Phase: i.Phase}, o
}

// phaserParty is a party that is registered, as far as that is known. The zero value may be one.
type phaserParty struct {
	in    bool
	since uint64 // it takes part in this phase and those after it
	until int64  // its lease does not end before
	last  uint64 // the last phase for which it has arrived
}

// mostPast is how many phases that are over a phaser of the model knows.
const mostPast = 4

// onePhaser is what is known of a phaser.
type onePhaser struct {
	top     uint64 // those before this phase are over
	open    bool   // it was under way; else one with this number or a greater one is
	here    uint8  // who may have arrived for it, by party, …
	sure    uint8  // … and who has
	base    uint64 // of a child: that of the parent which was not over when the last one of here arrived
	past    [mostPast]fateOf
	parties [PhaserParties]phaserParty
}

// phaserState is a tree of a phaser and its parent.
type phaserState struct{ parent, child onePhaser }

// Phaser is the model of a phaser and of a child that it has, both of parties under leases. The
// state is which parties are registered for certain, and have arrived for the phase under way.
//
// What breaks it: a phase that is passed while a party that takes part for certain has not arrived for
// it; a phase of the child that is passed while one of the parent's has not arrived for that of the
// parent; a phase that is passed and broken, or under way again; an arrival or a party that is lost
// under its lease; an arrival of the parent's that counts twice.
//
// Relaxation: of a lease it is known until when it lasts at least. Nobody tells when the parent has
// the child as a party: that it waits for the child is for the tests of package gather. Which
// phases may be broken is not judged.
func Phaser(int64) Model {
	return newModel(phaserState{}, func(s phaserState, at step, out any) []phaserState {
		in := at.in.(PhaserInput)
		o, told := out.(PhaserOutput)
		if !told {
			return s.lost(in, at)
		}
		if s.step(in, o, at) {
			return []phaserState{s}
		}
		return nil
	})
}

// of returns the phaser that an operation is on.
func (s *phaserState) of(in PhaserInput) *onePhaser {
	if in.Child {
		return &s.child
	}
	return &s.parent
}

// certain reports whether a party was registered all the time until the end of an operation.
func (p *phaserParty) certain(at step) bool { return p.in && p.until > at.ret }

// step does an operation, and reports whether the answer is possible.
func (s *phaserState) step(in PhaserInput, o PhaserOutput, at step) bool {
	x := s.of(in)
	p := &x.parties[in.Party]
	switch in.Op {
	case PhaserRegister, PhaserRenew:
		if o.Bare {
			p.in = false // from which phase on it takes part is not known
			return true
		}
		if !o.OK {
			return x.gone(in, at)
		}
		return s.now(in, o, at) && x.registered(in, o, at)
	case PhaserArrive:
		switch {
		case o.OK:
			return s.arrived(in, o, at)
		case !o.Over && !x.gone(in, at):
			return false
		}
		return o.Bare || s.now(in, o, at) && (!o.Over || s.judged(in, o, at))
	case PhaserAwait:
		return s.now(in, o, at) && s.judged(in, o, at)
	case PhaserLeave:
		if !o.OK {
			return x.gone(in, at)
		}
		// Where all may have arrived, the phase may have been passed with this party, and a child has
		// told its parent so.
		if !in.Child && !s.mayPass(in, at) {
			x.here &^= 1 << in.Party
		}
		*p, x.sure = phaserParty{}, x.sure&^(1<<in.Party)
		return true
	case PhaserBreak:
		if o.OK && x.open && !s.mayPass(in, at) {
			s.end(in, at)
		}
		return true
	}
	return s.now(in, o, at)
}

// gone: a party is not registered.
func (x *onePhaser) gone(in PhaserInput, at step) bool {
	p := &x.parties[in.Party]
	if p.certain(at) {
		return false
	}
	p.in, x.sure = false, x.sure&^(1<<in.Party)
	return true
}

// registered: a party is registered for so long from a moment of the operation on.
func (x *onePhaser) registered(in PhaserInput, o PhaserOutput, at step) bool {
	p := &x.parties[in.Party]
	if !p.certain(at) { // its lease may have ended meanwhile
		p.in, p.since, x.sure = true, o.Current, x.sure&^(1<<in.Party)
		if in.Child {
			p.since++ // all may have arrived: then it takes part from the next one on
		}
	}
	p.until = at.call + at.drift.least(in.TTL)
	return true
}

func (s *phaserState) arrived(in PhaserInput, o PhaserOutput, at step) bool {
	if !s.seen(in, in.Phase, at) || s.of(in).top != in.Phase {
		return false
	}
	s.join(in, at)
	switch {
	case o.Last && (!s.mayPass(in, at) || !o.Bare && o.Fate != PhasePassed):
		return false
	case o.Last:
		s.end(in, at)
	case !o.Bare && o.Fate != PhaseUnderWay:
		return false
	}
	return o.Bare || s.now(in, o, at)
}

// join has a party arrive for the phase under way.
func (s *phaserState) join(in PhaserInput, at step) {
	x := s.of(in)
	p := &x.parties[in.Party]
	if in.Child && x.here&(1<<in.Party) == 0 && p.certain(at) && p.since <= x.top {
		x.base = s.parent.top
	}
	p.last = x.top
	x.here |= 1 << in.Party
	x.sure |= 1 << in.Party
}

// mayPass reports whether the phase under way may have been passed: all that take part have
// arrived, and for that of the parent, too.
func (s *phaserState) mayPass(in PhaserInput, at step) bool {
	x := s.of(in)
	for i := range x.parties {
		if p := &x.parties[i]; p.certain(at) && p.since <= x.top && x.here&(1<<i) == 0 {
			return false
		}
	}
	for i := range s.parent.parties {
		if p := &s.parent.parties[i]; in.Child && x.base != 0 && p.certain(at) && p.since <= x.base && p.last < x.base {
			return false
		}
	}
	return true // with nobody in here it may be the child that has arrived
}

// end ends the phase under way. The number of the next one is not known.
func (s *phaserState) end(in PhaserInput, at step) {
	x := s.of(in)
	over := fateOf{x.top, !s.mayPass(in, at)}
	copy(x.past[1:], x.past[:mostPast-1])
	x.past[0] = over
	x.top, x.open, x.here, x.sure, x.base = x.top+1, false, 0, 0, 0
}

// seen: a phase was under way at some moment of the operation. It reports whether it can have been.
func (s *phaserState) seen(in PhaserInput, phase uint64, at step) bool {
	x := s.of(in)
	if phase < x.top {
		return false
	}
	if x.open && phase > x.top {
		s.end(in, at)
	}
	x.top, x.open = phase, true
	return true
}

// now: the answer tells the phase that is under way, and how many have arrived for it.
func (s *phaserState) now(in PhaserInput, o PhaserOutput, at step) bool {
	x := s.of(in)
	if o.Current != 0 && !s.seen(in, o.Current, at) {
		return false
	}
	here, parties := uint32(0), uint32(0)
	for i := range x.parties {
		if !x.parties[i].certain(at) {
			continue
		}
		if parties++; x.sure&(1<<i) != 0 {
			here++
		}
	}
	if o.Current == 0 {
		return parties == 0
	}
	if !o.Counted {
		return true
	}
	most := uint32(bits.OnesCount8(x.here)) + 1 // the child
	return o.Parties >= parties && o.Here >= here && (in.Child || o.Here <= most)
}

// judged: the answer tells what has become of a phase.
func (s *phaserState) judged(in PhaserInput, o PhaserOutput, at step) bool {
	x := s.of(in)
	if o.Fate == PhaseUnderWay {
		return o.Current == in.Phase
	}
	if o.Current != 0 && o.Current == in.Phase {
		return false
	}
	for i := range x.past {
		if f := &x.past[i]; f.phase == in.Phase && in.Phase != 0 {
			if o.Fate == PhasePassed && f.broken {
				return false
			}
			f.broken = f.broken || o.Fate == PhaseBroken
		}
	}
	return true
}

// lost returns what may follow a call whose answer was lost, done or not.
func (s phaserState) lost(in PhaserInput, at step) []phaserState {
	then := s
	x := then.of(in)
	p := &x.parties[in.Party]
	switch in.Op {
	case PhaserRegister, PhaserRenew:
		p.until = min(p.until, at.call+at.drift.least(in.TTL))
		return []phaserState{then}
	case PhaserArrive:
		if then.seen(in, in.Phase, at) {
			then.join(in, at)
		}
	case PhaserLeave:
		p.in, x.sure = false, x.sure&^(1<<in.Party)
	}
	if then == s {
		return []phaserState{s}
	}
	return []phaserState{s, then}
}
