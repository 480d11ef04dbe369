package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// An idempotency key that nodes would not take is judged here: an empty one is no add
// without a key, and a long one does not spoil the message that others' adds are in.
func TestIdempotencyKeysAreJudged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := build(t, []string{"n1"}, nil).client(Config{}, "n1")
		n := c.Counter("")
		for _, key := range []string{"", strings.Repeat("x", 65), "\xff"} {
			if _, err := n.Add(soon(t), "k", 1, IdempotencyKey(key)); !errors.Is(err, ErrInvalid) {
				t.Errorf("add under %.9q: %v", key, err)
			}
			if _, err := n.CompareAndSet(soon(t), "k", 1, 0, IdempotencyKey(key)); !errors.Is(err, ErrInvalid) {
				t.Errorf("compare-and-set under %.9q: %v", key, err)
			}
			r := must(c.BatchAdd(soon(t), []Add{{Counter: n, Key: "k", Delta: 1, Options: []CounterOption{IdempotencyKey(key)}}, {Counter: n, Key: "l", Delta: 1}}))(t)
			if !errors.Is(r[0].Err, ErrInvalid) || r[1].Err != nil {
				t.Errorf("batch under %.9q: %+v", key, r)
			}
		}
		if v := must(n.Get(soon(t), "k"))(t); v.Exists {
			t.Errorf("%+v", v)
		}
	})
}

// keyed is a call that another process makes again under the same key.
type keyed struct {
	what  string
	do    func(ctx context.Context, c *Client, idem CallOption) (replayed bool, err error)
	other func(ctx context.Context, c *Client, idem CallOption) error // something else under the key; nil = there is nothing
}

// keyedCalls are all that take a key, but those about locks and the adds.
func keyedCalls() []keyed {
	limit := func(c *Client) Limit { return c.Limit("api", PerHour(10)) }
	return []keyed{
		{"check", func(ctx context.Context, c *Client, idem CallOption) (bool, error) {
			d, err := limit(c).Check(ctx, "limit", idem)
			return d.Replayed, err
		}, func(ctx context.Context, c *Client, idem CallOption) error {
			_, err := limit(c).CheckN(ctx, "limit", 2, idem)
			return err
		}},
		{"check 3", func(ctx context.Context, c *Client, idem CallOption) (bool, error) {
			d, err := limit(c).CheckN(ctx, "limit", 3, idem)
			return d.Replayed, err
		}, nil},
		{"check in a batch", func(ctx context.Context, c *Client, idem CallOption) (bool, error) {
			r, err := c.BatchCheck(ctx, []Check{{Limit: limit(c), Key: "limit", Options: []CallOption{idem}}})
			return r[0].Replayed, errors.Join(err, r[0].Err)
		}, nil},
		{"refund", func(ctx context.Context, c *Client, idem CallOption) (bool, error) {
			d, err := limit(c).Refund(ctx, "limit", 1, idem)
			return d.Replayed, err
		}, nil},
		{"reset of a limit", func(ctx context.Context, c *Client, idem CallOption) (bool, error) {
			r, err := limit(c).Reset(ctx, "limit", idem)
			return r.Replayed, err
		}, nil},
		{"reset of a counter", func(ctx context.Context, c *Client, idem CallOption) (bool, error) {
			r, err := c.Counter("").Reset(ctx, "counter", idem)
			return r.Replayed, err
		}, func(ctx context.Context, c *Client, idem CallOption) error {
			_, err := c.Counter("").Delete(ctx, "counter", idem)
			return err
		}},
		{"delete", func(ctx context.Context, c *Client, idem CallOption) (bool, error) {
			r, err := c.Counter("").Delete(ctx, "counter", idem)
			return r.Replayed, err
		}, nil},
	}
}

// What one process did under a key, another one does not do again.
func TestEveryCallTakesAKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		w.agree()
		one, two := w.client(Config{}, "n1"), w.client(Config{}, "n2")
		time.Sleep(10 * time.Minute) // both nodes know all keys of the window
		state := func() (uint64, Count) {
			d := must(one.Limit("api", PerHour(10)).Peek(soon(t), "limit"))(t)
			return d.Remaining, must(one.Counter("").Get(soon(t), "counter"))(t)
		}
		for _, k := range keyedCalls() {
			must(one.Limit("api", PerHour(10)).CheckN(soon(t), "limit", 2))(t)
			must(one.Counter("").Add(soon(t), "counter", 5))(t)
			idem := IdempotencyKey("order of " + k.what)
			if replayed, err := k.do(soon(t), one, idem); replayed || err != nil {
				t.Errorf("%s: %t, %v", k.what, replayed, err)
			}
			must(one.Limit("api", PerHour(10)).Check(soon(t), "limit"))(t)
			must(one.Counter("").Add(soon(t), "counter", 1))(t)
			left, count := state()
			if replayed, err := k.do(soon(t), two, idem); !replayed || err != nil {
				t.Errorf("%s again: %t, %v", k.what, replayed, err)
			}
			if k.other != nil {
				if err := k.other(soon(t), two, idem); !errors.Is(err, ErrRequestIDReused) {
					t.Errorf("something else under the key of %s: %v", k.what, err)
				}
			}
			if l, c := state(); l != left || c.Value != count.Value || c.Version != count.Version {
				t.Errorf("%s acted twice: %d were left and are %d, the counter was %+v and is %+v", k.what, left, l, count, c)
			}
			for _, bad := range []string{"", strings.Repeat("x", 65), "\xff"} {
				if _, err := k.do(soon(t), one, IdempotencyKey(bad)); !errors.Is(err, ErrInvalid) {
					t.Errorf("%s under %.9q: %v", k.what, bad, err)
				}
			}
			must(one.Limit("api", PerHour(10)).Reset(soon(t), "limit"))(t)
		}
		for what, call := range map[string]func() error{
			"a peek in a batch": func() error {
				r, err := one.BatchCheck(soon(t), []Check{{Limit: one.Limit("", PerHour(1)), Key: "k", Peek: true, Options: []CallOption{IdempotencyKey("x")}}})
				return errors.Join(err, r[0].Err)
			},
			"a check anywhere": func() error {
				_, err := one.Limit("", PerHour(1), Anywhere()).Check(soon(t), "k", IdempotencyKey("x"))
				return err
			},
		} {
			if err := call(); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s under a key: %v", what, err)
			}
		}
	})
}

// A process that takes the place of another has the lock of that one, under its token, and
// keeps it.
func TestLockUnderAKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		one, two := w.client(Config{}, "n1"), w.client(Config{}, "n1")
		time.Sleep(10 * time.Minute)
		idem := IdempotencyKey("run-7")
		first := must(one.Lock("").Acquire(soon(t), "k", idem, TTL(9*time.Second)))(t)
		one.Close() // without a release
		time.Sleep(8 * time.Second)
		again := must(two.Lock("").TryAcquire(soon(t), "k", idem, TTL(9*time.Second)))(t)
		if again.Token() != first.Token() || !again.Meta().Replayed {
			t.Fatalf("token %d after %d, %+v", again.Token(), first.Token(), again.Meta())
		}
		time.Sleep(time.Minute)
		if !again.Held() {
			t.Error("it is not kept")
		}
		if s := must(two.Lock("").Inspect(soon(t), "k"))(t); s.Holder == nil || s.Holder.Token != first.Token() || s.Holder.ID != "run-7" {
			t.Errorf("%+v", s)
		}
		if _, err := two.Lock("").TryAcquire(soon(t), "k", idem, TTL(10*time.Second)); !errors.Is(err, ErrRequestIDReused) {
			t.Errorf("another TTL under the key: %v", err)
		}
		third := must(two.Lock("").TryAcquire(soon(t), "k", idem, TTL(9*time.Second)))(t)
		for range 2 {
			for _, held := range []*HeldLock{again, third} {
				if err := held.Release(soon(t), IdempotencyKey("end of run-7")); err != nil {
					t.Errorf("a release: %v", err)
				}
			}
		}
		if _, err := two.Lock("").Acquire(soon(t), "k", idem, TTL(9*time.Second)); !errors.Is(err, ErrLockLost) {
			t.Errorf("a grant that is over: %v", err)
		}
		if s := must(two.Lock("").Inspect(soon(t), "k"))(t); s.Holder != nil {
			t.Errorf("it is held afterwards: %+v", s.Holder)
		}
		for _, bad := range []string{"", strings.Repeat("x", 65), "\xff"} {
			if _, err := two.Lock("").Acquire(soon(t), "k", IdempotencyKey(bad)); !errors.Is(err, ErrInvalid) {
				t.Errorf("acquire under %.9q: %v", bad, err)
			}
			if err := third.Release(soon(t), IdempotencyKey(bad)); !errors.Is(err, ErrInvalid) {
				t.Errorf("release under %.9q: %v", bad, err)
			}
		}
	})
}

// A grant under a key is counted from what this process knows: another one may have stood
// in the queue before it.
func TestLeaseUnderAKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		one, two := w.client(Config{}, "n1"), w.client(Config{}, "n1")
		time.Sleep(10 * time.Minute)
		const ttl = 10 * time.Second
		before := must(one.Lock("").Acquire(soon(t), "k"))(t)
		ctx, leave := context.WithCancel(context.Background())
		go func() { _, _ = one.Lock("").Acquire(ctx, "k", IdempotencyKey("run-7"), TTL(ttl)) }()
		time.Sleep(time.Minute)
		type outcome struct {
			held *HeldLock
			err  error
		}
		got := make(chan outcome, 1)
		go func() {
			held, err := two.Lock("").Acquire(context.Background(), "k", IdempotencyKey("run-7"), TTL(ttl))
			got <- outcome{held, err}
		}()
		synctest.Wait() // it has taken the place of the first one
		leave()
		time.Sleep(time.Minute)
		_ = before.Release(soon(t))
		o := <-got
		if o.err != nil {
			t.Fatal(o.err)
		}
		granted := time.Now()
		w.nodes["n1"].isolate(true)
		<-o.held.Context().Done()
		if took := time.Since(granted); took > ttl || took < ttl/2 {
			t.Errorf("a lease of %s is believed in for %s", ttl, took)
		}
	})
}

// Who leaves the queue under a key has the lock when it asks again; and an Acquire is one
// call to observers, also when it renews what was granted before.
func TestAcquireAgainUnderAKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		n := &notes{name: "n"}
		c, other := w.client(Config{Observers: []Observer{n}}, "n1"), w.client(Config{}, "n1")
		time.Sleep(10 * time.Minute)
		before := must(other.Lock("").Acquire(soon(t), "k"))(t)
		idem := IdempotencyKey("run-7")
		ctx, leave := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, leave)
		if _, err := c.Lock("").Acquire(ctx, "k", idem); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		synctest.Wait() // the node knows that it has left: a grant before that would be over
		_ = before.Release(soon(t))
		synctest.Wait()
		held := must(c.Lock("").Acquire(soon(t), "k", idem))(t)
		n.said = nil
		again := must(c.Lock("").Acquire(soon(t), "k", idem))(t)
		if !again.Meta().Replayed || again.Token() != held.Token() || len(n.said) != 1 {
			t.Errorf("%+v, and observers were told %q", again.Meta(), n.said)
		}
		_ = held.Release(soon(t))
		<-again.Context().Done() // its renewal is told
		idle(t, c)
	})
}

// A key belongs to one part of a split object: a request that is sent again finds that part.
func TestKeysOfWhatIsSplit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		w.agree()
		one, two := w.client(Config{}, "n1"), w.client(Config{}, "n3")
		time.Sleep(10 * time.Minute)
		key := w.keyOf("n2")
		w.open(w.split("limit", key, "limit", "n3", "n1", "n1", "n3"))
		w.open(w.split("counter", key, "hits", "n3", "n1", "n1", "n3"))
		synctest.Wait()
		for i := range 50 {
			idem := IdempotencyKey(fmt.Sprint("order-", i))
			for k, c := range []*Client{one, two} {
				d := must(c.Limit("", PerHour(1000)).Check(soon(t), key, idem))(t)
				v := must(c.Counter("hits").Add(soon(t), key, 1, idem))(t)
				if d.Replayed != (k == 1) || v.Replayed != (k == 1) || d.Parts == 0 || v.Parts == 0 {
					t.Errorf("%d, attempt %d: %+v and %+v", i, k, d, v)
				}
			}
		}
	})
}

// A lock that was granted under a key, and that cannot be renewed, is held: that is not known
// to be nothing.
func TestGrantThatIsNotRenewed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		fail := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if method == lockpb.LockService_Renew_FullMethodName {
				return status.Error(codes.Unavailable, "the network is gone")
			}
			return invoke(ctx, method, req, reply, conn, opts...)
		}
		one, two := w.client(Config{}, "n1"), w.client(Config{DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(fail)}}, "n1")
		time.Sleep(10 * time.Minute)
		idem := IdempotencyKey("run-7")
		first := must(one.Lock("").Acquire(soon(t), "k", idem))(t)
		_, err := two.Lock("").Acquire(ctx2(t, time.Second), "k", idem)
		if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		_ = first.Release(soon(t))
		idle(t, two)
	})
}

// A call whose answer was lost is not sent again under a key that nodes may have forgotten
// meanwhile: it would act twice.
func TestKeysAreNotOutlived(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		lost := false
		lose := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, conn, opts...)
			if !lost && strings.HasPrefix(method, "/keystead.counter.") {
				lost, err = true, status.Error(codes.Unavailable, "the connection broke")
				w.nodes["n1"].isolate(true)
				time.AfterFunc(6*time.Minute, func() { w.nodes["n1"].isolate(false) })
			}
			return err
		}
		c := w.client(Config{DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(lose)}}, "n1")
		for what, add := range map[string]func(ctx context.Context, n Counter) error{
			"add": func(ctx context.Context, n Counter) error {
				_, err := n.Add(ctx, "k", 1, IdempotencyKey("order-7"))
				return err
			},
			"in a batch": func(ctx context.Context, n Counter) error {
				r, err := c.BatchAdd(ctx, []Add{{Counter: n, Key: "k", Delta: 1, Options: []CounterOption{IdempotencyKey("order-7")}}})
				return errors.Join(err, r[0].Err)
			},
		} {
			time.Sleep(10 * time.Minute)
			n := c.Counter(what)
			lost = false
			err := add(ctx2(t, time.Hour), n)
			time.Sleep(10 * time.Minute)
			if v := must(n.Get(soon(t), "k"))(t); v.Value != 1 || !errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("%s: %d, %v", what, v.Value, err)
			}
		}
		idle(t, c)
	})
}

// The zero option is none: it takes no key away.
func TestZeroOptionKeepsTheKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := build(t, []string{"n1"}, nil).client(Config{}, "n1")
		time.Sleep(10 * time.Minute)
		idem, n := IdempotencyKey("order-7"), c.Counter("")
		for range 2 {
			must(n.Add(soon(t), "add", 1, idem, CallOption{}))(t)
			if v := must(n.CompareAndSet(soon(t), "set", 1, 0, idem, CallOption{}))(t); !v.Applied {
				t.Errorf("it is set again: %+v", v)
			}
			r := must(c.BatchAdd(soon(t), []Add{{Counter: n, Key: "batch", Delta: 1, Options: []CounterOption{idem, CallOption{}}}}))(t)
			if r[0].Err != nil {
				t.Error(r[0].Err)
			}
			must(c.Limit("", PerHour(10)).Check(soon(t), "limit", idem, CallOption{}))(t)
			if held, err := c.Lock("").TryAcquire(soon(t), "lock", idem, CallOption{}); err != nil {
				t.Error(err)
			} else {
				defer func() { _ = held.Release(soon(t)) }()
			}
		}
		for _, key := range []string{"add", "set", "batch"} {
			if v := must(n.Get(soon(t), key))(t); v.Value != 1 {
				t.Errorf("%s acted twice: %+v", key, v)
			}
		}
		if d := must(c.Limit("", PerHour(10)).Peek(soon(t), "limit"))(t); d.Remaining != 9 {
			t.Errorf("%+v", d)
		}
	})
}
