package rpc

import (
	"context"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/lock"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// locks is the LockService.
type locks struct {
	pb.UnimplementedLockServiceServer
	s *Server
}

const (
	defaultWaiters = 10   // listed by Inspect when the caller does not say
	maxWaiters     = 1000 // listed at most
)

func lockRef(key, name string) owner.Ref { return ref(key, name, "lock") }

func holderOf(h lock.Holding) *pb.Holder {
	if h.Token == 0 {
		return nil
	}
	return &pb.Holder{Holder: h.Holder, Token: h.Token, HeldNs: h.Age, TtlNs: h.Left, Metadata: h.Metadata}
}

func (l *locks) Acquire(ctx context.Context, req *pb.AcquireRequest) (*pb.AcquireResponse, error) {
	began := time.Now()
	r, err := l.decideAcquire(ctx, req, nil)
	if err != nil && l.s.elsewhere(err) {
		a, err := l.s.forward(ctx, &peerv1.ForwardCall{Call: &peerv1.ForwardCall_Acquire{Acquire: req}}, began)
		return a.GetAcquire(), err
	}
	return r, Status(err)
}

func (l *locks) decideAcquire(ctx context.Context, req *pb.AcquireRequest, later *promises) (*pb.AcquireResponse, error) {
	a, err := l.acquire(ctx, req)
	err = one(l.s, later, &l.s.cfg.Metrics.ops[opAcquire], &a,
		func(a *owner.AcquireAnswer) owner.Meta { return a.Meta },
		func(a *owner.AcquireAnswer) bool { return a.Acquired }, err)
	if err != nil {
		return nil, err
	}
	return &pb.AcquireResponse{
		Acquired: a.Acquired, Token: a.Token, TtlNs: a.TTL, WaitedNs: a.Waited,
		Holder: holderOf(a.Holder), Place: uint32(a.Place), Epoch: a.Permit.Epoch, Replay: replayOf(a.Meta), Owner: l.s.cfg.Node, LostEpoch: a.Permit.LostEpoch(),
	}, nil
}

// acquire waits in the queue if it must. When the caller leaves, the place is left
// and a grant that comes at that moment is given back. When only the way to the caller
// ends, because a node stops or a stream breaks, a place with a request id is kept.
func (l *locks) acquire(ctx context.Context, req *pb.AcquireRequest) (owner.AcquireAnswer, error) {
	id, err := requestID(req.RequestId)
	//guard:crowd-room
	if err == nil && req.WaitNs > 0 &&
		!l.s.cfg.Store.Waits(lockRef(req.Key, req.Name), id) { //guard:crowd-retries
		err = l.s.room(ctx, req.Key)
	}
	if err != nil {
		return owner.AcquireAnswer{}, err
	}
	a, wait, err := l.s.cfg.Store.Acquire(l.s.cfg.Clock.Now(), lockRef(req.Key, req.Name), id, lock.Acquire{
		Holder: req.Holder, TTL: req.TtlNs, Wait: req.WaitNs, Metadata: req.Metadata,
	})
	if err != nil || wait == nil {
		return a, err
	}
	select {
	case <-wait.Done():
	case <-ctx.Done():
	case <-l.s.stopping:
		if wait.Detach(l.s.cfg.Clock.Now()) {
			return wait.Answer() // the caller is there to hear it
		}
		return owner.AcquireAnswer{}, errStopping
	}
	if ctx.Err() == nil {
		return wait.Answer()
	}
	//guard:way-of-caller true
	if context.Cause(ctx) != errWayEnded {
		wait.GiveUp(l.s.cfg.Clock.Now())
	} else if wait.Detach(l.s.cfg.Clock.Now()) {
		// It was granted the lock and may not have heard of it. Its retry will.
		time.AfterFunc(time.Duration(owner.OwnGrace), func() { wait.GiveUp(l.s.cfg.Clock.Now()) })
	}
	return owner.AcquireAnswer{}, gaveUp(ctx)
}

func (l *locks) Renew(ctx context.Context, req *pb.RenewRequest) (*pb.RenewResponse, error) {
	r, err := l.decideRenew(req, nil)
	if err != nil && l.s.elsewhere(err) {
		a, err := l.s.forward(ctx, &peerv1.ForwardCall{Call: &peerv1.ForwardCall_Renew{Renew: req}}, time.Now())
		return a.GetRenew(), err
	}
	return r, Status(err)
}

func (l *locks) decideRenew(req *pb.RenewRequest, later *promises) (*pb.RenewResponse, error) {
	a, err := l.renew(req)
	err = one(l.s, later, &l.s.cfg.Metrics.ops[opRenew], &a,
		func(a *owner.RenewAnswer) owner.Meta { return a.Meta },
		func(a *owner.RenewAnswer) bool { return a.Renewed }, err)
	if err != nil {
		return nil, err
	}
	return &pb.RenewResponse{Renewed: a.Renewed, TtlNs: a.TTL, Holder: holderOf(a.Holder), Epoch: a.Permit.Epoch, Owner: l.s.cfg.Node,
		Reclaimed: a.Reclaimed, LostEpoch: a.Permit.LostEpoch()}, nil
}

func (l *locks) renew(req *pb.RenewRequest) (owner.RenewAnswer, error) {
	now, at := l.s.cfg.Clock.Now(), lockRef(req.Key, req.Name)
	if c := req.Reclaim; c != nil {
		return l.s.cfg.Store.Reclaim(now, at, req.Token, req.TtlNs, owner.Claim{Holder: c.Holder, Metadata: c.Metadata, Left: c.LeftNs})
	}
	return l.s.cfg.Store.Renew(now, at, req.Token, req.TtlNs)
}

func (l *locks) Release(ctx context.Context, req *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	r, err := l.decideRelease(req, nil)
	if err != nil && l.s.elsewhere(err) {
		a, err := l.s.forward(ctx, &peerv1.ForwardCall{Call: &peerv1.ForwardCall_Release{Release: req}}, time.Now())
		return a.GetRelease(), err
	}
	return r, Status(err)
}

func (l *locks) decideRelease(req *pb.ReleaseRequest, later *promises) (*pb.ReleaseResponse, error) {
	id, err := requestID(req.RequestId)
	var a owner.ReleaseAnswer
	if err == nil {
		a, err = l.s.cfg.Store.Release(l.s.cfg.Clock.Now(), lockRef(req.Key, req.Name), id, req.Token)
	}
	err = one(l.s, later, &l.s.cfg.Metrics.ops[opRelease], &a,
		func(a *owner.ReleaseAnswer) owner.Meta { return a.Meta },
		func(a *owner.ReleaseAnswer) bool { return a.Released }, err)
	if err != nil {
		return nil, err
	}
	return &pb.ReleaseResponse{Released: a.Released, Epoch: a.Permit.Epoch, Replay: replayOf(a.Meta), Owner: l.s.cfg.Node, LostEpoch: a.Permit.LostEpoch()}, nil
}

func (l *locks) Inspect(ctx context.Context, req *pb.InspectRequest) (*pb.InspectResponse, error) {
	r, err := l.decideInspect(req, nil)
	if err != nil && l.s.elsewhere(err) {
		a, err := l.s.forward(ctx, &peerv1.ForwardCall{Call: &peerv1.ForwardCall_Inspect{Inspect: req}}, time.Now())
		return a.GetInspect(), err
	}
	return r, Status(err)
}

func (l *locks) decideInspect(req *pb.InspectRequest, later *promises) (*pb.InspectResponse, error) {
	limit := int(min(req.MaxWaiters, maxWaiters))
	if limit == 0 {
		limit = defaultWaiters
	}
	a, err := l.s.cfg.Store.Inspect(l.s.cfg.Clock.Now(), lockRef(req.Key, req.Name), limit)
	err = one(l.s, later, &l.s.cfg.Metrics.ops[opInspect], &a,
		func(a *owner.InspectAnswer) owner.Meta { return a.Meta },
		func(a *owner.InspectAnswer) bool { return a.Holding.Token != 0 }, err)
	if err != nil {
		return nil, err
	}
	resp := &pb.InspectResponse{Holder: holderOf(a.Holding), Waiting: uint32(a.Waiting), Epoch: a.Permit.Epoch, Owner: l.s.cfg.Node, LostEpoch: a.Permit.LostEpoch()}
	for _, p := range a.First {
		resp.Waiters = append(resp.Waiters, &pb.Waiter{Holder: p.Holder, WaitedNs: p.Waited})
	}
	return resp, nil
}
