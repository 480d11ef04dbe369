package handoff

import (
	"context"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// slowDisk is how long the disk of a standby may keep answers waiting before the standby is taken
// out: above what a sync takes now and then on a disk that others use as well, and below what
// callers wait for.
const slowDisk = time.Second

// Disk is that of this node, in which its own part is kept.
type Disk interface {
	// Durable reports whether answers about keys at this position may be told, as far as this disk
	// is concerned.
	Durable(hash uint64) bool
	// Await waits until they may be. It returns false if it gave up.
	Await(ctx context.Context, hash uint64) bool
	// Always reports whether answers about objects of a kind wait until what they tell is on disk.
	Always(kind owner.Kind) bool
	// Interval is how old what was answered may be that is not on disk, of other kinds.
	Interval() time.Duration
	// HeadEpoch is the epoch of the last round that is synced: what tables up to it demanded to be
	// discarded was not there any more when that round began.
	HeadEpoch() uint64
	// Urge asks for a round soon. It does not wait.
	Urge()
}

// durable reports whether disks count for rows: a process that one names has it on disk.
func durable(t *table.Table) bool { return t.Durable != table.Undurable }

// part is where something has to be.
type part uint8

const (
	inMemory part = 1 << iota
	onDisk
	everywhere = inMemory | onDisk
)

// need is what an answer waits for of a link: how far it has to be in memory, and on disk.
type need struct {
	acked, kept uint64
	of          part
}

func needs(l *link, hash uint64, of part) need {
	return need{acked: l.feed.LastOf(hash), kept: l.feed.LastAlways(hash), of: of}
}

// has reports whether the process at the other end of a link has what an answer tells.
func (s *Source) has(t *table.Table, l *link, n need) bool {
	if n.of&inMemory != 0 && l.feed.Acked() < n.acked {
		return false
	}
	if n.of&onDisk == 0 || !durable(t) || s.cfg.Disk == nil {
		return true
	}
	//guard:union-of-disks insert if l.busy && l.giveUp != nil { return true }
	kept := l.feed.Kept()
	//guard:disk-of-standby kept < n.kept -> false
	if kept < n.kept {
		return false
	}
	if kept >= n.acked {
		return true
	}
	// It is not awaited, as long as the disk is not behind.
	behind, _ := l.feed.KeptBehind(s.cfg.Now())
	//guard:disk-of-standby-late behind <= int64(s.plan.interval) -> behind >= 0
	return behind <= int64(s.plan.interval)
}

// done returns a channel that is closed when more of what is needed is there.
func (l *link) done(n need) <-chan struct{} {
	if n.of&inMemory != 0 && l.feed.Acked() < n.acked {
		return l.feed.Done(n.acked)
	}
	return l.feed.KeptDone(max(n.kept, n.acked))
}

// ownHas reports whether this node's disk has what an answer tells.
func (s *Source) ownHas(rt *routes, row int, hash uint64) bool {
	d := s.cfg.Disk
	//guard:own-disk d == nil -> true
	if d == nil {
		return true
	}
	return d.Durable(hash) && d.HeadEpoch() >= gone(rt.table, row)
}

// gone is the epoch that a disk must have reached for what it has of a row to count: what is
// on it from before counts for nothing. An answer that waits for the disk waits for that as well.
func gone(t *table.Table, row int) uint64 {
	if t.Durable < table.Always {
		return 0
	}
	//guard:own-disk-epoch t.Rows[row].Gone -> 0
	return t.Rows[row].Gone
}

// awaitOwn waits until this node's disk has what an answer tells. It returns false if it gave up.
func (s *Source) awaitOwn(ctx context.Context, rt *routes, row int, hash uint64) bool {
	d := s.cfg.Disk
	//guard:own-disk d == nil -> true
	if d == nil {
		return true
	}
	if !d.Durable(hash) && !d.Await(ctx, hash) {
		// Where disks do not count, the standby has it, and one that fails keeps nothing back.
		//guard:own-disk-counts false
		return !durable(s.routes.Load().table) && ctx.Err() == nil && s.ctx.Err() == nil
	}
	over := s.cfg.Now() + int64(s.plan.interval+slowDisk)
	for epoch := gone(rt.table, row); d.HeadEpoch() < epoch; {
		d.Urge()
		now, pulse := s.cfg.Now(), *s.pulse.Load()
		if now >= over || now >= s.cfg.Rule.Until() {
			return false
		}
		select {
		case <-pulse:
		case <-ctx.Done():
			return false
		case <-s.ctx.Done():
			return false
		}
	}
	return true
}

// urge has this node's disk do a round, if an answer will wait for that after it has waited for
// others.
func (s *Source) urge(hash uint64) {
	if d := s.cfg.Disk; d != nil && !d.Durable(hash) {
		d.Urge()
	}
}

// fenceLocked has answers wait until the disk of a standby has what it had before it stood by for
// this process: that of a row which this process has just been given stood by nobody, but was
// the owner. The owner tells what that has decided, told or not. Under interval it need not be there.
func (s *Source) fenceLocked(was, t *table.Table) {
	if t.Durable < table.Always {
		return
	}
	fenced := map[*link]bool{}
	for _, i := range s.plan.own {
		r := &t.Rows[i]
		if !r.Synced {
			continue
		}
		w := was.Find(r.End)
		given := w < 0 || was.Rows[w].Owner != s.plan.self
		missed := t.Epoch != was.Epoch+1 && r.Since > was.Epoch // it may have been another's in between
		if l := s.linkLocked(r.Standby); !fenced[l] && (given || missed || was.Durable < table.Always) {
			//guard:disk-of-former-owner
			l.feed.Fence()
			fenced[l] = true
		}
	}
}

// stored reports whether the target's disk has all of a copy, where disks count.
func (p *plan) stored(l *link, j *job) bool {
	return !durable(p.table) || l.feed.Kept() >= j.last
}

// late reports whether the disk at the other end of a link keeps answers waiting for too long.
func (p *plan) late(l *link, now int64) bool {
	if !durable(p.table) || p.interval == 0 {
		return false
	}
	all, urgent := l.feed.KeptBehind(now)
	//guard:slow-disk-taken-out urgent >= int64(slowDisk) || all >= int64(p.interval+slowDisk) -> all+urgent < 0
	return urgent >= int64(slowDisk) || all >= int64(p.interval+slowDisk)
}

// askLocked asks the disk at the other end of a link for a round before it is behind. It does rounds by an interval of its
// own, which may be longer than that by which answers wait here.
func (s *Source) askLocked(l *link, now int64) {
	if !durable(s.plan.table) || s.plan.interval == 0 {
		return
	}
	behind, _ := l.feed.KeptBehind(now)
	//guard:other-intervals false
	if behind > int64(s.plan.interval*3/4) && now-behind > l.askedAt {
		l.askedAt = now
		l.feed.Ask()
	}
}

// awaitDisk has a copy wait until a round of the target's disk has ended, if the disk is about to
// keep answers waiting: a copy is written there, too.
func (s *Source) awaitDisk(l *link) bool {
	if s.cfg.Disk == nil || !durable(s.routes.Load().table) {
		return true
	}
	//guard:copy-spares-disk
	if behind, _ := l.feed.KeptBehind(s.cfg.Now()); behind > int64(s.plan.interval*3/4) {
		timer := time.NewTimer(s.plan.interval)
		defer timer.Stop()
		select {
		case <-l.feed.KeptDone(l.feed.Last()):
		case <-timer.C:
		case <-s.ctx.Done():
			return false
		}
	}
	return true
}
