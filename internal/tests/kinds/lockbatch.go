package kinds

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/internal/rpc"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// One of so many calls on a lock that could go in a batch does.
const batchedOf = 2

// beside are keys of locks that go in batches with others, and that nobody looks at: their owners
// are all nodes, so that parts of a batch fail.
const beside = 16

func (w *Worker) batches() bool { return !w.cfg.Keyless && w.rng.IntN(batchedOf) == 0 }

// neighbour is another item of a batch. It may be held, or be of a node that is gone.
func (w *Worker) neighbour() string { return fmt.Sprint("beside-", w.rng.IntN(beside)) }

// tryOrWait sends an acquire by itself, or, if it does not wait, in a batch.
func tryOrWait(ctx context.Context, w *Worker, conn *grpc.ClientConn, req *lockpb.AcquireRequest, opt grpc.CallOption) (*lockpb.AcquireResponse, error) {
	node := lockpb.NewLockServiceClient(conn)
	if req.WaitNs > 0 || !w.batches() {
		return node.Acquire(ctx, req, opt)
	}
	other := func() *lockpb.AcquireRequest {
		return &lockpb.AcquireRequest{Key: w.neighbour(), Holder: req.Holder, TtlNs: req.TtlNs}
	}
	r, err := node.BatchAcquire(ctx, &lockpb.BatchAcquireRequest{Acquires: []*lockpb.AcquireRequest{other(), req, other()}}, opt)
	if err != nil {
		return nil, err
	}
	if len(r.Results) != 3 {
		return nil, status.Errorf(codes.Internal, "%d results of 3", len(r.Results))
	}
	x := r.Results[1]
	return itemOf(x.Response, x.Error, func(a *lockpb.AcquireResponse) { a.Owner, a.Epoch = decider(r.Deciders, x.Decider) })
}

// release sends a release by itself, or in a batch.
func release(ctx context.Context, w *Worker, conn *grpc.ClientConn, req *lockpb.ReleaseRequest, opt grpc.CallOption) (*lockpb.ReleaseResponse, error) {
	node := lockpb.NewLockServiceClient(conn)
	if !w.batches() {
		return node.Release(ctx, req, opt)
	}
	other := &lockpb.ReleaseRequest{Key: w.neighbour(), Token: req.Token}
	r, err := node.BatchRelease(ctx, &lockpb.BatchReleaseRequest{Releases: []*lockpb.ReleaseRequest{other, req}}, opt)
	if err != nil {
		return nil, err
	}
	if len(r.Results) != 2 {
		return nil, status.Errorf(codes.Internal, "%d results of 2", len(r.Results))
	}
	x := r.Results[1]
	return itemOf(x.Response, x.Error, func(a *lockpb.ReleaseResponse) { a.Owner, a.Epoch = decider(r.Deciders, x.Decider) })
}

// itemOf returns what an item of a batch was told, as if it had gone alone.
func itemOf[A any](a *A, e *commonpb.Error, decided func(*A)) (*A, error) {
	switch {
	case e != nil:
		return nil, rpc.Status(&forward.Remote{Wire: e})
	case a == nil:
		return nil, status.Error(codes.Internal, "an item of a batch has neither an answer nor an error")
	}
	decided(a)
	return a, nil
}

func decider(by []*commonpb.Decider, i uint32) (owner string, epoch uint64) {
	if int(i) >= len(by) {
		return "", 0
	}
	return by[i].Owner, by[i].Epoch
}
