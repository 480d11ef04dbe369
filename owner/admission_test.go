package owner

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

var gate7 = Ref{Key: "org:7", Name: "admission"}

func under7(name string) Ref { return Ref{Key: gate7.Key, Name: name} }

func tokens(name string, cost, of uint64) Demand {
	return Demand{Demand: admission.Demand{Term: admission.Term{Of: admission.Limit, Name: name, Params: limit.Params{Algorithm: limit.FixedWindow, Limit: of, Period: 3600 * second}}, Cost: cost}}
}

func bounded(name string, cost uint64, of int64) Demand {
	return Demand{Demand: admission.Demand{Term: admission.Term{Of: admission.Counter, Name: name, Max: of}, Cost: cost}}
}

func slotsOf(name string, cost uint64, of int64) Demand {
	d := bounded(name, cost, of)
	d.Of = admission.Slots
	return d
}

func admit(t testing.TB, s *Store, now int64, id reqid.ID, ttl int64, demands ...Demand) AdmitAnswer {
	t.Helper()
	a, err := s.Admit(now, gate7, id, Admit{Demands: demands, Hold: ttl}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func spentOf(t testing.TB, s *Store, now int64, name string, of uint64) uint64 {
	t.Helper()
	a := must(s.Check(now, under7(name), noID, limit.Op{Params: tokens(name, 1, of).Params, Cost: 1, Peek: true}))
	return of - a.Remaining
}

// TestAdmitIsAllOrNothing: a demand that is refused keeps all others from being charged, and says when they
// could pass.
func TestAdmitIsAllOrNothing(t *testing.T) {
	s := newStore(t, nil)
	if a := admit(t, s, 0, noID, 0, tokens("user", 6, 10), tokens("team", 6, 20)); !a.Admitted || a.Hold != (admission.ID{}) || a.Demands[1].Remaining != 14 {
		t.Fatalf("%+v", a)
	}
	a := admit(t, s, second, noID, 0, tokens("user", 6, 10), tokens("team", 6, 20))
	if a.Admitted || !a.Demands[0].Refused || a.Demands[1].Refused || a.RetryAfter != 3599*second {
		t.Errorf("%+v", a)
	}
	if spentOf(t, s, second, "team", 20) != 6 || spentOf(t, s, second, "user", 10) != 6 {
		t.Error("a refused admit has spent")
	}
	if a := must(s.Admit(second, gate7, noID, Admit{Demands: []Demand{tokens("user", 4, 10)}, Peek: true}, nil)); !a.Admitted || spentOf(t, s, second, "user", 10) != 6 {
		t.Errorf("peek: %+v", a)
	}
	if a := admit(t, s, second, id(1), 60*second, tokens("user", 1, 10), slotsOf("slots", 3, 2+1), bounded("jobs", 2, 5)); !a.Admitted {
		t.Errorf("%+v", a)
	}
	if a := admit(t, s, second, id(2), 60*second, slotsOf("slots", 1, 3), tokens("user", 1, 10)); a.Admitted || a.RetryAfter != 0 || !a.Demands[0].Refused {
		t.Errorf("nobody knows when a slot comes back: %+v", a)
	}
}

// TestHoldIsSettled: what was used stays, the rest comes back, slots always do, and a retry acts once.
func TestHoldIsSettled(t *testing.T) {
	s := newStore(t, nil)
	demands := []Demand{tokens("tpm", 50, 100), slotsOf("slots", 1, 4), bounded("jobs", 2, 5)}
	a := admit(t, s, 0, id(1), 60*second, demands...)
	if again := admit(t, s, second, retry(1, second), 60*second, demands...); !again.Replayed || !again.Admitted || again.Hold != a.Hold || again.Left != 59*second {
		t.Errorf("%+v", again)
	}
	if _, err := s.Admit(0, gate7, id(1), Admit{Demands: demands[:1], Hold: second}, nil); reason(err) != failure.RequestIDReused {
		t.Error(err)
	}
	costs := []Cost{{"tpm", 20}, {"jobs", 4}}
	b := must(s.Settle(2*second, gate7, id(2), a.Hold, costs, false))
	if b.Phase != admission.Held || b.Costs[0].Back != 30 || b.Costs[1].Back != 1 || b.Costs[2].Taken != 2 {
		t.Errorf("%+v", b)
	}
	if again := must(s.Settle(3*second, gate7, retry(2, second), a.Hold, costs, false)); !again.Replayed || again.Phase != admission.Held {
		t.Errorf("%+v", again)
	}
	if late := must(s.Settle(3*second, gate7, id(3), a.Hold, nil, true)); late.Phase != admission.Unknown {
		t.Errorf("%+v", late)
	}
	if n := spentOf(t, s, 3*second, "tpm", 100); n != 20 {
		t.Errorf("%d spent", n)
	}
	if v := must(s.Get(3*second, under7("slots"))); v.Value != 0 {
		t.Errorf("slots: %+v", v)
	}
	if v := must(s.Get(3*second, under7("jobs"))); v.Value != 4 {
		t.Errorf("jobs: %+v", v)
	}
}

// TestOvershootIsDebt: an answer that was longer than its estimate is charged, and keeps others out until it is
// paid.
func TestOvershootIsDebt(t *testing.T) {
	s := newStore(t, nil)
	a := admit(t, s, 0, id(1), 60*second, tokens("tpm", 10, 100))
	b := must(s.Settle(second, gate7, noID, a.Hold, []Cost{{"tpm", 663}}, false))
	if b.Costs[0].Taken != 653 || b.Costs[0].Debt != 563 {
		t.Errorf("%+v", b)
	}
	if a := admit(t, s, 3599*second, noID, 0, tokens("tpm", 1, 100)); a.Admitted || a.Demands[0].Debt != 563 {
		t.Errorf("%+v", a)
	}
	if a := admit(t, s, 3600*second, noID, 0, tokens("tpm", 100, 100)); !a.Admitted {
		t.Errorf("%+v", a)
	}
}

// TestExpiryOfHolds: what nobody settles is released or charged without anybody asking, and corrected when its
// cost is told late.
func TestExpiryOfHolds(t *testing.T) {
	s := newStore(t, nil)
	op := Admit{Demands: []Demand{tokens("tpm", 10, 100), slotsOf("slots", 1, 4)}, Hold: 60 * second}
	released := must(s.Admit(0, gate7, id(1), op, nil))
	op.Charge = true
	charged := must(s.Admit(0, gate7, id(2), op, nil))
	if at, ok := s.NextWake(); !ok || at != 60*second {
		t.Fatalf("it wakes at %d", at)
	}
	s.Wake(60 * second)
	if n := spentOf(t, s, 60*second, "tpm", 100); n != 10 {
		t.Errorf("%d spent", n)
	}
	if v := must(s.Get(60*second, under7("slots"))); v.Value != 0 {
		t.Errorf("%d slots leaked", v.Value)
	}
	if e, _, err := s.Extend(61*second, gate7, charged.Hold, second); err != nil || e.Phase != admission.Charged {
		t.Errorf("%+v %v", e, err)
	}
	if b := must(s.Settle(61*second, gate7, noID, charged.Hold, []Cost{{"tpm", 4}, {"slots", 1}}, false)); b.Phase != admission.Charged || b.Costs[0].Back != 6 {
		t.Errorf("%+v", b)
	}
	if b := must(s.Settle(61*second, gate7, noID, released.Hold, []Cost{{"tpm", 7}}, false)); b.Phase != admission.Released || b.Costs[0].Taken != 7 {
		t.Errorf("%+v", b)
	}
	if n := spentOf(t, s, 62*second, "tpm", 100); n != 11 {
		t.Errorf("%d spent", n)
	}
	forgotten := must(s.Admit(62*second, gate7, id(3), op, nil))
	over := (62 + 60) * second
	s.Wake(over)
	if b := must(s.Settle(over+admission.Remember, gate7, noID, forgotten.Hold, nil, true)); b.Phase != admission.Unknown {
		t.Errorf("%+v", b)
	}
	for range 2 * len(s.shards) {
		s.Sweep(over + 10*admission.Remember)
	}
	if n := s.Stats().Objects[KindAdmission]; n != 0 {
		t.Errorf("%d admissions are left", n)
	}
}

// TestExtendedHoldStays: a stream that goes on keeps its hold.
func TestExtendedHoldStays(t *testing.T) {
	s := newStore(t, nil)
	a := admit(t, s, 0, id(1), 10*second, slotsOf("slots", 1, 1))
	for now := 5 * second; now < 60*second; now += 5 * second {
		s.Wake(now)
		if e, _, err := s.Extend(now, gate7, a.Hold, 10*second); err != nil || e.Phase != admission.Held || e.Left != 10*second {
			t.Fatalf("%+v %v", e, err)
		}
	}
	if b := admit(t, s, 60*second, id(2), second, slotsOf("slots", 1, 1)); b.Admitted {
		t.Error("a slot was given twice")
	}
	if i := must(s.InspectAdmission(60*second, gate7, admission.ID{}, 10)); i.Total != 1 || i.Holds[0].Left != 5*second || i.Holds[0].Demands[0].Name != "slots" {
		t.Errorf("%+v", i)
	}
}

// TestStepIsOneRecord: a copy has all that a step has changed, or nothing; when it takes over, it releases what
// is over by itself.
func TestStepIsOneRecord(t *testing.T) {
	to := &copyTo{}
	s := newStore(t, func(c *Config) { c.Sink = to })
	to.store = newStore(t, func(c *Config) { c.Rule = ownsNothing })
	op := Admit{Demands: []Demand{tokens("a", 3, 10), tokens("b", 3, 10), slotsOf("slots", 1, 1), bounded("c", 2, 3)}, Hold: 10 * second}
	a := must(s.Admit(0, gate7, id(1), op, nil))
	if to.records != 1 {
		t.Errorf("%d records of an admit", to.records)
	}
	must(s.Admit(0, gate7, noID, Admit{Demands: []Demand{tokens("a", 1, 10), tokens("d", 1, 10)}}, nil))
	if to.records != 2 {
		t.Errorf("%d records of an admit without a hold", to.records-1)
	}
	to.store.cfg.Rule = &testRule{epoch: 200}
	if n := spentOf(t, to.store, second, "a", 10); n != 4 {
		t.Errorf("a: %d", n)
	}
	if n := spentOf(t, to.store, second, "d", 10); n != 1 {
		t.Errorf("d: %d", n)
	}
	if again := must(to.store.Admit(second, gate7, retry(1, second), op, nil)); !again.Replayed || again.Hold != a.Hold || again.Left != 9*second {
		t.Errorf("%+v", again)
	}
	for range 2 * len(to.store.shards) { // nobody asks for it
		to.store.Sweep(10 * second)
	}
	if v := must(to.store.Get(10*second, under7("slots"))); v.Value != 0 {
		t.Errorf("slots: %+v", v)
	}
	if n := spentOf(t, to.store, 10*second, "b", 10); n != 0 {
		t.Errorf("b: %d", n)
	}
	if b := must(s.Settle(second, gate7, id(2), a.Hold, nil, true)); b.Phase != admission.Held || to.records != 3 {
		t.Errorf("%+v, %d records", b, to.records)
	}
}

// TestConservation: through admits, retries, settlements, expiries and takeovers, a counter is what is charged, held
// and owed, exactly, and an Admit never takes it above its bound.
func TestConservation(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		const most = 50
		to := &changesTo{}
		s := newStore(outer, func(c *Config) { c.Sink = to })
		to.store = newStore(outer, func(c *Config) { c.Rule = ownsNothing })
		type held struct {
			id     admission.ID
			cost   uint64
			until  int64
			charge bool
		}
		var holds []held
		var charged int64 // for good, or until told otherwise, and by hand
		now, seq := int64(0), uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(0, 3).Draw(t, "later") * second
			seq++
			switch what := rapid.IntRange(0, 10).Draw(t, "what"); {
			case what < 5:
				cost := rapid.Uint64Range(1, 20).Draw(t, "cost")
				op := Admit{Demands: []Demand{bounded("used", cost, most), slotsOf("slots", 1, 6)}, Hold: rapid.Int64Range(1, 9).Draw(t, "hold") * second, Charge: rapid.Bool().Draw(t, "charge")}
				before := must(s.Get(now, under7("used"))).Value
				a := must(s.Admit(now, gate7, id(seq), op, nil))
				if a.Admitted {
					if before+int64(cost) > most && before == must(s.Get(now, under7("used"))).Value-int64(cost) {
						t.Fatal("above the bound")
					}
					holds = append(holds, held{a.Hold, cost, now + op.Hold, op.Charge})
				}
				if again := must(s.Admit(now, gate7, id(seq), op, nil)); !again.Replayed || again.Admitted != a.Admitted {
					t.Fatalf("%+v", again)
				}
			case what < 8 && len(holds) > 0:
				i := rapid.IntRange(0, len(holds)-1).Draw(t, "which")
				h, cost := holds[i], rapid.Uint64Range(0, 30).Draw(t, "real")
				holds = append(holds[:i:i], holds[i+1:]...)
				if a := must(s.Settle(now, gate7, id(seq), h.id, []Cost{{"used", cost}}, false)); a.Phase == admission.Unknown {
					t.Fatalf("%+v is unknown", h)
				}
				charged += int64(cost)
				must(s.Settle(now, gate7, id(seq), h.id, []Cost{{"used", cost}}, false))
			case what == 8:
				s.Wake(now)
			case what == 9: // below 0, too
				by := rapid.Int64Range(-60, 20).Draw(t, "by hand")
				must(s.Add(now, under7("used"), noID, counter.AddOp{Delta: by}))
				charged += by
			default: // the owner dies, and its standby takes over
				to.store.cfg.Rule = &testRule{epoch: s.cfg.Rule.(*testRule).epoch + 1}
				s, to = to.store, &changesTo{}
				to.store = newStore(outer, func(c *Config) { c.Rule = ownsNothing })
				s.cfg.Sink, s.partial = to, to
				s.Export(func() int64 { return now }, always, to.emit, func() bool { return true })
			}
			must(s.InspectAdmission(now, gate7, admission.ID{}, 1)) // lets time pass
			want, inUse := charged, int64(0)
			for _, h := range holds {
				if over := now >= h.until; !over || h.charge {
					want += int64(h.cost)
				}
				if now < h.until {
					inUse++
				}
			}
			if v := must(s.Get(now, under7("used"))); v.Value != want {
				t.Fatalf("%d, not %d: %d charged, and %+v", v.Value, want, charged, holds)
			}
			if v := must(s.Get(now, under7("slots"))); v.Value != inUse {
				t.Fatalf("%d slots, not %d", v.Value, inUse)
			}
		}
	})
}

// changesTo is a copy that gets holds one by one.
type changesTo struct{ copyTo }

func (*changesTo) Partial() bool { return true }

// TestAdmitRefusesNonsense: each with the field that is wrong.
func TestAdmitRefusesNonsense(t *testing.T) {
	s := newStore(t, nil)
	many := make([]Demand, admission.MaxDemands+1)
	for i := range many {
		many[i] = tokens(fmt.Sprint(i), 1, 1)
	}
	for field, op := range map[string]Admit{
		"hold_ns":                  {Demands: many[:1], Hold: 1},
		"request_id":               {Demands: many[:1], Hold: second},
		"demands[1].name":          {Demands: []Demand{many[0], many[0]}},
		"demands[0].name":          {Demands: []Demand{tokens("admission", 1, 1)}},
		"demands[0].cost":          {Demands: []Demand{tokens("a", 2, 1)}},
		"demands[0].slots":         {Demands: []Demand{slotsOf("a", 1, 1)}},
		"demands[1].max":           {Demands: []Demand{many[0], bounded("b", 1, 0)}},
		"demands[0].of":            {Demands: []Demand{{}}},
		"demands[0].limit":         {Demands: []Demand{tokens("a", 1, 0)}},
		"demands":                  {Demands: many},
		"demands[0].clamp_percent": {Demands: []Demand{{Demand: many[0].Demand, Clamp: 101}}},
	} {
		if _, err := s.Admit(0, gate7, noID, op, nil); reason(err) != failure.Invalid || err.(*failure.Error).Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	a := admit(t, s, 0, id(1), second, tokens("a", 1, 5))
	if _, err := s.Settle(0, gate7, noID, a.Hold, []Cost{{"b", 1}}, false); reason(err) != failure.Invalid {
		t.Error(err)
	}
	if _, err := s.Settle(0, gate7, noID, a.Hold, []Cost{{"a", 1}}, true); reason(err) != failure.Invalid {
		t.Error(err)
	}
	must(s.Add(0, under7("n"), noID, counter.AddOp{Delta: 1}))
	if _, err := s.Admit(0, gate7, noID, Admit{Demands: []Demand{tokens("n", 1, 5)}}, nil); reason(err) != failure.KindMismatch {
		t.Error(err)
	}
}

// TestClampedEstimate: an estimate above the limit reserves a share of it, so that the first request is not refused
// for ever; what it really cost is charged.
func TestClampedEstimate(t *testing.T) {
	s := newStore(t, nil)
	d := tokens("tpm", 100_000, 1000)
	d.Clamp = 25
	a := admit(t, s, 0, id(1), 60*second, d)
	if !a.Admitted || a.Demands[0].Reserved != 250 || a.Demands[0].Remaining != 750 {
		t.Errorf("%+v", a)
	}
	if b := must(s.Settle(0, gate7, noID, a.Hold, []Cost{{"tpm", 400}}, false)); b.Costs[0].Taken != 150 {
		t.Errorf("%+v", b)
	}
	slots := slotsOf("running", 4, 8)
	slots.Clamp = 25
	for _, op := range []Admit{{Demands: []Demand{d}}, {Demands: []Demand{slots}, Hold: second}, {Demands: []Demand{slots}, Peek: true}} {
		if _, err := s.Admit(0, gate7, id(2), op, nil); reason(err) != failure.Invalid || err.(*failure.Error).Field != "demands[0].clamp_percent" {
			t.Errorf("an estimate that nothing corrects: %v", err)
		}
	}
}

// TestSlotsInGrace: holds were lost with the row, so no slot is given until they are over.
func TestSlotsInGrace(t *testing.T) {
	rule := &testRule{epoch: 100, lost: 100, terms: Terms{LockTTL: 60 * second, Grace: 90 * second}}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	if _, err := s.Admit(second, gate7, id(1), Admit{Demands: []Demand{slotsOf("s", 1, 1)}, Hold: second}, nil); reason(err) != failure.Recovering {
		t.Error(err)
	}
	if a := admit(t, s, second, id(2), second, tokens("a", 1, 1)); !a.Admitted {
		t.Errorf("%+v", a)
	}
	if _, err := s.Admit(second, gate7, id(3), Admit{Demands: []Demand{tokens("a", 1, 1)}, Hold: 61 * second}, nil); reason(err) != failure.Invalid {
		t.Errorf("a hold may outlast the grace: %v", err)
	}
}

// TestAdmissionIsBounded: as many holds as a record has room for, each of which still settles.
func TestAdmissionIsBounded(t *testing.T) {
	s := newStore(t, nil)
	var last AdmitAnswer
	for i := range uint64(admission.MaxHolds) {
		last = admit(t, s, 0, reqid.ID{Client: reqid.Client{Hi: 5, Lo: i}, Sequence: 1}, second, tokens("a", 1, 1<<39))
	}
	if _, err := s.Admit(0, gate7, id(1), Admit{Demands: []Demand{tokens("a", 1, 1<<39)}, Hold: second}, nil); reason(err) != failure.StoreFull {
		t.Error(err)
	}
	if n := spentOf(t, s, 0, "a", 1<<39); n != admission.MaxHolds {
		t.Errorf("%d spent", n)
	}
	must(s.Settle(0, gate7, noID, last.Hold, nil, true))
	admit(t, s, 0, id(1), second, tokens("a", 1, 1<<39))
	for range admission.MaxHolds / maxLapsed {
		s.Wake(second)
	}
	if n := spentOf(t, s, second, "a", 1<<39); n != 0 {
		t.Errorf("%d spent", n)
	}
}

// TestAdmitAllocatesNothing beside what it keeps.
func TestAdmitAllocatesNothing(t *testing.T) {
	s := newStore(t, nil)
	op := Admit{Demands: []Demand{tokens("a", 1, 1<<39), tokens("b", 1, 1<<39), tokens("c", 1, 1<<39), bounded("d", 1, 1<<39)}}
	to := make([]DemandAnswer, 0, 4)
	now := int64(0)
	if n := testing.AllocsPerRun(500, func() { now++; must(s.Admit(now, gate7, noID, op, to)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestHoldAllocatesNothing: a hold has the room of the one before, and its settlement is answered in the caller's.
func TestHoldAllocatesNothing(t *testing.T) {
	s := newStore(t, nil)
	op := Admit{Demands: []Demand{tokens("a", 1, 1<<39), bounded("b", 1, 1<<39)}, Hold: 60 * second}
	to, costs := make([]DemandAnswer, 0, 2), make([]CostAnswer, 0, 2)
	now, seq := int64(0), uint64(0)
	if n := testing.AllocsPerRun(500, func() {
		now, seq = now+1, seq+1
		a := must(s.Admit(now, gate7, reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: seq, Settled: seq}, op, to))
		must(s.SettleTo(now, gate7, noID, a.Hold, nil, false, costs))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAdmit(b *testing.B) {
	now := int64(0)
	bucket := func(name string) Demand {
		d := tokens(name, 1, 1<<39)
		d.Params.Algorithm = limit.TokenBucket
		return d
	}
	four := Admit{Demands: []Demand{bucket("user/rpm"), bucket("team/tpm"), bucket("org/tpm"), bucket("service")}}
	held := four
	held.Hold = 60 * second
	to, costs := make([]DemandAnswer, 0, 4), make([]CostAnswer, 0, 4)
	b.Run("check", func(b *testing.B) {
		s := newStore(b, nil)
		op := limit.Op{Params: bucket("").Params, Cost: 1}
		b.ReportAllocs()
		for b.Loop() {
			now++
			must(s.Check(now, under7("user/rpm"), noID, op))
		}
	})
	b.Run("4 demands", func(b *testing.B) {
		s := newStore(b, nil)
		b.ReportAllocs()
		for b.Loop() {
			now++
			must(s.Admit(now, gate7, noID, four, to))
		}
	})
	b.Run("2 checks with ids", func(b *testing.B) {
		s := newStore(b, nil)
		op := limit.Op{Params: bucket("").Params, Cost: 1}
		b.ReportAllocs()
		for n := uint64(1); b.Loop(); n += 2 {
			now++
			for i := range uint64(2) {
				i := reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: n + i, Settled: n + i}
				must(s.Check(now, under7("user/rpm"), i, op))
			}
		}
	})
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprintf("hold and settle of %d", n), func(b *testing.B) {
			s := newStore(b, nil)
			op := held
			op.Demands = op.Demands[:n]
			b.ReportAllocs()
			for n := uint64(1); b.Loop(); n += 2 {
				now++
				i := reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: n, Settled: n}
				a := must(s.Admit(now, gate7, i, op, to))
				i.Sequence, i.Settled = n+1, n+1
				must(s.SettleTo(now, gate7, i, a.Hold, nil, false, costs))
			}
		})
	}
}

// TestHoldOutlivesItsRequest: a hold whose request is forgotten is not made again under its id.
func TestHoldOutlivesItsRequest(t *testing.T) {
	s := newStore(t, nil)
	a := admit(t, s, 0, id(1), 3600*second, tokens("a", 1, 10))
	now := int64(2 * DefaultIDWindow)
	for range 2 * len(s.shards) {
		s.Sweep(now)
	}
	if _, err := s.Admit(now, gate7, id(1), Admit{Demands: []Demand{tokens("a", 1, 10)}, Hold: 3600 * second}, nil); reason(err) != failure.RequestIDReused {
		t.Error(err)
	}
	if b := must(s.Settle(now, gate7, noID, a.Hold, nil, true)); b.Phase != admission.Held {
		t.Errorf("%+v", b)
	}
}
