package history

import "math"

// GroupOp is what is done to a group.
type GroupOp uint8

const (
	GroupJoin GroupOp = iota + 1
	GroupRenew
	GroupLeave
	GroupVerify
	GroupList

	groupReplay // what the replay of a Join says of it
)

func (op GroupOp) String() string {
	return [...]string{"", "join", "renew", "leave", "verify", "list", "replay"}[op]
}

// GroupIDs is how many ids the members of a group have.
const GroupIDs = 3

// GroupInput is an operation on a group.
type GroupInput struct {
	Op    GroupOp
	ID    int    // of the member; of what is asked under a token, that of its membership
	After uint64 // of a join: see JoinRequest.after_token
	TTL   int64  // ns; of a join and a renew
	Token uint64 // of what is asked under one
}

// GroupOutput is the answer to it.
type GroupOutput struct {
	OK      bool   // joined, renewed, left or a member
	Token   uint64 // of a join
	Later   uint64 // … or of the membership for which it did not join
	TTL     int64  // ns left, of a membership of the caller
	Members [GroupIDs]uint64
	Bare    bool // what is said of the state as it is now is not known
	Replay
}

func (o GroupOutput) first() any { return GroupOutput{OK: o.OK, Token: o.Token, Later: o.Later} }

func (o GroupOutput) bare() any {
	return GroupOutput{OK: o.OK, Token: o.Token, Later: o.Later, Bare: true}
}

func (o GroupOutput) reads(in any) (readIn, readOut any) {
	i := in.(GroupInput)
	if i.Op != GroupJoin || !o.OK {
		return nil, nil
	}
	return GroupInput{Op: groupReplay, ID: i.ID, Token: o.Token}, GroupOutput{OK: o.TTL > 0, TTL: o.TTL}
}

// membership is what is known of the member of an id. The zero value is none.
type membership struct {
	here   bool
	token  uint64 // 0: not known, because the answer was lost
	lo, hi int64  // it ends between these if nothing happens to it
	early  bool   // it may end before
}

// mayBeOver reports whether it may be over by a moment.
func (m *membership) mayBeOver(by int64) bool { return !m.here || m.early || m.lo <= by }

// groupState is what is known of a group.
type groupState struct {
	of   [GroupIDs]membership
	last uint64 // greatest token seen; those of later memberships are above it
}

// Group is the model of a group whose memberships may last longer than promised, by so many ns.
//
// What breaks it: two members of one id; a token that does not rise; a member that is not listed
// before its time is over, or that is listed after it, or after it has left or another has taken
// its place; one that is there again under its token; a Join after a token that ends a later
// membership.
func Group(delay int64) Model {
	m := newModel(groupState{}, func(s groupState, at step, out any) []groupState {
		in := at.in.(GroupInput)
		o, told := out.(GroupOutput)
		if !told {
			return s.lost(in, at)
		}
		switch in.Op {
		case GroupJoin:
			return s.joined(in, o, at, delay)
		case GroupList:
			return s.listed(o, at)
		case GroupRenew:
			if o.OK {
				return s.renewed(in, in.TTL, at, delay)
			}
		case GroupVerify, groupReplay:
			if o.OK {
				return s.renewed(in, o.TTL, at, delay)
			}
		case GroupLeave:
			if o.OK {
				if next := s.renewed(in, 0, at, delay); next == nil {
					return nil
				}
				s.of[in.ID] = membership{}
				return []groupState{s}
			}
		}
		return s.over(in, at)
	})
	m.delay = delay
	return m
}

func (s groupState) joined(in GroupInput, o GroupOutput, at step, delay int64) []groupState {
	before := &s.of[in.ID]
	if !o.OK {
		if o.Later <= in.After || in.After == 0 {
			return nil // no group of a test is full
		}
		return s.shows(in.ID, o.Later, at)
	}
	if o.Token <= s.last || !o.Bare && o.TTL != in.TTL {
		return nil
	}
	if in.After != 0 && before.token > in.After && !before.mayBeOver(at.ret) {
		return nil
	}
	s.last = o.Token
	*before = membership{here: true, token: o.Token, lo: at.call + at.drift.least(in.TTL), hi: late(at.ret, at.drift.most(in.TTL)+delay)}
	return []groupState{s}
}

// shows: the member of an id has this token; 0 = there is none.
func (s groupState) shows(id int, token uint64, at step) []groupState {
	m := &s.of[id]
	switch {
	case token == 0:
		if !m.mayBeOver(at.ret) {
			return nil
		}
		*m = membership{}
	case !m.here || m.hi < at.call:
		return nil
	case m.token == token:
	case m.token == 0 && token > s.last:
		m.token, s.last = token, token
	default:
		return nil
	}
	return []groupState{s}
}

func (s groupState) listed(o GroupOutput, at step) []groupState {
	for id, token := range o.Members {
		next := s.shows(id, token, at)
		if next == nil {
			return nil
		}
		s = next[0]
	}
	return []groupState{s}
}

// renewed: the token is that of a member, for so long from a moment of the operation on.
func (s groupState) renewed(in GroupInput, ttl int64, at step, delay int64) []groupState {
	m := &s.of[in.ID]
	if !m.here || m.token != in.Token || m.hi < at.call {
		return nil
	}
	m.lo, m.hi, m.early = at.call+at.drift.least(ttl), late(at.ret, at.drift.most(ttl)+delay), false
	return []groupState{s}
}

// over: the token is not that of a member.
func (s groupState) over(in GroupInput, at step) []groupState {
	m := &s.of[in.ID]
	if !m.here || m.token != in.Token {
		return []groupState{s}
	}
	if !m.mayBeOver(at.ret) {
		return nil
	}
	*m = membership{}
	return []groupState{s}
}

// lost returns what may follow a call whose answer was lost, done or not.
func (s groupState) lost(in GroupInput, at step) []groupState {
	next, m := s, &s.of[in.ID]
	of := &next.of[in.ID]
	switch mine := m.here && m.token == in.Token; {
	case in.Op == GroupJoin:
		*of = membership{here: true, hi: math.MaxInt64, early: true}
		if in.After != 0 && m.here && m.token > in.After && !m.early {
			return []groupState{s, next} // it is refused while that is there
		}
	case mine && in.Op == GroupRenew:
		of.lo, of.hi = min(of.lo, at.call+at.drift.least(in.TTL)), math.MaxInt64
	case mine && in.Op == GroupLeave:
		of.early = true
	}
	if next == s {
		return []groupState{s}
	}
	return []groupState{s, next}
}
