package history

import "math"

// SemaphoreOp is what is done to a semaphore.
type SemaphoreOp uint8

const (
	PermitsAcquire SemaphoreOp = iota + 1
	PermitsRenew
	PermitsRelease
	PermitsVerify
	PermitsInspect
	PermitsKeep // a KeepAlive of the session of the grant
	PermitsEnd  // … and its end

	permitsReplay // what the replay of a grant says of it
)

func (op SemaphoreOp) String() string {
	return [...]string{"", "acquire", "renew", "release", "verify", "inspect", "keep alive", "end", "replay"}[op]
}

// SemaphoreInput is an operation on a semaphore.
type SemaphoreInput struct {
	Op       SemaphoreOp
	Permits  uint32 // of an acquire
	Capacity uint32 // … and of the semaphore
	TTL      int64  // ns; of an acquire and a renew
	Wait     int64  // ns; of an acquire
	Token    uint64 // of what is asked under one
}

// SemaphoreOutput is the answer to it.
type SemaphoreOutput struct {
	OK     bool   // acquired, renewed, released or held
	Token  uint64 // of an acquire
	Waited int64  // ns; of an acquire
	TTL    int64  // ns left, of a grant to the caller
	Held   uint32 // permits that others hold, of what was refused, or all that are held
	Bare   bool   // what is said of the state as it is now is not known
	Replay
}

func (o SemaphoreOutput) first() any {
	return SemaphoreOutput{OK: o.OK, Token: o.Token, Waited: o.Waited}
}

func (o SemaphoreOutput) bare() any {
	return SemaphoreOutput{OK: o.OK, Token: o.Token, Waited: o.Waited, Bare: true}
}

func (o SemaphoreOutput) reads(in any) (readIn, readOut any) {
	i := in.(SemaphoreInput)
	if i.Op != PermitsAcquire || !o.OK {
		return nil, nil
	}
	return SemaphoreInput{Op: permitsReplay, Token: o.Token}, SemaphoreOutput{OK: o.TTL > 0, TTL: o.TTL}
}

// mostGrants is how many grants a state tells apart.
const mostGrants = 8

// permitGrant is what is known of a grant. The zero value is none.
type permitGrant struct {
	token  uint64 // 0: not known, because the answer was lost
	weight uint32
	lo, hi int64 // it ends between these if nothing happens to it
	early  bool  // it may end before: its caller may have left, and then the node gives it back
}

// semaphoreState is what is known of a semaphore.
type semaphoreState struct {
	grants [mostGrants]permitGrant
	last   uint64 // greatest token seen; those of later grants are above it
	vague  bool   // there may be more grants than these
}

// Semaphore is the model of a semaphore whose grants may last longer than promised, by so many
// ns. The state is how much each holds, and the interval in which each grant ends, because nobody
// knows when within a call an operation took effect.
//
// What breaks it: more permits held for certain than there are; a token that does not rise; a
// grant that ends before its time, or that is there again; permits that stay when all that had
// them are gone.
//
// Relaxation: a grant to a caller whose answer was lost, and one whose release may have been
// done, may end at any moment. That what is free goes to the waiters, in their order, is for
// the tests of package hold.
func Semaphore(delay int64) Model {
	m := newModel(semaphoreState{}, func(s semaphoreState, at step, out any) []semaphoreState {
		in := at.in.(SemaphoreInput)
		o, told := out.(SemaphoreOutput)
		if !told {
			return s.lost(in, at)
		}
		switch in.Op {
		case PermitsAcquire:
			if o.OK {
				return s.granted(in, o, at, delay)
			}
			return s.told(o, at)
		case PermitsInspect:
			return s.told(o, at)
		case PermitsRenew:
			if o.OK {
				return s.renewed(in.Token, in.TTL, at, delay)
			}
		case PermitsVerify, permitsReplay:
			if o.OK {
				return s.renewed(in.Token, o.TTL, at, delay)
			}
		case PermitsKeep, PermitsEnd:
			return s.ofSession(in, o, at, delay)
		case PermitsRelease:
			return s.released(in, o, at)
		}
		return s.over(in.Token, at)
	})
	m.delay = delay
	return m
}

// find returns the index of a grant, -1 if the token is not that of one.
func (s *semaphoreState) find(token uint64) int {
	for i := range s.grants {
		if token != 0 && s.grants[i].token == token {
			return i
		}
	}
	return -1
}

// add puts a grant where there is room.
func (s semaphoreState) add(g permitGrant) semaphoreState {
	for i := range s.grants {
		if s.grants[i] == (permitGrant{}) {
			s.grants[i] = g
			return s
		}
	}
	s.vague = true // only what may end at any moment is forgotten so
	for i := range s.grants {
		if s.grants[i].early {
			s.grants[i] = g
			return s
		}
	}
	return s
}

// without returns the state without some of the grants that may be over by a moment: all sets
// of them, the largest first.
func (s semaphoreState) without(by int64) []semaphoreState {
	all := []semaphoreState{s}
	for i := range s.grants {
		if g := &s.grants[i]; *g == (permitGrant{}) || !g.early && g.lo > by {
			continue
		}
		for _, with := range all {
			with.grants[i] = permitGrant{}
			all = append(all, with)
		}
	}
	return all
}

func (s *semaphoreState) held() (n uint32) {
	for i := range s.grants {
		n += s.grants[i].weight
	}
	return n
}

// granted: the permits fit beside what is not over by then.
func (s semaphoreState) granted(in SemaphoreInput, o SemaphoreOutput, at step, delay int64) (all []semaphoreState) {
	if o.Token <= s.last || !o.Bare && o.TTL != in.TTL {
		return nil
	}
	since := max(at.call, at.first+at.drift.least(o.Waited))
	if since > at.ret {
		return nil
	}
	for _, room := range s.without(at.ret) {
		if room.held()+in.Permits > in.Capacity {
			continue
		}
		g := permitGrant{token: o.Token, weight: in.Permits, lo: since + at.drift.least(in.TTL), hi: late(at.ret, at.drift.most(in.TTL)+delay), early: at.lost}
		room.last = o.Token
		all = append(all, room.add(g))
	}
	return all
}

// ofSession: what was covered is prolonged, and what was released is over. Of what was not,
// nothing is said: it may be at a node that did not answer, or between two.
func (s semaphoreState) ofSession(in SemaphoreInput, o SemaphoreOutput, at step, delay int64) []semaphoreState {
	switch {
	case !o.OK:
		return s.lost(in, at)
	case in.Op == PermitsKeep:
		return s.renewed(in.Token, in.TTL, at, delay)
	}
	return s.released(in, o, at)
}

func late(at, by int64) int64 {
	if at > math.MaxInt64-by {
		return math.MaxInt64
	}
	return at + by
}

// renewed: the token holds its permits, for so long from a moment of the operation on.
func (s semaphoreState) renewed(token uint64, ttl int64, at step, delay int64) []semaphoreState {
	i := s.find(token)
	if i < 0 || s.grants[i].hi < at.call {
		return nil
	}
	g := &s.grants[i]
	g.lo, g.hi, g.early = at.call+at.drift.least(ttl), late(at.ret, at.drift.most(ttl)+delay), false
	return []semaphoreState{s}
}

// over: the token holds nothing.
func (s semaphoreState) over(token uint64, at step) []semaphoreState {
	i := s.find(token)
	if i < 0 {
		return []semaphoreState{s}
	}
	if g := &s.grants[i]; !g.early && g.lo > at.ret {
		return nil
	}
	s.grants[i] = permitGrant{}
	return []semaphoreState{s}
}

func (s semaphoreState) released(in SemaphoreInput, o SemaphoreOutput, at step) []semaphoreState {
	if !o.OK {
		return s.over(in.Token, at)
	}
	i := s.find(in.Token)
	if i < 0 || s.grants[i].hi < at.call {
		return nil
	}
	s.grants[i] = permitGrant{}
	return []semaphoreState{s}
}

// told: so many permits are held. Of what was decided before, at the call, some may be over.
func (s semaphoreState) told(o SemaphoreOutput, at step) []semaphoreState {
	if o.Bare {
		return []semaphoreState{s}
	}
	least, most := uint32(0), uint32(0)
	for i := range s.grants {
		g := &s.grants[i]
		if !g.early && g.lo > at.ret {
			least += g.weight
		}
		if g.hi >= at.call {
			most += g.weight
		}
	}
	if o.Held < least || o.Held > most && !s.vague {
		return nil
	}
	return []semaphoreState{s}
}

// lost returns what may follow a call whose answer was lost, done or not.
func (s semaphoreState) lost(in SemaphoreInput, at step) []semaphoreState {
	i := s.find(in.Token)
	switch {
	case in.Op == PermitsAcquire:
		return []semaphoreState{s, s.add(permitGrant{weight: in.Permits, hi: math.MaxInt64, early: true})}
	case i >= 0 && (in.Op == PermitsRenew || in.Op == PermitsKeep):
		g := &s.grants[i]
		g.lo, g.hi = min(g.lo, at.call+at.drift.least(in.TTL)), math.MaxInt64
	case i >= 0 && (in.Op == PermitsRelease || in.Op == PermitsEnd):
		s.grants[i].early = true
	}
	return []semaphoreState{s}
}
