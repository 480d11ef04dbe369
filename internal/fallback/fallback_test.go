package fallback

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/limit"
)

const second = int64(time.Second)

// step is one line of a transcript: at a moment, what is done and what comes of it.
type step struct {
	at   time.Duration
	do   string // "learn LEFT", "check COST" or "peek COST"
	want string
}

// play does the steps of a transcript by a rule.
func play(t *testing.T, r Rule, steps ...step) {
	t.Helper()
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	table := New()
	for i, s := range steps {
		var n uint64
		verb, rest, _ := strings.Cut(s.do, " ")
		if _, err := fmt.Sscan(rest, &n); err != nil {
			t.Fatal(err)
		}
		got := ""
		if now := int64(s.at); verb == "learn" {
			table.Learn("k", "l", Known{At: now, Remaining: n, Capacity: 100, Epoch: 7}, now)
		} else {
			a, why := table.Decide("k", "l", &r, n, verb == "peek", now)
			switch {
			case why != Decided:
				got = [...]string{Unknown: "unknown", Full: "full"}[why]
			case a.Allowed:
				got = fmt.Sprintf("allowed, %d left", a.Remaining)
			default:
				got = fmt.Sprintf("denied, %d left, again in %s", a.Remaining, time.Duration(a.RetryAfter))
			}
		}
		if got != s.want {
			t.Errorf("step %d, %s: %s\nwant %s", i, s.do, got, s.want)
		}
	}
}

// TestLocalCap: at most the cap in any time shorter than its period, whenever that begins.
func TestLocalCap(t *testing.T) {
	play(t, Rule{Source: LocalCap, Cap: 3, Period: time.Minute},
		step{0, "check 1", "allowed, 2 left"},
		step{59 * time.Second, "peek 2", "allowed, 2 left"},
		step{59 * time.Second, "check 2", "allowed, 0 left"},
		step{59 * time.Second, "check 1", "denied, 0 left, again in 1s"},
		step{59*time.Second + 500*time.Millisecond, "peek 1", "denied, 0 left, again in 500ms"},
		step{60 * time.Second, "check 1", "allowed, 0 left"},
		step{118 * time.Second, "check 2", "denied, 0 left, again in 1s"},
		step{119 * time.Second, "check 2", "allowed, 0 left"},
		step{119 * time.Second, "check 4", "denied, 0 left, again in 1s"},
	)
}

// TestLastKnown: what the owner said was left, once, and for so long.
func TestLastKnown(t *testing.T) {
	play(t, Rule{Source: LastKnown, KnownFor: 30 * time.Second},
		step{0, "check 1", "unknown"},
		step{0, "learn 5", ""},
		step{1 * time.Second, "check 3", "allowed, 2 left"},
		step{2 * time.Second, "check 3", "denied, 2 left, again in 1s"},
		step{2 * time.Second, "check 2", "allowed, 0 left"},
		step{29 * time.Second, "check 1", "denied, 0 left, again in 1s"},
		step{30 * time.Second, "check 1", "unknown"},
		step{40 * time.Second, "learn 0", ""},
		step{41 * time.Second, "check 1", "denied, 0 left, again in 1s"},
	)
}

// TestOwnerThatComesAndGoes: an owner that answers now and then does not learn what was admitted
// without it, so that is not admitted twice.
func TestOwnerThatComesAndGoes(t *testing.T) {
	play(t, Rule{Source: LastKnown, KnownFor: 30 * time.Second},
		step{0, "learn 5", ""},
		step{1 * time.Second, "check 4", "allowed, 1 left"},
		step{2 * time.Second, "learn 5", ""},
		step{3 * time.Second, "check 2", "denied, 1 left, again in 1s"},
		step{3 * time.Second, "check 1", "allowed, 0 left"},
		step{4 * time.Second, "learn 5", ""},
		step{31 * time.Second, "check 4", "allowed, 0 left"},
	)
}

// TestAnswersThatOvertakeEachOther: what was asked later is what is known.
func TestAnswersThatOvertakeEachOther(t *testing.T) {
	table, r := New(), &Rule{Source: LastKnown, KnownFor: time.Minute}
	table.Learn("k", "l", Known{At: 2 * second, Remaining: 1, Capacity: 9}, 3*second)
	table.Learn("k", "l", Known{At: 1 * second, Remaining: 9, Capacity: 9}, 4*second)
	if a, why := table.Decide("k", "l", r, 2, false, 5*second); why != Decided || a.Allowed || a.Remaining != 1 {
		t.Errorf("%+v %d", a, why)
	}
}

// TestRulesThatChange: tokens count for the longest time that a rule has said, and for the rules
// after it.
func TestRulesThatChange(t *testing.T) {
	table := New()
	long, short := &Rule{Source: LocalCap, Cap: 5, Period: time.Minute}, &Rule{Source: LocalCap, Cap: 5, Period: time.Second}
	for i, s := range []struct {
		r    *Rule
		at   int64
		cost uint64
		want bool
	}{
		{short, 0, 1, true}, {long, second / 2, 3, true}, {short, 30 * second, 1, true}, {long, 32 * second, 2, false},
		{short, 59 * second, 1, false}, {short, 61 * second, 4, true}, {short, 62 * second, 1, false}, {short, 121 * second, 5, true}, {short, 122 * second, 5, true},
	} {
		if a, why := table.Decide("k", "l", s.r, s.cost, false, s.at); why != Decided || a.Allowed != s.want {
			t.Errorf("step %d: %+v %d", i, a, why)
		}
	}
}

// TestFullTableRefuses: where there is no room, nothing is admitted, and nothing is forgotten that
// counts.
func TestFullTableRefuses(t *testing.T) {
	table, r := New(), &Rule{Source: LocalCap, Cap: 1, Period: time.Minute}
	admitted := []string{}
	for i := range 2 * MaxKeys {
		key := fmt.Sprint(i)
		switch a, why := table.Decide(key, "l", r, 1, false, second); {
		case why == Decided && a.Allowed:
			admitted = append(admitted, key)
		case why != Full:
			t.Fatalf("%s: %+v %d", key, a, why)
		}
	}
	if len(admitted) > MaxKeys || len(admitted) < MaxKeys*9/10 {
		t.Fatalf("%d of %d", len(admitted), MaxKeys)
	}
	for i := range MaxKeys { // answers of owners take no places of those
		table.Learn(fmt.Sprint("x", i), "l", Known{At: second, Remaining: 9}, second)
	}
	for _, key := range admitted {
		if a, why := table.Decide(key, "l", r, 1, false, 60*second); why != Decided || a.Allowed {
			t.Fatalf("%s, again: %+v %d", key, a, why)
		}
	}
	if a, why := table.Decide("new", "l", r, 1, false, 61*second); why != Decided || !a.Allowed {
		t.Errorf("when they count no more: %+v %d", a, why)
	}
}

// TestKnownEntriesGiveWay: answers of owners that were not needed make room.
func TestKnownEntriesGiveWay(t *testing.T) {
	table := New()
	for i := range 4 * MaxKeys {
		table.Learn(fmt.Sprint(i), "l", Known{At: second, Remaining: 9}, second)
	}
	n := 0
	for i := range table.shards {
		n += len(table.shards[i].cells)
	}
	if n != MaxKeys {
		t.Errorf("%d entries", n)
	}
	if a, why := table.Decide("new", "l", &Rule{Source: LocalCap, Cap: 1, Period: time.Minute}, 1, false, second); why != Decided || !a.Allowed {
		t.Errorf("%+v %d", a, why)
	}
}

// TestNoMoreThanStated: whatever callers do, one table admits at most the cap in any time shorter than
// the period, at most what the owner said last, and at most the most that it said in any time
// shorter than KnownFor.
func TestNoMoreThanStated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rule{Source: LocalCap, Cap: rapid.Uint64Range(1, 20).Draw(t, "cap"), Period: time.Duration(rapid.Int64Range(1000, 1_000_000).Draw(t, "period"))}
		span := int64(r.Period)
		if rapid.Bool().Draw(t, "known") {
			r = Rule{Source: LastKnown, KnownFor: MinKnown}
			span = int64(MinKnown)
		}
		type hit struct {
			at int64
			n  uint64
		}
		var hits []hit
		var known, since, most uint64
		var heard int64
		table, now := New(), int64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += rapid.Int64Range(0, span/3).Draw(t, "pause")
			cost, peek := rapid.Uint64Range(1, 8).Draw(t, "cost"), rapid.Bool().Draw(t, "peek")
			if r.Source == LastKnown && rapid.IntRange(0, 5).Draw(t, "answers") == 0 {
				known, since, heard = rapid.Uint64Range(0, 20).Draw(t, "left"), 0, now
				most = max(most, known)
				table.Learn("k", "l", Known{At: now, Remaining: known, Capacity: 20}, now)
			}
			a, why := table.Decide("k", "l", &r, cost, peek, now)
			if why == Decided && r.Source == LastKnown && now-heard >= span {
				t.Fatalf("decided by an answer of %d ns ago", now-heard)
			}
			if again, _ := table.Decide("k", "l", &r, cost, true, now); !a.Allowed && again.Allowed {
				t.Fatalf("refused, and a peek says otherwise")
			}
			if !a.Allowed || peek {
				continue
			}
			hits = append(hits, hit{now, cost})
			since += cost
			if r.Source == LastKnown && since > known {
				t.Fatalf("%d admitted of %d", since, known)
			}
			sum := uint64(0)
			for i := len(hits) - 1; i >= 0 && now-hits[i].at < span; i-- {
				sum += hits[i].n
			}
			if bound := max(r.Cap, most); sum > bound {
				t.Fatalf("%d in less than %d ns, by a bound of %d", sum, span, bound)
			}
		}
	})
}

// TestAllOrNone: of limits that are decided together, each goes by its rule, and nothing is spent unless all allow it.
func TestAllOrNone(t *testing.T) {
	table := New()
	few, many, known := &Rule{Source: LocalCap, Cap: 2, Period: time.Minute}, &Rule{Source: LocalCap, Cap: 9, Period: time.Minute}, &Rule{Source: LastKnown, KnownFor: time.Minute}
	parts := []Part{{"many", many, 3}, {"known", known, 1}, {"few", few, 1}}
	if a, why := table.DecideAll("k", parts, false, second); why != Unknown || a != nil {
		t.Errorf("the owner said nothing of one: %+v %d", a, why)
	}
	table.Learn("k", "known", Known{At: second, Remaining: 5, Capacity: 7, Epoch: 3}, second)
	for i, want := range []struct {
		peek    bool
		allowed [3]bool
		left    [3]uint64
	}{
		{true, [3]bool{true, true, true}, [3]uint64{6, 4, 1}},
		{false, [3]bool{true, true, true}, [3]uint64{6, 4, 1}},
		{false, [3]bool{true, true, true}, [3]uint64{3, 3, 0}},
		{false, [3]bool{true, true, false}, [3]uint64{0, 2, 0}},
		{false, [3]bool{true, true, false}, [3]uint64{0, 2, 0}},
	} {
		a, why := table.DecideAll("k", parts, want.peek, 2*second)
		for j := range a {
			if a[j].Allowed != want.allowed[j] || a[j].Remaining != want.left[j] || (a[j].RetryAfter == 0) != want.allowed[j] {
				t.Errorf("step %d, %s: %+v", i, parts[j].Name, a[j])
			}
		}
		if why != Decided || a[1].Epoch != 3 || a[1].Capacity != 7 {
			t.Errorf("step %d: %+v %d", i, a, why)
		}
	}
	if a, why := table.Decide("k", "many", many, 3, false, 2*second); why != Decided || !a.Allowed || a.Remaining != 0 {
		t.Errorf("one of them by itself: %+v %d", a, why)
	}
}

// TestAllHaveRoom: in a table that is full, limits that are decided together do not take the places of each other.
func TestAllHaveRoom(t *testing.T) {
	table, r := New(), &Rule{Source: LocalCap, Cap: 1, Period: time.Minute}
	for i := range 2 * MaxKeys {
		table.Decide(fmt.Sprint(i), "l", r, 1, false, second)
	}
	sh := table.shard("k")
	for at := range sh.cells { // room for one
		delete(sh.cells, at)
		break
	}
	parts := []Part{{"a", r, 1}, {"b", r, 1}}
	for range 1000 { // which entries are looked at is chance
		if a, why := table.DecideAll("k", parts, false, second); why != Full || a != nil {
			t.Errorf("%+v %d", a, why)
		}
	}
	if n := len(sh.cells); n > MaxKeys/shards {
		t.Errorf("%d entries", n)
	}
	if a, why := table.DecideAll("k", parts, false, 62*second); why != Decided || !a[0].Allowed || !a[1].Allowed {
		t.Errorf("when there is room: %+v %d", a, why)
	}
	if a, why := table.DecideAll("k", parts, false, 63*second); why != Decided || a[0].Allowed || a[1].Allowed {
		t.Errorf("again: %+v %d", a, why)
	}
}

// TestNoMoreThanStatedTogether: whatever is decided together with what, and also by itself, each limit admits at most its
// bound in any time shorter than its period, and a step that one limit refuses spends nothing of the others.
func TestNoMoreThanStatedTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type hit struct {
			at int64
			n  uint64
		}
		type level struct {
			rule        Rule
			span        int64
			hits        []hit
			most        uint64
			known, left uint64 // of LastKnown
			heard       bool
		}
		levels := make([]*level, rapid.IntRange(1, 4).Draw(t, "levels"))
		name := func(i int) string { return string(rune('a' + i)) }
		for i := range levels {
			x := &level{rule: Rule{Source: LocalCap, Cap: rapid.Uint64Range(1, 20).Draw(t, "cap"), Period: time.Duration(rapid.Int64Range(int64(MinKnown)/4, 4*int64(MinKnown)).Draw(t, "period"))}}
			if x.span, x.most = int64(x.rule.Period), x.rule.Cap; rapid.IntRange(0, 2).Draw(t, "known") == 0 {
				x.rule, x.span, x.most = Rule{Source: LastKnown, KnownFor: MinKnown}, int64(MinKnown), 0
			}
			levels[i] = x
		}
		table, now := New(), int64(0)
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			now += rapid.Int64Range(0, int64(MinKnown)/3).Draw(t, "pause")
			peek := rapid.IntRange(0, 3).Draw(t, "peek") == 0
			var parts []Part
			var of []*level
			for i, x := range levels {
				if x.rule.Source == LastKnown && rapid.IntRange(0, 3).Draw(t, "answers") == 0 {
					x.known, x.heard = rapid.Uint64Range(0, 20).Draw(t, "left"), true
					x.left, x.most = x.known, max(x.most, x.known)
					table.Learn("k", name(i), Known{At: now, Remaining: x.known, Capacity: 20}, now)
				}
				if rapid.IntRange(0, 3).Draw(t, "asked") > 0 {
					parts, of = append(parts, Part{name(i), &x.rule, rapid.Uint64Range(1, 8).Draw(t, "cost")}), append(of, x)
				}
			}
			before := map[string]Answer{}
			for _, p := range parts {
				before[p.Name], _ = table.Decide("k", p.Name, p.Rule, 1, true, now)
			}
			answers, why := table.DecideAll("k", parts, peek, now)
			all := why == Decided
			for _, a := range answers {
				all = all && a.Allowed
			}
			if !all || peek {
				for _, p := range parts {
					if after, _ := table.Decide("k", p.Name, p.Rule, 1, true, now); after != before[p.Name] {
						t.Fatalf("%s: %+v after %+v, and nothing was admitted", p.Name, after, before[p.Name])
					}
				}
				continue
			}
			for i, p := range parts {
				x := of[i]
				if x.rule.Source == LastKnown {
					if !x.heard || p.Cost > x.left {
						t.Fatalf("%s: %d admitted of %d", p.Name, p.Cost, x.left)
					}
					x.left -= p.Cost
				}
				x.hits = append(x.hits, hit{now, p.Cost})
				sum := uint64(0)
				for j := len(x.hits) - 1; j >= 0 && now-x.hits[j].at < x.span; j-- {
					sum += x.hits[j].n
				}
				if sum > x.most {
					t.Fatalf("%s: %d in less than %d ns, by a bound of %d", p.Name, sum, x.span, x.most)
				}
			}
		}
	})
}

// TestRuleIsJudged: what is out of range is named as the API names it.
func TestRuleIsJudged(t *testing.T) {
	minute := time.Minute
	for _, c := range []struct {
		r     Rule
		field string
	}{
		{Rule{}, ""},
		{Rule{Budget: time.Second}, ""},
		{Rule{Source: LocalCap, Cap: 1, Period: minute}, ""},
		{Rule{Source: LastKnown, KnownFor: minute, Budget: MinBudget}, ""},
		{Rule{Source: 9}, "fallback.source"},
		{Rule{Source: LocalCap, Period: minute}, "fallback.cap"},
		{Rule{Source: LocalCap, Cap: limit.MaxLimit + 1, Period: minute}, "fallback.cap"},
		{Rule{Source: LocalCap, Cap: 1}, "fallback.period_ns"},
		{Rule{Source: LocalCap, Cap: 1, Period: -1}, "fallback.period_ns"},
		{Rule{Source: LocalCap, Cap: 1, Period: 367 * 24 * time.Hour}, "fallback.period_ns"},
		{Rule{Source: LocalCap, Cap: 1, Period: minute, KnownFor: 1}, "fallback.known_for_ns"},
		{Rule{Source: LastKnown}, "fallback.known_for_ns"},
		{Rule{Source: LastKnown, KnownFor: 25 * time.Hour}, "fallback.known_for_ns"},
		{Rule{Source: LastKnown, KnownFor: minute, Cap: 1}, "fallback.cap"},
		{Rule{Source: LastKnown, KnownFor: minute, Budget: 1}, "fallback.budget_ns"},
		{Rule{Source: LastKnown, KnownFor: minute, Budget: -1}, "fallback.budget_ns"},
		{Rule{Source: LastKnown, KnownFor: minute, Budget: time.Minute}, "fallback.budget_ns"},
	} {
		var e *failure.Error
		if err := c.r.Validate(); (c.field == "") != (err == nil) || err != nil && (!errors.As(err, &e) || e.Field != c.field) {
			t.Errorf("%+v: %v", c.r, err)
		}
	}
}

// TestWaitLeavesRoom: the caller has time left for the answer.
func TestWaitLeavesRoom(t *testing.T) {
	for _, c := range []struct{ budget, left, want time.Duration }{
		{0, 0, 187500 * time.Microsecond}, {time.Second, 0, 750 * time.Millisecond},
		{time.Second, 100 * time.Millisecond, 75 * time.Millisecond}, {100 * time.Millisecond, time.Hour, 75 * time.Millisecond},
	} {
		if got := (&Rule{Budget: c.budget}).Wait(c.left); got != c.want {
			t.Errorf("%v: %s", c, got)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]Rule{
		"none":              {},
		"local-cap:10/1m":   {Source: LocalCap, Cap: 10, Period: time.Minute},
		"local_cap:1_000/s": {Source: LocalCap, Cap: 1000, Period: time.Second},
		"last-known:30s":    {Source: LastKnown, KnownFor: 30 * time.Second},
		"last-known:1d":     {Source: LastKnown, KnownFor: 24 * time.Hour},
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%s: %+v %v", text, got, err)
		}
	}
	for _, text := range []string{"", "open", "none:1", "local-cap", "local-cap:5", "last-known:", "last-known:x"} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), "local-cap:10/1m") {
			t.Errorf("%q: %+v %v", text, got, err)
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	table, r := New(), &Rule{Source: LastKnown, KnownFor: time.Minute}
	now := second
	table.Learn("k", "l", Known{At: now, Remaining: 1e9, Capacity: 1e9}, now)
	for range 100 {
		now++
		table.Decide("k", "l", r, 1, false, now)
	}
	if n := testing.AllocsPerRun(100, func() {
		now++
		table.Learn("k", "l", Known{At: now, Remaining: 1e9, Capacity: 1e9}, now)
		table.Decide("k", "l", r, 1, false, now)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkLearn(b *testing.B) {
	table, now := New(), second
	for b.Loop() {
		now++
		table.Learn("a key of some length", "limit", Known{At: now, Remaining: 9, Capacity: 9}, now)
	}
}
