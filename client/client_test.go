package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/owner"
)

// All that is under test runs in bubbles, where time moves only when everything
// waits.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// direct is a client whose calls nobody forwards.
var direct = Config{noForward: true}

func TestCallsGoStraightToTheOwner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		c := w.client(direct, "n2")
		const n = 300
		for i := range n {
			key := fmt.Sprint("key-", i)
			if v := must(c.Counter("").Add(soon(t), key, int64(i)))(t); !v.Applied || v.Value != int64(i) || v.Replayed {
				t.Fatalf("%s: %+v", key, v)
			}
			if o := c.Cluster().Owner(key); o.Node != ownerOf(w, key) || o.Addr != o.Node+":1" || o.Hash != owner.Hash(key) {
				t.Fatalf("%s: %+v", key, o)
			}
		}
		synctest.Wait() // a connection takes calls before it says that it is up
		if s := c.Stats(); s.Attempts != n || s.Retries != 0 || s.Forwarded != 0 || s.Nodes != 3 {
			t.Errorf("%+v", s)
		}
		sum := int64(0)
		for _, h := range w.nodes {
			held := h.store.Stats().Objects[owner.KindCounter]
			if sum += held; held < n/10 {
				t.Errorf("%s holds %d counters", h.id, held)
			}
		}
		if sum != n {
			t.Errorf("%d counters in all", sum)
		}
	})
}

func ownerOf(w *town, key string) string {
	m, _, _ := w.now().Owner(owner.Hash(key))
	return m.Node
}

// Members come and go under way; every add counts once.
func TestTableChanges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, []string{"n2", "n3"})
		c := w.client(direct, "n1")
		check := func(ids ...string) {
			t.Helper()
			synctest.Wait()
			for i := range 100 {
				key := fmt.Sprint("key-", i)
				if o := c.Cluster().Owner(key); o.Node != ownerOf(w, key) {
					t.Fatalf("%s: %+v, and it is %s", key, o, ownerOf(w, key))
				}
				must(c.Counter("").Get(soon(t), key))(t)
			}
			synctest.Wait() // a connection takes calls before it says that it is up
			shares := c.Cluster().Ring()
			if len(shares) != len(ids) || c.Stats().Nodes != len(ids) || c.Stats().Retries != 0 {
				t.Errorf("%v, %+v; want %v", shares, c.Stats(), ids)
			}
			for i, s := range shares {
				if s.Node != ids[i] || s.Owned < 0.9/float64(len(ids))/2 || s.Owned > 1.0001 {
					t.Errorf("shares %v of %v", shares, ids)
				}
			}
		}
		check("n1")
		w.admit("n2")
		w.admit("n3")
		w.ring("n1", "n2", "n3")
		check("n1", "n2", "n3")
		w.remove("n1") // which is watched
		w.nodes["n1"].kill()
		time.Sleep(time.Second)
		check("n2", "n3")
		w.remove("n2")
		check("n3")
	})
}

// The owner does an add and dies before it answers. Its standby, which has all
// of it, takes over: the retry finds the first result.
func TestFailoverCountsOnce(t *testing.T) {
	for _, mode := range []string{"single", "batch"} {
		t.Run(mode, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := build(t, []string{"n1", "n2"}, nil)
				a := w.nodes["n1"]
				b := w.house("n2", a.store)
				w.nodes["n2"].kill()
				w.nodes["n2"] = b
				c := w.client(direct, "n2")
				key := w.keyOf("n1")
				var once sync.Once
				a.on(func(r *owner.Record) {
					if string(r.Key) == key {
						once.Do(a.cutAndDie)
					}
				})
				time.AfterFunc(3*time.Second, func() { w.remove("n1") })
				began := time.Now()
				var v Change
				if mode == "single" {
					v = must(c.Counter("").Add(soon(t), key, 1))(t)
				} else {
					rs := must(c.BatchAdd(soon(t), []Add{{Key: key, Delta: 1}, {Key: w.keyOf("n2"), Delta: 5}}))(t)
					v = rs[0].Change
					if rs[0].Err != nil || rs[1].Err != nil || rs[1].Value != 5 || rs[1].Replayed {
						t.Errorf("%+v", rs)
					}
				}
				if !v.Applied || v.Value != 1 || v.Current != 1 || !v.Replayed {
					t.Errorf("%+v", v)
				}
				// Three seconds until the owner is removed, and one pause at most.
				if took := time.Since(began); took < 3*time.Second || took > 3*time.Second+maxPause+maxPause/2 {
					t.Errorf("it took %v", took)
				}
				if v := must(c.Counter("").Get(soon(t), key))(t); v.Value != 1 {
					t.Errorf("%+v", v)
				}
			})
		})
	}
}

// The outcome is said to be unknown when it is.
func TestUnknownOutcome(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(direct, "n1")
		a := w.nodes["n1"]
		a.on(func(*owner.Record) { a.cutAndDie() })
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		_, err := c.Counter("").Add(ctx, "k", 1)
		if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an add that was done: %v", err)
		}
		// Nobody is there any more: nothing can have happened.
		_, err = c.Counter("").Add(ctx2(t, time.Second), "k", 1)
		if !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("an add that cannot have been done: %v", err)
		}
		_, err = c.Counter("").Get(ctx2(t, time.Second), "k")
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("a get: %v", err)
		}
	})
}

func ctx2(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// Errors that will not go away are not retried.
func TestErrorsThatStay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(direct, "n1")
		must(c.Counter("x").Add(soon(t), "k", 1))(t)
		for what, x := range map[string]struct {
			err   error
			want  Reason
			field string
		}{
			"kind":   {last(c.Limit("x", PerMinute(1)).Check(soon(t), "k")), ErrKindMismatch, ""},
			"period": {last(c.Limit("y", Per(1, 1)).Check(soon(t), "k")), ErrInvalid, "period_ns"},
			"no key": {last(c.Counter("").Add(soon(t), "", 0)), ErrInvalid, "key"},
			"utf-8":  {last(c.Counter("").Get(soon(t), "\xff")), ErrInvalid, "key"},
			"ttl":    {last(c.Lock("").Acquire(soon(t), "k", TTL(1))), ErrInvalid, "TTL"},
		} {
			var e *Error
			if !errors.Is(x.err, x.want) || !errors.As(x.err, &e) || e.Field != x.field {
				t.Errorf("%s: %v", what, x.err)
			}
		}
		if s := c.Stats(); s.Retries != 0 {
			t.Errorf("%+v", s)
		}
		rs := must(c.BatchAdd(soon(t), []Add{{Counter: c.Counter("x"), Key: "k", Delta: 1}, {}, {Key: "k", Delta: 1, Options: []CounterOption{IdleTTL(1)}}}))(t)
		if rs[0].Err != nil || !errors.Is(rs[1].Err, ErrInvalid) || !errors.Is(rs[2].Err, ErrInvalid) {
			t.Errorf("%+v", rs)
		}
		if _, err := c.BatchGet(soon(t), make([]Get, MaxItems+1)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("too many items: %v", err)
		}
	})
}

func last[R any](_ R, err error) error { return err }

// A node that may not act for a while is asked again when it says.
func TestUnavailableIsRetried(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(direct, "n1")
		w.nodes["n1"].denies.Store(true)
		time.AfterFunc(time.Second, func() { w.nodes["n1"].denies.Store(false) })
		began := time.Now()
		if v := must(c.Counter("").Add(soon(t), "k", 1))(t); v.Value != 1 || v.Replayed {
			t.Errorf("%+v", v)
		}
		if took := time.Since(began); took < time.Second || took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
		if s := c.Stats(); s.Retries < 2 || s.Retries > 20 {
			t.Errorf("%+v", s)
		}
		w.nodes["n1"].denies.Store(true)
		_, err := c.Counter("").Add(ctx2(t, time.Second), "k", 1)
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("without a right to act: %v", err)
		}
	})
}

// A lost watch goes on at another node and stops no call.
func TestWatchFailsOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, []string{"n4"})
		c := w.client(direct, "n1")
		synctest.Wait()
		key2 := w.keyOf("n2")
		w.nodes["n1"].isolate(true)
		must(c.Counter("").Add(soon(t), key2, 1))(t)
		time.Sleep(10 * time.Second)
		w.admit("n4")
		w.ring("n1", "n2", "n3", "n4")
		synctest.Wait()
		if got, want := c.Stats().Epoch, w.now().Epoch; got != want {
			t.Errorf("epoch %d, want %d", got, want)
		}
		must(c.Counter("").Add(soon(t), w.keyOf("n4"), 1))(t)
	})
}

// A node that is cut off from the others but not from the client is left when
// somebody shows a later epoch.
func TestWatchLeavesWhoIsBehind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, []string{"n3"})
		c := w.client(direct, "n1")
		synctest.Wait()
		w.nodes["n1"].frozen.Store(w.now())
		w.admit("n3")
		w.ring("n1", "n2", "n3")
		synctest.Wait()
		if c.Stats().Epoch == w.now().Epoch {
			t.Fatal("it heard of the table")
		}
		c.watch.behind(w.now().Epoch) // as an answer from n3 would tell
		time.Sleep(5 * time.Second)
		for range 20 {
			if c.Stats().Epoch == w.now().Epoch {
				return
			}
			time.Sleep(5 * time.Second)
		}
		t.Errorf("epoch %d, want %d", c.Stats().Epoch, w.now().Epoch)
	})
}

// Dial takes the first node that answers.
func TestDial(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		w.nodes["n1"].isolate(true)
		began := time.Now()
		w.client(direct, "nobody", "n1", "n2")
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		w.nodes["n2"].isolate(true)
		cfg := direct
		cfg.clock = w.clock
		cfg.DialOptions = []grpc.DialOption{grpc.WithContextDialer(w.dial)}
		_, err := cfg.Dial(ctx2(t, 3*time.Second), "n1:1", "n2:1")
		if took := time.Since(began); !errors.Is(err, ErrUnavailable) || took > 4*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		if _, err := cfg.Dial(soon(t)); err == nil {
			t.Error("nobody to dial")
		}
		cfg.Connections = -1
		if _, err := cfg.Dial(soon(t), "n1:1"); err == nil {
			t.Error("-1 connections")
		}
	})
}

// Calls without a key go where there is less to do.
func TestMembersAndStatus(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		c := w.client(direct, "n1")
		ms := must(c.Cluster().Members(soon(t)))(t)
		if len(ms) != 3 || ms[1].ID != "n2" || ms[1].Phase != "active" || ms[1].Addr != "n2:1" || ms[1].Share < 0.2 {
			t.Errorf("%+v", ms)
		}
		seen := map[string]int{}
		for range 100 {
			seen[must(c.Cluster().Status(soon(t)))(t).ID]++
		}
		if len(seen) < 2 {
			t.Errorf("all calls went to one node: %v", seen)
		}
		w.nodes["n1"].kill()
		for range 20 {
			must(c.Cluster().Status(soon(t)))(t)
		}
	})
}

// Settled numbers rise with what is finished and never pass what is not.
func TestIdentity(t *testing.T) {
	id := newIdentity(&handClock{})
	rng := rand.New(rand.NewPCG(1, 2))
	var open []*operation
	for range 2000 {
		if len(open) == 0 || rng.IntN(2) == 0 {
			open = append(open, id.begin())
		} else {
			i := rng.IntN(len(open))
			open[i].finish()
			open[i].finish() // no matter
			open = append(open[:i], open[i+1:]...)
		}
		lowest := uint64(1<<63 - 1)
		for _, op := range open {
			lowest = min(lowest, op.seq)
		}
		for _, op := range open {
			if r := op.stamp(); r.Settled != lowest || r.Sequence != op.seq || len(r.Client) != 16 {
				t.Fatalf("settled %d, want %d, of %d", r.Settled, lowest, r.Sequence)
			}
		}
	}
	late := id.begin()
	late.finish()
	if r := late.stamp(); r.Settled > r.Sequence {
		t.Errorf("settled %d of %d", r.Settled, r.Sequence)
	}
}

type handClock struct{ now int64 }

func (c *handClock) Now() int64 { return c.now }

func TestAges(t *testing.T) {
	c := &handClock{now: 5}
	op := newIdentity(c).begin()
	for i, want := range []int64{0, 1, 10} {
		if r := op.stamp(); r.AgeNs != want {
			t.Errorf("attempt %d has age %d, want %d", i, r.AgeNs, want)
		}
		c.now += 10 * int64(i)
	}
}

// Calls after and during Close fail, and nothing is left running.
func TestClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		c := w.client(direct, "n1")
		l := must(c.Lock("").Acquire(soon(t), "k"))(t)
		errs := make(chan error, 1)
		go func() {
			_, err := c.Lock("").Acquire(context.Background(), "k")
			errs <- err
		}()
		synctest.Wait()
		c.Close()
		if err := <-errs; !errors.Is(err, ErrClosed) {
			t.Errorf("a call that waited: %v", err)
		}
		<-l.Context().Done()
		if err := context.Cause(l.Context()); !errors.Is(err, ErrClosed) || l.Held() {
			t.Errorf("a lock: %v", err)
		}
		if _, err := c.Counter("").Add(soon(t), "k", 0); !errors.Is(err, ErrClosed) {
			t.Errorf("an add: %v", err)
		}
		if err := l.Release(soon(t)); !errors.Is(err, ErrClosed) {
			t.Errorf("an unlock: %v", err)
		}
		c.Close()
	})
}
