package counter

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// model is a map of counters as one would write it down: unlimited integers, and
// a moment at which each is forgotten.
type model map[string]*entry

type entry struct {
	value   *big.Int
	version uint64
	changed *big.Int
	ttl     int64
}

const key = "k"

// modelOf reads a state.
func modelOf(s State) model {
	m := model{}
	if s.Version != 0 {
		m[key] = &entry{big.NewInt(s.Value), s.Version, big.NewInt(s.At), s.IdleTTL}
	}
	return m
}

// expire forgets the counter if its time is over.
func (m model) expire(now int64) {
	e := m[key]
	if e == nil || e.ttl == 0 {
		return
	}
	if deadline := new(big.Int).Add(e.changed, big.NewInt(e.ttl)); deadline.Cmp(big.NewInt(now)) <= 0 {
		delete(m, key)
	}
}

// set changes the counter.
func (m model) set(value *big.Int, version uint64, ttl, now int64) {
	moment := big.NewInt(now)
	if e := m[key]; e != nil && e.changed.Cmp(moment) > 0 {
		moment = e.changed
	}
	m[key] = &entry{value, version, moment, ttl}
}

func (m model) read() (value *big.Int, version uint64) {
	if e := m[key]; e != nil {
		return e.value, e.version
	}
	return new(big.Int), 0
}

// state returns the model as a State.
func (m model) state() State {
	if e := m[key]; e != nil {
		return State{e.value.Int64(), e.version, e.changed.Int64(), e.ttl}
	}
	return State{}
}

// add says why an add is refused, or does it.
func (m model) add(op AddOp, version uint64, now int64) Refusal {
	m.expire(now)
	value, exists := m.read()
	sum := new(big.Int).Add(value, big.NewInt(op.Delta))
	switch {
	case op.Delta > 0 && op.HasMax && sum.Cmp(big.NewInt(op.Max)) > 0:
		return AboveMax
	case op.Delta < 0 && op.HasMin && sum.Cmp(big.NewInt(op.Min)) < 0:
		return BelowMin
	case !sum.IsInt64():
		return Overflow
	}
	if op.Delta == 0 {
		before := m.state()
		if exists == 0 {
			return None
		}
		m.set(sum, before.Version, op.IdleTTL, now)
		if after := m.state(); op.IdleTTL == 0 && before.IdleTTL == 0 || after == before {
			m[key] = modelOf(before)[key] // the clock of no TTL need not start anew
			return None
		}
	}
	m.set(sum, version, op.IdleTTL, now)
	return None
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// step checks what the two have in common: state, value, version and changed.
func step(t failer, m model, before, next State, changed bool, value int64, version uint64, now int64, op any) State {
	t.Helper()
	v, ver := m.read()
	if next != m.state() || value != v.Int64() || version != ver {
		t.Fatalf("%+v, %+v at %d: %+v, answer %d at version %d, want %+v", before, op, now, next, value, version, m.state())
	}
	if changed != (next != before.Live(now)) || changed && next.Version <= before.Version {
		t.Fatalf("%+v, %+v at %d: changed %v to %+v", before, op, now, changed, next)
	}
	if value, version := Get(before, now); value != before.Live(now).Value || version != before.Live(now).Version {
		t.Fatalf("%+v at %d reads %d at version %d", before, now, value, version)
	}
	return next
}

func checkAdd(t failer, s State, op AddOp, version uint64, now int64) State {
	t.Helper()
	m := modelOf(s)
	want := m.add(op, version, now)
	next, res, changed := Add(s, op, version, now)
	if res.Refusal != want || res.Applied != (want == None) {
		t.Fatalf("%+v, %+v at %d: %+v, want refusal %d", s, op, now, res, want)
	}
	return step(t, m, s, next, changed, res.Value, res.Version, now, op)
}

func checkCompareAndSet(t failer, s State, op CompareAndSetOp, version uint64, now int64) State {
	t.Helper()
	m := modelOf(s)
	m.expire(now)
	_, have := m.read()
	if have == op.Version {
		m.set(big.NewInt(op.Value), version, op.IdleTTL, now)
	}
	next, res, changed := CompareAndSet(s, op, version, now)
	if res.Applied != (have == op.Version) {
		t.Fatalf("%+v, %+v at %d: %+v", s, op, now, res)
	}
	return step(t, m, s, next, changed, res.Value, res.Version, now, op)
}

func checkReset(t failer, s State, version uint64, now int64) State {
	t.Helper()
	m := modelOf(s)
	m.expire(now)
	previous, have := m.read()
	if have != 0 {
		m.set(new(big.Int), version, m[key].ttl, now)
	}
	next, res, changed := Reset(s, version, now)
	if res.Previous != previous.Int64() {
		t.Fatalf("%+v, reset at %d: %+v", s, now, res)
	}
	return step(t, m, s, next, changed, 0, res.Version, now, "reset")
}

// Whatever comes, a clock that goes back among it, the counter is that of the
// model.
func TestAgainstModel(t *testing.T) {
	numbers := rapid.OneOf(rapid.Int64Range(-5, 5), rapid.Int64(),
		rapid.SampledFrom([]int64{math.MaxInt64, math.MinInt64, math.MaxInt64 - 1, math.MinInt64 + 1}))
	ttls := rapid.SampledFrom([]int64{0, MinIdleTTL, 5 * MinIdleTTL, MaxIdleTTL})
	pauses := rapid.OneOf(rapid.Int64Range(-MinIdleTTL, 2*MinIdleTTL), rapid.SampledFrom([]int64{0, MinIdleTTL - 1, MinIdleTTL, 5 * MinIdleTTL}))
	rapid.Check(t, func(t *rapid.T) {
		var s State
		var now int64
		for version := range uint64(rapid.IntRange(1, 50).Draw(t, "steps")) {
			version += 1
			now += pauses.Draw(t, "pause")
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0, 1, 2:
				op := AddOp{Delta: numbers.Draw(t, "delta"), IdleTTL: ttls.Draw(t, "ttl")}
				if op.HasMin = rapid.Bool().Draw(t, "has min"); op.HasMin {
					op.Min = numbers.Draw(t, "min")
				}
				if op.HasMax = rapid.Bool().Draw(t, "has max"); op.HasMax {
					op.Max = numbers.Draw(t, "max")
				}
				if op.Validate() != nil {
					op.Min, op.Max = op.Max, op.Min
				}
				s = checkAdd(t, s, op, version, now)
			case 3:
				expected := rapid.SampledFrom([]uint64{0, s.Version, version}).Draw(t, "version")
				s = checkCompareAndSet(t, s, CompareAndSetOp{numbers.Draw(t, "value"), expected, ttls.Draw(t, "ttl")}, version, now)
			case 4:
				s = checkReset(t, s, version, now)
			}
		}
	})
}

// A refused add or set changes nothing.
func TestRefusedChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := State{rapid.Int64().Draw(t, "value"), 7, 0, MinIdleTTL}
		now := rapid.Int64Range(0, MinIdleTTL-1).Draw(t, "now")
		high := rapid.Int64Range(math.MinInt64, s.Value).Draw(t, "max")
		delta := rapid.Int64Range(1, math.MaxInt64).Draw(t, "delta")
		if next, _, changed := Add(s, AddOp{Delta: delta, Max: high, HasMax: true}, 8, now); changed || next != s {
			t.Fatalf("refused add changed %+v to %+v", s, next)
		}
		if next, _, changed := CompareAndSet(s, CompareAndSetOp{Value: delta, Version: 6}, 8, now); changed || next != s {
			t.Fatalf("refused set changed %+v to %+v", s, next)
		}
	})
}

// garbage makes a state as a decoder might: anything, but for a version without
// which there is no counter and one above which there is none.
func garbage(value int64, version uint64, at, ttl int64) State {
	if version == 0 {
		return State{}
	}
	return State{value, min(version, math.MaxUint64-1), at, fold(ttl)}
}

// fold makes an idle TTL in range.
func fold(ttl int64) int64 {
	if ttl == 0 {
		return 0
	}
	return MinIdleTTL + int64(uint64(ttl)%(MaxIdleTTL-MinIdleTTL+1))
}

func FuzzAdd(f *testing.F) {
	f.Add(int64(5), uint64(1), int64(0), int64(0), int64(math.MaxInt64), int64(0), int64(9), true, true, int64(0), int64(1))
	f.Add(int64(math.MinInt64), uint64(1), int64(math.MinInt64), int64(1), int64(math.MinInt64), int64(0), int64(9), false, true, int64(7), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, value int64, version uint64, at, idle, delta, low, high int64, hasLow, hasHigh bool, ttl, now int64) {
		op := AddOp{delta, low, high, hasLow, hasHigh, fold(ttl)}
		if op.Validate() != nil {
			op.Min, op.Max = op.Max, op.Min
		}
		s := garbage(value, version, at, idle)
		checkAdd(t, s, op, s.Version+1, now)
	})
}

func FuzzCompareAndSetAndReset(f *testing.F) {
	f.Add(int64(5), uint64(1), int64(0), int64(0), int64(9), uint64(1), int64(0), int64(1))
	f.Add(int64(5), uint64(1), int64(math.MinInt64), int64(1), int64(9), uint64(0), int64(1), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, value int64, version uint64, at, idle, to int64, expected uint64, ttl, now int64) {
		s := garbage(value, version, at, idle)
		next := checkCompareAndSet(t, s, CompareAndSetOp{to, expected, fold(ttl)}, s.Version+1, now)
		checkReset(t, next, next.Version+1, now)
	})
}
