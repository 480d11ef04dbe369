package owner

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/owner/hold"
)

// storm has sessions that hold one permit each, for which others wait, and a caller who has
// nothing to do with them. It returns how long that one waited at most while all sessions
// ended, by the end that it is given, and how long that took.
func storm(t testing.TB, sessions, waiting int, end func(s *Store, i int)) (worst, took time.Duration) {
	s := newStore(t, func(c *Config) { c.Shards, c.MaxWaiters = DefaultShards, int64(waiting) })
	for i := range sessions {
		holdUnder(t, s, 0, fmt.Sprint(i), sessionOf(uint64(i), 1))
		if i < waiting {
			op := hold.Acquire{Name: "w", Weight: 1, TTL: 60 * second, Wait: 60 * second}
			if _, w, err := s.AcquirePermits(0, keyed(fmt.Sprint(i)), noID, op); w == nil {
				t.Fatal(err)
			}
		}
	}
	var over atomic.Bool
	waited := make(chan time.Duration)
	go func() {
		worst := time.Duration(0)
		for i := 0; !over.Load(); i++ {
			began := time.Now()
			a, _, err := s.AcquirePermits(second, keyed(fmt.Sprint("other ", i%1000)), noID, hold.Acquire{Name: "o", Weight: 1, Capacity: 1, TTL: second})
			if err == nil {
				_, err = s.ReleasePermits(second, keyed(fmt.Sprint("other ", i%1000)), noID, a.Token)
			}
			if err != nil {
				panic(err)
			}
			worst = max(worst, time.Since(began))
		}
		waited <- worst
	}()
	began := time.Now()
	for i := range sessions {
		end(s, i)
	}
	took = time.Since(began)
	over.Store(true)
	return <-waited, took
}

// endOne releases what a session holds.
func endOne(t testing.TB) func(s *Store, i int) {
	var of *Store
	var k *Keeper
	return func(s *Store, i int) {
		if of != s {
			of, k = s, s.NewKeeper()
		}
		if _, err := k.Find(second, sessionOf(uint64(i), 1)); err != nil {
			t.Fatal(err)
		}
		if n := len(k.End(second, nil)); n != 1 {
			t.Fatalf("%d were released", n)
		}
	}
}

// expireAll lets the leases of all sessions run out at one moment, as the two drivers of a node
// do: those for whom somebody waits are woken, the others are swept.
func expireAll(s *Store, i int) {
	if i > 0 {
		return
	}
	s.Wake(15 * second)
	for range s.shards {
		s.Sweep(15 * second)
	}
}

// TestStormOfEnds: a hundred thousand sessions that end at once, by an End or by their TTL, keep
// nobody else waiting: what others wait for takes microseconds.
func TestStormOfEnds(t *testing.T) {
	const sessions = 100_000
	for what, end := range map[string]func(s *Store, i int){"End": endOne(t), "TTL": expireAll} {
		worst, took := storm(t, sessions, 10_000, end)
		t.Logf("%s: %d sessions in %s; another caller waited %s at most", what, sessions, took, worst)
		if worst > mostWait(took) {
			t.Errorf("%s: another caller waited %s", what, worst)
		}
	}
}

func BenchmarkStormOfEnds(b *testing.B) {
	for name, end := range map[string]func(s *Store, i int){"End": endOne(b), "TTL": expireAll} {
		b.Run(name, func(b *testing.B) {
			var worst time.Duration
			for b.Loop() {
				w, took := storm(b, 100_000, 10_000, end)
				worst = max(worst, w)
				b.ReportMetric(float64(took.Nanoseconds())/100_000, "ns/session")
			}
			b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
		})
	}
}

// BenchmarkKeepAlive is a KeepAlive of a session that holds some.
func BenchmarkKeepAlive(b *testing.B) {
	for _, n := range []int{1, 100, MaxSessionHolds} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newStore(b, func(c *Config) { c.Shards = DefaultShards })
			us := sessionOf(1, 1)
			for i := range n {
				holdUnder(b, s, 0, fmt.Sprint(i), us)
			}
			k, now := s.NewKeeper(), int64(0)
			var kept []Kept
			b.ReportAllocs()
			for b.Loop() {
				now += 1000
				if _, err := k.Find(now, us); err != nil {
					b.Fatal(err)
				}
				var all bool
				if kept, all, _ = k.Extend(now, 15*second, func(uint64) bool { return true }, kept[:0]); !all || len(kept) != n {
					b.Fatal(all, len(kept))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/grant")
		})
	}
}
