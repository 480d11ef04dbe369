package table

import (
	"cmp"
	"slices"
)

// row is the index of the segment that ends there.
func row(rows []Row, end uint64) (int, bool) {
	return slices.BinarySearchFunc(rows, end, func(r Row, e uint64) int { return cmp.Compare(r.End, e) })
}

func (t *Table) sync(c *Sync) *Refused {
	switch {
	case !t.Holds(c.Owner) ||
		!t.Holds(c.Standby): //guard:sync-member
		return refused("owner or standby is not a member any more")
	case c.Owner == c.Standby:
		return refused("the owner cannot stand by for itself")
	case len(c.Rows) == 0:
		return refused("no segments are named")
	//guard:sync-want-since
	case c.WantSince != t.WantSince:
		return refused("the wanted ring has changed")
	}
	rows := slices.Clone(t.Rows)
	for _, s := range c.Rows {
		i, ok := row(rows, s.End)
		if !ok {
			return refused("no segment ends at %d", s.End)
		}
		//guard:sync-bounds
		if after, _ := t.Segment(i); after != s.After {
			return refused("the segment that ends at %d has other bounds", s.End)
		}
		r := &rows[i]
		switch {
		//guard:sync-owner
		case r.Owner != c.Owner:
			return refused("the segment that ends at %d belongs to %s, incarnation %x", s.End, r.Owner.Node, r.Owner.Incarnation)
		//guard:sync-since
		case r.Since != s.Since:
			return refused("the segment that ends at %d was changed in epoch %d", s.End, r.Since)
		//guard:sync-member
		case !t.MayHold(i, c.Standby):
			return refused("the ring has no copy of the segment that ends at %d at %s", s.End, c.Standby.Node)
		}
		r.Standby, r.Synced, r.Since = c.Standby, true, t.Epoch
	}
	t.Rows = rows
	return nil
}

func (t *Table) unsync(c *Unsync) *Refused {
	switch {
	case !t.Holds(c.Owner):
		return refused("the owner is not a member any more")
	case c.Standby.None() || len(c.Ends) == 0:
		return refused("no standby or no segments are named")
	}
	rows := slices.Clone(t.Rows)
	for _, end := range c.Ends {
		i, ok := row(rows, end)
		if !ok {
			return refused("no segment ends at %d", end)
		}
		r := &rows[i]
		if r.Owner != c.Owner {
			return refused("the segment that ends at %d belongs to %s, incarnation %x", end, r.Owner.Node, r.Owner.Incarnation)
		}
		//guard:unsync-stamps
		r.Since = t.Epoch
		if r.Standby == c.Standby {
			//guard:unsync-takes-out -> r.Synced = false
			//guard:unsync-stamps insert r.Since = t.Epoch
			r.Standby, r.Synced = Holder{}, false
		}
	}
	t.Rows = rows
	return nil
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
	case m.Phase == Leaving || m.Phase == Drained:
		return refused("node %s is being drained already", m.Node)
	case m.Stopping:
		return refused("node %s stops, as all do", m.Node)
	default:
		if m.Phase, m.Stopping = Leaving, c.Stop; !t.onRing(m.Node) && !t.named(c.Member) {
			m.Phase = Drained
		}
		switch {
		case slices.ContainsFunc(members, Member.Takes):
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

// Takes reports whether a member may be given rows.
func (m Member) Takes() bool { return (m.Phase == Joining || m.Phase == Active) && !m.Stopping }

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

// stays is the phase of a member whose drain is taken back.
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
	return ok && m.Holder() == h && m.Stopping && m.Phase != Leaving && m.Phase != Drained
}

// named says whether a row names a process. Off the ring, it may have rows of a
// transition that still runs.
func (t *Table) named(h Holder) bool {
	return slices.ContainsFunc(t.Rows, func(r Row) bool { return r.Owner == h || r.Standby == h })
}

// onRing says whether a node is on the wanted ring.
func (t *Table) onRing(node string) bool { return slices.Contains(t.nodes, node) }
