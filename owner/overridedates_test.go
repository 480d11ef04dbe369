package owner

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/zone"
)

// idealDates is a limit by the calendar of which everything is known at once: what is in force at each moment, and what was
// spent in which period.
type idealDates struct {
	calendar limit.Calendar
	carries  uint64 // most that is carried over
	wall     int64  // by how much the time of day is ahead
	callers  uint64
	o        limit.Override
	there    bool

	end          int64 // of the period in which something was done, in ns since 1970; 0 = in none
	spent, carry uint64
	limit        uint64 // what was in force in it last
}

// pass has the time go on: an override that has ended is followed by what callers stated.
func (m *idealDates) pass(now int64) {
	if m.there && now >= m.o.Until {
		m.there = false
		m.force(m.o.Until)
	}
}

// force notes what is in force from a moment on.
func (m *idealDates) force(at int64) {
	if at+m.wall < m.end {
		m.limit = m.inForce()
	}
}

func (m *idealDates) inForce() uint64 {
	if m.there {
		return m.o.Limit
	}
	return m.callers
}

// in returns what there is in the period of a moment: its end, what was spent and carried into it.
func (m *idealDates) in(now int64) (end int64, spent, carry uint64) {
	if now+m.wall < m.end {
		return m.end, m.spent, min(m.carry, m.carries)
	}
	start, end := m.calendar.Period(now + m.wall)
	if m.end == start && m.end != 0 {
		carry = min(m.limit+m.carry-min(m.limit+m.carry, m.spent), m.carries)
	}
	return end, 0, carry
}

// fits reports whether a cost is there at a moment, if nobody spends until then.
func (m *idealDates) fits(cost uint64, at int64) bool {
	c := *m
	c.pass(at)
	_, spent, carry := c.in(at)
	return spent+cost <= c.inForce()+carry
}

// again returns after which time a cost that is not there now is, if nobody spends until then; ok is false if it is so only
// when somebody spends in the next period, so that something is left of that to be carried over.
func (m *idealDates) again(cost uint64, now int64) (after int64, ok bool) {
	end, _, _ := m.in(now)
	next := []int64{end - m.wall}
	if m.there && m.o.Until != limit.Forever {
		_, then := m.calendar.Period(m.o.Until + m.wall)
		next = append(next, m.o.Until, then-m.wall)
	}
	slices.Sort(next)
	for _, at := range next {
		if m.fits(cost, at) {
			return at - now, true
		}
	}
	return 0, false
}

// TestOverridesOfCalendarsAgainstIdeal: an override counts at once and until its end, in the middle of a period and across
// the begin of one, and what is carried over is what was left of what was in force when the period ended; whenever
// anybody looks, whatever is swept, and at all owners that take over.
func TestOverridesOfCalendarsAgainstIdeal(t *testing.T) {
	const day = 24 * hour
	calendars := []struct {
		unit       limit.Unit
		zone       string
		month, day int
	}{
		{limit.Day, "Europe/Berlin", 0, 0}, {limit.Day, "America/New_York", 0, 0}, {limit.Week, "Asia/Kolkata", 0, 3},
		{limit.Month, "Pacific/Auckland", 0, 31}, {limit.Month, "UTC", 0, 1}, {limit.Year, "Europe/London", 2, 29},
	}
	ended, carried, across := 0, 0, 0
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 9))
		of := calendars[rng.IntN(len(calendars))]
		in, known := zone.Find(of.zone)
		if !known {
			t.Fatal(of.zone)
		}
		m := &idealDates{calendar: must(limit.NewCalendar(of.unit, in, of.month, of.day)), carries: []uint64{0, 3, 50}[rng.IntN(3)], wall: evening}
		length := map[limit.Unit]int64{limit.Day: day, limit.Week: 7 * day, limit.Month: 30 * day, limit.Year: 365 * day}[of.unit]
		rule := &datedRule{wall: evening}
		f := follower{t: t, to: dated(t, rule, nil)}
		s := dated(t, rule, &f)
		now := int64(0)
		for range 200 {
			if now+m.wall > limit.MaxWall/2 {
				break
			}
			now += []int64{0, 1, hour, length / 7, length / 2, length, 2*length + hour}[min(rng.IntN(12), 6)]
			if rng.IntN(4) == 0 && m.end > now+m.wall { // at the very end of the period
				now = m.end - m.wall - rng.Int64N(2)
			}
			m.pass(now)
			switch rng.IntN(10) {
			case 0, 1:
				lasts := []int64{1, hour, length / 3, length, 2 * length, 0}[rng.IntN(6)]
				if m.end > now+m.wall && rng.IntN(3) == 0 { // it ends with the period, or a nanosecond before or after that
					lasts = max(m.end-m.wall-now+rng.Int64N(3)-1, 1)
				}
				o := over([]uint64{2, 7, 100}[rng.IntN(3)], second)
				m.o, m.there = must(s.SetOverride(now, door, noID, o, lasts)).Override, true
				m.force(now)
			case 2:
				must(s.ClearOverride(now, door, noID))
				m.there = false
				m.force(now)
			case 3:
				sweepAll(s, now)
			case 4: // the owner dies, and its standby takes over
				s, f.to = f.to, dated(t, rule, nil)
				s.cfg.Sink = &f
				s.Export(func() int64 { return now }, always, func(r *Record, at int64) bool {
					return f.to.Install(at, r, always) == nil
				}, func() bool { return true })
			}
			op := limit.Op{Params: limit.Params{Algorithm: limit.CalendarWindow, Limit: []uint64{5, 20}[rng.IntN(2)], Period: int64(m.calendar)}}
			op.Burst = op.Limit + m.carries
			if op.Cost = 1 + rng.Uint64N(op.Limit); rng.IntN(6) == 0 {
				op.Cost, op.Overdraft = op.Cost*3, true
			} else {
				op.Peek = rng.IntN(3) == 0
			}
			was := m.callers
			m.callers = op.Limit
			end, spent, carry := m.in(now)
			capacity := m.inForce() + carry
			want := op.Overdraft || spent+op.Cost <= capacity
			if want && !op.Peek {
				if m.end != 0 && m.end != end && carry > 0 {
					carried++
				}
				m.end, m.spent, m.carry = end, spent+op.Cost, carry
				spent += op.Cost
			}
			if !op.Peek {
				m.force(now)
			}
			got := must(s.Check(now, door, noID, op))
			left := capacity - min(capacity, spent)
			if got.Allowed != want || got.Capacity != capacity || got.Remaining != left || got.Debt != spent-min(capacity, spent) || got.Ends != end || got.Override != 0 != m.there {
				t.Fatalf("seed %d, %s: %+v under %+v (%v) at %d: %+v, want %v, %d of %d spent until %d", seed, m.calendar, op, m.o, m.there, now, got, want, spent, capacity, end)
			}
			if again, ok := m.again(op.Cost, now); !want && ok && got.RetryAfter != again {
				t.Fatalf("seed %d, %s: %+v under %+v (%v) at %d: %+v: allowed after %d", seed, m.calendar, op, m.o, m.there, now, got, again)
			}
			if !want && m.there && now+got.RetryAfter == m.o.Until {
				ended++
				if m.o.Until+m.wall > m.end {
					across++
				}
			}
			if back := got.ResetAfter; spent == 0 && back != 0 || spent != 0 && back != end-m.wall-now {
				t.Fatalf("seed %d, %s: %+v at %d: %+v: not full then", seed, m.calendar, op, now, got)
			}
			if op.Peek {
				m.callers = was
			}
		}
	}
	if ended < 100 || carried < 100 || across == 0 {
		t.Errorf("%d wait for the end of an override, %d of them in a later period, and %d periods have something carried over: that proves little", ended, across, carried)
	}
}
