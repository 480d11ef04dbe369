package table

import (
	"errors"
	"slices"
)

// A row is cold when all who had it are dead and a durability is agreed: it has no owner, and
// names the processes whose disks count for it. Nobody is given it but by a Recover, from such a
// disk, or after a Forgo has taken all names off it.

// Cold counts the cold rows.
func (t *Table) Cold() int { return t.cold }

// ColdRows are cold rows that name the same processes.
type ColdRows struct {
	Was, Stood Holder // see Row
	Rows       []Stamp
	Since      uint64 // the earliest of the rows'
	Gone       uint64 // the latest of the rows'
}

// Names reports whether the rows wait for the disk of a process.
func (c *ColdRows) Names(h Holder) bool { return c.Was == h || !h.None() && c.Stood == h }

// ColdRows returns the cold rows by the processes that they name, in the order of the first row
// of each. It costs nothing while there are none.
func (t *Table) ColdRows() []ColdRows {
	if t.cold == 0 {
		return nil
	}
	var all []ColdRows
	at := map[[2]Holder]int{}
	for i := range t.Rows {
		r := &t.Rows[i]
		if !r.Cold() {
			continue
		}
		names := [2]Holder{r.Was, r.Stood}
		n, ok := at[names]
		if !ok {
			n = len(all)
			at[names] = n
			all = append(all, ColdRows{Was: r.Was, Stood: r.Stood, Since: r.Since})
		}
		c := &all[n]
		after, upTo := t.Segment(i)
		c.Rows = append(c.Rows, Stamp{After: after, End: upTo, Since: r.Since})
		c.Since, c.Gone = min(c.Since, r.Since), max(c.Gone, r.Gone)
	}
	return all
}

// Awaited returns the processes of a node whose disks cold rows wait for, in order.
func (t *Table) Awaited(node string) []Holder {
	if t.cold == 0 {
		return nil
	}
	var all []Holder
	for i := range t.Rows {
		r := &t.Rows[i]
		for _, h := range [...]Holder{r.Was, r.Stood} {
			if h.Node == node && !h.None() && !slices.Contains(all, h) {
				all = append(all, h)
			}
		}
	}
	slices.SortFunc(all, func(a, b Holder) int {
		if a.Incarnation < b.Incarnation {
			return -1
		}
		return 1
	})
	return all
}

// awaits reports whether a cold row names a process.
func (t *Table) awaits(h Holder) bool {
	return t.cold > 0 && slices.ContainsFunc(t.Rows, func(r Row) bool { return r.Was == h || r.Stood == h })
}

// cool makes a row cold. Its owner is dead, and so is stood, the last synced standby, if there
// was one.
func (t *Table) cool(r *Row, stood Holder) {
	r.Was, r.Stood = r.Owner, stood
	r.Owner, r.Standby, r.Synced = Holder{}, Holder{}, false
}

// lose declares the loss of all of a row.
func (t *Table) lose(r *Row) {
	t.loseSome(r)
	r.Gone = t.Epoch
}

// loseSome declares that something of a row is lost.
func (t *Table) loseSome(r *Row) {
	//guard:removal-declares-loss
	//guard:removal-unsure t.IDWindow > 0 -> false
	r.Lost, r.Grace, r.Unsure = t.Epoch, t.LockTTL > 0, t.IDWindow > 0
}

// ofDisks reports whether a command is about rows that wait for disks.
func (c *Command) ofDisks() bool { return c.Recover != nil || c.Forgo != nil }

// byDisks does such a command.
func (t *Table) byDisks(c Command) *Refused {
	if c.Recover != nil {
		return t.fromDisk(c.Recover)
	}
	return t.forgo(c.Forgo)
}

// fromDisk has rows go on from a disk.
func (t *Table) fromDisk(c *Recover) *Refused {
	to, ok := t.Member(c.To.Node)
	switch {
	case !ok || to.Holder() != c.To: //guard:recover-member to.Holder() != c.To -> false
		return refused("node %s with incarnation %x is not a member any more", c.To.Node, c.To.Incarnation)
	//guard:recover-drained
	case to.Leaves():
		return refused("node %s is being drained: it is given nothing", c.To.Node)
	case c.Of.Node != c.To.Node || c.Of == c.To:
		return refused("%s, incarnation %x, does not run on a disk of %s, incarnation %x", c.To.Node, c.To.Incarnation, c.Of.Node, c.Of.Incarnation)
	case len(c.Rows) == 0:
		return refused("no segments are named")
	}
	rows := slices.Clone(t.Rows)
	for _, s := range c.Rows {
		i, ok := row(rows, s.End)
		if !ok {
			return refused("no segment ends at %d", s.End)
		}
		//guard:recover-bounds
		if after, _ := t.Segment(i); after != s.After {
			return refused("the segment that ends at %d has other bounds", s.End)
		}
		r := &rows[i]
		switch {
		//guard:recover-cas
		case r.Since != s.Since:
			return refused("the segment that ends at %d was changed in epoch %d", s.End, r.Since)
		case !r.Cold():
			return refused("the segment that ends at %d waits for no disk", s.End)
		//guard:recover-names r.Was != c.Of && r.Stood != c.Of -> r.Was.Node != c.Of.Node && r.Stood.Node != c.Of.Node
		case r.Was != c.Of && r.Stood != c.Of:
			return refused("the segment that ends at %d does not wait for the disk of %s, incarnation %x", s.End, c.Of.Node, c.Of.Incarnation)
		}
		r.Owner, r.Was, r.Stood, r.Since, r.Held = c.To, Holder{}, Holder{}, t.Epoch, t.Epoch
		//guard:recover-declares !c.Whole -> false
		if !c.Whole {
			t.loseSome(r)
		}
	}
	t.Rows = rows
	return nil
}

// forgo takes processes out of cold rows. What names nobody then is lost.
func (t *Table) forgo(c *Forgo) *Refused {
	rows := slices.Clone(t.Rows)
	changed := false
	for i := range rows {
		r := &rows[i]
		if !r.Cold() {
			continue
		}
		was, stood := slices.Contains(c.Holders, r.Was), !r.Stood.None() && slices.Contains(c.Holders, r.Stood)
		if !was && !stood {
			continue
		}
		changed, r.Since = true, t.Epoch
		if stood {
			r.Stood = Holder{}
		}
		if was {
			r.Was, r.Stood = r.Stood, Holder{}
		}
		//guard:forgo-keeps-other false
		if !r.Was.None() {
			continue
		}
		r.Was, r.Stood = Holder{}, Holder{}
		r.Owner, _ = t.Wants(r.End)
		r.Held = t.Epoch
		t.lose(r)
	}
	if !changed {
		return refused("no segment waits for a disk of these")
	}
	t.Rows = rows
	return nil
}

// agreeDurable commits what disks promise. It is lowered while rows wait for disks only to what
// keeps them from being given up by a timer: something of them may have been promised.
func (t *Table) agreeDurable(c *Adopt) *Refused {
	switch {
	case c.Durable == Undurable:
		return nil
	case c.Durable > Entire:
		return refused("durability %d is not known", c.Durable)
	//guard:durable-level
	case c.Level < DiskLevel:
		return refused("disks count from level %d on, and not with level %d", DiskLevel, c.Level)
	//guard:durable-lowered
	case c.Durable < min(t.Durable, Always) && t.cold > 0:
		return refused("rows wait for disks: the durability that is agreed, %d, is not lowered to %d", t.Durable, c.Durable)
	}
	t.Durable = c.Durable
	return nil
}

// unkept says why rows are not given to a process whose disk has not got them, nil if they are.
// Kept is taken also where nothing is agreed: what is refused once stays refused.
func (t *Table) unkept(kept bool) *Refused {
	//guard:durable-kept
	if t.Durable != Undurable && !kept {
		return refused("disks count, and that of the target does not have the segments")
	}
	return nil
}

// checkCold says what is wrong with the names that a row waits for.
func (t *Table) checkCold(r *Row) error {
	switch {
	case r.Was.None() && r.Stood.None():
		return nil
	case r.Was.None() || !r.Owner.None():
		return errors.New("it waits for a disk, and has an owner, or had none")
	case r.Was.Node == "" || r.Was.Incarnation == 0 || !r.Stood.None() && (r.Stood.Node == "" || r.Stood.Incarnation == 0):
		return errors.New("a process that it waits for is not whole")
	case r.Was.Node == r.Stood.Node:
		return errors.New("owner and standby were of one node")
	case t.Holds(r.Was) || t.Holds(r.Stood):
		return errors.New("a process that it waits for is a member")
	case t.Durable == Undurable:
		return errors.New("it waits for a disk, and none counts")
	}
	return nil
}
