package fence_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/keystead/keystead/client/fence"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// entered is what became of a request.
type entered struct {
	ctx   context.Context
	leave func()
	err   error
}

// enter sends a request to a gate, and returns what becomes of it.
func enter(ctx context.Context, g *fence.Gate, scope string, token uint64) <-chan entered {
	c := make(chan entered, 1)
	go func() {
		in, leave, err := g.Enter(ctx, scope, token)
		c <- entered{in, leave, err}
	}()
	return c
}

// passed returns a request that must have been let in by now.
func passed(t *testing.T, c <-chan entered) entered {
	t.Helper()
	synctest.Wait()
	select {
	case e := <-c:
		if e.err != nil {
			t.Fatal(e.err)
		}
		return e
	default:
		t.Fatal("it waits")
	}
	return entered{}
}

// waits fails unless a request waits.
func waits(t *testing.T, c <-chan entered) {
	t.Helper()
	synctest.Wait()
	select {
	case e := <-c:
		t.Fatalf("it does not wait: %v", e.err)
	default:
	}
}

func stale(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, fence.ErrStale) {
		t.Errorf("%v, and not stale", err)
	}
}

// An older token is refused, also long after; the same one passes as often as it comes, also
// beside itself; scopes have nothing to do with each other.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fence.NewGate(fence.Config{})
		first := passed(t, enter(t.Context(), g, "a", 33))
		again := passed(t, enter(t.Context(), g, "a", 33))
		first.leave()
		again.leave()
		passed(t, enter(t.Context(), g, "a", 34)).leave()
		_, _, err := g.Enter(t.Context(), "a", 33)
		stale(t, err)
		if e := (*fence.StaleError)(nil); !errors.As(err, &e) || e.Token != 33 || e.Greatest != 34 || e.What != "a" {
			t.Errorf("%v", err)
		}
		passed(t, enter(t.Context(), g, "a", 34)).leave()
		passed(t, enter(t.Context(), g, "b", 1)).leave()
		for name, f := range map[string]struct {
			scope string
			token uint64
		}{"no token": {"a", 0}, "no scope": {"", 1}, "a long scope": {strings.Repeat("x", 513), 1}} {
			if _, _, err := g.Enter(t.Context(), f.scope, f.token); !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Paused between the comparison and the write: a request that was let in is still there when a
// greater token comes. That one waits until it has left, and so writes last.
func TestPausedAfterTheComparison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fence.NewGate(fence.Config{})
		old := passed(t, enter(t.Context(), g, "a", 33))
		next := enter(t.Context(), g, "a", 34)
		waits(t, next)
		if err := context.Cause(old.ctx); !errors.Is(err, fence.ErrStale) {
			t.Errorf("the late one may go on: %v", err)
		}
		_, _, err := g.Enter(t.Context(), "a", 33) // from now on, although 34 is not in yet
		stale(t, err)
		old.leave()
		old.leave() // does nothing
		in := passed(t, next)
		if in.ctx.Err() != nil {
			t.Error(context.Cause(in.ctx))
		}
		in.leave()
		if !errors.Is(in.ctx.Err(), context.Canceled) {
			t.Error("its context outlives it")
		}
	})
}

// A request that waits is overtaken by one under a still greater token, and refused.
func TestOvertakenWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fence.NewGate(fence.Config{})
		old := passed(t, enter(t.Context(), g, "a", 33))
		next := enter(t.Context(), g, "a", 34)
		waits(t, next)
		last := enter(t.Context(), g, "a", 35)
		waits(t, last)
		stale(t, (<-next).err)
		old.leave()
		passed(t, last).leave()
	})
}

// Nobody waits for ever: not for a handler that does not return, nor longer than its caller.
func TestGateGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fence.NewGate(fence.Config{Wait: time.Second})
		old := passed(t, enter(t.Context(), g, "a", 33))
		began := time.Now()
		if _, _, err := g.Enter(t.Context(), "a", 34); !errors.Is(err, fence.ErrBusy) || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		next := enter(ctx, g, "a", 34)
		waits(t, next)
		cancel()
		if err := (<-next).err; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		_, _, err := g.Enter(t.Context(), "a", 33) // 34 has come, though it was not let in
		stale(t, err)
		old.leave()
		passed(t, enter(t.Context(), g, "a", 34)).leave()
	})
}

// Memory is bounded by refusing new scopes. What was seen is not forgotten for that.
func TestGateIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := fence.NewGate(fence.Config{Scopes: 2})
		for _, scope := range []string{"a", "b"} {
			passed(t, enter(t.Context(), g, scope, 34)).leave()
		}
		if _, _, err := g.Enter(t.Context(), "c", 99); !errors.Is(err, fence.ErrFull) {
			t.Error(err)
		}
		_, _, err := g.Enter(t.Context(), "a", 33)
		stale(t, err)
		passed(t, enter(t.Context(), g, "b", 35)).leave()
	})
}

// A scope is often a part of a URL, which is part of all that its request began with. None of
// that is remembered but the scope.
func TestGateKeepsNoMoreThanScopes(t *testing.T) {
	const requests, length = 64, 1 << 20
	g := fence.NewGate(fence.Config{})
	for i := range requests {
		line := fmt.Sprintf("/reports/%02d?%s", i, strings.Repeat("x", length))
		_, leave, err := g.Enter(t.Context(), line[:len("/reports/00")], 34)
		if err != nil {
			t.Fatal(err)
		}
		leave()
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > requests*length/2 {
		t.Errorf("%d scopes take %d bytes", requests, m.HeapAlloc)
	}
	runtime.KeepAlive(g)
}

// kept is a Keeper in memory, as another process would share it.
type kept struct {
	tokens map[string]uint64
	err    error
}

func (k *kept) Raise(_ context.Context, scope string, token uint64) error {
	if k.err != nil {
		return k.err
	}
	if token < k.tokens[scope] {
		return &fence.StaleError{What: scope, Token: token}
	}
	k.tokens[scope] = token
	return nil
}

// A gate that is made anew has forgotten all: a late holder passes until the next one comes
// again. One with a keeper has not.
func TestMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{tokens: map[string]uint64{}}
		for name, tc := range map[string]struct {
			cfg     fence.Config
			refuses bool
		}{"without a keeper": {}, "with one": {fence.Config{Keeper: k}, true}} {
			passed(t, enter(t.Context(), fence.NewGate(tc.cfg), "a", 34)).leave()
			e := <-enter(t.Context(), fence.NewGate(tc.cfg), "a", 33)
			if errors.Is(e.err, fence.ErrStale) != tc.refuses {
				t.Errorf("%s: %v", name, e.err)
			}
			if e.err == nil {
				e.leave()
			}
		}
		k.err = errors.New("no answer")
		if _, _, err := fence.NewGate(fence.Config{Keeper: k}).Enter(t.Context(), "a", 35); !errors.Is(err, k.err) {
			t.Errorf("without an answer: %v", err)
		}
	})
}

// In any order of requests and their ends: those that are in have one token, no token is let
// in below one that has come, late ones are refused as such, and none waits without a reason.
func TestGateInAnyOrder(t *testing.T) {
	type step struct {
		Leaves int // the number of a request that leaves if it is in; else one comes
		Token  uint64
	}
	steps := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) step {
		return step{rapid.IntRange(0, 9).Draw(r, "leaves"), rapid.Uint64Range(1, 6).Draw(r, "token")}
	}), 1, 40)
	rapid.Check(t, func(r *rapid.T) {
		plan, why := steps.Draw(r, "steps"), ""
		synctest.Test(t, func(t *testing.T) {
			c := crowd{gate: fence.NewGate(fence.Config{Wait: time.Hour})}
			for _, s := range plan {
				if why == "" {
					if s.Leaves < len(c.all) && c.all[s.Leaves].in != nil {
						c.leaves(s.Leaves)
					} else {
						c.comes(t.Context(), s.Token)
					}
					why = c.look()
				}
			}
			for len(c.all) > 0 { // all that wait have their turn
				i := slices.IndexFunc(c.all, func(q *request) bool { return q.in != nil })
				c.leaves(max(i, 0))
				if w := c.look(); why == "" {
					why = w
				}
			}
		})
		if why != "" {
			r.Fatal(why)
		}
	})
}

// crowd is all requests that are in, or wait.
type crowd struct {
	gate     *fence.Gate
	greatest uint64
	all      []*request
}

type request struct {
	token uint64
	c     <-chan entered
	in    *entered // nil = it waits
}

func (c *crowd) comes(ctx context.Context, token uint64) {
	c.all = append(c.all, &request{token: token, c: enter(ctx, c.gate, "a", token)})
	c.greatest = max(c.greatest, token)
}

// leaves has a request leave, or forgets it if it is not in.
func (c *crowd) leaves(i int) {
	if c.all[i].in != nil {
		c.all[i].in.leave()
	}
	c.all = slices.Delete(c.all, i, i+1)
}

// look learns what has become of those that waited, and returns what is wrong.
func (c *crowd) look() (why string) {
	synctest.Wait()
	c.all = slices.DeleteFunc(c.all, func(q *request) bool {
		if q.in != nil {
			return false
		}
		select {
		case e := <-q.c:
			if e.err == nil {
				q.in = &e
			} else if !errors.Is(e.err, fence.ErrStale) || q.token >= c.greatest {
				why = fmt.Sprintf("%d, of at most %d: %v", q.token, c.greatest, e.err)
			}
			return e.err != nil
		default:
			return false
		}
	})
	in := uint64(0)
	for _, q := range c.all {
		switch {
		case q.in == nil:
		case in != 0 && in != q.token:
			why = fmt.Sprintf("%d and %d are in", in, q.token)
		case (q.in.ctx.Err() != nil) != (q.token < c.greatest):
			why = fmt.Sprintf("%d, of at most %d, is in, and its context: %v", q.token, c.greatest, q.in.ctx.Err())
		default:
			in = q.token
		}
	}
	for _, q := range c.all {
		if q.in == nil && (q.token < c.greatest || in == 0 || in == q.token) && why == "" {
			why = fmt.Sprintf("%d, of at most %d, waits beside %d", q.token, c.greatest, in)
		}
	}
	return why
}

func ExampleGate() {
	g := fence.NewGate(fence.Config{})
	for _, token := range []uint64{33, 33, 34, 33} {
		_, leave, err := g.Enter(context.Background(), "report", token)
		if err != nil {
			fmt.Println(token, err)
			continue
		}
		fmt.Println(token, "writes")
		leave()
	}
	// Output:
	// 33 writes
	// 33 writes
	// 34 writes
	// 33 fence: report has been written under the fencing token 34, above 33; this holder is late and must stop
}
