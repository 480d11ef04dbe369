package handoff

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Times, with their reasons.
const (
	// slowStandby is how long a synced standby may keep answers waiting before it
	// is taken out.
	slowStandby = 250 * time.Millisecond
	// spareAfter is how long a standby that was taken out may be silent before another
	// one is made. It is not dead if it answers within that, and its copy is nearly whole.
	spareAfter = 500 * time.Millisecond
	// look is how often the source looks whether standbys keep up.
	look = 50 * time.Millisecond
	// retryCopy is how long after the failure of a stream the next one begins.
	retryCopy = time.Second
	// leaveTime is how long answers that may be told take to get out.
	leaveTime = 2 * time.Millisecond
	// maxSyncs is how many standbys a source has put in at a time. Answers wait for a
	// standby from before it is proposed, and a cluster that forms has one for every
	// pair of its nodes: more at a time would only queue at the leader.
	maxSyncs = 4
	// proposeTime bounds one try to have a command committed, and proposePause is
	// between two.
	proposeTime  = time.Second
	proposePause = 20 * time.Millisecond
)

// Config is what a Source needs.
type Config struct {
	// Propose has a command agreed on. A *table.Refused says that it changed
	// nothing, any other error that its outcome is unknown.
	Propose func(ctx context.Context, c table.Command) (epoch uint64, err error)
	// Dial connects to the intake of another member.
	Dial func(ctx context.Context, to table.Holder) (grpc.ClientConnInterface, error)
	// Heard says whether the leader has answered this node what it asked after a
	// moment, and has the node ask if not. Default: it always has.
	Heard func(since int64) bool
	Rule  *serving.Rule
	NewID func() string // of commands
	Now   func() int64
	// CopyRate bounds what all copies together send, in bytes a second; what changes
	// meanwhile is not counted, and never held back. 0 = no limit.
	CopyRate int64
	// Frozen is told for how long some rows were frozen to be handed over. It must
	// not wait. nil = nobody is.
	Frozen func(rows int, long time.Duration)
	Log    *slog.Logger
}

// Source is the owner's side: it sends what it decides to those who hold copies,
// makes copies where the table wants them, and hands rows over. It is the Sink of
// the store.
type Source struct {
	cfg     Config
	store   atomic.Pointer[owner.Store]
	routes  atomic.Pointer[routes]
	pulse   atomic.Pointer[chan struct{}] // closed and replaced now and then: who waits looks at the lease
	wake    chan struct{}                 // capacity 1: there is something to look at
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup
	closing sync.WaitGroup // of feeds
	pace    pace           // of copies

	mu                              sync.Mutex
	table                           *table.Table            // guarded by mu
	own                             []int                   // guarded by mu: the rows of table that are this process's, in order
	self                            table.Holder            // guarded by mu
	session                         uint64                  // guarded by mu: of the last feed that was made
	links                           map[table.Holder]*link  // guarded by mu: to those who have or get copies
	retry                           map[table.Holder]int64  // guarded by mu: when a new link may be made, after one has failed
	syncs                           map[uint64]*pendingSync // guarded by mu: by end of row; proposed and undecided
	syncing                         int                     // guarded by mu: Syncs that are being proposed
	flips                           map[table.Holder]bool   // guarded by mu: targets to which rows are being handed over
	gained                          []serving.Range         // guarded by mu: rows that came to this process and are not looked through yet
	gone                            []serving.Range         // guarded by mu: rows that have left it, as well
	copied, synced, handed, dropped atomic.Int64            // see Totals
	copiedBytes, copiedRows, noRoom atomic.Int64            // likewise
	full                            full
}

// link is the stream to one process, and the copies that are made over it.
type link struct {
	to   table.Holder
	feed *feed.Sender
	jobs []*job // guarded by Source.mu
	busy bool   // guarded by Source.mu: a command about it is being proposed
	// behindAt is when it was found not to keep up, 0 if it does; guarded by Source.mu.
	behindAt int64
}

// job is a copy of some rows that is being made, or was and is kept up.
type job struct {
	to     table.Holder
	ranges []serving.Range // guarded by Source.mu; only shrinks
	caught bool            // guarded by Source.mu: the target has all of it

	began    int64 // by Config.Now
	expected int64 // about how many objects there are
	sent     sent
}

// pendingSync is a Sync that was proposed, or is about to be.
type pendingSync struct{ link *link }

// New returns a source that does nothing before the first table.
func New(cfg Config) *Source {
	s := &Source{
		cfg: cfg, wake: make(chan struct{}, 1), table: &table.Table{},
		links: map[table.Holder]*link{}, retry: map[table.Holder]int64{},
		syncs: map[uint64]*pendingSync{}, flips: map[table.Holder]bool{},
		pace: pace{rate: cfg.CopyRate},
	}
	if s.cfg.Heard == nil {
		s.cfg.Heard = func(int64) bool { return true }
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.beat()
	s.routes.Store(&routes{table: s.table, changed: make(chan struct{})})
	return s
}

// Run makes copies of what the store holds and hands rows over, until Close.
func (s *Source) Run(store *owner.Store) {
	s.store.Store(store)
	s.work.Go(s.run)
}

// Close ends all streams.
func (s *Source) Close() {
	s.cancel()
	s.work.Wait()
	s.beat()
	s.mu.Lock()
	links := s.links
	s.links = map[table.Holder]*link{}
	s.mu.Unlock()
	for _, l := range links {
		l.feed.Close()
	}
	s.closing.Wait()
}

func (s *Source) run() {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
		case <-tick.C:
			s.beat()
		}
		s.step()
	}
}

// beat has those who wait look whether they still may.
func (s *Source) beat() {
	next := make(chan struct{})
	if was := s.pulse.Swap(&next); was != nil {
		close(*was)
	}
}

// nudge has run look again.
func (s *Source) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Learn takes in the next table, before the node acts by it. Tables come in order.
func (s *Source) Learn(t *table.Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, self := s.table, s.cfg.Rule.Self()
	if self != s.self {
		for _, l := range s.links {
			s.dropLocked(l)
		}
		s.self, was = self, &table.Table{}
	}
	known := t.Epoch
	//guard:copy-of-missed-tables
	if t.Epoch != was.Epoch+1 {
		// Tables were missed. In one of them somebody may have had to discard a copy
		// that is being made here: of any row if another ring was wanted there, or else of
		// one that has changed since.
		//guard:copy-of-changed-rows
		known = was.Epoch
		for _, l := range s.links {
			if t.WantSince != was.WantSince {
				l.jobs = nil
			}
		}
	}
	s.table, s.own = t, nil
	for i := range t.Rows {
		if t.Rows[i].Owner != s.self || s.self.None() {
			continue
		}
		s.own = append(s.own, i)
		after, upTo := t.Segment(i)
		if w := was.Find(upTo); w < 0 || was.Rows[w].Owner != s.self {
			s.gained = append(s.gained, serving.Range{After: after, UpTo: upTo})
		}
	}
	for i := range was.Rows {
		after, upTo := was.Segment(i)
		if n := t.Find(upTo); was.Rows[i].Owner == s.self && (n < 0 || t.Rows[n].Owner != s.self) {
			s.gone = append(s.gone, serving.Range{After: after, UpTo: upTo})
		}
	}
	for _, l := range s.links {
		s.shrinkLocked(l, known)
	}
	s.publishLocked()
	s.nudge()
}

// shrinkLocked takes out of the copies what the table does not want at the target
// any more, and rows that have changed after an epoch: the target discards it. What was
// taken out has to be copied anew should it be wanted again.
func (s *Source) shrinkLocked(l *link, known uint64) {
	kept := l.jobs[:0]
	for _, j := range l.jobs {
		var ranges []serving.Range
		for _, i := range s.own {
			after, upTo := s.table.Segment(i)
			if r := (serving.Range{After: after, UpTo: upTo}); covers(j.ranges, r) &&
				s.table.MayHold(i, l.to) && //guard:copy-shrinks
				s.table.Rows[i].Since <= known {
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

// covers says whether a segment lies in one of the ranges as a whole.
func covers(ranges []serving.Range, seg serving.Range) bool {
	i, ok := find(ranges, seg.UpTo)
	if !ok {
		return false
	}
	r := ranges[i]
	return r.After == r.UpTo || seg.After != seg.UpTo && seg.UpTo-seg.After <= seg.UpTo-r.After
}

// find is the range that a position lies in. Ranges are in order and apart.
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

// linkLocked is the link to a process, made if there is none and it may be.
func (s *Source) linkLocked(to table.Holder) *link {
	if l := s.links[to]; l != nil {
		return l
	}
	s.session++
	l := &link{to: to, feed: feed.NewSender(feed.SenderConfig{
		Source: s.self, Target: to, Session: s.session, Encode: record.Append,
		Dial: func(ctx context.Context) (grpc.ClientConnInterface, error) { return s.cfg.Dial(ctx, to) },
		// Not that of the serving rule, which learns of a table after this source: a
		// target that is behind would not know yet whose records they are.
		Epoch: func() uint64 { return s.routes.Load().table.Epoch }, //guard:feed-names-its-table s.routes.Load().table.Epoch -> 1
		Now:   s.cfg.Now, Log: s.cfg.Log.With("to", to.Node),
	})}
	s.links[to] = l
	return l
}

// dropLocked ends a link.
func (s *Source) dropLocked(l *link) {
	if s.links[l.to] == l {
		delete(s.links, l.to)
	}
	var refused *feed.Refused
	if errors.As(l.feed.Err(), &refused) && refused.Reason == peerv1.FeedReason_FEED_REASON_NOT_TAKEN {
		s.noRoom.Add(1)
		s.full.by.Store(&l.to.Node)
	}
	l.jobs = nil
	for end, p := range s.syncs {
		if p.link == l {
			delete(s.syncs, end)
		}
	}
	s.closing.Go(l.feed.Close) // which waits for a dial, at worst
}

// propose has a command agreed on, however long that takes, and returns nil or
// why it was refused, when this node goes by a table that shows it. The error is
// another one only when the source is closed.
//
// The commands here may be proposed again when their outcome is unknown: each
// names what it expects, and once it was refused no earlier attempt can take
// effect any more.
func (s *Source) propose(c table.Command) error {
	for {
		ctx, cancel := context.WithTimeout(s.ctx, proposeTime)
		epoch, err := s.cfg.Propose(ctx, c)
		cancel()
		//guard:unknown-is-no-refusal true
		if err == nil || errors.As(err, new(*table.Refused)) {
			//guard:proposed-and-applied
			for rt := s.routes.Load(); rt.table.Epoch < epoch; rt = s.routes.Load() {
				select {
				case <-rt.changed:
				case <-s.ctx.Done():
					return s.ctx.Err()
				}
			}
			return err
		}
		s.cfg.Log.Debug("proposing again", "command", c.Kind(), "error", err)
		if !s.pause(proposePause) {
			return s.ctx.Err()
		}
	}
}

// pause waits, and returns false if the source is closed.
func (s *Source) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}
