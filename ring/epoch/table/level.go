package table

import "slices"

// Level counts what versions of this program understand: it is raised with each
// kind of command that is added, and with each change of what one does, of what
// records say and of what nodes say to each other. Programs of neighbouring levels
// run together, so that nodes can be upgraded one by one: a command of a level is
// proposed only when all members know it (Common), and from then on no process that
// does not know it is admitted.
//
// What is no command (a format of records, a message) is used from the commit of its
// level on (Uses): the leader commits a level by an Adopt when all members know it.
const Level = 9

// Uses reports whether the cluster has committed a level: all members know it, and
// so will all later ones.
func (t *Table) Uses(level uint32) bool { return max(1, t.Level) >= level }

// FirstAdopted is the level from which on levels are committed by an Adopt.
const FirstAdopted = 3

// WindowLevel is the level from which on all nodes keep request ids for as long.
const WindowLevel = 5

// DiskLevel is the level from which on disks count for rows.
const DiskLevel = 9

// adopt commits a level, and what is agreed on with it.
func (t *Table) adopt(c *Adopt) *Refused {
	if c.Level < FirstAdopted {
		return refused("level %d is used with its first command", c.Level)
	}
	if c.Level < t.Level || c.Level == t.Level && (c.Durable == Undurable || c.Durable == t.Durable) {
		return refused("the cluster uses level %d", t.Level)
	}
	if len(t.Members) == 0 {
		return refused("a level needs a member")
	}
	//guard:adopt-all c.Level -> FirstAdopted-1
	if i := slices.IndexFunc(t.Members, func(m Member) bool { return max(1, m.Level) < c.Level }); i >= 0 {
		return refused("node %s (version %s) does not know level %d", t.Members[i].Node, t.Members[i].Version, c.Level)
	}
	if why := windowFor(c.IDWindow, c.Level); why != nil {
		return why
	}
	if why := t.agreeDurable(c); why != nil {
		return why
	}
	//guard:window-once true
	if t.IDWindow == 0 {
		t.agreeWindow(c.IDWindow)
	}
	return nil
}

// agreeWindow has ids be kept for so long, if it is not 0. What was lost before may be sent
// again.
func (t *Table) agreeWindow(window int64) {
	t.IDWindow = window
	if window == 0 {
		return
	}
	t.Rows = slices.Clone(t.Rows)
	for i := range t.Rows {
		//guard:unsure-adopted
		if r := &t.Rows[i]; r.Lost != 0 {
			r.Unsure, r.Since = true, t.Epoch
		}
	}
}

// windowFor says why a window cannot be agreed on with a level, nil if it can, or none is.
func windowFor(window int64, level uint32) *Refused {
	if window < 0 || window > 0 && level < WindowLevel {
		return refused("request ids are kept for %d ns, with level %d", window, level)
	}
	return nil
}

// Level returns the first one of which a program knows the command.
func (c Command) Level() uint32 {
	if c.Adopt != nil && c.Adopt.Durable != Undurable {
		return max(DiskLevel, c.Adopt.Level)
	}
	if c.Adopt != nil {
		return max(FirstAdopted, c.Adopt.Level)
	}
	switch {
	case c.Policies != nil:
		return PoliciesLevel
	case c.Recover != nil, c.Forgo != nil, c.Sync != nil && c.Sync.Kept, c.Flip != nil && c.Flip.Kept:
		return DiskLevel
	case c.Init != nil:
		return max(1, c.Init.Level)
	case c.EndGrace != nil && c.EndGrace.IDs:
		return WindowLevel
	case c.EndWait != nil, c.Admit != nil && c.Admit.Cold, c.Resume != nil && c.Resume.Cold, c.Remove != nil && c.Remove.Term != 0, c.Raise != nil && c.Raise.To != 0, c.Drain != nil && c.Drain.Stop:
		return 3
	//guard:split-level
	case c.OfSplits():
		return 2
	}
	return 1
}

// Common returns the level of the commands that all members know.
func (t *Table) Common() uint32 {
	common := uint32(Level)
	for _, m := range t.Members {
		common = min(common, max(1, m.Level))
	}
	return common
}

// Knows says why a command must not be proposed yet, nil if it may be.
func (t *Table) Knows(c Command) *Refused {
	for _, m := range t.Members {
		if max(1, m.Level) < c.Level() {
			return refused("node %s (version %s) does not know the command %q yet: upgrade it", m.Node, m.Version, c.Kind())
		}
	}
	return nil
}

// speaks says why a process may not become a member, nil if it may.
func (t *Table) speaks(m Member) *Refused {
	//guard:level-admits
	if max(1, m.Level) < t.Level {
		return refused("node %s (version %s) is too old: it knows level %d, and the cluster uses level %d", m.Node, m.Version, max(1, m.Level), t.Level)
	}
	return nil
}
