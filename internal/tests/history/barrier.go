package history

import "math/bits"

// BarrierOp is what is done to a barrier.
type BarrierOp uint8

const (
	BarrierArrive BarrierOp = iota + 1
	BarrierAwait
	BarrierLeave
	BarrierBreak
	BarrierInspect
)

func (op BarrierOp) String() string {
	return [...]string{"", "arrive", "await", "leave", "break", "inspect"}[op]
}

// BarrierInput is an operation on a barrier of so many parties.
type BarrierInput struct {
	Op      BarrierOp
	Party   uint8 // of an arrive and a leave: below 64
	Parties uint8
	Phase   uint64 // of an await and a leave
}

// PhaseFate is what became of a phase.
type PhaseFate uint8

const (
	PhaseUnknown PhaseFate = iota
	PhaseUnderWay
	PhasePassed
	PhaseBroken
)

// BarrierOutput is the answer to it.
type BarrierOutput struct {
	OK      bool      // arrived, left or broken
	Phase   uint64    // for which the party has arrived
	Last    bool      // the phase was passed by it
	Fate    PhaseFate // of the phase of an arrive or an await
	Current uint64    // the phase that is under way
	Here    uint32    // how many have arrived for that
	Bare    bool      // what is said of the barrier as it is now is not known
	Replay
}

func (o BarrierOutput) first() any {
	return BarrierOutput{OK: o.OK, Phase: o.Phase, Last: o.Last}
}

func (o BarrierOutput) bare() any {
	return BarrierOutput{OK: o.OK, Phase: o.Phase, Last: o.Last, Bare: true}
}

func (o BarrierOutput) reads(in any) (readIn, readOut any) {
	if in.(BarrierInput).Op != BarrierArrive || !o.OK {
		return nil, nil
	}
	return BarrierInput{Op: BarrierAwait, Phase: o.Phase}, BarrierOutput{Fate: o.Fate, Current: o.Current, Here: o.Here}
}

// fateOf is what became of a phase.
type fateOf struct {
	phase  uint64
	broken bool
}

// mostFates is how many phases that are over a state knows.
const mostFates = 6

// barrierState is what is known of a barrier.
type barrierState struct {
	exists bool
	phase  uint64 // that is under way; 0 = its number is not known, …
	above  uint64 // … but is above this
	here   uint64 // who has arrived, by party
	over   [mostFates]fateOf
	old    uint64 // of this phase and those before it anything may be said
	broken uint64 // the last phase that was broken
}

// Barrier is the model of a barrier. The state is the parties that have arrived for the phase under
// way, and what became of the last ones.
//
// What breaks it: a phase that is passed before all have arrived for it, because an arrival
// counted twice, in two phases, or in one after that for which it was; a phase that is passed
// and broken; one whose arrivals are lost.
func Barrier(int64) Model {
	return newModel(barrierState{}, func(s barrierState, at step, out any) []barrierState {
		in := at.in.(BarrierInput)
		o, told := out.(BarrierOutput)
		if !told {
			return s.lost(in)
		}
		switch in.Op {
		case BarrierArrive:
			return s.arrived(in, o)
		case BarrierAwait:
			return s.awaited(in.Phase, o)
		case BarrierLeave:
			return s.left(in, o.OK)
		case BarrierBreak:
			if o.OK != s.exists {
				return nil
			}
			return []barrierState{s.end(true)}
		}
		return s.now(o)
	})
}

// learn returns the state whose phase has a number; false if it cannot have it.
func (s barrierState) learn(phase uint64) (barrierState, bool) {
	if s.exists && s.phase != 0 {
		return s, s.phase == phase
	}
	if phase <= s.above {
		return s, false
	}
	s.exists, s.phase = true, phase
	return s, true
}

// end returns the state after the end of the phase.
func (s barrierState) end(broken bool) barrierState {
	if !s.exists {
		return s
	}
	if broken {
		s.old = max(s.old, s.broken) // with the next break, what was before the last one is forgotten
		if s.broken = s.phase; s.phase == 0 {
			s.broken = s.above
		}
	}
	if s.phase != 0 {
		s.old = max(s.old, s.over[mostFates-1].phase)
		copy(s.over[1:], s.over[:mostFates-1])
		s.over[0] = fateOf{s.phase, broken}
		s.above = s.phase
	}
	s.phase, s.here = 0, 0
	return s
}

// join returns the state when a party has arrived, and whether the phase has ended by it.
func (s barrierState) join(in BarrierInput) (barrierState, bool) {
	s.exists = true
	if s.here |= 1 << in.Party; bits.OnesCount64(s.here) < int(in.Parties) {
		return s, false
	}
	return s.end(false), true
}

func (s barrierState) arrived(in BarrierInput, o BarrierOutput) []barrierState {
	if !o.OK {
		return nil // the worker names no phase, and the number of parties is always the same
	}
	s, ok := s.learn(o.Phase)
	if !ok {
		return nil
	}
	was := s.here&(1<<in.Party) != 0
	s, last := s.join(in)
	if last != o.Last || was && last {
		return nil
	}
	if o.Bare {
		return []barrierState{s}
	}
	if want := PhasePassed; o.Fate != want && last || !last && o.Fate != PhaseUnderWay {
		return nil
	}
	return s.now(o)
}

// now: the answer tells the phase that is under way, and how many have arrived for it.
func (s barrierState) now(o BarrierOutput) []barrierState {
	if o.Current == 0 {
		if s.exists {
			return nil
		}
		return []barrierState{s}
	}
	s, ok := s.learn(o.Current)
	if !ok || int(o.Here) != bits.OnesCount64(s.here) {
		return nil
	}
	return []barrierState{s}
}

func (s barrierState) awaited(phase uint64, o BarrierOutput) []barrierState {
	if o.Current == 0 || o.Fate == PhaseUnderWay && o.Current != phase || o.Fate != PhaseUnderWay && o.Current <= phase {
		return nil
	}
	if o.Fate != PhaseUnderWay && phase > s.old {
		i := 0
		for ; i < mostFates && s.over[i].phase != phase; i++ {
		}
		if i == mostFates || o.Fate == PhaseUnknown || s.over[i].broken != (o.Fate == PhaseBroken) {
			return nil
		}
	}
	return s.now(o)
}

func (s barrierState) left(in BarrierInput, left bool) []barrierState {
	here, over := s.here&(1<<in.Party) != 0, s.phase != 0 && s.phase != in.Phase || s.above >= in.Phase
	if left != (here && !over) {
		return nil
	}
	if left {
		s.here &^= 1 << in.Party
	}
	return []barrierState{s}
}

// lost returns what may follow a call whose answer was lost, done or not.
func (s barrierState) lost(in BarrierInput) []barrierState {
	then := s
	switch in.Op {
	case BarrierArrive:
		then, _ = s.join(in)
	case BarrierLeave:
		if then.phase == 0 || then.phase == in.Phase {
			then.here &^= 1 << in.Party
		}
	case BarrierBreak:
		then = s.end(true)
	}
	if then == s {
		return []barrierState{s}
	}
	return []barrierState{s, then}
}
