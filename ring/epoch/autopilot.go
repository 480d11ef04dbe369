package epoch

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// MaxVoters is how many nodes vote in raft at most; the others follow.
const MaxVoters = 5

// Timing of the autopilot.
const (
	pilotUpdate    = 250 * time.Millisecond
	pilotReconcile = 500 * time.Millisecond
	pilotStable    = 500 * time.Millisecond // healthy for this long before a server may vote
	pilotContact   = time.Second            // silent for this long = not healthy
	pilotTrailing  = 500                    // entries behind = not healthy
	pilotPrune     = 30 * time.Second       // of leading before servers that gossip does not know are taken out
)

// pilot runs hashicorp's autopilot while this node leads: it decides who votes.
type pilot struct {
	g     *Group
	auto  *autopilot.Autopilot
	leads atomic.Bool
	since atomic.Pointer[time.Time] // it leads
	turn  chan struct{}             // capacity 1: leads has changed
	done  chan struct{}             // closed when run has ended
}

func newPilot(g *Group) *pilot {
	p := &pilot{g: g, turn: make(chan struct{}, 1), done: make(chan struct{})}
	p.since.Store(&time.Time{})
	p.auto = autopilot.New(g.raft, p,
		autopilot.WithLogger(newRaftLog(g.cfg.Log.With("part", "autopilot"))),
		autopilot.WithPromoter(promoter{p}),
		autopilot.WithUpdateInterval(pilotUpdate), autopilot.WithReconcileInterval(pilotReconcile))
	return p
}

// setLeader reports whether this node leads. It does not wait.
func (p *pilot) setLeader(leads bool) {
	if p.leads.Swap(leads) == leads {
		return
	}
	select {
	case p.turn <- struct{}{}:
	default:
	}
}

// run starts and stops the autopilot, which takes its time over both.
func (p *pilot) run() {
	defer close(p.done)
	for running := false; ; {
		select {
		case <-p.turn:
		case <-p.g.halt.Done():
			<-p.auto.Stop()
			return
		}
		switch leads := p.leads.Load(); {
		case leads && !running:
			now := time.Now()
			p.since.Store(&now)
			p.auto.Start(p.g.halt)
			running = true
		case !leads && running:
			<-p.auto.Stop()
			running = false
		}
	}
}

// AutopilotConfig implements autopilot.ApplicationIntegration.
func (p *pilot) AutopilotConfig() *autopilot.Config {
	return &autopilot.Config{
		CleanupDeadServers: true, LastContactThreshold: pilotContact, MaxTrailingLogs: pilotTrailing,
		MinQuorum: 1, ServerStabilizationTime: pilotStable,
	}
}

// NotifyState implements autopilot.ApplicationIntegration.
func (p *pilot) NotifyState(*autopilot.State) {}

// FetchServerStats implements autopilot.ApplicationIntegration.
func (p *pilot) FetchServerStats(ctx context.Context, servers map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	type found struct {
		id    raft.ServerID
		stats *autopilot.ServerStats
	}
	answers := make(chan found, len(servers))
	for id, s := range servers {
		go func() { answers <- found{id, p.stats(ctx, s)} }()
	}
	out := map[raft.ServerID]*autopilot.ServerStats{}
	for range servers {
		if f := <-answers; f.stats != nil {
			out[f.id] = f.stats
		}
	}
	return out
}

func (p *pilot) stats(ctx context.Context, s *autopilot.Server) *autopilot.ServerStats {
	r := p.g.prove()
	if s.ID != p.g.self {
		if s.NodeStatus != autopilot.NodeAlive {
			return nil
		}
		client, err := p.g.peers.client(s.Address)
		if err != nil {
			return nil
		}
		if r, err = client.Prove(ctx, &peerv1.ProveRequest{}); err != nil {
			return nil
		}
	}
	return &autopilot.ServerStats{LastContact: time.Duration(r.LastContactNs), LastTerm: r.LastLogTerm, LastIndex: r.LastIndex}
}

// KnownServers implements autopilot.ApplicationIntegration.
func (p *pilot) KnownServers() map[raft.ServerID]*autopilot.Server {
	out := map[raft.ServerID]*autopilot.Server{}
	add := func(id raft.ServerID, addr string, status autopilot.NodeStatus) {
		out[id] = &autopilot.Server{ID: id, Name: nodeOf(id), Address: joinAddr(id, addr), NodeStatus: status,
			RaftVersion: int(raft.ProtocolVersionMax), IsLeader: id == p.g.self, NodeType: autopilot.NodeVoter}
	}
	t := p.g.Table()
	for _, peer := range p.g.servers() {
		status := autopilot.NodeFailed
		if peer.Alive &&
			peer.reads(t) { //guard:old-never-votes
			status = autopilot.NodeAlive
		}
		add(raft.ServerID(peer.RaftID), peer.RaftAddr, status)
	}
	add(p.g.self, p.g.cfg.RaftAddr, autopilot.NodeAlive)
	return out
}

// RemoveFailedServer implements autopilot.ApplicationIntegration. The promoter
// lets none come here.
func (p *pilot) RemoveFailedServer(*autopilot.Server) {}

// promoter chooses who votes: an odd number, at most MaxVoters, healthy ones
// before dead ones. An even number would need one more for a majority and
// survive no more deaths.
type promoter struct{ p *pilot }

func (promoter) GetServerExt(*autopilot.Config, *autopilot.ServerState) any { return nil }
func (promoter) GetStateExt(*autopilot.Config, *autopilot.State) any        { return nil }
func (promoter) IsPotentialVoter(t autopilot.NodeType) bool                 { return t == autopilot.NodeVoter }

func (promoter) GetNodeTypes(_ *autopilot.Config, s *autopilot.State) map[raft.ServerID]autopilot.NodeType {
	types := map[raft.ServerID]autopilot.NodeType{}
	for id := range s.Servers {
		types[id] = autopilot.NodeVoter
	}
	return types
}

// FilterFailedServerRemovals lets only servers go that gossip has forgotten and
// whose processes are not members, and not while this leader is new.
func (p promoter) FilterFailedServerRemovals(_ *autopilot.Config, _ *autopilot.State, f *autopilot.FailedServers) *autopilot.FailedServers {
	if !p.p.leads.Load() || time.Since(*p.p.since.Load()) < pilotPrune {
		return &autopilot.FailedServers{}
	}
	member := map[raft.ServerID]bool{}
	for _, m := range p.p.g.Table().Members {
		member[raft.ServerID(m.RaftID)] = true
	}
	keep := func(ids []raft.ServerID) []raft.ServerID {
		return slices.DeleteFunc(slices.Clone(ids), func(id raft.ServerID) bool { return member[id] })
	}
	return &autopilot.FailedServers{StaleVoters: keep(f.StaleVoters), StaleNonVoters: keep(f.StaleNonVoters)}
}

// CalculatePromotionsAndDemotions implements autopilot.Promoter.
func (promoter) CalculatePromotionsAndDemotions(c *autopilot.Config, s *autopilot.State) autopilot.RaftChanges {
	var servers []server
	now := time.Now()
	for id, st := range s.Servers {
		servers = append(servers, server{
			id: id, votes: st.HasVotingRights(), leads: id == s.Leader,
			healthy: st.Health.Healthy,
			stable:  st.Health.IsStable(now, s.ServerStabilizationTime(c)),
		})
	}
	up, down := choose(servers)
	return autopilot.RaftChanges{Promotions: up, Demotions: down}
}

// server is what the choice of voters goes by.
type server struct {
	id                            raft.ServerID
	votes, leads, healthy, stable bool
}

// choose returns the servers that are to begin to vote, and those that are to stop.
func choose(servers []server) (up, down []raft.ServerID) {
	slices.SortFunc(servers, func(a, b server) int { return cmp.Compare(a.id, b.id) })
	voters, fit, able := 0, 0, 0 // that vote; that vote and are healthy; that could
	for _, s := range servers {
		if s.votes {
			voters++
		}
		if s.votes && s.healthy {
			fit++
		}
		if s.votes || s.stable {
			able++
		}
	}
	want := min(able, MaxVoters)
	if want%2 == 0 {
		want--
	}
	// Healthy ones replace those that are not.
	for _, s := range servers {
		if !s.votes && s.stable && fit < want {
			up = append(up, s.id)
			fit, voters = fit+1, voters+1
		}
	}
	// Too many: the dead first, then anybody but the leader.
	for _, ofTheDead := range []bool{true, false} {
		for i := len(servers) - 1; i >= 0; i-- {
			s := servers[i]
			if voters > want && s.votes && !s.leads && s.healthy != ofTheDead {
				down = append(down, s.id)
				voters--
			}
		}
	}
	return up, down
}
