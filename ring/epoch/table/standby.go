package table

import (
	"cmp"
	"slices"
)

// row returns the index of the segment that ends there.
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
	case t.unkept(c.Kept) != nil:
		return t.unkept(c.Kept)
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

// named reports whether a row names a process. Off the ring, it may have rows of a
// transition that still runs.
func (t *Table) named(h Holder) bool {
	return slices.ContainsFunc(t.Rows, func(r Row) bool { return r.Owner == h || r.Standby == h })
}

// onRing reports whether a node is on the wanted ring.
func (t *Table) onRing(node string) bool { return slices.Contains(t.nodes, node) }
