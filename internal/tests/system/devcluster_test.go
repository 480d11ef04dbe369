package system

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// devRun is a `keystead dev` that runs several nodes.
type devRun struct {
	*process
	t     *testing.T
	ids   []string
	addrs []string // of the nodes' APIs
	pids  []int
}

var devLine = regexp.MustCompile(`(?m)^  (n\d+) +(\S+) .* (\d+)$`)

// runDev starts a cluster to try things on and waits until it says that it is
// ready. Whatever becomes of it, its nodes end with the test.
func runDev(t *testing.T, nodes int, args ...string) *devRun {
	t.Helper()
	d := &devRun{t: t, process: start(t, nil, append([]string{"dev", "--nodes", strconv.Itoa(nodes)}, args...)...)}
	eventually(t, "the cluster is ready", func() bool {
		select {
		case <-d.done:
			t.Fatalf("it ended: %s%s", d.out(), d.err())
		default:
		}
		return strings.HasSuffix(d.out(), "(Ctrl-C).\n") || strings.HasSuffix(d.out(), "when it is started again.\n")
	})
	for _, m := range devLine.FindAllStringSubmatch(d.out(), -1) {
		pid, _ := strconv.Atoi(m[3])
		d.ids, d.addrs, d.pids = append(d.ids, m[1]), append(d.addrs, m[2]), append(d.pids, pid)
	}
	t.Cleanup(func() {
		for _, pid := range d.pids {
			if isNode(pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	if len(d.pids) != nodes || !strings.HasPrefix(d.out(), fmt.Sprintf("A Keystead cluster of %d nodes is ready (", nodes)) {
		t.Fatalf("it prints %q", d.out())
	}
	return d
}

// isNode reports whether a process is there and is a keystead that has not ended.
func isNode(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	out, err := exec.Command("ps", "-o", "stat=,args=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !strings.HasPrefix(string(out), "Z") && strings.Contains(string(out), binary)
}

// gone waits until no node runs any more.
func (d *devRun) gone() {
	d.t.Helper()
	eventually(d.t, "no node is left", func() bool { return !slices.ContainsFunc(d.pids, isNode) })
}

// Ctrl-C ends all nodes, and so does SIGTERM; so does the death of the process
// that started them.
func TestDevClusterEnds(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGINT, 0}, {syscall.SIGTERM, 0}, {syscall.SIGKILL, -1}} {
		t.Run(tc.signal.String(), func(t *testing.T) {
			t.Parallel()
			d := runDev(t, 3, "--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0")
			for _, pid := range d.pids {
				if !isNode(pid) {
					t.Fatalf("process %d does not run", pid)
				}
			}
			d.signal(t, tc.signal)
			d.ends(t, tc.code)
			d.gone()
			if strings.Contains(d.err(), "bring it back") || strings.Contains(d.err(), "level=ERROR") {
				t.Errorf("it says %s", d.err())
			}
		})
	}
}

var comesBack = regexp.MustCompile(`(?m)^(n\d+) ended: signal: killed\n  bring it back with: (keystead .*)$`)

// A node that dies is reported with the command that brings it back, be it the
// one that made the cluster; the command works as it stands.
func TestDevClusterNodeKilled(t *testing.T) {
	t.Parallel()
	d := runDev(t, 3, "--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--data-dir", t.TempDir()+"/two words")
	for i, victim := range []int{0, 2} {
		if err := syscall.Kill(d.pids[victim], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		var found [][]string
		eventually(t, "it says how to bring the node back", func() bool {
			found = comesBack.FindAllStringSubmatch(d.err(), -1)
			return len(found) == i+1
		})
		if found[i][1] != d.ids[victim] {
			t.Fatalf("%s was killed; it says %s", d.ids[victim], d.err())
		}
		back := start(t, func(cmd *exec.Cmd) { cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", "exec " + found[i][2]} })
		for _, addr := range d.addrs {
			status := object(t, succeeds(t, "status", "--wait", patience.String(), "--members", "3", "--json", "--addr", addr))
			if voters := status["voters"].([]any); len(voters) != 3 {
				t.Errorf("voters %v", voters)
			}
		}
		defer back.ends(t, 0)
		defer back.signal(t, syscall.SIGTERM)
	}
	// The one that is left of those that it started ends with it, and it with 0.
	d.signal(t, syscall.SIGINT)
	d.ends(t, 0)
	d.gone()
}

// freeRow returns the first of some ports in a row at which nothing listens, above those
// that the other tests pick.
func freeRow(t *testing.T, n int) int {
	t.Helper()
	const from, to = lastPort + 1, 32_000
search:
	for range 1000 {
		first := from + rand.IntN(to-from)
		for port := first; port < first+n; port++ {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
			if err != nil {
				continue search
			}
			_ = l.Close()
		}
		return first
	}
	t.Fatal("no ports are free")
	return 0
}

// Nodes that all end by themselves end the command; a node that cannot start is
// reported, and leaves nothing behind.
func TestDevClusterFails(t *testing.T) {
	t.Parallel()
	d := runDev(t, 2, "--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0")
	for _, pid := range d.pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	d.ends(t, exitError)
	if !strings.Contains(d.err(), "all nodes have ended") {
		t.Error(d.err())
	}
	// A port of the second node is taken.
	first := freeRow(t, devPortStep+1)
	blocker := startNode(t, nil, "dev", "--grpc-addr", "127.0.0.1:"+strconv.Itoa(first+devPortStep))
	root := t.TempDir()
	r := keystead(t, "dev", "--nodes", "2", "--grpc-addr", "127.0.0.1:"+strconv.Itoa(first), "--admin-addr", "", "--data-dir", root)
	if r.code != exitError || !strings.Contains(r.err, "a node did not come up: n2 ended") || !strings.Contains(r.err, "another process has the port") {
		t.Errorf("%d %s", r.code, r.err)
	}
	if out, err := exec.Command("pgrep", "-f", root).Output(); err == nil {
		t.Errorf("left behind: %s", out)
	}
	blocker.stop(t)
}
