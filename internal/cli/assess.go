package cli

import (
	"fmt"
	"slices"
	"strings"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

func (o *overview) problem(hint, format string, args ...any) {
	o.Problems = append(o.Problems, finding{fmt.Sprintf(format, args...), hint})
}

func (o *overview) warn(hint, format string, args ...any) {
	o.Warnings = append(o.Warnings, finding{fmt.Sprintf(format, args...), hint})
}

// alarm is a warning that changes the exit code with --exit-code.
func (o *overview) alarm(hint, format string, args ...any) {
	o.alarmed = true
	o.warn(hint, format, args...)
}

// assess lists what is wrong, the gravest first.
func (o *overview) assess(want int, st *clusterpb.GetStatusResponse) {
	if st.Waiting != "" {
		o.problem("it goes on by itself when that is mended; compare --cluster-id, --founders, --join and --bootstrap of the nodes",
			"%s is no member of the cluster %q yet: %s", o.ID, o.Cluster, st.Waiting)
		o.addWarnings(st.Warnings)
		return
	}
	if !o.alone() {
		o.assessLeader()
	}
	o.assessRows()
	o.addWarnings(st.Warnings)
	if !o.alone() {
		o.assessMembers()
		o.assessVoters()
	}
	if active := o.active(); want > 0 && active != want {
		hint := "start further nodes with --join"
		if active > want {
			hint = "stop those that are not wanted with SIGTERM"
		}
		o.problem(hint, "%d active members, not %d", active, want)
	}
}

// addWarnings adds the warnings of the node itself.
func (o *overview) addWarnings(warnings []*clusterpb.Warning) {
	for _, w := range warnings {
		o.alarm(w.Hint, "%s", w.Problem)
	}
}

func (o *overview) assessLeader() {
	if o.Leader == "" {
		voters := "the voters"
		if len(o.Voters) > 0 {
			voters += " (" + strings.Join(o.Voters, ", ") + ")"
		}
		o.problem("a majority of "+voters+" has to run, and reach each other's raft port", "%s knows no leader", o.ID)
	}
	if o.Serving {
		return
	}
	here := slices.ContainsFunc(o.Members, func(m memberJSON) bool { return m.ID == o.ID && m.Incarnation == o.Incarnation })
	switch {
	case !here:
		o.problem("it asks to be admitted by itself, once it reaches the leader", "%s does not serve: it is no member of the table", o.ID)
	case o.Leader != "":
		o.problem("it renews it by itself, once it reaches "+o.Leader+"'s raft port", "%s does not serve: it has no lease", o.ID)
	default:
		o.problem("it renews it by itself, once there is a leader", "%s does not serve: it has no lease", o.ID)
	}
}

func (o *overview) assessRows() {
	switch {
	case o.Rows == 0:
		o.problem("it is made when the first nodes have joined", "there is no ring yet: nobody owns anything")
	case o.RowsUnowned > 0:
		o.problem("the leader gives them to members that can act; calls for their keys are refused until then",
			"%d of %d rows have no owner", o.RowsUnowned, o.Rows)
	}
	switch {
	case o.Changing && o.RowsToMove == 0:
		o.problem("wait: it is about to end", "the ring changes: all rows have moved")
	case o.Changing:
		o.problem("wait, or see `keystead ring --watch`", "the ring changes: %d of %d rows left to move", o.RowsToMove, o.Rows)
	case o.RowsToMove > o.RowsUnowned:
		o.problem("wait for the leader to move them", "%d of %d rows are not where the ring wants them", o.RowsToMove, o.Rows)
	case o.RowsUnprotected > 0:
		o.warn("wait: it is being copied", "%d of %d rows have no copy yet where the ring wants it: the death of their owner would lose them", o.RowsUnprotected, o.Rows)
	}
	if o.RowsInGrace > 0 {
		o.alarm("wait for the end of the grace period (--max-lock-ttl); holders keep the locks that they renew",
			"the state of %d of %d rows was lost, and no locks of them are granted yet", o.RowsInGrace, o.Rows)
	}
}

func (o *overview) assessMembers() {
	for _, m := range o.Members {
		switch {
		case m.Phase == "" && m.Gossip == "failed" && m.Raft == "":
			o.warn("bring it back with --join, or leave it: gossip forgets it in time", "%s has failed; others own what it owned", m.ID)
		case m.Phase == "":
		case (m.Gossip == "failed" || m.Gossip == "left") && o.Leader == "":
			o.problem("bring it back: without a leader nobody is given what it owns", "%s is gone (gossip: %s)", m.ID, m.Gossip)
		case m.Gossip == "failed" || m.Gossip == "left":
			o.problem("when its lease is over others own its keys; bring it back with --join, or replace it", "%s is gone (gossip: %s)", m.ID, m.Gossip)
		case m.Gossip == "":
			o.problem("see that it runs, and that its gossip port is reached", "%s is a member, and gossip does not know it", m.ID)
		case o.Changing:
		case m.Phase == "joining":
			o.problem("wait: the ring is about to change", "%s joins, and owns nothing yet", m.ID)
		case m.Phase == "leaving":
			o.problem("wait: the ring is about to change", "%s is to be drained", m.ID)
		case m.Phase == "drained":
			o.warn("stop it, or take that back with `keystead undrain "+m.ID+"`", "%s is drained, and is given nothing", m.ID)
		}
	}
}

// them returns the pronoun of a hint for n nodes.
func them(n int) string {
	if n == 1 {
		return "it"
	}
	return "one of them"
}

// assessVoters checks whether the raft group survives a death.
func (o *overview) assessVoters() {
	if len(o.Voters) == 0 {
		return
	}
	failed, dead := false, []string{} // dead are voters
	for _, m := range o.Members {
		// A dead node is often removed from the table before gossip knows.
		gone := m.Gossip == "failed" || m.Phase == ""
		failed = failed || m.Gossip == "failed"
		if gone && slices.Contains(o.Voters, m.ID) {
			dead = append(dead, m.ID)
		}
	}
	most := (len(o.Voters) - 1) / 2 // that may be gone
	o.spare = max(most-len(dead), 0)
	voters := plural(len(o.Voters), "voter")
	switch {
	case len(dead) > most:
		o.problem(fmt.Sprintf("bring back %d of them: %d of %s have to run", len(dead)-most, len(o.Voters)-most, voters),
			"the cluster has stopped: of %s, %s %s gone", voters, strings.Join(dead, ", "), isAre(len(dead)))
	case o.spare > 0 && len(dead) > 0:
		o.warn("bring "+them(len(dead))+" back, or leave it: another node takes its vote", "%s may vote and %s gone", strings.Join(dead, ", "), isAre(len(dead)))
	case o.spare > 0:
	case len(dead) > 0:
		o.problem("bring "+them(len(dead))+" back, or start another node with --join", "one more death stops the cluster: of %s, %s %s gone", voters, strings.Join(dead, ", "), isAre(len(dead)))
	case failed:
		o.problem("bring the failed node back, or start another with --join", "one more death stops the cluster: it has %s left", voters)
	case len(o.Members) >= 3:
		o.problem("wait some seconds: nodes get to vote when they have been well for a while", "one death stops the cluster: it has only %s", voters)
	default:
		o.warn("run three nodes or more", "the death of one node stops the cluster")
	}
}
