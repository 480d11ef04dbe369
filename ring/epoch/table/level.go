package table

// Level counts what versions of this program understand: it is raised with each
// kind of command that is added, and with each change of what one does. Programs
// of neighbouring levels run together, so that nodes can be upgraded one by one:
// a command of a level is proposed only when all members know it (Common), and
// from then on nobody who does not is admitted.
const Level = 2

// Level is the first one of which a program knows the command.
func (c Command) Level() uint32 {
	if c.OfSplits() {
		return 2
	}
	return 1
}

// Common is the level of the commands that all members know.
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
	if max(1, m.Level) < t.Level {
		return refused("node %s (version %s) is too old: it knows level %d, and the cluster uses level %d", m.Node, m.Version, max(1, m.Level), t.Level)
	}
	return nil
}
