package handoff

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// plan is what a source knows of rows, links and copies. Its methods say what follows from
// that; what is done about it, a stream opened, a command proposed, is for the Source. All
// of it is guarded by Source.mu.
type plan struct {
	table *table.Table
	own   []int        // the rows of table that are this process's, in order
	self  table.Holder // this process
	// interval is that of the disk of this process; 0 = there is none. It never changes.
	interval time.Duration

	links map[table.Holder]*link // to processes that have or get copies
	retry map[table.Holder]int64 // when a new link may be made, after one has failed

	syncs   map[uint64]*pendingSync // by end of row; proposed and undecided
	syncing int                     // Syncs that are being proposed
	flips   map[table.Holder]bool   // targets to which rows are being handed over

	gained []serving.Range // rows that came to this process and are not looked through yet
	gone   []serving.Range // rows that have left it, as well
}

func newPlan() plan {
	return plan{
		table: &table.Table{}, links: map[table.Holder]*link{}, retry: map[table.Holder]int64{},
		syncs: map[uint64]*pendingSync{}, flips: map[table.Holder]bool{},
	}
}

// link is the stream to one process, and the copies that are made over it.
type link struct {
	to   table.Holder
	disk table.Holder // stands for its disk: see table.Behind
	feed *feed.Sender
	jobs []*job // guarded by Source.mu
	busy bool   // guarded by Source.mu: a command about it is being proposed
	// behindAt is when it was found not to keep up, 0 if it does; guarded by Source.mu.
	behindAt int64
	askedAt  int64 // when its disk was asked for a round last; guarded by Source.mu
	// giveUp ends the flush before a Sync, as long as that is not proposed; guarded by
	// Source.mu. nil = there was none.
	giveUp context.CancelFunc
}

// job is a copy of some rows that is being made, or was and is kept up.
type job struct {
	to     table.Holder
	ranges []serving.Range // guarded by Source.mu; only shrinks
	caught bool            // guarded by Source.mu: the target has all of it
	last   uint64          // guarded by Source.mu: when caught, all of it was sent before the record after this one

	began    int64 // by Config.Now
	expected int64 // about how many objects there are
	sent     sent
}

// pendingSync is a Sync that was proposed, or is about to be.
type pendingSync struct{ link *link }

// learn goes by the next table. was is the one before, of this very process.
func (p *plan) learn(was, t *table.Table) {
	known := t.Epoch
	//guard:copy-of-missed-tables
	if t.Epoch != was.Epoch+1 {
		// Tables were missed. In one of them somebody may have had to discard a copy
		// that is being made here: of any row if another ring was wanted there, or else of
		// one that has changed since.
		//guard:copy-of-changed-rows
		known = was.Epoch
		for _, l := range p.links {
			if t.WantSince != was.WantSince {
				l.jobs = nil
			}
		}
	}
	p.table, p.own = t, nil
	for i := range t.Rows {
		if t.Rows[i].Owner != p.self || p.self.None() {
			continue
		}
		p.own = append(p.own, i)
		after, upTo := t.Segment(i)
		if w := was.Find(upTo); w < 0 || was.Rows[w].Owner != p.self {
			p.gained = append(p.gained, serving.Range{After: after, UpTo: upTo})
		}
	}
	for i := range was.Rows {
		after, upTo := was.Segment(i)
		if n := t.Find(upTo); was.Rows[i].Owner == p.self && (n < 0 || t.Rows[n].Owner != p.self) {
			p.gone = append(p.gone, serving.Range{After: after, UpTo: upTo})
		}
	}
	for _, l := range p.links {
		p.shrink(l, known)
	}
}

// removed returns the links to processes that are no members any more. Nobody takes such a
// process in again as what it was: all that waits for it would wait for ever.
func (p *plan) removed() []*link {
	var gone []*link
	for to, l := range p.links {
		if !p.table.Holds(to) {
			gone = append(gone, l)
		}
	}
	return gone
}

// shrink takes out of the copies what the table does not want at the target
// any more, and rows that have changed after an epoch: the target discards it. What was
// taken out has to be copied anew should it be wanted again.
func (p *plan) shrink(l *link, known uint64) {
	kept := l.jobs[:0]
	for _, j := range l.jobs {
		var ranges []serving.Range
		for _, i := range p.own {
			after, upTo := p.table.Segment(i)
			if r := (serving.Range{After: after, UpTo: upTo}); covers(j.ranges, r) &&
				p.table.MayHold(i, l.to) && //guard:copy-shrinks
				p.table.Rows[i].Since <= known {
				ranges = append(ranges, r)
			}
		}
		if j.ranges = ranges; len(ranges) > 0 {
			kept = append(kept, j)
		}
	}
	clear(l.jobs[len(kept):])
	l.jobs = kept
}

// care is what a link needs. The zero care is nothing.
type care struct {
	needless bool     // nobody needs it
	failed   bool     // it has failed, and nobody's answers wait for it
	out      []uint64 // rows whose standby is to be taken out
	behind   bool     // because it does not keep up
	stalls   bool     // it does not keep up, and a command about it is under way
	why      string
}

// tend notes whether a link keeps up, and returns what it needs.
func (p *plan) tend(l *link, now int64) care {
	failed := l.feed.Err() != nil
	c := care{why: "it does not keep up"}
	c.behind = failed ||
		l.feed.Lag(now) >= int64(slowStandby) //guard:slow-taken-out
	if !c.behind && p.late(l, now) {
		c.behind, c.why = true, "its disk does not keep up"
	}
	switch {
	case !c.behind:
		l.behindAt = 0
	case l.behindAt == 0:
		l.behindAt = now
	}
	if l.busy {
		return care{stalls: c.behind}
	}
	c.out = p.standing(l, false)
	if !c.behind {
		if len(c.out) == 0 && len(l.jobs) == 0 {
			return care{needless: true}
		}
		c.out, c.why = p.standing(l, true), "the ring has no standby any more"
		if len(c.out) == 0 {
			return care{}
		}
	}
	for end, sync := range p.syncs {
		if sync.link == l && !slices.Contains(c.out, end) {
			return care{} // it is being decided
		}
	}
	c.failed = failed && len(c.out) == 0
	return c
}

// standing returns the rows for which the process at the other end is the
// synced standby; of these only those for which the ring wants none, if needless.
func (p *plan) standing(l *link, needless bool) []uint64 {
	var ends []uint64
	for _, i := range p.own {
		r := &p.table.Rows[i]
		if r.Standby != l.to {
			continue
		}
		if wanted, standby := p.table.Wants(r.End); !needless || wanted == p.self && standby.None() {
			ends = append(ends, r.End)
		}
	}
	return ends
}

// missing returns the rows that a process ought to have a copy of, and for which
// none is made.
func (p *plan) missing(now int64) map[table.Holder][]serving.Range {
	missing, away := map[table.Holder][]serving.Range{}, map[table.Holder]bool{}
	for _, i := range p.own {
		to := p.table.CopyTo(i)
		if to.None() || to == p.table.Rows[i].Standby || to == p.self {
			continue
		}
		is, asked := away[to]
		if !asked {
			is = p.away(to, now)
			away[to] = is
		}
		after, upTo := p.table.Segment(i)
		seg := serving.Range{After: after, UpTo: upTo}
		for _, h := range []table.Holder{to, p.table.Spare(i)} {
			if h.None() || h != to &&
				!is { //guard:spare-standby
				continue
			}
			if l := p.links[h]; l == nil || !slices.ContainsFunc(l.jobs, func(j *job) bool { return covers(j.ranges, seg) }) {
				missing[h] = append(missing[h], seg)
			}
		}
	}
	return missing
}

// away reports whether a process that ought to get copies cannot be reached, or
// has not kept up for long: then another one stands by, if there is one to spare.
func (p *plan) away(to table.Holder, now int64) bool {
	if p.retry[to] > now {
		return true
	}
	l := p.links[to]
	return l != nil && (l.feed.Err() != nil || l.behindAt != 0 && now-l.behindAt >= int64(spareAfter))
}

// ready returns the rows of a copy whose standby the target is to be.
func (p *plan) ready(l *link, j *job) []table.Stamp {
	var stamps []table.Stamp
	for _, i := range p.own {
		r := &p.table.Rows[i]
		after, upTo := p.table.Segment(i)
		if sync := p.syncs[r.End]; sync != nil && sync.link != l {
			continue // another one is about to be put in, and answers wait for that
		}
		if r.Standby == l.to || !covers(j.ranges, serving.Range{After: after, UpTo: upTo}) {
			continue
		}
		if wanted, standby := p.table.Wants(upTo); wanted == p.self && standby == l.to || r.Standby.None() && (wanted == l.to || p.table.Spare(i) == l.to) {
			stamps = append(stamps, table.Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	return stamps
}

// forget ends the copies that are standbys now.
func (p *plan) forget(l *link) {
	for _, j := range l.jobs {
		j.ranges = slices.DeleteFunc(j.ranges, func(r serving.Range) bool {
			i := p.table.Find(r.UpTo)
			return p.table.Rows[i].Owner == p.self && p.table.Rows[i].Standby == l.to
		})
	}
	l.jobs = slices.DeleteFunc(l.jobs, func(j *job) bool { return len(j.ranges) == 0 })
}

// handover returns the rows that are to be handed over now: to each member that has all of
// what it is to get.
func (p *plan) handover() map[table.Holder][]uint64 {
	if p.table.Transition == nil {
		return nil
	}
	due, waiting := map[table.Holder][]uint64{}, map[table.Holder]bool{}
	for _, i := range p.own {
		r := &p.table.Rows[i]
		to, _ := p.table.Wants(r.End)
		if to.None() || to == p.self {
			continue
		}
		if p.has(i, to) {
			due[to] = append(due[to], r.End)
		} else {
			waiting[to] = true
		}
	}
	for to := range due {
		if p.flips[to] || waiting[to] {
			delete(due, to)
		}
	}
	return due
}

// has reports whether a member has all of an own row, over a stream that
// works and keeps up.
func (p *plan) has(i int, to table.Holder) bool {
	l := p.links[to]
	if l == nil || l.feed.Err() != nil ||
		l.behindAt != 0 { //guard:flip-of-behind
		return false
	}
	if r := &p.table.Rows[i]; r.Synced && r.Standby == to {
		return true
	}
	after, upTo := p.table.Segment(i)
	seg := serving.Range{After: after, UpTo: upTo}
	//guard:flip-of-disk p.stored(l, j) -> true
	return slices.ContainsFunc(l.jobs, func(j *job) bool { return j.caught && p.stored(l, j) && covers(j.ranges, seg) })
}

// expected returns about how many of the objects that are stored lie in some ranges: the part
// of them that the ranges are of what this process holds.
func (p *plan) expected(ranges []serving.Range, stored int64) int64 {
	held, asked := 0.0, 0.0
	for i := range p.table.Rows {
		if r := &p.table.Rows[i]; r.Owner == p.self || r.Standby == p.self {
			after, upTo := p.table.Segment(i)
			held += width(serving.Range{After: after, UpTo: upTo})
		}
	}
	for _, r := range ranges {
		asked += width(r)
	}
	if held == 0 {
		return 0
	}
	return int64(math.Round(float64(stored) * min(asked/held, 1)))
}

// covers reports whether a segment lies in one of the ranges as a whole.
func covers(ranges []serving.Range, seg serving.Range) bool {
	i, ok := find(ranges, seg.UpTo)
	if !ok {
		return false
	}
	r := ranges[i]
	return r.After == r.UpTo || seg.After != seg.UpTo && seg.UpTo-seg.After <= seg.UpTo-r.After
}

// find returns the range that a position lies in. Ranges are in order and apart.
func find(ranges []serving.Range, h uint64) (int, bool) {
	if len(ranges) == 0 {
		return 0, false
	}
	i, _ := slices.BinarySearchFunc(ranges, h, func(r serving.Range, h uint64) int { return cmp.Compare(r.UpTo, h) })
	if i == len(ranges) {
		i = 0 // around the end
	}
	return i, ranges[i].Holds(h)
}

// inOrder puts ranges of several tables, perhaps, in order.
func inOrder(ranges []serving.Range) []serving.Range {
	slices.SortFunc(ranges, func(a, b serving.Range) int { return cmp.Compare(a.UpTo, b.UpTo) })
	return slices.CompactFunc(ranges, func(a, b serving.Range) bool { return a.UpTo == b.UpTo })
}

// width returns the part of the hash space that a range is, above 0 to 1.
func width(r serving.Range) float64 {
	if r.After == r.UpTo {
		return 1
	}
	return float64(r.UpTo-r.After) / math.Exp2(64)
}
