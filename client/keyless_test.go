package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client/p2c"
)

func TestLighter(t *testing.T) {
	const us = int64(time.Microsecond)
	now := int64(time.Second)
	with := func(inFlight int, took int64) *node {
		n := &node{load: newLoad(now)}
		n.load.Begin(now - took)
		n.load.End(now-took, now, p2c.Answered)
		for range inFlight {
			n.load.Begin(now)
		}
		return n
	}
	p := &pool{nodes: map[string]*node{"idle": with(0, us), "busy": with(9, us), "slow": with(0, 20*us)}}
	for range 100 {
		for _, addrs := range [][]string{{"idle", "busy"}, {"slow", "idle"}} {
			if got := p.lighter(addrs, now); got != "idle" {
				t.Fatalf("of %v: %s", addrs, got)
			}
		}
		if got := p.lighter([]string{"slow", "busy"}, now); got != "busy" {
			t.Fatalf("10 calls of 1 µs are less than one of 20: %s", got)
		}
		if got := p.lighter([]string{"idle", "new"}, now); got != "new" {
			t.Fatalf("a node that was never asked is asked: %s", got)
		}
	}
	if p.lighter(nil, now) != "" || p.lighter([]string{"x"}, now) != "x" {
		t.Error("of none, or one")
	}
	// After a while without a call the slow one is asked again, once.
	now += int64(p2c.DefaultProbe)
	for _, addr := range []string{"idle", "busy"} {
		p.nodes[addr].load.Begin(now)
	}
	if got := p.lighter([]string{"idle", "slow", "busy"}, now); got != "slow" {
		t.Errorf("the probe went to %s", got)
	}
	if got := p.lighter([]string{"idle", "slow"}, now); got != "idle" {
		t.Errorf("after the probe: %s", got)
	}
}

// What an attempt says of its node, by how it ended.
func TestOutcome(t *testing.T) {
	open, ended := context.Background(), func() context.Context {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return ctx
	}()
	because := func(r Reason) error { return &Error{Code: codes.Unavailable, Reason: r} }
	for _, x := range []struct {
		what  string
		ctx   context.Context
		err   error
		waits bool
		want  p2c.Outcome
	}{
		{"an answer", open, nil, false, p2c.Answered},
		{"a lock after a wait", open, nil, true, p2c.Unknown},
		{"it may not act", open, because(ErrUnavailable), false, p2c.Failed},
		{"it may not act, for a lock", open, because(ErrUnavailable), true, p2c.Failed},
		{"it has no room", open, because(ErrOverloaded), false, p2c.Failed},
		{"another owns the key", open, because(ErrNotOwner), false, p2c.Unknown},
		{"the owner's store is full", open, because(ErrStoreFull), false, p2c.Unknown},
		{"no connection", open, status.Error(codes.Unavailable, "x"), false, p2c.Failed},
		{"no connection, for a lock", open, status.Error(codes.Unavailable, "x"), true, p2c.Failed},
		{"the time of an attempt is over", open, status.Error(codes.DeadlineExceeded, "x"), false, p2c.Failed},
		{"the caller left", ended, status.Error(codes.Canceled, "x"), false, p2c.Abandoned},
		{"the caller left a queue", ended, status.Error(codes.Canceled, "x"), true, p2c.Unknown},
		{"it is no node", open, status.Error(codes.Unimplemented, "x"), false, p2c.Failed},
	} {
		if got := outcome(x.ctx, x.err, x.waits); got != x.want {
			t.Errorf("%s: %d, want %d", x.what, got, x.want)
		}
	}
}

// hinder is an interceptor that makes the calls of a method slower at one node, or
// fail there, and counts those at each.
type hinder struct {
	node  string
	delay time.Duration
	err   error
	calls map[string]*atomic.Int64
}

func (h *hinder) options(ids ...string) []grpc.DialOption {
	h.calls = map[string]*atomic.Int64{}
	for _, id := range ids {
		h.calls[id] = &atomic.Int64{}
	}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if !strings.HasSuffix(method, "/GetStatus") {
			return next(ctx, method, req, reply, cc, opts...)
		}
		id := strings.TrimSuffix(strings.TrimPrefix(cc.Target(), "passthrough:///"), ":1")
		h.calls[id].Add(1)
		if id != h.node {
			<-time.After(time.Millisecond)
			return next(ctx, method, req, reply, cc, opts...)
		}
		<-time.After(h.delay)
		if h.err != nil {
			return h.err
		}
		return next(ctx, method, req, reply, cc, opts...)
	})}
}

func (h *hinder) String() string {
	s := ""
	for id, n := range h.calls {
		s += fmt.Sprintf("%s: %d ", id, n.Load())
	}
	return s
}

// Calls without a key leave a node that is slow, or fails at once, to the others,
// and none fails for it.
func TestKeyless(t *testing.T) {
	for name, h := range map[string]*hinder{
		"slow":    {node: "n2", delay: 20 * time.Millisecond},
		"failing": {node: "n2", err: status.Error(codes.Unavailable, "broken")},
	} {
		bubble(t, func(t *testing.T) {
			w := build(t, []string{"n1", "n2", "n3"}, nil)
			cfg := direct
			cfg.DialOptions = h.options("n1", "n2", "n3")
			c := w.client(cfg, "n1")
			for range 500 {
				if _, err := c.Cluster().Status(soon(t)); err != nil {
					t.Fatal(name, err)
				}
			}
			if got := h.calls["n2"].Load(); got < 1 || got > 25 {
				t.Errorf("%s: %s", name, h)
			}
			if a, b := h.calls["n1"].Load(), h.calls["n3"].Load(); a < 150 || b < 150 {
				t.Errorf("%s: %s", name, h)
			}
		})
	}
}

// keyless tries again elsewhere, and ends with the last error when no node has an
// answer or the error will not go away.
func TestKeylessErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		c := w.client(direct, "n1")
		var at []string
		fail := func(err error) func(context.Context, grpc.ClientConnInterface, ...grpc.CallOption) error {
			at = nil
			return func(_ context.Context, conn grpc.ClientConnInterface, _ ...grpc.CallOption) error {
				at = append(at, conn.(*grpc.ClientConn).Target())
				return err
			}
		}
		// The second says nothing of the node.
		for _, reason := range []Reason{ErrUnavailable, ErrRecovering} {
			err := c.keyless(soon(t), route{reads: true}, fail(&Error{Code: codes.Unavailable, Reason: reason}))
			if !errors.Is(err, reason) || len(at) < 10 {
				t.Errorf("%s: %v, at %v", reason, err, at)
			}
			for i := range at[1:] {
				if at[i] == at[i+1] {
					t.Errorf("%s: twice in a row: %v", reason, at)
				}
			}
		}
		if err := c.keyless(soon(t), route{}, fail(&Error{Reason: ErrUnknownNode})); !errors.Is(err, ErrUnknownNode) || len(at) != 1 {
			t.Errorf("%v, at %v", err, at)
		}
	})
}
