package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// cycle is what a caller does again and again.
type cycle func(context.Context) error

// opener makes a caller ready: the i-th of those at a time.
type opener func(ctx context.Context, c *clients, i int) (call cycle, end func(), err error)

// Names of what is measured, and of those that do it.
const (
	lockCycles = "lock, acquired and released"
	handovers  = "lock, handed over"
	permits    = "permit, acquired and released"
	onces      = "work, begun and completed once"
	written    = "100 bytes, written"
	roundTrip  = "round trip to a bare gRPC server"
	told       = "a write, told to 10,000 watchers, p99"
	failedOver = "a leader killed, until the next one leads, TTL 2 s"

	etcd        = "etcd"
	keystead    = "keystead"
	redisName   = "redis"
	redisBatch  = "redis, 64 in a batch"
	oneNode     = "keystead, one node"
	bareOneNode = "keystead, one node, bare gRPC"
	batches     = "keystead, one node, 64 in a batch"
	gathered    = "keystead, one node, TryAcquire"
	threeNodes  = "keystead, three nodes"
	threeBatch  = "keystead, three nodes, 64 in a batch"
	echo        = "echo"
)

// batchOf is how many locks are in a batch.
const batchOf = 64

// way is one way to do something.
type way struct {
	What    string `json:"what"`
	System  string `json:"system"`
	Callers int    `json:"callers"`
	items   int    // that a cycle counts for
	open    opener
	synced  syncs // of its server; nil = it is not known
	replies int   // what synced counts more for each cycle
	pids    []int // of its servers; nil = they are not known
}

// ways returns all that is measured.
func ways() (all []way) {
	add := func(what, system string, callers, items int, open opener) {
		all = append(all, way{What: what, System: system, Callers: callers, items: items, open: open})
	}
	for _, n := range []int{1, 16, 64} {
		add(lockCycles, etcd, n, 1, etcdLocks(each))
		add(lockCycles, redisName, n, 1, redisLocks(1))
		add(lockCycles, redisBatch, n, batchOf, redisLocks(batchOf))
		add(lockCycles, oneNode, n, 1, locks(one, each))
		add(lockCycles, bareOneNode, n, 1, bareLocks(each, 0))
		add(lockCycles, gathered, n, 1, tries(one))
		add(lockCycles, batches, n, batchOf, batchedLocks(func(c *clients) []*grpc.ClientConn { return c.bare }))
		add(lockCycles, threeNodes, n, 1, locks(three, each))
		add(lockCycles, threeBatch, n, batchOf, batchedLocks(func(c *clients) []*grpc.ClientConn { return c.bareThree }))
	}
	add(handovers, etcd, 16, 1, etcdLocks(shared))
	add(handovers, oneNode, 16, 1, locks(one, shared))
	add(handovers, bareOneNode, 16, 1, bareLocks(shared, maxWait))
	add(handovers, threeNodes, 16, 1, locks(three, shared))
	add(permits, bareOneNode, 64, 1, bareSemaphores)
	add(onces, bareOneNode, 64, 1, bareOnces)
	add(onces, redisName, 64, 1, redisOnces)
	add(written, etcd, 64, 1, etcdPut)
	add(written, redisName, 64, 1, redisPut)
	add(written, oneNode, 64, 1, putsOf(one))
	add(written, threeNodes, 64, 1, putsOf(three))
	add(roundTrip, echo, 1, 1, echoCall)
	return all
}

// result is what a way did in each round.
type result struct {
	way
	Median float64   `json:"per_second"`
	Rounds []float64 `json:"rounds"`
	// PerSync is how many items shared a sync in each round; none = it is not known.
	PerSync []float64 `json:"per_sync,omitempty"`
	// CPU is how much processor time of its servers an item took in each round, in µs; none = it is
	// not known.
	CPU []float64 `json:"server_cpu_us,omitempty"`
}

// measureAll measures each way once a round.
func measureAll(ctx context.Context, c *clients, all []way, rounds int, d time.Duration, progress func(string)) ([]result, error) {
	results := make([]result, len(all))
	for round := range rounds {
		name := fmt.Sprintf("round %d of %d", round+1, rounds)
		if err := measureRound(ctx, c, all, results, d, func(what string) { progress(name + ": " + what) }); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// measureRound measures each way once, in an order by chance, and adds that to the results.
func measureRound(ctx context.Context, c *clients, all []way, results []result, d time.Duration, progress func(string)) error {
	for _, i := range rand.Perm(len(all)) {
		w, r := all[i], &results[i]
		what := fmt.Sprintf("%s, %s, %s", w.What, w.System, callers(w.Callers))
		progress(what)
		s, err := measure(ctx, c, w, d)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		r.way, r.Rounds = w, append(r.Rounds, s.rate)
		if s.perSync > 0 {
			r.PerSync = append(r.PerSync, s.perSync)
		}
		if w.pids != nil {
			r.CPU = append(r.CPU, s.cpu)
		}
		r.Median = median(r.Rounds)
	}
	return nil
}

// sample is one measurement.
type sample struct {
	rate    float64 // items a second
	perSync float64 // items that shared a sync; 0 = it is not known, or nothing was synced
	cpu     float64 // µs of the servers' processor time for an item; 0 = it is not known
}

// measure has some callers at a time call for so long.
func measure(ctx context.Context, c *clients, w way, d time.Duration) (s sample, err error) {
	var calls []cycle
	for i := range w.Callers {
		call, end, err := w.open(ctx, c, i)
		if err != nil {
			return s, err
		}
		defer end()
		if err := call(ctx); err != nil { // connections, streams, objects
			return s, err
		}
		calls = append(calls, call)
	}
	synced := w.synced
	if synced == nil {
		synced = func() (float64, error) { return 0, nil }
	}
	before, err1 := synced()
	ran, err2 := used(w.pids)
	if err := errors.Join(err1, err2); err != nil {
		return s, err
	}
	began := time.Now()
	cycles, err := callAll(ctx, calls, began.Add(d))
	took := time.Since(began)
	if err != nil {
		return s, err
	}
	now, err1 := used(w.pids)
	after, err2 := synced()
	items := float64(cycles * w.items)
	s.rate, s.cpu = items/took.Seconds(), float64((now-ran).Microseconds())/items
	if n := after - before - float64(cycles*w.replies); n > 0 {
		s.perSync = items / n
	}
	return s, errors.Join(err1, err2)
}

// callAll has all call until the end, and returns how often they did.
func callAll(ctx context.Context, calls []cycle, end time.Time) (cycles int, err error) {
	counts, errs := make([]int, len(calls)), make([]error, len(calls))
	var all sync.WaitGroup
	for i, call := range calls {
		all.Go(func() {
			for errs[i] == nil && time.Now().Before(end) {
				if errs[i] = call(ctx); errs[i] == nil {
					counts[i]++
				}
			}
		})
	}
	all.Wait()
	for i, n := range counts {
		if errs[i] != nil {
			return 0, errs[i]
		}
		cycles += n
	}
	return cycles, nil
}

// ratio is one figure beside another.
type ratio struct {
	What  string  `json:"what"`
	Of    string  `json:"of"`
	To    string  `json:"to"`
	Value float64 `json:"value"` // the median of the rounds' ratios
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
}

// compare divides what the rounds of two ways say: their rates, or, for times, the other way
// around.
func compare(what, of, to string, a, b result, times bool) ratio {
	var all []float64
	for i := range a.Rounds {
		if times {
			all = append(all, b.Rounds[i]/a.Rounds[i])
		} else {
			all = append(all, a.Rounds[i]/b.Rounds[i])
		}
	}
	return ratio{what, of, to, median(all), slices.Min(all), slices.Max(all)}
}

// ratios returns what is compared.
func ratios(results []result) (all []ratio) {
	find := func(what, system string, callers int) result {
		i := slices.IndexFunc(results, func(r result) bool { return r.What == what && r.System == system && r.Callers == callers })
		return results[i]
	}
	for _, n := range []int{1, 16, 64} {
		for _, pair := range [][2]string{{oneNode, etcd}, {bareOneNode, etcd}, {threeNodes, etcd}, {batches, etcd}, {oneNode, redisName}, {bareOneNode, redisName},
			{bareOneNode, redisBatch}, {gathered, redisName}, {batches, redisName}, {batches, redisBatch}, {threeBatch, redisBatch}} {
			all = append(all, compare(fmt.Sprintf("%s, %s: a second", lockCycles, callers(n)), pair[0], pair[1],
				find(lockCycles, pair[0], n), find(lockCycles, pair[1], n), false))
		}
	}
	for _, system := range []string{oneNode, bareOneNode, threeNodes} {
		all = append(all, compare(handovers+", 16 waiters: time", system, etcd, find(handovers, system, 16), find(handovers, etcd, 16), true))
	}
	for _, system := range []string{oneNode, bareOneNode} {
		all = append(all, compare(handovers+", 16 waiters: time", system, roundTrip, find(handovers, system, 16), find(roundTrip, echo, 1), true))
	}
	all = append(all, compare("64 callers: a second", permits, lockCycles, find(permits, bareOneNode, 64), find(lockCycles, bareOneNode, 64), false))
	all = append(all, compare("64 callers: a second", onces, lockCycles, find(onces, bareOneNode, 64), find(lockCycles, bareOneNode, 64), false),
		compare(onces+", 64 callers: a second", bareOneNode, redisName, find(onces, bareOneNode, 64), find(onces, redisName, 64), false))
	for _, system := range []string{oneNode, threeNodes} {
		for _, peer := range []string{etcd, redisName} {
			all = append(all, compare(written+", 64 callers: a second", system, peer, find(written, system, 64), find(written, peer, 64), false))
		}
	}
	return all
}

func callers(n int) string {
	if n == 1 {
		return "1 caller"
	}
	return fmt.Sprint(n, " callers")
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
