package history

import "math"

// OnceOp is what is done with work that is done once.
type OnceOp uint8

const (
	OnceBegin OnceOp = iota + 1
	OnceRenew
	OnceComplete
	OnceAbandon
	OnceGet

	onceReplay // what the replay of a turn says of it
)

func (op OnceOp) String() string {
	return [...]string{"", "begin", "renew", "complete", "abandon", "get", "replay"}[op]
}

// OnceInput is an operation on it. All that begin do so under the same fingerprint.
type OnceInput struct {
	Op     OnceOp
	Token  uint64 // of what is asked under one
	TTL    int64  // ns; of a begin and a renew
	Wait   int64  // ns; of a begin
	Result string // of a complete; each has one of its own
	Keep   int64  // ns; of a complete
}

// OncePhase is how far work is, as an answer tells.
type OncePhase uint8

const (
	OnceAbsent OncePhase = iota
	OnceUnderWay
	OnceDone
	OnceFirst // of a begin: it is the caller's turn
)

// OnceOutput is the answer to it.
type OnceOutput struct {
	OK     bool      // renewed, completed or abandoned
	Phase  OncePhase // of a begin and a get
	Token  uint64    // of the turn, or of that which was completed
	Result string    // if it is done
	TTL    int64     // ns left of the lease
	Replay
}

func (o OnceOutput) first() any { return OnceOutput{OK: o.OK, Phase: o.Phase, Token: o.Token} }

func (o OnceOutput) bare() any { return o.first() }

func (o OnceOutput) reads(in any) (readIn, readOut any) {
	i := in.(OnceInput)
	if i.Op != OnceBegin || o.Phase != OnceFirst {
		return nil, nil
	}
	return OnceInput{Op: onceReplay, Token: o.Token}, OnceOutput{OK: o.TTL > 0, TTL: o.TTL}
}

// onceState is what is known of the work of a key.
//
// Invariant: if it is under way, the lease ends between lo and hi if nothing happens to it; if it is
// done, the retention does.
type onceState struct {
	phase  OncePhase // not OnceFirst
	token  uint64    // of the turn; 0: not known, because the answer was lost
	last   uint64    // greatest token seen; those of later turns are above it
	result string    // if it is done
	lo, hi int64
}

// lostMost is how long after its call, in ns, a call whose answer was lost acts at most: the results
// of a test that are not kept for longer than that may be forgotten before it does.
const lostMost = int64(3_600_000_000_000)

// Once is the model of work that is done once, whose leases and retentions may last longer than
// promised by so many ns.
//
// What breaks it: two turns in force at once, or one that begins before the lease of the one before
// is over; a token that does not rise, or is in force again; a result that is not that of the one
// complete that was accepted, that changes, or that is gone before its retention ends; a complete
// of a token that is not in force.
func Once(delay int64) Model {
	m := newModel(onceState{}, func(s onceState, at step, out any) []onceState {
		in := at.in.(OnceInput)
		o, told := out.(OnceOutput)
		if !told {
			return s.lost(in, at)
		}
		switch in.Op {
		case OnceBegin:
			if o.Phase == OnceFirst {
				return s.begun(in, o.Token, at, delay)
			}
			return s.shows(o, at, true)
		case OnceGet:
			return s.shows(o, at, false)
		case OnceRenew:
			return s.renewed(in, o, at, delay)
		case onceReplay:
			return s.replayed(in, o, at)
		case OnceComplete:
			return s.completed(in, o, at, delay)
		case OnceAbandon:
			return s.abandoned(in, o)
		}
		return nil
	})
	m.delay = delay
	return m
}

// over reports whether the time of the phase may be over by a moment.
func (s *onceState) over(by int64) bool { return s.lo <= by }

// forgotten returns the states in which nothing is known of the work: that it was done is forgotten
// when its retention may be over.
func (s onceState) forgotten(by int64) []onceState {
	if s.phase == OnceAbsent || s.phase == OnceDone && s.over(by) {
		return []onceState{{last: s.last}}
	}
	return nil
}

// under returns the state if a token is that of the turn that is under way, as far as is known.
func (s onceState) under(token uint64) (onceState, bool) {
	switch {
	case s.phase != OnceUnderWay:
	case s.token == token:
		return s, true
	case s.token == 0 && token > s.last:
		s.token, s.last = token, token
		return s, true
	}
	return s, false
}

// begun: nobody's lease runs, and no result is kept.
func (s onceState) begun(in OnceInput, token uint64, at step, delay int64) []onceState {
	if token != 0 && token <= s.last || s.phase != OnceAbsent && !s.over(at.ret) {
		return nil
	}
	next := onceState{phase: OnceUnderWay, token: token, last: max(token, s.last), lo: at.call + at.drift.least(in.TTL), hi: math.MaxInt64}
	if at.ret != Never {
		next.hi = late(at.ret, at.drift.most(in.TTL)+delay)
	}
	return []onceState{next}
}

// shows: how far the work is. One that is told that another has the turn is told so while its
// lease runs.
func (s onceState) shows(o OnceOutput, at step, busy bool) []onceState {
	switch o.Phase {
	case OnceAbsent:
		return s.forgotten(at.ret)
	case OnceDone:
		if s.phase != OnceDone || s.result != o.Result || s.token != 0 && s.token != o.Token || s.hi < at.call {
			return nil
		}
		return []onceState{s}
	}
	is, ok := s.under(o.Token)
	switch {
	case !ok, (busy || o.TTL > 0) && is.hi < at.call, !busy && o.TTL == 0 && !is.over(at.ret):
		return nil
	}
	return []onceState{is}
}

// renewed: the token is that of the turn, whose lease does not get shorter.
func (s onceState) renewed(in OnceInput, o OnceOutput, at step, delay int64) []onceState {
	is, ok := s.under(in.Token)
	switch {
	case !o.OK && ok && s.token != 0, o.OK && !ok:
		return nil
	case !o.OK:
		return []onceState{s}
	}
	is.lo, is.hi = max(is.lo, at.call+at.drift.least(in.TTL)), max(is.hi, late(at.ret, at.drift.most(in.TTL)+delay))
	return []onceState{is}
}

// replayed: what a retry is told of the turn that its first attempt got.
func (s onceState) replayed(in OnceInput, o OnceOutput, at step) []onceState {
	is, ok := s.under(in.Token)
	switch {
	case o.OK && (!ok || is.hi < at.call):
		return nil
	case !o.OK && ok && s.token != 0 && !is.over(at.ret):
		return nil
	case o.OK:
		return []onceState{is}
	}
	return []onceState{s}
}

// completed: the token is that of the turn, or has completed the work before.
func (s onceState) completed(in OnceInput, o OnceOutput, at step, delay int64) (all []onceState) {
	is, ok := s.under(in.Token)
	before := s.phase == OnceDone && (s.token == in.Token || s.token == 0)
	switch {
	case o.OK && ok:
		is.phase, is.result, is.lo, is.hi = OnceDone, in.Result, at.call+at.drift.least(in.Keep), late(at.ret, at.drift.most(in.Keep)+delay)
		return []onceState{is}
	case o.OK && before && s.hi >= at.call:
		return []onceState{s}
	case o.OK, ok && s.token != 0, before && s.token != 0 && !s.over(at.ret):
		return nil
	}
	return []onceState{s}
}

func (s onceState) abandoned(in OnceInput, o OnceOutput) []onceState {
	is, ok := s.under(in.Token)
	switch {
	case o.OK && ok:
		return []onceState{{last: is.last}}
	case o.OK, ok && s.token != 0:
		return nil
	}
	return []onceState{s}
}

// lost returns what may follow a call whose answer was lost, done or not.
func (s onceState) lost(in OnceInput, at step) []onceState {
	all := []onceState{s}
	is, ok := s.under(in.Token)
	switch in.Op {
	case OnceBegin:
		if s.phase != OnceDone || s.lo <= late(at.call, lostMost) {
			all = append(all, onceState{phase: OnceUnderWay, last: s.last, lo: at.call + at.drift.least(in.TTL), hi: math.MaxInt64})
		}
	case OnceRenew:
		if ok {
			is.hi = math.MaxInt64
			all = append(all, is)
		}
	case OnceComplete:
		if ok {
			is.phase, is.result, is.lo, is.hi = OnceDone, in.Result, at.call+at.drift.least(in.Keep), math.MaxInt64
			all = append(all, is)
		}
	case OnceAbandon:
		if ok {
			all = append(all, onceState{last: is.last})
		}
	}
	return all
}
