package system

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// objects is how many counters, limits and locks each the tests of what a cluster
// keeps put into it:
//
//	go test ./internal/tests/system -run 'TestCluster(Death|Join)' -objects 2000 -v
var objects = flag.Int("objects", 200, "tests of what a cluster keeps: counters, used up limits and held locks to put in, of each")

// keepTime bounds what is done with all of them.
func keepTime(count int) time.Duration {
	return 30*time.Second + time.Duration(count)*50*time.Millisecond
}

// kept is what a cluster was told to keep: counters, used up limits and held
// locks.
type kept struct {
	n      int
	tokens []uint64 // of the locks
}

func stateKey(i int) string { return "state-" + strconv.Itoa(i) }

// fill has a node keep so many objects of each kind.
func fill(t *testing.T, n *testNode, count int) *kept {
	t.Helper()
	k := &kept{n: count, tokens: make([]uint64, count)}
	ctx, cancel := context.WithTimeout(t.Context(), keepTime(count))
	defer cancel()
	counters, limits, locks := counterpb.NewCounterServiceClient(n.conn), limitpb.NewLimitServiceClient(n.conn), lockpb.NewLockServiceClient(n.conn)
	for i := range count {
		if r, err := counters.Add(ctx, &counterpb.AddRequest{Key: stateKey(i), Delta: int64(i)}); err != nil || !r.Applied {
			t.Fatalf("%v %v", r, err)
		}
		if r, err := limits.Check(ctx, &limitpb.CheckRequest{Key: stateKey(i), Limit: 5, Cost: 5, PeriodNs: int64(time.Hour)}); err != nil || !r.Allowed {
			t.Fatalf("%v %v", r, err)
		}
		r, err := locks.Acquire(ctx, &lockpb.AcquireRequest{Key: stateKey(i), Holder: "h", TtlNs: int64(time.Hour)})
		if err != nil || !r.Acquired {
			t.Fatalf("%v %v", r, err)
		}
		k.tokens[i] = r.Token
	}
	return k
}

// check looks through a node whether all of it is still there.
func (k *kept) check(t *testing.T, n *testNode) {
	t.Helper()
	wrong, err := k.countWrong(t, n)
	if err != nil {
		t.Fatal(err)
	}
	if wrong != [3]int{} {
		t.Errorf("of %d each, %d counters are wrong, %d limits were refilled, %d locks lost", k.n, wrong[0], wrong[1], wrong[2])
	}
}

// countWrong counts the counters, limits and locks that are not as they were.
func (k *kept) countWrong(t *testing.T, n *testNode) (wrong [3]int, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), keepTime(k.n))
	defer cancel()
	counters, limits, locks := counterpb.NewCounterServiceClient(n.conn), limitpb.NewLimitServiceClient(n.conn), lockpb.NewLockServiceClient(n.conn)
	for i := range k.n {
		c, err := counters.Get(ctx, &counterpb.GetRequest{Key: stateKey(i)})
		if err != nil {
			return wrong, err
		}
		if c.Value != int64(i) {
			wrong[0]++
		}
		l, err := limits.Check(ctx, &limitpb.CheckRequest{Key: stateKey(i), Limit: 5, Cost: 1, PeriodNs: int64(time.Hour)})
		if err != nil {
			return wrong, err
		}
		if l.Allowed {
			wrong[1]++
		}
		h, err := locks.Inspect(ctx, &lockpb.InspectRequest{Key: stateKey(i)})
		if err != nil {
			return wrong, err
		}
		if h.Holder.GetToken() != k.tokens[i] {
			wrong[2]++
		}
	}
	return wrong, nil
}

// protected waits until each row has its standby.
func (c *testCluster) protected(nodes ...*testNode) {
	c.t.Helper()
	eventually(c.t, "all rows have their standby", func() bool {
		return !slices.ContainsFunc(nodes, func(n *testNode) bool {
			st, _, err := n.status()
			return err != nil || st.RowsUnprotected > 0 || st.Changing
		})
	})
}

// Nothing that was acknowledged is lost when a node dies, the leader included, under
// load; calls wait until its keys are served again, and none fails.
func TestClusterDeathLosesNothing(t *testing.T) {
	t.Parallel()
	for _, victim := range []string{"leader", "follower"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, false, "--max-lock-ttl", "2h")
			c.protected(c.nodes...)
			k := fill(t, c.nodes[0], *objects)
			l := startLoad(t, c, time.Millisecond)
			leads, others := c.leader()
			dead, left := leads, others
			if victim != "leader" {
				at := rand.IntN(len(others))
				dead, left = others[at], []*testNode{leads, others[1-at]}
			}
			t.Logf("%s dies", dead.id)
			dead.kill()
			for _, key := range c.someKeys() {
				left[0].mustAcquire(key)
			}
			k.check(t, left[1])
			c.protected(left...)
			k.check(t, left[0])
			l.end(t, left[1])
		})
	}
}

func (c *testCluster) someKeys() []string {
	keys := make([]string, 32)
	for i := range keys {
		keys[i] = "some-" + strconv.Itoa(i)
	}
	return keys
}

// load are clients that add to counters all the time, with a pause after each add.
type load struct {
	added   [16]atomic.Int64 // acknowledged, by counter
	errs    atomic.Int64
	longest atomic.Int64 // ns, a call
	mu      sync.Mutex
	first   error // guarded by mu
	stop    context.CancelFunc
	done    sync.WaitGroup
}

func startLoad(t *testing.T, c *testCluster, pause time.Duration) *load {
	t.Helper()
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.grpc)
	}
	l := &load{}
	ctx, stop := context.WithCancel(t.Context())
	l.stop = stop
	kc, err := client.Config{DialOptions: oldNames()}.Dial(ctx, addrs...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range l.added {
		l.done.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
				_, err := kc.Counter("").Add(call, "load-"+strconv.Itoa(i), 1)
				cancel()
				if took := int64(time.Since(began)); took > l.longest.Load() {
					l.longest.Store(took)
				}
				if err != nil {
					l.errs.Add(1)
					l.mu.Lock()
					l.first = fmt.Errorf("load-%d: %w", i, err)
					l.mu.Unlock()
					continue
				}
				l.added[i].Add(1)
				<-time.After(pause) // the machine has others to serve
			}
		})
	}
	t.Cleanup(func() { stop(); l.done.Wait(); kc.Close() })
	return l
}

// end stops the clients, and checks that the counters are what was acknowledged.
func (l *load) end(t *testing.T, n *testNode) {
	t.Helper()
	l.stop()
	l.done.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	total := int64(0)
	for i := range l.added {
		r, err := counterpb.NewCounterServiceClient(n.conn).Get(ctx, &counterpb.GetRequest{Key: "load-" + strconv.Itoa(i)})
		if err != nil {
			t.Fatal(err)
		}
		if r.Value != l.added[i].Load() {
			t.Errorf("load-%d is %d after %d acknowledged adds", i, r.Value, l.added[i].Load())
		}
		total += r.Value
	}
	if l.errs.Load() > 0 {
		t.Errorf("%d calls failed, the last one with: %v", l.errs.Load(), l.first)
	}
	t.Logf("%d adds, the longest took %s", total, time.Duration(l.longest.Load()))
}

// A fourth node comes and another one is drained, under load: nothing is lost,
// refilled or granted twice, and no call fails.
func TestClusterJoinAndDrainLoseNothing(t *testing.T) {
	t.Parallel()
	joinAndDrain(t, func(c *testCluster, n *testNode) {
		if r := keystead(t, "drain", n.id, "--wait", "--addr", c.nodes[0].grpc); r.code != 0 {
			t.Fatalf("drain ends with %d: %s%s", r.code, r.out, r.err)
		}
	})
}

// joinAndDrain is that test; drain drains a node and waits for it.
func joinAndDrain(t *testing.T, drain func(c *testCluster, n *testNode)) {
	t.Helper()
	c := newCluster(t, 3, false, "--max-lock-ttl", "2h")
	c.protected(c.nodes...)
	k := fill(t, c.nodes[1], *objects)
	l := startLoad(t, c, time.Millisecond)
	n4 := newTestNode(t, "n4", "", "--cluster-id", "c", "--join", c.addrs(nil))
	n4.run()
	eventually(t, "n4 owns rows, and all have their standby", func() bool {
		st, _, err := n4.status()
		return err == nil && st.RowsOwned > 100 && !st.Changing && st.RowsUnprotected == 0
	})
	k.check(t, c.nodes[0])
	drain(c, c.nodes[1])
	st, _, err := c.nodes[1].status()
	if err != nil || st.RowsOwned != 0 || st.RowsStandby != 0 {
		t.Errorf("n2 was drained, and has %d rows, and %d as a standby; %v", st.GetRowsOwned(), st.GetRowsStandby(), err)
	}
	k.check(t, n4)
	c.nodes[1].kill() // nobody minds
	k.check(t, c.nodes[2])
	l.end(t, c.nodes[0])
}

// All nodes are restarted one after the other under load, each with SIGTERM.
func TestClusterRollingRestartLosesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, true, "--max-lock-ttl", "2h")
	c.protected(c.nodes...)
	k := fill(t, c.nodes[0], 150)
	l := startLoad(t, c, time.Millisecond)
	for _, n := range c.nodes {
		n.signal(t, syscall.SIGTERM)
		select {
		case <-n.done:
		case <-time.After(40 * time.Second):
			t.Fatalf("%s does not end: %s", n.id, n.err())
		}
		n.flags = slices.DeleteFunc(n.flags, func(f string) bool { return f == "--bootstrap" })
		if !slices.Contains(n.flags, "--join") {
			n.flags = append(n.flags, "--join", c.addrs(n))
		}
		n.run()
		c.ready(c.nodes...)
		c.protected(c.nodes...)
		k.check(t, n)
	}
	l.end(t, c.nodes[0])
}
