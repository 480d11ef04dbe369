// Package keysteadtest runs a Keystead node in the process of a test, so that a program's
// tests can use the real thing and not a fake.
//
//	func TestCheckout(t *testing.T) {
//		c := keysteadtest.Start(t).Client(t)
//		shop := NewShop(c)
//		…
//	}
//
// # Guarantee
//
// The node listens on a free port of 127.0.0.1, keeps nothing on disk, writes no log, and
// is a whole node that runs alone: every call of package client works, and so do calls by
// any other gRPC client. Each node is a world of its own; tests may run in parallel.
//
// # Non-guarantees
//
// It is not a cluster: nothing is handed over, and Drain is refused. Time is that of the
// machine; limits with a long period do not refill while a test runs, and that is what to
// test with.
//
// This package compiles in a whole node. Import it in tests only; a program that imports
// package client has none of it.
package keysteadtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/node"
)

// dialTimeout is how long Client may take; a node of this process answers in milliseconds.
const dialTimeout = 10 * time.Second

// Node is a node in this process.
type Node struct {
	n    *node.Node
	stop sync.Once
}

// Run starts a node. Stop it when it is no longer needed. Tests have Start.
func Run() (*Node, error) {
	// Callers that are gone when the node stops are not waited for.
	n, err := node.Start(node.Config{ID: "test", GRPCAddr: "127.0.0.1:0", Fresh: true, StopGrace: time.Millisecond})
	if err != nil {
		return nil, err
	}
	return &Node{n: n}, nil
}

// Start starts a node for a test, which ends with it.
func Start(t testing.TB) *Node {
	t.Helper()
	n, err := Run()
	if err != nil {
		t.Fatalf("a Keystead node for the test: %v", err)
	}
	t.Cleanup(n.Stop)
	return n
}

// Addr returns the address of the node's API, host:port.
func (n *Node) Addr() string { return n.n.GRPCAddr() }

// Client connects to the node, until the end of the test.
func (n *Node) Client(t testing.TB) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	c, err := client.Dial(ctx, n.Addr())
	if err != nil {
		t.Fatalf("a client of the Keystead node for the test: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// Stop ends the node, so that a test can see what its program does when Keystead does not
// answer. What it kept is gone. It may be called more than once.
func (n *Node) Stop() { n.stop.Do(n.n.Stop) }
