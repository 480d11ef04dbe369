//go:build system

package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// soakTime has TestSoak run for longer:
//
//	go test ./internal/tests/system -tags system -run '^TestSoak$' -soak 30m -timeout 40m -v
var soakTime = flag.Duration("soak", 40*time.Second, "TestSoak: how long its load runs, 10s or more")

// Bounds of TestSoak. Memory is looked at while nothing is under way, so that what it
// finds does not depend on how busy the machine is.
const (
	soakRounds  = 8                // looks, at least; the first quarter of them does not count
	soakLongest = 30 * time.Second // of a round
	soakCalls   = 4000             // in a round, at least, of each kind but watches: a slow machine takes longer
	// soakBytes is what a call may leave in all processes together. A context that is
	// leaked by one call in three is 40.
	soakBytes = 12
	// soakNoise is what the heap of the three may grow by, whatever the calls: pools and
	// maps that fill later than in the first quarter, by 1 MB as seen, and a table.
	soakNoise = 2 << 20
	// soakThings is how many goroutines, and how many files, there may be more in the end.
	soakThings = 30
)

// TestSoak: a cluster of three under a load of all kinds of calls keeps nothing of them:
// neither memory nor goroutines nor files grow with their number.
func TestSoak(t *testing.T) {
	c := newCluster(t, 3, false, "--hot-split", "off", "--max-lock-ttl", "10s")
	s := &soak{c: c, keys: c.keys(20)}
	for i := range soakSplits {
		if r := keystead(t, "hot", "split", splitKey(i), "--kind", "counter", "--into", "3", "--addr", c.nodes[i%3].grpc); r.code != 0 {
			t.Fatalf("split ends with %d: %s%s", r.code, r.out, r.err)
		}
	}
	rounds := max(soakRounds, int(*soakTime/soakLongest))
	var samples []soakSample
	for range rounds {
		s.round(*soakTime / time.Duration(rounds))
		l := s.sample()
		t.Logf("%9d calls, %d failed: heap %d kB, %d goroutines, %d files", int(l.calls), s.failed.Load(), int(l.heap)>>10, int(l.goroutines), int(l.files))
		samples = append(samples, l)
	}
	if err := judgeSoak(samples); err != nil {
		t.Error(err)
	}
	if all, failed := s.total(), s.failed.Load(); failed*100 > all {
		t.Errorf("%d of %d calls failed, one with: %v", failed, all, s.why.Load())
	}
}

// soakSample is what all processes together have, when nothing is under way.
type soakSample struct{ calls, heap, goroutines, files float64 }

// judgeSoak compares what was seen, but for the beginning, in which pools and tables fill.
func judgeSoak(all []soakSample) error {
	samples := all[len(all)/4:]
	last := samples[len(samples)-1]
	calls := last.calls - samples[0].calls
	var errs []error
	perCall := slope(samples, func(l soakSample) float64 { return l.heap })
	if perCall > soakBytes && perCall*calls > soakNoise {
		errs = append(errs, fmt.Errorf("the heap grows by %.1f bytes a call, %d kB over %d calls", perCall, int(perCall*calls)>>10, int(calls)))
	}
	if n := slope(samples, func(l soakSample) float64 { return l.goroutines }) * calls; n > soakThings {
		errs = append(errs, fmt.Errorf("%.0f goroutines stay of %d calls", n, int(calls)))
	}
	if n := slope(samples, func(l soakSample) float64 { return l.files }) * calls; n > soakThings {
		errs = append(errs, fmt.Errorf("%.0f files stay open of %d calls", n, int(calls)))
	}
	return errors.Join(errs...)
}

// slope returns by how much something grows with each call, in both halves of the run: what
// leaks does so all the time, while another leader, say, is one step.
func slope(samples []soakSample, of func(soakSample) float64) float64 {
	half := len(samples) / 2
	return min(slopeOf(samples[:half+1], of), slopeOf(samples[half:], of))
}

// slopeOf returns the median of the slopes between any two looks, which a third of them,
// being odd, does not change (Theil and Sen).
func slopeOf(samples []soakSample, of func(soakSample) float64) float64 {
	var all []float64
	for i, a := range samples {
		for _, b := range samples[i+1:] {
			all = append(all, (of(b)-of(a))/(b.calls-a.calls))
		}
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// What the judge of TestSoak sees, and what not.
func TestSoakJudge(t *testing.T) {
	samples := func(heap func(i int) float64, goroutines, files float64) []soakSample {
		var all []soakSample
		for i := range 8 {
			n := float64(i + 1)
			all = append(all, soakSample{calls: 30_000 * n, heap: 40<<20 + heap(i), goroutines: 600 + goroutines*n, files: 90 + files*n})
		}
		return all
	}
	level := func(i int) float64 { return float64(i%3) * (100 << 10) }
	for what, tc := range map[string]struct {
		samples []soakSample
		bad     bool
	}{
		"level":                   {samples(level, 0, 0), false},
		"it grows in the start":   {samples(func(i int) float64 { return -float64(max(2-i, 0)) * (10 << 20) }, 0, 0), false},
		"one look is odd":         {samples(func(i int) float64 { return float64(i/7) * (20 << 20) }, 0, 0), false},
		"40 bytes a call":         {samples(func(i int) float64 { return level(i) + float64(i)*30_000*40 }, 0, 0), true},
		"a goroutine in a 1000":   {samples(level, 30, 0), true},
		"a file in a 1000":        {samples(level, 0, 30), true},
		"a step in the midst":     {samples(func(i int) float64 { return float64(i/5) * (8 << 20) }, 0, 0), false},
		"a step, and a leak":      {samples(func(i int) float64 { return float64(i/5)*(8<<20) + float64(i)*30_000*40 }, 0, 0), true},
		"one goroutine in 30,000": {samples(level, 1, 0), false},
	} {
		if err := judgeSoak(tc.samples); (err != nil) != tc.bad {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// soak is a load that can be halted.
type soak struct {
	c      *testCluster
	keys   map[string][]string // by owner
	calls  [5]atomic.Int64     // that came back, by kind
	failed atomic.Int64
	why    atomic.Value // of a call that failed: its text
}

const (
	soakSplits  = 8
	soakWorkers = 4 // of each kind and node
)

func splitKey(i int) string { return "soak-split-" + strconv.Itoa(i) }

func (s *soak) total() (n int64) {
	for i := range s.calls {
		n += s.calls[i].Load()
	}
	return n
}

// round has all kinds of calls made for some time, and returns when none is under way.
func (s *soak) round(long time.Duration) {
	over := time.Now().Add(long)
	var before [len(s.calls)]int64
	for i := range before {
		before[i] = s.calls[i].Load()
	}
	// A hundred times as long as a machine takes that has nothing else to do.
	bound := over.Add(5 * time.Minute)
	var done sync.WaitGroup
	for kind, call := range []func(ctx context.Context, n *testNode, key, own string, i int) error{s.counts, s.waits, s.batches, s.parts, s.watches} {
		enough := before[kind] + soakCalls
		if kind == len(s.calls)-1 {
			enough = 0
		}
		for at, n := range s.c.nodes {
			for w := range soakWorkers {
				done.Go(func() {
					for i := w; time.Now().Before(over) || s.calls[kind].Load() < enough && time.Now().Before(bound); i++ {
						other := s.c.nodes[(at+1+i%2)%3] // owns what n is asked for
						ctx, cancel := context.WithTimeout(s.c.t.Context(), 20*time.Second)
						err := call(ctx, n, s.keys[other.id][i%20], s.keys[n.id][i%20], i)
						cancel()
						if s.calls[kind].Add(1); err != nil {
							s.failed.Add(1)
							s.why.Store(err.Error())
						}
					}
				})
			}
		}
	}
	done.Wait()
	for kind := range s.calls[:len(s.calls)-1] {
		if n := s.calls[kind].Load() - before[kind]; n < soakCalls {
			s.c.t.Fatalf("%d calls of kind %d came back in %s", n, kind, long)
		}
	}
}

// counts adds, checks and reads through a node that does not own the key.
func (s *soak) counts(ctx context.Context, n *testNode, key, _ string, i int) (err error) {
	switch i % 3 {
	case 0:
		_, err = counterpb.NewCounterServiceClient(n.conn).Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1})
	case 1:
		_, err = limitpb.NewLimitServiceClient(n.conn).Check(ctx, &limitpb.CheckRequest{Key: key, Limit: 1000, PeriodNs: int64(time.Second)})
	default:
		_, err = counterpb.NewCounterServiceClient(n.conn).Get(ctx, &counterpb.GetRequest{Key: key})
	}
	return err
}

// waits takes a lock, for which others wait, too, through a node that does not own it.
func (s *soak) waits(ctx context.Context, n *testNode, key, _ string, i int) error {
	locks := lockpb.NewLockServiceClient(n.conn)
	r, err := locks.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: "soak", TtlNs: int64(5 * time.Second), WaitNs: int64(10 * time.Second)})
	if err != nil || !r.Acquired {
		return err
	}
	_, err = locks.Release(ctx, &lockpb.ReleaseRequest{Key: key, Token: r.Token})
	return err
}

// batches have items of keys of all nodes.
func (s *soak) batches(ctx context.Context, n *testNode, key, own string, i int) error {
	if i%2 == 0 {
		stream, err := limitpb.NewLimitServiceClient(n.conn).StreamCheck(ctx)
		for tag := uint64(1); err == nil && tag <= 3; tag++ {
			if err = stream.Send(&limitpb.StreamCheckRequest{Tag: tag, Checks: []*limitpb.CheckRequest{soakCheck(key), soakCheck(own)}}); err == nil {
				_, err = stream.Recv()
			}
		}
		if err == nil {
			err = stream.CloseSend()
		}
		if err == nil {
			if _, err = stream.Recv(); errors.Is(err, io.EOF) {
				err = nil
			}
		}
		return err
	}
	req := &counterpb.BatchAddRequest{}
	for range 10 {
		req.Adds = append(req.Adds, &counterpb.AddRequest{Key: key, Delta: 1}, &counterpb.AddRequest{Key: own, Delta: 1})
	}
	_, err := counterpb.NewCounterServiceClient(n.conn).BatchAdd(ctx, req)
	return err
}

func soakCheck(key string) *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: key, Limit: 1000, PeriodNs: int64(time.Second)}
}

// parts adds to counters that are split, and has their parts asked.
func (s *soak) parts(ctx context.Context, n *testNode, _, _ string, i int) (err error) {
	if i%4 == 0 {
		_, err = counterpb.NewCounterServiceClient(n.conn).Get(ctx, &counterpb.GetRequest{Key: splitKey(i % soakSplits)})
	} else {
		_, err = counterpb.NewCounterServiceClient(n.conn).Add(ctx, &counterpb.AddRequest{Key: splitKey(i % soakSplits), Delta: 1})
	}
	return err
}

// watches has the table shown, until the first one came.
func (s *soak) watches(ctx context.Context, n *testNode, _, _ string, i int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := clusterpb.NewClusterServiceClient(n.conn).Watch(ctx, &clusterpb.WatchRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	<-time.After(20 * time.Millisecond) // a table is large
	return err
}

// sample waits until no goroutine is left of the last calls, and returns what there is.
func (s *soak) sample() soakSample {
	s.c.t.Helper()
	var l soakSample
	eventually(s.c.t, "as many goroutines as a moment ago", func() bool {
		was := l.goroutines
		l = soakSample{calls: float64(s.total())}
		for _, n := range s.c.nodes {
			heap, goroutines, err := n.memory()
			if err != nil { // a machine that others use as well may take its time
				s.c.t.Logf("look at %s again: %v", n.id, err)
				return false
			}
			l.heap += heap
			l.goroutines += goroutines
			files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid))
			if err != nil {
				s.c.t.Fatal(err)
			}
			l.files += float64(len(files))
		}
		return was > 0 && l.goroutines >= was-3 && l.goroutines <= was+3
	})
	return l
}

// memory returns the bytes on the heap of the node's process after two collections, the
// second of which takes what pools kept, and the number of its goroutines.
func (n *testNode) memory() (heap, goroutines float64, err error) {
	var body string
	for range 3 {
		code := 0
		if code, body, err = n.get("/debug/pprof/heap?gc=1&debug=1"); err != nil || code != 200 {
			return 0, 0, fmt.Errorf("%s shows no heap: %d, %w", n.id, code, err)
		}
	}
	if heap, err = numberAfter(body, "\n# HeapAlloc = "); err != nil {
		return 0, 0, err
	}
	if _, body, err = n.get("/metrics"); err != nil {
		return 0, 0, err
	}
	goroutines, err = numberAfter(body, "\ngo_goroutines ")
	return heap, goroutines, err
}

// numberAfter reads the number that follows a text, up to the end of its line.
func numberAfter(body, text string) (float64, error) {
	_, rest, _ := strings.Cut(body, text)
	number, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseFloat(strings.TrimSpace(number), 64)
}
