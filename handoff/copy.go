package handoff

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// The largest records that there can be, of a part of an object that many wait for, of all that
// wait and leave at once, and of an object with the longest value, fit the stream.
const (
	_ = uint(feed.MaxRecord - (owner.MaxPart*record.MaxMember + record.MaxRest))
	_ = uint(feed.MaxRecord - (owner.MaxQueue*record.MaxGone + record.MaxRest))
	_ = uint(feed.MaxRecord - record.MaxAlone)
)

// step looks what is to be done, and begins it.
func (s *Source) step() {
	now := s.cfg.Now()
	s.noticeFull(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.plan.gained)+len(s.plan.gone) > 0 {
		gained, gone := inOrder(s.plan.gained), inOrder(s.plan.gone)
		s.plan.gained, s.plan.gone = nil, nil
		s.work.Go(func() { s.change(gained, gone) })
	}
	maps.DeleteFunc(s.plan.retry, func(_ table.Holder, at int64) bool { return at <= now })
	for _, l := range s.plan.links {
		s.tendLocked(l, now)
	}
	//guard:copy-of-clean-rows
	if !s.cfg.Rule.Clean(s.plan.table.Epoch) {
		return // what is still to be discarded here must not be copied; see run
	}
	for to, ranges := range s.plan.missing(now) {
		if s.plan.flips[to] {
			continue // a flip that is undecided must not find that the target has forgotten the rows
		}
		if l := s.plan.links[to]; l == nil && s.plan.retry[to] > now || l != nil && (l.busy || l.feed.Err() != nil || slices.ContainsFunc(l.jobs, func(j *job) bool { return !j.caught })) {
			continue // after what goes on there
		}
		s.copyLocked(to, ranges, now)
	}
	s.protectLocked()
	s.handOverLocked()
}

// change looks through rows that have come to this process, and through those
// that have left it: a caller that waits there for a lock is sent to the new owner.
func (s *Source) change(gained, gone []serving.Range) {
	if len(gone) > 0 {
		s.store.Load().Dismiss(func(h uint64) bool { _, ok := find(gone, h); return ok && !s.owns(h) })
	}
	if len(gained) > 0 {
		s.store.Load().Own(s.cfg.Now(), func(h uint64) bool { _, ok := find(gained, h); return ok && s.owns(h) }, owner.OwnGrace)
	}
}

// owns reports whether this process owns the row of a position.
func (s *Source) owns(h uint64) bool {
	t := s.routes.Load().table
	i := t.Find(h)
	return i >= 0 && t.Rows[i].Owner == s.cfg.Rule.Self()
}

// tendLocked takes a standby out that does not keep up, and ends a link that
// nobody needs or that has failed.
func (s *Source) tendLocked(l *link, now int64) {
	s.askLocked(l, now)
	switch c := s.plan.tend(l, now); {
	case c.stalls && l.giveUp != nil:
		l.giveUp() //guard:sync-given-up
	case c.needless:
		s.dropLocked(l)
	case c.failed:
		to, why := l.to.Node, l.feed.Err()
		s.work.Go(func() { s.cfg.Log.Info("a copy failed", "to", to, "error", why) })
		s.plan.retry[l.to] = now + int64(retryCopy)
		s.dropLocked(l)
		s.publishLocked()
	case len(c.out) == 0:
	case c.behind &&
		!s.cfg.Heard(l.behindAt): //guard:deaf-keeps-standby
		// It may be this node that hears nobody, and it is lost with all it has unless
		// the standby has it.
	default:
		s.dropStandbyLocked(l, c)
	}
}

// dropStandbyLocked has it agreed on that rows go on without a standby.
func (s *Source) dropStandbyLocked(l *link, c care) {
	l.busy = true
	command := table.Command{ID: s.cfg.NewID(), Unsync: &table.Unsync{Owner: s.plan.self, Standby: l.to, Ends: c.out}}
	s.work.Go(func() {
		s.cfg.Log.Warn("a standby is taken out", "standby", command.Unsync.Standby.Node, "rows", len(c.out), "why", c.why, "error", l.feed.Err())
		// gofail: var handoffUnsyncPropose struct{}

		err := s.propose(command)
		// gofail: var handoffUnsyncAnswered struct{}

		if err != nil {
			s.cfg.Log.Info("a standby was not taken out", "standby", l.to.Node, "why", err)
		} else {
			s.totals.dropped.Add(int64(len(c.out)))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		l.busy = false
		s.nudge()
	})
}

// copyLocked begins a copy.
func (s *Source) copyLocked(to table.Holder, ranges []serving.Range, now int64) {
	l := s.linkLocked(to)
	j := &job{to: to, ranges: ranges, began: now, expected: s.plan.expected(ranges, s.stored())}
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

// stored returns how many objects the store has.
func (s *Source) stored() (n int64) {
	for _, objects := range s.store.Load().Stats().Objects {
		n += objects
	}
	return n
}

// copy sends all that the store holds of some rows. What changes meanwhile goes
// over the same stream, so that in the end the target has all of it.
func (s *Source) copy(l *link, j *job, ranges []serving.Range) {
	//guard:copy-sent ranges -> nil
	held := func(h uint64) bool { _, ok := find(ranges, h); return ok }
	objects, bytes := int64(0), int64(0) // of the present step
	whole := s.store.Load().Export(s.cfg.Now, held,
		func(r *owner.Record, now int64) bool {
			if !sends(s.routes.Load().table, r.Kind.Level()) {
				return true
			}
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
			s.totals.objects.Add(objects)
			s.totals.bytes.Add(bytes)
			objects, bytes = 0, 0
			return s.room(l) == nil && s.awaitDisk(l) && s.rest(n) && s.wanted(l, j)
		})
	// Objects that are gone have left no record, and their versions are never given again.
	//guard:copy-versions s.routes.Load().table.Uses(owner.DeleteLevel) -> false
	if s.routes.Load().table.Uses(owner.DeleteLevel) {
		l.feed.Versions(s.store.Load().LastVersion())
	}
	last := l.feed.Last()
	if !whole ||
		l.feed.Wait(s.ctx, last) != nil { //guard:copy-acknowledged
		s.nudge() // tendLocked sees the failure
		return
	}
	s.totals.copied.Add(int64(len(ranges)))
	s.mu.Lock()
	j.caught, j.last = true, last
	s.mu.Unlock()
	s.cfg.Log.Info("copied rows", "to", l.to.Node, "rows", len(ranges), "objects", j.sent.objects.Load(), "bytes", j.sent.bytes.Load(), "took", time.Duration(s.cfg.Now()-j.began))
	s.nudge()
}

// room waits until a copy may go on over a link: when what is unacknowledged there is little. Where
// that does not come to pass soon, for much changes that goes over the link as well, it is
// until some of that is acknowledged: a copy that only took what is left would never end.
func (s *Source) room(l *link) error {
	ctx, cancel := context.WithTimeout(s.ctx, copyPatience)
	defer cancel()
	err := l.feed.Room(ctx)
	//guard:copy-goes-on
	if err != nil && ctx.Err() != nil && s.ctx.Err() == nil && l.feed.Err() == nil {
		return l.feed.CrowdRoom(s.ctx)
	}
	return err
}

// rest holds a copy back that has sent so many bytes, as Config.CopyRate wants
// it. It returns false if the source is closed.
func (s *Source) rest(bytes int64) bool {
	d := s.pace.spend(bytes, s.cfg.Now())
	return d == 0 || s.pause(d)
}
