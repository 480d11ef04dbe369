package policy

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/owner/limit"
)

const whole = `# what callers name
policies:
  per-user:
    about: one person with a browser
    limit: 100/1m
    burst: 200
  login:
    limit: 5/15m
    algorithm: sliding-window
  export/csv:
    limit: 1_000/1d
    algorithm: fixed_window
  quota:
    limit: 10000/month
    algorithm: calendar-window
    time_zone: Europe/Berlin
    first_day: 15
    carry_over: 500
  tax: {limit: 5/year, algorithm: calendar-window, first_month: 4, first_day: 6, time_zone: Europe/London}
  shift: {limit: 7/week, algorithm: calendar-window, first_day: 7}
  today: {limit: 9/day, algorithm: calendar-window}
  rush: {limit: 100/1h, algorithm: calendar-window}
  crawler: {limit: 10/s, burst: 100, algorithm: leaky-bucket, max_delay: 2s}
`

func parse(t *testing.T, text string) *Set {
	t.Helper()
	s, err := Parse("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParse(t *testing.T) {
	s := parse(t, whole)
	var got []string
	for _, p := range s.All() {
		got = append(got, fmt.Sprintf("%d %s: %s", p.Line, p.Name, p.Short()))
	}
	want := []string{
		"23 crawler: leaky-bucket, 10 in 1s, burst 100, delay up to 2s",
		"10 export/csv: fixed-window, 1000 in 24h",
		"7 login: sliding-window, 5 in 15m",
		"3 per-user: token-bucket, 100 in 1m, burst 200",
		"13 quota: calendar-window, 10000 in each month of Europe/Berlin from day 15, up to 500 carried over",
		"22 rush: calendar-window, 100 in each 1h by the clock",
		"20 shift: calendar-window, 7 in each week of UTC from Sunday",
		"19 tax: calendar-window, 5 in each year of Europe/London from April 6",
		"21 today: calendar-window, 9 in each day of UTC",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if p := s.Lookup("per-user"); p.About != "one person with a browser" || p.Params != (limit.Params{Limit: 100, Period: int64(time.Minute), Burst: 200}) {
		t.Errorf("%+v", p)
	}
	if s.Lookup("nobody") != nil || new(Set).Lookup("nobody") != nil {
		t.Error("a policy that is not there was found")
	}
	if n := parse(t, "policies: {}").Len(); n != 0 {
		t.Errorf("%d policies in an empty map", n)
	}
}

func TestParseSaysWhatIsWrongAndWhere(t *testing.T) {
	under := func(text string) string { return "policies:\n  a:\n    " + text }
	for _, c := range []struct{ text, line, says, hint string }{
		{"", "", "has no policies", "policies: {}"},
		{"- a", "1", "the file is a map, found a list", "login"},
		{"policies:", "1", "`policies` is a map of names, found nothing", "policies: {}"},
		{"policy: {}", "1", "the file has no field `policy`", "is `policies` meant?"},
		{"policies: {}\n---\npolicies: {}", "2", "a second document", "---"},
		{"policies: {a: {limit: 1/s}, a: {limit: 1/s}}", "1", "`a` is there a second time", "line 1"},
		{"policies: {}\npolicies: {}", "2", "`policies` is there a second time", "line 1"},
		{"policies: {a b: {limit: 1/s}}", "1", "`a b` cannot be the name", "64 letters"},
		{"policies: {? [a] : 1}", "1", "the name of a policy is a plain value, found a list", ""},
		{"policies: {<<: {}}", "1", "found a merge key", ""},
		{"policies: &x\n  a: *x", "2", "found an alias, which is not supported", ""},
		{under("limits: 5/1m"), "3", "has no field `limits`", "is `limit` meant? It knows limit, burst, algorithm, about"},
		{under("burst: 5"), "2", "has no limit", "limit: 100/1m"},
		{under("limit: 5"), "3", "`limit: 5` is not a limit", "20/1m"},
		{under("limit: [5]"), "3", "`limit` is a plain value, found a list", ""},
		{under("limit: 0/1m"), "3", "is not a limit", "20/1m"},
		{under("limit: 5/400d"), "3", "is 9600h0m0s; choose 1us to 366d", ""},
		{under("limit: 2_000_000_000_000/1m"), "3", "at most 1000000000000 is allowed", ""},
		{under("limit: 5/1m\n    burst: 0"), "4", "`burst: 0` is no count", "leave it out"},
		{under("limit: 5/1m\n    burst: -1"), "4", "is no count", ""},
		{under("limit: 5/1m\n    burst: 9\n    algorithm: fixed-window"), "4", "goes with token buckets", ""},
		{under("limit: 5/1m\n    algorithm: leaking"), "4", "`algorithm: leaking` is unknown", "choose token-bucket, fixed-window, sliding-window, leaky-bucket, calendar-window"},
		{under("limit: 5/week"), "3", "is of a period that is not always as long", "5/7d"},
		{under("limit: 5/1m\n    time_zone: UTC"), "4", "`time_zone` of the policy `a` goes with a calendar-window only", "algorithm: calendar-window"},
		{under("limit: 5/1m\n    carry_over: 5"), "4", "`carry_over` of the policy `a` goes with a calendar-window only", ""},
		{under("limit: 5/1m\n    max_delay: 5s"), "4", "`max_delay` of the policy `a` goes with leaky buckets only", ""},
		{under("limit: 5/1m\n    max_delay: 0s"), "4", "`max_delay: 0s` is no time", "2s"},
		{under("algorithm: calendar-window\n    limit: 5/month\n    burst: 9"), "5", "`burst` of the policy `a` goes with token buckets", "carry_over"},
		{under("algorithm: calendar-window\n    limit: 5/month\n    carry_over: 1_000_000_000_000"), "5", "with the limit at most 1000000000000 is allowed", ""},
		{under("algorithm: calendar-window\n    limit: 5/1h\n    first_day: 2"), "5", "periods by the clock begin with Unix time", "limit: 1000/month"},
		{under("algorithm: calendar-window\n    limit: 5/100ms"), "4", "`limit` of the policy `a` is 100ms; a period by the clock has whole seconds", ""},
		{under("algorithm: calendar-window\n    limit: 5/day\n    time_zone: Local"), "5", "`time_zone: Local` is unknown", "Europe/Berlin"},
		{under("algorithm: calendar-window\n    limit: 5/month\n    first_day: 32"), "5", "`first_day` of the policy `a` is 32", ""},
		{under("algorithm: calendar-window\n    limit: 5/month\n    first_month: 3"), "5", "`first_month` of the policy `a` goes with a limit per year only", ""},
		{under("algorithm: calendar-window\n    limit: 5/month\n    first_day: 70000"), "5", "`first_day: 70000` is no count", ""},
		{under("algorithm: calendar-window\n    limit: 9_000_000_000_000/month\n    carry_over: 18446744073709551615"), "5", "at most 1000000000000 is allowed", ""},
		{under("limit: 5/1m\n    limit: 6/1m"), "4", "`limit` is there a second time", "line 3"},
		{under("limit: 5/1m\n    about: " + strings.Repeat("x", MaxAbout+1)), "4", "`about` has 1025 bytes", ""},
		{"policies:\n\ta: 1", "2", "this is not YAML", ""},
		{"\xff", "", "is not UTF-8", ""},
		{strings.Repeat("#", MaxFile+1), "", "has 1047553 bytes; at most 1047552", ""},
	} {
		_, err := Parse("f.yaml", []byte(c.text))
		var got Problems
		if !errors.As(err, &got) || len(got) != 1 {
			t.Errorf("%.60q: %v", c.text, err)
			continue
		}
		at := "f.yaml: "
		if c.line != "" {
			at = "f.yaml:" + c.line + ": "
		}
		if s := got[0].String(); !strings.HasPrefix(s, at) || !strings.Contains(got[0].Message, c.says) || !strings.Contains(got[0].Hint, c.hint) {
			t.Errorf("%.60q: %s\nwant %s%s, hint %s", c.text, s, at, c.says, c.hint)
		}
	}
}

// All that is wrong is said at once, as far as people read.
func TestParseSaysAllThatIsWrong(t *testing.T) {
	text := "policies:\n"
	for i := range 100 {
		text += fmt.Sprintf("  p%d: {limit: x}\n", i)
	}
	_, err := Parse("", []byte(text))
	if got := err.(Problems); len(got) != maxProblems || got[4].Line != 6 || !strings.HasPrefix(got[4].String(), "line 6: ") {
		t.Error(err)
	}
}

func TestChanges(t *testing.T) {
	a := parse(t, "policies: {a: {limit: 1/s}, b: {limit: 1/s}, c: {limit: 1/s, about: x}}")
	b := parse(t, "policies: {b: {limit: 2/s}, c: {limit: 1/s}, d: {limit: 1/s}}")
	q, r := parse(t, "policies: {a: {limit: 1/s, algorithm: leaky-bucket}}"), parse(t, "policies: {a: {limit: 1/s, algorithm: leaky-bucket, max_delay: 1s}}")
	if c := q.Changes(r); fmt.Sprint(c.Changed) != "[a]" {
		t.Errorf("%+v", c)
	}
	if c := a.Changes(b); fmt.Sprint(c.Added, c.Changed, c.Removed) != "[d] [b] [a]" || c.None() || !a.Changes(a).None() {
		t.Errorf("%+v", c)
	}
}

func TestALookupAllocatesNothing(t *testing.T) {
	s := parse(t, whole)
	if n := testing.AllocsPerRun(100, func() { _ = s.Lookup("login").Limit }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// hits are checks of 1, and when they were admitted.
type hits []int64

// try makes n checks at a moment.
func (h *hits) try(s *state, p *Policy, now int64, n uint64) {
	for range n {
		if s.check(p, now) {
			*h = append(*h, now)
		}
	}
}

// most returns the most hits in any time shorter than t.
func (h hits) most(t int64) int {
	most, from := 0, 0
	for i := range h {
		for h[i]-h[from] >= t {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

// state is a limit, by the machine that decides it.
type state struct {
	limit.State
	marks []limit.Mark
}

func (s *state) check(p *Policy, now int64) bool {
	op := limit.Op{Params: p.Params, Cost: 1}
	var r limit.Result
	if p.Algorithm == limit.SlidingWindow {
		s.State, s.marks, r, _ = limit.Slide(s.State, s.marks, op, now)
	} else {
		if p.Algorithm == limit.LeakyBucket {
			op.MaxDelay = math.MaxInt64
		}
		s.State, r, _ = limit.Apply(s.State, op, now)
	}
	return r.Allowed
}

// What is told is never exceeded, whenever checks come.
func TestNoMoreThanIsTold(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 600 {
		period := 1000 + rnd.Int64N(50)
		p := &Policy{Params: limit.Params{Algorithm: algorithms[rnd.IntN(len(algorithms)-1)].is, Limit: 1 + rnd.Uint64N(6), Period: period}}
		if (p.Algorithm == limit.TokenBucket || p.Algorithm == limit.LeakyBucket) && rnd.IntN(2) == 0 {
			p.Burst = 1 + rnd.Uint64N(12)
		}
		var h hits
		var s state
		for now := int64(0); now < 12*period; now += 1 + rnd.Int64N(period/(1+rnd.Int64N(40))) {
			h.try(&s, p, now, rnd.Uint64N(4))
		}
		for _, x := range []int64{2, 7, period / 3, period - 1, period, period + 1, 2*period - 1, 2 * period, 5*period + 3} {
			if got, told := h.most(x), p.AtMost(time.Duration(x)); big.NewInt(int64(got)).Cmp(told) > 0 {
				t.Fatalf("%s: %d in less than %d ns, and %s were told", p.Short(), got, x, told)
			}
		}
	}
}

// A caller that picks the worst moments is admitted exactly as much as is told, so the bound is
// no larger than it has to be.
func TestAsMuchAsIsTold(t *testing.T) {
	const period = 1000
	for _, p := range []*Policy{
		{Params: limit.Params{Limit: 3, Period: period, Burst: 7}},
		{Params: limit.Params{Limit: 4, Period: period}},
		{Params: limit.Params{Algorithm: limit.LeakyBucket, Limit: 3, Period: period, Burst: 5}},
		{Params: limit.Params{Algorithm: limit.FixedWindow, Limit: 5, Period: period}},
		{Params: limit.Params{Algorithm: limit.FixedWindow, Limit: 1, Period: period}},
		{Params: limit.Params{Algorithm: limit.SlidingWindow, Limit: 5, Period: period}},
	} {
		for _, x := range []int64{2, 3, 500, period, period + 1, period + 2, 2 * period, 2*period + 1, 7*period + 1, 7 * period} {
			best := 0
			for _, early := range []uint64{0, 1} { // a window that is all but over when the rush begins
				var h hits
				var s state
				h.try(&s, p, 0, early)
				begin := int64(0)
				if early != 0 {
					begin = period - 1
				}
				for now := begin; now < begin+8*period; now++ {
					h.try(&s, p, now, p.Capacity()+1)
				}
				best = max(best, h.most(x))
			}
			if told := p.AtMost(time.Duration(x)); big.NewInt(int64(best)).Cmp(told) != 0 {
				t.Errorf("%s: %d in less than %d ns, and %s were told", p.Short(), best, x, told)
			}
		}
	}
}

func TestExplain(t *testing.T) {
	var b strings.Builder
	for _, p := range parse(t, whole).All() {
		if err := p.Explain(&b); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		"per-user: token-bucket, 100 in 1m, burst 200\n  one person with a browser\n  Of each key,\n",
		"    in any time shorter than 1m   at most 299\n    in any time shorter than 1h   at most 6199\n    in any time shorter than 24h  at most 144199\n",
		"200 at once, and 100 more for each 1m: never above 200 + 100 · t / 1m in any time t.",
		"    in any time shorter than 24h   at most 1999\n",
		"login: sliding-window, 5 in 15m\n  Of each key,\n    in any time shorter than 15m  at most 5\n    in any time shorter than 1h   at most 20\n",
		"the limit starts full, so once up to 200 more.",
		"    in any time shorter than 30d   at most 30500\n    in any time shorter than 365d  at most 130500\n",
		"At most 10000 in each month of Europe/Berlin from day 15, whenever in it they come. What is left of one adds to the next, up to 500, if anything was spent in it.",
		"Across the edge of two, up to 20500 pass in a short time.",
		"the limit starts full, so once up to 10000 more.",
		"None waits longer than 2s, so of requests of 1 at most 21 are in the queue.",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Minute: "1m", 90 * time.Minute: "1h30m", time.Hour: "1h", 24 * time.Hour: "24h", 168 * time.Hour: "7d",
		time.Second: "1s", 70 * time.Second: "1m10s", 1500: "1.5µs", 36 * time.Hour: "36h",
	} {
		if got := Span(d); got != want {
			t.Errorf("%v: %s, not %s", int64(d), got, want)
		}
	}
}

// FuzzParse reads anything: the result is policies that their owner takes, or Problems.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{whole, "", "---", "policies: &a [*a]", "policies: {a: {limit: 1/ns}}", "policies: {a: {limit: 18446744073709551615/106751d}}", "<<: *a\n", "policies: !!binary aGk=\n", "\t- x", "policies:\n  a:\n    burst: !!int 0x1F\n    limit: 1/s"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("f", data)
		if bad := (Problems)(nil); err != nil && (!errors.As(err, &bad) || len(bad) == 0) {
			t.Fatalf("%T %v", err, err)
		} else if err != nil {
			return
		}
		for _, p := range s.All() {
			if err := (limit.Op{Params: p.Params, Cost: 1}).Validate(); err != nil || !ValidName(p.Name) || p.Line == 0 {
				t.Fatalf("%+v: %v", p, err)
			}
			_ = p.Bounds()
		}
	})
}

func BenchmarkParse(b *testing.B) {
	var text strings.Builder
	text.WriteString("policies:\n")
	for i := 0; text.Len() < MaxFile-200; i++ {
		fmt.Fprintf(&text, "  policy-%06d:\n    about: %s\n    limit: 100/1m\n    burst: 200\n", i, strings.Repeat("words ", 10))
	}
	data := []byte(text.String())
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := Parse("f", data); err != nil {
			b.Fatal(err)
		}
	}
}
