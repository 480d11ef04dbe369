package owner

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/zone"
)

// datedRule is a rule that knows the time of day.
type datedRule struct {
	testRule
	wall  int64 // ns since 1970, by how much it is ahead of the clock of the store; 0 = unknown
	level uint32
}

func (r *datedRule) Wall(now int64) (int64, bool) { return now + r.wall, r.wall != 0 }

func (r *datedRule) Uses(level uint32) bool { return r.level == 0 || level <= r.level }

// evening is 23:00 in UTC, on the day before another one.
var evening = time.Date(2026, 11, 22, 23, 0, 0, 0, time.UTC).UnixNano()

const hour = 3600 * second

// daily is a check of so many tokens a day.
func daily(t testing.TB, most, cost uint64) limit.Op {
	c, err := limit.NewCalendar(limit.Day, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return limit.Op{Params: limit.Params{Algorithm: limit.CalendarWindow, Limit: most, Period: int64(c)}, Cost: cost}
}

func dated(t testing.TB, rule *datedRule, sink Sink) *Store {
	if rule.epoch == 0 {
		rule.epoch = 100
	}
	return newStore(t, func(c *Config) { c.Rule, c.Sink = rule, sink })
}

// A node that takes over, with a clock that is behind, goes on in the day that has begun: nothing is
// given twice.
func TestDayGoesOnAtTheNextOwner(t *testing.T) {
	behind := &datedRule{wall: evening}
	f := follower{t: t, to: dated(t, behind, nil)}
	rule := &datedRule{wall: evening}
	s := dated(t, rule, &f)
	must(s.Check(0, door, noID, daily(t, 10, 10)))
	if a := must(s.Check(0, door, noID, daily(t, 10, 1))); a.Allowed || a.RetryAfter != hour || a.Ends != evening+hour {
		t.Fatalf("%+v", a)
	}
	if a := must(s.Check(hour, door, retry(1, 0), daily(t, 10, 7))); !a.Allowed || a.Remaining != 3 || a.Ends != evening+25*hour {
		t.Fatalf("the next day: %+v", a)
	}
	behind.wall -= 2 * hour
	if a := must(f.to.Check(hour, door, noID, daily(t, 10, 4))); a.Allowed || a.Remaining != 3 || a.Ends != evening+25*hour || a.RetryAfter != 26*hour {
		t.Errorf("two hours behind: %+v", a)
	}
	if a := must(f.to.Check(hour, door, retry(1, 0), daily(t, 10, 7))); !a.Allowed || !a.Replayed || a.Remaining != 3 {
		t.Errorf("a retry: %+v", a)
	}
	if a := must(f.to.Check(hour, door, noID, limit.Op{Params: daily(t, 10, 0).Params, Refund: 9})); !a.Allowed || a.Remaining != 10 {
		t.Errorf("a refund: %+v", a)
	}
	if a := must(f.to.Check(hour, door, noID, peekAt(daily(t, 10, 1)))); !a.Allowed || a.Ends != evening+25*hour {
		t.Errorf("when all was given back: %+v", a)
	}
}

// Without a time that is agreed on, no limit goes by the calendar, and all others do as ever.
func TestNobodyKnowsTheTime(t *testing.T) {
	rule := &datedRule{}
	s := dated(t, rule, nil)
	if _, err := s.Check(0, door, noID, daily(t, 10, 1)); reason(err) != failure.Unavailable {
		t.Errorf("%v", err)
	}
	fixed := limit.Op{Params: limit.Params{Algorithm: limit.FixedWindow, Limit: 10, Period: second}, Cost: 6}
	must(s.Check(0, Ref{Key: "other"}, noID, fixed))
	rule.wall = evening
	must(s.Check(0, door, noID, daily(t, 10, 6)))
	rule.wall = 0
	if _, err := s.Check(0, door, noID, peekAt(daily(t, 10, 1))); !errors.Is(err, errDates) {
		t.Errorf("%v", err)
	}
	if a := must(s.Check(0, door, noID, fixed)); a.Allowed || a.Remaining != 4 {
		t.Errorf("what was spent by the calendar is forgotten: %+v", a)
	}
	rule.wall = limit.MaxWall + 1
	if a := must(s.Check(0, door, noID, fixed)); a.Allowed || a.Remaining != 4 {
		t.Errorf("and by a clock that shows no time: %+v", a)
	}
	if _, err := s.Check(0, Ref{Key: "third"}, noID, daily(t, 10, 1)); !errors.Is(err, errDates) {
		t.Errorf("%v", err)
	}
}

// A limit by the calendar is for clusters that have committed its level.
func TestCalendarsNeedTheirLevel(t *testing.T) {
	rule := &datedRule{wall: evening, level: CalendarLevel - 1}
	s := dated(t, rule, nil)
	if _, err := s.Check(0, door, noID, daily(t, 10, 1)); !errors.Is(err, ErrLevel) {
		t.Errorf("%v", err)
	}
	rule.level = CalendarLevel
	must(s.Check(0, door, noID, daily(t, 10, 1)))
}

// A period that is over is remembered until the next one is, and then it takes no memory.
func TestDaysAreForgotten(t *testing.T) {
	rule := &datedRule{wall: evening}
	s := dated(t, rule, nil)
	must(s.Check(0, door, noID, daily(t, 10, 6)))
	swept := func(now int64) int64 {
		for range 4 * 64 {
			s.Sweep(now)
		}
		return s.Stats().Objects[KindLimit]
	}
	for now, want := range map[int64]int64{hour - 1: 1} {
		if n := swept(now); n != want {
			t.Errorf("%d objects after %s", n, time.Duration(now))
		}
	}
	if n := swept(25*hour - second); n != 1 {
		t.Errorf("%d objects on the next day", n)
	}
	rule.wall -= 24 * hour // set back to the day of the check
	if a := must(s.Check(25*hour-second, door, noID, daily(t, 10, 5))); a.Allowed || a.Remaining != 4 {
		t.Errorf("%+v", a)
	}
	rule.wall += 24 * hour
	if n := swept(25 * hour); n != 0 {
		t.Errorf("%d objects when that is over, too", n)
	}
}

// What a key stands for is told by the name of the zone.
func TestCalendarUnderAKey(t *testing.T) {
	rule := &datedRule{wall: evening, testRule: testRule{epoch: 100, since: math.MinInt64}}
	s := dated(t, rule, nil)
	key := reqid.KeyID("job")
	must(s.Check(0, door, key, daily(t, 10, 6)))
	tokyo, _ := zone.Find("Asia/Tokyo")
	c, _ := limit.NewCalendar(limit.Day, tokyo, 0, 0)
	other := daily(t, 10, 6)
	other.Period = int64(c)
	if _, err := s.Check(0, door, key, other); reason(err) != failure.RequestIDReused {
		t.Errorf("%v", err)
	}
	if a := must(s.Check(0, door, key, daily(t, 10, 6))); !a.Replayed {
		t.Errorf("%+v", a)
	}
}

// Reset makes it full, and it begins anew: also when it was in a day of years ahead.
func TestResetOfADay(t *testing.T) {
	rule := &datedRule{wall: evening + 3*365*24*hour}
	s := dated(t, rule, nil)
	must(s.Check(0, door, noID, daily(t, 10, 10)))
	rule.wall = evening
	if a := must(s.Check(0, door, noID, daily(t, 10, 1))); a.Allowed {
		t.Fatalf("%+v", a)
	}
	if a := must(s.ResetLimit(0, door, noID)); a.Spent != 10 {
		t.Errorf("%+v", a)
	}
	if a := must(s.Check(0, door, noID, daily(t, 10, 1))); !a.Allowed || a.Ends != evening+hour {
		t.Errorf("%+v", a)
	}
	if a := must(s.ResetLimit(2*hour, door, noID)); a.Spent != 0 {
		t.Errorf("when the day is over: %+v", a)
	}
}

// In the grace of a loss, with LostEmpty, the day counts as used up.
func TestDayIsLost(t *testing.T) {
	rule := &datedRule{wall: evening, testRule: testRule{epoch: lostIn + 5, lost: lostIn, lostAt: 0, terms: Terms{LockTTL: longest, Grace: 25 * hour}}}
	s := newStore(t, func(c *Config) { c.Rule, c.LostLimits = rule, LostEmpty })
	if a := must(s.Check(0, door, noID, daily(t, 10, 1))); a.Allowed || a.Remaining != 0 || a.Ends != evening+hour {
		t.Errorf("%+v", a)
	}
	if a := must(s.Check(hour, door, noID, daily(t, 10, 1))); !a.Allowed || a.Remaining != 9 {
		t.Errorf("the next day: %+v", a)
	}
}

// What was lost is of the period of then: a month that began since is not used up, and one that was
// about to begin is.
func TestPeriodSinceALoss(t *testing.T) {
	rule := &datedRule{wall: evening, testRule: testRule{epoch: lostIn + 5, lost: lostIn, lostAt: hour - 30*second, terms: Terms{LockTTL: longest, Grace: 50 * hour}}}
	s := newStore(t, func(c *Config) { c.Rule, c.LostLimits = rule, LostEmpty })
	for i, at := range []int64{hour - 20*second, hour + 20*second, 24 * hour, 25 * hour, 30 * hour} {
		ref := Ref{Key: keys(9)[i]}
		a := must(s.Check(at, ref, noID, daily(t, 10, 1)))
		ends := evening + hour
		if at >= hour {
			ends += 24 * hour
		}
		if at >= 25*hour {
			ends += 24 * hour
		}
		if a.Allowed != (at >= 25*hour) || a.Ends != ends {
			t.Errorf("%s after: %+v", time.Duration(at), a)
		}
	}
}

// BenchmarkCalendarCheck is a check by the calendar beside one of a fixed window.
func BenchmarkCalendarCheck(b *testing.B) {
	calendar := daily(b, limit.MaxLimit, 1)
	fixed := limit.Op{Params: limit.Params{Algorithm: limit.FixedWindow, Limit: limit.MaxLimit, Period: limit.MaxPeriod}, Cost: 1}
	for _, c := range []struct {
		name string
		op   limit.Op
	}{{"fixed", fixed}, {"calendar", calendar}} {
		b.Run(c.name, func(b *testing.B) {
			s := newStore(b, func(cfg *Config) {
				cfg.Rule, cfg.Shards, cfg.MaxBytes = &datedRule{wall: evening, testRule: testRule{epoch: 100}}, DefaultShards, 1<<40
			})
			ks, now := keys(1_000), int64(0)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now += 1000
				if _, err := s.Check(now, Ref{Key: ks[i*7919%len(ks)], Name: "api"}, noID, c.op); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
