package owner

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/limit"
)

// TestNoMoreAfterSettlements: through admits, settlements, expiries and takeovers, a limit that comes back bit
// by bit has never more than if what is settled had cost from the beginning what it did in the end.
func TestNoMoreAfterSettlements(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		algorithm := rapid.SampledFrom([]limit.Algorithm{limit.TokenBucket, limit.SlidingWindow, limit.LeakyBucket}).Draw(t, "algorithm")
		p := limit.Params{Algorithm: algorithm, Limit: rapid.Uint64Range(1, 20).Draw(t, "limit"), Period: rapid.Int64Range(1, 20).Draw(t, "period") * second}
		if algorithm != limit.SlidingWindow {
			p.Burst = rapid.Uint64Range(1, 40).Draw(t, "burst")
		}
		s, to := newStore(outer, nil), &changesTo{}
		follow := func() {
			to = &changesTo{}
			to.store = newStore(outer, func(c *Config) { c.Rule = ownsNothing })
			s.cfg.Sink, s.partial = to, to
		}
		follow()
		type event struct {
			id     admission.ID
			p      limit.Params // in force
			made   int64
			until  int64
			cost   uint64 // as it stands
			held   uint64
			open   bool
			charge bool
		}
		var all []event
		now, seq := int64(0), uint64(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += rapid.Int64Range(0, 3000).Draw(t, "later") * (second / 1000)
			s.Wake(now)
			must(s.InspectAdmission(now, gate7, admission.ID{}, 1))
			for i := range all {
				if e := &all[i]; e.open && now >= e.until {
					if e.cost = e.held; !e.charge {
						e.cost = 0
					}
				}
			}
			seq++
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case what < 5:
				d := Demand{Demand: admission.Demand{Term: admission.Term{Of: admission.Limit, Name: "a", Params: p}, Cost: rapid.Uint64Range(1, p.Capacity()).Draw(t, "cost")}}
				op := Admit{Demands: []Demand{d}, Hold: rapid.Int64Range(100, 9000).Draw(t, "hold") * (second / 1000), Charge: rapid.Bool().Draw(t, "charge")}
				if a := must(s.Admit(now, gate7, id(seq), op, nil)); a.Admitted {
					all = append(all, event{id: a.Hold, p: p, made: now, until: now + op.Hold, cost: d.Cost, held: d.Cost, open: true, charge: op.Charge})
				}
			case what < 7:
				var open []int
				for i := range all {
					if all[i].open {
						open = append(open, i)
					}
				}
				if len(open) == 0 {
					continue
				}
				e := &all[rapid.SampledFrom(open).Draw(t, "which")]
				e.open, e.cost = false, rapid.Uint64Range(0, 30).Draw(t, "real")
				if a := must(s.Settle(now, gate7, id(seq), e.id, []Cost{{"a", e.cost}}, false)); a.Phase == admission.Unknown {
					t.Fatalf("%+v", e)
				}
			default:
				to.store.cfg.Rule = &testRule{epoch: 100 + seq}
				s = to.store
				follow()
				s.Export(func() int64 { return now }, always, to.emit, func() bool { return true })
			}
			var ideal limit.State
			var marks []limit.Mark
			for _, e := range slices.Clone(all) {
				if e.cost != 0 {
					ideal, marks = ideal.Take(e.p, e.cost, slices.Clone(marks), e.made, 0)
				}
			}
			a := must(s.Check(now, under7("a"), noID, limit.Op{Params: p, Cost: 1, Peek: true}))
			want := ideal.Used(slices.Clone(marks), now)
			if got := a.Remaining; got > p.Capacity()-min(p.Capacity(), want) {
				t.Fatalf("%d remain of %d, with %d spent: %+v", got, p.Capacity(), want, all)
			}
		}
	})
}
