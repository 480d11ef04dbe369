package chunk

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/limit"
)

// spending is tokens of a market that were spent, or may be.
type spending struct {
	at, cost int64
	back     bool // they were given back
	of       *cell
	taken    Taken
}

// spends checks that an exact bucket has all that was spent, when it was taken.
func (m *market) spends(t rapid.TB, all []*spending) {
	var exact limit.State
	for _, x := range all {
		if x.back {
			continue
		}
		next, res, _ := limit.Apply(exact, limit.Op{Params: m.params, Cost: uint64(x.cost)}, x.at)
		if !res.Allowed {
			t.Fatalf("%d are spent at %d of an exact bucket that has %d", x.cost, x.at, res.Remaining)
		}
		exact = next
	}
}

// TestTakenIsNeverTooMuch: nodes that take tokens out of chunks, and give back what they do not need, early or late,
// never spend what an exact bucket would refuse, and hold no more than they may.
func TestTakenIsNeverTooMuch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &market{params: limit.Params{
			Limit: rapid.Uint64Range(1, 10_000).Draw(t, "limit"), Period: rapid.Int64Range(1e8, 1e10).Draw(t, "period"),
			Burst: rapid.Uint64Range(80, 2_000).Draw(t, "burst"),
		}, now: 1}
		n := rapid.IntRange(2, 5).Draw(t, "nodes")
		for range n {
			m.nodes = append(m.nodes, &cell{})
		}
		most := Cap(m.params.Burst, n)
		var all, open []*spending
		pick := func() *cell { return m.nodes[rapid.IntRange(0, n-1).Draw(t, "node")] }
		end := func(t *rapid.T) *spending {
			if len(open) == 0 {
				t.Skip("nothing is taken")
			}
			i := rapid.IntRange(0, len(open)-1).Draw(t, "taken")
			x := open[i]
			open = append(open[:i:i], open[i+1:]...)
			return x
		}
		get := func(t *rapid.T, take bool) {
			c, cost := pick(), rapid.Uint64Range(1, min(20, most)).Draw(t, "cost")
			for range 2 {
				x := &spending{at: m.now, cost: int64(cost), of: c}
				ok := false
				if take {
					if x.taken, ok = c.take(m.now, cost); ok {
						open = append(open, x)
					}
				} else {
					ok = c.spend(m.now, cost)
				}
				if ok {
					all = append(all, x)
					return
				}
				if cost > c.room(most) {
					return
				}
				least, best := c.wants(m.now, cost, cost+rapid.Uint64Range(0, 100).Draw(t, "others"), most)
				tokens := rapid.SampledFrom([]uint64{least, best}).Draw(t, "tokens")
				if ok, told := m.charge(tokens); ok {
					c.took(m.now, m.now, tokens, told)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				for _, c := range m.nodes {
					if m.now < c.until && c.left+c.taken > most {
						t.Fatalf("%d are held and %d taken of %d", c.left, c.taken, most)
					}
				}
			},
			"time":    func(t *rapid.T) { m.now += rapid.Int64Range(0, int64(2*Lease)).Draw(t, "ns") },
			"moment":  func(t *rapid.T) { m.now += rapid.Int64Range(0, 1e8).Draw(t, "ns") },
			"take":    func(t *rapid.T) { get(t, true) },
			"take on": func(t *rapid.T) { get(t, true) },
			"spend":   func(t *rapid.T) { get(t, false) },
			"keep":    func(t *rapid.T) { x := end(t); x.of.keep(m.now, &x.taken) },
			"give": func(t *rapid.T) {
				x := end(t)
				x.of.lapse(m.now) // what is over may stay until somebody looks
				had, terms := x.of.left, x.of.terms
				x.of.give(m.now, &x.taken)
				x.back = true
				want, late := had, false
				if m.now < x.taken.until && terms == x.taken.terms {
					want, late = had+uint64(x.cost), x.of.until > x.taken.until
				}
				if x.of.left != want || late {
					t.Fatalf("%d are left until %d, want %d, until %d", x.of.left, x.of.until, want, x.taken.until)
				}
			},
			"aside": func(t *rapid.T) {
				cost := rapid.Uint64Range(1, m.params.Burst/2).Draw(t, "cost")
				if ok, _ := m.charge(cost); ok {
					all = append(all, &spending{at: m.now, cost: int64(cost)})
				}
			},
			"other parameters": func(*rapid.T) { pick().forget() },
		})
		m.spends(t, all)
	})
}
