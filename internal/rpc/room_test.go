package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// roomy are copies that have room for so many callers more.
type roomy struct {
	lapsing
	places chan struct{}
}

func (r *roomy) Room(ctx context.Context, _ uint64) error {
	select {
	case r.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestQueueNeedsRoom: one that may stand in a queue waits until the copies have room, for a
// second at most; who does not wait needs none.
func TestQueueNeedsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &roomy{places: make(chan struct{}, 1)}
		copies.had.Store(true)
		g := grouped(t, 1, false, func(c *Config) { c.Copies = copies })
		n, ctx := g.nodes["n1"], bound(t)
		acquire := func(wait time.Duration) (*lockpb.AcquireResponse, error) {
			return n.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "k", Holder: "h", TtlNs: int64(time.Minute), WaitNs: int64(wait)})
		}
		if r, err := acquire(time.Minute); err != nil || !r.Acquired {
			t.Fatal(r, err)
		}
		began := time.Now()
		_, err := acquire(time.Minute)
		refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_OVERLOADED, hint: true, retry: 100 * time.Millisecond}.check(t, err)
		if took := time.Since(began); took != maxRoomWait {
			t.Errorf("refused after %s", took)
		}
		if r, err := acquire(0); err != nil || r.Acquired {
			t.Error(r, err)
		}
		time.AfterFunc(maxRoomWait/2, func() { <-copies.places })
		if r, err := acquire(maxRoomWait); err != nil || r.Acquired || time.Since(began) < 2*maxRoomWait {
			t.Error(r, err, time.Since(began))
		}
	})
}

// TestRetryNeedsNoRoom: one that stands in the queue, and comes another way, is not held back:
// its place would be over before.
func TestRetryNeedsNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &roomy{places: make(chan struct{}, 2)}
		copies.had.Store(true)
		g := grouped(t, 1, false, func(c *Config) { c.Copies = copies })
		n, ctx := g.nodes["n1"], bound(t)
		acquire := func(seq uint64, wait time.Duration) (*lockpb.AcquireResponse, error) {
			return n.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "k", Holder: "h", TtlNs: int64(time.Minute), WaitNs: int64(wait),
				RequestId: &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: seq}})
		}
		if r, err := acquire(1, time.Minute); err != nil || !r.Acquired {
			t.Fatal(r, err)
		}
		first := make(chan error)
		go func() { _, err := acquire(2, time.Minute); first <- err }()
		synctest.Wait()
		again := make(chan error)
		go func() { _, err := acquire(2, time.Second/2); again <- err }()
		refusal{code: codes.Aborted, why: commonpb.Reason_REASON_SUPERSEDED, hint: true}.check(t, <-first)
		if err := <-again; err != nil {
			t.Error(err)
		}
	})
}
