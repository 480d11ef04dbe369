package serving

import "github.com/keystead/keystead/ring/epoch/table"

func (r *Rule) setLocked(t *table.Table, self table.Holder, now int64) []Range {
	old := r.now.Load()
	next := &state{table: t, self: self, rows: make([]row, len(t.Rows)), disk: old.disk.with(old.self, self)}
	var lost []Range
	switch {
	case old.loaded == nil:
		lost = next.inherit(old, now)
	case !t.Holds(self) && (self == old.self || old.disk.loaded):
		next.loaded = old.loaded
	default:
		lost = next.unload(*old.loaded, now)
		r.unloaded, r.unloadedBy = *old.loaded, t.Epoch
	}
	kept := map[uint64]freeze{}
	for i := range t.Rows {
		if f, ok := r.frozen[t.Rows[i].End]; ok && next.rows[i].mine &&
			possible(t, f) { //guard:freeze-outlives-tables not
			kept[t.Rows[i].End] = f
			next.rows[i].frozen, next.rows[i].closed = true, f.closed
		}
	}
	r.frozen = kept
	r.now.Store(next)
	return lost
}

// inherit fills in the rows of a new state, and returns the ranges that the node
// had a copy of in the old one and has no more, or had to lose before it got them
// back.
func (s *state) inherit(old *state, now int64) []Range {
	var lost []Range
	for _, p := range pieces(old.table, s.table) {
		was, is := old.table.Find(p.UpTo), s.table.Find(p.UpTo)
		had := was >= 0 && (old.rows[was].holds || old.rows[was].keeps)
		//guard:keep-as-standby s.table.MayHold(is, s.self) -> s.table.Rows[is].Owner == s.self
		has := is >= 0 && s.table.MayHold(is, s.self) && !s.table.Rows[is].Cold()
		if is >= 0 && s.table.Rows[is].Lost != 0 {
			s.rows[is].learnedAt = max(s.rows[is].learnedAt, s.learned(is, old, was, now))
		}
		kept := had && has && s.carries(is, old, was)
		keeps := had && !has && is >= 0 && s.keeps(is, old, was)
		if has {
			//guard:discard-before-acting s.table.Epoch -> uint64(0)
			gained := s.table.Epoch
			if kept {
				gained = old.rows[was].gained
			}
			//guard:still-incarnation s.table.Rows[is].Owner == s.self -> s.table.Rows[is].Owner.Node == s.self.Node
			s.rows[is].mine, s.rows[is].holds = s.table.Rows[is].Owner == s.self, true
			s.rows[is].gained = max(s.rows[is].gained, gained)
			if s.rows[is].mine && s.table.Rows[is].Lost != 0 {
				s.rows[is].lostAt = max(s.rows[is].lostAt, s.cameAt(is, old, was, now))
			}
		}
		if keeps {
			s.rows[is].keeps, s.rows[is].gained = true, max(s.rows[is].gained, old.rows[was].gained)
		}
		if had && !kept && !keeps {
			lost = add(lost, p)
		}
	}
	return lost
}

// add adds a range to those before it.
func add(lost []Range, p Range) []Range {
	if n := len(lost); n > 0 && lost[n-1].UpTo == p.After {
		lost[n-1].UpTo = p.UpTo
		return lost
	}
	return append(lost, p)
}

// unload fills in the rows of the first state that names a process which holds
// what an earlier one held, and returns the ranges of which that does not count.
func (s *state) unload(epoch uint64, now int64) []Range {
	var lost []Range
	counts := false
	for i := range s.table.Rows {
		r, w := &s.table.Rows[i], &s.rows[i]
		w.mine, w.holds = r.Owner == s.self, s.table.MayHold(i, s.self) && !r.Cold()
		w.lostAt, w.learnedAt = now, now
		w.keeps = !w.holds && s.names(i)
		if (w.mine || w.keeps) && //guard:loaded-others
			r.Gone <= epoch { //guard:loaded-lost
			counts = true
			continue
		}
		if w.keeps = false; w.holds {
			w.gained = s.table.Epoch
		}
		after, upTo := s.table.Segment(i)
		lost = add(lost, Range{after, upTo})
	}
	if !counts {
		return []Range{{}}
	}
	return lost
}

// cameAt returns the moment from which the grace of a row of this process runs, or by which
// all was lost that was lost of it: now, if the row came to it since the old table. A row
// that did not, has its owner since then at the latest. One of which nothing was lost has
// joined one of which something was: 0.
func (s *state) cameAt(is int, old *state, was int, now int64) int64 {
	r := &s.table.Rows[is]
	if was < 0 || old.self != s.self || !old.rows[was].mine || r.Grace && !old.table.Rows[was].Grace || r.Held > old.table.Epoch {
		return now
	}
	return old.rows[was].lostAt
}

// learned returns a moment by which this process had learned of the loss of a row: now,
// unless the loss was in the old table. A row that was joined to one that was lost has 0.
func (s *state) learned(is int, old *state, was int, now int64) int64 {
	if was < 0 ||
		s.table.Rows[is].Lost > old.table.Epoch { //guard:learned-anew
		return now
	}
	return old.rows[was].learnedAt
}

// spoilt reports whether what the node holds of a row must not count any more,
// although it may hold it: the row came to it, and all of its state is declared lost.
//
// If the node did not see all tables between the two, the row may have been
// another's. What the node has is whole then unless a loss is declared: if it got
// the row by a flip, it has acknowledged what it took by a later table than the
// old one; if it was promoted, it has done that too, or stood by from a flip of its
// own on, and nothing was acknowledged since that it did not see. And a row that
// has never left the node is whole although a loss is declared, which is that of
// another row that was joined to it.
func (s *state) spoilt(is int, old *state, was int) bool {
	r := &s.table.Rows[is]
	if r.Owner != s.self || r.Gone <= old.table.Epoch {
		return false
	}
	m, _ := s.table.Member(s.self.Node)
	stayed := old.rows[was].mine && !old.rows[was].closed && m.Since <= old.table.Epoch
	//guard:keep-what-stayed true
	return !stayed
}

// pieces returns the ranges between the ends of rows in either table, in order.
func pieces(a, b *table.Table) []Range {
	var ends []uint64
	for i, j := 0, 0; i < len(a.Rows) || j < len(b.Rows); {
		switch {
		case j == len(b.Rows) || i < len(a.Rows) && a.Rows[i].End < b.Rows[j].End:
			ends = append(ends, a.Rows[i].End)
			i++
		case i == len(a.Rows) || b.Rows[j].End < a.Rows[i].End:
			ends = append(ends, b.Rows[j].End)
			j++
		default:
			ends = append(ends, a.Rows[i].End)
			i, j = i+1, j+1
		}
	}
	out := make([]Range, len(ends))
	for i, e := range ends {
		out[i] = Range{ends[(i+len(ends)-1)%len(ends)], e}
	}
	return out
}
