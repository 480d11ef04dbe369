package member

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/serf/serf"
	"github.com/keystead/keystead/internal/tests/sim/gossip"
)

// at returns the gossip address of node i in a bubble.
func at(i int) string { return fmt.Sprintf("10.0.0.%d:7946", i) }

// inBubble returns the configuration of node i on a simulated network: n1 and so on,
// which join the first.
func inBubble(n *gossip.Network, i int) Config {
	return Config{Self: self(fmt.Sprintf("n%d", i)), Transport: n.Transport(at(i)), Join: []string{at(1)}, Profile: LAN}
}

// form starts nodes 1 to k, stopped with the bubble, and waits until all are there.
func form(t *testing.T, n *gossip.Network, k int, tune func(*serf.Config)) []*Pool {
	t.Helper()
	var pools []*Pool
	for i := 1; i <= k; i++ {
		cfg := inBubble(n, i)
		cfg.tune = tune
		pools = append(pools, start(t, cfg))
	}
	for _, p := range pools {
		within(t, 2*time.Minute, "forming", func() bool { return strings.Count(shows(p), "alive") == k })
	}
	return pools
}

// bubble runs a test in simulated time. After the pools are stopped it lets time
// go on, so that the probes that memberlist had under way end: there is no way to
// break them off, and a bubble ends only when everything in it has.
func bubble(t *testing.T, test func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) })
		test(t)
	})
}

// within fails unless the condition comes about in this time.
func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", d, what)
		}
	}
}

// TestCutAndHeal isolates one of five: the others see it failed, and it them;
// after the cut all see all.
func TestCutAndHeal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := gossip.NewNetwork(1)
		pools := form(t, n, 5, nil)
		n.Isolate(at(3), true)
		awaitIn := func(want string, who ...int) {
			t.Helper()
			for _, i := range who {
				within(t, 2*time.Minute, want, func() bool { return shows(pools[i-1]) == want })
			}
		}
		awaitIn("n1 alive, n2 alive, n3 failed, n4 alive, n5 alive", 1, 2, 4, 5)
		awaitIn("n1 failed, n2 failed, n3 alive, n4 failed, n5 failed", 3)
		if pools[2].Joined() {
			t.Error("the one that is alone is joined")
		}
		n.Isolate(at(3), false)
		awaitIn("n1 alive, n2 alive, n3 alive, n4 alive, n5 alive", 1, 2, 3, 4, 5)
	})
}

// TestLossyNetwork runs five minutes with a tenth of the packets lost, some doubled and
// all reordered. Nobody may be shown as failed at the end, and few in between.
func TestLossyNetwork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := gossip.NewNetwork(2)
		pools := form(t, n, 5, nil)
		n.SetLoss(0.1)
		n.SetDuplicates(0.1)
		n.SetDelay(time.Millisecond, 50*time.Millisecond)
		began := pools[0].Stats().Changes
		time.Sleep(5 * time.Minute)
		within(t, time.Minute, "all alive", func() bool { return strings.Count(shows(pools[0]), "alive") == 5 })
		if c := pools[0].Stats().Changes - began; c > 4 {
			t.Errorf("%d changes in five minutes of a steady pool", c)
		}
	})
}

// TestReunion cuts the pool in two until both parts have forgotten each other,
// and heals the cut: {1, 2} and {3, 4}, and {1} and the rest.
func TestReunion(t *testing.T) {
	for _, tt := range []struct {
		name string
		part []int
	}{
		{name: "halves", part: []int{1, 2}},
		{name: "one alone", part: []int{4}},
		{name: "the one that others joined", part: []int{1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n := gossip.NewNetwork(3)
				pools := form(t, n, 4, func(c *serf.Config) { c.ReconnectTimeout = time.Minute })
				inPart := map[int]bool{}
				for _, i := range tt.part {
					inPart[i] = true
				}
				for i := 1; i <= 4; i++ {
					for k := 1; k <= 4; k++ {
						if inPart[i] != inPart[k] {
							n.Cut(at(i), at(k), true)
						}
					}
				}
				for i, p := range pools {
					want := len(tt.part)
					if !inPart[i+1] {
						want = 4 - len(tt.part)
					}
					within(t, 5*time.Minute, "forgotten", func() bool { return len(p.Facts()) == want })
				}
				n.Heal()
				for _, p := range pools {
					within(t, 5*time.Minute, "together again", func() bool { return strings.Count(shows(p), "alive") == 4 })
				}
			})
		})
	}
}

// TestReunionWithoutTheFirst cuts two apart whose only address to join belongs to
// a node that is gone: they find each other at the addresses that they remember.
func TestReunionWithoutTheFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := gossip.NewNetwork(11)
		pools := form(t, n, 3, func(c *serf.Config) { c.ReconnectTimeout = time.Minute })
		pools[0].Stop()
		n.Isolate(at(3), true)
		for _, p := range pools[1:] {
			within(t, 5*time.Minute, "alone", func() bool { return len(p.Facts()) == 1 })
		}
		n.Heal()
		for _, p := range pools[1:] {
			within(t, time.Minute, "together again", func() bool { return shows(p) == "n2 alive, n3 alive" })
		}
	})
}

// TestFlappingInBubble stops a member's packets for moments: it comes and goes at
// the others faster than they settle, and they show no change of it.
func TestFlappingInBubble(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := gossip.NewNetwork(4)
		settle := func(i int) Config {
			cfg := inBubble(n, i)
			cfg.Settle = MaxSettle
			return cfg
		}
		a, b := start(t, settle(1)), start(t, settle(2))
		within(t, 5*time.Minute, "both", func() bool { return shows(a) == "n1 alive, n2 alive" && shows(b) == shows(a) })
		before, flaps := a.Stats().Changes, 0
		for range 5 {
			n.Isolate(at(2), true)
			within(t, MaxSettle, "n2 failed, for serf", func() bool { return a.around.Load().ours == 0 })
			flaps++
			n.Isolate(at(2), false)
			within(t, MaxSettle, "n2 alive, for serf", func() bool { return a.around.Load().ours == 1 })
		}
		if got := a.Stats().Changes; got != before {
			t.Errorf("%d changes of a member that flapped %d times", got-before, flaps)
		}
		n.Isolate(at(2), true)
		within(t, 3*MaxSettle, "shown as failed in the end", func() bool { return shows(a) == "n1 alive, n2 failed" })
	})
}

// TestBurst starts many members at once, whose coming is few changes.
func TestBurst(t *testing.T) {
	const many = 30
	bubble(t, func(t *testing.T) {
		n := gossip.NewNetwork(5)
		first := start(t, inBubble(n, 1))
		for i := 2; i <= many; i++ {
			start(t, inBubble(n, i))
		}
		within(t, 3*time.Minute, "all there", func() bool { return strings.Count(shows(first), "alive") == many })
		if c := first.Stats().Changes; c > many/3 {
			t.Errorf("%d changes for %d members that came together", c, many-1)
		}
	})
}

// TestSteals starts a second process of one name while the first lives: both go
// on, and the conflict is shown and logged once.
func TestSteals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := gossip.NewNetwork(6)
		var log recorded
		cfg := inBubble(n, 1)
		cfg.Log = log.logger()
		a, b := start(t, cfg), start(t, inBubble(n, 2))
		within(t, 2*time.Minute, "both", func() bool { return shows(a) == "n1 alive, n2 alive" && shows(b) == shows(a) })
		twin := inBubble(n, 3)
		twin.Self = self("n2")
		c := start(t, twin)
		within(t, 2*time.Minute, "shown", func() bool { return fact(a, "n2").Conflict == at(3) })
		within(t, time.Minute, "shown by the twin", func() bool { return fact(c, "n2").Conflict == at(2) })
		time.Sleep(10 * time.Minute)
		if got := fact(a, "n2"); got.Addr != at(2) || got.State != Alive || got.Conflict != at(3) {
			t.Errorf("after ten minutes: %v", got)
		}
		if got := log.count("two processes claim one name"); got != 1 {
			t.Errorf("logged %d times; %v", got, &log)
		}
		c.Stop()
		within(t, 5*time.Minute, "over", func() bool { return fact(a, "n2").Conflict == "" && fact(a, "n2").State == Alive })
	})
}

// TestMoves restarts a node at another address at once, long before the old one
// is found to have failed. The others must come to know the new address soon after
// that, and not only when whole states come round by chance, in half a minute or so.
func TestMoves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := gossip.NewNetwork(7)
		pools := form(t, n, 3, nil)
		pools[1].Stop()
		cfg := inBubble(n, 9)
		cfg.Self = self("n2")
		cfg.Self.Incarnation = 2
		moved := start(t, cfg)
		for _, p := range []*Pool{pools[0], pools[2], moved} {
			within(t, 25*time.Second, "the new address", func() bool {
				f := fact(p, "n2")
				return f.State == Alive && f.Addr == at(9) && f.Self.Incarnation == 2
			})
		}
		for _, p := range []*Pool{pools[0], pools[2], moved} {
			within(t, 5*time.Minute, "no conflict", func() bool { return fact(p, "n2").Conflict == "" })
		}
	})
}

// TestRestartsAtOnce restarts a node at its address, before anybody noticed.
func TestRestartsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := gossip.NewNetwork(8)
		pools := form(t, n, 3, nil)
		for inc := uint64(2); inc < 6; inc++ {
			pools[1].Stop()
			cfg := inBubble(n, 2)
			cfg.Self.Incarnation = inc
			pools[1] = start(t, cfg)
			for _, p := range pools {
				within(t, 2*time.Minute, "the new incarnation", func() bool {
					f := fact(p, "n2")
					return f.State == Alive && f.Self.Incarnation == inc
				})
			}
		}
	})
}

// TestLeaveThroughACut leaves when nobody can hear it: Leave ends, and Stop does.
func TestLeaveThroughACut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := gossip.NewNetwork(9)
		pools := form(t, n, 3, nil)
		n.Isolate(at(3), true)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := pools[2].Leave(ctx); err != context.DeadlineExceeded {
			t.Errorf("Leave with little time: %v", err)
		}
		if err := pools[2].SetSelf(self("n3")); err != ErrStopped {
			t.Errorf("SetSelf while leaving: %v", err)
		}
		began := time.Now()
		pools[2].Stop()
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("stopping took %v", d)
		}
		if err := pools[2].Leave(t.Context()); err != ErrStopped {
			t.Errorf("Leave after Stop: %v", err)
		}
	})
}

// TestNewEncounter has the alone node find a pool that comes up later, at an
// address that it was told; one line says that it is not there, one that it is.
func TestNewEncounter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := gossip.NewNetwork(10)
		var log recorded
		cfg := inBubble(n, 2)
		cfg.Log = log.logger()
		early := start(t, cfg)
		time.Sleep(time.Hour)
		if early.Joined() || log.count("cannot join the pool yet") != 1 {
			t.Errorf("after an hour alone: joined %v, %v", early.Joined(), &log)
		}
		if tries := early.Stats().JoinTries; tries < 500 || tries > 2000 {
			t.Errorf("%d tries in an hour", tries)
		}
		late := inBubble(n, 1)
		late.Join = nil
		start(t, late)
		within(t, 2*joinMost, "joined", early.Joined)
		time.Sleep(time.Minute)
		if log.count("joined the pool") != 1 {
			t.Errorf("after joining: %v", &log)
		}
	})
}

// TestFreshForAll has one of the others know of an event for longer than a gossip
// takes, as after a cut: it is an old one, although this process ran all the time.
// And it has only one of three others know of it.
func TestFreshForAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := gossip.NewNetwork(21)
		pools := form(t, n, 4, nil)
		said := Event{Name: "keystead-drain", Payload: []byte("n4"), LTime: 1}
		pools[2].seen.note(time.Now(), said.digest())
		time.Sleep(2 * spreading)
		if err := pools[0].Announce(said.Name, said.Payload); err != nil {
			t.Fatal(err)
		}
		e := nextEvent(t, pools[3])
		if err := pools[3].Fresh(t.Context(), e); e.LTime != 1 || !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), "n3 has known of it for 1") {
			t.Errorf("event %d: %v", e.LTime, err)
		}

		few := Event{Name: "keystead-drain", LTime: 99}
		for _, i := range []int{0, 3} {
			pools[i].seen.note(time.Now(), few.digest())
		}
		if err := pools[3].Fresh(t.Context(), few); err == nil || err.Error() != "of 3 other nodes 3 have answered, and 1 know of it" {
			t.Errorf("known to few: %v", err)
		}
		pools[1].seen.note(time.Now(), few.digest())
		if err := pools[3].Fresh(t.Context(), few); err != nil {
			t.Errorf("known to most: %v", err)
		}
		n.Isolate(at(4), true)
		time.AfterFunc(hearing+2500*time.Millisecond, func() { n.Isolate(at(4), false) })
		if err := pools[3].Fresh(t.Context(), few); err != nil {
			t.Errorf("the first question is lost: %v", err)
		}
		n.Isolate(at(4), true)
		if err := pools[3].Fresh(t.Context(), few); err == nil || errors.Is(err, ErrStale) {
			t.Errorf("cut off: %v", err)
		}
	})
}
