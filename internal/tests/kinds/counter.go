package kinds

import (
	"context"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// Counter is an exact counter.
var Counter = Kind{
	Name:     "counter",
	Of:       owner.KindCounter,
	Share:    4,
	Work:     count,
	Probe:    Probe{In: history.CounterInput{Op: history.CounterGet}, Ask: getCounter},
	Model:    history.DelayedCounter,
	Splits:   true,
	Workload: "counter",
}

func getCounter(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := counterpb.NewCounterServiceClient(conn).Get(ctx, &counterpb.GetRequest{Key: key})
	return Answer{history.CounterOutput{Value: r.GetValue(), Version: r.GetVersion(), Parts: r.GetParts()}, r.GetOwner(), r.GetEpoch()}, err
}

func replayed(r *commonpb.Replay) history.Replay {
	return history.Replay{Replayed: r != nil, Age: r.GetAgeNs()}
}

// wholes is how many operations there are, for one that needs the whole, on a counter
// that is to stay split for a while.
const wholes = 32

// count changes a counter.
func count(ctx context.Context, w *Worker, o Object) {
	if w.cfg.Splits && o.Number%2 == 0 && w.rng.IntN(wholes) > 0 {
		plainAdd(ctx, w, o)
		return
	}
	switch w.rng.IntN(11) {
	case 0, 1:
		compareAndSet(ctx, w, o)
	case 2:
		_, _, _ = do(ctx, w, operation[*counterpb.ResetResponse]{
			object: o, in: history.CounterInput{Op: history.CounterReset}, keyed: true,
			call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*counterpb.ResetResponse, error) {
				return counterpb.NewCounterServiceClient(conn).Reset(ctx, &counterpb.ResetRequest{Key: o.Key, RequestId: as.id, IdempotencyKey: as.key}, opt)
			},
			output: func(r *counterpb.ResetResponse) any {
				return history.CounterOutput{Value: r.Previous, Version: r.Version, Current: r.Current, Replay: replayed(r.Replay)}
			},
		})
	case 3:
		remove(ctx, w, o)
	default:
		boundedAdd(ctx, w, o)
	}
}

// Delete deletes a counter.
func Delete(ctx context.Context, w *Worker, o Object) { remove(ctx, w, o) }

// remove deletes a counter. A worker that goes on by the version of before must not set what is made
// again: the version that was seen last stays.
func remove(ctx context.Context, w *Worker, o Object) {
	_, _, _ = do(ctx, w, operation[*counterpb.DeleteResponse]{
		object: o, in: history.CounterInput{Op: history.CounterDelete}, keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*counterpb.DeleteResponse, error) {
			return counterpb.NewCounterServiceClient(conn).Delete(ctx, &counterpb.DeleteRequest{Key: o.Key, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *counterpb.DeleteResponse) any {
			return history.CounterOutput{Applied: r.Deleted, Value: r.Previous, Version: r.Version, Current: r.Current, Replay: replayed(r.Replay)}
		},
	})
}

func compareAndSet(ctx context.Context, w *Worker, o Object) {
	in := history.CounterInput{Op: history.CounterCompareAndSet, Value: w.rng.Int64N(10), Version: w.seen[o.Key]}
	out, _, ok := do(ctx, w, operation[*counterpb.CompareAndSetResponse]{
		object: o, in: in, keyed: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*counterpb.CompareAndSetResponse, error) {
			return counterpb.NewCounterServiceClient(conn).CompareAndSet(ctx, &counterpb.CompareAndSetRequest{Key: o.Key, Value: in.Value, Version: in.Version, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *counterpb.CompareAndSetResponse) any {
			return history.CounterOutput{Applied: r.Applied, Value: r.Value, Version: r.Version, Current: r.Current, Replay: replayed(r.Replay)}
		},
	})
	if ok {
		w.seen[o.Key] = out.Version
	}
}

// boundedAdd adds, more often up than down, so that what is lost is seen.
func boundedAdd(ctx context.Context, w *Worker, o Object) {
	in := history.CounterInput{Op: history.CounterAdd, Delta: w.rng.Int64N(9) - 3}
	if w.rng.IntN(4) == 0 {
		in.Max, in.HasMax = w.rng.Int64N(100), true
	}
	if w.rng.IntN(2) == 0 {
		in.Min, in.HasMin = 0, true
	}
	add(ctx, w, o, in)
}

// plainAdd adds without bounds, as a part can, and seldom down.
func plainAdd(ctx context.Context, w *Worker, o Object) {
	add(ctx, w, o, history.CounterInput{Op: history.CounterAdd, Delta: w.rng.Int64N(9) - 1})
}

// Add adds 1 to a counter.
func Add(ctx context.Context, w *Worker, o Object) {
	add(ctx, w, o, history.CounterInput{Op: history.CounterAdd, Delta: 1})
}

func add(ctx context.Context, w *Worker, o Object, in history.CounterInput) {
	out, _, ok := do(ctx, w, operation[*counterpb.AddResponse]{
		object: o, in: in, keyed: true, repeat: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*counterpb.AddResponse, error) {
			req := &counterpb.AddRequest{Key: o.Key, Delta: in.Delta, RequestId: as.id, IdempotencyKey: as.key}
			if in.HasMax {
				req.Max = &in.Max
			}
			if in.HasMin {
				req.Min = &in.Min
			}
			return counterpb.NewCounterServiceClient(conn).Add(ctx, req, opt)
		},
		output: func(r *counterpb.AddResponse) any {
			return history.CounterOutput{Applied: r.Applied, Value: r.Value, Version: r.Version, Current: r.Current, Parts: r.Parts, Replay: replayed(r.Replay)}
		},
	})
	if ok {
		w.seen[o.Key] = out.Version
	}
}
