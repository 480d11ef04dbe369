package owner

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/keystead/keystead/owner/limit"
)

// forced is a limit by package limit, which knows when its override ends.
type forced struct {
	slid
	o       limit.Override
	there   bool
	callers limit.Rate
}

func (m *forced) repace(to limit.Rate, at int64) {
	m.State, m.marks = m.State.Repace(to, slices.Clone(m.marks), at, 0, 0)
}

func (m *forced) at(now int64) {
	if m.there && m.o.Over(now) {
		m.repace(m.callers, m.o.Until)
		m.there = false
	}
}

func (m *forced) check(op limit.Op, now int64) limit.Result {
	if m.at(now); !op.Peek {
		m.callers = op.Rate()
	}
	if m.there {
		m.o.Apply(&op)
	}
	return m.apply(op, now)
}

func (m *forced) clone() *forced {
	c := *m
	c.marks = slices.Clone(m.marks)
	return &c
}

// judge reports what is wrong with the times that are told of a check that was just done.
func (m *forced) judge(op limit.Op, now int64, res limit.Result) error {
	if m.State.Algorithm != op.Algorithm || m.callers != op.Rate() {
		return nil // a peek, as if it were otherwise
	}
	op.Peek = true
	if again := res.RetryAfter; again > 0 && again < math.MaxInt64/2 {
		if !m.clone().check(op, now+again).Allowed {
			return fmt.Errorf("not allowed after %d", again)
		}
		if m.clone().check(op, now+again-1).Allowed {
			return fmt.Errorf("allowed sooner than after %d", again)
		}
	}
	if back := res.ResetAfter; back > 0 && back < math.MaxInt64/2 {
		for _, sooner := range []int64{0, 1} {
			c, then := m.clone(), now+back-sooner
			if c.at(then); (c.Used(c.marks, then) == 0) != (sooner == 0) {
				return fmt.Errorf("%d are spent %d sooner than after %d", c.Used(c.marks, then), sooner, back)
			}
		}
	}
	return nil
}

// Whatever is set, cleared, checked and swept, a store decides as the core does by the parameters
// that are in force, tells times that know of the end of an override, and so does a copy that follows
// it; nothing is left of overrides that are over.
func TestOverridesAgainstCore(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		f := follower{t: t, to: must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1}, 0))}
		s := must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1, Sink: &f}, 0))
		models := map[Ref]*forced{}
		now := int64(0)
		for range 300 {
			now += []int64{0, 1, second / 40, second / 7, second / 3, 2 * second}[rng.IntN(6)]
			ref := Ref{Key: fmt.Sprint("key ", rng.IntN(3))}
			if models[ref] == nil {
				models[ref] = &forced{}
			}
			m := models[ref]
			switch rng.IntN(12) {
			case 0:
				lasts := []int64{0, 1, second / 3, 3 * second}[rng.IntN(4)]
				o := over(1+rng.Uint64N(20), []int64{second, 7 * second}[rng.IntN(2)])
				m.at(now)
				a := must(s.SetOverride(now, ref, noID, o, lasts))
				if a.Existed != m.there {
					t.Fatalf("seed %d at %d: %+v", seed, now, a)
				}
				m.repace(o.Rate(), now)
				m.o, m.there = a.Override, true
			case 1:
				m.at(now)
				if a := must(s.ClearOverride(now, ref, noID)); a.Existed != m.there {
					t.Fatalf("seed %d at %d: %+v", seed, now, a)
				}
				if m.there {
					m.repace(m.callers, now)
				}
				m.there = false
			}
			op := perSecond([]uint64{3, 9}[rng.IntN(2)])
			if op.Algorithm = []limit.Algorithm{limit.TokenBucket, limit.FixedWindow, limit.SlidingWindow, limit.LeakyBucket}[rng.IntN(4)]; op.Algorithm == limit.LeakyBucket {
				op.MaxDelay = rng.Int64N(second)
			}
			op.Peek = rng.IntN(4) == 0
			want := m.check(op, now)
			got := must(s.Check(now, ref, noID, op))
			told := got.Result
			if m.there && m.o.Until != limit.Forever { // they may come later, or sooner: see judge
				want.RetryAfter, want.ResetAfter, told.RetryAfter, told.ResetAfter = 0, 0, 0, 0
			}
			if told != want || got.Override != 0 != m.there {
				t.Fatalf("seed %d: %+v under %+v at %d: %+v, want %+v", seed, op, m.o, now, got, want)
			}
			if err := m.judge(op, now, got.Result); err != nil {
				t.Fatalf("seed %d: %+v under %+v at %d: %+v: %v", seed, op, m.o, now, got, err)
			}
			look := peekAt(op)
			if a, b := must(s.Check(now, ref, noID, look)), must(f.to.Check(now, ref, noID, look)); a.Result != b.Result || a.Override != b.Override {
				t.Fatalf("seed %d: at %d: %+v, the copy %+v", seed, now, a, b)
			}
			if rng.IntN(10) == 0 {
				sweepAll(s, now)
			}
		}
		for i := range 3 {
			must(s.ClearOverride(now, Ref{Key: fmt.Sprint("key ", i)}, noID))
		}
		for _, x := range []*Store{s, f.to} {
			if sweepAll(x, now+70*second); held(x) != 0 || x.shards[0].overs.Len() != 0 {
				t.Fatalf("%d objects and %d overrides are left", held(x), x.shards[0].overs.Len())
			}
		}
	}
}

// ideal is a bucket in fractions, whose rate is that of what is in force at each moment.
type ideal struct {
	level   *big.Rat
	at      int64
	callers uint64 // a second
	o       limit.Override
	there   bool
}

func (m *ideal) drain(to int64, rate uint64) {
	m.level.Sub(m.level, new(big.Rat).Mul(big.NewRat(to-m.at, second), big.NewRat(int64(rate), 1)))
	if m.level.Sign() < 0 {
		m.level.SetInt64(0)
	}
	m.at = to
}

func (m *ideal) pass(now int64) {
	if m.there {
		m.drain(min(now, m.o.Until), m.o.Limit)
		m.there = now < m.o.Until
	}
	m.drain(now, m.callers)
}

// spent returns how many tokens are, at a moment, if nobody spends until then.
func (m *ideal) spent(now int64) uint64 {
	c := *m
	c.level = new(big.Rat).Set(m.level)
	c.pass(now)
	up := new(big.Int).Add(c.level.Num(), new(big.Int).Sub(c.level.Denom(), big.NewInt(1)))
	return up.Div(up, c.level.Denom()).Uint64()
}

// An override sets the rate of a bucket from the nanosecond at which it is set to that of its end, whenever
// anybody looks, and in all its owners: what is admitted, what is left and what is told of later is that of a
// bucket in fractions.
func TestOverrideEndsAgainstIdeal(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		f := follower{t: t, to: must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1}, 0))}
		s := must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1, Sink: &f}, 0))
		m := &ideal{level: new(big.Rat), callers: 1}
		now := int64(0)
		for range 200 {
			now += []int64{0, 1, second / 7, second, 5 * second, 40 * second}[rng.IntN(6)]
			switch rng.IntN(10) {
			case 0, 1:
				o, lasts := over([]uint64{1, 5, 1000}[rng.IntN(3)], second), []int64{0, 1, second, 10 * second}[rng.IntN(4)]
				m.pass(now)
				m.o, m.there = must(s.SetOverride(now, door, noID, o, lasts)).Override, true
			case 2:
				m.pass(now)
				must(s.ClearOverride(now, door, noID))
				m.there = false
			case 3:
				sweepAll(s, now)
			case 4: // the owner dies, and its standby takes over
				s, f.to = f.to, must(New(Config{Rule: &testRule{epoch: 1}, Shards: 1}, 0))
				s.cfg.Sink = &f
				s.Export(func() int64 { return now }, always, func(r *Record, at int64) bool {
					return f.to.Install(at, r, always) == nil
				}, func() bool { return true })
			}
			op := perSecond([]uint64{2, 20}[rng.IntN(2)])
			if op.Cost = 1 + rng.Uint64N(op.Limit); rng.IntN(4) == 0 {
				op.Cost, op.Overdraft = op.Cost*40, true
			} else {
				op.Peek = rng.IntN(3) == 0
			}
			m.pass(now)
			capacity := op.Limit
			if m.there {
				capacity = m.o.Limit
			}
			was := m.callers
			m.callers = op.Limit
			want := op.Overdraft || m.spent(now)+op.Cost <= capacity
			if want && !op.Peek {
				m.level.Add(m.level, new(big.Rat).SetInt64(int64(op.Cost)))
			}
			got := must(s.Check(now, door, noID, op))
			if left := capacity - min(capacity, m.spent(now)); got.Allowed != want || got.Remaining != left || got.Debt != m.spent(now)-min(capacity, m.spent(now)) {
				t.Fatalf("seed %d: %+v under %+v (%v) at %d: %+v, want %v and %d spent", seed, op, m.o, m.there, now, got, want, m.spent(now))
			}
			if back := got.ResetAfter; back < math.MaxInt64 && (m.spent(now+back) != 0 || back > 0 && m.spent(now+back-1) == 0) {
				t.Fatalf("seed %d: %+v under %+v at %d: %+v: not full then", seed, op, m.o, now, got)
			}
			fits := func(at int64) bool {
				of := op.Limit
				if m.there && at < m.o.Until {
					of = m.o.Limit
				}
				return m.spent(at)+op.Cost <= of
			}
			if again := got.RetryAfter; !want && again < math.MaxInt64 && (!fits(now+again) || fits(now+again-1)) {
				t.Fatalf("seed %d: %+v under %+v at %d: %+v: not allowed then", seed, op, m.o, now, got)
			}
			if op.Peek {
				m.callers = was
			}
		}
	}
}

// What a customer saw: an override is over, and what was spent comes back by the caller's rate from its
// end on, not from the next check that spends. So it does when it is cleared.
func TestOverrideEndsWhileNobodyLooks(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{limit.TokenBucket, limit.FixedWindow, limit.SlidingWindow} {
		for _, lasts := range []int64{2 * second, 0} {
			s := newStore(t, nil)
			all := limit.Op{Params: limit.Params{Algorithm: algorithm, Limit: 60, Period: 60 * second}, Cost: 60}
			must(s.Check(0, door, noID, all))
			must(s.SetOverride(0, door, noID, over(1, hour), lasts))
			one := all
			one.Cost = 1
			want := 2*second + 60*second
			if algorithm == limit.TokenBucket {
				want = 3 * second // and less than a token came back before
			} else {
				want = 60 * second
			}
			a := must(s.Check(second, door, noID, one))
			if lasts == 0 {
				want = 0
				must(s.ClearOverride(2*second, door, noID))
			}
			if a.Allowed || lasts != 0 && second+a.RetryAfter > want {
				t.Errorf("%d: %+v, want %d", algorithm, a, want)
			}
			if algorithm == limit.TokenBucket {
				if a := must(s.Check(27*second, door, noID, peekAt(one))); a.Remaining != 25 {
					t.Errorf("%+v", a)
				}
				one.Cost = 25
				if a := must(s.Check(27*second, door, noID, one)); !a.Allowed {
					t.Errorf("%+v", a)
				}
				continue
			}
			if a := must(s.Check(60*second, door, noID, all)); !a.Allowed {
				t.Errorf("%d: %+v", algorithm, a)
			}
		}
	}
	s := newStore(t, nil)
	must(s.SetOverride(0, door, noID, over(1000, 60*second), 3*second))
	many := limit.Op{Params: limit.Params{Limit: 20, Period: 60 * second}, Cost: 1000}
	if a := must(s.Check(0, door, noID, many)); !a.Allowed {
		t.Fatalf("%+v", a)
	}
	many.Cost = 1
	if sweepAll(s, 61*second); held(s) != 1 {
		t.Error("it is forgotten as of the rate of an override that is over")
	}
	if a := must(s.Check(63*second, door, noID, peekAt(many))); a.Debt != 910 { // 50 by the override, 20 a minute since
		t.Errorf("%+v", a)
	}
}

// A demand knows of the end of an override, too: what is told of it, what an estimate reserves then, and the
// rate by which what it has spent goes on.
func TestDemandsUnderAnOverrideThatEnds(t *testing.T) {
	s := newStore(t, nil)
	must(s.SetOverride(0, under7("a"), noID, over(1, hour), 2*second))
	one := bucketOf("a", 1, 60, 60*second)
	if a := admit(t, s, 0, noID, 0, one); !a.Admitted {
		t.Fatalf("%+v", a)
	}
	if a := admit(t, s, second, noID, 0, one); a.Admitted || a.RetryAfter != second || a.Demands[0].ResetAfter != 2*second-555555 {
		t.Errorf("%+v", a)
	}
	estimate := bucketOf("a", 60, 60, 60*second)
	estimate.Clamp = 50
	if a := admit(t, s, second, id(1), second, estimate); a.Admitted || a.Demands[0].Reserved != 1 || a.RetryAfter != second {
		t.Errorf("an estimate: %+v", a)
	}
	if a := admit(t, s, second, noID, 0, bucketOf("a", 61, 60, 60*second)); a.Admitted || a.RetryAfter != math.MaxInt64 {
		t.Errorf("more than there is then: %+v", a)
	}
	if a := must(s.Check(3*second, under7("a"), noID, limit.Op{Params: one.Params, Cost: 1, Peek: true})); a.Remaining != 60 || a.ResetAfter != 0 {
		t.Errorf("a second after its end: %+v", a)
	}
}
