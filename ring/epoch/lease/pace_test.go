package lease

import (
	"math/rand/v2"
	"testing"
	"time"
)

// clocks are those of a node and of a leader, and a network between them.
type clocks struct {
	real         int64
	node, leader float64 // seconds counted in a second
	paused       int64   // that the node's clock has not counted
	delay        func() int64
}

// exchange has a renewal sent and answered.
func (c *clocks) exchange() Exchange {
	own := func() int64 { return int64(float64(c.real-c.paused) * c.node) }
	e := Exchange{Sent: own()}
	c.real += c.delay()
	e.Leader = 77 + int64(float64(c.real)*c.leader)
	c.real += c.delay()
	e.Answered = own()
	return e
}

var paceConfig = Config{TTL: int64(2 * time.Second), Margin: int64(50 * time.Millisecond)}

// TestPace: one that is found to be apart, and after how long.
func TestPace(t *testing.T) {
	lan := func() int64 { return int64(200 * time.Microsecond) }
	for _, c := range []struct {
		name         string
		node, leader float64
		within       time.Duration // 0 = never
	}{
		{"alike", 1, 1, 0},
		{"NTP at its ordinary most, both", 1 - 500e-6, 1 + 500e-6, 0},
		{"within the margin", 0.99, 1.01, 0},
		{"the leader is slow", 1, 0.9, 0},
		{"the leader is fast", 1, 1.04, 20 * time.Second},
		{"the node is slow", 0.92, 1, 5 * time.Second},
		{"both", 0.92, 1.08, 5 * time.Second},
	} {
		var p Pace
		x := clocks{real: int64(time.Hour), node: c.node, leader: c.leader, delay: lan}
		began, apart := x.real, time.Duration(0)
		for apart == 0 && x.real-began < int64(10*time.Minute) {
			e := x.exchange()
			p.Observe(paceConfig, 3, e)
			if p.Apart(e.Answered) {
				apart = time.Duration(x.real - began)
			}
			x.real += paceConfig.TTL / 3
		}
		if (apart > 0) != (c.within > 0) || apart > c.within {
			t.Errorf("%s: apart after %v", c.name, apart)
		}
	}
}

// TestPaceOfMessages: late messages, each way, by seconds, are not clocks.
func TestPaceOfMessages(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var p Pace
		x := clocks{real: int64(time.Hour), node: 1 - 0.01*rnd.Float64(), leader: 1 + 0.01*rnd.Float64()}
		x.delay = func() int64 {
			if rnd.IntN(5) == 0 {
				return rnd.Int64N(int64(5 * time.Second))
			}
			return rnd.Int64N(int64(100 * time.Millisecond))
		}
		for range 500 {
			if by := p.Observe(paceConfig, 3, x.exchange()); by > 0 {
				t.Fatalf("the leader's clock is said to have gained %v", time.Duration(by))
			}
			x.real += rnd.Int64N(paceConfig.TTL)
		}
	}
}

// TestPaceOfAPause: clocks that stand still while renewals go on are found to be behind
// several times, and are not apart for that. Clocks that are apart are found so again after
// a change of the leader.
func TestPaceOfAPause(t *testing.T) {
	var p Pace
	x := clocks{real: int64(time.Hour), node: 1, leader: 1, delay: func() int64 { return int64(time.Millisecond) }}
	p.Observe(paceConfig, 3, x.exchange())
	found := 0
	for range 5 {
		x.real, x.paused = x.real+int64(400*time.Millisecond), x.paused+int64(400*time.Millisecond)
		e := x.exchange()
		if p.Observe(paceConfig, 3, e) > 0 {
			found++
		}
		if p.Apart(e.Answered) {
			t.Error("a pause counts as a difference of rates")
		}
	}
	if found < 2 {
		t.Errorf("found %d times, want more", found)
	}
	x.node = 0.9
	x.paused -= int64(float64(x.real-x.paused) * (1 - 1/x.node)) // its clock goes on from where it is
	for _, term := range []uint64{4, 5} {
		apart := false
		for range 12 {
			e := x.exchange()
			first := p.term != term
			p.Observe(paceConfig, term, e)
			if apart = p.Apart(e.Answered); first && apart {
				t.Errorf("in term %d: apart before anything is known", term)
			}
			x.real += paceConfig.TTL / 3
		}
		if !apart {
			t.Errorf("in term %d: never apart", term)
		}
	}
}

// TestPaceOfAPausedGuest: what the node was granted does not count when its clocks have
// stood still; then all is well again. With another leader there is nothing to compare.
func TestPaceOfAPausedGuest(t *testing.T) {
	var p Pace
	x := clocks{real: int64(time.Hour), node: 1, leader: 1, delay: func() int64 { return int64(time.Millisecond) }}
	p.Observe(paceConfig, 3, x.exchange())
	x.real += int64(30 * time.Second)
	p.Observe(paceConfig, 3, x.exchange())
	x.real, x.paused = x.real+int64(time.Second), x.paused+int64(time.Second)
	if by := time.Duration(p.Observe(paceConfig, 3, x.exchange())); by < 900*time.Millisecond || by > time.Second {
		t.Errorf("after a pause of a second: %v", by)
	}
	for range 20 {
		x.real += paceConfig.TTL / 3
		e := x.exchange()
		if by := p.Observe(paceConfig, 3, e); by > 0 || p.Apart(e.Answered) {
			t.Errorf("after it: %v", time.Duration(by))
		}
	}
	x.real, x.paused = x.real+int64(time.Second), x.paused+int64(time.Second)
	if by := p.Observe(paceConfig, 4, x.exchange()); by > 0 {
		t.Errorf("of another leader: %v", time.Duration(by))
	}
}
