package handoff

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/ring/epoch/table"
)

// DefaultCopyRate is that of Config.CopyRate for a node of its own, in bytes a
// second: a quarter of a gigabit link, and about half of a core at either end. A
// million objects with a request id each, of some 85 bytes, take 3 s, and what a
// node owns that is full at its defaults is copied well within the time that it has
// to drain itself.
const DefaultCopyRate = 32 << 20

// Bounds of a pace, with their reasons.
const (
	// paceBurst is how much a copy may be behind its rate and still catch up: a
	// timer is late by a millisecond or two, on a busy machine by more.
	paceBurst = 10 * time.Millisecond
	// paceStep is the shortest pause of a copy: timers are not finer.
	paceStep = 2 * time.Millisecond
)

// maxShown bounds the lists of a Progress.
const maxShown = table.MaxMembers

// Progress is how far the copies of a source are.
type Progress struct {
	Copies   []Copy    // under way, by target, at most as many as a cluster may have members
	Standbys []Standby // that answers wait for, by node, as many at most
	Totals   Totals
}

// Copy is a copy of some rows that is being made, or that is kept up until its
// target becomes the standby or the owner.
type Copy struct {
	To       string        // node
	Rows     int           // that the target is still to have
	Objects  int64         // sent so far
	Expected int64         // about how many objects there are in all
	Bytes    int64         // sent so far
	Age      time.Duration // since it began
	Caught   bool          // the target has all of it
}

// Standby is a process that answers wait for.
type Standby struct {
	Node string
	Rows int           // whose answers wait for it
	Lag  time.Duration // for how long the oldest record has been waiting that it has not acknowledged; 0 = there is none
	// DiskLag is for how long the oldest one has been waiting of which it has not said that it is on its disk; 0 = there is none, or
	// disks do not count.
	DiskLag time.Duration
}

// Totals are counts since a source was made.
type Totals struct {
	Objects int64 // sent by copies, those that failed later included
	Bytes   int64 // of these
	Copied  int64 // rows of copies that were whole at their target
	Synced  int64 // rows that got a standby
	Handed  int64 // rows that were handed over
	Dropped int64 // rows whose standby was taken out
	Refused int64 // streams that ended because their target had no room
}

// totals counts what Totals shows.
type totals struct{ objects, bytes, copied, synced, handed, dropped, refused atomic.Int64 }

// full is which target had no room last.
type full struct {
	by   atomic.Pointer[string] // its node; nil = none had too little
	seen atomic.Int64           // of Totals.Refused, at the last step
	at   atomic.Int64           // when a step saw that grow
}

// fullFor is how long a target counts as full: streams to it are tried again within
// seconds, so a minute without a refusal says that it has room.
const fullFor = int64(time.Minute)

// noticeFull notes when a target refused copies. Only step calls it.
func (s *Source) noticeFull(now int64) {
	if n := s.totals.refused.Load(); n != s.full.seen.Swap(n) {
		s.full.at.Store(now)
	}
}

// Full returns the node that has refused copies for want of room within the last minute, ""
// if none has.
func (s *Source) Full() string {
	by := s.full.by.Load()
	if by == nil || s.full.at.Load() == 0 || s.cfg.Now()-s.full.at.Load() > fullFor {
		return ""
	}
	return *by
}

// sent is what a copy has sent so far.
type sent struct{ objects, bytes atomic.Int64 }

// Progress says how far copies are now.
func (s *Source) Progress() Progress {
	now := s.cfg.Now()
	p := Progress{Totals: Totals{
		Objects: s.totals.objects.Load(), Bytes: s.totals.bytes.Load(), Copied: s.totals.copied.Load(), Synced: s.totals.synced.Load(),
		Handed: s.totals.handed.Load(), Dropped: s.totals.dropped.Load(), Refused: s.totals.refused.Load(),
	}}
	rows := map[*link]int{}
	for _, r := range s.routes.Load().rows {
		for _, l := range r.wait {
			rows[l]++
		}
	}
	for l, n := range rows {
		b := Standby{Node: l.to.Node, Rows: n, Lag: time.Duration(l.feed.Lag(now))}
		if s.cfg.Disk != nil && durable(s.routes.Load().table) {
			behind, _ := l.feed.KeptBehind(now)
			b.DiskLag = time.Duration(behind)
		}
		p.Standbys = append(p.Standbys, b)
	}
	s.mu.Lock()
	for _, l := range s.plan.links {
		for _, j := range l.jobs {
			p.Copies = append(p.Copies, Copy{
				To: l.to.Node, Rows: len(j.ranges), Objects: j.sent.objects.Load(), Expected: j.expected, Bytes: j.sent.bytes.Load(),
				Age: time.Duration(max(now-j.began, 0)), Caught: j.caught,
			})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(p.Copies, func(a, b Copy) int { return cmp.Or(cmp.Compare(a.To, b.To), cmp.Compare(b.Age, a.Age)) })
	slices.SortFunc(p.Standbys, func(a, b Standby) int { return cmp.Compare(a.Node, b.Node) })
	p.Copies, p.Standbys = p.Copies[:min(len(p.Copies), maxShown)], p.Standbys[:min(len(p.Standbys), maxShown)]
	return p
}

// Streams returns how far the streams to other processes are. What has a number was decided
// before: it is in the store.
func (s *Source) Streams() []feed.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]feed.Stream, 0, len(s.plan.links))
	for _, l := range s.plan.links {
		all = append(all, l.feed.Stream())
	}
	return all
}

// wanted reports whether a copy is still to be made.
func (s *Source) wanted(l *link, j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(l.jobs, j)
}

// pace spreads what all copies of a source send over time.
type pace struct {
	rate int64 // bytes a second; 0 = no limit
	mu   sync.Mutex
	due  int64 // guarded by mu: when all that was sent so far has had its time
}

// spend takes note of bytes that were sent at now, and returns how long nothing
// more is to be sent by the copy that sent them.
func (p *pace) spend(bytes, now int64) time.Duration {
	if p.rate <= 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = max(p.due, now-int64(paceBurst)) + int64(float64(bytes)/float64(p.rate)*float64(time.Second))
	if wait := time.Duration(p.due - now); wait >= paceStep {
		return wait
	}
	return 0
}
