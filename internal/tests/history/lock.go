package history

// LockOp is what is done to a lock.
type LockOp uint8

const (
	LockAcquire LockOp = iota + 1
	LockRenew
	LockRelease
	LockInspect

	lockReplay // what the replay of a grant says of it
)

func (op LockOp) String() string {
	return [...]string{"", "acquire", "renew", "release", "inspect", "replay"}[op]
}

// LockInput is an operation on a lock.
type LockInput struct {
	Op LockOp
	// Holder of an acquire. Each request must have one of its own, so that what
	// others are told tells which request it was.
	Holder string
	TTL    int64  // ns; of an acquire and a renew
	Wait   int64  // ns; of an acquire
	Token  uint64 // of a renew and a release
	// Tickets says of an acquire that others may have some: a lock that nobody holds may be kept
	// for one of them.
	Tickets bool
}

// LockOutput is the answer to it.
type LockOutput struct {
	OK     bool   // acquired, renewed or released
	Token  uint64 // of an acquire
	Waited int64  // ns; of an acquire
	TTL    int64  // ns left, of a grant to the caller
	// Who holds the lock, when it is not the caller; "" is nobody.
	Holder      string
	HolderToken uint64
	HolderTTL   int64 // ns left
	Bare        bool  // what is said of the state as it is now is not known
	Replay
}

func (o LockOutput) first() any {
	return LockOutput{OK: o.OK, Token: o.Token, Waited: o.Waited}
}

func (o LockOutput) bare() any {
	return LockOutput{OK: o.OK, Token: o.Token, Waited: o.Waited, Bare: true}
}

func (o LockOutput) reads(in any) (readIn, readOut any) {
	i := in.(LockInput)
	if i.Op != LockAcquire {
		return nil, nil
	}
	o.Replay = Replay{}
	if !o.OK {
		return LockInput{Op: LockInspect}, o
	}
	return LockInput{Op: lockReplay, Holder: i.Holder, Token: o.Token}, o
}

// lockState is what is known of a lock. It is held if holder is not "".
//
// Invariant: held ⇒ the grant ends between lo and hi if nothing happens to it.
type lockState struct {
	holder string
	token  uint64 // 0 while held: not known, because the answer was lost
	last   uint64 // greatest token seen; tokens of later grants are above it
	lo, hi int64
	// off says that the end was put off since the last acquire or renew; what is
	// known of it as it was before is that it is not before base.
	off  bool
	base int64
	// later is more than 0 after a call that was lost: the grant ends at the
	// latest so long after the next operation.
	later int64
	// early says that the grant may end before its TTL: its caller may have
	// left, and then the node gives it back.
	early bool
	delay int64 // ns by which hi may still move by itself
}

// Lock returns the model of a lock. The state is its holder and the interval in
// which the TTL ends, because nobody knows when within a call an operation took
// effect; otherwise as in Bucket.
//
// Relaxation: the grant to a caller whose answer was lost, and the release of
// which nobody knows whether it took effect, may end at any moment.
func Lock() Model { return DelayedLock(0) }

// DelayedLock returns the model of a lock whose grants may last longer than promised, by
// so many ns in all: a copy of the state of an object has the time that is
// left, and it runs on when it has arrived. A node with an earlier copy may take
// over again. Never do they end sooner than their callers were told.
func DelayedLock(delay int64) Model {
	m := newModel(lockState{delay: delay}, func(s lockState, at step, out any) []lockState {
		in := at.in.(LockInput)
		o, told := out.(LockOutput)
		if !told {
			return s.lost(in, at)
		}
		if s.later > 0 {
			s.hi, s.later = max(s.hi, at.ret+s.later), 0
		}
		switch in.Op {
		case LockAcquire:
			return s.acquire(in, o, at)
		case LockRenew:
			if o.OK {
				return s.holds(at).is(in.Token, "").until(at, in.TTL).state()
			}
		case LockRelease:
			return s.release(in, o, at)
		case lockReplay:
			if o.TTL > 0 {
				return s.holds(at).is(in.Token, in.Holder).until(at, o.TTL).state()
			}
		}
		// The caller does not hold the lock; somebody else or nobody does.
		if o.Holder == "" {
			return s.free(at).state()
		}
		if o.HolderToken == in.Token {
			return nil
		}
		return s.held(o, at).state()
	})
	m.delay = delay
	return m
}

// maybe is a state, or none because what was told is impossible.
type maybe struct {
	lockState
	none bool
}

func (m maybe) state() []lockState {
	if m.none || m.holder != "" && m.lo > m.hi && m.later == 0 {
		return nil
	}
	if !m.off {
		m.base = m.lo
	}
	return []lockState{m.lockState}
}

// holds: the lock is held at some moment of the operation.
func (s lockState) holds(at step) maybe {
	if s.holder == "" || !s.least(at.call+1) {
		return maybe{none: true}
	}
	s.raise(at.call + 1)
	return maybe{lockState: s}
}

// least uses that the grant does not end before this moment. If it should have, it
// was put off, as far as the delay allows. It reports whether that is possible.
func (s *lockState) least(end int64) bool {
	if by := end - s.hi; by > 0 && s.later == 0 {
		if by > s.delay {
			return false
		}
		s.hi, s.delay, s.off = end, s.delay-by, true
	}
	return true
}

// raise has the grant end no sooner than at this moment.
func (s *lockState) raise(end int64) {
	if s.early {
		return
	}
	if s.lo = max(s.lo, end); !s.off {
		s.base = s.lo
	}
}

// back undoes that the end was put off, if it was, and ends at this moment at the
// latest.
func (s *lockState) back(end int64) {
	if s.off && s.base <= end && end < s.lo {
		s.delay += s.lo - end
		s.lo, s.hi, s.off = s.base, end, false
	}
}

// is: the grant is the one with this token, and this holder if it is known.
func (m maybe) is(token uint64, holder string) maybe {
	switch {
	case m.none || holder != "" && holder != m.holder:
		return maybe{none: true}
	case m.token == 0 && token > m.last:
		m.token, m.last = token, token
	case m.token != token:
		return maybe{none: true}
	}
	return m
}

// until: the grant ends ttl after some moment of the operation, and its caller
// knows of it.
func (m maybe) until(at step, ttl int64) maybe {
	m.lo, m.hi, m.early, m.off = at.call+at.drift.least(ttl), at.ret+at.drift.most(ttl), false, false
	return m
}

// held: the lock is held by whom the answer names, for as long as it says.
func (s lockState) held(o LockOutput, at step) maybe {
	m := s.holds(at).is(o.HolderToken, o.Holder)
	least, most := at.call+at.drift.least(o.HolderTTL), at.ret+at.drift.most(o.HolderTTL)
	m.back(most)
	if m.none || m.lo > most && !m.early || !m.least(least) {
		return maybe{none: true}
	}
	m.hi = min(m.hi, most)
	m.raise(least)
	return m
}

// free: the lock is free at some moment of the operation.
func (s lockState) free(at step) maybe {
	s.back(at.ret)
	if s.holder != "" && s.lo > at.ret {
		return maybe{none: true}
	}
	return maybe{lockState: lockState{last: s.last, delay: s.delay}}
}

// freeFrom returns the earliest moment of the operation at which the lock is free.
func (s lockState) freeFrom(at step) int64 {
	if s.holder == "" {
		return at.call
	}
	s.back(at.ret)
	return max(at.call, s.lo)
}

func (s lockState) acquire(in LockInput, o LockOutput, at step) []lockState {
	if o.OK {
		if s.free(at).none || o.Token <= s.last || !o.Bare && o.TTL != in.TTL {
			return nil
		}
		granted := max(s.freeFrom(at), at.first+at.drift.least(o.Waited))
		next := lockState{holder: in.Holder, token: o.Token, last: o.Token, lo: granted + at.drift.least(in.TTL), hi: at.ret + at.drift.most(in.TTL), early: at.lost, delay: s.delay}
		if granted > at.ret {
			return nil
		}
		if at.lost {
			next.lo = granted
		}
		next.base = next.lo
		return []lockState{next}
	}
	var all []lockState
	// A waiter's time may end at the very moment at which the lock becomes free.
	if (in.Wait > 0 || in.Tickets) && (o.Bare || o.Holder == "") {
		all = s.free(at).state()
	}
	switch {
	case o.Bare:
		all = append(all, s.holds(at).state()...)
	case o.Holder != "" && o.Holder != in.Holder:
		all = append(all, s.held(o, at).state()...)
	}
	return all
}

func (s lockState) release(in LockInput, o LockOutput, at step) []lockState {
	switch held := s.holds(at).is(in.Token, ""); {
	case o.OK && held.none:
		return nil
	case o.OK:
		return []lockState{{last: max(s.last, in.Token), delay: held.delay}}
	case s.holder != "" && s.token == in.Token:
		return s.free(at).state() // only if its TTL is over
	}
	return []lockState{s}
}

// lost returns what may follow a call whose answer was lost, done or not.
func (s lockState) lost(in LockInput, at step) []lockState {
	mine := s.holder != "" && s.token == in.Token
	switch in.Op {
	case LockAcquire:
		granted := s.freeFrom(at)
		return []lockState{s, {holder: in.Holder, last: s.last, lo: granted, hi: granted, base: granted, later: at.drift.most(in.TTL), early: true, delay: s.delay}}
	case LockRenew:
		if mine {
			s.lo, s.later = min(s.lo, at.call+at.drift.least(in.TTL)), max(s.later, at.drift.most(in.TTL))
			s.base = min(s.base, s.lo)
		}
	case LockRelease:
		if mine {
			s.lo, s.early = min(s.lo, at.call), true
			s.base = min(s.base, s.lo)
		}
	}
	return []lockState{s}
}
