package owner

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/limit"
)

func bucketOf(name string, cost, of uint64, period int64) Demand {
	d := tokens(name, cost, of)
	d.Params = limit.Params{Limit: of, Period: period}
	return d
}

// TestAdmitUnderAnOverride: an override beats what a demand states, as it does for a check; what an estimate reserves is
// a share of it, and debt is what is spent beyond it.
func TestAdmitUnderAnOverride(t *testing.T) {
	f := follower{t: t, to: newStore(t, nil)}
	s := newStore(t, func(c *Config) { c.Sink = &f })
	must(s.SetOverride(0, under7("a"), noID, over(20, 3600*second), 60*second))
	h := admit(t, s, 0, id(1), 600*second, tokens("a", 15, 10), bounded("jobs", 1, 5))
	if !h.Admitted || h.Demands[0].Capacity != 20 || h.Demands[0].Remaining != 5 || !h.Demands[0].Overridden || h.Demands[1].Overridden {
		t.Fatalf("%+v", h)
	}
	if a := admit(t, s, second, noID, 0, tokens("a", 25, 30)); a.Admitted || a.RetryAfter != 3599*second || a.Demands[0].Remaining != 5 || a.Demands[0].Capacity != 20 || a.Demands[0].Debt != 0 {
		t.Errorf("more than there can be: %+v", a)
	}
	clamped := tokens("a", 1000, 10)
	clamped.Clamp = 20
	if a := must(s.Admit(second, gate7, noID, Admit{Demands: []Demand{clamped}, Peek: true}, nil)); !a.Admitted || a.Demands[0].Reserved != 4 || a.Demands[0].Remaining != 1 {
		t.Errorf("clamped: %+v", a)
	}
	for _, s := range []*Store{f.to, s} {
		if a := must(s.Admit(60*second-1, gate7, noID, Admit{Demands: []Demand{tokens("a", 5, 10)}, Peek: true}, nil)); !a.Admitted || a.Demands[0].Capacity != 20 {
			t.Errorf("at its end: %+v", a)
		}
		a := must(s.Admit(60*second, gate7, noID, Admit{Demands: []Demand{tokens("a", 1, 10)}, Peek: true}, nil))
		if d := a.Demands[0]; a.Admitted || d.Capacity != 10 || d.Remaining != 0 || d.Debt != 5 || d.Overridden {
			t.Errorf("when it is over: %+v", a)
		}
	}
	if _, err := s.Admit(60*second, gate7, noID, Admit{Demands: []Demand{tokens("a", 15, 10)}}, nil); reason(err) != failure.Invalid || err.(*failure.Error).Field != "demands[0].cost" {
		t.Errorf("more than there can ever be: %v", err)
	}
	if again := must(f.to.Admit(61*second, gate7, retry(1, 61*second), Admit{Demands: []Demand{tokens("a", 15, 10), bounded("jobs", 1, 5)}, Hold: 600 * second}, nil)); !again.Replayed || !again.Admitted || again.Hold != h.Hold {
		t.Errorf("%+v", again)
	}
	if b := must(s.Settle(61*second, gate7, noID, h.Hold, []Cost{{"a", 12}}, false)); b.Costs[0].Back != 3 || b.Costs[0].Debt != 2 {
		t.Errorf("%+v", b)
	}
	must(s.SetOverride(62*second, under7("a"), noID, over(1, 3600*second), 0))
	if a := admit(t, s, 62*second, noID, 0, tokens("a", 2, 10)); a.Admitted || a.RetryAfter != math.MaxInt64 || a.Demands[0].Remaining != 0 || a.Demands[0].Debt != 11 {
		t.Errorf("one that does not end: %+v", a)
	}
}

// TestHoldOfAnOverrideThatEnds: what came back while an override was in force does not come back again when it is over,
// nor when it has begun meanwhile.
func TestHoldOfAnOverrideThatEnds(t *testing.T) {
	ms := second / 1000
	fast := over(100, second)
	fast.Burst = 1000
	to := &changesTo{}
	s := newStore(t, func(c *Config) { c.Sink = to })
	to.store = newStore(t, func(c *Config) { c.Rule = ownsNothing })
	must(s.SetOverride(0, under7("a"), noID, fast, 500*ms))
	h := admit(t, s, 0, id(1), 60*second, bucketOf("a", 1000, 10, 10*second))
	must(s.Check(600*ms, under7("a"), noID, limit.Op{Params: bucketOf("a", 1, 10, 10*second).Params, Cost: 1})) // of 1 a second again
	if b := must(s.Settle(700*ms, gate7, noID, h.Hold, nil, true)); b.Costs[0].Back != 930 {
		t.Errorf("%+v", b)
	}
	slow := bucketOf("b", 200, 1, second)
	slow.Params.Burst = 200
	h = admit(t, s, second, id(2), 60*second, slow)
	must(s.SetOverride(second, under7("b"), noID, fast, 0))
	must(s.Check(second, under7("b"), noID, limit.Op{Params: slow.Params, Cost: 1}))
	to.store.cfg.Rule = &testRule{epoch: 200}
	for _, s := range []*Store{to.store, s} {
		if b := must(s.Settle(second+500*ms, gate7, noID, h.Hold, nil, true)); b.Costs[0].Back != 150 {
			t.Errorf("%+v", b)
		}
	}
}

// TestAdmitByTheCalendar: a demand of a calendar window is settled in its period; later nothing comes back of it, and debt
// goes to the one that is on.
func TestAdmitByTheCalendar(t *testing.T) {
	f := follower{t: t, to: dated(t, &datedRule{wall: evening}, nil)}
	rule := &datedRule{wall: evening}
	s := dated(t, rule, &f)
	day := func(cost uint64) Demand {
		d := tokens("day", cost, 10)
		d.Params = daily(t, 10, 1).Params
		return d
	}
	left := func(s *Store, at int64) uint64 {
		t.Helper()
		return must(s.Check(at, under7("day"), noID, peekAt(daily(t, 10, 1)))).Remaining
	}
	first, late, debt, lapsed := admit(t, s, 0, id(1), 5*hour, day(3)), admit(t, s, 0, id(2), 5*hour, day(3)), admit(t, s, 0, id(3), 5*hour, day(1)), admit(t, s, 0, id(4), 2*hour, day(1))
	if a := admit(t, s, 0, noID, 0, day(3)); a.Admitted || a.RetryAfter != hour || a.Demands[0].Remaining != 2 {
		t.Errorf("%+v", a)
	}
	if b := must(s.Settle(hour/2, gate7, noID, first.Hold, []Cost{{"day", 1}}, false)); b.Costs[0].Back != 2 || left(s, hour/2) != 4 {
		t.Errorf("in its period: %+v", b)
	}
	if b := must(s.Settle(hour, gate7, noID, late.Hold, nil, true)); b.Costs[0].Back != 0 || left(s, hour) != 10 {
		t.Errorf("in a later one: %+v", b)
	}
	for _, s := range []*Store{f.to, s} {
		if b := must(s.Settle(hour, gate7, noID, debt.Hold, []Cost{{"day", 15}}, false)); b.Costs[0].Taken != 14 || b.Costs[0].Debt != 4 || left(s, hour) != 0 {
			t.Errorf("debt: %+v", b)
		}
	}
	if a := admit(t, s, 2*hour, noID, 0, day(1)); a.Admitted || a.Demands[0].Debt != 4 || a.RetryAfter != 23*hour {
		t.Errorf("in debt: %+v", a)
	}
	s.Wake(2 * hour)
	if b := must(s.Settle(2*hour, gate7, noID, lapsed.Hold, nil, true)); b.Phase != admission.Released || left(s, 25*hour) != 10 {
		t.Errorf("%+v", b)
	}
	op := Admit{Demands: []Demand{day(2)}, Hold: 2 * hour}
	h := must(s.Admit(25*hour, gate7, id(5), op, nil))
	rule.wall = 0
	if _, err := s.Admit(25*hour, gate7, noID, op.spent(), nil); reason(err) != failure.Unavailable {
		t.Errorf("nobody knows the time: %v", err)
	}
	if _, err := s.Settle(25*hour, gate7, noID, h.Hold, nil, true); reason(err) != failure.Unavailable {
		t.Errorf("nobody knows the time: %v", err)
	}
	if again := must(s.Admit(25*hour, gate7, retry(5, 25*hour), op, nil)); !again.Replayed || again.Hold != h.Hold {
		t.Errorf("%+v", again)
	}
	s.Wake(27 * hour) // it cannot end, and is tried again
	rule.wall = evening
	s.Wake(27*hour + endAgain)
	if n := left(s, 27*hour+endAgain); n != 10 {
		t.Errorf("%d left", n)
	}
}

// spent is the same without a hold.
func (op Admit) spent() Admit {
	op.Hold = 0
	return op
}

// TestLateReleaseIsNotCarriedOver: what is carried over is what was left when the period ended, holds included.
func TestLateReleaseIsNotCarriedOver(t *testing.T) {
	s := dated(t, &datedRule{wall: evening}, nil)
	d := tokens("day", 8, 10)
	d.Params = daily(t, 10, 1).Params
	d.Params.Burst = 15
	h := admit(t, s, 0, id(1), 5*hour, d)
	if b := must(s.Settle(hour, gate7, noID, h.Hold, nil, true)); b.Costs[0].Back != 0 {
		t.Errorf("%+v", b)
	}
	d.Cost = 1
	if a := admit(t, s, hour, noID, 0, d); a.Demands[0].Capacity != 12 || a.Demands[0].Remaining != 11 {
		t.Errorf("%+v", a)
	}
	d.Cost, d.Clamp = 100, 100
	if a := must(s.Admit(25*hour, gate7, noID, Admit{Demands: []Demand{d}, Peek: true}, nil)); !a.Admitted || a.Demands[0].Reserved != 10 {
		t.Errorf("an estimate reserves what there is in any period: %+v", a)
	}
}

// TestAdmitSpaced: a demand of a leaky bucket passes when its turn is now; its turn does not come back.
func TestAdmitSpaced(t *testing.T) {
	s := newStore(t, nil)
	d := tokens("turns", 1, 10)
	d.Params = limit.Params{Algorithm: limit.LeakyBucket, Limit: 10, Period: second}
	h := admit(t, s, 0, id(1), 60*second, d, tokens("a", 3, 10))
	if a := admit(t, s, 0, noID, 0, d, tokens("a", 3, 10)); a.Admitted || a.RetryAfter != second/10 || a.Demands[1].Refused {
		t.Errorf("%+v", a)
	}
	turn := must(s.Check(0, under7("turns"), noID, limit.Op{Params: d.Params, Cost: 1, MaxDelay: second}))
	if !turn.Allowed || turn.Delay != second/10 {
		t.Errorf("%+v", turn)
	}
	if b := must(s.Settle(0, gate7, noID, h.Hold, nil, true)); b.Costs[0].Back != 0 || b.Costs[1].Back != 3 {
		t.Errorf("%+v", b)
	}
	if a := admit(t, s, second/10, noID, 0, d); a.Admitted || a.RetryAfter != second/10 {
		t.Errorf("beside a turn that was told: %+v", a)
	}
	h = admit(t, s, second/5, id(2), 60*second, d)
	if b := must(s.Settle(second/5, gate7, noID, h.Hold, []Cost{{"turns", 3}}, false)); !h.Admitted || b.Costs[0].Taken != 2 {
		t.Errorf("%+v %+v", h, b)
	}
	if a := admit(t, s, second/5, noID, 0, d); a.Admitted || a.RetryAfter != 3*second/10 {
		t.Errorf("what it has cost in the end moves the next turn: %+v", a)
	}
}

// TestConservationOfWindows: through admits, retries, settlements, expiries, takeovers, overrides that begin and end, and
// the end of a day, what is spent of a window is what is charged to it, held and owed, exactly, and an Admit never
// takes it above what is in force.
func TestConservationOfWindows(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		rule := &datedRule{testRule: testRule{epoch: 100}, wall: evening + hour - 60*second}
		day := daily(outer, 50, 1).Params
		s, to := dated(outer, rule, nil), &changesTo{}
		follow := func() {
			to = &changesTo{}
			to.store = newStore(outer, func(c *Config) { c.Rule = ownsNothing })
			to.store.dates = rule
			s.cfg.Sink, s.partial = to, to
		}
		follow()
		type held struct {
			id            admission.ID
			cost          uint64
			until, period int64
			charge, over  bool
		}
		var holds []held
		var window, today uint64 // spent
		capacity := [2]uint64{50, 50}
		now, seq, period := int64(0), uint64(0), int64(0)
		take := func(n uint64) { window, today = window+n, today+n }
		back := func(h *held, n uint64) {
			if window -= n; h.period == period {
				today -= n
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(0, 3).Draw(t, "later") * second
			if p := (rule.wall + now) / (24 * hour); p != period {
				period, today = p, 0
			}
			must(s.InspectAdmission(now, gate7, admission.ID{}, 1)) // lets time pass
			for i := range holds {
				if h := &holds[i]; now >= h.until && !h.over {
					if h.over = true; !h.charge {
						back(h, h.cost)
					}
				}
			}
			seq++
			switch what := rapid.IntRange(0, 10).Draw(t, "what"); {
			case what < 5:
				cost := rapid.Uint64Range(1, 30).Draw(t, "cost")
				op := Admit{Demands: []Demand{tokens("window", cost, 50), tokens("day", cost, 50)}, Hold: rapid.Int64Range(1, 9).Draw(t, "hold") * second, Charge: rapid.Bool().Draw(t, "charge")}
				op.Demands[1].Params = day
				a := must(s.Admit(now, gate7, id(seq), op, nil))
				if want := window+cost <= capacity[0] && today+cost <= capacity[1]; a.Admitted != want {
					t.Fatalf("%+v with %d and %d of %v spent", a, window, today, capacity)
				}
				if a.Admitted {
					take(cost)
					holds = append(holds, held{a.Hold, cost, now + op.Hold, period, op.Charge, false})
				}
				for i, d := range a.Demands {
					if spent := []uint64{window, today}[i]; d.Capacity != capacity[i] || !a.Admitted && d.Refused && (d.Remaining != capacity[i]-min(capacity[i], spent) || d.Debt != spent-min(capacity[i], spent)) {
						t.Fatalf("%+v with %d of %d spent", d, spent, capacity[i])
					}
				}
			case what < 8 && len(holds) > 0:
				i := rapid.IntRange(0, len(holds)-1).Draw(t, "which")
				h, cost := holds[i], rapid.Uint64Range(0, 60).Draw(t, "real")
				holds = append(holds[:i:i], holds[i+1:]...)
				a := must(s.Settle(now, gate7, id(seq), h.id, []Cost{{"window", cost}, {"day", cost}}, false))
				charged := h.cost
				if h.over && !h.charge {
					charged = 0
				}
				if cost > charged {
					take(cost - charged)
				} else {
					back(&h, charged-cost)
				}
				if a.Costs[0].Debt != window-min(window, capacity[0]) || a.Costs[1].Debt != today-min(today, capacity[1]) {
					t.Fatalf("%+v with %d and %d of %v spent", a, window, today, capacity)
				}
			case what == 8:
				i := rapid.IntRange(0, 1).Draw(t, "of")
				ref := under7([]string{"window", "day"}[i])
				capacity[i] = 50
				if rapid.Bool().Draw(t, "ends") {
					must(s.ClearOverride(now, ref, id(seq)))
				} else {
					capacity[i] = rapid.Uint64Range(1, 100).Draw(t, "override")
					must(s.SetOverride(now, ref, id(seq), over(capacity[i], hour), 0))
				}
			case what == 9: // the owner dies, and its standby takes over
				to.store.cfg.Rule = &testRule{epoch: 100 + seq}
				s = to.store
				follow()
				s.Export(func() int64 { return now }, always, to.emit, func() bool { return true })
			default:
				s.Wake(now)
			}
			check := func(name string, op limit.Op, want uint64) {
				a := must(s.Check(now, under7(name), noID, peekAt(op)))
				if a.Remaining != a.Capacity-min(a.Capacity, want) {
					t.Fatalf("%s: %+v, with %d spent", name, a, want)
				}
			}
			check("window", limit.Op{Params: tokens("", 1, 50).Params}, window)
			check("day", limit.Op{Params: day}, today)
		}
	})
}
