package limit

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// model is a limit as one would write it down: a level of spent tokens, which
// sinks with time, as a fraction of unlimited precision.
type model struct {
	params Params
	level  *big.Rat // never negative; 0 = nobody ever hit
	at     int64    // when it was so; start of the window
}

func rat(n, d uint64) *big.Rat {
	return new(big.Rat).SetFrac(new(big.Int).SetUint64(n), new(big.Int).SetUint64(d))
}

func whole(n uint64) *big.Rat { return rat(n, 1) }

// floor rounds down; ceil rounds up.
func floor(r *big.Rat) *big.Int { return new(big.Int).Div(r.Num(), r.Denom()) }

func ceil(r *big.Rat) *big.Int {
	n := floor(new(big.Rat).Neg(r))
	return n.Neg(n)
}

func mul(a, b *big.Rat) *big.Rat { return new(big.Rat).Mul(a, b) }
func add(a, b *big.Rat) *big.Rat { return new(big.Rat).Add(a, b) }
func sub(a, b *big.Rat) *big.Rat { return new(big.Rat).Sub(a, b) }

func between(from, to int64) *big.Rat {
	return sub(new(big.Rat).SetInt64(to), new(big.Rat).SetInt64(from))
}

// modelOf reads a state.
func modelOf(s State) model {
	m := model{level: new(big.Rat), at: s.At, params: Params{Algorithm: s.Algorithm, Limit: s.Limit, Period: s.Period}}
	if s.Spent > 0 {
		m.level = sub(whole(s.Spent), rat(s.Carry, uint64(s.Period)))
	}
	return m
}

// after returns the model at a later moment.
func (m model) after(now int64) model {
	if m.level.Sign() == 0 {
		return m
	}
	passed := between(m.at, now)
	if m.params.Algorithm == FixedWindow {
		if passed.Cmp(new(big.Rat).SetInt64(m.params.Period)) >= 0 {
			m.level = new(big.Rat)
		}
		return m
	}
	m.at = now
	m.level = sub(m.level, mul(passed, rat(m.params.Limit, uint64(m.params.Period))))
	if m.level.Sign() <= 0 {
		m.level = new(big.Rat)
	}
	return m
}

// under returns the model with other parameters from now on.
func (m model) under(p Params, now int64) model {
	old := m.params
	m.params = p
	spent := ceil(m.level)
	switch {
	case m.level.Sign() == 0:
		m.at = now
	case old.Algorithm != p.Algorithm:
		m.at, m.level = now, new(big.Rat).SetInt(spent)
	case p.Algorithm == FixedWindow:
		if between(m.at, now).Cmp(new(big.Rat).SetInt64(p.Period)) >= 0 {
			m.at = now
		}
	default:
		period := whole(uint64(p.Period))
		part := mul(sub(new(big.Rat).SetInt(spent), m.level), period)
		m.level = sub(new(big.Rat).SetInt(spent), new(big.Rat).Quo(new(big.Rat).SetInt(floor(part)), period))
	}
	return m
}

// until returns the time from now until the level is at most that.
func (m model) until(level *big.Rat, now int64) int64 {
	if m.level.Cmp(level) <= 0 {
		return 0
	}
	var wait *big.Int
	if m.params.Algorithm == FixedWindow {
		wait = ceil(sub(new(big.Rat).SetInt64(m.params.Period), between(m.at, now)))
	} else {
		wait = ceil(mul(sub(m.level, level), rat(uint64(m.params.Period), m.params.Limit)))
	}
	if !wait.IsInt64() {
		return math.MaxInt64
	}
	return wait.Int64()
}

// check returns what Apply is to answer, and the model after it.
func (m model) check(op Op, now int64) (model, Result) {
	if m.level.Sign() > 0 {
		now = max(now, m.at)
	}
	was := m
	m = m.after(now).under(op.Params, now)
	capacity := whole(op.Capacity())
	res := Result{Capacity: op.Capacity(), Allowed: op.Refund != 0 || op.Overdraft || add(m.level, whole(op.Cost)).Cmp(capacity) <= 0}
	if op.Refund != 0 {
		if m.level = sub(m.level, whole(op.Refund)); m.level.Sign() < 0 {
			m.level = new(big.Rat)
		}
	} else if !res.Allowed {
		res.RetryAfter = m.until(sub(capacity, whole(op.Cost)), now)
	} else if !op.Peek {
		most := add(whole(MaxLimit), sub(m.level, new(big.Rat).SetInt(ceil(m.level)))) // that is remembered
		if m.level = add(m.level, whole(op.Cost)); m.level.Cmp(most) > 0 {
			m.level = most
		}
	}
	if m.level.Cmp(capacity) < 0 {
		res.Remaining = floor(sub(capacity, m.level)).Uint64()
	} else {
		res.Debt = ceil(sub(m.level, capacity)).Uint64()
	}
	if op.Overdraft && res.Remaining == 0 {
		res.RetryAfter = m.until(sub(capacity, whole(1)), now)
	}
	res.ResetAfter = m.until(new(big.Rat), now)
	if op.Peek {
		return was, res
	}
	return m, res
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkAgainstModel applies op and checks everything that there is to check of
// one step.
func checkAgainstModel(t failer, s State, op Op, now int64) (State, Result) {
	t.Helper()
	next, res, changed := Apply(s, op, now)
	if err := next.Valid(); err != nil {
		t.Fatalf("%+v %+v at %d: %v", s, op, now, err)
	}
	m, want := modelOf(s).check(op, now)
	if res != want {
		t.Fatalf("%+v %+v at %d:\n got %+v\nwant %+v", s, op, now, res, want)
	}
	same := s.Algorithm == op.Algorithm && s.Limit == op.Limit && s.Period == op.Period
	would := !op.Peek && (res.Allowed || !same)
	if op.Refund != 0 {
		would = !s.Absent(now)
	}
	if changed != would || !changed && next != s {
		t.Fatalf("%+v %+v at %d: changed %v to %+v", s, op, now, changed, next)
	}
	if got := modelOf(next); changed && (next != State{} && got.at != m.at || got.level.Cmp(m.level) != 0) {
		t.Fatalf("%+v %+v at %d: %+v, want level %s at %d", s, op, now, next, m.level, m.at)
	}
	if s.Spent != 0 {
		now = max(now, s.At)
	}
	// A peek, or a denied hit, with other parameters speaks of a state that has them.
	if op.Peek && !same {
		hit := op
		hit.Peek = false
		next, res, _ = Apply(s, hit, now)
	}
	checkTimes(t, next, op, res, now)
	return next, res
}

// checkTimes checks that RetryAfter and ResetAfter are exact, by trying.
func checkTimes(t failer, s State, op Op, res Result, now int64) {
	t.Helper()
	try := func(after int64) bool {
		probe := op
		if probe.Peek = true; op.Overdraft {
			probe.Cost, probe.Overdraft = 1, false
		}
		_, r, _ := Apply(s, probe, now+after)
		return r.Allowed
	}
	there := func(after int64) bool { return now <= math.MaxInt64-after }
	if (!res.Allowed || op.Overdraft && res.RetryAfter != 0) && there(res.RetryAfter) && res.RetryAfter < math.MaxInt64 && (try(res.RetryAfter-1) || !try(res.RetryAfter)) {
		t.Fatalf("%+v %+v at %d: retry after %d is not the first moment that passes", s, op, now, res.RetryAfter)
	}
	if res.ResetAfter == 0 && s.Absent(now) || res.ResetAfter == math.MaxInt64 || !there(res.ResetAfter) {
		return
	}
	if full := now + res.ResetAfter; !s.Absent(full) || s.Absent(full-1) || s.AbsentAt() != full {
		t.Fatalf("%+v at %d: reset after %d, absent at %d", s, now, res.ResetAfter, s.AbsentAt())
	}
}

var periods = rapid.OneOf(rapid.SampledFrom([]int64{MinPeriod, second, 60 * second, 7_919, MaxPeriod}), rapid.Int64Range(MinPeriod, MaxPeriod))

var tokens = rapid.OneOf(rapid.Uint64Range(1, 50), rapid.Uint64Range(1, MaxLimit), rapid.SampledFrom([]uint64{MaxLimit}))

var buckets = rapid.Custom(func(t *rapid.T) Params {
	p := Params{Limit: tokens.Draw(t, "limit"), Period: periods.Draw(t, "period")}
	if rapid.Bool().Draw(t, "own burst") {
		p.Burst = tokens.Draw(t, "burst")
	}
	return p
})

var windows = rapid.Custom(func(t *rapid.T) Params {
	return Params{Algorithm: FixedWindow, Limit: tokens.Draw(t, "limit"), Period: periods.Draw(t, "period")}
})

// pause is a time in which a few tokens come back, or many.
func pause(t *rapid.T, p Params) int64 {
	token := p.Period / int64(min(p.Limit, uint64(p.Period)))
	return rapid.OneOf(rapid.Int64Range(0, 3*token+3), rapid.Int64Range(0, p.Period)).Draw(t, "pause")
}

func anOp(t *rapid.T, p Params) Op {
	most := p.Capacity()
	cost := rapid.OneOf(rapid.Uint64Range(1, min(3, most)), rapid.Uint64Range(1, most), rapid.SampledFrom([]uint64{most})).Draw(t, "cost")
	return Op{Params: p, Cost: cost, Peek: rapid.IntRange(0, 3).Draw(t, "peek") == 0}
}

// anOverdraft is an operation that may be an overdraft, of more than there can be among them.
func anOverdraft(t *rapid.T, p Params) Op {
	if rapid.IntRange(0, 2).Draw(t, "overdraft") != 0 {
		return anOp(t, p)
	}
	cost := rapid.OneOf(rapid.Uint64Range(1, 2*min(p.Capacity(), MaxLimit/2)), tokens).Draw(t, "owed")
	return Op{Params: p, Cost: cost, Overdraft: true}
}

// Whatever comes, changed parameters, algorithms and a clock that goes back
// among it, the state, the answer and its times are those of the model.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choices := rapid.SliceOfN(rapid.OneOf(buckets, windows), 1, 3).Draw(t, "choices")
		var s State
		now := rapid.Int64Range(-1e15, 1e15).Draw(t, "start")
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			p := rapid.SampledFrom(choices).Draw(t, "params")
			if step := pause(t, p); rapid.IntRange(0, 7).Draw(t, "back") == 0 {
				now -= step
			} else {
				now += step
			}
			s, _ = checkAgainstModel(t, s, anOverdraft(t, p), now)
		}
	})
}

// Between any two moments a bucket admits at most burst + limit·t/period.
func TestBucketNeverAdmitsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := buckets.Draw(t, "params")
		type hit struct {
			at   int64
			cost uint64
		}
		var hits []hit
		var s State
		var now int64
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += pause(t, p)
			op := anOp(t, p)
			next, res, _ := Apply(s, op, now)
			if s = next; res.Allowed && !op.Peek {
				hits = append(hits, hit{now, op.Cost})
			}
		}
		for i := range hits {
			admitted := new(big.Rat)
			for _, h := range hits[i:] {
				admitted = add(admitted, whole(h.cost))
				bound := add(whole(p.Capacity()), mul(between(hits[i].at, h.at), rat(p.Limit, uint64(p.Period))))
				if admitted.Cmp(bound) > 0 {
					t.Fatalf("%+v: admitted %s from %d to %d, at most %s", p, admitted, hits[i].at, h.at, bound.FloatString(3))
				}
			}
		}
	})
}

// Between any two moments, whatever the parameters become, what is admitted
// stays within the largest burst and what the largest rate brings back.
func TestChangedParametersGiveNothingBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choices := rapid.SliceOfN(buckets, 1, 4).Draw(t, "choices")
		burst, rate := new(big.Rat), new(big.Rat)
		for _, p := range choices {
			if c := whole(p.Capacity()); c.Cmp(burst) > 0 {
				burst = c
			}
			if r := rat(p.Limit, uint64(p.Period)); r.Cmp(rate) > 0 {
				rate = r
			}
		}
		var s State
		var now int64
		room := burst // of a bucket that has the largest of both
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			p := rapid.SampledFrom(choices).Draw(t, "params")
			step := pause(t, p)
			now += step
			if room = add(room, mul(between(0, step), rate)); room.Cmp(burst) > 0 {
				room = burst
			}
			op := anOp(t, p)
			next, res, _ := Apply(s, op, now)
			if s = next; res.Allowed && !op.Peek {
				if room = sub(room, whole(op.Cost)); room.Sign() < 0 {
					t.Fatalf("admitted %s more than the largest of all bursts and rates", room)
				}
			}
		}
	})
}

// Neither looking (peeks, with any parameters) nor being denied changes what is
// answered later.
func TestLookingChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choices := rapid.SliceOfN(rapid.OneOf(buckets, windows), 1, 3).Draw(t, "choices")
		var quiet, watched State
		var now int64
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			p := rapid.SampledFrom(choices).Draw(t, "params")
			step := pause(t, p)
			for range rapid.IntRange(0, 3).Draw(t, "looks") {
				look := anOp(t, rapid.SampledFrom(choices).Draw(t, "looks with"))
				then := now + rapid.Int64Range(0, step).Draw(t, "looks after")
				same := look.Algorithm == watched.Algorithm && look.Limit == watched.Limit && look.Period == watched.Period
				if _, res, _ := Apply(watched, look, then); res.Allowed || !same {
					look.Peek = true
				}
				watched, _, _ = Apply(watched, look, then)
			}
			now += step
			op := anOp(t, p)
			a, resA, _ := Apply(quiet, op, now)
			b, resB, _ := Apply(watched, op, now)
			if a != b || resA != resB {
				t.Fatalf("%+v at %d:\n  quiet %+v %+v\nwatched %+v %+v", op, now, a, resA, b, resB)
			}
			quiet, watched = a, b
		}
	})
}

// What comes back in two steps is what comes back in one, stored in between or
// not: nothing is rounded.
func TestStepsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := buckets.Draw(t, "params")
		s := State{TokenBucket, 0, 0, tokens.Draw(t, "spent"), rapid.Uint64Range(0, uint64(p.Period)-1).Draw(t, "carry"), p.Limit, p.Period}
		inSteps := s
		var now int64
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now += pause(t, p)
			l := inSteps.level(now)
			if l != s.level(now) {
				t.Fatalf("at %d: %+v in steps, %+v at once", now, l, s.level(now))
			}
			if l.spent == 0 {
				return
			}
			inSteps.At, inSteps.Spent, inSteps.Carry = l.at, l.spent, l.carry
		}
	})
}
