package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// idle fails if anything of a client is under way: slots, operations, calls at a node.
func idle(t *testing.T, c *Client) {
	t.Helper()
	synctest.Wait()
	if n, m := len(c.opSlots), len(c.waitSlots); n+m != 0 {
		t.Errorf("%d and %d calls are under way", n, m)
	}
	for what, id := range map[string]*identity{"ops": c.ops, "waits": c.waits} {
		if id.open.succ != &id.open {
			t.Errorf("%s: operation %d is not finished", what, id.open.succ.seq)
		}
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	for addr, n := range c.pool.nodes {
		watched := 1 // by the stream of the table, at one of them
		if n.refs > watched || n.checks.flights+n.adds.flights != 0 || len(n.checks.waiting)+len(n.adds.waiting) != 0 {
			t.Errorf("%s: %d calls, %d and %d messages, %d and %d that gather", addr, n.refs, n.checks.flights, n.adds.flights, len(n.checks.waiting), len(n.adds.waiting))
		}
	}
}

// storm makes every kind of call, each with a context that ends at some moment.
func storm(c *Client, calls *sync.WaitGroup, n int) {
	api, stock, lock := c.Limit("api", PerSecond(100)), c.Counter("stock"), c.Lock("")
	kinds := []func(ctx context.Context, key string){
		func(ctx context.Context, key string) { _, _ = api.Check(ctx, key) },
		func(ctx context.Context, key string) { _, _ = api.Check(ctx, key, IdempotencyKey("check "+key)) },
		func(ctx context.Context, key string) { _, _ = api.Peek(ctx, key) },
		func(ctx context.Context, key string) { _, _ = stock.Add(ctx, key, 1) },
		func(ctx context.Context, key string) { _, _ = stock.Get(ctx, key) },
		func(ctx context.Context, key string) { _, _ = stock.CompareAndSet(ctx, key, 1, 0) },
		func(ctx context.Context, key string) {
			_, _ = c.BatchAdd(ctx, []Add{{Counter: stock, Key: key, Delta: 1}, {Counter: stock, Key: "other " + key, Delta: 1}})
		},
		func(ctx context.Context, _ string) { _, _ = c.NextIDs(ctx, 3) },
		func(ctx context.Context, key string) {
			if held, err := lock.Acquire(ctx, "lock "+key, TTL(time.Second)); err == nil {
				_ = held.Release(ctx)
			}
		},
	}
	for i := range n {
		calls.Go(func() {
			time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Second))))
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Int64N(int64(time.Second))))
			if i%3 == 0 {
				cancel()
				ctx, cancel = context.WithCancel(context.Background())
				time.AfterFunc(time.Duration(rand.Int64N(int64(time.Second))), cancel)
			}
			defer cancel()
			kinds[i%len(kinds)](ctx, fmt.Sprint("key-", i%7))
		})
	}
}

// Callers that leave at any moment, while connections break and a node dies, leave nothing
// behind.
func TestCallersThatLeave(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		w.agree()
		c := w.client(Config{MaxInFlight: 50}, "n1")
		var calls sync.WaitGroup
		storm(c, &calls, 900)
		for _, id := range []string{"n2", "n3"} {
			time.Sleep(500 * time.Millisecond)
			w.nodes[id].cut()
			w.nodes[id].isolate(id == "n3")
		}
		calls.Wait()
		time.Sleep(time.Minute) // what is learnt in the background is learnt
		idle(t, c)
	})
}

// Close ends whatever is under way, at once.
func TestCloseAmidCalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		c := w.client(Config{MaxInFlight: 50}, "n1")
		held := must(c.Lock("").Acquire(soon(t), "held"))(t)
		var calls sync.WaitGroup
		for range 10 {
			calls.Go(func() { _, _ = c.Lock("").Acquire(context.Background(), "held") })
		}
		storm(c, &calls, 300)
		time.Sleep(time.Second)
		began := time.Now()
		c.Close()
		if took := time.Since(began); took > time.Second/10 {
			t.Errorf("Close took %s", took)
		}
		<-held.Context().Done()
		if !errors.Is(context.Cause(held.Context()), ErrClosed) {
			t.Error(context.Cause(held.Context()))
		}
		for range 2 {
			if _, err := c.Counter("").Get(soon(t), "k"); !errors.Is(err, ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
			if err := held.Release(soon(t)); !errors.Is(err, ErrClosed) {
				t.Errorf("a release after Close: %v", err)
			}
			c.Close()
		}
		calls.Wait()
		synctest.Wait()
	})
}

// A lock that many goroutines have is released once, and they all hear of it.
func TestLockOfMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(Config{}, "n1")
		held := must(c.Lock("").Acquire(soon(t), "k", TTL(time.Second)))(t)
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				for held.Held() {
					_, _ = held.Token(), held.Meta()
					if err := held.Context().Err(); err != nil {
						break
					}
					time.Sleep(time.Duration(i+1) * 10 * time.Millisecond)
				}
				if err := held.Release(soon(t)); err != nil {
					t.Errorf("a release: %v", err)
				}
			})
		}
		time.Sleep(5 * time.Second)
		if !held.Held() {
			t.Error("it is not held")
		}
		_ = held.Release(soon(t))
		all.Wait()
		idle(t, c)
		again := must(c.Lock("").TryAcquire(soon(t), "k"))(t)
		_ = again.Release(soon(t))
	})
}

// What nobody has filled in is an error, or means the default, and no panic.
func TestZeroValues(t *testing.T) {
	var none context.Context
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(Config{}, "n1")
		held := must(c.Lock("").Acquire(soon(t), "held", nil))(t)
		calls := func(ctx context.Context, l Limit, n Counter, k Lock) map[string]func() error {
			return map[string]func() error{
				"check":         func() error { _, err := l.Check(ctx, "k"); return err },
				"peek":          func() error { _, err := l.Peek(ctx, "k"); return err },
				"refund":        func() error { _, err := l.Refund(ctx, "k", 1); return err },
				"limit reset":   func() error { _, err := l.Reset(ctx, "k"); return err },
				"limit batch":   func() error { _, err := l.BatchCheck(ctx, []string{"k"}); return err },
				"add":           func() error { _, err := n.Add(ctx, "k", 1); return err },
				"get":           func() error { _, err := n.Get(ctx, "k"); return err },
				"set":           func() error { _, err := n.CompareAndSet(ctx, "k", 1, 0); return err },
				"reset":         func() error { _, err := n.Reset(ctx, "k"); return err },
				"delete":        func() error { _, err := n.Delete(ctx, "k"); return err },
				"counter batch": func() error { _, err := n.BatchGet(ctx, []string{"k"}); return err },
				"acquire":       func() error { _, err := k.Acquire(ctx, "k"); return err },
				"try":           func() error { _, err := k.TryAcquire(ctx, "k"); return err },
				"inspect":       func() error { _, err := k.Inspect(ctx, "k"); return err },
			}
		}
		without := calls(none, c.Limit("", PerHour(1)), c.Counter(""), c.Lock(""))
		without["release"] = func() error { return held.Release(none) }
		without["ids"] = func() error { _, err := c.NextIDs(none, 1); return err }
		without["members"] = func() error { _, err := c.Cluster().Members(none); return err }
		without["drain"] = func() error { _, err := c.Admin().Drain(none, "n1"); return err }
		without["key"] = func() error { _, err := c.Admin().InspectKey(none, "k"); return err }
		without["reset object"] = func() error {
			_, err := c.Admin().ResetObject(none, Object{Kind: KindCounter, Key: "k"})
			return err
		}
		without["objects"] = func() error {
			_, err := c.Admin().ListObjects(none, Filter{}, func(string, Object) bool { return true })
			return err
		}
		without["batch"] = func() error { _, err := c.BatchCheck(none, []Check{{}}); return err }
		without["dial"] = func() error { _, err := Dial(none, "n1:1"); return err }
		zero := calls(soon(t), Limit{}, Counter{}, Lock{})
		zero["members"] = func() error { _, err := Cluster{}.Members(soon(t)); return err }
		zero["drain"] = func() error { _, err := Admin{}.Drain(soon(t), "n1"); return err }
		zero["nil observer"] = func() error { _, err := Config{Observers: []Observer{nil}}.Dial(soon(t), "n1:1"); return err }
		zero["nil option"] = func() error { _, err := Config{DialOptions: []grpc.DialOption{nil}}.Dial(soon(t), "n1:1"); return err }
		for kind, all := range map[string]map[string]func() error{"no context": without, "zero handle": zero} {
			for what, call := range all {
				if err := call(); !errors.Is(err, ErrInvalid) {
					t.Errorf("%s, %s: %v", kind, what, err)
				}
			}
		}
		r := must(c.BatchCheck(soon(t), []Check{{}, {Limit: c.Limit("", PerHour(1)), Key: "k", Options: []CallOption{{}}}}))(t)
		if !errors.Is(r[0].Err, ErrInvalid) || r[1].Err != nil {
			t.Errorf("%+v", r)
		}
		if _, err := c.Counter("").Add(soon(t), "k", 1, nil, CallOption{}); err != nil {
			t.Error(err)
		}
		_ = held.Release(soon(t))
		idle(t, c)
	})
}

// later has a node answer like one of a later version: the first attempts fail for a reason
// that nobody here has heard of.
func later(failures *int, code codes.Code) Config {
	fail := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if *failures > 0 && strings.HasPrefix(method, "/keystead.counter.") {
			*failures--
			s, err := status.New(code, "it is raining").WithDetails(&errdetails.ErrorInfo{Domain: domain, Reason: "RAIN"})
			return cmp.Or(err, s.Err())
		}
		err := invoke(ctx, method, req, reply, conn, opts...)
		if r, ok := reply.(*counterpb.AddResponse); ok && r.Refusal != 0 {
			r.Refusal = 77
		}
		return err
	}
	return Config{DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(fail)}}
}

// What a node of a later version says, and this client does not know, is judged by what it
// does know, and never taken for something else.
func TestLaterNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		for code, want := range map[codes.Code]error{
			codes.Unavailable: nil, codes.Unknown: nil, // it may pass
			codes.FailedPrecondition: Reason("RAIN"), codes.ResourceExhausted: Reason("RAIN"),
		} {
			failures := 2
			_, err := w.client(later(&failures, code), "n1").Counter("").Add(soon(t), "k", 1)
			if !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("%s: %v", code, err)
			}
		}
		failures := 1 << 20
		_, err := w.client(later(&failures, codes.Unknown), "n1").Counter("").Add(ctx2(t, time.Second), "k", 1)
		if !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("it may have been done: %v", err)
		}
		failures = 0
		v := must(w.client(later(&failures, 0), "n1").Counter("").Add(soon(t), "k", -100, AtLeast(0)))(t)
		if v.Applied || v.Refusal != OtherRefusal || v.Refusal.String() == "none" {
			t.Errorf("%+v: %s", v, v.Refusal)
		}
	})
	if s := objectState("k", &adminpb.ObjectState{Limit: &adminpb.LimitState{Algorithm: 77}}); s.Limit.Rate.Algorithm.String() != "unknown" {
		t.Errorf("%+v", s.Limit)
	}
	if s := drainState(&adminpb.DrainState{Phase: 77}); s.Phase == "" {
		t.Errorf("a member in a phase of its own is none: %+v", s)
	}
}
