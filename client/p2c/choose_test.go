package p2c

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// fleet is n backends, each with an answer of 1 ms at 0.
func fleet(t testing.TB, n int) []*Load {
	loads := make([]*Load, n)
	for i := range loads {
		loads[i] = NewLoad(withDefaults(t, Config{}), 0)
		call(loads[i], 0, ms, Answered)
	}
	return loads
}

func TestPair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, r := rapid.IntRange(2, 1<<20).Draw(t, "n"), rapid.Uint64().Draw(t, "r")
		if i, j := pair(n, r); i == j || min(i, j) < 0 || max(i, j) >= n {
			t.Fatalf("%d and %d of %d", i, j, n)
		}
	})
	// All pairs are as likely.
	const n, draws = 5, 200_000
	rnd := rand.New(rand.NewPCG(1, 2))
	var seen [n][n]int
	for range draws {
		i, j := pair(n, rnd.Uint64())
		seen[i][j]++
	}
	for i := range n {
		for j := range n {
			if want := draws / (n * (n - 1)); i != j && (seen[i][j] < want*95/100 || seen[i][j] > want*105/100) {
				t.Errorf("%d, %d: %d times, want about %d", i, j, seen[i][j], want)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	count := func(loads []*Load, now int64) []int {
		n := make([]int, len(loads))
		for range 10_000 {
			n[Choose(loads, now, rnd.Uint64())]++
		}
		return n
	}
	if Choose(fleet(t, 1), ms, 0) != 0 {
		t.Error("of one")
	}
	for i, n := range count(fleet(t, 4), ms) {
		if n < 2300 || n > 2700 {
			t.Errorf("of four alike, %d has %d of 10,000", i, n)
		}
	}
	// Who is in no pair with a better one does not exist among four but the best.
	loads := fleet(t, 4)
	for i, l := range loads {
		for range i {
			l.Begin(ms)
		}
	}
	n := count(loads, ms)
	if n[0] < n[1] || n[1] < n[2] || n[3] != 0 {
		t.Errorf("by load: %v", n)
	}
	// Those that are up share what would go to two that are down.
	ten := fleet(t, 10)
	for _, l := range ten[2:7] {
		for range downAfter {
			l.Begin(ms)
			l.End(ms, ms, Failed)
		}
	}
	for i, n := range count(ten, ms) {
		if up := i < 2 || i >= 7; up && (n < 1700 || n > 2300) || !up && n != 0 {
			t.Errorf("of ten, five of them down, %d has %d of 10,000", i, n)
		}
	}
	// One that is down gets nothing, three neither, and four take what comes.
	for down := 1; down <= 4; down++ {
		for range downAfter {
			call(loads[down-1], ms, 1, Failed)
		}
		n := count(loads, ms)
		for i := range down {
			if down < 4 && n[i] != 0 {
				t.Errorf("%d down: %v", down, n)
			}
		}
	}
	// A new one is first, once.
	loads = append(fleet(t, 3), NewLoad(withDefaults(t, Config{}), ms))
	if n := count(loads, ms); n[3] < 4700 || n[3] > 5300 {
		t.Errorf("the new one has %d of 10,000, and is in half of all pairs", n[3])
	}
	loads[3].Begin(ms)
	if n := count(loads, ms); n[3] != 0 {
		t.Errorf("with a call under way the new one has %d", n[3])
	}
}

// A backend is probed by the first call that begins when its time is over, by one
// only, and the one that has waited longest comes first.
func TestOverdue(t *testing.T) {
	loads := fleet(t, 3)
	loads[1].Begin(2 * ms)
	loads[2].Begin(ms)
	probe := int64(DefaultProbe)
	if i, next := Overdue(loads, probe-1); i != -1 || next != probe {
		t.Errorf("%d, next %d", i, next)
	}
	if i, next := Overdue(loads, probe); i != 0 || next != probe+ms {
		t.Errorf("%d, next %d", i, next)
	}
	if i, next := Overdue(loads, probe+2*ms); i != 2 || next > probe+2*ms {
		t.Errorf("%d, next %d", i, next)
	}
	if i, next := Overdue(loads, probe+2*ms); i != 1 || next != 2*probe {
		t.Errorf("%d, next %d", i, next)
	}
	if i, next := Overdue(loads, probe+2*ms); i != -1 || next != 2*probe {
		t.Errorf("%d, next %d", i, next)
	}
}

// Whatever the loads and the times of the calls, no backend that is up waits for
// longer than its interval and the next calls, one for each backend that waits too.
func TestProbesHappen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "n")
		cfg := Config{Decay: DefaultDecay, Penalty: DefaultPenalty, Probe: time.Second}
		var loads []*Load
		var last, waits []int64 // when it was chosen, and calls since it was due
		for range n {
			loads = append(loads, NewLoad(cfg, 0))
			last, waits = append(last, 0), append(waits, 0)
		}
		c := NewChooser(loads)
		now := int64(0)
		for range rapid.IntRange(1, 300).Draw(t, "calls") {
			now += rapid.Int64Range(0, 700*ms).Draw(t, "later")
			i := c.Next(now, rapid.Uint64().Draw(t, "r"))
			slow := rapid.Int64Range(1, 500*ms).Draw(t, "took") * int64(1+i*i)
			loads[i].Begin(now)
			if rapid.Bool().Draw(t, "ends") {
				loads[i].End(now, now+slow, Answered)
			}
			for k := range loads {
				switch {
				case k == i:
					last[k], waits[k] = now, 0
				case now-last[k] >= int64(cfg.Probe):
					if waits[k]++; waits[k] >= int64(n) {
						t.Fatalf("%d of %d was last called at %d, and now is %d", k, n, last[k], now)
					}
				}
			}
		}
	})
}

// Of many callers at once each backend that is due gets one probe.
func TestOneProbeOfManyCallers(t *testing.T) {
	loads := fleet(t, 4)
	call(loads[3], 0, 1000*ms, Answered) // so slow that no choice falls on it
	c := NewChooser(loads)
	for _, l := range loads[:3] {
		l.Begin(int64(DefaultProbe))
	}
	var mu sync.Mutex
	var got int
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if c.Next(int64(DefaultProbe)+ms, rand.Uint64()) == 3 {
					mu.Lock()
					got++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if got != 1 {
		t.Errorf("%d probes", got)
	}
}

func BenchmarkNext(b *testing.B) {
	for name, n := range map[string]int{"4": 4, "100": 100} {
		b.Run(name, func(b *testing.B) {
			c := NewChooser(fleet(b, n))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				start := time.Now()
				for pb.Next() {
					now := int64(time.Since(start))
					i := c.Next(now, rand.Uint64())
					c.loads[i].Begin(now)
					c.loads[i].End(now, now+ms, Answered)
				}
			})
		})
	}
}
