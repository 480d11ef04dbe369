package workload

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// work does one thing after the other until ctx ends.
func (c *client) work(ctx context.Context) {
	for c.rest(ctx, pace) {
		c.connect()
		key := func(k kind) string { return c.names[k][c.rng.IntN(len(c.names[k]))] }
		switch c.rng.IntN(8) {
		case 0, 1, 2, 3:
			c.count(c.rng.IntN(len(c.names[counterKind])))
		case 4:
			c.check(bucketKind, key(bucketKind))
		case 5:
			c.check(windowKind, key(windowKind))
		default:
			c.lock(ctx, key(lockKind))
		}
	}
}

func replayed(r *pb.Replay) history.Replay {
	return history.Replay{Replayed: r != nil, Age: r.GetAgeNs()}
}

// wholes is how many operations there are, for one that needs the whole, on a counter
// that is to stay split for a while.
const wholes = 32

// count changes a counter.
func (c *client) count(i int) {
	key := c.names[counterKind][i]
	if c.cfg.Splits && i%2 == 0 && c.rng.IntN(wholes) > 0 {
		c.plainAdd(key)
		return
	}
	switch c.rng.IntN(10) {
	case 0, 1:
		c.setIf(key)
	case 2:
		in := history.CounterInput{Op: history.CounterReset}
		_, _, _ = send(c, request{rec: c.counters, key: key, in: in}, func(ctx context.Context, id *pb.RequestId, opt grpc.CallOption) (history.CounterOutput, error) {
			r, err := pb.NewCounterServiceClient(c.conn()).Reset(ctx, &pb.ResetRequest{Key: key, RequestId: id}, opt)
			return history.CounterOutput{Value: r.GetPrevious(), Version: r.GetVersion(), Current: r.GetCurrent(), Replay: replayed(r.GetReplay())}, err
		})
	default:
		c.add(key)
	}
}

func (c *client) setIf(key string) {
	in := history.CounterInput{Op: history.CounterSetIf, Value: c.rng.Int64N(10), Version: c.versions[key]}
	out, _, ok := send(c, request{rec: c.counters, key: key, in: in}, func(ctx context.Context, id *pb.RequestId, opt grpc.CallOption) (history.CounterOutput, error) {
		r, err := pb.NewCounterServiceClient(c.conn()).SetIf(ctx, &pb.SetIfRequest{Key: key, Value: in.Value, Version: in.Version, RequestId: id}, opt)
		return history.CounterOutput{Applied: r.GetApplied(), Value: r.GetValue(), Version: r.GetVersion(), Current: r.GetCurrent(), Replay: replayed(r.GetReplay())}, err
	})
	if ok {
		c.versions[key] = out.Version
	}
}

// add adds, more often up than down, so that what is lost is seen.
func (c *client) add(key string) {
	in := history.CounterInput{Op: history.CounterAdd, Delta: c.rng.Int64N(9) - 3}
	if c.rng.IntN(4) == 0 {
		in.Max, in.HasMax = c.rng.Int64N(100), true
	}
	if c.rng.IntN(2) == 0 {
		in.Min, in.HasMin = 0, true
	}
	c.sendAdd(key, in)
}

// plainAdd adds without bounds, as a part can, and seldom down.
func (c *client) plainAdd(key string) {
	c.sendAdd(key, history.CounterInput{Op: history.CounterAdd, Delta: c.rng.Int64N(9) - 1})
}

func (c *client) sendAdd(key string, in history.CounterInput) {
	out, _, ok := send(c, request{rec: c.counters, key: key, in: in}, func(ctx context.Context, id *pb.RequestId, opt grpc.CallOption) (history.CounterOutput, error) {
		req := &pb.AddRequest{Key: key, Delta: in.Delta, RequestId: id}
		if in.HasMax {
			req.Max = &in.Max
		}
		if in.HasMin {
			req.Min = &in.Min
		}
		r, err := pb.NewCounterServiceClient(c.conn()).Add(ctx, req, opt)
		return history.CounterOutput{Applied: r.GetApplied(), Value: r.GetValue(), Version: r.GetVersion(), Current: r.GetCurrent(), Parts: r.GetParts(), Replay: replayed(r.GetReplay())}, err
	})
	if ok {
		c.versions[key] = out.Version
	}
}

func checkRequest(k kind, key string, in history.BucketInput) *pb.CheckRequest {
	if k == windowKind {
		return &pb.CheckRequest{Key: key, Limit: window.Limit, PeriodNs: window.Period, Algorithm: pb.Algorithm_ALGORITHM_SLIDING_WINDOW, Cost: in.Cost, Peek: in.Peek}
	}
	return &pb.CheckRequest{Key: key, Limit: params.Limit, PeriodNs: params.Period, Burst: params.Burst, Cost: in.Cost, Peek: in.Peek}
}

func bucketOutput(r *pb.CheckResponse) history.BucketOutput {
	return history.BucketOutput{Allowed: r.GetAllowed(), Remaining: r.GetRemaining(), RetryAfter: r.GetRetryAfterNs(),
		ResetAfter: r.GetResetAfterNs(), Parts: r.GetParts(), Replay: replayed(r.GetReplay())}
}

// bares is how many checks there are, for one without a request id, of buckets that may be
// split.
const bares = 4

// check spends from a bucket or a window.
func (c *client) check(k kind, key string) {
	rec := c.buckets
	if k == windowKind {
		rec = c.windows
	}
	in := history.BucketInput{Cost: 1 + c.rng.Uint64N(3)}
	bare := c.cfg.Splits && k == bucketKind && c.rng.IntN(bares) == 0
	_, _, _ = send(c, request{rec: rec, key: key, in: in, bare: bare}, func(ctx context.Context, id *pb.RequestId, opt grpc.CallOption) (history.BucketOutput, error) {
		req := checkRequest(k, key, in)
		if !bare {
			req.RequestId = id
		}
		r, err := pb.NewLimitServiceClient(c.conn()).Check(ctx, req, opt)
		return bucketOutput(r), err
	})
}

func lockOutput(h *pb.Holder) history.LockOutput {
	return history.LockOutput{Holder: h.GetHolder(), HolderToken: h.GetToken(), HolderTTL: h.GetTtlNs()}
}

// grant is a lock that a client holds.
type grant struct {
	key, holder string
	token       uint64
	until       int64 // end of its lease, as the client counts it
}

const (
	leastTTL, mostTTL = 300 * time.Millisecond, 1500 * time.Millisecond
	mostWait          = 400 * time.Millisecond
	// writePace is the longest rest before a write under a lock.
	writePace = 40 * time.Millisecond
)

func (c *client) ttl() int64 { return int64(leastTTL) + c.rng.Int64N(int64(mostTTL-leastTTL)) }

// lock takes a lock, writes to what it protects, and mostly gives it back. Some
// holders write after their lease is over, as a process does that was paused.
func (c *client) lock(ctx context.Context, key string) {
	g, ok := c.acquire(key)
	if !ok {
		return
	}
	write := func() { c.registers[key].Write(c.n, g.holder, g.token, g.until) }
	for range 1 + c.rng.IntN(3) {
		c.rest(ctx, writePace)
		write()
	}
	if c.rng.IntN(4) == 0 {
		c.renew(&g)
		write()
	}
	switch c.rng.IntN(8) {
	case 0: // its TTL ends it
	case 1: // … and it does not know
		if late := time.Duration(g.until - c.cfg.Now()); late > 0 {
			t := time.NewTimer(late)
			defer t.Stop()
			select {
			case <-t.C:
			case <-ctx.Done():
			}
		}
		c.rest(ctx, writePace)
		write()
	default:
		in := history.LockInput{Op: history.LockRelease, Token: g.token}
		_, _, _ = send(c, request{rec: c.locks, key: key, in: in}, func(ctx context.Context, id *pb.RequestId, opt grpc.CallOption) (history.LockOutput, error) {
			r, err := pb.NewLockServiceClient(c.conn()).Release(ctx, &pb.ReleaseRequest{Key: key, Token: g.token, RequestId: id}, opt)
			return history.LockOutput{OK: r.GetReleased(), Replay: replayed(r.GetReplay())}, err
		})
	}
}

func (c *client) acquire(key string) (grant, bool) {
	in := history.LockInput{Op: history.LockAcquire, Holder: fmt.Sprint(c.n, "/", c.seq+1), TTL: c.ttl()}
	if c.rng.IntN(3) > 0 {
		in.Wait = 1 + c.rng.Int64N(int64(mostWait))
	}
	out, first, ok := send(c, request{rec: c.locks, key: key, in: in, wait: time.Duration(in.Wait)},
		func(ctx context.Context, id *pb.RequestId, opt grpc.CallOption) (history.LockOutput, error) {
			r, err := pb.NewLockServiceClient(c.conn()).Acquire(ctx, &pb.AcquireRequest{
				Key: key, Holder: in.Holder, TtlNs: in.TTL, WaitNs: in.Wait, RequestId: id}, opt)
			out := lockOutput(r.GetHolder())
			out.OK, out.Token, out.Waited, out.TTL, out.Replay = r.GetAcquired(), r.GetToken(), r.GetWaitedNs(), r.GetTtlNs(), replayed(r.GetReplay())
			return out, err
		})
	g := grant{key: key, holder: in.Holder, token: out.Token, until: first + out.Waited + in.TTL}
	return g, ok && out.OK && out.TTL > 0
}

// renew prolongs a grant, if it can. A renewal has no request id: an attempt that
// was lost may still prolong it, which does no harm.
func (c *client) renew(g *grant) {
	in := history.LockInput{Op: history.LockRenew, Token: g.token, TTL: c.ttl()}
	out, first, ok := send(c, request{rec: c.locks, key: g.key, in: in, bare: true},
		func(ctx context.Context, _ *pb.RequestId, opt grpc.CallOption) (history.LockOutput, error) {
			r, err := pb.NewLockServiceClient(c.conn()).Renew(ctx, &pb.RenewRequest{Key: g.key, Token: g.token, TtlNs: in.TTL}, opt)
			out := lockOutput(r.GetHolder())
			out.OK, out.TTL = r.GetRenewed(), r.GetTtlNs()
			return out, err
		})
	switch {
	case ok && out.OK:
		// Retries of a bare request follow attempts that did nothing, so the first
		// send is early, which makes the lease too short at worst.
		g.until = first + in.TTL
	case !ok:
		// A renewal that was lost may also have cut the lease short.
		g.until = min(g.until, first+in.TTL)
	}
}
