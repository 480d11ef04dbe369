package serving

import "github.com/keystead/keystead/ring/epoch/table"

// freeze is why a row is frozen. Only a table in which the flip cannot happen
// any more ends it.
type freeze struct {
	transition uint64
	to         table.Holder
	closed     bool
}

// possible reports whether the flip for which a row is frozen can still happen.
func possible(t *table.Table, f freeze) bool {
	return t.Transition != nil && t.Transition.ID == f.transition && t.Holds(f.to)
}

// Freeze lets nothing more in for rows that the running transition gives to
// another, and returns the ends of those that it froze: rows that are the
// node's, and clean, and on their way to this member. What is in may still get out
// until Close.
func (r *Rule) Freeze(transition uint64, to table.Holder, ends []uint64) []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.now.Load()
	f := freeze{transition: transition, to: to}
	var out []uint64
	for _, end := range ends {
		i := s.table.Find(end)
		if i < 0 || s.table.Rows[i].End != end || !s.rows[i].mine ||
			s.rows[i].gained > r.clean.Load() || //guard:freeze-clean
			!possible(s.table, f) {
			continue
		}
		if m, _ := s.table.WantedOwner(end); m.Holder() != to || //guard:freeze-moving-rows
			to == s.self {
			continue
		}
		if _, already := r.frozen[end]; !already {
			r.frozen[end] = f
		}
		out = append(out, end)
	}
	r.markLocked()
	return out
}

// Close lets nothing more out for the rows that are frozen for this member.
// When it returns, the node has acknowledged its last operation on them.
func (r *Rule) Close(to table.Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for end, f := range r.frozen {
		if f.to == to {
			f.closed = true
			r.frozen[end] = f
		}
	}
	r.markLocked()
}

// Thaw lets operations in again for the rows that are frozen for this member and
// not closed: nothing was proposed yet for which they had to be frozen.
func (r *Rule) Thaw(to table.Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for end, f := range r.frozen {
		//guard:flip-stays-frozen !f.closed -> true
		if f.to == to &&
			!f.closed { //guard:thaw-closed
			delete(r.frozen, end)
		}
	}
	r.markLocked()
}

// Reopen lets answers out again for the rows that are frozen for this member, when the
// flip for which they were closed was refused. The caller has seen the refusal, in the
// table of this epoch. It returns false, and does nothing, if the rule goes by an earlier
// table: the row may have left the node in between.
func (r *Rule) Reopen(to table.Holder, epoch uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	//guard:reopen-epoch
	if r.now.Load().table.Epoch < epoch {
		return false
	}
	for end, f := range r.frozen {
		if f.to == to {
			//guard:reopen true
			f.closed = false
			r.frozen[end] = f
		}
	}
	r.markLocked()
	return true
}

// markLocked shows readers what is frozen.
func (r *Rule) markLocked() {
	s := *r.now.Load()
	s.rows = append([]row(nil), s.rows...)
	for i := range s.table.Rows {
		s.rows[i].frozen, s.rows[i].closed = false, false
		if f, ok := r.frozen[s.table.Rows[i].End]; ok && s.rows[i].mine {
			s.rows[i].frozen, s.rows[i].closed = true, f.closed
		}
	}
	r.now.Store(&s)
}
