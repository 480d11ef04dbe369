package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// Locks that many callers try to acquire, and release, go together, each with its own result.
func TestLocksAreCoalesced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		c := w.client(direct, "n1")
		const callers, rounds = 100, 5
		var wg sync.WaitGroup
		var inside, got atomic.Int32 // of the common lock
		for i := range callers {
			wg.Go(func() {
				for range rounds {
					own, err := c.Lock("").TryAcquire(context.Background(), fmt.Sprint("own-", i))
					if err != nil || own.Meta().Owner == "" {
						t.Errorf("caller %d: %v", i, err)
						return
					}
					all, err := c.Lock("").TryAcquire(context.Background(), "all")
					switch {
					case err == nil:
						if got.Add(1); inside.Add(1) != 1 {
							t.Error("two hold one lock")
						}
						time.Sleep(time.Millisecond)
						inside.Add(-1)
						err = all.Release(context.Background())
					case errors.Is(err, ErrLockHeld):
						err = nil
					}
					if err = errors.Join(err, own.Release(context.Background())); err != nil {
						t.Errorf("caller %d: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
		s := c.Stats()
		if got.Load() == 0 || s.Retries != 0 || s.Messages == 0 || s.Items < 5*s.Messages {
			t.Errorf("%d times the common one, %+v", got.Load(), s)
		}
		for i := range callers {
			must(c.Lock("").TryAcquire(soon(t), fmt.Sprint("own-", i)))(t)
		}
	})
}

// jamOf holds up calls of a method until the gate is closed, before they are sent or after they
// were answered.
func jamOf(method string, gate chan struct{}, after bool) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, called string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if called == method && !after {
			<-gate
		}
		err := invoke(ctx, called, req, reply, cc, opts...)
		if called == method && after {
			<-gate
		}
		return err
	}
}

// A caller that leaves while others of its message still have no answer does not keep the lock
// that it was granted.
func TestLeavingABatchOfLocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		first, answer := make(chan struct{}), make(chan struct{})
		c := w.client(Config{AttemptTimeout: time.Minute, DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(jamOf(lockpb.LockService_Acquire_FullMethodName, first, false), jamOf(lockpb.LockService_BatchAcquire_FullMethodName, answer, true)),
		}}, "n1")
		var wg sync.WaitGroup
		for i := range maxFlights {
			wg.Go(func() { must(c.Lock("").TryAcquire(soon(t), fmt.Sprint("jam-", i)))(t) })
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		left := make(chan error, 1)
		go func() {
			_, err := c.Lock("").TryAcquire(ctx, "left")
			left <- err
		}()
		for i := range 10 {
			wg.Go(func() { must(c.Lock("").TryAcquire(soon(t), fmt.Sprint("stays-", i)))(t) })
		}
		synctest.Wait()
		close(first)
		synctest.Wait() // the batch was done, and its answer is on the way
		if h := must(w.client(direct, "n1").Lock("").Inspect(soon(t), "left"))(t).Holder; h == nil {
			t.Error("the lock was not granted before the caller left")
		}
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) || !errors.Is(err, ErrGaveUp) && !errors.Is(err, ErrOutcomeUnknown) {
			t.Error(err)
		}
		close(answer)
		wg.Wait()
		time.Sleep(time.Second)
		if h := must(c.Lock("").Inspect(soon(t), "left"))(t).Holder; h != nil {
			t.Errorf("kept by one that left: %+v", h)
		}
	})
}

// A node of a version that does not know batches of locks is asked one by one.
func TestNodeWithoutBatchesOfLocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		var batches atomic.Int32
		c := w.client(Config{DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			switch method {
			case lockpb.LockService_BatchAcquire_FullMethodName, lockpb.LockService_BatchRelease_FullMethodName:
				batches.Add(1)
				return status.Error(codes.Unimplemented, "unknown method")
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		})}}, "n1")
		round := func() {
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					held, err := c.Lock("").TryAcquire(soon(t), fmt.Sprint("k-", i))
					if err == nil {
						err = held.Release(soon(t))
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
		round()
		first := batches.Load()
		if round(); first == 0 || first > 2*maxFlights || batches.Load() != first {
			t.Errorf("%d batches, then %d", first, batches.Load())
		}
		time.Sleep(batchAgain)
		if round(); batches.Load() == first {
			t.Error("batches are never tried again")
		}
	})
}

// Requests that are as long as they may be fit in the messages in which they go.
func TestLongRequestsFitInBatches(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1"}, nil)
		gate := make(chan struct{})
		c := w.client(Config{AttemptTimeout: time.Minute, DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(jamOf(lockpb.LockService_Acquire_FullMethodName, gate, false))}}, "n1")
		metadata, long := bytes.Repeat([]byte("m"), 1024), string(bytes.Repeat([]byte("k"), maxKey-5))
		var wg sync.WaitGroup
		for i := range maxBatch + maxFlights {
			wg.Go(func() {
				if _, err := c.Lock("").TryAcquire(soon(t), fmt.Sprintf("%s%05d", long, i), Metadata(metadata)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(gate)
		wg.Wait()
		if s := c.Stats(); s.Items != maxBatch || s.Messages < 2 {
			t.Errorf("%+v", s)
		}
	})
}

// Calls that wait for others to come back from a node do not go the same way when those had no
// answer in time: each attempt of a call waits for one such time, and not for two.
func TestNobodyIsSentAfterTheSilent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		var silent atomic.Bool
		c := w.client(Config{AttemptTimeout: time.Second, DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if silent.Load() && strings.Contains(cc.Target(), "n1") {
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		})}}, "n1", "n2")
		must(c.Lock("").TryAcquire(soon(t), "first"))(t) // it knows the table
		silent.Store(true)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 1900*time.Millisecond)
				defer cancel()
				if _, err := c.Lock("").TryAcquire(ctx, fmt.Sprint("k-", i)); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 1900*time.Millisecond)
				defer cancel()
				if _, err := c.Counter("").Add(ctx, fmt.Sprint("k-", i), 1); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if s := c.Stats(); s.Attempts > 450 {
			t.Errorf("%+v", s)
		}
	})
}
