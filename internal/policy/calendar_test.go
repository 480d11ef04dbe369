package policy

import (
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/owner/limit"
)

// A caller that picks the worst moments of a calendar is admitted as much as is told, and not more:
// over the edges of all periods, also of days of 23 hours and of short months.
func TestAsMuchAsIsToldByTheCalendar(t *testing.T) {
	for _, text := range []string{
		"limit: 5/7s", "limit: 1/1h, carry_over: 3", "limit: 5/1h, carry_over: 3",
		"limit: 3/day", "limit: 3/day, time_zone: Europe/Berlin", "limit: 3/day, time_zone: Australia/Lord_Howe, carry_over: 2",
		"limit: 4/week, time_zone: America/New_York, first_day: 3", "limit: 4/month, first_day: 31, carry_over: 3",
		"limit: 2/year, first_month: 3, carry_over: 1",
	} {
		p := parse(t, "policies: {a: {algorithm: calendar-window, "+text+"}}").Lookup("a")
		c, _ := p.Calendar()
		var edges []int64
		for at, until := lookFrom, lookUntil; at < until && len(edges) < 3000; {
			_, at = c.Period(at)
			edges = append(edges, at)
		}
		spans := []int64{2, 3, int64(time.Second), 7e9 + 1, int64(time.Hour), int64(23*time.Hour) + 1, int64(23*time.Hour) + 2, int64(aDay) + 2, int64(28*aDay) + 2, int64(60 * aDay), int64(365*aDay) + 2}
		for _, x := range spans {
			if x > 1000*int64(p.Length()) {
				continue
			}
			told := p.AtMost(time.Duration(x))
			if want := worst(p, edges, x); told.Cmp(want) != 0 {
				t.Errorf("%s: %s in less than %s, and %s were told", text, want, time.Duration(x), told)
			}
		}
	}
}

// worst lets a caller spend one token in each of the periods before an edge, and from just before
// it on all that there is, at once; for the edge at which that is most, in a time shorter than x.
func worst(p *Policy, edges []int64, x int64) *big.Int {
	best := uint64(0)
	const before = 4
	for i := before; i < len(edges); i++ {
		if best != 0 && !more(edges, i, x, best, p) {
			continue
		}
		var s limit.State
		admitted := uint64(0)
		spend := func(at int64, n uint64) {
			for range n {
				var r limit.Result
				s, r, _ = limit.Date(s, nil, limit.Op{Params: p.Params, Cost: 1}, at, at)
				if r.Allowed && at >= edges[i]-1 {
					admitted++
				}
			}
		}
		for _, at := range edges[i-before : i-1] {
			spend(at, 1)
		}
		spend(edges[i]-1, p.Capacity()+1)
		for j := i; j < len(edges) && edges[j]-(edges[i]-1) < x; j++ {
			spend(edges[j], p.Capacity()+1)
		}
		best = max(best, admitted)
	}
	return new(big.Int).SetUint64(best)
}

// more reports whether so many periods begin after an edge that it may be worse than the worst so
// far.
func more(edges []int64, i int, x int64, best uint64, p *Policy) bool {
	n := uint64(1)
	for j := i; j < len(edges) && edges[j]-(edges[i]-1) < x; j++ {
		n++
	}
	return n*p.Limit+p.CarryOver() > best
}

// A longer time than periods are looked at is told no less than there is.
func TestLongTimesByTheCalendar(t *testing.T) {
	p := parse(t, "policies: {a: {algorithm: calendar-window, limit: 2/day, time_zone: Europe/Berlin}}").Lookup("a")
	for years, days := range map[int]int64{1: 366, 8: 2923, 100: 36526} {
		if told := p.AtMost(time.Duration(years) * 365 * aDay); told.Int64() < 2*(days-2-int64(years/4)) || told.Int64() > 2*(days+60) {
			t.Errorf("%s in %d years", told, years)
		}
	}
}

// As many requests of 1 are in a queue as is told.
func TestInQueue(t *testing.T) {
	for text, want := range map[string]int{
		"limit: 10/s, max_delay: 2s": 10, "limit: 10/s, burst: 100, max_delay: 2s": 21, "limit: 10/s, burst: 100, max_delay: 1999ms": 20,
		"limit: 3/s, burst: 9": 9, "limit: 1/1m, burst: 9, max_delay: 1s": 1,
	} {
		p := parse(t, "policies: {a: {algorithm: leaky-bucket, "+text+"}}").Lookup("a")
		var s limit.State
		n := 0
		for range 200 {
			next, r, _ := limit.Apply(s, limit.Op{Params: p.Params, Cost: 1, MaxDelay: min(p.MaxDelay, 1<<62)}, 0)
			if p.MaxDelay == 0 {
				next, r, _ = limit.Apply(s, limit.Op{Params: p.Params, Cost: 1, MaxDelay: 1 << 62}, 0)
			}
			if s = next; r.Allowed {
				n++
			}
		}
		if n != want || p.InQueue().Int64() != int64(want) {
			t.Errorf("%s: %d in the queue, and %s were told, not %d", text, n, p.InQueue(), want)
		}
		full := fmt.Sprintf("The %d places of the queue are full before", p.Capacity())
		if words := p.delayWords(); strings.Contains(words, full) != (p.MaxDelay != 0 && uint64(want) == p.Capacity()) {
			t.Errorf("%s: %s", text, words)
		}
	}
}
