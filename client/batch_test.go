package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/owner"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// Single calls of many callers go together, each with its own result, and each
// counts once.
func TestCallsAreCoalesced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		c := w.client(direct, "n1")
		const callers, rounds = 200, 10
		var wg sync.WaitGroup
		var seen sync.Map // values of the common counter
		for i := range callers {
			wg.Go(func() {
				for j := range rounds {
					v, err := c.Counter("").Add(context.Background(), "all", 1)
					if err != nil || v.Replayed {
						t.Errorf("%+v, %v", v, err)
					}
					if _, twice := seen.LoadOrStore(v.Value, true); twice {
						t.Errorf("value %d twice", v.Value)
					}
					own, err := c.Counter("").Add(context.Background(), fmt.Sprint("own-", i), int64(i))
					if err != nil || own.Value != int64(i*(j+1)) {
						t.Errorf("caller %d: %+v, %v", i, own, err)
					}
					// Items fail alone.
					if _, err := c.Limit("", Per(uint64(i%2), time.Hour)).Check(context.Background(), "k"); (err != nil) != (i%2 == 0) {
						t.Errorf("caller %d: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
		if v := must(c.Counter("").Get(soon(t), "all"))(t); v.Value != callers*rounds {
			t.Errorf("%+v", v)
		}
		s := c.Stats()
		if s.Attempts != 3*callers*rounds+1 || s.Retries != 0 || s.Messages == 0 || s.Items < 5*s.Messages {
			t.Errorf("%+v", s)
		}
	})
}

func TestNoBatching(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		c := w.client(Config{NoBatching: true, MaxInFlight: 7}, "n1")
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { must(c.Counter("").Add(soon(t), "k", 1))(t) })
		}
		wg.Wait()
		if s := c.Stats(); s.Messages != 0 || s.Attempts != 100 {
			t.Errorf("%+v", s)
		}
	})
}

// jam holds up all Adds that a client sends until it is released.
type jam struct{ gate chan struct{} }

func newJam() *jam { return &jam{make(chan struct{})} }

func (j *jam) release() { close(j.gate) }

func (j *jam) option() grpc.DialOption {
	return grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method == counterpb.CounterService_Add_FullMethodName {
			<-j.gate
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	})
}

// A caller that leaves while its call waits for others to come back is told that
// nothing happened, and nothing does; one whose call is on its way is told that
// this is not known.
func TestLeavingTheGathering(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		j := newJam()
		c := w.client(Config{AttemptTimeout: time.Minute, DialOptions: []grpc.DialOption{j.option()}}, "n1")
		var wg sync.WaitGroup
		for i := range maxFlights {
			wg.Go(func() { must(c.Counter("").Add(soon(t), fmt.Sprint("jam-", i), 1))(t) })
		}
		synctest.Wait()
		left := make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			_, err := c.Counter("").Add(ctx, "left", 1)
			left <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, ErrGaveUp) || !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was not sent: %v", err)
		}
		_, err := c.Counter("").Add(ctx2(t, time.Second), "late", 1)
		if errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call whose deadline passed before it was sent: %v", err)
		}
		j.release()
		wg.Wait()
		for _, key := range []string{"left", "late"} {
			if v := must(c.Counter("").Get(soon(t), key))(t); v.Value != 0 {
				t.Errorf("%s: %+v", key, v)
			}
		}
	})
}

// Calls under way are bounded.
func TestInFlightIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		j := newJam()
		c := w.client(Config{MaxInFlight: 2, AttemptTimeout: time.Minute, DialOptions: []grpc.DialOption{j.option()}}, "n1")
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { must(c.Counter("").Add(soon(t), "k", 1))(t) })
		}
		synctest.Wait()
		if _, err := c.Counter("").Get(ctx2(t, time.Second), "k"); !errors.Is(err, ErrGaveUp) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the third call: %v", err)
		}
		j.release()
		wg.Wait()
		must(c.Counter("").Get(soon(t), "k"))(t)
	})
}

// A batch goes to all owners, in several messages if it is large, and the results
// come in its order.
func TestBatches(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2", "n3"}, nil)
		c := w.client(direct, "n1")
		const n = 5000
		adds, checks, gets := make([]Add, n), make([]Check, n), make([]Get, n)
		for i := range n {
			key := fmt.Sprint("key-", i%1000)
			adds[i] = Add{Key: key, Delta: 1}
			checks[i] = Check{Limit: c.Limit("", PerHour(3)), Key: key}
			gets[i] = Get{Key: fmt.Sprint("key-", i)}
		}
		for i, r := range must(c.BatchAdd(soon(t), adds))(t) {
			if r.Err != nil || r.Value != int64(i/1000+1) {
				t.Fatalf("add %d: %+v", i, r)
			}
		}
		for i, r := range must(c.BatchCheck(soon(t), checks))(t) {
			if r.Err != nil || r.Allowed != (i < 3000) {
				t.Fatalf("check %d: %+v", i, r)
			}
		}
		for i, r := range must(c.BatchGet(soon(t), gets))(t) {
			if r.Err != nil || r.Exists != (i < 1000) || r.Exists && r.Value != 5 {
				t.Fatalf("get %d: %+v", i, r)
			}
		}
		if s := c.Stats(); s.Attempts != 3*n || s.Retries != 0 {
			t.Errorf("%+v", s)
		}
		if r := must(c.BatchGet(soon(t), nil))(t); len(r) != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// Connections break again and again; every item counts once.
func TestBatchesOverBrokenConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		c := w.client(Config{Timeout: time.Minute}, "n1")
		var n atomic.Int64
		for _, h := range w.nodes {
			h.on(func(*owner.Record) {
				if n.Add(1)%97 == 0 {
					h.cut()
				}
			})
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range 20 {
					if _, err := c.Counter("").Add(context.Background(), "k", 1); err != nil {
						t.Error(err)
					}
					for _, r := range must(c.BatchAdd(context.Background(), []Add{{Key: "a", Delta: 1}, {Key: "b", Delta: 1}, {Key: "c", Delta: 1}}))(t) {
						if r.Err != nil {
							t.Error(r.Err)
						}
					}
				}
			})
		}
		wg.Wait()
		for _, key := range []string{"k", "a", "b", "c"} {
			if v := must(c.Counter("").Get(context.Background(), key))(t); v.Value != 400 {
				t.Errorf("%s: %+v", key, v)
			}
		}
		if c.Stats().Retries == 0 {
			t.Error("nothing broke")
		}
	})
}
