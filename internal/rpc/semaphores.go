package rpc

import (
	"cmp"
	"context"
	"time"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

func permitsHolder(h hold.Holding) *semaphorepb.Holder {
	if h.Token == 0 {
		return nil
	}
	return &semaphorepb.Holder{Id: h.Name, Token: h.Token, Permits: h.Weight, HeldNs: h.Age, TtlNs: h.Left, DelayNs: h.Blocked, Metadata: h.Metadata, Session: wireSession(h.Session)}
}

func (s *Server) acquirePermits(f frame, req *semaphorepb.AcquireRequest, r *semaphorepb.AcquireResponse) (verdict, error) {
	//guard:permits-room
	if f.wait > 0 && !s.cfg.Store.Waits(f.at, f.id) {
		if err := s.room(f.ctx, req.Key); err != nil {
			return verdict{}, err
		}
	}
	of, err := sessionOf(req.Session)
	if err != nil {
		return verdict{}, err
	}
	answer, wait, err := s.cfg.Store.AcquirePermits(s.since(f), f.at, f.id, hold.Acquire{
		Name: req.Holder, Weight: cmp.Or(req.Permits, 1), Capacity: req.Capacity, TTL: req.TtlNs, Wait: f.wait, Delay: req.DelayNs, Metadata: req.Metadata, Session: of, Keep: req.TicketTtlNs,
	})
	a, err := s.ticketed(f, req.TicketTtlNs, answer, wait, err)
	if err != nil {
		return verdict{}, err
	}
	r.Acquired, r.Token, r.TtlNs, r.WaitedNs = a.Acquired, a.Token, a.TTL, a.Waited
	r.Capacity, r.Held, r.QueuePosition = a.Capacity, uint32(a.Held), uint32(a.Place)
	r.Waiting = a.Waiting
	if a.Acquired {
		r.Permits, r.Session = cmp.Or(a.Weight, req.Permits, 1), req.Session
	}
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Acquired}, nil
}

// place is a caller in the queue of an object: an owner.Wait.
type place[A any] interface {
	comparable
	Done() <-chan struct{}
	Answer() (A, error)
	Detach(now int64) (granted bool)
	GiveUp(now int64)
}

// awaited returns the answer of an operation that waits in a queue, if it must. When the
// caller leaves, the place is left and a grant that comes at that moment is given back. When
// only the way to the caller ends, because a node stops or a stream breaks, a place with a
// request id is kept.
func awaited[A any, W place[A]](s *Server, ctx context.Context, a A, wait W, err error) (A, error) {
	var none W
	var nothing A
	if err != nil || wait == none {
		return a, err
	}
	select {
	case <-wait.Done():
	case <-ctx.Done():
	case <-s.stopping:
		if wait.Detach(s.cfg.Clock.Now()) {
			return wait.Answer() // the caller is there to hear it
		}
		return nothing, errStopping
	}
	if ctx.Err() == nil {
		return wait.Answer()
	}
	//guard:way-of-caller true
	if context.Cause(ctx) != forward.ErrWayEnded {
		wait.GiveUp(s.cfg.Clock.Now())
	} else if wait.Detach(s.cfg.Clock.Now()) {
		// It was granted what it waited for and may not have heard of it. Its retry will.
		time.AfterFunc(time.Duration(owner.OwnGrace), func() { wait.GiveUp(s.cfg.Clock.Now()) })
	}
	return nothing, gaveUp(ctx)
}

// ticketed is awaited of a call that may have a ticket: its place stands when its wait is over.
func (s *Server) ticketed(f frame, ticket int64, a owner.GrantAnswer, wait *owner.Wait[owner.GrantAnswer], err error) (owner.GrantAnswer, error) {
	if err != nil || wait == nil || ticket == 0 {
		return awaited(s, f.ctx, a, wait, err)
	}
	over := time.NewTimer(time.Duration(f.wait))
	defer over.Stop()
	select {
	//guard:ticket-parks
	case <-over.C:
		return owner.Park(wait, s.cfg.Clock.Now())
	case <-wait.Done():
	case <-f.ctx.Done():
	case <-s.stopping:
	}
	return awaited(s, f.ctx, a, wait, nil)
}

// ungrantPermits returns the release of permits that were granted as their caller left: see
// ungrant.
func ungrantPermits(req *semaphorepb.AcquireRequest, r *semaphorepb.AcquireResponse) *forward.Call {
	if !r.Acquired || req.RequestId != nil || keyOf(req) != "" {
		return nil
	}
	return semaphoreRelease.call(&semaphorepb.ReleaseRequest{Key: req.Key, Name: req.Name, Token: r.Token}, owner.Hash(req.Key))
}

// addPermitsWaited is addWaited of permits.
func addPermitsWaited(r *semaphorepb.AcquireResponse, before int64, identified bool) {
	switch {
	case !r.Acquired || r.Replay != nil:
	case identified:
		r.WaitedNs = max(r.WaitedNs, before)
	default:
		r.WaitedNs += before
	}
}

func (s *Server) renewPermits(f frame, req *semaphorepb.RenewRequest, r *semaphorepb.RenewResponse) (verdict, error) {
	var a owner.HeldAnswer
	var err error
	if c := req.Reclaim; c != nil {
		of, bad := sessionOf(c.Session)
		if bad != nil {
			return verdict{}, bad
		}
		a, err = s.cfg.Store.ReclaimPermits(f.now, f.at, req.Token, req.TtlNs, owner.HoldClaim{
			Holder: c.Holder, Weight: cmp.Or(c.Permits, 1), Capacity: c.Capacity, Delay: c.DelayNs, Metadata: c.Metadata, Session: of, Left: c.LeftNs})
	} else {
		a, err = s.cfg.Store.RenewPermits(f.now, f.at, req.Token, req.TtlNs)
	}
	if err != nil {
		return verdict{}, err
	}
	r.Renewed, r.Reclaimed, r.TtlNs = a.OK, a.Reclaimed, a.Holding.Left
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) releasePermits(f frame, req *semaphorepb.ReleaseRequest, r *semaphorepb.ReleaseResponse) (verdict, error) {
	a, err := s.cfg.Store.ReleasePermits(f.now, f.at, f.id, req.Token)
	if err != nil {
		return verdict{}, err
	}
	r.Released = a.Released
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Released}, nil
}

func (s *Server) revokePermits(f frame, req *semaphorepb.RevokeRequest, r *semaphorepb.RevokeResponse) (verdict, error) {
	a, err := s.cfg.Store.RevokePermits(f.now, f.at, f.id, req.Token)
	if err != nil {
		return verdict{}, err
	}
	r.Revoked = a.Released
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Released}, nil
}

func (s *Server) verifyPermits(f frame, req *semaphorepb.VerifyRequest, r *semaphorepb.VerifyResponse) (verdict, error) {
	a, err := s.cfg.Store.VerifyPermits(f.now, f.at, req.Token)
	if err != nil {
		return verdict{}, err
	}
	r.Held, r.Holder = a.OK, permitsHolder(a.Holding)
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) updatePermits(f frame, req *semaphorepb.UpdateRequest, r *semaphorepb.UpdateResponse) (verdict, error) {
	a, err := s.cfg.Store.UpdatePermits(f.now, f.at, f.id, req.Token, req.Metadata)
	if err != nil {
		return verdict{}, err
	}
	r.Updated = a.OK
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) downgradePermits(f frame, req *semaphorepb.DowngradeRequest, r *semaphorepb.DowngradeResponse) (verdict, error) {
	a, err := s.cfg.Store.DowngradePermits(f.now, f.at, req.Token, req.Permits)
	if err != nil {
		return verdict{}, err
	}
	r.Downgraded, r.Permits = a.OK, a.Holding.Weight
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) setCapacity(f frame, req *semaphorepb.SetCapacityRequest, r *semaphorepb.SetCapacityResponse) (verdict, error) {
	a, err := s.cfg.Store.SetCapacity(f.now, f.at, f.id, req.Capacity)
	if err != nil {
		return verdict{}, err
	}
	r.Capacity, r.Held = a.Capacity, uint32(a.Held+a.Blocked)
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, true}, nil
}

func (s *Server) inspectSemaphore(f frame, req *semaphorepb.InspectRequest, r *semaphorepb.InspectResponse) (verdict, error) {
	limit := int(min(req.MaxListed, maxWaiters))
	if limit == 0 {
		limit = defaultWaiters
	}
	a, err := s.cfg.Store.InspectSemaphore(f.now, f.at, limit)
	if err != nil {
		return verdict{}, err
	}
	r.Capacity, r.CapacitySet, r.Held, r.Delayed = a.Capacity, a.Fixed, uint32(a.Held), uint32(a.Blocked)
	r.Holding, r.Waiting = uint32(a.Holders), uint32(a.Waiting)
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	for _, h := range a.Longest {
		r.Holders = append(r.Holders, permitsHolder(h))
	}
	for _, p := range a.First {
		r.Waiters = append(r.Waiters, &semaphorepb.Waiter{Id: p.Name, Permits: p.Weight, WaitedNs: p.Waited})
	}
	return verdict{a.Meta, a.Holders > 0}, nil
}
