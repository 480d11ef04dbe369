package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
)

// Node is a node of a cluster, in whichever process it runs now.
type Node struct {
	ID    string
	Index int // from 0, in the order in which they were added

	c       *Cluster
	grpc    string // host:port at which others reach its API
	gossip  string // … its gossip
	args    []string
	disk    string
	own     *disk // a disk of its own, or nil
	log     *os.File
	proxies []*Proxy // those of its API, raft and gossip
	conn    *grpc.ClientConn

	mu      sync.Mutex    // guards what follows
	cmd     *exec.Cmd     // of the last process
	ended   chan struct{} // closed when that has ended; nil before the first
	err     error         // how it ended
	drained bool
}

// Ports of a node on an island.
const (
	islandGRPC   = "7400"
	islandRaft   = "7401"
	islandGossip = "7402"
)

// newNode chooses the addresses of a node that does not run yet.
func (c *Cluster) newNode() (_ *Node, err error) {
	i := len(c.nodes)
	n := &Node{c: c, Index: i, ID: fmt.Sprint("n", i+1)}
	n.disk = filepath.Join(c.cfg.Dir, n.ID)
	if c.cfg.DataDir != nil {
		n.disk = c.cfg.DataDir(n.ID)
	}
	if c.cfg.Disks {
		if n.own, err = newDisk(n.disk+".img", n.disk); err != nil {
			return nil, err
		}
		n.disk = n.own.data()
	}
	bind, host, ports := "127.0.0.1", "127.0.0.1", [3]string{islandGRPC, islandRaft, islandGossip}
	if c.islands != nil {
		bind, host = c.islands.host(i), c.islands.host(i)
		if err := c.islands.add(); err != nil {
			return nil, err
		}
	} else {
		for j := range ports {
			if ports[j], err = c.ports.Next(); err != nil {
				return nil, err
			}
		}
		if c.cfg.Proxied {
			host = fmt.Sprint("127.0.1.", i+1)
		}
	}
	for j, port := range ports {
		if host == bind {
			continue
		}
		p, err := NewProxy(net.JoinHostPort(host, port), net.JoinHostPort(bind, port), j == 2)
		if err != nil {
			n.close()
			return nil, err
		}
		n.proxies = append(n.proxies, p)
	}
	n.grpc, n.gossip = net.JoinHostPort(host, ports[0]), net.JoinHostPort(host, ports[2])
	n.args = append([]string{"server", "--id", n.ID, "--cluster-id", "nemesis", "--data-dir", n.disk, "--gossip-profile", "local",
		"--hash-key", "nemesis-" + n.ID, // so that the seed alone decides who owns a key at first
		"--admin-addr", "", "--lease-ttl", c.cfg.Lease.String(), "--max-lock-ttl", MaxLockTTL.String(), "--advertise", host,
		"--grpc-addr", net.JoinHostPort(bind, ports[0]), "--raft-addr", net.JoinHostPort(bind, ports[1]), "--gossip-addr", net.JoinHostPort(bind, ports[2])},
		c.cfg.Flags...)
	if n.log, err = os.OpenFile(filepath.Join(c.cfg.Dir, n.ID+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err == nil {
		n.conn, err = c.Connect(n)
	}
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// Start starts a process of the node, with the flags of the first one, which is
// also told to join the others.
func (n *Node) Start() error {
	if n.Runs() {
		return fmt.Errorf("cluster: %s runs already", n.ID)
	}
	args := append([]string(nil), n.args...)
	if n.Index == 0 {
		args = append(args, "--bootstrap")
	}
	// The first start of the first node makes the cluster. Later it looks around
	// first: its disk may have been wiped.
	if others := n.c.gossipAddrs(n); len(others) > 0 && (n.Index > 0 || n.ended != nil) {
		args = append(args, "--join", strings.Join(others, ","))
	}
	cmd := exec.Command(n.c.cfg.Binary, args...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = n.log, n.log, attached()
	start := cmd.Start
	if n.c.islands != nil {
		start = func() error { return n.c.islands.within(n.Index, cmd.Start) }
	}
	if err := start(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	ended := make(chan struct{})
	n.cmd, n.ended, n.err, n.drained = cmd, ended, nil, false
	n.c.wg.Go(func() {
		err := cmd.Wait()
		n.mu.Lock()
		n.err = err
		n.mu.Unlock()
		close(ended)
	})
	return nil
}

// Addr returns host:port at which clients reach the node.
func (n *Node) Addr() string { return n.grpc }

// Runs reports whether the node has a process, be it a stopped one.
func (n *Node) Runs() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended == nil {
		return false
	}
	select {
	case <-n.ended:
		return false
	default:
		return true
	}
}

// Drained reports whether the node was told to drain itself, or to be drained, since
// it started last.
func (n *Node) Drained() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.drained
}

// SetDrained notes it.
func (n *Node) SetDrained(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drained = on
}

func (n *Node) signal(s syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return errors.New("cluster: no process")
	}
	return n.cmd.Process.Signal(s)
}

// Kill ends the process as kill -9 does, and waits for its end.
func (n *Node) Kill() error {
	if err := n.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-n.ended
	return nil
}

// Terminate asks the process to stop, and waits for its end for so long; then it
// kills it, which is an error, as is another exit code than 0. With again it asks once
// more after so long, as shells and wrappers do that signal a process and its group.
func (n *Node) Terminate(within, again time.Duration) error {
	if err := n.signal(syscall.SIGTERM); err != nil {
		return err
	}
	if again > 0 {
		time.Sleep(again)
		if err := n.signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-n.ended:
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.err != nil {
			return fmt.Errorf("cluster: %s, told to stop: %w", n.ID, n.err)
		}
		return nil
	case <-t.C:
		return errors.Join(fmt.Errorf("cluster: %s, told to stop, did not within %s", n.ID, within), n.Kill())
	}
}

// Pause stops the process with SIGSTOP, or lets it go on.
func (n *Node) Pause(on bool) error {
	if on {
		return n.signal(syscall.SIGSTOP)
	}
	return n.signal(syscall.SIGCONT)
}

// Wipe removes what the node, which must not run, has on its disk.
func (n *Node) Wipe() error {
	if n.Runs() {
		return fmt.Errorf("cluster: %s still runs", n.ID)
	}
	return os.RemoveAll(n.disk)
}

// Fill has the node's disk be full, or gives it its room back. It needs Disks.
func (n *Node) Fill(on bool) error { return n.own.fill(on) }

// Hang has all writes of the node's disk wait, or go on. It needs Disks.
func (n *Node) Hang(on bool) error { return n.own.hang(on) }

// Slow delays all that goes to the node, in each direction; 0 is no delay. It does
// nothing in a cluster that is not Proxied.
func (n *Node) Slow(d time.Duration) {
	for _, p := range n.proxies {
		p.Delay(d)
	}
}

func (n *Node) close() {
	if n.own != nil {
		_ = n.own.hang(false) // a process whose write hangs does not end
	}
	if n.Runs() {
		_ = n.Kill()
	}
	if n.conn != nil {
		_ = n.conn.Close()
	}
	for _, p := range n.proxies {
		p.Close()
	}
	if n.log != nil {
		_ = n.log.Close()
	}
	if n.own != nil {
		n.own.close()
	}
}
