package rpc

import (
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

const (
	defaultWaiters = 10   // listed by Inspect when the caller does not say
	maxWaiters     = 1000 // listed at most
)

func holderOf(h hold.Holding) *lockpb.Holder {
	if h.Token == 0 {
		return nil
	}
	return &lockpb.Holder{Id: h.Name, Token: h.Token, HeldNs: h.Age, TtlNs: h.Left, Metadata: h.Metadata}
}

func (s *Server) acquire(f frame, req *lockpb.AcquireRequest, r *lockpb.AcquireResponse) (verdict, error) {
	a, err := s.acquired(f, req)
	if err != nil {
		return verdict{}, err
	}
	r.Acquired, r.Token, r.TtlNs, r.WaitedNs = a.Acquired, a.Token, a.TTL, a.Waited
	r.Holder, r.QueuePosition = holderOf(a.Holder), uint32(a.Place)
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Acquired}, nil
}

// acquired waits in the queue if it must.
func (s *Server) acquired(f frame, req *lockpb.AcquireRequest) (owner.GrantAnswer, error) {
	//guard:crowd-room
	if f.wait > 0 &&
		!s.cfg.Store.Waits(f.at, f.id) { //guard:crowd-retries
		if err := s.room(f.ctx, req.Key); err != nil {
			return owner.GrantAnswer{}, err
		}
	}
	a, wait, err := s.cfg.Store.Acquire(s.cfg.Clock.Now(), f.at, f.id, owner.AcquireLock{
		Holder: req.Holder, TTL: req.TtlNs, Wait: f.wait, Metadata: req.Metadata,
	})
	return awaited(s, f.ctx, a, wait, err)
}

// ungrant returns the release of a lock that was granted as its caller left. With a request id
// a retry may have been told of the grant, so that it is the retry's.
func ungrant(req *lockpb.AcquireRequest, r *lockpb.AcquireResponse) *forward.Call {
	if !r.Acquired || req.RequestId != nil || keyOf(req) != "" {
		return nil
	}
	return lockRelease.call(&lockpb.ReleaseRequest{Key: req.Key, Name: req.Name, Token: r.Token}, owner.Hash(req.Key))
}

// addWaited adds what a caller had waited before, here and with former owners. A place
// that moved with the lock brought that time along: it must not count twice, for the
// caller takes its lease to begin so long after it sent the call.
func addWaited(r *lockpb.AcquireResponse, before int64, identified bool) {
	switch {
	case !r.Acquired || r.Replay != nil:
	case identified:
		r.WaitedNs = max(r.WaitedNs, before)
	default:
		r.WaitedNs += before
	}
}

func (s *Server) renew(f frame, req *lockpb.RenewRequest, r *lockpb.RenewResponse) (verdict, error) {
	var a owner.RenewAnswer
	var err error
	if c := req.Reclaim; c != nil {
		a, err = s.cfg.Store.Reclaim(f.now, f.at, req.Token, req.TtlNs, owner.Claim{Holder: c.Holder, Metadata: c.Metadata, Left: c.LeftNs})
	} else {
		a, err = s.cfg.Store.Renew(f.now, f.at, req.Token, req.TtlNs)
	}
	if err != nil {
		return verdict{}, err
	}
	r.Renewed, r.TtlNs, r.Holder, r.Reclaimed = a.Renewed, a.TTL, holderOf(a.Holder), a.Reclaimed
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Renewed}, nil
}

func (s *Server) release(f frame, req *lockpb.ReleaseRequest, r *lockpb.ReleaseResponse) (verdict, error) {
	a, err := s.cfg.Store.Release(f.now, f.at, f.id, req.Token)
	if err != nil {
		return verdict{}, err
	}
	r.Released = a.Released
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Released}, nil
}

func (s *Server) inspect(f frame, req *lockpb.InspectRequest, r *lockpb.InspectResponse) (verdict, error) {
	limit := int(min(req.MaxWaiters, maxWaiters))
	if limit == 0 {
		limit = defaultWaiters
	}
	a, err := s.cfg.Store.Inspect(f.now, f.at, limit)
	if err != nil {
		return verdict{}, err
	}
	r.Holder, r.Waiting, r.Epoch, r.Owner, r.LostEpoch = holderOf(a.Holding), uint32(a.Waiting), a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	for _, p := range a.First {
		r.Waiters = append(r.Waiters, &lockpb.Waiter{Id: p.Name, WaitedNs: p.Waited})
	}
	return verdict{a.Meta, a.Holding.Token != 0}, nil
}
