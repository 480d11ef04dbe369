package epoch

import (
	"fmt"
	"math"
	"slices"
	"time"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// cold is a leader's judgement of the rows that wait for disks: from which disk each goes on,
// and when. It reads no clock and sends nothing. What it has heard it knows of one term: the next
// leader hears everything anew. So it gives nothing up before it has waited all of the time itself.
// For the second of two disks all leaders have waited that have known of the rows: where leaders
// change more often than that takes, they would never go on. The present one has to have led for 5 s
// of it, in which it hears of all that are there.
//
// A disk is heard when a member that holds a lease says in its renewal that a process that the
// row names has had it. That is enough to go on from it. What it waits for is the other disk,
// which may have more of what no disk had to have:
//
//	heard, of the disks that are named       then
//	all                                      at once
//	one of two, that was stopped in order    after 5 s: it has all
//	one of two                               after Config.ResumeWait
//	none, where nothing is under always      after Config.RecoverWait the row is given up
//	none                                     nothing: an operator says that it is given up
//
// A disk of which others have heard more rounds than it has was set back: to a snapshot, or to what a
// drive had of what it said to have. A row goes on from it when there is no other one to be waited for,
// and its loss is declared.
type cold struct {
	resumeWait, recoverWait int64

	of       *table.Table // that groups are of
	groups   []table.ColdRows
	since    map[pair]int64 // when this leader learned that these rows wait; of groups alone
	known    map[pair]int64 // when this process did, whether it led or not
	heard    map[table.Holder]*peerv1.DiskReport
	rounds   map[table.Holder]uint64 // that disks of dead processes had, as others have heard; nil = to be gathered from heard
	judgedAt int64
	passedAt int64                  // 0 = not yet
	toldAt   map[table.Holder]int64 // when it was told last that this process's disk is waited for
	tellAt   int64                  // when to look next whether to
}

// pair is the processes that a cold row names.
type pair struct{ was, stood table.Holder }

// Bounds of a judgement.
const (
	stoppedWait  = 5 * time.Second       // for the other disk, which may have been stopped in order as well
	judgeEvery   = 50 * time.Millisecond // thousands of pairs of processes may be waited for
	maxRecovered = 8192                  // rows of one command: half a megabyte
	tellEvery    = time.Minute
	maxGap       = 5 * time.Second // between two looks at the clock, with leases of a minute 1.5 s; a leader that did not look has slept
	maxReported  = 1024            // incarnations, and streams, of a disk's report: the last ones
)

func newCold(resumeWait, recoverWait time.Duration) cold {
	return cold{resumeWait: int64(resumeWait), recoverWait: int64(recoverWait), judgedAt: math.MinInt64,
		since: map[pair]int64{}, heard: map[table.Holder]*peerv1.DiskReport{}, toldAt: map[table.Holder]int64{}}
}

// hear is told what the disk of a member says, which has just been granted a lease.
func (c *cold) hear(h table.Holder, r *peerv1.DiskReport) {
	c.rounds = nil
	if r == nil {
		delete(c.heard, h)
		return
	}
	c.heard[h] = bounded(r)
}

// bounded returns a report without the oldest of what it says, if it says too much.
func bounded(r *peerv1.DiskReport) *peerv1.DiskReport {
	if max(len(r.Incarnations), len(r.Stopped), len(r.Streams)) <= maxReported {
		return r
	}
	return &peerv1.DiskReport{Durability: r.Durability, Whole: r.Whole, Epoch: r.Epoch,
		Incarnations: r.Incarnations[max(0, len(r.Incarnations)-maxReported):],
		Stopped:      r.Stopped[max(0, len(r.Stopped)-maxReported):],
		Streams:      r.Streams[max(0, len(r.Streams)-maxReported):],
		Rounds:       r.Rounds[max(0, len(r.Rounds)-maxReported):],
	}
}

// anew is what is known when the next term of this process begins.
func (c *cold) anew(resumeWait, recoverWait time.Duration) cold {
	next := newCold(resumeWait, recoverWait)
	next.known, next.passedAt = c.known, c.passedAt
	return next
}

// know is told of each table, whether this process leads or not.
func (c *cold) know(t *table.Table, now int64) {
	if len(c.known) > 0 || t.Cold() > 0 {
		c.known = sinceOf(t.ColdRows(), c.known, now)
	}
}

// sinceOf returns since when rows wait: now, where that was not known before.
func sinceOf(groups []table.ColdRows, before map[pair]int64, now int64) map[pair]int64 {
	since := map[pair]int64{}
	for i := range groups {
		n := pair{groups[i].Was, groups[i].Stood}
		at, ok := before[n]
		if !ok {
			at = now
		}
		since[n] = at
	}
	return since
}

// learned is told of each table of a term.
func (c *cold) learned(t *table.Table, now int64) {
	if t == c.of {
		return
	}
	c.know(t, now)
	c.of, c.groups = t, t.ColdRows()
	c.since, c.judgedAt = sinceOf(c.groups, c.since, now), math.MinInt64
	for h := range c.heard {
		if !t.Holds(h) {
			delete(c.heard, h)
		}
	}
	for h := range c.toldAt {
		if !slices.ContainsFunc(c.groups, func(g table.ColdRows) bool { return g.Names(h) }) {
			delete(c.toldAt, h)
		}
	}
}

// passed is told what the clock shows, many times a second. What a leader has slept through does
// not count: it has heard nobody meanwhile, and if the others have slept as well, nobody has died.
func (c *cold) passed(now int64) {
	gap := now - c.passedAt
	//guard:wait-awake false
	if c.passedAt != 0 && gap > int64(maxGap) {
		for p := range c.since {
			c.since[p] += gap
		}
		for p := range c.known {
			c.known[p] += gap
		}
	}
	c.passedAt = now
}

// found is a disk that counts for a row, and was heard.
type found struct {
	of      table.Holder // by whom it counts
	to      table.Holder // the process that runs on it
	stopped bool         // by that process, in order
	current bool         // all is discarded on it of before the row was lost as a whole
	setBack bool         // it has less than others have heard of it
	report  *peerv1.DiskReport
}

// find returns the disk that one of a row's processes has had, if it was heard.
func (c *cold) find(of table.Holder, gone uint64, alive func(table.Holder) bool) (found, bool) {
	m, is := c.of.Member(of.Node)
	r := c.heard[m.Holder()]
	if of.None() || !is || r == nil ||
		m.Leaves() || //guard:heard-stays
		!alive(m.Holder()) || //guard:heard-lives
		!slices.Contains(r.Incarnations, of.Incarnation) { //guard:disk-of-incarnation
		return found{}, false
	}
	return found{of: of, to: m.Holder(), report: r, current: r.Epoch >= gone, setBack: c.isSetBack(of, r),
		stopped: slices.Contains(r.Stopped, of.Incarnation), //guard:stopped-by-itself slices.Contains(r.Stopped, of.Incarnation) -> len(r.Stopped) > 0
	}, true
}

// isSetBack reports whether a disk has fewer rounds of a process than others have heard of.
func (c *cold) isSetBack(of table.Holder, r *peerv1.DiskReport) bool {
	i := slices.Index(r.Incarnations, of.Incarnation)
	if i < 0 || len(r.Rounds) != len(r.Incarnations) || r.Rounds[i] == 0 {
		return false
	}
	if c.rounds == nil {
		c.rounds = map[table.Holder]uint64{}
		for _, other := range c.heard {
			for _, s := range other.Streams {
				h := table.Holder{Node: s.Node, Incarnation: s.Incarnation}
				c.rounds[h] = max(c.rounds[h], s.PeerRounds)
			}
		}
	}
	//guard:disk-set-back false
	return c.rounds[of] > r.Rounds[i]
}

// verdict is what is to be done about rows.
type verdict struct {
	disk   *found // they go on from it; nil = from none
	giveUp bool
	at     int64 // when there will be another verdict, if nothing is heard meanwhile; MaxInt64 = never
}

// judge returns what is to be done about rows that wait for the same disks.
func (c *cold) judge(g *table.ColdRows, now int64, alive func(table.Holder) bool) verdict {
	owner, hasOwner := c.find(g.Was, g.Gone, alive)
	standby, hasStandby := c.find(g.Stood, g.Gone, alive)
	p := pair{g.Was, g.Stood}
	since := c.since[p]
	best, wait := &owner, c.resumeWait
	switch {
	case !hasOwner && !hasStandby:
		//guard:forgo-by-operator false
		if c.of.Durable >= table.Always {
			return verdict{at: math.MaxInt64}
		}
		return verdict{giveUp: now-since >= c.recoverWait, at: since + c.recoverWait}
	case hasOwner && hasStandby:
		best, wait = further(&owner, &standby), 0
	case hasStandby:
		best = &standby
		fallthrough
	default:
		switch {
		case g.Stood.None():
			wait = 0
		//guard:set-back-waits false
		case best.setBack && c.of.Durable >= table.Always:
			return verdict{at: math.MaxInt64}
		case best.setBack:
			wait = max(wait, c.recoverWait)
		case best.stopped:
			wait = min(wait, int64(stoppedWait))
		}
	}
	until := c.until(p, wait)
	//guard:wait-for-the-other false
	if now < until {
		return verdict{at: until}
	}
	return verdict{disk: best, at: now}
}

// until returns when rows have waited so long for another disk.
func (c *cold) until(p pair, wait int64) int64 {
	//guard:wait-as-leader c.since[p] -> c.known[p]
	return max(c.known[p]+wait, c.since[p]+min(wait, int64(stoppedWait)))
}

// further returns the one of two disks from which a row goes on. Neither lacks anything that the
// cluster has promised.
func further(owner, standby *found) *found {
	switch {
	//guard:further-not-set-back false
	case owner.setBack != standby.setBack:
		if standby.setBack {
			return owner
		}
		return standby
	case owner.current != standby.current:
		if owner.current {
			return owner
		}
		return standby
	case owner.stopped || standby.stopped:
		if owner.stopped {
			return owner
		}
		return standby
	}
	sent, ok := stream(owner, standby.of, true)
	taken, both := stream(standby, owner.of, false)
	//guard:further-disk false
	if ok && both && sent.Session == taken.Session && taken.Number > sent.Number {
		return standby
	}
	return owner
}

// stream returns what a disk says of the stream to another process, or from it.
func stream(d *found, other table.Holder, out bool) (*peerv1.DiskStream, bool) {
	for _, s := range slices.Backward(d.report.Streams) {
		if s.Out == out && s.Node == other.Node && s.Incarnation == other.Incarnation {
			return s, true
		}
	}
	return nil, false
}

// next returns the next command about rows that wait.
func (c *cold) next(now int64, alive func(table.Holder) bool) (table.Command, bool) {
	if len(c.groups) == 0 || c.judgedAt != math.MinInt64 && now-c.judgedAt < int64(judgeEvery) {
		return table.Command{}, false
	}
	c.judgedAt = now
	var r *table.Recover
	var up []table.Holder
	for i := range c.groups {
		g := &c.groups[i]
		switch v := c.judge(g, now, alive); {
		case v.giveUp:
			up = append(up, g.Was)
			if !g.Stood.None() {
				up = append(up, g.Stood)
			}
		case v.disk != nil:
			//guard:whole-of-stopped true
			//guard:set-back-declares !v.disk.setBack -> true
			whole := !v.disk.setBack && v.disk.current && (v.disk.stopped || c.of.Durable == table.Entire)
			if r == nil {
				r = &table.Recover{To: v.disk.to, Of: v.disk.of, Whole: whole}
			}
			if r.To == v.disk.to && r.Of == v.disk.of && r.Whole == whole && len(r.Rows) < maxRecovered {
				r.Rows = append(r.Rows, g.Rows[:min(len(g.Rows), maxRecovered-len(r.Rows))]...)
			}
		}
	}
	if r != nil {
		c.judgedAt = math.MinInt64 // there may be more
		return table.Command{Recover: r}, true
	}
	if len(up) > 0 {
		slices.SortFunc(up, func(a, b table.Holder) int { return compare(a.Node, b.Node) })
		why := fmt.Sprintf("no disk of theirs was heard of for %s", time.Duration(c.recoverWait))
		return table.Command{Forgo: &table.Forgo{Holders: slices.Compact(up), Reason: why}}, true
	}
	return table.Command{}, false
}

// settles reports whether rows have begun to wait a moment ago: those that have died together come
// back together, and the ring is not changed twice.
func (c *cold) settles(now int64) bool {
	for p := range c.since {
		if now < c.until(p, c.resumeWait) {
			return true
		}
	}
	return false
}

// promise returns what the disks of all members promise together, where each of them is whole;
// nothing otherwise.
func (c *cold) promise(t *table.Table, alive func(table.Holder) bool) table.Durability {
	least, most := table.Entire, table.Undurable
	for _, m := range t.Members {
		r := c.heard[m.Holder()]
		//guard:durable-by-all
		if r == nil || !alive(m.Holder()) || !r.Whole || r.Durability == uint32(table.Undurable) || r.Durability > uint32(table.Entire) {
			return table.Undurable
		}
		least, most = min(least, table.Durability(r.Durability)), max(most, table.Durability(r.Durability))
	}
	switch {
	case len(t.Members) == 0:
		return table.Undurable
	case least == table.Entire:
		return table.Entire
	}
	return min(most, table.Always)
}

// agreeable returns what members would agree on now; nothing if it is what they have agreed on.
// They agree on less when nobody promises more than that any more.
func (c *cold) agreeable(t *table.Table, alive func(table.Holder) bool) table.Durability {
	promise := c.promise(t, alive)
	//guard:durable-not-while-cold false
	if promise < t.Durable && t.Cold() > 0 || promise == t.Durable {
		return table.Undurable
	}
	return promise
}

// turnsAway says why a candidate with such a disk is not admitted; "" if it may be.
func turnsAway(t *table.Table, r *peerv1.DiskReport) string {
	switch {
	case t.Durable == table.Undurable:
		return ""
	//guard:admit-durable
	case r == nil || r.Durability == uint32(table.Undurable):
		return "the cluster keeps its state on disk, and this node keeps none: give it a data directory, and the durability that the others have"
	}
	return ""
}

// lessens reports whether a candidate with such a disk answers before the disks have it, where a
// cluster has agreed that nobody does. It may be admitted when that is agreed on no more.
func lessens(t *table.Table, r *peerv1.DiskReport) bool {
	return t.Durable == table.Entire && r.GetDurability() < uint32(table.Entire)
}

// wait is a process whose disk is waited for.
type wait struct {
	of      table.Holder
	rows    int
	until   int64 // when its rows go on without it, if nothing else is heard; MaxInt64 = never
	emptied bool  // its node is there, on another disk
	setBack bool  // it is heard, and was set back: others are waited for
}

// tell returns the processes whose disks are waited for, by node: those of which nothing was told
// for a minute.
func (c *cold) tell(now int64, alive func(table.Holder) bool) []wait {
	by := map[table.Holder]*wait{}
	for i := range c.groups {
		g := &c.groups[i]
		v := c.judge(g, now, alive)
		if v.disk != nil || v.giveUp {
			continue
		}
		for _, h := range [...]table.Holder{g.Was, g.Stood} {
			f, heard := c.find(h, g.Gone, alive)
			if h.None() || heard && !f.setBack {
				continue
			}
			w := by[h]
			if w == nil {
				w = &wait{of: h, emptied: c.emptied(h, alive), setBack: heard}
				by[h] = w
			}
			w.rows += len(g.Rows)
			w.until = max(w.until, v.at)
		}
	}
	var out []wait
	for h, w := range by {
		at, told := c.toldAt[h]
		if told && now-at < int64(tellEvery) {
			continue
		}
		c.toldAt[h] = now
		out = append(out, *w)
	}
	slices.SortFunc(out, func(a, b wait) int { return compare(a.of.Node, b.of.Node) })
	return out
}

// emptied reports whether the node of a process is there, and says that it has another disk.
func (c *cold) emptied(h table.Holder, alive func(table.Holder) bool) bool {
	m, is := c.of.Member(h.Node)
	if !is || !alive(m.Holder()) {
		return false
	}
	r := c.heard[m.Holder()]
	return r != nil && len(r.Incarnations) > 0 && !slices.Contains(r.Incarnations, h.Incarnation)
}
