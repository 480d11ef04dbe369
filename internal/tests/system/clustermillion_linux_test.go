//go:build system

package system

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// million has TestClusterMillion measure, when the machine is otherwise idle:
//
//	go test ./internal/tests/system -tags system -run TestClusterMillion -million 1000000 -timeout 30m -v
var million = flag.Int("million", 0, "TestClusterMillion: how many objects to put in; 0 = it does nothing")

// Of TestClusterMillion.
const (
	manyAtOnce  = 10_000                // objects of a batch
	manyCallers = 4                     // batches under way
	probeKeys   = 48                    // keys whose calls are timed; a quarter of them moves
	probeEvery  = 20 * time.Millisecond // pause between two calls of such a key
	baseline    = 10 * time.Second      // of quiet
	changeTime  = 5 * time.Minute       // for a join or a drain
	watchEvery  = 50 * time.Millisecond // between two looks at the processes
)

// TestClusterMillion has a fourth node join three that hold many objects, and
// drains it again, under light load. It prints how long that takes, what is sent,
// what memory it needs and how long calls have to wait, and checks that nothing is
// lost.
func TestClusterMillion(t *testing.T) {
	if *million == 0 {
		return
	}
	c := newCluster(t, 3, false)
	c.protected(c.nodes...)
	kc, err := client.Config{Timeout: time.Minute}.Dial(t.Context(), c.nodes[0].grpc, c.nodes[1].grpc, c.nodes[2].grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer kc.Close()
	began := time.Now()
	putMany(t, kc, *million)
	t.Logf("put %d objects in: %s", *million, time.Since(began).Round(time.Millisecond))

	p := startProbes(t, c)
	<-time.After(baseline)
	n4 := newTestNode(t, "n4", "", "--cluster-id", "c", "--join", c.addrs(nil))
	four := append(slices.Clone(c.nodes), n4)
	join := c.change(p, "join", four, n4.run, func() bool {
		st, _, err := n4.status()
		return err == nil && st.RowsOwned > 0 && stable(four)
	})
	moves := p.ownedBy("n4")
	drain := c.change(p, "drain", four, func() { drainNode(t, c, n4) }, func() bool {
		m := n4.stands(c.nodes[0])
		return m.GetMember().GetPhase() == clusterpb.Phase_PHASE_DRAINED && m.RowsOwned+m.RowsStandby == 0 && stable(c.nodes)
	})
	p.end(t)
	t.Logf("join: until n4 owns its share and all is protected %s; drain: until n4 has nothing and all is protected %s",
		join.Round(time.Millisecond), drain.Round(time.Millisecond))
	for _, phase := range []string{"quiet", "join", "drain"} {
		for what, moving := range map[string]bool{"moves": true, "stays": false} {
			t.Logf("%s: call for a key that %s: %s", phase, what, p.spread(phase, func(key int) bool { return moves[key] == moving }))
		}
	}
	if wrong := missing(t, kc, *million); wrong != 0 {
		t.Errorf("of %d objects %d are lost or wrong", *million, wrong)
	} else {
		t.Logf("all %d objects are there: 0 lost", *million)
	}
}

// The same as TestClusterJoinAndDrainLoseNothing, by an event of the stock serf
// program.
func TestClusterJoinAndDrainByEvent(t *testing.T) {
	t.Parallel()
	joinAndDrain(t, func(c *testCluster, n *testNode) {
		drainNode(t, c, n)
		eventually(t, n.id+" is drained, as all see it", func() bool {
			return !slices.ContainsFunc(c.nodes, func(as *testNode) bool {
				m := n.stands(as)
				return m.GetMember().GetPhase() != clusterpb.Phase_PHASE_DRAINED || m.RowsOwned+m.RowsStandby > 0
			})
		})
	})
}

// stable reports whether nothing moves, and each row has its standby, as all of
// these nodes see it.
func stable(nodes []*testNode) bool {
	return !slices.ContainsFunc(nodes, func(n *testNode) bool {
		st, _, err := n.status()
		return err != nil || st.Changing || st.RowsUnprotected > 0
	})
}

// drainNode drains a node by an event of the stock serf program, or if there is
// none, by the command.
func drainNode(t *testing.T, c *testCluster, n *testNode) {
	t.Helper()
	if _, err := exec.LookPath("serf"); err != nil {
		t.Log("there is no serf: draining by command")
		if r := keystead(t, "drain", n.id, "--addr", c.nodes[0].grpc); r.code != 0 {
			t.Fatalf("drain ends with %d: %s%s", r.code, r.out, r.err)
		}
		return
	}
	ask := stockSerf(t, c.nodes[0])
	eventually(t, "serf lists all members", func() bool { // the agent itself and n besides
		return strings.Count(ask("members", "-status=alive"), "\n") == len(c.nodes)+2
	})
	var said time.Time
	eventually(t, n.id+" obeys the event", func() bool {
		if time.Since(said) > 7*time.Second { // gossip may lose it
			said = time.Now()
			if out := ask("event", "keystead-drain", n.id); !strings.Contains(out, "dispatched") {
				t.Fatalf("serf event says %q", out)
			}
		}
		return n.stands(c.nodes[0]).GetMember().GetPhase() >= clusterpb.Phase_PHASE_LEAVING
	})
}

func manyKey(i int) string { return fmt.Sprintf("object-%09d", i) }

// usedUp is a limit that a check uses up for longer than this takes.
func usedUp(kc *client.Client, i int) client.Check {
	return client.Check{Limit: kc.Limit("m", client.PerDay(1)), Key: manyKey(i)}
}

// putMany has a cluster keep n objects, by turns a counter and a limit.
func putMany(t *testing.T, kc *client.Client, n int) {
	t.Helper()
	inBatches(n, func(from, to int) {
		var adds []client.Add
		var checks []client.Check
		for i := from; i < to; i++ {
			if i%2 == 0 {
				adds = append(adds, client.Add{Counter: kc.Counter("m"), Key: manyKey(i), Delta: int64(i)})
			} else {
				checks = append(checks, usedUp(kc, i))
			}
		}
		added, err := kc.BatchAdd(t.Context(), adds)
		for _, a := range added {
			if err == nil {
				err = a.Err
			}
		}
		checked, err2 := kc.BatchCheck(t.Context(), checks)
		for _, a := range checked {
			if err2 == nil && a.Err == nil && !a.Allowed {
				err2 = fmt.Errorf("a new limit is used up")
			}
			if err2 == nil {
				err2 = a.Err
			}
		}
		if err != nil || err2 != nil {
			t.Errorf("objects from %d on: %v %v", from, err, err2)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}

// missing counts the objects that are not as putMany has left them.
func missing(t *testing.T, kc *client.Client, n int) int64 {
	t.Helper()
	var wrong atomic.Int64
	inBatches(n, func(from, to int) {
		var gets []client.Get
		var peeks []client.Check
		for i := from; i < to; i++ {
			if i%2 == 0 {
				gets = append(gets, client.Get{Counter: kc.Counter("m"), Key: manyKey(i)})
			} else {
				q := usedUp(kc, i)
				q.Peek = true
				peeks = append(peeks, q)
			}
		}
		values, err := kc.BatchGet(t.Context(), gets)
		decisions, err2 := kc.BatchCheck(t.Context(), peeks)
		if err != nil || err2 != nil {
			t.Errorf("objects from %d on: %v %v", from, err, err2)
			return
		}
		for i, v := range values {
			if v.Err != nil || manyKey(int(v.Value)) != gets[i].Key {
				wrong.Add(1)
			}
		}
		for _, d := range decisions {
			if d.Err != nil || d.Allowed {
				wrong.Add(1)
			}
		}
	})
	return wrong.Load()
}

func inBatches(n int, do func(from, to int)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, manyCallers)
	for from := 0; from < n; from += manyAtOnce {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(from, min(from+manyAtOnce, n))
		})
	}
}

// probes are calls for some keys whose times are kept.
type probes struct {
	c     *testCluster
	stop  context.CancelFunc
	done  sync.WaitGroup
	phase atomic.Pointer[string]
	errs  atomic.Int64
	added [probeKeys]int64

	mu    sync.Mutex
	times map[string][probeKeys][]time.Duration // guarded by mu: by phase
}

func probeKey(i int) string { return "probe-" + strconv.Itoa(i) }

func startProbes(t *testing.T, c *testCluster) *probes {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	p := &probes{c: c, stop: stop, times: map[string][probeKeys][]time.Duration{}}
	p.enter("quiet")
	kc, err := client.Config{NoBatching: true, Timeout: time.Minute}.Dial(ctx, c.nodes[0].grpc, c.nodes[1].grpc, c.nodes[2].grpc)
	if err != nil {
		t.Fatal(err)
	}
	for i := range probeKeys {
		p.done.Go(func() {
			for ctx.Err() == nil {
				phase, began := *p.phase.Load(), time.Now()
				_, err := kc.Counter("").Add(context.WithoutCancel(ctx), probeKey(i), 1)
				took := time.Since(began)
				if err != nil {
					p.errs.Add(1)
				} else {
					p.added[i]++
				}
				p.mu.Lock()
				of := p.times[phase]
				of[i] = append(of[i], took)
				p.times[phase] = of
				p.mu.Unlock()
				<-time.After(probeEvery)
			}
		})
	}
	t.Cleanup(func() { stop(); p.done.Wait(); kc.Close() })
	return p
}

func (p *probes) enter(phase string) { p.phase.Store(&phase) }

// ownedBy says which of the keys a node owns.
func (p *probes) ownedBy(node string) map[int]bool {
	keys := make([]string, probeKeys)
	for i := range keys {
		keys[i] = probeKey(i)
	}
	owned := map[int]bool{}
	for i, o := range p.c.nodes[0].owners(keys...) {
		owned[i] = o.Owner == node
	}
	return owned
}

// spread returns the percentiles of the calls for some of the keys, and the longest
// call of each key, by percentiles as well.
func (p *probes) spread(phase string, some func(key int) bool) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all, worst []time.Duration
	for i, d := range p.times[phase] {
		if some(i) && len(d) > 0 {
			all, worst = append(all, d...), append(worst, slices.Max(d))
		}
	}
	if len(all) == 0 {
		return "not measured"
	}
	slices.Sort(all)
	slices.Sort(worst)
	at := func(d []time.Duration, p int) time.Duration {
		return d[min(len(d)*p/100, len(d)-1)].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("%d calls, p50 %s, p99 %s, most %s; longest call of each of %d keys: p50 %s, p99 %s",
		len(all), at(all, 50), at(all, 99), at(all, 100), len(worst), at(worst, 50), at(worst, 99))
}

// end stops the calls and checks that the counters are what was acknowledged.
func (p *probes) end(t *testing.T) {
	t.Helper()
	p.stop()
	p.done.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i, n := range p.added {
		r, err := counterpb.NewCounterServiceClient(p.c.nodes[0].conn).Get(ctx, &counterpb.GetRequest{Key: probeKey(i)})
		if err != nil || r.Value != n {
			t.Errorf("%s is %d after %d acknowledged adds: %v", probeKey(i), r.GetValue(), n, err)
		}
	}
	if n := p.errs.Load(); n > 0 {
		t.Errorf("%d calls failed", n)
	}
}

// change measures what a change of the members takes, from begin until over says
// that it is over.
func (c *testCluster) change(p *probes, name string, nodes []*testNode, begin func(), over func() bool) time.Duration {
	t := c.t
	t.Helper()
	before, memory, said := map[string]map[string]float64{}, map[string][]int64{}, map[string]int{}
	look := func() {
		for _, n := range nodes {
			if n.process != nil {
				memory[n.id] = append(memory[n.id], kilobytes(t, n.cmd.Process.Pid, "VmRSS"))
			}
		}
	}
	for _, n := range nodes {
		if n.process != nil {
			before[n.id], said[n.id] = n.metrics(), len(n.lines(copyLines...))
		}
	}
	look()
	p.enter(name)
	began := time.Now()
	begin()
	for !over() {
		if time.Since(began) > changeTime {
			t.Fatalf("%s: not over in %s", name, changeTime)
		}
		look()
		<-time.After(watchEvery)
	}
	took := time.Since(began)
	p.enter(name + ", after")
	for _, n := range nodes {
		m := n.metrics()
		for k, v := range before[n.id] {
			m[k] -= v
		}
		copied, objects := m["keystead_copied_bytes_total"], m["keystead_copied_objects_total"]
		t.Logf("%s: %s sent %.0f objects, %.1f MB in copies, %.1f MB/s of the whole time; handed over %.0f rows, got standbys for %.0f",
			name, n.id, objects, copied/1e6, copied/1e6/took.Seconds(), m["keystead_rows_handed_over_total"], m["keystead_rows_synced_total"])
		if flips := m["keystead_frozen_seconds_count"]; flips > 0 {
			t.Logf("%s: %s froze rows %.0f times, %.0f rows in all, %.1f ms on average; within seconds: %s",
				name, n.id, flips, m["keystead_frozen_rows_sum"], 1000*m["keystead_frozen_seconds_sum"]/flips, cumulative(m))
		}
		rss := memory[n.id]
		t.Logf("%s: %s had %d MB resident before, %d MB at most meanwhile, %d MB after; %d MB at most ever", name, n.id,
			rss[0]>>10, slices.Max(rss)>>10, kilobytes(t, n.cmd.Process.Pid, "VmRSS")>>10, kilobytes(t, n.cmd.Process.Pid, "VmHWM")>>10)
		for _, line := range n.lines(copyLines...)[said[n.id]:] {
			t.Logf("%s: %s says %s", name, n.id, line)
		}
	}
	return took
}

// copyLines are said at the end of a copy and of a handover, and when a standby
// does not keep up.
var copyLines = []string{"copied rows", "handed rows over", "a standby is taken out"}

// lines returns those of the node's log that have one of some texts, without their time.
func (n *testNode) lines(texts ...string) (found []string) {
	for line := range strings.Lines(n.err()) {
		if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(line, text) }) {
			_, line, _ = strings.Cut(strings.TrimSpace(line), "msg=")
			found = append(found, line)
		}
	}
	return found
}

// metrics returns the values that the node shows, without those that have labels, but
// for the buckets of what was frozen.
func (n *testNode) metrics() map[string]float64 {
	n.t.Helper()
	_, text, err := n.get("/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	m := map[string]float64{}
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		name, value, ok := strings.Cut(s.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		if ok && err == nil && (!strings.Contains(name, "{") || strings.HasPrefix(name, frozenBucket)) {
			m[name] = v
		}
	}
	return m
}

const frozenBucket = `keystead_frozen_seconds_bucket{le="`

// cumulative writes the buckets of what was frozen that are not empty.
func cumulative(m map[string]float64) string {
	text := map[float64]string{}
	for name, v := range m {
		if le, ok := strings.CutPrefix(name, frozenBucket); ok && v > 0 {
			le = strings.TrimSuffix(le, `"}`)
			at, _ := strconv.ParseFloat(le, 64) // "+Inf" too
			text[at] = fmt.Sprintf("%s: %.0f", le, v)
		}
	}
	var out []string
	for _, at := range slices.Sorted(maps.Keys(text)) {
		out = append(out, text[at])
	}
	return strings.Join(out, ", ")
}

// kilobytes is a figure of a process's status, in KiB.
func kilobytes(t *testing.T, pid int, field string) int64 {
	t.Helper()
	_, rest, _ := strings.Cut(procFile(t, pid, "status"), field+":")
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(line), " kB"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
