package rpc

import (
	"context"

	"github.com/keystead/keystead/internal/failure"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// tries returns the error of an item that would wait in a queue: all others of its batch would
// wait with it, and those that were granted something would not hear of it meanwhile.
func tries[Q any, PQ interface {
	*Q
	patient
}](q *Q) error {
	//guard:batch-tries
	if PQ(q).GetWaitNs() != 0 {
		return &failure.Error{Reason: failure.Invalid, Field: "wait_ns", Message: "is not 0: an item of a batch does not wait",
			Hint: "try again later, or send an Acquire of its own that waits"}
	}
	return nil
}

// BatchAcquire implements the service.
func (l *locks) BatchAcquire(ctx context.Context, req *lockpb.BatchAcquireRequest) (*lockpb.BatchAcquireResponse, error) {
	var by deciders
	results, err := batch(ctx, l.s, lockAcquire, req.Acquires, tries, func(r *lockpb.AcquireResult, a *lockpb.AcquireResponse, w *commonpb.Error) {
		if r.Response, r.Error = a, w; a != nil {
			r.Decider = by.move(&a.Owner, &a.Epoch)
			//guard:batch-answer-fits
			if a.Holder != nil {
				a.Holder.Metadata = nil // 10,000 of them would be more than callers accept
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return &lockpb.BatchAcquireResponse{Results: results, Deciders: by.list}, nil
}

// BatchRelease implements the service.
func (l *locks) BatchRelease(ctx context.Context, req *lockpb.BatchReleaseRequest) (*lockpb.BatchReleaseResponse, error) {
	var by deciders
	results, err := batch(ctx, l.s, lockRelease, req.Releases, nil, func(r *lockpb.ReleaseResult, a *lockpb.ReleaseResponse, w *commonpb.Error) {
		if r.Response, r.Error = a, w; a != nil {
			r.Decider = by.move(&a.Owner, &a.Epoch)
		}
	})
	if err != nil {
		return nil, err
	}
	return &lockpb.BatchReleaseResponse{Results: results, Deciders: by.list}, nil
}

// BatchAcquire implements the service.
func (p *semaphores) BatchAcquire(ctx context.Context, req *semaphorepb.BatchAcquireRequest) (*semaphorepb.BatchAcquireResponse, error) {
	var by deciders
	results, err := batch(ctx, p.s, semaphoreAcquire, req.Acquires, tries, func(r *semaphorepb.AcquireResult, a *semaphorepb.AcquireResponse, w *commonpb.Error) {
		if r.Response, r.Error = a, w; a != nil {
			r.Decider = by.move(&a.Owner, &a.Epoch)
		}
	})
	if err != nil {
		return nil, err
	}
	return &semaphorepb.BatchAcquireResponse{Results: results, Deciders: by.list}, nil
}

// BatchRelease implements the service.
func (p *semaphores) BatchRelease(ctx context.Context, req *semaphorepb.BatchReleaseRequest) (*semaphorepb.BatchReleaseResponse, error) {
	var by deciders
	results, err := batch(ctx, p.s, semaphoreRelease, req.Releases, nil, func(r *semaphorepb.ReleaseResult, a *semaphorepb.ReleaseResponse, w *commonpb.Error) {
		if r.Response, r.Error = a, w; a != nil {
			r.Decider = by.move(&a.Owner, &a.Epoch)
		}
	})
	if err != nil {
		return nil, err
	}
	return &semaphorepb.BatchReleaseResponse{Results: results, Deciders: by.list}, nil
}
