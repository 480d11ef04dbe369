package kinds

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// Register is a register. Some of its changes are made under the lock of its key.
var Register = Kind{
	Name:     "register",
	Of:       owner.KindRegister,
	Share:    3,
	Work:     write,
	Probe:    Probe{In: history.RegisterInput{Op: history.RegisterGet}, Ask: getRegister},
	Model:    history.Register,
	Workload: "register",
}

func getRegister(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
	r, err := registerpb.NewRegisterServiceClient(conn).Get(ctx, &registerpb.GetRequest{Key: key})
	return Answer{history.RegisterOutput{Told: true, Exists: r.GetExists(), Value: string(r.GetValue()), Version: r.GetVersion(), At: r.GetVersion(), Fence: r.GetFence()},
		r.GetOwner(), r.GetEpoch()}, err
}

// written is what all answers to changes have.
type written interface {
	response
	GetRefusal() registerpb.Refusal
	GetVersion() uint64
	GetCurrent() *registerpb.Register
}

func registerOutput(r written, applied bool, replay history.Replay) history.RegisterOutput {
	c := r.GetCurrent()
	return history.RegisterOutput{Applied: applied, Refusal: history.RegisterRefusal(r.GetRefusal()), Version: r.GetVersion(),
		Told: c != nil, Exists: c.GetExists(), Value: string(c.GetValue()), At: c.GetVersion(), Fence: c.GetFence(), Replay: replay}
}

// write changes a register: mostly by itself, sometimes under its lock.
func write(ctx context.Context, w *Worker, o Object) {
	w.grants++
	in := history.RegisterInput{Op: history.RegisterPut, Value: fmt.Sprint(w.number, "/", w.grants)}
	if w.rng.IntN(3) == 0 {
		in.Fence = uint64(1 + w.rng.IntN(1+w.grants)) // they rise, about
	}
	switch w.rng.IntN(9) {
	case 8:
		watchRegister(ctx, w, o)
	case 0:
		in.Op, in.Value = history.RegisterDelete, ""
		if w.rng.IntN(2) == 0 {
			in.Version = w.seen[o.Key]
		}
		removeRegister(ctx, w, o, in)
	case 1:
		underLock(ctx, w, o, in)
	case 2, 3, 4:
		in.Op, in.Version = history.RegisterCompareAndSet, w.seen[o.Key]
		compareAndSetRegister(ctx, w, o, in)
	default:
		put(ctx, w, o, in)
	}
}

// saw notes the version of a register after a change.
func (w *Worker) saw(o Object, out history.RegisterOutput, ok bool) {
	switch {
	case !ok:
	case out.Told:
		w.seen[o.Key] = out.At
	default:
		w.seen[o.Key] = out.Version
	}
}

func holdOf(in history.RegisterInput) *registerpb.Hold {
	if in.Hold == 0 {
		return nil
	}
	return &registerpb.Hold{Token: in.Hold}
}

func put(ctx context.Context, w *Worker, o Object, in history.RegisterInput) (out history.RegisterOutput, ok bool) {
	to := func(r *registerpb.PutResponse) history.RegisterOutput {
		return registerOutput(r, r.Applied, replayed(r.Replay))
	}
	r, _, ok := do(ctx, w, operation[*registerpb.PutResponse]{
		object: o, in: in, keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*registerpb.PutResponse, error) {
			return registerpb.NewRegisterServiceClient(conn).Put(ctx, &registerpb.PutRequest{Key: o.Key, Value: []byte(in.Value), Fence: in.Fence, Hold: holdOf(in), RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *registerpb.PutResponse) any { return to(r) },
	})
	if ok {
		out = to(r)
	}
	w.saw(o, out, ok)
	return out, ok
}

func compareAndSetRegister(ctx context.Context, w *Worker, o Object, in history.RegisterInput) {
	to := func(r *registerpb.CompareAndSetResponse) history.RegisterOutput {
		return registerOutput(r, r.Applied, replayed(r.Replay))
	}
	r, _, ok := do(ctx, w, operation[*registerpb.CompareAndSetResponse]{
		object: o, in: in, keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*registerpb.CompareAndSetResponse, error) {
			return registerpb.NewRegisterServiceClient(conn).CompareAndSet(ctx, &registerpb.CompareAndSetRequest{Key: o.Key, Value: []byte(in.Value), Version: in.Version, Fence: in.Fence, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *registerpb.CompareAndSetResponse) any { return to(r) },
	})
	if ok {
		w.saw(o, to(r), ok)
	}
}

func removeRegister(ctx context.Context, w *Worker, o Object, in history.RegisterInput) {
	to := func(r *registerpb.DeleteResponse) history.RegisterOutput {
		return registerOutput(r, r.Deleted, replayed(r.Replay))
	}
	r, _, ok := do(ctx, w, operation[*registerpb.DeleteResponse]{
		object: o, in: in, keyed: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (*registerpb.DeleteResponse, error) {
			return registerpb.NewRegisterServiceClient(conn).Delete(ctx, &registerpb.DeleteRequest{Key: o.Key, Version: in.Version, Fence: in.Fence, RequestId: as.id, IdempotencyKey: as.key}, opt)
		},
		output: func(r *registerpb.DeleteResponse) any { return to(r) },
	})
	if !ok {
		return
	}
	if out := to(r); out.Told {
		w.seen[o.Key] = out.At
	} else {
		w.seen[o.Key] = 0 // a worker that goes on by it makes the register, if no other has
	}
}

// underLock takes the lock of the register's key, writes under it, and gives it back; some write
// after their lease is over, which must be refused. The lock has no record: the register's has
// the tokens, whose order is that of the grants.
func underLock(ctx context.Context, w *Worker, o Object, in history.RegisterInput) {
	r, began, ok := quietly(ctx, w, func(ctx context.Context, node lockpb.LockServiceClient) (*lockpb.AcquireResponse, error) {
		return node.Acquire(ctx, &lockpb.AcquireRequest{Key: o.Key, Holder: in.Value, TtlNs: int64(w.cfg.LongestTTL)})
	})
	if !ok || !r.Acquired {
		return
	}
	in.Hold, in.Fence = r.Token, 0
	until := began + w.cfg.Drift.Least(int64(w.cfg.LongestTTL))
	out, ok := put(ctx, w, o, in)
	if ok && out.Refusal == history.HoldOver && !out.Replayed && w.now() < until {
		w.cfg.Log.Unexpected(fmt.Sprintf("a change of %s was refused, for the lock under token %d were over; it is held for %d ns more", o.Key, in.Hold, until-w.now()))
	}
	_, _, released := quietly(ctx, w, func(ctx context.Context, node lockpb.LockServiceClient) (*lockpb.ReleaseResponse, error) {
		return node.Release(ctx, &lockpb.ReleaseRequest{Key: o.Key, Token: in.Hold})
	})
	if !released || w.rng.IntN(2) == 0 {
		return
	}
	w.grants++
	in.Value = fmt.Sprint(w.number, "/", w.grants)
	if out, ok := put(ctx, w, o, in); ok && out.Applied {
		w.cfg.Log.Unexpected(fmt.Sprintf("a change of %s under token %d was applied after the release of the lock", o.Key, in.Hold))
	}
}

// quietly makes one attempt of a call that has no record, and no request id.
func quietly[R any](ctx context.Context, w *Worker, call func(ctx context.Context, node lockpb.LockServiceClient) (R, error)) (r R, began int64, ok bool) {
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Attempt)
	defer cancel()
	began = w.now()
	r, err := call(attempt, lockpb.NewLockServiceClient(w.conns[w.at]))
	return r, began, err == nil
}

// A watch is of so many states at most, and for so long.
const (
	mostStates = 4
	mostWatch  = 500 * time.Millisecond
)

// watchRegister watches a register for a while. Each state that it is told was there at some
// moment since the watch began: a read. They come in order.
func watchRegister(ctx context.Context, w *Worker, o Object) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mostWatch)
	defer cancel()
	var reads []*history.Pending
	for range mostStates {
		reads = append(reads, w.cfg.Recording.calls[o.Kind].Begin(w.number, o.Key, "", history.RegisterInput{Op: history.RegisterGet}))
	}
	last := uint64(0)
	stream, err := registerpb.NewRegisterServiceClient(w.conns[w.at]).Watch(ctx, &registerpb.WatchRequest{Key: o.Key})
	for err == nil && len(reads) > 0 {
		var r *registerpb.WatchResponse
		if r, err = stream.Recv(); err != nil || r.Heartbeat {
			continue
		}
		if r.Version < last {
			w.cfg.Log.Unexpected(fmt.Sprintf("a watch of %s was told version %d after %d", o.Key, r.Version, last))
		}
		last = r.Version
		out := history.RegisterOutput{Told: true, Exists: r.Exists, Value: string(r.Value), Fence: r.Fence}
		if r.Exists {
			out.Version, out.At = r.Version, r.Version
		}
		reads[0].By(r.Owner, r.Epoch)
		reads[0].Answer(out)
		reads = reads[1:]
	}
	for _, p := range reads {
		p.Nothing()
	}
}
