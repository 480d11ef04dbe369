package kinds

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Bucket is a limit that is a token bucket.
var Bucket = Kind{
	Name:  "limit",
	Of:    owner.KindLimit,
	Share: 1,
	Work: func(ctx context.Context, w *Worker, o Object) {
		if w.rng.IntN(resets) == 0 {
			reset(ctx, w, o)
			return
		}
		check(ctx, w, o, checkBucket, w.cfg.Splits && w.rng.IntN(bares) == 0)
	},
	Probe: Probe{In: peek, Ask: func(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
		return askCheck(ctx, conn, checkBucket(key, peek))
	}},
	Model: func(delay int64) history.Model {
		p := bucketParams
		p.Delay = delay
		return history.Bucket(p)
	},
	Splits:   true,
	Workload: "check",
}

// Window is a limit that is a sliding window.
var Window = Kind{
	Name:  "window",
	Of:    owner.KindLimit,
	Share: 1,
	Work: func(ctx context.Context, w *Worker, o Object) {
		if w.rng.IntN(resets) == 0 {
			reset(ctx, w, o)
			return
		}
		check(ctx, w, o, checkWindow, false)
	},
	Probe: Probe{In: peek, Ask: func(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
		return askCheck(ctx, conn, checkWindow(key, peek))
	}},
	Model: func(delay int64) history.Model {
		p := windowParams
		p.Delay = delay
		return history.Window(p)
	},
	Workload: "check",
}

// Turns is a limit that is a leaky bucket.
var Turns = Kind{
	Name:  "turns",
	Of:    owner.KindLimit,
	Share: 1,
	Work: func(ctx context.Context, w *Worker, o Object) {
		if w.rng.IntN(resets) == 0 {
			reset(ctx, w, o)
			return
		}
		in := history.BucketInput{Cost: 1 + w.rng.Uint64N(3), Turn: true, MaxDelay: w.rng.Int64N(int64(12 * time.Second))}
		checkFor(ctx, w, o, in, checkTurn, false)
	},
	Probe: Probe{In: peekTurn, Ask: func(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
		return askCheck(ctx, conn, checkTurn(key, peekTurn))
	}},
	Model:    Bucket.Model,
	Workload: "check",
}

// Quota is a limit by the clock.
var Quota = Kind{
	Name:  "quota",
	Of:    owner.KindLimit,
	Share: 1,
	Work: func(ctx context.Context, w *Worker, o Object) {
		switch w.rng.IntN(resets) {
		case 0:
			reset(ctx, w, o)
		case 1, 2, 3, 4:
			refundQuota(ctx, w, o)
		default:
			check(ctx, w, o, checkQuota, false)
		}
	},
	Probe: Probe{In: peek, Ask: func(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
		return askCheck(ctx, conn, checkQuota(key, peek))
	}},
	Model:    func(int64) history.Model { return history.Quota(quotaParams) },
	Workload: "check",
}

var (
	// bucketParams are slow to refill, so that a bucket that has forgotten what was spent
	// is seen.
	bucketParams = history.BucketParams{Limit: 2, Period: int64(time.Second), Burst: 20}
	// windowParams are so small that a window is exact, and so long that one that has
	// forgotten what was spent is seen.
	windowParams = history.WindowParams{Limit: 12, Period: int64(4 * time.Second)}
	// quotaParams have periods of which some end while faults happen, and are used up before.
	quotaParams = history.QuotaParams{Limit: 12, Period: 6}

	peek     = history.BucketInput{Cost: 1, Peek: true}
	peekTurn = history.BucketInput{Cost: 1, Peek: true, Turn: true, MaxDelay: int64(5 * time.Second)}
)

// resets is how many operations on a limit there are, for one that makes it full. One that is
// split is made whole by that.
const resets = 32

// reset makes a limit full.
func reset(ctx context.Context, w *Worker, o Object) {
	_, _, _ = do(ctx, w, operation[*limitpb.ResetResponse]{
		object: o, in: history.BucketReset{}, keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*limitpb.ResetResponse, error) {
			return limitpb.NewLimitServiceClient(conn).Reset(ctx, &limitpb.ResetRequest{Key: o.Key, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *limitpb.ResetResponse) any {
			return history.BucketOutput{Allowed: true, Bare: true, Replay: replayed(r.Replay)}
		},
	})
}

// bares is how many checks there are, for one without a request id, of buckets that may be
// split.
const bares = 4

func checkBucket(key string, in history.BucketInput) *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: key, Limit: bucketParams.Limit, PeriodNs: bucketParams.Period, Burst: bucketParams.Burst, Cost: in.Cost, Peek: in.Peek}
}

func checkWindow(key string, in history.BucketInput) *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: key, Limit: windowParams.Limit, PeriodNs: windowParams.Period, Algorithm: limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW, Cost: in.Cost, Peek: in.Peek}
}

func checkTurn(key string, in history.BucketInput) *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: key, Limit: bucketParams.Limit, PeriodNs: bucketParams.Period, Burst: bucketParams.Burst,
		Algorithm: limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET, Cost: in.Cost, Peek: in.Peek, MaxDelayNs: in.MaxDelay}
}

func checkQuota(key string, in history.BucketInput) *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: key, Limit: quotaParams.Limit, PeriodNs: quotaParams.Period * int64(time.Second), Algorithm: limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW, Cost: in.Cost, Peek: in.Peek}
}

// refundQuota gives tokens back to a quota.
func refundQuota(ctx context.Context, w *Worker, o Object) {
	in := history.BucketRefund{Tokens: 1 + w.rng.Uint64N(3)}
	_, _, _ = do(ctx, w, operation[*limitpb.CheckResponse]{
		object: o, in: in, keyed: true, repeat: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*limitpb.CheckResponse, error) {
			req := checkQuota(o.Key, history.BucketInput{})
			req.Refund, req.RequestId, req.IdempotencyKey = in.Tokens, as.id, as.key
			return limitpb.NewLimitServiceClient(conn).Check(ctx, req, opt)
		},
		output: checkOutput,
	})
}

func checkOutput(r *limitpb.CheckResponse) any {
	return history.BucketOutput{Allowed: r.GetAllowed(), Remaining: r.GetRemaining(), RetryAfter: r.GetRetryAfterNs(),
		ResetAfter: r.GetResetAfterNs(), Delay: r.GetDelayNs(), Ends: r.GetPeriodEnds(), Parts: r.GetParts(), Replay: replayed(r.GetReplay())}
}

func askCheck(ctx context.Context, conn *grpc.ClientConn, req *limitpb.CheckRequest) (Answer, error) {
	r, err := limitpb.NewLimitServiceClient(conn).Check(ctx, req)
	return Answer{checkOutput(r), r.GetOwner(), r.GetEpoch()}, err
}

// check spends from a bucket or a window.
func check(ctx context.Context, w *Worker, o Object, request func(string, history.BucketInput) *limitpb.CheckRequest, bare bool) {
	checkFor(ctx, w, o, history.BucketInput{Cost: 1 + w.rng.Uint64N(3)}, request, bare)
}

func checkFor(ctx context.Context, w *Worker, o Object, in history.BucketInput, request func(string, history.BucketInput) *limitpb.CheckRequest, bare bool) {
	_, _, _ = do(ctx, w, operation[*limitpb.CheckResponse]{
		object: o, in: in, bare: bare, keyed: true, repeat: !bare,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*limitpb.CheckResponse, error) {
			req := request(o.Key, in)
			req.RequestId, req.IdempotencyKey = as.id, as.key
			return limitpb.NewLimitServiceClient(conn).Check(ctx, req, opt)
		},
		output: checkOutput,
	})
}
