package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/owner"
)

// notes is an observer that writes down what it is told.
type notes struct {
	name string
	mu   sync.Mutex // guards said
	said []string
}

type noted struct{}

func (n *notes) Begin(ctx context.Context, call Call) context.Context {
	before, _ := ctx.Value(noted{}).(string)
	return context.WithValue(ctx, noted{}, before+n.name)
}

func (n *notes) End(ctx context.Context, call Call, o Outcome) {
	n.mu.Lock()
	defer n.mu.Unlock()
	reason := ""
	if e := (*Error)(nil); errors.As(o.Err, &e) {
		reason = string(e.Reason)
	}
	n.said = append(n.said, fmt.Sprintf("%s %s %q items=%d refused=%d failed=%d attempts=%d took=%s %s",
		ctx.Value(noted{}), call.Op, call.Key, call.Items, o.Refused, o.Failed, o.Attempts, o.Took, reason))
}

func TestObservers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		a, b := &notes{name: "a"}, &notes{name: "b"}
		c := w.client(Config{Observers: []Observer{a, b}, noForward: true}, "n1")
		limit, stock := c.Limit("api", PerHour(1)), c.Counter("stock")
		must(limit.Check(soon(t), "k"))(t)
		must(limit.Check(soon(t), "k"))(t)
		must(limit.Peek(soon(t), "k"))(t)
		must(stock.Add(soon(t), "k", -1, AtLeast(0)))(t)
		must(stock.CompareAndSet(soon(t), "k", 1, 7))(t)
		must(stock.Get(soon(t), "k"))(t)
		must(c.BatchCheck(soon(t), []Check{{Limit: limit, Key: "k"}, {Limit: limit, Key: "k", Peek: true}, {Limit: limit, Key: "other"}, {}}))(t)
		held := must(c.Lock("").Acquire(soon(t), "k"))(t)
		_, err := c.Lock("").Acquire(soon(t), "k", Wait(time.Second))
		if !errors.Is(err, ErrLockHeld) {
			t.Error(err)
		}
		_ = held.Release(soon(t))
		must(c.NextIDs(soon(t), 3))(t)
		must(c.Cluster().Members(soon(t)))(t)
		_, _ = c.Admin().Drain(soon(t), "n9")
		want := []string{
			`check "k" items=0 refused=0 failed=0 attempts=1 took=0s `,
			`check "k" items=0 refused=1 failed=0 attempts=1 took=0s `,
			`peek "k" items=0 refused=0 failed=0 attempts=1 took=0s `,
			`add "k" items=0 refused=1 failed=0 attempts=1 took=0s `,
			`compare-and-set "k" items=0 refused=1 failed=0 attempts=1 took=0s `,
			`get "k" items=0 refused=0 failed=0 attempts=1 took=0s `,
			`check "" items=4 refused=1 failed=1 attempts=0 took=0s `,
			`lock "k" items=0 refused=0 failed=0 attempts=1 took=0s `,
			`lock "k" items=0 refused=0 failed=0 attempts=1 took=1s LOCK_HELD`,
			`release "k" items=0 refused=0 failed=0 attempts=1 took=0s `,
			`ids "" items=0 refused=0 failed=0 attempts=1 took=0s `,
			`members "" items=0 refused=0 failed=0 attempts=1 took=0s `,
			`drain "n9" items=0 refused=0 failed=0 attempts=1 took=0s UNKNOWN_NODE`,
		}
		defer func() { // a node has to take a chunk first
			a.said = nil
			must(c.Limit("local", PerHour(1), Anywhere()).Check(soon(t), "k"))(t)
			must(c.Limit("local", PerHour(1), Anywhere()).Check(soon(t), "k"))(t)
			if len(a.said) != 2 || !strings.Contains(a.said[0], "refused=0") || !strings.Contains(a.said[1], "refused=1") {
				t.Errorf("anywhere: %v", a.said)
			}
		}()
		for _, n := range []*notes{a, b} {
			in := map[string]string{"a": "a ", "b": "ab "}[n.name]
			for i, got := range n.said {
				if i >= len(want) || got != in+want[i] {
					t.Errorf("%s: %d: %s", n.name, i, got)
				}
			}
			if len(n.said) != len(want) {
				t.Errorf("%s: %d calls, want %d", n.name, len(n.said), len(want))
			}
		}
	})
}

// The attempts of a call, and its time, are those of all of it.
func TestObservedRetries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		n := &notes{}
		c := w.client(Config{Observers: []Observer{n}}, "n1")
		a := w.nodes["n1"]
		var once sync.Once
		a.on(func(*owner.Record) {
			once.Do(func() {
				a.cutAndDie()
				time.AfterFunc(time.Second, func() { a.isolate(false) })
			})
		})
		v := must(c.Counter("").Add(soon(t), "k", 1))(t)
		if !v.Replayed || len(n.said) != 1 {
			t.Errorf("%+v, %v", v, n.said)
		}
		var attempts int
		if _, err := fmt.Sscanf(n.said[0], ` add "k" items=0 refused=0 failed=0 attempts=%d`, &attempts); err != nil || attempts < 2 {
			t.Errorf("%v: %v", n.said, err)
		}
	})
}

// clumsy is an observer that panics at the end of each Acquire.
type clumsy struct{}

func (clumsy) Begin(ctx context.Context, _ Call) context.Context { return ctx }

func (clumsy) End(_ context.Context, c Call, _ Outcome) {
	if c.Op == "lock" {
		panic("a mistake of an observer")
	}
	if c.Op == "release" {
		panic("an observer was told of what nobody asked for")
	}
}

// A lock that its caller was never given, because an observer has panicked, is given back.
func TestObserverPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(Config{Observers: []Observer{clumsy{}}}, "n1")
		func() {
			defer func() { _ = recover() }() // as net/http does
			_, _ = c.Lock("").Acquire(soon(t), "k")
		}()
		synctest.Wait()
		if s := must(c.Lock("").Inspect(soon(t), "k"))(t); s.Holder != nil {
			t.Errorf("held for %s, and nobody can release it", s.Holder.Held)
		}
	})
}
