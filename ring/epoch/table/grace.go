package table

import "slices"

// endGrace ends the grace of rows, or that their ids are unsure. It stamps them: a process that goes by a row as it was must
// look again.
func (t *Table) endGrace(c *EndGrace) *Refused {
	switch {
	case !t.Holds(c.Owner):
		return refused("the owner is not a member any more")
	case len(c.Rows) == 0:
		return refused("no segments are named")
	}
	rows := slices.Clone(t.Rows)
	for _, l := range c.Rows {
		i, ok := row(rows, l.End)
		if !ok {
			return refused("no segment ends at %d", l.End)
		}
		r := &rows[i]
		switch {
		//guard:settle-owner
		case r.Owner != c.Owner:
			return refused("the segment that ends at %d belongs to %s, incarnation %x", l.End, r.Owner.Node, r.Owner.Incarnation)
		//guard:settle-loss
		case r.Lost != l.Lost:
			return refused("the segment that ends at %d was lost in epoch %d", l.End, r.Lost)
		case !c.IDs && !r.Grace, c.IDs && !r.Unsure:
			return refused("the segment that ends at %d is not in grace", l.End)
		}
		if r.Since = t.Epoch; c.IDs {
			r.Unsure = false
		} else {
			r.Grace = false
		}
	}
	t.Rows = rows
	return nil
}
