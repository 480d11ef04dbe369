package handoff

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// The largest record that there can be, of a lock that as many wait for as may, fits
// the stream.
const _ = uint(feed.MaxRecord - (owner.MaxQueue*record.MaxPlace + record.MaxRest))

// step looks what is to be done, and begins it.
func (s *Source) step() {
	now := s.cfg.Now()
	s.noticeFull(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.gained)+len(s.gone) > 0 {
		gained, gone := inOrder(s.gained), inOrder(s.gone)
		s.gained, s.gone = nil, nil
		s.work.Go(func() { s.change(gained, gone) })
	}
	maps.DeleteFunc(s.retry, func(_ table.Holder, at int64) bool { return at <= now })
	for _, l := range s.links {
		s.tendLocked(l, now)
	}
	//guard:copy-of-clean-rows
	if !s.cfg.Rule.Clean(s.table.Epoch) {
		// What is still to be discarded here must not be copied.
		s.work.Go(func() {
			if s.pause(cleanLook) {
				s.nudge()
			}
		})
		return
	}
	for to, ranges := range s.missingLocked(now) {
		if s.flips[to] {
			continue // a flip that is undecided must not find that the target has forgotten the rows
		}
		if l := s.links[to]; l == nil && s.retry[to] > now || l != nil && (l.busy || l.feed.Err() != nil || slices.ContainsFunc(l.jobs, func(j *job) bool { return !j.caught })) {
			continue // after what goes on there
		}
		s.copyLocked(to, ranges, now)
	}
	s.protectLocked()
	s.handOverLocked()
}

// inOrder puts ranges of several tables, perhaps, in order.
func inOrder(ranges []serving.Range) []serving.Range {
	slices.SortFunc(ranges, func(a, b serving.Range) int { return cmp.Compare(a.UpTo, b.UpTo) })
	return slices.CompactFunc(ranges, func(a, b serving.Range) bool { return a.UpTo == b.UpTo })
}

// change looks through rows that have come to this process, and through those
// that have left it: who waits there for a lock is sent to the new owner.
func (s *Source) change(gained, gone []serving.Range) {
	if len(gone) > 0 {
		s.store.Load().Dismiss(func(h uint64) bool { _, ok := find(gone, h); return ok && !s.owns(h) })
	}
	if len(gained) > 0 {
		s.store.Load().Own(s.cfg.Now(), func(h uint64) bool { _, ok := find(gained, h); return ok && s.owns(h) }, owner.OwnGrace)
	}
}

// owns says whether this process owns the row of a position.
func (s *Source) owns(h uint64) bool {
	t := s.routes.Load().table
	i := t.Find(h)
	return i >= 0 && t.Rows[i].Owner == s.cfg.Rule.Self()
}

// tendLocked takes a standby out that does not keep up, and ends a link that
// nobody needs or that has failed.
func (s *Source) tendLocked(l *link, now int64) {
	failed, ends, why := l.feed.Err() != nil, s.standingLocked(l, false), "it does not keep up"
	behind := failed ||
		l.feed.Lag(now) >= int64(slowStandby) //guard:slow-taken-out
	switch {
	case !behind:
		l.behindAt = 0
	case l.behindAt == 0:
		l.behindAt = now
	}
	switch {
	case l.busy:
		return
	case behind:
	case len(ends) == 0 && len(l.jobs) == 0:
		s.dropLocked(l)
		return
	default:
		if ends, why = s.standingLocked(l, true), "the ring has no standby any more"; len(ends) == 0 {
			return
		}
	}
	for end, p := range s.syncs {
		if p.link == l && !slices.Contains(ends, end) {
			return // it is being decided
		}
	}
	if len(ends) == 0 {
		if failed {
			to, why := l.to.Node, l.feed.Err()
			s.work.Go(func() { s.cfg.Log.Info("a copy failed", "to", to, "error", why) })
			s.retry[l.to] = now + int64(retryCopy)
			s.dropLocked(l)
			s.publishLocked()
		}
		return
	}
	//guard:deaf-keeps-standby
	if behind && !s.cfg.Heard(l.behindAt) {
		return // it may be this node that hears nobody, and it is lost with all it has unless the standby has it
	}
	l.busy = true
	command := table.Command{ID: s.cfg.NewID(), Unsync: &table.Unsync{Owner: s.self, Standby: l.to, Ends: ends}}
	s.work.Go(func() {
		s.cfg.Log.Warn("a standby is taken out", "standby", command.Unsync.Standby.Node, "rows", len(ends), "why", why, "error", l.feed.Err())
		// gofail: var handoffUnsyncPropose struct{}

		err := s.propose(command)
		// gofail: var handoffUnsyncAnswered struct{}

		if err != nil {
			s.cfg.Log.Info("a standby was not taken out", "standby", l.to.Node, "why", err)
		} else {
			s.dropped.Add(int64(len(ends)))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		l.busy = false
		s.nudge()
	})
}

// standingLocked are the rows for which the process at the other end is the
// synced standby; of these only those for which the ring wants none, if needless.
func (s *Source) standingLocked(l *link, needless bool) []uint64 {
	var ends []uint64
	for _, i := range s.own {
		r := &s.table.Rows[i]
		if r.Standby != l.to {
			continue
		}
		if wanted, standby := s.table.Wants(r.End); !needless || wanted == s.self && standby.None() {
			ends = append(ends, r.End)
		}
	}
	return ends
}

// missingLocked are the rows that somebody ought to have a copy of, and for whom
// none is made.
func (s *Source) missingLocked(now int64) map[table.Holder][]serving.Range {
	missing, away := map[table.Holder][]serving.Range{}, map[table.Holder]bool{}
	for _, i := range s.own {
		to := s.table.CopyTo(i)
		if to.None() || to == s.table.Rows[i].Standby || to == s.self {
			continue
		}
		is, asked := away[to]
		if !asked {
			is = s.awayLocked(to, now)
			away[to] = is
		}
		after, upTo := s.table.Segment(i)
		seg := serving.Range{After: after, UpTo: upTo}
		for _, h := range []table.Holder{to, s.table.Spare(i)} {
			if h.None() || h != to &&
				!is { //guard:spare-standby
				continue
			}
			if l := s.links[h]; l == nil || !slices.ContainsFunc(l.jobs, func(j *job) bool { return covers(j.ranges, seg) }) {
				missing[h] = append(missing[h], seg)
			}
		}
	}
	return missing
}

// awayLocked reports whether a process that ought to get copies cannot be reached, or
// has not kept up for long: then another one stands by, if there is one to spare.
func (s *Source) awayLocked(to table.Holder, now int64) bool {
	if s.retry[to] > now {
		return true
	}
	l := s.links[to]
	return l != nil && (l.feed.Err() != nil || l.behindAt != 0 && now-l.behindAt >= int64(spareAfter))
}

// copyLocked begins a copy.
func (s *Source) copyLocked(to table.Holder, ranges []serving.Range, now int64) {
	l := s.linkLocked(to)
	j := &job{to: to, ranges: ranges, began: now, expected: s.expectLocked(ranges)}
	// The records after this go to the target too, but what was there before it
	// is told what to forget would be forgotten.
	l.feed.Begin(ranges)
	//guard:copy-whole insert j.caught = true
	l.jobs = append(l.jobs, j)
	s.publishLocked()
	s.work.Go(func() {
		s.cfg.Log.Info("copying rows", "to", to.Node, "rows", len(ranges), "expected objects", j.expected)
		s.copy(l, j, ranges)
	})
}

// copy sends all that the store holds of some rows. What changes meanwhile goes
// over the same stream, so that in the end the target has all of it.
func (s *Source) copy(l *link, j *job, ranges []serving.Range) {
	//guard:copy-sent ranges -> nil
	held := func(h uint64) bool { _, ok := find(ranges, h); return ok }
	objects, bytes := int64(0), int64(0) // of the present step
	whole := s.store.Load().Export(s.cfg.Now, held,
		func(r *owner.Record, now int64) bool {
			bytes += int64(l.feed.AppendSize(r, now))
			if !r.More {
				objects++
			}
			return l.feed.Err() == nil
		},
		func() bool {
			// gofail: var handoffCopyPart struct{}
			n := bytes
			j.sent.objects.Add(objects)
			j.sent.bytes.Add(bytes)
			s.copied.Add(objects)
			s.copiedBytes.Add(bytes)
			objects, bytes = 0, 0
			return l.feed.Room(s.ctx) == nil && s.rest(n) && s.wanted(l, j)
		})
	if !whole ||
		l.feed.Wait(s.ctx, l.feed.Last()) != nil { //guard:copy-acknowledged
		s.nudge() // tendLocked sees the failure
		return
	}
	s.copiedRows.Add(int64(len(ranges)))
	s.mu.Lock()
	j.caught = true
	s.mu.Unlock()
	s.cfg.Log.Info("copied rows", "to", l.to.Node, "rows", len(ranges), "objects", j.sent.objects.Load(), "bytes", j.sent.bytes.Load(), "took", time.Duration(s.cfg.Now()-j.began))
	s.nudge()
}

// rest holds a copy back that has sent so many bytes, as Config.CopyRate wants
// it. It returns false if the source is closed.
func (s *Source) rest(bytes int64) bool {
	d := s.pace.spend(bytes, s.cfg.Now())
	return d == 0 || s.pause(d)
}
