package handoff

import (
	"slices"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// protectLocked makes those the standbys of rows who have caught up with them.
func (s *Source) protectLocked() {
	for _, l := range s.links {
		//guard:syncs-few
		if s.syncing >= maxSyncs {
			return // the next one when one of these is agreed on
		}
		if l.busy || l.feed.Err() != nil {
			continue
		}
		for _, j := range l.jobs {
			if !j.caught {
				continue
			}
			if stamps := s.readyLocked(l, j); len(stamps) > 0 {
				s.syncLocked(l, stamps)
				break
			}
		}
	}
}

// readyLocked are the rows of a copy whose standby the target is to be.
func (s *Source) readyLocked(l *link, j *job) []table.Stamp {
	var stamps []table.Stamp
	for _, i := range s.own {
		r := &s.table.Rows[i]
		after, upTo := s.table.Segment(i)
		if p := s.syncs[r.End]; p != nil && p.link != l {
			continue // another one is about to be put in, and answers wait for that
		}
		if r.Standby == l.to || !covers(j.ranges, serving.Range{After: after, UpTo: upTo}) {
			continue
		}
		if wanted, standby := s.table.Wants(upTo); wanted == s.self && standby == l.to || r.Standby.None() && (wanted == l.to || s.table.Spare(i) == l.to) {
			stamps = append(stamps, table.Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	return stamps
}

// syncLocked makes the target the synced standby of rows: from now on their
// answers wait for it too, and it is proposed when it has acknowledged all that
// may have been told before.
func (s *Source) syncLocked(l *link, stamps []table.Stamp) {
	c := &table.Sync{WantSince: s.table.WantSince, Owner: s.self, Standby: l.to, Rows: stamps}
	l.busy = true
	s.syncing++
	for _, r := range stamps {
		s.syncs[r.End] = &pendingSync{l}
	}
	s.publishLocked()
	s.work.Go(func() {
		// Who asked what to wait for before the routes of now were there, has done
		// what it does under a lock that it has let go by then.
		s.store.Load().Barrier()
		//guard:sync-flushed l.feed.Wait(s.ctx, l.feed.Last()) -> s.ctx.Err()
		err := l.feed.Wait(s.ctx, l.feed.Last())
		// gofail: var handoffSyncFlushed struct{}

		if err == nil {
			err = s.propose(table.Command{ID: s.cfg.NewID(), Sync: c})
		}
		// gofail: var handoffSyncAnswered struct{}

		if err != nil {
			s.cfg.Log.Info("a standby was not put in", "standby", l.to.Node, "rows", len(stamps), "why", err)
		} else {
			s.synced.Add(int64(len(stamps)))
			s.cfg.Log.Info("rows have their standby", "standby", l.to.Node, "rows", len(stamps))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		l.busy = false
		s.syncing--
		for _, r := range stamps {
			if p := s.syncs[r.End]; p != nil && p.link == l {
				delete(s.syncs, r.End)
			}
		}
		s.forgetLocked(l)
		s.publishLocked()
		s.nudge()
	})
}

// forgetLocked ends the copies that are standbys now.
func (s *Source) forgetLocked(l *link) {
	for _, j := range l.jobs {
		j.ranges = slices.DeleteFunc(j.ranges, func(r serving.Range) bool {
			i := s.table.Find(r.UpTo)
			return s.table.Rows[i].Owner == s.self && s.table.Rows[i].Standby == l.to
		})
	}
	l.jobs = slices.DeleteFunc(l.jobs, func(j *job) bool { return len(j.ranges) == 0 })
}
