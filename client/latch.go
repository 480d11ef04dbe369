package client

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// Await waits until the counter of a key exists and is as the one option says, AtMost or AtLeast:
// until its work is done, for one that counts what is left of it. It waits until ctx ends. One
// that does not exist never is so. If what was kept of the key was lost meanwhile, the error is
// ErrLost.
func (n Counter) Await(ctx context.Context, key string, until CounterOption) (Count, error) {
	const what = "await counter"
	q := &counterpb.AwaitRequest{Key: key, Name: n.name}
	switch o, _ := until.(counterOption); o.what {
	case atMost:
		q.AtMost = &o.n
	case atLeast:
		q.AtLeast = &o.n
	default:
		return Count{}, about(invalid("until", "is AtMost or AtLeast"), what, key, "")
	}
	if err := n.c.judge(ctx, key, n.name); err != nil {
		return Count{}, about(err, what, key, "")
	}
	r, err := await(ctx, n.c, toKey(key, true).of(what), func(ctx context.Context, conn *grpc.ClientConn, wait time.Duration, opts ...grpc.CallOption) (*counterpb.AwaitResponse, error) {
		q.WaitNs = int64(wait)
		return counterpb.NewCounterServiceClient(conn).Await(ctx, q, opts...)
	}, func(r *counterpb.AwaitResponse) bool { return r.Met || lostCounter(r) })
	if err == nil && !r.Met {
		err = about(&Error{Code: codes.DataLoss, Reason: ErrLost, Message: "the counter was lost with all nodes that kept it, if there was one"}, what, key, r.Owner)
	}
	if err != nil {
		return Count{}, err
	}
	return Count{Exists: true, Value: r.Value, Version: r.Version, Parts: int(r.Parts), Meta: metaOf(r, nil)}, nil
}

// lostCounter reports whether a counter that is awaited may have been lost.
func lostCounter(r *counterpb.AwaitResponse) bool { return r.Version == 0 && r.LostEpoch != 0 }

// Latch is a gate that a number of arrivals opens, once, and that stays open: a counter that
// counts them. If it is lost with all nodes that kept it, it is shut, never open.
type Latch struct {
	n    Counter
	need int64
}

// Latch names a latch that opens with so many arrivals, 1 or more. name "" = "latch". All callers
// say the same number.
func (c *Client) Latch(name string, arrivals int) Latch {
	return Latch{c.Counter(cmp.Or(name, "latch")), int64(arrivals)}
}

func (l Latch) judge(what, key string) error {
	if l.need < 1 {
		return about(invalid("arrivals", "are %d; choose 1 or more", l.need), what, key, "")
	}
	return nil
}

// Arrive counts an arrival, once under every retry, and reports whether the latch is open by
// now. Give an IdempotencyKey if the caller itself may be started again: it counts once in the
// id window, of five minutes, and once more after it.
func (l Latch) Arrive(ctx context.Context, key string, opts ...CallOption) (open bool, err error) {
	if err := l.judge("arrive", key); err != nil {
		return false, err
	}
	all := []CounterOption{AtMost(l.need)}
	for _, o := range opts {
		all = append(all, o)
	}
	v, err := l.n.Add(ctx, key, 1, all...)
	return err == nil && (v.Value >= l.need || v.Current >= l.need), err
}

// Await waits until the latch is open, or ctx ends.
func (l Latch) Await(ctx context.Context, key string) error {
	if err := l.judge("await", key); err != nil {
		return err
	}
	_, err := l.n.Await(ctx, key, AtLeast(l.need))
	return err
}

// Reset shuts the latch again, for other arrivals.
func (l Latch) Reset(ctx context.Context, key string) error {
	_, err := l.n.Delete(ctx, key)
	return err
}
