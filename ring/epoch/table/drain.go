package table

import "slices"

// StopLevel is the level of a drain that says that the process is about to stop and can
// keep what it has. It is used when all members know it, and not only when the leader has
// committed it, as what is no command is: a cluster that is told to stop as a whole in
// its first moments would else give all that it has to the last node, which has no copy
// of it. So the first such drain commits the level. That shuts out no neighbour: from
// level 4 on, programs of the level before know it as well.
const StopLevel = 3

// DrainState is what a member has, and so what it has left to give away when it is
// drained.
type DrainState struct {
	Member  Member
	Owned   int    // rows that it owns
	Standby int    // rows that it stands by for
	Empty   bool   // it leaves, has given all away, and is given nothing more
	Epoch   uint64 // of the table that says so
}

// DrainState returns the state of a node; false if it is no member.
func (t *Table) DrainState(node string) (DrainState, bool) {
	m, ok := t.Member(node)
	if !ok {
		return DrainState{}, false
	}
	s := DrainState{Member: m, Epoch: t.Epoch}
	for i, h := 0, m.Holder(); i < len(t.Rows); i++ {
		switch h {
		case t.Rows[i].Owner:
			s.Owned++
		case t.Rows[i].Standby:
			s.Standby++
		}
	}
	s.Empty = m.Phase == Drained || m.Phase == Leaving && s.Owned+s.Standby == 0 && !t.onRing(node)
	return s, true
}

// Leaves reports whether a member is being drained, or has been.
func (m Member) Leaves() bool { return m.Phase == Leaving || m.Phase == Drained }

// HasTakers reports whether a member beside a node may be given what it has.
func (t *Table) HasTakers(but string) bool {
	return slices.ContainsFunc(t.Members, func(m Member) bool { return m.Node != but && m.MayReceive() })
}

// OthersStop reports whether all members beside a node that have something are about
// to stop and can keep it, and the cluster uses that.
func (t *Table) OthersStop(but string) bool {
	stop := false
	for _, m := range t.Members {
		if m.Node == but || m.Phase == Drained {
			continue
		}
		if !m.Stopping {
			return false
		}
		stop = true
	}
	return stop && t.Uses(StopLevel)
}

func (t *Table) drain(c *Drain) *Refused {
	at, _ := t.member(c.Member.Node)
	if !t.Holds(c.Member) {
		return refused("node %s with incarnation %x is not a member", c.Member.Node, c.Member.Incarnation)
	}
	members := slices.Clone(t.Members)
	m := &members[at]
	switch {
	case c.Undo && m.Phase == Leaving:
		m.Phase, m.Stopping = t.stays(m.Node), false
	case c.Undo && m.Phase == Drained:
		m.Phase, m.Stopping = Joining, false
	case c.Undo:
		return refused("node %s is not being drained", m.Node)
	case m.Leaves():
		return refused("node %s is being drained already", m.Node)
	case m.Stopping:
		return refused("node %s stops, as all do", m.Node)
	//guard:drain-awaited
	case !c.Stop && len(t.Awaited(m.Node)) > 0:
		return refused("rows wait for the disk of node %s", m.Node)
	default:
		if m.Phase, m.Stopping = Leaving, c.Stop; !t.onRing(m.Node) && !t.named(c.Member) {
			m.Phase = Drained
		}
		switch {
		//guard:drain-recovered
		case slices.ContainsFunc(members, Member.MayReceive) && m.Phase == Leaving && t.Recovered(*m):
			return refused("node %s has rows from its disk, and is not on the ring yet", m.Node)
		case slices.ContainsFunc(members, Member.MayReceive):
		//guard:stop-all-keep true
		case !c.Stop || //guard:drain-of-the-last
			!allStop(members):
			return refused("nobody would be left to take what %s owns", m.Node)
		default:
			t.keep(members)
		}
	}
	t.Members = members
	return nil
}

// Recovered reports whether a member has rows by a Recover and is on no ring yet: no transition
// can take it off one, and it is drained when it is there.
func (t *Table) Recovered(m Member) bool {
	return t.Durable != Undurable && t.Transition == nil && !t.onRing(m.Node) && t.named(m.Holder())
}

// MayReceive reports whether a member may be given rows.
func (m Member) MayReceive() bool { return (m.Phase == Joining || m.Phase == Active) && !m.Stopping }

// allStop reports whether all that have something are about to stop.
func allStop(members []Member) bool {
	return !slices.ContainsFunc(members, func(m Member) bool { return !m.Stopping && m.Phase != Drained })
}

// keep takes back what members that are about to stop were to give away.
func (t *Table) keep(members []Member) {
	for i := range members {
		if m := &members[i]; m.Phase == Leaving {
			m.Phase = t.stays(m.Node)
		}
	}
}

// stays returns the phase of a member whose drain is taken back.
func (t *Table) stays(node string) Phase {
	if t.onRing(node) {
		return Active
	}
	return Joining
}

// Stopped reports whether a process stops, or has stopped, together with all the others,
// and keeps what it has for the one that comes after it.
func (t *Table) Stopped(h Holder) bool {
	m, ok := t.Member(h.Node)
	return ok && m.Holder() == h && m.Stopping && !m.Leaves()
}
