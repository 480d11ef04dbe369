package disk

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// kept returns a store of objects that is kept in a directory of the test, whose rounds the
// benchmark does.
func kept(b *testing.B, durability string) (*owner.Store, *Keeper) {
	s, err := ParseSettings(durability, 0)
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	k, err := OpenKeeper(Config{Dir: b.TempDir() + "/disk", Settings: s, Now: func() int64 { return int64(time.Since(began)) },
		Window: func() time.Duration { return testWindow }, Head: func() Head { return Head{} }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	objects, err := owner.New(owner.Config{Rule: &rule{100}, Journal: k}, 0)
	if err != nil {
		b.Fatal(err)
	}
	if err := k.start(objects, false); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = k.Close() })
	return objects, k
}

// BenchmarkTracked is an Add to one of 10,000 counters: of a store that nobody keeps, and of one
// that is kept, with a round for each 100,000.
func BenchmarkTracked(b *testing.B) {
	for _, durability := range []string{"nothing", "interval", "always"} {
		b.Run(durability, func(b *testing.B) {
			var k *Keeper
			objects, err := owner.New(owner.Config{Rule: &rule{100}}, 0)
			if durability != "nothing" {
				objects, k = kept(b, durability)
			}
			if err != nil {
				b.Fatal(err)
			}
			keys := names(10_000)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := objects.Add(1, owner.Ref{Key: keys[i%len(keys)], Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
					b.Fatal(err)
				}
				if k != nil && i%100_000 == 99_999 {
					b.StopTimer()
					if err := k.step(false); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			}
		})
	}
}

// BenchmarkRound is a round in which so many of a million counters have changed, by the object.
// longest is how long a shard was locked at most.
func BenchmarkRound(b *testing.B) {
	const all = 1_000_000
	objects, k := kept(b, "always")
	keys := names(all)
	add := func(i int) {
		if _, err := objects.Add(1, owner.Ref{Key: keys[i], Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
			b.Fatal(err)
		}
	}
	for i := range keys {
		add(i)
	}
	if err := k.step(false); err != nil {
		b.Fatal(err)
	}
	for _, changed := range []int{1, 64, 1_000, 100_000, all} {
		b.Run(fmt.Sprint(changed), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				for i := range changed {
					add(i * (all / changed))
				}
				b.StartTimer()
				if err := k.step(false); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(changed), "ns/object")
		})
	}
}

func names(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%08d", i)
	}
	return keys
}

// BenchmarkColdStart opens a store of a million objects and loads them.
func BenchmarkColdStart(b *testing.B) {
	const all = 1_000_000
	objects, k := kept(b, "always")
	for i, key := range names(all) {
		if _, err := objects.Add(1, owner.Ref{Key: key, Name: "c"}, reqid.ID{}, counter.AddOp{Delta: int64(i + 1)}); err != nil {
			b.Fatal(err)
		}
	}
	if err := k.step(false); err != nil {
		b.Fatal(err)
	}
	if err := k.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		k, err := OpenKeeper(k.cfg)
		if err != nil {
			b.Fatal(err)
		}
		objects, err := owner.New(owner.Config{Rule: &rule{100}, Journal: k}, 0)
		if err != nil {
			b.Fatal(err)
		}
		if n, err := k.Load(objects); err != nil || n != all {
			b.Fatal(n, err)
		}
		if err := k.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(all)*float64(b.N)/b.Elapsed().Seconds(), "objects/s")
}
