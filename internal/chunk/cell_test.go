package chunk

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/limit"
)

// TestShares: all nodes of a table hold no more than half of what is kept back, and
// where nothing is kept back they hold nothing.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		burst, nodes := rapid.Uint64Range(0, limit.MaxLimit).Draw(t, "burst"), rapid.IntRange(2, 128).Draw(t, "nodes")
		if slack, all := Slack(burst), uint64(nodes)*Cap(burst, nodes); 2*all > slack+1 || slack > burst/4 {
			t.Errorf("%d nodes hold %d of %d kept back", nodes, all, slack)
		}
	})
	if Slack(minBurst-1) != 0 || Cap(minBurst-1, 1) != 0 || Cap(minBurst, 2) != 1 || Slack(1000) != 250 || Cap(1000, 3) != 41 {
		t.Error("other shares")
	}
}

// market is a bucket at its owner, the nodes that take chunks of it, and an exact
// bucket of which only what callers were allowed is spent.
type market struct {
	owner, exact limit.State
	params       limit.Params
	now          int64
	nodes        []*cell
	flights      []*flight // by node; nil = none
	spent, lost  uint64    // tokens, by callers, and by the end of leases
}

// flight is a call to the owner.
type flight struct {
	cost, least uint64
	tokens      uint64
	sent        int64
	charged     bool
	told        Report
}

func (m *market) charge(tokens uint64) (bool, Report) {
	p := m.params
	p.Burst -= Slack(p.Burst)
	next, res, _ := limit.Apply(m.owner, limit.Op{Params: p, Cost: tokens}, m.now)
	m.owner = next
	return res.Allowed, Report{Remaining: res.Remaining, RetryAfter: res.RetryAfter, ResetAfter: res.ResetAfter}
}

// spend is what a caller is told at a node, if the node can say.
func (m *market) spend(t rapid.TB, c *cell, cost uint64) bool {
	had := c.left
	c.lapse(m.now)
	m.lost += had - c.left
	if !c.spend(m.now, cost) {
		return false
	}
	m.spendExact(t, cost)
	return true
}

func (m *market) spendExact(t rapid.TB, cost uint64) {
	m.spent += cost
	next, res, _ := limit.Apply(m.exact, limit.Op{Params: m.params, Cost: cost}, m.now)
	if !res.Allowed {
		t.Fatalf("%d are spent of an exact bucket that has %d", cost, res.Remaining)
	}
	m.exact = next
}

// TestNeverTooMuch: nodes that take chunks whenever they may, with answers that are
// late or lost and nodes that die, never spend what an exact bucket would refuse.
func TestNeverTooMuch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &market{params: limit.Params{
			Limit: rapid.Uint64Range(1, 10_000).Draw(t, "limit"), Period: rapid.Int64Range(1e8, 1e10).Draw(t, "period"),
			Burst: rapid.Uint64Range(80, 2_000).Draw(t, "burst"),
		}, now: 1}
		n := rapid.IntRange(2, 5).Draw(t, "nodes")
		m.flights = make([]*flight, n)
		for range n {
			m.nodes = append(m.nodes, &cell{})
		}
		most := Cap(m.params.Burst, n)
		node := func() int { return rapid.IntRange(0, n-1).Draw(t, "node") }
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				held := uint64(0)
				for _, c := range m.nodes {
					if m.now < c.until {
						held += c.left
					}
				}
				if held > Slack(m.params.Burst) {
					t.Fatalf("%d are held of %d", held, Slack(m.params.Burst))
				}
			},
			"time":   func(t *rapid.T) { m.now += rapid.Int64Range(0, int64(2*Lease)).Draw(t, "ns") },
			"moment": func(t *rapid.T) { m.now += rapid.Int64Range(0, 1e6).Draw(t, "ns") },
			"call": func(t *rapid.T) {
				i, cost := node(), rapid.Uint64Range(1, min(20, most)).Draw(t, "cost")
				c := m.nodes[i]
				if m.flights[i] != nil || m.spend(t, c, cost) {
					return
				}
				if left, refused := c.refuses(m.now, cost); refused {
					if ok, _ := m.peek(cost - c.left); ok && left > int64(Rest) {
						t.Fatalf("%d are refused, and could be had", cost)
					}
					return
				}
				waiting := cost + rapid.Uint64Range(0, 100).Draw(t, "others")
				least, best := c.wants(m.now, cost, waiting, most)
				if least > best || best+c.left > max(most, cost) {
					t.Fatalf("%d to %d tokens with %d for %d, and at most %d", least, best, c.left, cost, most)
				}
				m.flights[i] = &flight{cost: cost, least: least, tokens: rapid.SampledFrom([]uint64{least, best}).Draw(t, "tokens"), sent: m.now}
			},
			"aside": func(t *rapid.T) { // at the owner
				for range rapid.IntRange(1, 100).Draw(t, "times") {
					cost := rapid.Uint64Range(1, m.params.Burst/2).Draw(t, "cost")
					if ok, _ := m.charge(cost); ok {
						m.spendExact(t, cost)
					}
				}
			},
			"arrive": func(t *rapid.T) {
				f := m.flights[node()]
				if f == nil || f.told != (Report{}) {
					return
				}
				f.charged, f.told = m.charge(f.tokens)
				if f.told.Owner = "n"; f.charged { // the moment at which the caller's check takes effect
					m.spendExact(t, f.cost)
				}
			},
			"answer": func(t *rapid.T) {
				i := node()
				f, c := m.flights[i], m.nodes[i]
				switch {
				case f == nil || f.told == (Report{}) || m.now-f.sent >= int64(Lease):
				case f.charged:
					c.took(m.now, f.sent, f.tokens, f.told)
					c.spend(m.now, f.cost)
				case f.tokens == f.least:
					c.deny(m.now, f.sent, f.cost, f.told)
				}
				m.flights[i] = nil
			},
			"dies": func(*rapid.T) {
				i := node()
				m.nodes[i], m.flights[i] = &cell{}, nil
			},
		})
	})
}

// TestHeldTokensAreKeptBack: what a node holds, and the whole bucket that has come
// back since, are no more than an exact bucket has.
func TestHeldTokensAreKeptBack(t *testing.T) {
	m := &market{params: limit.Params{Limit: 100_000, Period: 1e9, Burst: 800}, now: 1}
	var nodes [3]cell
	most := Cap(m.params.Burst, len(nodes))
	for i := range nodes {
		_, best := nodes[i].wants(m.now, 1, most, most)
		if ok, told := m.charge(best); !ok || best != most {
			t.Fatalf("%d of %d tokens: %v", best, most, told)
		}
		nodes[i].took(m.now, m.now, best, Report{})
	}
	m.now += int64(Lease) - 1
	spent := 0
	for {
		if ok, _ := m.charge(1); !ok {
			break
		}
		m.spendExact(t, 1)
		spent++
	}
	for i := range nodes {
		for range most {
			if !m.spend(t, &nodes[i], 1) {
				t.Fatal("a token is lost")
			}
			spent++
		}
	}
	if spent != 600+3*33 {
		t.Errorf("%d were spent", spent)
	}
}

// TestLeaseOfChunks: what is added to a chunk lasts no longer than what it had.
func TestLeaseOfChunks(t *testing.T) {
	var c cell
	c.took(10, 5, 3, Report{})
	c.took(20, 15, 3, Report{})
	if end := 5 + int64(Lease); !c.spend(end-1, 5) || c.spend(end, 1) {
		t.Error("it did not last until its end, or beyond it")
	}
	c.took(7+2*int64(Lease), 6+int64(Lease), 3, Report{}) // the answer was too long on its way
	if c.spend(7+2*int64(Lease), 1) {
		t.Error("what came too late is spent")
	}
}

// peek reports whether so many tokens could be had of the owner now.
func (m *market) peek(tokens uint64) (bool, Report) {
	was := m.owner
	defer func() { m.owner = was }()
	return m.charge(max(tokens, 1))
}

// TestLittleIsLost: with calls that come as they like, at most a quarter of what is
// spent is lost, beside what was waited for.
func TestLittleIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &market{params: limit.Params{Limit: 1e9, Period: 1e9, Burst: 1e9}}
		c := &cell{}
		for range 500 {
			if rapid.IntRange(0, 30).Draw(t, "pause") == 0 {
				m.now += rapid.Int64Range(0, 3e9).Draw(t, "long")
			} else {
				m.now += rapid.Int64Range(0, 1e7).Draw(t, "ns")
			}
			cost := rapid.Uint64Range(1, 5).Draw(t, "cost")
			if !m.spend(t, c, cost) {
				_, best := c.wants(m.now, cost, cost, Cap(m.params.Burst, 3))
				c.took(m.now, m.now, best, Report{})
				m.spend(t, c, cost)
			}
			if m.lost > m.spent/4 {
				t.Fatalf("%d are lost of %d spent", m.lost, m.spent)
			}
		}
	})
}
