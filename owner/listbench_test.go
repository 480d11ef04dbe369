package owner

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

var listed = flag.Int("listed", 1_000_000, "objects that BenchmarkBesideLists looks through")

// What a Get of the same shard waits for while the objects of a node, and those of a key, are
// shown: ns-each is how long showing them takes.
func BenchmarkBesideLists(b *testing.B) {
	queues := newStore(b, func(c *Config) { c.Shards, c.MaxWaiters, c.MaxBytes = DefaultShards, 1<<20, 8<<30 })
	for i := range 64 {
		ref := Ref{Key: "k", Name: fmt.Sprint(i)}
		for j := range 1025 {
			x := reqid.ID{Client: reqid.Client{Hi: uint64(j + 1), Lo: 1}, Sequence: 1}
			if _, _, err := queues.Acquire(1, ref, x, AcquireLock{Holder: fmt.Sprint(j), TTL: 3600 * second, Wait: 3600 * second, Metadata: make([]byte, hold.MaxMetadata)}); err != nil {
				b.Fatal(err)
			}
		}
	}
	many := newStore(b, func(c *Config) { c.Shards, c.MaxObjects, c.MaxBytes = DefaultShards, int64(*listed)+1000, 8<<30 })
	for i := range *listed {
		must(many.Add(1, Ref{Key: fmt.Sprintf("user:%08d", i), Name: "n"}, noID, counter.AddOp{Delta: 1}))
	}
	must(many.Add(1, Ref{Key: "k", Name: "n"}, noID, counter.AddOp{Delta: 1}))
	runtime.GC()
	for _, in := range []struct {
		name string
		s    *Store
	}{{"64 queues of 1024", queues}, {fmt.Sprint(*listed, " counters"), many}} {
		list := func() {
			for at, done := (Place{}), false; !done; {
				at, done = in.s.List(2, at, 1000, false, func(Kind, []byte, []byte) bool { return true }, func(Kind, []byte, []byte) {})
			}
		}
		show := func() {
			if _, _, err := in.s.Objects(2, "k", func(o Shown) { _, _, _ = o.HoldAlone(2) }); err != nil {
				b.Fatal(err)
			}
		}
		for name, f := range map[string]func(){"nothing": func() { <-time.After(time.Second) }, "list": list, "key": show} {
			b.Run(in.name+"/"+name, func(b *testing.B) { besideGets(b, in.s, f) })
		}
	}
}

// besideGets measures what Gets of the shard of "k" wait while f runs.
func besideGets(b *testing.B, s *Store, f func()) {
	stop, done := make(chan struct{}), make(chan []time.Duration)
	go func() {
		var took []time.Duration
		for {
			select {
			case <-stop:
				done <- took
				return
			default:
			}
			at := time.Now()
			_, _ = s.Get(2, Ref{Key: "k", Name: "0"})
			took = append(took, time.Since(at))
			for time.Since(at) < 20*time.Microsecond {
				runtime.Gosched()
			}
		}
	}()
	for b.Loop() {
		f()
	}
	close(stop)
	took := <-done
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)-1]), "ns-worst")
	b.ReportMetric(float64(took[len(took)*99/100]), "ns-p99")
	b.ReportMetric(float64(took[len(took)*999/1000]), "ns-p99.9")
	b.ReportMetric(float64(len(took))/float64(b.N), "gets/op")
}
