package owner

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// The owner's path allocates nothing: checks, with and without a request id,
// and counters.
func TestOperationsAllocateNothing(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Sink = discard{} })
	ref := Ref{Key: "203.0.113.7", Name: "api"}
	now, seq := int64(0), uint64(0)
	next := func() reqid.ID {
		seq++
		return reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: seq, Settled: seq}
	}
	for name, f := range map[string]func(){
		"check":               func() { must(s.Check(now, ref, noID, perSecond(1_000_000))) },
		"check with id":       func() { must(s.Check(now, ref, next(), perSecond(1_000_000))) },
		"denied":              func() { must(s.Check(now, Ref{Key: ref.Key, Name: "low"}, noID, perSecond(1))) },
		"sliding":             func() { must(s.Check(now*second/40, Ref{Key: ref.Key, Name: "sliding"}, noID, sliding(1_000_000))) },
		"sliding with id":     func() { must(s.Check(now*second/40, Ref{Key: ref.Key, Name: "sliding"}, next(), sliding(1_000_000))) },
		"refund":              func() { must(s.Check(now, ref, noID, refund(perSecond(1_000_000), 1))) },
		"add":                 func() { must(s.Add(now, Ref{Key: ref.Key, Name: "n"}, noID, counter.AddOp{Delta: 1})) },
		"add with id":         func() { must(s.Add(now, Ref{Key: ref.Key, Name: "n"}, next(), counter.AddOp{Delta: 1})) },
		"get":                 func() { must(s.Get(now, Ref{Key: ref.Key, Name: "n"})) },
		"acquire and release": func() { acquireRelease(s, now) },
	} {
		for range 2000 { // ids, free lists and chunks reach their sizes
			now++
			f()
		}
		if n := testing.AllocsPerRun(1000, func() { now++; f() }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

type discard struct{}

func (discard) Changed(*Record) {}

func acquireRelease(s *Store, now int64) {
	a, _, err := s.Acquire(now, door, noID, asks("holder", second, 0))
	if err != nil || !a.Acquired {
		panic(fmt.Sprint(a, err))
	}
	must(s.Release(now, door, noID, a.Token))
}

func keys(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("key-%012d", i) // 16 bytes
	}
	return out
}

// BenchmarkCheck is the owner's side of a limit check: find, decide, store. "with
// id" has a request id on every check. A thousand keys stay in the processor's
// cache; of a million every access misses it.
func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		for _, withID := range []bool{false, true} {
			name := fmt.Sprintf("keys=%d", n)
			if withID {
				name += "/with-id"
			}
			b.Run(name, func(b *testing.B) { benchmarkCheck(b, keys(n), withID) })
		}
	}
}

func benchmarkCheck(b *testing.B, ks []string, withID bool) {
	s := newStore(b, func(c *Config) { c.Shards, c.MaxBytes = DefaultShards, 1<<40 })
	op := limit.Op{Params: limit.Params{Limit: 1000, Period: second}, Cost: 1}
	id, now := reqid.ID{Client: reqid.Client{Hi: 1, Lo: 2}}, int64(0)
	check := func(key string) {
		now += 1000
		if withID {
			id.Sequence++
			id.Settled = id.Sequence
		}
		if _, err := s.Check(now, Ref{Key: key, Name: "api"}, id, op); err != nil {
			b.Fatal(err)
		}
	}
	for _, k := range ks {
		check(k)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		check(ks[i*7919%len(ks)])
	}
}

// BenchmarkAddWithKey is an add under an idempotency key of its own. As many as fill a
// window of a second are remembered.
func BenchmarkAddWithKey(b *testing.B) {
	s, _ := keyStore(b, func(c *Config) { c.RequestIDs.Window, c.MaxBytes = second, 1<<40 })
	ks := keys(1_000)
	var key [26]byte
	copy(key[:], "01J9ZQ5V7M8E2C3T4R6P0KXNBD")
	add := func(i int) {
		now := int64(i) * 10_000 // 100,000 a second
		binary.BigEndian.PutUint32(key[22:], uint32(i))
		must(s.Add(now, Ref{Key: ks[i*7919%len(ks)], Name: "n"}, reqid.KeyID(string(key[:])), counter.AddOp{Delta: 1}))
		if i%128 == 0 {
			for sh := range s.shards {
				s.shards[sh].expireIDs(now)
			}
		}
	}
	for i := range 200_000 {
		add(i)
	}
	b.ReportAllocs()
	for i := 200_000; b.Loop(); i++ {
		add(i)
	}
}

func BenchmarkAdd(b *testing.B) {
	s, ks := newStore(b, func(c *Config) { c.Shards = DefaultShards }), keys(100_000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		must(s.Add(int64(i), Ref{Key: ks[i*7919%len(ks)], Name: "n"}, noID, counter.AddOp{Delta: 1}))
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	s := newStore(b, nil)
	b.ReportAllocs()
	for i := int64(0); b.Loop(); i++ {
		acquireRelease(s, i)
	}
}

// BenchmarkMillionBuckets measures what an idle token bucket costs: one million
// of them, with keys of 16 bytes and a name of 3. heap-B/bucket is what the Go
// heap grew by, store-B/bucket what the store says.
func BenchmarkMillionBuckets(b *testing.B) {
	const n = 1_000_000
	ks := keys(n)
	for b.Loop() {
		debug.FreeOSMemory()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s := newStore(b, func(c *Config) { c.Shards = DefaultShards })
		for i, k := range ks {
			must(s.Check(int64(i), Ref{Key: k, Name: "api"}, noID, limit.Op{Params: limit.Params{Limit: 20, Period: 60 * second}, Cost: 1}))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "heap-B/bucket")
		b.ReportMetric(float64(s.Stats().Bytes)/n, "store-B/bucket")
		start := s.sweepNext
		for s.Sweep(int64(second)); s.sweepNext != start; {
			s.Sweep(int64(second))
		}
		runtime.KeepAlive(s)
	}
}

// BenchmarkCheckShare is BenchmarkCheck at one part of a limit that is split.
func BenchmarkCheckShare(b *testing.B) {
	rule := &splitRule{home: "home"}
	rule.epoch = 100
	s := newStore(b, func(c *Config) { c.Rule = fixedSplits{rule} })
	rule.split(b, s, 0, "api", KindLimit, limit.FullWeight/2, limit.FullWeight/2)
	op := limit.Op{Params: limit.Params{Limit: 1000, Period: second}, Cost: 1}
	part := Ref{Key: partKey(0), Name: "api", Role: Share}
	b.ReportAllocs()
	for i := int64(0); b.Loop(); i++ {
		must(s.Check(i*1000, part, noID, op))
	}
}

// BenchmarkHandover is a lock that goes from one caller to another that waited.
func BenchmarkHandover(b *testing.B) {
	s := newStore(b, nil)
	a, _, err := s.Acquire(0, door, noID, asks("a", 10*second, 0))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := int64(1); b.Loop(); i++ {
		_, w, err := s.Acquire(i, door, id(uint64(i)), asks("b", 10*second, second))
		if err != nil {
			b.Fatal(err)
		}
		must(s.Release(i, door, noID, a.Token))
		<-w.Done()
		a, _ = w.Answer()
	}
}
