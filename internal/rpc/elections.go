package rpc

import (
	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	electionpb "github.com/keystead/keystead/proto/keystead/election/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// leaderOf returns a term that is in force; nil for one that is not.
func leaderOf(h hold.Holding) *electionpb.Leader {
	if h.Token == 0 || h.Left == 0 {
		return nil
	}
	return &electionpb.Leader{Candidate: h.Name, Token: h.Token, Value: h.Metadata, LedNs: h.Age, TtlNs: h.Left, Session: wireSession(h.Session)}
}

func (s *Server) campaign(f frame, req *electionpb.CampaignRequest, r *electionpb.CampaignResponse) (verdict, error) {
	if f.wait > 0 && !s.cfg.Store.Waits(f.at, f.id) {
		if err := s.room(f.ctx, req.Key); err != nil {
			return verdict{}, err
		}
	}
	of, err := sessionOf(req.Session)
	if err != nil {
		return verdict{}, err
	}
	answer, wait, err := s.cfg.Store.Campaign(s.cfg.Clock.Now(), f.at, f.id, owner.Campaign{
		Candidate: req.Candidate, Value: req.Value, TTL: req.TtlNs, Wait: f.wait, Delay: req.DelayNs, Session: of,
	})
	a, err := awaited(s, f.ctx, answer, wait, err)
	if err != nil {
		return verdict{}, err
	}
	r.Elected, r.Token, r.TtlNs, r.WaitedNs = a.Acquired, a.Token, a.TTL, a.Waited
	r.Leader, r.QueuePosition = leaderOf(a.Holder), uint32(a.Place)
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Acquired}, nil
}

// unelect returns the Resign of a term that began as its candidate left: see ungrant.
func unelect(req *electionpb.CampaignRequest, r *electionpb.CampaignResponse) *forward.Call {
	if !r.Elected || req.RequestId != nil || keyOf(req) != "" {
		return nil
	}
	return electionResign.call(&electionpb.ResignRequest{Key: req.Key, Name: req.Name, Token: r.Token}, owner.Hash(req.Key))
}

// addLineWaited is addWaited of elections.
func addLineWaited(r *electionpb.CampaignResponse, before int64, identified bool) {
	switch {
	case !r.Elected || r.Replay != nil:
	case identified:
		r.WaitedNs = max(r.WaitedNs, before)
	default:
		r.WaitedNs += before
	}
}

func (s *Server) renewLeader(f frame, req *electionpb.RenewRequest, r *electionpb.RenewResponse) (verdict, error) {
	var a owner.HeldAnswer
	var err error
	if c := req.Reclaim; c != nil {
		of, bad := sessionOf(c.Session)
		if bad != nil {
			return verdict{}, bad
		}
		a, err = s.cfg.Store.ReclaimLeader(f.now, f.at, req.Token, req.TtlNs, owner.LeaderClaim{Candidate: c.Candidate, Value: c.Value, Delay: c.DelayNs, Session: of, Left: c.LeftNs})
	} else {
		a, err = s.cfg.Store.RenewLeader(f.now, f.at, req.Token, req.TtlNs)
	}
	if err != nil {
		return verdict{}, err
	}
	r.Renewed, r.Reclaimed, r.TtlNs = a.OK, a.Reclaimed, a.Holding.Left
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) proclaim(f frame, req *electionpb.ProclaimRequest, r *electionpb.ProclaimResponse) (verdict, error) {
	a, err := s.cfg.Store.Proclaim(f.now, f.at, f.id, req.Token, req.Value)
	if err != nil {
		return verdict{}, err
	}
	r.Proclaimed = a.OK
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) resign(f frame, req *electionpb.ResignRequest, r *electionpb.ResignResponse) (verdict, error) {
	a, err := s.cfg.Store.Resign(f.now, f.at, f.id, req.Token)
	if err != nil {
		return verdict{}, err
	}
	r.Resigned = a.Released
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Released}, nil
}

func (s *Server) revokeLeader(f frame, req *electionpb.RevokeRequest, r *electionpb.RevokeResponse) (verdict, error) {
	a, err := s.cfg.Store.RevokeLeader(f.now, f.at, f.id, req.Token)
	if err != nil {
		return verdict{}, err
	}
	r.Revoked = a.Released
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Released}, nil
}

func (s *Server) verifyLeader(f frame, req *electionpb.VerifyRequest, r *electionpb.VerifyResponse) (verdict, error) {
	a, err := s.cfg.Store.VerifyLeader(f.now, f.at, req.Token)
	if err != nil {
		return verdict{}, err
	}
	r.Leads, r.Leader = a.OK, leaderOf(a.Holding)
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) inspectElection(f frame, req *electionpb.InspectRequest, r *electionpb.InspectResponse) (verdict, error) {
	limit := int(min(req.MaxListed, maxWaiters))
	if limit == 0 {
		limit = defaultWaiters
	}
	a, err := s.cfg.Store.InspectElection(f.now, f.at, limit)
	if err != nil {
		return verdict{}, err
	}
	for _, h := range a.Longest { // one at most
		r.Leader, r.DelayNs = leaderOf(h), h.Blocked
	}
	r.Waiting = uint32(a.Waiting)
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	for _, p := range a.First {
		r.Candidates = append(r.Candidates, &electionpb.Candidate{Id: p.Name, WaitedNs: p.Waited})
	}
	return verdict{a.Meta, r.Leader != nil}, nil
}

// elections is what the ElectionService has beside the table of operations: observers.
type elections struct {
	electionpb.UnimplementedElectionServiceServer
	watches[electionpb.ObserveResponse, *electionpb.ObserveResponse]
}

func newElections(s *Server) *elections {
	e := &elections{}
	e.s, e.await, e.sight, e.whole = s, electionAwait, sightOfElection, wholeElection
	return e
}

// wholeElection returns an answer with the leader, who is that of the one before it if it says that
// nothing is new.
func wholeElection(before, a *electionpb.ObserveResponse) *electionpb.ObserveResponse {
	if a.Heartbeat {
		a.Heartbeat, a.Leader, a.Version = false, before.Leader, before.Version
	}
	return a
}

// sightOfElection returns what an answer shows.
func sightOfElection(a *electionpb.ObserveResponse) owner.Seen {
	return owner.Seen{Position: a.Version, Exists: a.Leader != nil, Unknown: a.Leader == nil && a.LostEpoch != 0}
}

// awaitElection answers when who leads is news to a node, or its wait is over.
func (s *Server) awaitElection(f frame, q *peerv1.AwaitRequest, r *electionpb.ObserveResponse) (verdict, error) {
	var a owner.HoldSight
	news, err := s.awaitNews(f, func(now int64) (changed <-chan struct{}, due int64, err error) {
		a, changed, err = s.cfg.Store.AwaitElection(now, f.at, seenOf(q.Seen))
		return changed, a.Due, err
	})
	if err != nil {
		return verdict{}, err
	}
	for _, h := range a.Holders { // one at most
		r.Leader = &electionpb.Leader{Candidate: h.Name, Token: h.Token, Value: h.Metadata}
	}
	r.Heartbeat, r.Version, r.StaleAfterNs = !news, a.Seen.Position, int64(watchStale)
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, news}, nil
}

// Observe implements the service.
func (e *elections) Observe(q *electionpb.ObserveRequest, stream grpc.ServerStreamingServer[electionpb.ObserveResponse]) error {
	return e.follow(stream.Context(), q.Key, q.Name, q.AfterVersion, func(a *electionpb.ObserveResponse, news bool) error {
		if news {
			return stream.Send(a)
		}
		return stream.Send(&electionpb.ObserveResponse{Heartbeat: true, Epoch: a.Epoch, Owner: a.Owner, LostEpoch: a.LostEpoch, StaleAfterNs: a.StaleAfterNs})
	})
}
