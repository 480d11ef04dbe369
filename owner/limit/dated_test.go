package limit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/wire"
)

// anyOf decides an operation of any algorithm.
func anyOf(s State, marks []Mark, op Op, now, wall int64) (State, []Mark, Result, bool) {
	switch {
	case op.Algorithm == CalendarWindow:
		next, res, changed := Date(s, marks, op, now, wall)
		if !changed {
			return next, marks, res, false
		}
		return next, nil, res, true
	case op.Dated(&s):
		was := s.Undated(&op, now, wall)
		next, after, res, changed := anyOf(was, nil, op, now, wall)
		if !changed {
			return s, marks, res, false
		}
		return next, after, res, true
	case op.Slides(&s):
		next, after, res, changed := Slide(s, append(make([]Mark, 0, MaxMarks+1), marks...), op, now)
		if !changed {
			return s, marks, res, false
		}
		return next, append([]Mark(nil), after...), res, true
	}
	next, res, changed := Apply(s, op, now)
	return next, marks, res, changed
}

// TestCalendarTranscripts runs testdata/dated:
//
//	ask <limit> <unit> [zone=UTC] [month=] [day=] [carry=] [cost=1] [refund=] [peek] [at=<RFC 3339>]
//	ask <limit>/<period> as=token|fixed|sliding|aligned
//
// at= sets the clock, also back. The moments of the machine go on by as much, or stand.
func TestCalendarTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/dated", func(t *testing.T, path string) {
		var s State
		var marks []Mark
		var now, wall int64
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			op := Op{Params: Params{Algorithm: CalendarWindow}, Cost: 1}
			unit, in, month, day, carry, length := "", "UTC", 0, 0, uint64(0), int64(0)
			for _, a := range d.CmdArgs {
				switch a.Key {
				case "zone":
					in = a.Vals[0]
				case "month":
					month = int(number(t, d, a))
				case "day":
					if len(a.Vals) == 0 {
						unit = "day"
						break
					}
					day = int(number(t, d, a))
				case "week", "year":
					unit = a.Key
				case "carry":
					carry = number(t, d, a)
				case "cost":
					op.Cost = number(t, d, a)
				case "refund":
					op.Refund, op.Cost = number(t, d, a), 0
				case "peek":
					op.Peek = true
				case "at":
					was := wall
					wall = wallOf(t, a.Vals[0])
					now += max(wall-was, 0)
				case "per":
					unit = a.Vals[0]
				case "as":
					op.Algorithm = map[string]Algorithm{"token": TokenBucket, "fixed": FixedWindow, "sliding": SlidingWindow, "aligned": CalendarWindow}[a.Vals[0]]
				default:
					n, period, _ := strings.Cut(a.Key, "/")
					op.Limit, _ = strconv.ParseUint(n, 10, 64)
					if period != "" {
						p, err := time.ParseDuration(period)
						if err != nil {
							d.Fatalf(t, "%v", err)
						}
						length = int64(p)
					}
				}
			}
			switch {
			case op.Algorithm != CalendarWindow:
				op.Period = length
			case length != 0:
				op.Period = int64(aligned(t, time.Duration(length)))
			default:
				op.Period = int64(calendarOf(t, unit, in, month, day))
			}
			if carry != 0 {
				op.Burst = op.Limit + carry
			}
			if err := op.Validate(); err != nil {
				return err.Error() + "\n"
			}
			var res Result
			var changed bool
			s, marks, res, changed = anyOf(s, marks, op, now, wall)
			if err := s.Valid(); err != nil {
				d.Fatalf(t, "%+v: %v", s, err)
			}
			answer := "allowed"
			if !res.Allowed {
				answer = fmt.Sprintf("refused: again in %s", time.Duration(res.RetryAfter))
			}
			if !changed {
				answer += ", nothing changed"
			}
			ends := ""
			if res.Ends != 0 {
				ends = ", until " + time.Unix(0, res.Ends).UTC().Format(time.RFC3339)
			}
			return fmt.Sprintf("%s\n%d of %d left, full in %s%s\n", answer, res.Remaining, res.Capacity, time.Duration(res.ResetAfter), ends)
		})
	})
}

// dayOp is a check of a limit by the days of UTC.
func dayOp(t failer, limit, carry, cost uint64) Op {
	op := Op{Params: Params{Algorithm: CalendarWindow, Limit: limit, Period: int64(calendarOf(t, "day", "UTC", 0, 0))}, Cost: cost}
	if carry != 0 {
		op.Burst = limit + carry
	}
	return op
}

// However the clock is set, forward and back: what is admitted under one end is at most the limit
// and what was carried into it, and the end never falls.
func TestClockGivesNothingTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := calendars.Draw(t, "calendar")
		limit := rapid.Uint64Range(1, 20).Draw(t, "limit")
		carry := rapid.SampledFrom([]uint64{0, 0, 1, 5, 100}).Draw(t, "carry")
		base := rapid.Int64Range(MaxWall/8, MaxWall/2).Draw(t, "base")
		start, end := c.Period(base)
		length := end - start
		var s State
		var last, wall int64 = 0, base
		type period struct{ spent, carried uint64 }
		is := period{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.IntRange(0, 2).Draw(t, "clock") == 0 {
				wall = max(0, wall+rapid.Int64Range(-2*length, 2*length).Draw(t, "by"))
			}
			op := Op{Params: Params{Algorithm: CalendarWindow, Limit: limit, Period: int64(c)}, Peek: rapid.IntRange(0, 4).Draw(t, "peek") == 0}
			if carry != 0 {
				op.Burst = limit + carry
			}
			if !op.Peek && rapid.IntRange(0, 5).Draw(t, "refunds") == 0 {
				op.Refund = rapid.Uint64Range(1, limit).Draw(t, "refund")
			} else {
				op.Cost = rapid.Uint64Range(1, limit).Draw(t, "cost")
			}
			next, res, changed := Date(s, nil, op, 0, wall)
			if !changed && next != s || op.Peek && changed {
				t.Fatalf("%+v became %+v", s, next)
			}
			from, until := c.Period(wall)
			if want := max(last, until); res.Ends != want {
				t.Fatalf("ends at %d, not %d", res.Ends, want)
			}
			now := is
			if res.Ends > last {
				now = period{}
				if from == last && last != 0 {
					now.carried = min(carry, limit+is.carried-is.spent)
				}
			}
			fits := now.spent+op.Cost <= limit+now.carried
			if res.Allowed != (fits || op.Refund != 0) || res.Capacity != limit+now.carried {
				t.Fatalf("%+v of %+v: %+v", op, now, res)
			}
			if changed {
				if now.spent -= min(now.spent, op.Refund); fits && op.Refund == 0 {
					now.spent += op.Cost
				}
				is, last = now, res.Ends
			}
			if !op.Peek && op.Refund == 0 && res.Allowed != changed {
				t.Fatalf("allowed %v, changed %v", res.Allowed, changed)
			}
			if seen := now.spent; op.Peek || changed {
				if op.Peek && res.Allowed {
					seen = now.spent
				}
				if res.Remaining != limit+now.carried-seen {
					t.Fatalf("%d left of %+v", res.Remaining, now)
				}
			}
			s = next
			if err := s.Valid(); err != nil {
				t.Fatal(err)
			}
			if s != (State{}) && s.Passed(wall) && from <= s.At && s.At >= start {
				t.Fatalf("forgotten at %d, in the period after that until %d", wall, s.At)
			}
		}
	})
}

// Under an override, what may be carried over is what the caller states, however low its limit or high.
func TestOverrideKeepsTheCarryOver(t *testing.T) {
	wall := wallOf(t, "2026-11-22T10:00:00Z")
	for _, most := range []uint64{2, 12, 500, MaxLimit} {
		o := Override{Limit: most, Period: MinPeriod, Until: Forever}
		var s State
		for day := range int64(4) {
			op := dayOp(t, 10, 5, 1)
			if o.Apply(&op); o.Refuses(&op) {
				t.Fatalf("%d: refused", most)
			}
			next, res, _ := Date(s, nil, op, 0, wall+day*daySeconds*oneSecond)
			want := most
			if day > 0 {
				want = min(most+min(5, s.Limit+s.Carry-s.Spent), MaxLimit)
			}
			if s = next; !res.Allowed || res.Capacity != want || s.Valid() != nil {
				t.Errorf("%d on day %d: %+v, want a capacity of %d", most, day, res, want)
			}
		}
	}
	op := dayOp(t, 10, 0, 1)
	if (&Override{Limit: 2, Period: MinPeriod}).Apply(&op); op.Capacity() != 2 {
		t.Errorf("without one: %+v", op)
	}
}

// A check that is refused may succeed when it is told to come again, if others leave enough; and not
// before, whatever they do.
func TestCalendarAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit, carry := rapid.Uint64Range(1, 20).Draw(t, "limit"), rapid.Uint64Range(0, 20).Draw(t, "carry")
		wall := wallOf(t, "2026-11-22T10:00:00Z")
		s, _, _ := Date(State{}, nil, dayOp(t, limit, carry, rapid.Uint64Range(1, limit).Draw(t, "spent")), 0, wall)
		op := dayOp(t, limit, carry, rapid.Uint64Range(1, limit+carry).Draw(t, "cost"))
		_, res, _ := Date(s, nil, op, 0, wall)
		if res.Allowed {
			return
		}
		for at := s.At; at < wall+res.RetryAfter; at += daySeconds * oneSecond {
			if _, early, _ := Date(s, nil, op, 0, at); early.Allowed {
				t.Fatalf("%+v: allowed at %d already", res, at)
			}
			s, _, _ = Date(s, nil, dayOp(t, limit, carry, 1), 0, at) // else nothing is carried over
		}
		if _, then, _ := Date(s, nil, op, 0, wall+res.RetryAfter); !then.Allowed && limit > 1 && op.Cost < limit+min(carry, limit) {
			t.Fatalf("%+v: and then %+v", res, then)
		}
	})
}

// When a limit is forgotten, it answers as one that never was.
func TestPassed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := calendars.Draw(t, "calendar")
		at := rapid.Int64Range(0, MaxWall/2).Draw(t, "at")
		op := Op{Params: Params{Algorithm: CalendarWindow, Limit: 10, Burst: 15, Period: int64(c)}, Cost: rapid.Uint64Range(1, 10).Draw(t, "cost")}
		s, _, _ := Date(State{}, nil, op, 0, at)
		_, end := c.Period(s.At)
		eighths := rapid.Int64Range(0, 12).Draw(t, "eighths of the next period")
		wall := max(at, s.At+(end-s.At)/8*eighths+rapid.Int64Range(-2*leastKept, 2*leastKept).Draw(t, "about"))
		if got, want := s.Passed(wall), wall >= end && wall >= s.At+leastKept; got != want {
			t.Fatalf("%s: passed %v at %d; ended at %d, the next one at %d", c, got, wall, s.At, end)
		}
		if !s.Passed(wall) {
			return
		}
		_, a, _ := Date(s, nil, op, 0, wall)
		_, b, _ := Date(State{}, nil, op, 0, wall)
		if a != b {
			t.Fatalf("%+v, and %+v as if it never was", a, b)
		}
	})
}

// Periods that are shorter than what the clocks of nodes may differ by are remembered for longer than
// the next one lasts.
func TestShortPeriodsAreKept(t *testing.T) {
	for _, length := range []time.Duration{time.Second, 10 * time.Second, 29 * time.Second} {
		op := Op{Params: Params{Algorithm: CalendarWindow, Limit: 10, Period: int64(aligned(t, length))}, Cost: 1}
		s, _, _ := Date(State{}, nil, op, 0, wallOf(t, "2026-11-22T10:00:00Z"))
		if s.Passed(s.At+leastKept-1) || !s.Passed(s.At+leastKept) {
			t.Errorf("%s: it is not forgotten a minute after its end", length)
		}
	}
}

// The bytes of a calendar window tell another process the same, and nothing else is one.
func TestDatedThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := State{Algorithm: CalendarWindow, At: rapid.Int64Range(1, MaxWall/oneSecond).Draw(t, "end") * oneSecond,
			Spent: rapid.Uint64Range(0, MaxLimit).Draw(t, "spent"), Carry: rapid.Uint64Range(0, MaxLimit).Draw(t, "carry"),
			Limit: rapid.Uint64Range(1, MaxLimit).Draw(t, "limit"), Period: int64(calendars.Draw(t, "calendar"))}
		w := wire.Writer{Now: 5}
		s.AppendTo(&w, nil)
		var back State
		r := wire.Reader{B: w.B, Now: 1e15}
		if back.ReadFrom(&r, nil); !r.Ends() || back != s || back.Valid() != nil {
			t.Fatalf("%+v is read as %+v: %v", s, back, back.Valid())
		}
		b := append([]byte(nil), w.B...)
		b[rapid.IntRange(0, len(b)-1).Draw(t, "where")] ^= byte(1 << rapid.IntRange(0, 7).Draw(t, "bit"))
		r = wire.Reader{B: b[:rapid.IntRange(0, len(b)).Draw(t, "length")], Now: 1e15}
		if back.ReadFrom(&r, nil); r.Ends() && back.Valid() == nil && back != (State{}) {
			var again wire.Writer
			again.Now = 1e15
			back.AppendTo(&again, nil)
		}
	})
}

// A zone that a program does not know ends the period when it should.
func TestUnknownZone(t *testing.T) {
	s, _, _ := Date(State{}, nil, Op{Params: Params{Algorithm: CalendarWindow, Limit: 10, Period: int64(calendarOf(t, "month", "Asia/Tokyo", 0, 0))}, Cost: 3}, 0, wallOf(t, "2026-11-22T10:11:12Z"))
	w := wire.Writer{}
	s.AppendTo(&w, nil)
	b := []byte(strings.Replace(string(w.B), "Asia/Tokyo", "Mars/Tokyo", 1))
	var back State
	r := wire.Reader{B: b}
	back.ReadFrom(&r, nil)
	s.Period = int64(calendarOf(t, "month", "UTC", 0, 0))
	if !r.Ends() || back != s || back.Valid() != nil {
		t.Errorf("%+v, %v", back, back.Valid())
	}
}

func TestDatedBounds(t *testing.T) {
	op := dayOp(t, MaxLimit, 0, MaxLimit)
	s, res, _ := Date(State{}, nil, op, math.MaxInt64, MaxWall)
	if err := s.Valid(); err != nil || !res.Allowed || res.Remaining != 0 {
		t.Errorf("%+v, %+v: %v", s, res, err)
	}
	if s.Passed(MaxWall) || s.AbsentAt() != math.MaxInt64 || s.Absent(math.MaxInt64) {
		t.Error("it passes by itself")
	}
	for _, bad := range []State{
		{Algorithm: CalendarWindow, At: 0, Spent: 1, Limit: 1, Period: op.Period},
		{Algorithm: CalendarWindow, At: 1, Spent: 1, Limit: 1, Period: op.Period},
		{Algorithm: CalendarWindow, At: -oneSecond, Spent: 1, Limit: 1, Period: op.Period},
		{Algorithm: CalendarWindow, At: oneSecond, Spent: MaxLimit + 1, Limit: 1, Period: op.Period},
		{Algorithm: CalendarWindow, At: oneSecond, Spent: 1, Limit: 0, Period: op.Period},
		{Algorithm: CalendarWindow, At: oneSecond, Spent: 1, Carry: MaxLimit + 1, Limit: 1, Period: op.Period},
		{Algorithm: CalendarWindow, At: oneSecond, Spent: 1, Limit: 1, Period: oneSecond},
		{Algorithm: CalendarWindow, Weight: 1, At: oneSecond, Spent: 1, Limit: 1, Period: op.Period},
	} {
		if bad.Valid() == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
	for field, op := range map[string]Op{
		"calendar": {Params: Params{Algorithm: CalendarWindow, Limit: 1, Period: oneSecond}, Cost: 1},
		"burst":    {Params: Params{Algorithm: CalendarWindow, Limit: 5, Burst: 4, Period: op.Period}, Cost: 1},
		"cost":     {Params: Params{Algorithm: CalendarWindow, Limit: 5, Burst: 7, Period: op.Period}, Cost: 8},
	} {
		if err := op.Validate(); err == nil || fieldOf(err) != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, ok := op.Part(1); ok {
		t.Error("a part decides it")
	}
}

// What was spent by another algorithm stays spent in the period, and the other way round.
func TestOtherAlgorithms(t *testing.T) {
	wall := wallOf(t, "2026-11-22T10:11:12Z")
	for _, other := range []Op{bucket(10, 1e12, 0, 4), window(10, 1e12, 4), {Params: Params{Algorithm: SlidingWindow, Limit: 10, Period: 1e12}, Cost: 4}} {
		s, marks, _, _ := anyOf(State{}, nil, other, 100, wall)
		s, marks, res, _ := anyOf(s, marks, dayOp(t, 10, 0, 1), 100, wall)
		if res.Remaining != 5 || len(marks) != 0 {
			t.Errorf("after %+v: %+v", other, res)
		}
		_, _, res, _ = anyOf(s, nil, other, 200, wall)
		if res.Remaining != 1 {
			t.Errorf("%+v: %+v", other, res)
		}
		full := other
		full.Cost = 6
		held, held2, res, changed := anyOf(s, nil, full, 200, wall)
		if res.Allowed || !changed || held.Algorithm != other.Algorithm {
			t.Errorf("%+v: %+v", full, res)
		}
		if _, _, res, _ = anyOf(held, held2, full, 200+1e12, wall+1e12); !res.Allowed {
			t.Errorf("a period later: %+v", res)
		}
		if _, _, res, _ = anyOf(s, nil, full, 200, wall+daySeconds*oneSecond); !res.Allowed || res.Remaining != 4 {
			t.Errorf("the day after: %+v", res)
		}
	}
}

func BenchmarkDate(b *testing.B) {
	wall := wallOf(b, "2026-11-22T10:11:12Z")
	for _, c := range []struct {
		name string
		op   Op
	}{{"calendar", dayOp(b, MaxLimit, 0, 1)}, {"fixed", window(MaxLimit, MaxPeriod, 1)}} {
		b.Run(c.name, func(b *testing.B) {
			var s State
			for b.Loop() {
				if c.op.Algorithm == CalendarWindow {
					s, _, _ = Date(s, nil, c.op, 5, wall)
				} else {
					s, _, _ = Apply(s, c.op, 5)
				}
			}
		})
	}
}
