//go:build system

package system

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// space is a network namespace. It has no name, and is gone with the processes in
// it and with this one.
type space struct {
	t  *testing.T
	ns *os.File
}

const spaceHint = "this test needs root, and Debian's iproute2 and iptables"

func newSpace(t *testing.T) *space {
	t.Helper()
	s := &space{t: t}
	// Nothing may end with its thread: the processes that it has started would, too.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err == nil {
		defer home.Close()
		err = unix.Unshare(unix.CLONE_NEWNET)
	}
	if err == nil {
		s.ns, err = os.Open("/proc/thread-self/ns/net")
		err = errors.Join(err, unix.Setns(int(home.Fd()), unix.CLONE_NEWNET))
	}
	if err != nil {
		t.Fatalf("making a network namespace: %v: %s", err, spaceHint)
	}
	t.Cleanup(func() { _ = s.ns.Close() })
	s.run("ip", "link", "set", "lo", "up")
	return s
}

// within runs f on a thread that is in the namespace: what it connects, listens to
// and starts is, too.
func (s *space) within(f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	if err := unix.Setns(int(s.ns.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return back // the thread stays locked, and ends with the goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// run runs a command in the namespace.
func (s *space) run(args ...string) {
	s.t.Helper()
	var out []byte
	if err := s.within(func() (err error) {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
		return err
	}); err != nil {
		s.t.Fatalf("%s: %v: %s: %s", strings.Join(args, " "), err, out, spaceHint)
	}
}

func (s *space) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = s.within(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// island is a cluster whose nodes have a namespace each, on one bridge.
type island struct {
	testCluster
	bridge *space
	spaces []*space
}

func (x *island) host(i int) string { return fmt.Sprintf("10.77.0.%d", i+1) }

// startIsland starts a cluster of n nodes, each in a namespace.
func startIsland(t *testing.T, n int, flags ...string) *island {
	t.Helper()
	x := &island{testCluster: testCluster{t: t}, bridge: newSpace(t)}
	x.bridge.run("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0")
	x.bridge.run("ip", "link", "set", "br0", "up")
	for i := range n {
		s := newSpace(t)
		port := fmt.Sprintf("port%d", i)
		x.bridge.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.ns.Fd()))
		x.bridge.run("ip", "link", "set", port, "master", "br0", "up")
		s.run("ip", "addr", "add", x.host(i)+"/24", "dev", "eth0")
		s.run("ip", "link", "set", "eth0", "up")
		x.spaces = append(x.spaces, s)
		x.nodes = append(x.nodes, &testNode{t: t, id: fmt.Sprint("n", i+1), dial: s.dial,
			grpc: x.host(i) + ":7400", admin: x.host(i) + ":7480", raft: x.host(i) + ":7401", gossip: x.host(i) + ":7402"})
	}
	for i, n := range x.nodes {
		n.flags = append([]string{"--cluster-id", "island"}, flags...)
		if i == 0 {
			n.flags = append(n.flags, "--bootstrap")
		} else {
			n.flags = append(n.flags, "--join", x.addrs(n))
		}
		if err := x.spaces[i].within(func() error { n.run(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	x.ready(x.nodes...)
	return x
}

func switched(on bool, yes, no string) string {
	if on {
		return yes
	}
	return no
}

// unplug takes a node's cable out, or plugs it in again.
func (x *island) unplug(i int, out bool) {
	x.t.Helper()
	x.bridge.run("ip", "link", "set", fmt.Sprintf("port%d", i), switched(out, "down", "up"))
}

// deafen drops what comes to a node from others.
func (x *island) deafen(i int, on bool) {
	x.t.Helper()
	x.spaces[i].run("iptables", "-w", switched(on, "-A", "-D"), "INPUT", "-i", "eth0", "-j", "DROP")
}

// silence drops what comes from a node at all others.
func (x *island) silence(i int, on bool) {
	x.t.Helper()
	for j, s := range x.spaces {
		if j != i {
			s.run("iptables", "-w", switched(on, "-A", "-D"), "INPUT", "-s", x.host(i), "-j", "DROP")
		}
	}
}

// answer is a grant of a lock to a client in the node's own namespace, by the one
// monotonic clock of the tests.
type answer struct {
	grant
	by       int
	key      string
	from, to time.Time
}

// record takes locks at all nodes until it is told to stop, each time at the node
// itself: none forwards. What it returns stops it, and returns the answers.
func (x *island) record(keys []string) (soFar, stop func() []answer) {
	ctx, cancel := context.WithCancel(x.t.Context())
	var mu sync.Mutex
	var wg sync.WaitGroup
	var all []answer
	for i, n := range x.nodes {
		for _, key := range keys {
			wg.Go(func() {
				tick := time.NewTicker(5 * time.Millisecond)
				defer tick.Stop()
				for ctx.Err() == nil {
					from := time.Now()
					if g, err := n.acquire(ctx, key, false); err == nil {
						mu.Lock()
						all = append(all, answer{g, i, key, from, time.Now()})
						mu.Unlock()
					}
					select {
					case <-tick.C:
					case <-ctx.Done():
					}
				}
			})
		}
	}
	soFar = func() []answer { mu.Lock(); defer mu.Unlock(); return slices.Clone(all) }
	return soFar, func() []answer { cancel(); wg.Wait(); return all }
}

// judge checks that of two answers about a key, of which one was there before the
// other was asked for, the later has the greater token. An owner that answers
// after the next one has answered breaks this.
func judge(t *testing.T, answers []answer) {
	t.Helper()
	byKey := map[string][]answer{}
	for _, a := range answers {
		byKey[a.key] = append(byKey[a.key], a)
	}
	for key, of := range byKey {
		asked, there := of, slices.Clone(of)
		slices.SortFunc(asked, func(a, b answer) int { return a.from.Compare(b.from) })
		slices.SortFunc(there, func(a, b answer) int { return a.to.Compare(b.to) })
		var most answer
		i := 0
		for _, a := range asked {
			for ; i < len(there) && there[i].to.Before(a.from); i++ {
				if there[i].token > most.token {
					most = there[i]
				}
			}
			if a.token <= most.token {
				t.Errorf("%q: n%d granted %d when n%d had granted %d %s before", key, a.by+1, a.token, most.by+1, most.token, a.from.Sub(most.to))
				return
			}
		}
	}
}

// TestPartition cuts nodes off in a kernel's network, in both directions and in
// one: who is cut off from the majority stops answering for its keys within its
// lease, the others answer when it is over, and never both.
func TestPartition(t *testing.T) {
	const ttl = time.Second
	for _, tc := range []struct {
		name   string
		leader bool
		cut    func(x *island, victim int, on bool)
		all    bool // from all: there is no majority
	}{
		{name: "a follower", cut: (*island).unplug},
		{name: "the leader", leader: true, cut: (*island).unplug},
		{name: "a follower that hears nothing", cut: (*island).deafen},
		{name: "a follower that nobody hears", cut: (*island).silence},
		{name: "a leader that hears nothing", leader: true, cut: (*island).deafen},
		{name: "a leader that nobody hears", leader: true, cut: (*island).silence},
		{name: "all from all", all: true, cut: func(x *island, _ int, on bool) {
			for i := range x.nodes {
				x.unplug(i, on)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			x := startIsland(t, 3, "--lease-ttl", ttl.String(), "--lease-margin", "25ms")
			leads, others := x.leader()
			victim := slices.Index(x.nodes, others[0])
			if tc.leader {
				victim = slices.Index(x.nodes, leads)
			}
			var keys []string
			for id, of := range x.keys(2) {
				if tc.all || id == x.nodes[victim].id {
					keys = append(keys, of...)
				}
			}
			minority := func(a answer) bool { return tc.all || a.by == victim }
			soFar, stop := x.record(keys)
			eventually(t, "it is answered while all is well", func() bool { return len(soFar()) > 20*len(keys) })
			tc.cut(x, victim, true)
			cut := time.Now()
			if !tc.all {
				eventually(t, "the others answer for all of its keys", func() bool {
					answered := map[string]bool{}
					for _, a := range soFar() {
						answered[a.key] = answered[a.key] || !minority(a)
					}
					return len(answered) == len(keys) && !slices.ContainsFunc(keys, func(k string) bool { return !answered[k] })
				})
			}
			<-time.After(time.Until(cut.Add(2 * ttl))) // long enough for who is cut off to answer, if it did
			before := soFar()
			tc.cut(x, victim, false)
			healed := time.Now()
			x.ready(x.nodes...)
			back := time.Since(healed)
			var first, last time.Duration
			for _, a := range before {
				if late := a.from.Sub(cut); minority(a) {
					last = max(last, late)
				} else if first == 0 {
					first = a.to.Sub(cut)
				}
			}
			if last > ttl {
				t.Errorf("%s, cut off, answered a call of %s after the cut", x.nodes[victim].id, last)
			}
			answers := stop()
			judge(t, answers)
			t.Logf("of %d answers the last one of who was cut off was asked for %s after the cut, the first one of the others came %s after it; all was well %s after the end of the cut",
				len(answers), last, first, back)
		})
	}
}
