package handoff

import (
	"context"
	"slices"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// routes say where records go and what answers wait for. They never change; the
// next ones replace them.
type routes struct {
	table   *table.Table
	rows    []route       // of the table
	changed chan struct{} // closed when there are later ones
}

// route is that of one row. Invariants: wait is a part of feeds, and each link stood in
// feeds before it stood in wait; wait has two links at most, the standby's and that of the
// next one.
type route struct {
	feeds []*link
	wait  []*link
}

// publishLocked shows readers the present routes.
func (s *Source) publishLocked() {
	t := s.plan.table
	next := &routes{table: t, rows: make([]route, len(t.Rows)), changed: make(chan struct{})}
	for _, i := range s.plan.own {
		r := &t.Rows[i]
		w := &next.rows[i]
		if r.Synced {
			l := s.linkLocked(r.Standby)
			w.feeds, w.wait = []*link{l}, []*link{l}
		}
		if p := s.plan.syncs[r.End]; p != nil && !slices.Contains(w.wait, p.link) {
			//guard:union-new append(w.wait, p.link) -> w.wait
			//guard:union-old append(w.wait, p.link) -> []*link{p.link}
			w.feeds, w.wait = append(w.feeds, p.link), append(w.wait, p.link)
		}
	}
	for _, l := range s.plan.links {
		for _, j := range l.jobs {
			for _, i := range s.plan.own {
				after, upTo := t.Segment(i)
				w := &next.rows[i]
				if covers(j.ranges, serving.Range{After: after, UpTo: upTo}) && !slices.Contains(w.feeds, l) {
					w.feeds = append(w.feeds, l)
				}
			}
		}
	}
	was := s.routes.Swap(next)
	close(was.changed)
}

// partialLevel is the level of the cluster from which on records of locks name the places
// that changed: see handoff/record.
const partialLevel = 3

// Partial implements owner.PartialSink.
func (s *Source) Partial() bool { return s.routes.Load().table.Uses(partialLevel) } //guard:place-level true

// encode writes a record as all members of the cluster read it.
func (s *Source) encode(dst []byte, r *owner.Record, now int64) []byte {
	//guard:record-level s.routes.Load().table.Level -> record.Level
	return record.AppendAt(s.routes.Load().table.Level, dst, r, now)
}

// sends reports whether the members of a cluster know objects of a kind that has a level.
// Before, there are none but those that a state file of another cluster brought: a copy
// would end at them.
func sends(t *table.Table, level uint32) bool { return level == 0 || t.Uses(level) } //guard:kind-sent true

// Changed implements owner.Sink.
func (s *Source) Changed(r *owner.Record) {
	rt := s.routes.Load()
	i := rt.table.Find(r.Hash)
	if i < 0 || !sends(rt.table, r.Kind.Level()) {
		return
	}
	for _, l := range rt.rows[i].feeds {
		l.feed.Append(r, r.At)
	}
}

// Room returns nil when those that answers about a key at this position wait for have room
// for more callers that are queued: nothing else holds back a crowd at a lock, for nobody
// waits for an acknowledgement in a queue. A copy that is not whole yet, of a node that
// joins, holds up nobody: it begins anew if it falls behind. A process whose stream has
// failed needs no room. The error is the context's.
func (s *Source) Room(ctx context.Context, hash uint64) error {
	rt := s.routes.Load()
	i := rt.table.Find(hash)
	if i < 0 {
		return nil
	}
	//guard:crowd-copies rt.rows[i].wait -> rt.rows[i].feeds
	for _, l := range rt.rows[i].wait {
		//guard:crowd-window l.feed.CrowdRoom(ctx) -> l.feed.Err()
		if err := l.feed.CrowdRoom(ctx); err != nil && ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// Unacked returns how many bytes those that answers about a key at this position wait for have
// not acknowledged, at most. What a copy under way is behind counts twice, as long as its target
// keeps up: else the copy would begin anew again and again, or wait for ever behind what changes
// (see room).
func (s *Source) Unacked(hash uint64) (bytes int) {
	rt := s.routes.Load()
	i := rt.table.Find(hash)
	if i < 0 {
		return 0
	}
	w := &rt.rows[i]
	for _, l := range w.feeds {
		switch {
		case slices.Contains(w.wait, l):
			bytes = max(bytes, l.feed.Unacked())
		//guard:unacked-copies
		case l.feed.Lag(s.cfg.Now()) < int64(slowStandby):
			bytes = max(bytes, 2*l.feed.Unacked())
		}
	}
	return bytes
}

// Replicated reports whether all those that answers about a key at this position wait for
// have acknowledged what was decided last about it; and, where disks count, whether the disks have
// it that have to.
func (s *Source) Replicated(hash uint64) bool {
	rt := s.routes.Load()
	i := rt.table.Find(hash)
	if i < 0 {
		return true
	}
	for _, l := range rt.rows[i].wait {
		//guard:told
		if !s.has(rt.table, l, needs(l, hash, everywhere)) {
			return false
		}
	}
	return s.ownHas(rt, i, hash)
}

// Behind returns those of them that have not.
func (s *Source) Behind(hash uint64) (behind table.Behind) {
	rt := s.routes.Load()
	i := rt.table.Find(hash)
	if i < 0 {
		return behind
	}
	n := 0
	for _, of := range [...]part{inMemory, onDisk} {
		for _, l := range rt.rows[i].wait {
			if s.has(rt.table, l, needs(l, hash, of)) {
				continue
			}
			if behind[n] = l.to; of == onDisk {
				behind[n] = l.disk
			}
			n++
		}
	}
	if !s.ownHas(rt, i, hash) {
		behind[n] = table.OwnDisk
		s.urge(hash)
	}
	return behind
}

// Await waits until they have, or need not any more: that is true. It is false if it
// gave up, because the lease is over or the source is closed. Then it is not known which
// process has the decision, and a lease that comes back does not make it known.
func (s *Source) Await(hash uint64) bool {
	rt := s.routes.Load()
	i := rt.table.Find(hash)
	if i < 0 {
		return true // the row is another's: the check before the answer refuses it
	}
	s.urge(hash)
	for _, l := range rt.rows[i].wait {
		//guard:await needs(l, hash, everywhere) -> need{}
		if !s.awaitOne(s.ctx, hash, l, needs(l, hash, everywhere), rt) {
			return false
		}
	}
	return s.awaitOwn(s.ctx, rt, i, hash)
}

// AwaitOf is Await for one of them. It gives up when the context ends, too.
func (s *Source) AwaitOf(ctx context.Context, hash uint64, to table.Holder) bool {
	rt := s.routes.Load()
	i := rt.table.Find(hash)
	if i < 0 {
		return true
	}
	if to == table.OwnDisk {
		return s.awaitOwn(ctx, rt, i, hash)
	}
	for _, l := range rt.rows[i].wait {
		switch to {
		case l.to:
			return s.awaitOne(ctx, hash, l, needs(l, hash, inMemory), rt)
		case l.disk:
			return s.awaitOne(ctx, hash, l, needs(l, hash, onDisk), rt)
		}
	}
	return true
}

// awaitOne waits for one link, as long as the row waits for it, and reports whether
// the link has what is needed, or need not have it any more.
func (s *Source) awaitOne(ctx context.Context, hash uint64, l *link, n need, rt *routes) bool {
	for !s.has(rt.table, l, n) {
		if ctx.Err() != nil || s.ctx.Err() != nil ||
			s.cfg.Now() >= s.cfg.Rule.Until() { //guard:await-lease
			//guard:wait-that-gave-up true
			return false
		}
		done := l.done(n)
		if l.feed.Err() != nil {
			//guard:await-failed -> return true
			done = nil // until a table takes it out
		}
		pulse := *s.pulse.Load()
		select {
		case <-done:
		case <-rt.changed:
		//guard:await-slow insert if l.feed.Lag(s.cfg.Now()) >= int64(slowStandby) { return true }
		case <-pulse:
		case <-ctx.Done():
		case <-s.ctx.Done():
		}
		rt = s.routes.Load()
		if i := rt.table.Find(hash); i < 0 || !slices.Contains(rt.rows[i].wait, l) {
			return true
		}
	}
	return true
}
