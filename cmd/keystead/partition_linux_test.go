package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// island is a cluster whose nodes have a network namespace each, on one bridge.
type island struct {
	t    *testing.T
	name string
	runs []*process
}

// settle makes the namespaces and starts a node in each.
func settle(t *testing.T, n int) *island {
	t.Helper()
	x := &island{t: t, name: fmt.Sprintf("ks%d", os.Getpid()%100_000)}
	t.Cleanup(func() {
		for i := range x.runs {
			_ = x.runs[i].cmd.Process.Kill()
			<-x.runs[i].done
			if t.Failed() {
				t.Logf("n%d said:\n%s", i+1, x.runs[i].err())
			}
		}
		for i := range n + 1 {
			_ = exec.Command("ip", "netns", "del", x.space(i)).Run() // it may not have come to be
		}
	})
	x.ip("netns", "add", x.space(0))
	x.in(0, "ip", "link", "add", "br0", "type", "bridge")
	x.in(0, "ip", "link", "set", "br0", "up")
	for i := 1; i <= n; i++ {
		port := fmt.Sprintf("%sv%d", x.name, i)
		x.ip("netns", "add", x.space(i))
		x.ip("link", "add", port, "netns", x.space(0), "type", "veth", "peer", "name", "eth0", "netns", x.space(i))
		x.in(0, "ip", "link", "set", port, "master", "br0")
		x.in(0, "ip", "link", "set", port, "up")
		x.in(i, "ip", "link", "set", "lo", "up")
		x.in(i, "ip", "addr", "add", fmt.Sprintf("10.77.0.%d/24", i), "dev", "eth0")
		x.in(i, "ip", "link", "set", "eth0", "up")
	}
	for i := 1; i <= n; i++ {
		args := []string{"netns", "exec", x.space(i), binary, "server", "--cluster-id", "island", "--id", fmt.Sprint("n", i), "--gossip-profile", "local",
			"--grpc-addr", x.addr(i, 7400), "--raft-addr", x.addr(i, 7401), "--gossip-addr", x.addr(i, 7402), "--admin-addr", ""}
		if i == 1 {
			args = append(args, "--bootstrap")
		} else {
			args = append(args, "--join", x.addr(1, 7402)+","+x.addr(5-i, 7402))
		}
		p, err := spawn(t.TempDir(), func(cmd *exec.Cmd) {
			cmd.Path, cmd.Args = "/usr/sbin/ip", append([]string{"ip"}, args...)
			if path, err := exec.LookPath("ip"); err == nil {
				cmd.Path = path
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		x.runs = append(x.runs, p)
	}
	x.well(1)
	return x
}

func (x *island) space(i int) string { return fmt.Sprintf("%sn%d", x.name, i) }

func (x *island) addr(i, port int) string { return fmt.Sprintf("10.77.0.%d:%d", i, port) }

func (x *island) ip(args ...string) {
	x.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		x.t.Fatalf("ip %s: %v: %s: this test needs root and Debian's iproute2 and iptables", strings.Join(args, " "), err, out)
	}
}

// in runs a command in a namespace.
func (x *island) in(i int, args ...string) {
	x.t.Helper()
	x.ip(append([]string{"netns", "exec", x.space(i)}, args...)...)
}

// well waits until all three are active, as node i sees it.
func (x *island) well(i int) {
	x.t.Helper()
	x.in(i, binary, "status", "--addr", x.addr(i, 7400), "--wait", "40s", "--members", "3")
}

// add adds to a counter through node i, from its own namespace.
func (x *island) add(i int, key string) bool {
	return exec.Command("ip", "netns", "exec", x.space(i), binary, "counter", "add", key, "--addr", x.addr(i, 7400), "--timeout", "400ms").Run() == nil
}

// owned is a key that node i owns.
func (x *island) owned(i int) string {
	x.t.Helper()
	args := []string{"netns", "exec", x.space(1), binary, "owner", "--addr", x.addr(1, 7400)}
	for k := range 64 {
		args = append(args, fmt.Sprint("key", k))
	}
	out, err := exec.Command("ip", args...).Output()
	if err != nil {
		x.t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == fmt.Sprint("n", i) {
			return f[0]
		}
	}
	x.t.Fatalf("n%d owns none of 64 keys:\n%s", i, out)
	return ""
}

// TestPartition cuts a node off from the two others, in both directions and in
// one, in a kernel's network: it stops answering for its keys, they answer when
// its lease is over, and never both.
func TestPartition(t *testing.T) {
	x := settle(t, 3)
	for _, tc := range []struct {
		name string
		node int
		cut  func(on bool)
	}{
		{"from both sides", 3, func(on bool) {
			state := map[bool]string{true: "down", false: "up"}[on]
			x.in(0, "ip", "link", "set", fmt.Sprintf("%sv3", x.name), state)
		}},
		{"it hears nothing", 2, func(on bool) { x.drop(2, "INPUT", on) }},
		{"nobody hears it", 3, func(on bool) { x.drop(3, "OUTPUT", on) }},
		{"the first one", 1, func(on bool) {
			x.in(0, "ip", "link", "set", fmt.Sprintf("%sv1", x.name), map[bool]string{true: "down", false: "up"}[on])
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x.t = t
			x.cutOff(tc.node, tc.cut)
		})
	}
}

// drop drops what comes into a namespace, or what leaves it, but for what it
// says to itself.
func (x *island) drop(i int, chain string, on bool) {
	x.t.Helper()
	iface := map[string]string{"INPUT": "-i", "OUTPUT": "-o"}[chain]
	x.in(i, "iptables", map[bool]string{true: "-A", false: "-D"}[on], chain, iface, "eth0", "-j", "DROP")
}

func (x *island) cutOff(node int, cut func(on bool)) {
	t := x.t
	t.Helper()
	key, other := x.owned(node), node%3+1
	if !x.add(node, key) || !x.add(other, key) {
		t.Fatal("it is not served while all is well")
	}
	cut(true)
	began := time.Now()
	var mu sync.Mutex
	var lastInside, firstOutside time.Time // begin of a success at the node that is cut off; end of one at the others
	var wg sync.WaitGroup
	over := make(chan struct{})
	try := func(i int, told func(from, to time.Time)) {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				from := time.Now()
				if x.add(i, key) {
					mu.Lock()
					told(from, time.Now())
					mu.Unlock()
				}
			}
		})
	}
	try(node, func(from, _ time.Time) { lastInside = from })
	try(other, func(_, to time.Time) {
		if firstOutside.IsZero() {
			firstOutside = to
		}
	})
	eventually(t, "the others answer", func() bool { mu.Lock(); defer mu.Unlock(); return !firstOutside.IsZero() })
	timer := time.NewTimer(time.Second) // and go on for a while
	<-timer.C
	close(over)
	wg.Wait()
	if lastInside.After(firstOutside) {
		t.Errorf("cut off, it answered %s after the others had", lastInside.Sub(firstOutside))
	}
	t.Logf("the others answered %s after the cut; the last answer inside began %s after it", firstOutside.Sub(began), lastInside.Sub(began))
	cut(false)
	x.well(other)
	if !x.add(node, key) || !x.add(other, key) {
		t.Error("it is not served after all is well again")
	}
}
