package rpc

import (
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/lock"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

const (
	defaultWaiters = 10   // listed by Inspect when the caller does not say
	maxWaiters     = 1000 // listed at most
)

func holderOf(h hold.Holding) *lockpb.Holder {
	if h.Token == 0 {
		return nil
	}
	return &lockpb.Holder{Id: h.Name, Token: h.Token, HeldNs: h.Age, TtlNs: h.Left, Metadata: h.Metadata, Shared: h.Weight != lock.All, DelayNs: h.Blocked, Session: wireSession(h.Session)}
}

func (s *Server) acquire(f frame, req *lockpb.AcquireRequest, r *lockpb.AcquireResponse) (verdict, error) {
	a, err := s.acquired(f, req)
	if err != nil {
		return verdict{}, err
	}
	r.Acquired, r.Token, r.TtlNs, r.WaitedNs = a.Acquired, a.Token, a.TTL, a.Waited
	r.Holder, r.QueuePosition, r.Waiting = holderOf(a.Holder), uint32(a.Place), a.Waiting
	if a.Acquired {
		r.Shared, r.DelayNs, r.Session = req.Shared || a.Weight == lock.One, req.DelayNs, req.Session
	}
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Acquired}, nil
}

// since is from when an acquire counts its wait: it may have waited for room. One that does not wait
// goes by the look at the clock that its batch has had.
func (s *Server) since(f frame) int64 {
	if f.wait > 0 {
		return s.cfg.Clock.Now()
	}
	return f.now
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
	of, err := sessionOf(req.Session)
	if err != nil {
		return owner.GrantAnswer{}, err
	}
	a, wait, err := s.cfg.Store.Acquire(s.since(f), f.at, f.id, owner.AcquireLock{
		Holder: req.Holder, Shared: req.Shared, TTL: req.TtlNs, Wait: f.wait, Delay: req.DelayNs, Metadata: req.Metadata, Session: of, Keep: req.TicketTtlNs, Token: req.Token,
	})
	return s.ticketed(f, req.TicketTtlNs, a, wait, err)
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
		of, bad := sessionOf(c.Session)
		if bad != nil {
			return verdict{}, bad
		}
		a, err = s.cfg.Store.Reclaim(f.now, f.at, req.Token, req.TtlNs, owner.Claim{
			Holder: c.Holder, Shared: c.Shared, Delay: c.DelayNs, Metadata: c.Metadata, Session: of, Left: c.LeftNs})
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
		r.Waiters = append(r.Waiters, &lockpb.Waiter{Id: p.Name, WaitedNs: p.Waited, Shared: p.Weight != lock.All})
	}
	r.Holding = uint32(a.Holders)
	for _, h := range a.Longest {
		r.Holders = append(r.Holders, holderOf(h))
	}
	return verdict{a.Meta, a.Holding.Token != 0}, nil
}

func (s *Server) verifyLock(f frame, req *lockpb.VerifyRequest, r *lockpb.VerifyResponse) (verdict, error) {
	a, err := s.cfg.Store.VerifyLock(f.now, f.at, req.Token)
	if err != nil {
		return verdict{}, err
	}
	if r.Held, r.Holder = a.OK, holderOf(a.Holding); !a.OK {
		r.Holder = holderOf(a.Holder)
	}
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) updateLock(f frame, req *lockpb.UpdateRequest, r *lockpb.UpdateResponse) (verdict, error) {
	a, err := s.cfg.Store.UpdateLock(f.now, f.at, f.id, req.Token, req.Metadata)
	if err != nil {
		return verdict{}, err
	}
	r.Updated = a.OK
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) downgradeLock(f frame, req *lockpb.DowngradeRequest, r *lockpb.DowngradeResponse) (verdict, error) {
	a, err := s.cfg.Store.DowngradeLock(f.now, f.at, req.Token)
	if err != nil {
		return verdict{}, err
	}
	r.Downgraded = a.OK
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) revokeLock(f frame, req *lockpb.RevokeRequest, r *lockpb.RevokeResponse) (verdict, error) {
	a, err := s.cfg.Store.RevokeLock(f.now, f.at, f.id, req.Token)
	if err != nil {
		return verdict{}, err
	}
	r.Revoked = a.Released
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Released}, nil
}

// holdsAnew reports whether a request asks for what nodes of before LockLevel would not do: they
// do not know these fields, and leave them out.
func holdsAnew(q any) bool {
	switch q := q.(type) {
	case *lockpb.AcquireRequest:
		return q.Shared || q.DelayNs != 0 || q.TicketTtlNs != 0
	case *semaphorepb.AcquireRequest:
		//guard:ticket-level-passed false
		return q.TicketTtlNs != 0
	case *lockpb.RenewRequest:
		return q.Reclaim != nil && (q.Reclaim.Shared || q.Reclaim.DelayNs != 0)
	}
	return false
}
