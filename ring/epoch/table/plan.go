package table

// Plan returns the members of the ring that the next transition leads to; none if no
// transition is needed: the ring is that already, and every row has the owner that it
// wants. A joining member takes part if joins reports that it may; one that is leaving
// is left out. moves is the length of Moves, which takes long to count.
//
// A row can stand elsewhere although no member comes or goes. A transition may end
// before all standbys have caught up; when an owner dies then, its row belongs to the
// standby of before.
func (t *Table) Plan(moves int, joins func(Member) bool) []Holder {
	if t.Transition != nil {
		return nil
	}
	var want []Holder
	needed := false
	for _, m := range t.Members {
		switch {
		case m.Phase == Active:
			want = append(want, m.Holder())
		case m.Phase == Joining && joins(m):
			want = append(want, m.Holder())
			needed = true
		case m.Phase == Leaving:
			needed = true
		}
	}
	if !needed &&
		moves == 0 { //guard:rows-misplaced
		return nil
	}
	return want
}

// Spare returns the process that may stand by for row i while it has no standby and the one
// that the ring wants cannot be reached: the one that the ring wants if that is no member
// any more. So a dead standby is replaced before its lease is over, and nothing moves
// when it is removed. Nobody if the row stands, or its owner is not the wanted one.
func (t *Table) Spare(i int) Holder {
	r := &t.Rows[i]
	if t.want == nil || !r.Standby.None() || r.Owner.None() ||
		!t.Uses(3) || //guard:spare-level
		t.holders[t.want.Owner(r.End)] != r.Owner {
		return Holder{}
	}
	third, ok := t.want.Third(r.End)
	if !ok {
		return Holder{}
	}
	return t.holders[third]
}

// CopyTo returns the process to which the owner of row i copies it next: the wanted
// owner while the transition runs, or else the standby that the ring wants. Nobody if
// the row has to wait for a transition.
func (t *Table) CopyTo(i int) Holder {
	r := &t.Rows[i]
	switch wanted, standby := t.Wants(r.End); {
	case r.Owner.None(): // nobody has it
		return Holder{}
	case wanted == r.Owner:
		return standby
	case t.Transition != nil:
		return wanted
	}
	return Holder{}
}
