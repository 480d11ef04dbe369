package table

import "slices"

// resume exchanges one incarnation for another. What the earlier one stood by for
// is not taken over: its owner, if it lives, may have gone on without it. The
// points on the ring stay as well, or all that the node owns would have to move.
func (t *Table) resume(c *Resume) *Refused {
	m := c.Member
	at, ok := t.member(m.Node)
	switch {
	case !ok ||
		t.Members[at].Incarnation != c.Old: //guard:resume-incarnation
		return refused("node %s with incarnation %x is not a member any more", m.Node, c.Old)
	//guard:resume-disks
	case t.Durable != Undurable: // rows go on from a disk by a Recover
		return refused("disks count: a process is removed, and the next one is admitted")
	case m.Incarnation == 0 || m.Incarnation == c.Old:
		return refused("%s needs another incarnation", m.Node)
	}
	if why := t.speaks(m); why != nil {
		return why
	}
	if why := t.waits(c.Cold); why != nil {
		return why
	}
	was := t.Members[at]
	//guard:returned-marked c.Cold -> false
	m.HashKey, m.Phase, m.Since, m.Returned, m.Stopping = was.HashKey, was.Phase, t.Epoch, c.Cold, false
	switch {
	case was.Phase == Leaving && t.onRing(m.Node):
		m.Phase = Active
	case was.Phase == Leaving || was.Phase == Drained:
		m.Phase = Joining
	}
	t.Members = slices.Clone(t.Members)
	t.Members[at] = m
	t.Rows = slices.Clone(t.Rows)
	for i := range t.Rows {
		switch r := &t.Rows[i]; was.Holder() {
		case r.Owner:
			r.Owner, r.Standby, r.Synced = m.Holder(), Holder{}, false
			r.Since, r.Held = t.Epoch, t.Epoch
		case r.Standby:
			//guard:resume-standby -> r.Standby, r.Since = m.Holder(), t.Epoch
			r.Standby, r.Synced, r.Since = Holder{}, false, t.Epoch
		}
	}
	return nil
}

// waits reports why a command must not say that the leader waits for processes of before.
func (t *Table) waits(cold bool) *Refused {
	//guard:returned-readable
	if cold && !t.Uses(3) {
		return refused("the cluster does not use level 3 yet")
	}
	return nil
}

// Returning reports whether some members have returned, and others are waited for.
func (t *Table) Returning() bool {
	return slices.ContainsFunc(t.Members, func(m Member) bool { return m.Returned })
}

// endWait forgets which members have returned.
func (t *Table) endWait() *Refused {
	if !t.Returning() {
		return refused("nobody is waited for")
	}
	t.Members = slices.Clone(t.Members)
	for i := range t.Members {
		t.Members[i].Returned = false
	}
	return nil
}

// allReturned ends the wait when nobody is left to be waited for.
func (t *Table) allReturned() {
	if t.Returning() && !slices.ContainsFunc(t.Members, func(m Member) bool { return !m.Returned }) {
		_ = t.endWait()
	}
}
