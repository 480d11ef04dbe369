package handoff

import (
	"context"

	"github.com/keystead/keystead/ring/epoch/table"
)

// protectLocked makes processes that have caught up with rows their standbys.
func (s *Source) protectLocked() {
	for _, l := range s.plan.links {
		//guard:syncs-few
		if s.plan.syncing >= maxSyncs {
			return // the next one when one of these is agreed on
		}
		if l.busy || l.feed.Err() != nil ||
			l.behindAt != 0 { //guard:sync-of-behind
			continue
		}
		for _, j := range l.jobs {
			//guard:sync-of-disk s.plan.stored(l, j) -> true
			if !j.caught || !s.plan.stored(l, j) {
				continue
			}
			if stamps := s.plan.ready(l, j); len(stamps) > 0 {
				s.syncLocked(l, stamps)
				break
			}
		}
	}
}

// syncLocked makes the target the synced standby of rows: from now on their
// answers wait for it too, and it is proposed when it has acknowledged all that
// may have been told before. If it does not keep up meanwhile, nothing is proposed, and
// answers wait for it no more: a synced standby is taken out for that, too. Where disks count, its
// disk has all of that as well, for it counts from then on.
func (s *Source) syncLocked(l *link, stamps []table.Stamp) {
	c := &table.Sync{WantSince: s.plan.table.WantSince, Owner: s.plan.self, Standby: l.to, Rows: stamps, Kept: durable(s.plan.table)}
	l.busy = true
	flushing, giveUp := context.WithCancel(s.ctx)
	l.giveUp = giveUp
	s.plan.syncing++
	for _, r := range stamps {
		s.plan.syncs[r.End] = &pendingSync{l}
	}
	s.publishLocked()
	s.work.Go(func() {
		// An operation that has read the routes of before runs under the lock of a shard,
		// and has let it go by then.
		s.store.Load().Barrier()
		if c.Kept {
			l.feed.Versions(0) // which has its disk do a round
		}
		last := l.feed.Last()
		//guard:sync-flushed l.feed.Wait(flushing, last) -> flushing.Err()
		err := l.feed.Wait(flushing, last)
		//guard:sync-of-disk err == nil && c.Kept -> false
		if err == nil && c.Kept {
			err = l.feed.WaitKept(flushing, last)
		}
		giveUp()
		// gofail: var handoffSyncFlushed struct{}

		if err == nil {
			err = s.propose(table.Command{ID: s.cfg.NewID(), Sync: c})
		}
		// gofail: var handoffSyncAnswered struct{}

		if err != nil {
			s.cfg.Log.Info("a standby was not put in", "standby", l.to.Node, "rows", len(stamps), "why", err)
		} else {
			s.totals.synced.Add(int64(len(stamps)))
			s.cfg.Log.Info("rows have their standby", "standby", l.to.Node, "rows", len(stamps))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		l.busy = false
		s.plan.syncing--
		for _, r := range stamps {
			if p := s.plan.syncs[r.End]; p != nil && p.link == l {
				delete(s.plan.syncs, r.End)
			}
		}
		s.plan.forget(l)
		s.publishLocked()
		s.nudge()
	})
}
