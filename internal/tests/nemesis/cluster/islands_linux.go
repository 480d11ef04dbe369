package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

const islandsHint = "islands need root, and Debian's iproute2 and iptables"

// space is a network namespace. It has no name, and is gone with the processes in
// it and with this one.
type space struct{ ns *os.File }

func newSpace() (*space, error) {
	// Nothing may end with its thread: the processes that it has started would, too.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("cluster: making a network namespace: %w: %s", err, islandsHint)
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil || back != nil {
		return nil, errors.Join(err, back)
	}
	s := &space{ns: ns}
	return s, s.run("ip", "link", "set", "lo", "up")
}

// within runs f on a thread that is in the namespace: what it connects, listens to
// and starts is, too.
func (s *space) within(f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
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

func (s *space) run(args ...string) error {
	return s.within(func() error {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("cluster: %s: %w: %s: %s", strings.Join(args, " "), err, out, islandsHint)
		}
		return nil
	})
}

// islands are the namespaces of a cluster: one for each node, and the bridge, from
// where the clients call.
type islands struct {
	bridge *space
	spaces []*space // by index of the node
}

const islandNet = "10.78.0."

// maxIslands is how many addresses there are for nodes.
const maxIslands = 200

func newIslands() (*islands, error) {
	b, err := newSpace()
	if err != nil {
		return nil, err
	}
	x := &islands{bridge: b}
	for _, args := range [][]string{
		{"ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0"},
		{"ip", "addr", "add", islandNet + "254/24", "dev", "br0"},
		{"ip", "link", "set", "br0", "up"},
	} {
		if err := b.run(args...); err != nil {
			x.close()
			return nil, err
		}
	}
	return x, nil
}

func (x *islands) host(i int) string { return fmt.Sprint(islandNet, i+1) }

// add makes the namespace of the next node.
func (x *islands) add() error {
	i := len(x.spaces)
	if i == maxIslands {
		return errors.New("cluster: no address is free")
	}
	s, err := newSpace()
	if err != nil {
		return err
	}
	x.spaces = append(x.spaces, s)
	port := fmt.Sprint("port", i)
	peer := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.ns.Fd())
	return errors.Join(
		x.bridge.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", peer),
		x.bridge.run("ip", "link", "set", port, "master", "br0", "up"),
		s.run("ip", "addr", "add", x.host(i)+"/24", "dev", "eth0"),
		s.run("ip", "link", "set", "eth0", "up"))
}

// drop has a node drop what comes from another one, or no longer.
func (x *islands) drop(at, from int, on bool) error {
	what := "-D"
	if on {
		what = "-A"
	}
	return x.spaces[at].run("iptables", "-w", what, "INPUT", "-s", x.host(from), "-j", "DROP")
}

// dropRaft has a node drop what comes from another one's raft port, or to its own.
func (x *islands) dropRaft(at, from int, on bool) error {
	what := "-D"
	if on {
		what = "-A"
	}
	drop := func(port string) error {
		return x.spaces[at].run("iptables", "-w", what, "INPUT", "-s", x.host(from), "-p", "tcp", port, islandRaft, "-j", "DROP")
	}
	return errors.Join(drop("--sport"), drop("--dport"))
}

// within runs f in the namespace of a node.
func (x *islands) within(i int, f func() error) error { return x.spaces[i].within(f) }

// dial connects from the bridge.
func (x *islands) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = x.bridge.within(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

func (x *islands) close() {
	_ = x.bridge.ns.Close()
	for _, s := range x.spaces {
		_ = s.ns.Close()
	}
}
