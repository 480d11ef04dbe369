//go:build system

package system

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// figures has TestClusterFigures measure, when the machine is otherwise idle:
//
//	go test ./internal/tests/system -run TestClusterFigures -figures 20 -timeout 20m -v
var figures = flag.Int("figures", 0, "TestClusterFigures: how many clusters to start, and how many followers and leaders to kill; 0 = it does nothing")

// TestClusterFigures measures clusters of three nodes with the default settings
// and prints what it finds.
func TestClusterFigures(t *testing.T) {
	if *figures == 0 {
		return
	}
	var starts []time.Duration
	for range *figures {
		t.Run("start", func(t *testing.T) {
			began := time.Now()
			newCluster(t, 3, false)
			starts = append(starts, time.Since(began))
		})
	}
	t.Run("failover", func(t *testing.T) {
		c := newCluster(t, 3, false)
		first, all := map[bool][]time.Duration{}, map[bool][]time.Duration{}
		for i := range 2 * *figures {
			leads, others := c.leader()
			victim := others[i%2]
			if i%2 == 1 {
				victim = leads
			}
			f, a := c.failover(victim)
			first[i%2 == 1] = append(first[i%2 == 1], f)
			all[i%2 == 1] = append(all[i%2 == 1], a)
			victim.flags = []string{"--cluster-id", "c", "--join", c.addrs(victim)}
			victim.run()
			c.ready(c.nodes...)
		}
		for leader, what := range map[bool]string{false: "a follower", true: "the leader"} {
			t.Logf("kill -9 of %s to the first answer for a key of its: %s", what, spreadOf(first[leader]))
			t.Logf("kill -9 of %s to answers for 16 keys of its: %s", what, spreadOf(all[leader]))
		}
	})
	t.Logf("start of three processes to all ready: %s", spreadOf(starts))
	t.Run("idle", func(t *testing.T) { measureIdle(t, time.Minute) })
}

// spreadOf returns the percentiles of durations.
func spreadOf(d []time.Duration) string {
	if len(d) == 0 {
		return "not measured"
	}
	slices.Sort(d)
	at := func(p int) time.Duration { return d[min(len(d)*p/100, len(d)-1)].Round(time.Millisecond) }
	return fmt.Sprintf("%d ×, least %s, p50 %s, p99 %s, most %s", len(d), at(0), at(50), at(99), at(100))
}

// failover kills a node and returns how long it took until the others answered
// for one of its keys, and for all.
func (c *testCluster) failover(victim *testNode) (first, all time.Duration) {
	c.t.Helper()
	keys := c.keys(16)[victim.id]
	survivors := slices.DeleteFunc(slices.Clone(c.nodes), func(n *testNode) bool { return n == victim })
	var mu sync.Mutex
	var wg sync.WaitGroup
	killed := time.Now()
	victim.kill()
	for i, key := range keys {
		wg.Go(func() {
			ok := poll(func() bool { _, err := survivors[i%2].acquire(c.t.Context(), key, true); return err == nil })
			took := time.Since(killed)
			mu.Lock()
			defer mu.Unlock()
			if all = max(all, took); first == 0 || took < first {
				first = took
			}
			if !ok {
				c.t.Errorf("nobody answers for %q", key)
			}
		})
	}
	wg.Wait()
	return first, all
}

// measureIdle measures what a cluster that nobody uses costs: its processes are
// alone in a network namespace.
func measureIdle(t *testing.T, long time.Duration) {
	s := newSpace(t)
	c := &testCluster{t: t}
	for i := range 3 {
		n := newTestNode(t, fmt.Sprint("n", i+1), "", "--cluster-id", "c")
		n.dial = s.dial
		c.nodes = append(c.nodes, n)
	}
	for i, n := range c.nodes {
		if i == 0 {
			n.flags = append(n.flags, "--bootstrap", "--gossip-profile", "lan")
		} else {
			n.flags = append(n.flags, "--join", c.addrs(n), "--gossip-profile", "lan")
		}
		if err := s.within(func() error { n.run(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	c.ready(c.nodes...)
	for _, n := range c.nodes {
		_ = n.conn.Close() // nobody is connected
	}
	<-time.After(5 * time.Second)
	type reading struct {
		cpu   [3]float64 // seconds
		bytes [2]float64 // bytes and packets on loopback
	}
	read := func() (r reading) {
		for i, n := range c.nodes {
			r.cpu[i] = cpuSeconds(t, n.cmd.Process.Pid)
		}
		r.bytes = loopback(t, c.nodes[0].cmd.Process.Pid)
		return r
	}
	before := read()
	<-time.After(long)
	after := read()
	for i, n := range c.nodes {
		t.Logf("idle: %s used %.2f s of CPU a minute, and has %s resident", n.id, (after.cpu[i]-before.cpu[i])/long.Minutes(), resident(t, n.cmd.Process.Pid))
	}
	t.Logf("idle: %.0f bytes and %.0f packets a second on loopback, headers included", (after.bytes[0]-before.bytes[0])/long.Seconds(), (after.bytes[1]-before.bytes[1])/long.Seconds())
}

func procFile(t *testing.T, pid int, name string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// userHz is the unit of times in /proc: 1/100 s on every Linux.
const userHz = 100

// cpuSeconds returns what a process has used: fields 14 and 15 of its stat.
func cpuSeconds(t *testing.T, pid int) float64 {
	t.Helper()
	_, rest, _ := strings.Cut(procFile(t, pid, "stat"), ") ")
	f := strings.Fields(rest)
	user, uerr := strconv.ParseFloat(f[11], 64)
	system, serr := strconv.ParseFloat(f[12], 64)
	if uerr != nil || serr != nil {
		t.Fatal(uerr, serr)
	}
	return (user + system) / userHz
}

// loopback returns the bytes and packets that were sent on it.
func loopback(t *testing.T, pid int) (sent [2]float64) {
	t.Helper()
	_, line, _ := strings.Cut(procFile(t, pid, "net/dev"), "lo:")
	f := strings.Fields(line)
	for i := range sent {
		n, err := strconv.ParseFloat(f[8+i], 64)
		if err != nil {
			t.Fatal(err)
		}
		sent[i] = n
	}
	return sent
}

func resident(t *testing.T, pid int) string {
	t.Helper()
	_, rest, _ := strings.Cut(procFile(t, pid, "status"), "VmRSS:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}
