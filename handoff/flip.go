package handoff

import (
	"slices"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// handOverLocked gives rows to those members that have all of them. All that one
// member gets moves at once: no copy goes over its stream then, so that the freeze
// waits for what is in flight, and a commit, however many objects the rows have.
// Some rows at a time would each be frozen for as long, among copies.
func (s *Source) handOverLocked() {
	for to, ends := range s.plan.handover() {
		s.plan.flips[to] = true
		f := table.Flip{Transition: s.plan.table.Transition.ID, From: s.plan.self, To: to, Ends: ends}
		s.work.Go(func() {
			s.flip(f)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.plan.flips, to)
			s.nudge()
		})
	}
}

// flip hands rows over to one member. This process, which has all of them too,
// is their standby from then on, until the new owner has another one. Rows stay
// frozen until a table shows that the flip has happened, or cannot any more; so an
// unknown outcome is harmless.
func (s *Source) flip(f table.Flip) {
	began := time.Now()
	//guard:flip-freezes s.cfg.Rule.Freeze(f.Transition, f.To, f.Ends) -> f.Ends
	if f.Ends = s.cfg.Rule.Freeze(f.Transition, f.To, f.Ends); len(f.Ends) == 0 {
		//guard:flip-rests
		s.pause(proposePause) // the rule goes by another table, or is another incarnation's: until that is known here
		return
	}
	if s.cfg.Frozen != nil {
		defer func() { s.cfg.Frozen(len(f.Ends), time.Since(began)) }()
	}
	// gofail: var handoffFlipFrozen struct{}

	//guard:flip-barrier
	s.store.Load().Barrier() // an operation that was let in before is done, and its records are on their way
	for s.ctx.Err() == nil {
		if !s.flush(&f) {
			s.cfg.Log.Info("rows are not handed over: the target does not have them any more, or does not keep up", "to", f.To.Node)
			s.cfg.Rule.Thaw(f.To)
			s.pause(proposePause)
			return
		}
		//guard:flip-closes
		s.cfg.Rule.Close(f.To)
		// gofail: var handoffFlipFlushed struct{}

		err := s.propose(table.Command{ID: s.cfg.NewID(), Flip: &f})
		// gofail: var handoffFlipAnswered struct{}

		if err == nil {
			s.totals.handed.Add(int64(len(f.Ends)))
			s.cfg.Log.Info("handed rows over", "to", f.To.Node, "rows", len(f.Ends), "took", time.Since(began))
			return
		}
		s.cfg.Log.Info("rows were not handed over", "to", f.To.Node, "rows", len(f.Ends), "why", err)
		//guard:flip-stays-frozen insert s.cfg.Rule.Thaw(f.To)
		t := s.routes.Load().table
		if t.Transition == nil || t.Transition.ID != f.Transition || !t.Holds(f.To) || !t.Holds(f.From) {
			return // nothing is frozen for it any more
		}
		// It was refused, so that no attempt of it can take effect any more. What a Flip
		// expects never comes true again once it is false: its transition, the wanted ring
		// of its epoch and its processes do not come back, and while these are as it
		// expects, no row returns to the source. (The table's property tests hold every
		// refused Flip against all later tables.) And propose ends with the refusal of
		// the very command whose attempts are under way: an unknown outcome is no refusal.
		// So the rows may be opened, should the target not have them any more.
		for !s.cfg.Rule.Reopen(f.To, t.Epoch) {
			if !s.pause(leaveTime) {
				return
			}
		}
		if !s.pause(proposePause) {
			return
		}
	}
}

// flush waits until the target has all of the rows, and those that are to know of
// what was decided about them do. It returns false if the target does not have
// all of them any more, or does not keep up: the rows are frozen meanwhile. Where disks count, the
// target's disk has had the copy before the rows were frozen. Now it gets what was decided since, of
// the kinds whose answers wait for it: the new owner is named for that. Of other kinds it may lack
// what a standby's may.
func (s *Source) flush(f *table.Flip) bool {
	s.mu.Lock()
	l := s.plan.links[f.To]
	f.WantSince, f.Standby, f.Kept = s.plan.table.WantSince, s.plan.self, durable(s.plan.table)
	whole := l != nil
	waits := map[*link]need{}
	for _, end := range f.Ends {
		i := s.plan.table.Find(end)
		whole = whole && s.plan.table.Rows[i].Owner == s.plan.self && s.plan.has(i, f.To)
		for _, w := range s.routes.Load().rows[i].wait {
			waits[w] = need{acked: w.feed.Last(), of: inMemory}
		}
	}
	s.mu.Unlock()
	if !whole {
		return false
	}
	all := need{acked: l.feed.Last(), of: everywhere}
	//guard:flip-of-last-round f.Kept -> false
	if f.Kept {
		all.kept = l.feed.LastUrgent()
	}
	waits[l] = all
	for w, n := range waits {
		if !s.awaitFlush(f.Ends, w, n, w == l) {
			return false
		}
	}
	return s.pause(leaveTime)
}

// awaitFlush waits until a process has what is needed or, unless it is the target, answers for the
// rows wait for it no more. It returns false if the source is closed, or if the target fails or
// does not keep up.
func (s *Source) awaitFlush(ends []uint64, w *link, n need, target bool) bool {
	//guard:flip-flushes
	for w.feed.Acked() < n.acked || w.feed.Kept() < n.kept {
		done, changed, pulse := w.done(n), s.routes.Load().changed, *s.pulse.Load()
		failed := w.feed.Err() != nil
		switch {
		case target && failed:
			//guard:flip-given-up true
			return false
		//guard:flip-gives-up-behind
		case target && s.behind(w):
			return false
		case !target && !s.waits(ends, w):
			return true
		case failed:
			done = nil // until a table takes it out
		}
		select {
		case <-done:
		case <-changed:
		case <-pulse:
		case <-s.ctx.Done():
			return false
		}
	}
	return true
}

// behind reports whether a link was found not to keep up.
func (s *Source) behind(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.behindAt != 0
}

// waits reports whether answers for any of these rows wait for a link.
func (s *Source) waits(ends []uint64, l *link) bool {
	rt := s.routes.Load()
	return slices.ContainsFunc(ends, func(end uint64) bool { return slices.Contains(rt.rows[rt.table.Find(end)].wait, l) })
}
