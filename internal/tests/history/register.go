package history

// RegisterOp is what is done to a register.
type RegisterOp uint8

const (
	RegisterGet RegisterOp = iota + 1
	RegisterPut
	RegisterCompareAndSet
	RegisterDelete
)

func (op RegisterOp) String() string {
	return [...]string{"", "get", "put", "compare-and-set", "delete"}[op]
}

// RegisterInput is an operation on a register.
type RegisterInput struct {
	Op      RegisterOp
	Value   string // to set
	Version uint64 // that must be there, of a compare-and-set; of a delete, if it is not 0
	Fence   uint64 // foreign token of a change; 0 = none
	// Hold is the token of the lock that has to be held for a change; 0 = none. Tokens rise
	// from grant to grant.
	Hold uint64
}

// RegisterRefusal is why a change was refused.
type RegisterRefusal uint8

const (
	OtherVersion RegisterRefusal = iota + 1
	OldFence
	HoldOver
)

// RegisterOutput is the answer to it.
type RegisterOutput struct {
	Applied bool            // of a change
	Refusal RegisterRefusal // 0 = none
	Version uint64          // of the change, or of the register
	// Told says that what follows is of the register now.
	Told   bool
	Exists bool
	Value  string
	At     uint64 // its version
	Fence  uint64
	Replay
}

func (o RegisterOutput) first() any {
	return RegisterOutput{Applied: o.Applied, Refusal: o.Refusal, Version: o.Version}
}

func (o RegisterOutput) bare() any { return o.first() }

func (o RegisterOutput) reads(any) (readIn, readOut any) {
	return RegisterInput{Op: RegisterGet}, RegisterOutput{Told: true, Exists: o.Exists, Value: o.Value, At: o.At, Fence: o.Fence, Version: o.At}
}

// registerState is a register.
type registerState struct {
	value  string
	exists bool
	// version is that of the last change that is known. With above, there was another one
	// since, by a lost call. Invariant: versions never repeat, nor fall, whatever happens.
	version uint64
	above   bool
	fence   uint64
	hold    uint64 // greatest token of a lock under which it was changed
	unsure  bool   // nothing is known of it but that versions are above version
	open    bool   // the fence may be greater
}

// changed returns the state after a change by a call under a version; 0 if that is not known.
func (s registerState) changed(in RegisterInput, version uint64) []registerState {
	next := s
	next.unsure, next.open = false, s.open || s.unsure
	next.fence, next.hold = max(s.fence, in.Fence), max(s.hold, in.Hold)
	if next.exists, next.value = in.Op != RegisterDelete, in.Value; !next.exists {
		next.value = ""
	}
	switch {
	case version == 0:
		next.above = true
	case version <= s.version:
		return nil
	default:
		next.version, next.above = version, false
	}
	return []registerState{next}
}

// at returns the state if its version is v, as callers see it: 0 if it does not exist.
func (s registerState) at(v uint64) []registerState {
	switch {
	case s.exists != (v != 0):
		return nil
	case !s.exists || !s.above && v == s.version:
		return []registerState{s}
	case s.above && v > s.version:
		s.version, s.above = v, false
		return []registerState{s}
	}
	return nil
}

// read returns the state if it is what an answer tells.
func (s registerState) read(o RegisterOutput) []registerState {
	if s.unsure {
		if o.Exists && o.At <= s.version {
			return nil
		}
		s.unsure, s.exists, s.value, s.fence = false, o.Exists, o.Value, o.Fence
		if o.Exists {
			s.version, s.above = o.At, false
		}
		return []registerState{s}
	}
	if s.open && o.Fence >= s.fence {
		s.fence, s.open = o.Fence, false
	}
	if o.Exists != s.exists || o.Value != s.value || o.Fence != s.fence {
		return nil
	}
	return s.at(o.At)
}

// refused returns the state if a refusal is right: with all that is told of the register then.
func (s registerState) refused(in RegisterInput, o RegisterOutput) []registerState {
	states := []registerState{s}
	if o.Told {
		states = s.read(o)
	}
	var all []registerState
	for _, s := range states {
		if o.Version != 0 && !o.Told && !s.unsure {
			if is := s.at(o.Version); is != nil {
				s = is[0]
			} else {
				continue
			}
		}
		right := false
		switch o.Refusal {
		case HoldOver:
			right = in.Hold != 0
		case OldFence:
			right = in.Fence != 0 && (s.unsure || s.open || in.Fence < s.fence)
		case OtherVersion:
			right = in.conditional() && o.Version != in.Version
		}
		if right {
			all = append(all, s)
		}
	}
	return all
}

// conditional reports whether a change names a version.
func (in RegisterInput) conditional() bool {
	return in.Op == RegisterCompareAndSet || in.Op == RegisterDelete && in.Version != 0
}

// lets returns the states in which the conditions of a change hold.
func (s registerState) lets(in RegisterInput) []registerState {
	if in.Hold != 0 && in.Hold < s.hold || in.Fence != 0 && in.Fence < s.fence {
		return nil
	}
	if in.conditional() && !s.unsure {
		return s.at(in.Version)
	}
	return []registerState{s}
}

// Register returns the model of a register. Ages of replays may be too small by so many ns;
// nothing else depends on time. That a change is refused because its hold is over is always
// allowed: whether that was so is for its holder to judge.
func Register(delay int64) Model {
	m := newModel(registerState{}, func(s registerState, at step, out any) []registerState {
		in := at.in.(RegisterInput)
		o, told := out.(RegisterOutput)
		switch {
		case in.Op == RegisterGet && !told:
			return []registerState{s}
		case in.Op == RegisterGet:
			return s.read(o)
		case !told:
			return s.lost(in)
		case o.Refusal != 0:
			return s.refused(in, o)
		}
		var all []registerState
		for _, was := range s.lets(in) {
			switch {
			case in.Op == RegisterDelete && !o.Applied:
				all = append(all, was.nothing(in, o)...)
			case in.Op == RegisterDelete && !was.exists && !was.unsure:
			case o.Applied:
				all = append(all, was.changed(in, o.Version)...)
			}
		}
		return all
	}, registerState{unsure: true})
	m.delay = delay
	return m
}

// nothing is what a delete does where there is no register: it may keep a token.
func (s registerState) nothing(in RegisterInput, o RegisterOutput) []registerState {
	if s.exists || o.Version != 0 {
		return nil
	}
	s.fence, s.hold, s.open, s.unsure = max(s.fence, in.Fence), max(s.hold, in.Hold), s.open || s.unsure, false
	return []registerState{s}
}

// lost is what a call may have done that was not answered: the change, or nothing.
func (s registerState) lost(in RegisterInput) []registerState {
	all := []registerState{}
	for _, was := range s.lets(in) {
		if in.Op == RegisterDelete && !was.exists {
			all = append(all, was.nothing(in, RegisterOutput{})...) // if nothing is known, too
		} else {
			all = append(all, was.changed(in, 0)...)
		}
	}
	// A lost call may be refused, too: always, for all that is known of its hold, or because
	// the version is another one than it expects.
	return append(all, s)
}
