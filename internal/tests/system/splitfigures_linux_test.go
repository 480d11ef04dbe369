//go:build system

package system

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/owner/limit"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

var (
	splitLasts  = flag.Duration("split.lasts", 0, "TestSplitFigures: how long each measurement takes; 0 = it does nothing")
	splitCores  = flag.Float64("split.cores", 0.4, "TestSplitFigures: of how many cores each node may have the time, by its control group; 0 = of all")
	splitBatch  = flag.Bool("split.batch", false, "TestSplitFigures: the client gathers the calls to a node into messages; else each call is a message")
	splitCalls  = flag.Int("split.callers", 128, "TestSplitFigures: from how many goroutines the hot key is called when its throughput is measured")
	splitRounds = flag.Int("split.rounds", 3, "TestSplitFigures: how often the throughput is measured, whole and split, and how many keys get hot")
)

// TestSplitFigures measures what docs/hotkeys.md says of splits, of three processes, each
// with the time of a part of a core as if it had a machine of its own.
func TestSplitFigures(t *testing.T) {
	if *splitLasts == 0 {
		return
	}
	t.Run("onset", measureOnset)
	t.Run("throughput", measureThroughput)
	t.Run("refusals", measureRefusals)
}

// apart starts three nodes that do not take time from each other.
func apart(t *testing.T, flags ...string) (*testCluster, *client.Client) {
	c := newCluster(t, 3, false, flags...)
	for _, n := range c.nodes {
		if *splitCores > 0 {
			limitCPU(t, n, *splitCores)
		}
	}
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.grpc)
	}
	k, err := client.Config{NoBatching: !*splitBatch}.Dial(t.Context(), addrs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return c, k
}

// limitCPU puts a process into a control group that has the time of so many cores.
func limitCPU(t *testing.T, n *testNode, cores float64) {
	t.Helper()
	dir := filepath.Join("/sys/fs/cgroup/cpu", fmt.Sprintf("keystead-%d", n.cmd.Process.Pid))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatalf("control groups of version 1 and root are needed (or -split.cores 0): %v", err)
	}
	t.Cleanup(func() {
		_ = n.cmd.Process.Kill()
		<-n.done
		_ = os.Remove(dir)
	})
	for name, text := range map[string]string{
		"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": strconv.Itoa(int(cores * 10_000)), "cgroup.procs": strconv.Itoa(n.cmd.Process.Pid),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// hammer calls f from so many callers until the time is over, and returns how many calls a
// second came back, and the 99th percentile of how long they took. pause is between the
// calls of a caller.
func hammer(ctx context.Context, callers int, lasts, pause time.Duration, f func(ctx context.Context, caller int) error) (perSecond float64, p99 time.Duration, failed int64) {
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	var mu sync.Mutex
	var all []time.Duration
	var errs atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			var mine []time.Duration
			for ctx.Err() == nil {
				at := time.Now()
				switch err := f(context.WithoutCancel(ctx), i); {
				case err != nil:
					errs.Add(1)
				default:
					mine = append(mine, time.Since(at))
				}
				if pause > 0 {
					<-time.After(pause)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	wg.Wait()
	took := time.Since(began)
	slices.Sort(all)
	if len(all) == 0 {
		return 0, 0, errs.Load()
	}
	return float64(len(all)) / took.Seconds(), all[len(all)*99/100], errs.Load()
}

// measureOnset: from the first call on a key until it is shown as hot, and until its
// parts are served.
func measureOnset(t *testing.T) {
	c, k := apart(t)
	for i := range 3000 { // others, that have little to do
		adds(t, c.nodes[i%3].conn, fmt.Sprint("calm", i), 1)
	}
	var hot, split []time.Duration
	for round := range *splitRounds {
		key := "onset-" + strconv.Itoa(round)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		began := time.Now()
		for range 64 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _ = k.Limit("", client.Rate{Limit: 1_000_000, Period: time.Second}).Check(ctx, key)
				}
			})
		}
		var seen time.Duration
		eventually(t, key+" is split", func() bool {
			for _, n := range c.nodes {
				r, err := clusterpb.NewClusterServiceClient(n.conn).ListHot(t.Context(), &clusterpb.ListHotRequest{MaxKeys: 128})
				if err != nil {
					return false
				}
				if seen == 0 && slices.ContainsFunc(r.Keys, func(k *clusterpb.HotKey) bool { return k.Key == key && k.Hot }) {
					seen = time.Since(began)
				}
				if slices.ContainsFunc(r.Splits, func(s *clusterpb.Split) bool { return s.Key == key && s.Phase == clusterpb.SplitPhase_SPLIT_PHASE_OPEN }) {
					return true
				}
			}
			return false
		})
		hot, split = append(hot, seen), append(split, time.Since(began))
		stop()
		wg.Wait()
		t.Logf("%s: hot after %v, split after %v", key, hot[round].Round(time.Millisecond), split[round].Round(time.Millisecond))
	}
	slices.Sort(hot)
	slices.Sort(split)
	t.Logf("onset to hot: p50 %v, longest %v; to split: p50 %v, longest %v of %d", hot[len(hot)/2], hot[len(hot)-1], split[len(split)/2], split[len(split)-1], len(split))
}

// measureThroughput: one hot limit as fast as it goes, and beside it the other keys of
// the node that owns it.
func measureThroughput(t *testing.T) {
	c, k := apart(t, "--hot-split", "off")
	keys := c.keys(64)["n1"]
	key, others := keys[0], keys[1:]
	hot := func(ctx context.Context, _ int) error {
		_, err := k.Limit("hot", client.Rate{Limit: 100_000_000, Period: time.Second}).Check(ctx, key)
		return err
	}
	other, err := client.Dial(t.Context(), c.nodes[0].grpc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	measure := func(what string, callers int, pause time.Duration) (rate float64, p99 time.Duration) {
		var wg sync.WaitGroup
		wg.Go(func() { rate, _, _ = hammer(t.Context(), callers, *splitLasts, pause, hot) })
		wg.Go(func() {
			_, p99, _ = hammer(t.Context(), 8, *splitLasts, 10*time.Millisecond, func(ctx context.Context, i int) error {
				_, err := other.Limit("other", client.Rate{Limit: 1_000_000, Period: time.Second}).Check(ctx, others[rand.IntN(len(others))])
				return err
			})
		})
		wg.Wait()
		t.Logf("%s: %.0f checks a second of the hot key; p99 of the neighbours' %v", what, rate, p99.Round(10*time.Microsecond))
		return rate, p99
	}
	callers := *splitCalls
	admin := adminpb.NewAdminServiceClient(c.nodes[1].conn)
	measure("nothing hot", 0, 0)
	for range *splitRounds {
		whole, _ := measure("whole, as fast as it goes", callers, 0)
		pause := time.Duration(float64(callers) / (0.9 * whole) * float64(time.Second))
		_, wholeP99 := measure("whole, at nine tenths of that", callers, pause)
		if _, err := admin.SplitObject(t.Context(), &adminpb.SplitObjectRequest{Kind: commonpb.Kind_KIND_LIMIT, Key: key, Name: "hot", Parts: 3}); err != nil {
			t.Fatal(err)
		}
		split, _ := measure("split in 3, as fast as it goes", callers, 0)
		_, splitP99 := measure("split in 3, at nine tenths of the whole's", callers, pause)
		t.Logf("split ÷ whole: throughput %.2f; neighbours' p99 under the same load %.2f", split/whole, float64(splitP99)/float64(wholeP99))
		if _, err := admin.MergeObject(t.Context(), &adminpb.MergeObjectRequest{Kind: commonpb.Kind_KIND_LIMIT, Key: key, Name: "hot"}); err != nil {
			t.Fatal(err)
		}
	}
}

// arrival is a check and what became of it.
type arrival struct {
	began, ended time.Duration
	allowed      bool
	owner        string
}

// measureRefusals: calls at 90, 100 and 200 % of a limit that is split in three; what an
// exact bucket would have allowed of them, and what was allowed.
func measureRefusals(t *testing.T) {
	c, k := apart(t, "--hot-split", "off")
	const rate, burst = 1000, 500
	for _, ids := range []bool{true, false} {
		for _, percent := range []int{90, 100, 200} {
			key := fmt.Sprintf("refusals-%d-%v", percent, ids)
			if _, err := k.Limit("", client.Rate{Limit: rate, Period: time.Second, Burst: burst}).Check(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			if _, err := adminpb.NewAdminServiceClient(c.nodes[0].conn).SplitObject(t.Context(), &adminpb.SplitObjectRequest{Kind: commonpb.Kind_KIND_LIMIT, Key: key, Parts: 3}); err != nil {
				t.Fatal(err)
			}
			all := c.arrivals(t, k, ids, key, rate, burst, percent)
			ideal, allowed, over := judgeArrivals(all, rate, burst)
			by := map[string]int{}
			for _, a := range all {
				by[a.owner]++
			}
			t.Logf("%d %% of the limit, with ids %v: %d calls, an exact bucket allows %d, %d were: %.2f %% of what it allows refused; %.1f above the window's bound; by node %v",
				percent, ids, len(all), ideal, allowed, 100*float64(ideal-allowed)/float64(ideal), over, by)
		}
	}
}

// arrivals are calls at random moments, at a percentage of a limit.
func (c *testCluster) arrivals(t *testing.T, k *client.Client, ids bool, key string, rate, burst uint64, percent int) []arrival {
	var mu sync.Mutex
	var all []arrival
	var wg sync.WaitGroup
	began, at := time.Now(), time.Duration(0)
	for at < *splitLasts {
		at += time.Duration(rand.ExpFloat64() * float64(time.Second) * 100 / float64(rate) / float64(percent))
		<-time.After(time.Until(began.Add(at)))
		n := c.nodes[rand.IntN(len(c.nodes))]
		wg.Go(func() {
			a := arrival{began: time.Since(began)}
			var err error
			if ids {
				var d client.Decision
				d, err = k.Limit("", client.Rate{Limit: rate, Period: time.Second, Burst: burst}).Check(t.Context(), key)
				a.allowed, a.owner = d.Allowed, d.Owner
			} else {
				var r *limitpb.CheckResponse
				r, err = limitpb.NewLimitServiceClient(n.conn).Check(t.Context(), &limitpb.CheckRequest{Key: key, Limit: rate, PeriodNs: 1e9, Burst: burst})
				a.allowed, a.owner = r.GetAllowed(), r.GetOwner()
			}
			a.ended = time.Since(began)
			if err != nil {
				t.Errorf("%v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, a)
		})
	}
	wg.Wait()
	return all
}

// judgeArrivals compares what was allowed with an exact bucket, and with the bound of
// every window: an admission counts in those that it must have been in.
func judgeArrivals(all []arrival, rate, burst uint64) (ideal, allowed int, over float64) {
	slices.SortFunc(all, func(a, b arrival) int { return int(a.began - b.began) })
	var s limit.State
	op := limit.Op{Params: limit.Params{Limit: rate, Period: 1e9, Burst: burst}, Cost: 1}
	var yes []arrival
	for _, a := range all {
		var r limit.Result
		if s, r, _ = limit.Apply(s, op, int64(a.began)+1e9); r.Allowed {
			ideal++
		}
		if a.allowed {
			yes = append(yes, a)
		}
	}
	// For each window [begin of one, end of another]: those that lie in it.
	ends := slices.Clone(yes)
	slices.SortFunc(ends, func(a, b arrival) int { return int(a.ended - b.ended) })
	for i := 0; i < len(yes); i += 1 + len(yes)/500 {
		from, n := yes[i].began, 0
		for _, b := range ends {
			if b.began < from {
				continue
			}
			n++
			over = max(over, float64(n)-float64(burst)-float64(rate)*(b.ended-from).Seconds())
		}
	}
	return ideal, len(yes), over
}
