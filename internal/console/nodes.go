package console

import (
	"cmp"
	"fmt"
	"strings"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// hues is how many colours members have: those of the style, c0, c1, ….
const hues = 8

// member is a node in the table of members.
type member struct {
	ID, Marks           string // marks: this node, leads
	Hue                 string // class of its colour
	Phase, Gossip, Raft string
	PhaseState          string // warn or bad if the phase is not well, likewise:
	GossipState         string
	Share               string
	ShareWidth          float64 // of a bar of 100
	Rows, Standby       string
	Addr, Version       string
}

// arc is the part of the ring that a member owns, of a circle of 100.
type arc struct {
	Hue         string
	Title       string
	Long, Start float64
}

// Dashes is the arc as a pattern of dashes.
func (a arc) Dashes() string { return fmt.Sprintf("%.2f %.2f", max(a.Long-arcGap, 0.1), 100.0) }

// Offset is where the pattern begins.
func (a arc) Offset() string { return fmt.Sprintf("%.2f", -a.Start) }

// arcGap is left between two arcs.
const arcGap = 0.5

var (
	phases = map[clusterpb.Phase]string{
		clusterpb.Phase_PHASE_JOINING: "joining", clusterpb.Phase_PHASE_ACTIVE: "active",
		clusterpb.Phase_PHASE_LEAVING: "leaving", clusterpb.Phase_PHASE_DRAINED: "drained",
	}
	gossips = map[clusterpb.Gossip]string{
		clusterpb.Gossip_GOSSIP_ALIVE: "alive", clusterpb.Gossip_GOSSIP_FAILED: "failed",
		clusterpb.Gossip_GOSSIP_LEAVING: "leaving", clusterpb.Gossip_GOSSIP_LEFT: "left",
	}
	rafts = map[clusterpb.Raft]string{
		clusterpb.Raft_RAFT_LEADER: "leader", clusterpb.Raft_RAFT_VOTER: "voter", clusterpb.Raft_RAFT_NONVOTER: "nonvoter",
	}
)

// none is what is written where there is nothing.
const none = "–"

// ofMembers fills in the table of members, and the ring.
func (v *view) ofMembers(st *clusterpb.GetStatusResponse, members []*clusterpb.MemberStatus) {
	shown := members[:min(len(members), maxMembers)]
	v.MembersMore = len(members) - len(shown)
	start := 0.0
	for i, m := range shown {
		x := member{
			ID: printable(m.Id), Hue: fmt.Sprintf("c%d", i%hues), Phase: cmp.Or(phases[m.Member.GetPhase()], none),
			Gossip: cmp.Or(gossips[m.Gossip], none), Raft: cmp.Or(rafts[m.Raft], none),
			Share: fmt.Sprintf("%.1f%%", 100*m.OwnedShare), ShareWidth: 100 * m.OwnedShare,
			Rows: count(uint64(m.RowsOwned)), Standby: count(uint64(m.RowsStandby)),
			Addr: cmp.Or(printable(m.Member.GetGrpcAddr()), none), Version: cmp.Or(printable(m.Member.GetVersion()), none),
		}
		var marks []string
		if m.Id == st.Id {
			marks = append(marks, "this node")
		}
		if m.Raft == clusterpb.Raft_RAFT_LEADER {
			marks = append(marks, "leads")
		}
		x.Marks = strings.Join(marks, ", ")
		if phase := m.Member.GetPhase(); phase != 0 && phase != clusterpb.Phase_PHASE_ACTIVE {
			x.PhaseState = "warn"
		}
		switch {
		case m.Gossip == clusterpb.Gossip_GOSSIP_FAILED, m.Gossip == clusterpb.Gossip_GOSSIP_LEFT && m.Member != nil:
			x.GossipState = "bad"
		case m.Gossip == clusterpb.Gossip_GOSSIP_LEAVING:
			x.GossipState = "warn"
		}
		v.Members = append(v.Members, x)
		if m.OwnedShare > 0 {
			v.Ring = append(v.Ring, arc{Hue: x.Hue, Title: x.ID + ": " + x.Share, Long: 100 * m.OwnedShare, Start: start})
			start += 100 * m.OwnedShare
		}
	}
}
