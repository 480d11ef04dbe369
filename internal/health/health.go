package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// Finding is something that is wrong, and what helps.
type Finding struct {
	Problem string `json:"problem"`
	Hint    string `json:"hint"`
}

// Report is how a cluster is, as one of its nodes sees it.
type Report struct {
	Problems []Finding // none = it is healthy
	Warnings []Finding // what to know beside that
	Alarmed  bool      // a warning is about state that was lost, or a fault of the node
	Spare    int       // voters that may die
}

// Assess judges the answers of a node to GetStatus and ListMembers. want is the number of
// active members that there should be; 0 = any.
func Assess(st *clusterpb.GetStatusResponse, members []*clusterpb.MemberStatus, want int) Report {
	a := &assessment{st: st, members: members, voters: slices.Sorted(slices.Values(st.Voters))}
	a.Problems, a.Warnings = []Finding{}, []Finding{}
	if st.Waiting != "" {
		a.problem("it goes on by itself when that is mended; compare --cluster-id, --founders, --join and --bootstrap of the nodes",
			"%s is no member of the cluster %q yet: %s", st.Id, st.Cluster, st.Waiting)
		a.ownWarnings()
		return a.Report
	}
	alone := st.Cluster == ""
	if !alone {
		a.leader()
	}
	a.rows()
	a.ownWarnings()
	if !alone {
		a.eachMember()
		a.vote()
	}
	if active := a.active(); want > 0 && active != want {
		hint := "start further nodes with --join"
		if active > want {
			hint = "stop those that are not wanted with SIGTERM"
		}
		a.problem(hint, "%d active members, not %d", active, want)
	}
	return a.Report
}

// assessment is a report that is being written.
type assessment struct {
	Report
	st      *clusterpb.GetStatusResponse
	members []*clusterpb.MemberStatus
	voters  []string // sorted
}

func (a *assessment) problem(hint, format string, args ...any) {
	a.Problems = append(a.Problems, Finding{fmt.Sprintf(format, args...), hint})
}

func (a *assessment) warn(hint, format string, args ...any) {
	a.Warnings = append(a.Warnings, Finding{fmt.Sprintf(format, args...), hint})
}

// alarm is a warning of the graver sort.
func (a *assessment) alarm(hint, format string, args ...any) {
	a.Alarmed = true
	a.warn(hint, format, args...)
}

// ownWarnings adds those of the node itself.
func (a *assessment) ownWarnings() {
	for _, w := range a.st.Warnings {
		a.alarm(w.Hint, "%s", w.Problem)
	}
}

func (a *assessment) active() int {
	n := 0
	for _, m := range a.members {
		if m.Member.GetPhase() == clusterpb.Phase_PHASE_ACTIVE {
			n++
		}
	}
	return n
}

func (a *assessment) leader() {
	st := a.st
	if st.Leader == "" {
		voters := "the voters"
		if len(a.voters) > 0 {
			voters += " (" + strings.Join(a.voters, ", ") + ")"
		}
		a.problem("a majority of "+voters+" has to run, and reach each other's raft port", "%s knows no leader", st.Id)
	}
	if st.Serving {
		return
	}
	here := slices.ContainsFunc(a.members, func(m *clusterpb.MemberStatus) bool {
		return m.Id == st.Id && m.Member != nil && m.Member.Incarnation == st.Incarnation
	})
	switch {
	case !here:
		a.problem("it asks to be admitted by itself, once it reaches the leader", "%s does not serve: it is no member of the table", st.Id)
	case st.Leader != "":
		a.problem("it renews it by itself, once it reaches "+st.Leader+"'s raft port", "%s does not serve: it has no lease", st.Id)
	default:
		a.problem("it renews it by itself, once there is a leader", "%s does not serve: it has no lease", st.Id)
	}
}

func (a *assessment) rows() {
	st := a.st
	switch {
	case st.Rows == 0:
		a.problem("it is made when the first nodes have joined", "there is no ring yet: nobody owns anything")
	case st.RowsUnowned > st.RowsCold:
		a.problem("the leader gives them to members that can act; calls for their keys are refused until then",
			"%d of %d rows have no owner", st.RowsUnowned-st.RowsCold, st.Rows)
	}
	a.cold()
	switch {
	case st.Changing && st.RowsToMove == 0:
		a.problem("wait: it is about to end", "the ring changes: all rows have moved")
	case st.Changing:
		a.problem("wait, or see `keystead ring --watch`", "the ring changes: %d of %d rows left to move", st.RowsToMove, st.Rows)
	case st.RowsToMove > st.RowsUnowned-st.RowsCold:
		a.problem("wait for the leader to move them", "%d of %d rows are not where the ring wants them", st.RowsToMove, st.Rows)
	case st.RowsUnprotected > 0:
		a.warn("wait: it is being copied", "%d of %d rows have no copy yet where the ring wants it: the death of their owner would lose them", st.RowsUnprotected, st.Rows)
	}
	const grace = "wait for the end of the grace period (--max-lock-ttl); holders keep the locks that they renew"
	if n := st.RowsInGrace - min(st.RowsInGraceInPart, st.RowsInGrace); n > 0 {
		a.alarm(grace, "the state of %d of %d rows was lost, and no locks of them are granted yet", n, st.Rows)
	}
	if n := min(st.RowsInGraceInPart, st.RowsInGrace); n > 0 {
		a.alarm(grace, "%d of %d rows went on from a disk, what was answered last may be lost, and no locks of them are granted yet", n, st.Rows)
	}
}

// shownDisks bounds the disks of which a report speaks.
const shownDisks = 8

// cold says which disks rows wait for.
func (a *assessment) cold() {
	st := a.st
	if st.RowsCold == 0 {
		return
	}
	if len(st.Awaited) == 0 {
		a.problem("start the nodes that have died with their --data-dir", "%d of %d rows wait for a disk", st.RowsCold, st.Rows)
	}
	for i, d := range st.Awaited {
		if i == shownDisks {
			a.problem("`keystead status --json` has all", "rows wait for %d other disks", len(st.Awaited)-i)
			return
		}
		what := fmt.Sprintf("%d of %d rows wait for the disk of %s (its process %d), which this node has known for %s", d.Rows, st.Rows, d.Node, d.Incarnation, time.Duration(d.WaitingNs).Round(time.Second))
		if d.RowsAlone < d.Rows {
			what += fmt.Sprintf("; %d of them would do with another one", d.Rows-d.RowsAlone)
		}
		hint := fmt.Sprintf("start %s with its --data-dir; if its disk is gone for good, see `keystead recover --without %s@%d`", d.Node, d.Node, d.Incarnation)
		if a.runs(d.Node) {
			hint = fmt.Sprintf("%s runs, and they go on there within a minute if it has that disk; if that is gone for good, see `keystead recover --without %s@%d`", d.Node, d.Node, d.Incarnation)
		}
		a.problem(hint, "%s", what)
	}
}

// runs reports whether a node is a member that gossip does not miss.
func (a *assessment) runs(node string) bool {
	return slices.ContainsFunc(a.members, func(m *clusterpb.MemberStatus) bool {
		return m.Id == node && m.Member.GetPhase() != 0 && gossips[m.Gossip] == ""
	})
}

// gossips are the words for what gossip says of a node that does not answer.
var gossips = map[clusterpb.Gossip]string{clusterpb.Gossip_GOSSIP_FAILED: "failed", clusterpb.Gossip_GOSSIP_LEFT: "left"}

func (a *assessment) eachMember() {
	for _, m := range a.members {
		phase, gone := m.Member.GetPhase(), gossips[m.Gossip]
		switch {
		case phase == 0 && m.Gossip == clusterpb.Gossip_GOSSIP_FAILED && m.Raft == 0:
			a.warn("bring it back with --join, or leave it: gossip forgets it in time", "%s has failed; others own what it owned", m.Id)
		case phase == 0:
		case gone != "" && a.st.Leader == "":
			a.problem("bring it back: without a leader nobody is given what it owns", "%s is gone (gossip: %s)", m.Id, gone)
		case gone != "":
			a.problem("when its lease is over others own its keys; bring it back with --join, or replace it", "%s is gone (gossip: %s)", m.Id, gone)
		case m.Gossip == 0:
			a.problem("see that it runs, and that its gossip port is reached", "%s is a member, and gossip does not know it", m.Id)
		case a.st.Changing:
		case phase == clusterpb.Phase_PHASE_JOINING:
			a.problem("wait: the ring is about to change", "%s joins, and owns nothing yet", m.Id)
		case phase == clusterpb.Phase_PHASE_LEAVING:
			a.problem("wait: the ring is about to change", "%s is to be drained", m.Id)
		case phase == clusterpb.Phase_PHASE_DRAINED:
			a.warn("stop it, or take that back with `keystead undrain "+m.Id+"`", "%s is drained, and is given nothing", m.Id)
		}
	}
}

// vote checks whether the raft group survives a death.
func (a *assessment) vote() {
	if len(a.voters) == 0 {
		return
	}
	failed, dead := false, []string{} // dead are voters
	for _, m := range a.members {
		// A dead node is often removed from the table before gossip knows.
		lost := m.Gossip == clusterpb.Gossip_GOSSIP_FAILED
		failed = failed || lost
		if (lost || m.Member.GetPhase() == 0) && slices.Contains(a.voters, m.Id) {
			dead = append(dead, m.Id)
		}
	}
	most := (len(a.voters) - 1) / 2 // that may be gone
	a.Spare = max(most-len(dead), 0)
	a.voteLeft(failed, dead, most)
}

// voteLeft says what is left of the raft group. failed: gossip misses some node; dead: the
// voters that are gone, of whom most may be.
func (a *assessment) voteLeft(failed bool, dead []string, most int) {
	voters, names := count(len(a.voters), "voter"), strings.Join(dead, ", ")
	switch {
	case len(dead) > most:
		a.problem(fmt.Sprintf("bring back %d of them: %d of %s have to run", len(dead)-most, len(a.voters)-most, voters),
			"the cluster has stopped: of %s, %s %s gone", voters, names, are(len(dead)))
	case a.Spare > 0 && len(dead) > 0:
		a.warn("bring "+them(len(dead))+" back, or leave it: another node takes its vote", "%s may vote and %s gone", names, are(len(dead)))
	case a.Spare > 0:
	case len(dead) > 0:
		a.problem("bring "+them(len(dead))+" back, or start another node with --join", "one more death stops the cluster: of %s, %s %s gone", voters, names, are(len(dead)))
	case failed:
		a.problem("bring the failed node back, or start another with --join", "one more death stops the cluster: it has %s left", voters)
	case len(a.members) >= 3:
		a.problem("wait some seconds: nodes get to vote when they have been well for a while", "one death stops the cluster: it has only %s", voters)
	default:
		a.warn("run three nodes or more", "the death of one node stops the cluster")
	}
}

// them returns the pronoun of a hint for n nodes.
func them(n int) string {
	if n == 1 {
		return "it"
	}
	return "one of them"
}

func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}
