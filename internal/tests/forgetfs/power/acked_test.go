package power

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
)

// interval is the default of --durability-interval.
const interval = time.Second

// workers is how many clients there are of each kind.
const workers = 3

// load is what clients do, and what they were told.
type load struct {
	meters  []*meter
	latches []*latch
	id      uint64          // the greatest that was answered
	given   map[uint64]bool // of several nodes, each of which gives its own in order: all that were answered; nil = of one
}

func newLoad() *load {
	x := &load{}
	for i := range workers {
		x.meters = append(x.meters, newCounter(fmt.Sprint("c", i)), newLimit(fmt.Sprint("l", i)))
		x.latches = append(x.latches, &latch{key: fmt.Sprint("k", i)})
	}
	return x
}

// run has all clients work, each over a connection of its own, until it is stopped.
func (x *load) run(t *testing.T, addr string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	with := func(f func(c *client.Client)) {
		wg.Go(func() {
			c, err := client.Dial(ctx, addr)
			if err != nil {
				return
			}
			defer c.Close()
			f(c)
		})
	}
	for _, m := range x.meters {
		m.acked, m.pending = nil, ""
		with(func(c *client.Client) { m.work(t, ctx, c) })
	}
	for _, l := range x.latches {
		l.acked, l.pending = nil, ""
		with(func(c *client.Client) { l.work(t, ctx, c) })
	}
	with(func(c *client.Client) {
		for ctx.Err() == nil {
			id, err := c.NextID(ctx)
			if err != nil {
				return
			}
			x.saw(t, id)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// oldest returns the moment from which answers may be lost: an answer tells that no change
// that is not on disk is older than the interval. It was given after its call had begun.
func (x *load) oldest() time.Time {
	var begun time.Time
	for _, m := range x.meters {
		if len(m.acked) > 0 && m.acked[len(m.acked)-1].begun.After(begun) {
			begun = m.acked[len(m.acked)-1].begun
		}
	}
	for _, l := range x.latches {
		if l.begun.After(begun) {
			begun = l.begun
		}
	}
	return begun.Add(-interval)
}

func (x *load) answers() (n int) {
	for _, m := range x.meters {
		n += len(m.acked)
	}
	for _, l := range x.latches {
		n += len(l.acked)
	}
	return n
}

func (x *load) check(t *testing.T, c *client.Client, always bool) (lost int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	before := x.oldest()
	for _, m := range x.meters {
		lost += m.check(t, ctx, c, always, before)
	}
	for _, l := range x.latches {
		lost += l.check(t, ctx, c, always, before)
	}
	id, err := c.NextID(ctx)
	must(t, err)
	x.saw(t, id)
	return lost
}

// saw checks an id that was answered.
func (x *load) saw(t *testing.T, id uint64) {
	if x.given == nil && id <= x.id || x.given[id] {
		t.Errorf("id %d after %d", id, x.id)
	}
	if x.id = max(x.id, id); x.given != nil {
		x.given[id] = true
	}
}

// A node that keeps its state on disk has what it acknowledged when it is back after kill -9
// and after a power cut: all of it under always, and under interval all but that of the last
// second, whose loss is declared. Tokens and ids never fall.
func TestAcknowledged(t *testing.T) {
	for i, durability := range []string{"always", "interval"} {
		t.Run(durability, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(*seed, uint64(3+i)))
			n := newLone(t, "--durability", durability, "--max-lock-ttl", lockTTL.String())
			x := newLoad()
			n.start()
			n.await().Close()
			answers, lost, cuts := 0, 0, 0
			var slowest, all time.Duration
			for cycle := range *cycles {
				stop := x.run(t, n.addr)
				pause(time.Duration(50+r.IntN(700)) * time.Millisecond)
				if r.IntN(10) == 0 { // more than an interval
					pause(interval)
				}
				if r.IntN(3) == 0 {
					n.kill()
				} else {
					n.cut(cycle, r)
					cuts++
				}
				stop()
				if r.IntN(4) == 0 { // it is cut off once more, while it starts
					n.start()
					pause(time.Duration(r.IntN(200)) * time.Millisecond)
					n.cut(cycle+1, r)
					cuts++
				}
				answers += x.answers()
				began := time.Now()
				n.start()
				c := n.await()
				took := time.Since(began)
				slowest, all = max(slowest, took), all+took
				lost += x.check(t, c, durability == "always")
				c.Close()
				if t.Failed() {
					t.Fatalf("cycle %d of seed %d", cycle, *seed)
				}
			}
			t.Logf("%s: %d deaths under load, %d power cuts in all: %d operations acknowledged, %d of them lost; served after %s, %s at most",
				durability, *cycles, cuts, answers, lost, (all / time.Duration(max(1, *cycles))).Round(time.Millisecond), slowest.Round(time.Millisecond))
		})
	}
}
