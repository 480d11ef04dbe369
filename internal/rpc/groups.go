package rpc

import (
	"google.golang.org/grpc"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	grouppb "github.com/keystead/keystead/proto/keystead/group/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

func (s *Server) join(f frame, req *grouppb.JoinRequest, r *grouppb.JoinResponse) (verdict, error) {
	of, err := sessionOf(req.Session)
	if err != nil {
		return verdict{}, err
	}
	a, err := s.cfg.Store.JoinGroup(f.now, f.at, f.id, owner.JoinGroup{ID: req.Id, Metadata: req.Metadata, TTL: req.TtlNs, After: req.AfterToken, Session: of})
	if err != nil {
		return verdict{}, err
	}
	r.Joined, r.Token, r.TtlNs, r.LaterToken = a.Joined, a.Token, a.TTL, a.Later
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Joined}, nil
}

func (s *Server) renewMember(f frame, req *grouppb.RenewRequest, r *grouppb.RenewResponse) (verdict, error) {
	var a owner.HeldAnswer
	var err error
	if c := req.Reclaim; c != nil {
		of, bad := sessionOf(c.Session)
		if bad != nil {
			return verdict{}, bad
		}
		a, err = s.cfg.Store.ReclaimMember(f.now, f.at, req.Token, req.TtlNs, owner.MemberClaim{ID: c.Id, Metadata: c.Metadata, Session: of, Left: c.LeftNs})
	} else {
		a, err = s.cfg.Store.RenewMember(f.now, f.at, req.Token, req.TtlNs)
	}
	if err != nil {
		return verdict{}, err
	}
	r.Renewed, r.Reclaimed, r.TtlNs = a.OK, a.Reclaimed, a.Holding.Left
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) updateMember(f frame, req *grouppb.UpdateRequest, r *grouppb.UpdateResponse) (verdict, error) {
	a, err := s.cfg.Store.UpdateMember(f.now, f.at, f.id, req.Token, req.Metadata)
	if err != nil {
		return verdict{}, err
	}
	r.Updated = a.OK
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

func (s *Server) leaveGroup(f frame, req *grouppb.LeaveRequest, r *grouppb.LeaveResponse) (verdict, error) {
	a, err := s.cfg.Store.Leave(f.now, f.at, f.id, req.Token)
	if err != nil {
		return verdict{}, err
	}
	r.Left = a.Released
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Released}, nil
}

func (s *Server) verifyMember(f frame, req *grouppb.VerifyRequest, r *grouppb.VerifyResponse) (verdict, error) {
	a, err := s.cfg.Store.VerifyMember(f.now, f.at, req.Token)
	if err != nil {
		return verdict{}, err
	}
	if r.Member = a.OK; a.OK {
		r.Membership = membersOf([]hold.Holding{a.Holding}, true)[0]
	}
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.OK}, nil
}

// membersOf returns the members of a group; with what goes on with time, if it is asked for.
func membersOf(holders []hold.Holding, timed bool) (all []*grouppb.Member) {
	if len(holders) == 0 {
		return nil
	}
	room := make([]grouppb.Member, len(holders))
	all = make([]*grouppb.Member, len(holders))
	for i := range holders {
		h, m := &holders[i], &room[i]
		m.Id, m.Token, m.Metadata = h.Name, h.Token, h.Metadata
		if timed {
			m.JoinedNs, m.TtlNs, m.Session = h.Age, h.Left, wireSession(h.Session)
		}
		all[i] = m
	}
	return all
}

func (s *Server) listGroup(f frame, _ *grouppb.ListRequest, r *grouppb.ListResponse) (verdict, error) {
	a, _, err := s.cfg.Store.AwaitGroup(f.now, f.at, owner.Seen{})
	if err != nil {
		return verdict{}, err
	}
	r.Members, r.Version = membersOf(a.Holders, true), a.Seen.Position
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, len(a.Holders) > 0}, nil
}

// groups is what the GroupService has beside the table of operations: watches.
type groups struct {
	grouppb.UnimplementedGroupServiceServer
	watches[grouppb.WatchResponse, *grouppb.WatchResponse]
}

func newGroups(s *Server) *groups {
	g := &groups{}
	g.s, g.await, g.sight, g.whole = s, groupAwait, sightOfGroup, wholeGroup
	return g
}

// wholeGroup returns an answer with its members, which are those of the one before it if it says
// that nothing is new.
func wholeGroup(before, a *grouppb.WatchResponse) *grouppb.WatchResponse {
	if a.Heartbeat {
		a.Heartbeat, a.Members, a.Version = false, before.Members, before.Version
	}
	return a
}

// sightOfGroup returns what an answer shows.
func sightOfGroup(a *grouppb.WatchResponse) owner.Seen {
	return owner.Seen{Position: a.Version, Exists: len(a.Members) > 0, Unknown: len(a.Members) == 0 && a.LostEpoch != 0}
}

// awaitGroup answers when the members of a group are news to a node, or its wait is over. All
// of them are sent only if they are.
func (s *Server) awaitGroup(f frame, q *peerv1.AwaitRequest, r *grouppb.WatchResponse) (verdict, error) {
	var a owner.HoldSight
	news, err := s.awaitNews(f, func(now int64) (changed <-chan struct{}, due int64, err error) {
		a, changed, err = s.cfg.Store.AwaitGroup(now, f.at, seenOf(q.Seen))
		return changed, a.Due, err
	})
	if err != nil {
		return verdict{}, err
	}
	r.Members, r.Heartbeat = membersOf(a.Holders, false), !news
	r.Version, r.StaleAfterNs = a.Seen.Position, int64(watchStale)
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, news}, nil
}

// Watch implements the service.
func (g *groups) Watch(q *grouppb.WatchRequest, stream grpc.ServerStreamingServer[grouppb.WatchResponse]) error {
	return g.follow(stream.Context(), q.Key, q.Name, q.AfterVersion, func(a *grouppb.WatchResponse, news bool) error {
		if news {
			return stream.Send(a)
		}
		return stream.Send(&grouppb.WatchResponse{Heartbeat: true, Epoch: a.Epoch, Owner: a.Owner, LostEpoch: a.LostEpoch, StaleAfterNs: a.StaleAfterNs})
	})
}
