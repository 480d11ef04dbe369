package handoff

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/handoff/feed"
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
	// pollEvery is how often the source looks whether standbys keep up.
	pollEvery = 50 * time.Millisecond
	// retryCopy is how long after the failure of a stream the next one begins.
	retryCopy = time.Second
	// copyPatience is how long a copy leaves a link to what changes: with steps of 100 KB, it
	// sends 5 MB/s at least.
	copyPatience = 20 * time.Millisecond
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
	// Heard reports whether the leader has answered this node what it asked after a
	// moment, and has the node ask if not. Default: it always has.
	Heard func(since int64) bool
	Rule  *serving.Rule
	// Disk is that of this node, for which its answers wait; and for those of standbys as its
	// settings say, where the table says that disks count. nil = it keeps nothing on disk.
	Disk  Disk
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

// Source is the owner's side: it sends what it decides to the processes that hold copies,
// makes copies where the table wants them, and hands rows over. It is the Sink of
// the store.
type Source struct {
	cfg     Config
	store   atomic.Pointer[owner.Store]
	routes  atomic.Pointer[routes]
	pulse   atomic.Pointer[chan struct{}] // closed and replaced now and then: waiters re-check the lease
	wake    chan struct{}                 // capacity 1: there is something to look at
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup
	closing sync.WaitGroup // of feeds
	pace    pace           // of copies
	always  [256]bool      // by kind: its answers wait for disks

	totals totals
	full   full

	mu      sync.Mutex
	plan    plan   // guarded by mu
	session uint64 // guarded by mu: of the last feed that was made
	closed  bool   // guarded by mu
}

// New returns a source that does nothing before the first table.
func New(cfg Config) *Source {
	s := &Source{
		cfg: cfg, wake: make(chan struct{}, 1), plan: newPlan(),
		pace: pace{rate: cfg.CopyRate},
	}
	if cfg.Disk != nil {
		s.plan.interval = cfg.Disk.Interval()
		for _, k := range owner.Kinds() {
			s.always[k] = cfg.Disk.Always(k)
		}
	}
	if s.cfg.Heard == nil {
		s.cfg.Heard = func(int64) bool { return true }
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.beat()
	s.routes.Store(&routes{table: s.plan.table, changed: make(chan struct{})})
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
	s.closed = true
	links := s.plan.links
	s.plan.links = map[table.Holder]*link{}
	s.mu.Unlock()
	for _, l := range links {
		l.feed.Close()
	}
	s.closing.Wait()
}

func (s *Source) run() {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	cleaned := s.cfg.Rule.CleanChanged()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
		case <-cleaned:
		case <-tick.C:
			s.beat()
		}
		cleaned = s.cfg.Rule.CleanChanged() // before step asks whether all is clean
		s.step()
	}
}

// beat wakes the waiters to re-check the lease.
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
	was, self := s.plan.table, s.cfg.Rule.Self()
	if self != s.plan.self {
		for _, l := range s.plan.links {
			s.dropLocked(l)
		}
		s.plan.self, was = self, &table.Table{}
	}
	s.plan.learn(was, t)
	s.fenceLocked(was, t)
	//guard:links-to-removed
	for _, l := range s.plan.removed() {
		s.dropLocked(l)
	}
	s.publishLocked()
	s.nudge()
}

// linkLocked returns the link to a process, made if there is none and it may be.
func (s *Source) linkLocked(to table.Holder) *link {
	if l := s.plan.links[to]; l != nil {
		return l
	}
	s.session++
	var always func(owner.Kind) bool
	if s.cfg.Disk != nil {
		always = func(k owner.Kind) bool { return s.always[k] }
	}
	l := &link{to: to, disk: table.DiskOf(to), feed: feed.NewSender(feed.SenderConfig{
		Source: s.plan.self, Target: to, Session: s.session, Encode: s.encode,
		Dial: func(ctx context.Context) (grpc.ClientConnInterface, error) { return s.cfg.Dial(ctx, to) },
		// Not that of the serving rule, which learns of a table after this source: a
		// target that is behind would not know yet whose records they are.
		Epoch: func() uint64 { return s.routes.Load().table.Epoch }, //guard:feed-names-its-table s.routes.Load().table.Epoch -> 1
		Now:   s.cfg.Now, Always: always, Log: s.cfg.Log.With("to", to.Node),
	})}
	if s.closed { // a table has come behind the end; what its answers wait for acknowledges nothing
		l.feed.Close()
	}
	s.plan.links[to] = l
	return l
}

// dropLocked ends a link.
func (s *Source) dropLocked(l *link) {
	if s.plan.links[l.to] == l {
		delete(s.plan.links, l.to)
	}
	var refused *feed.Refused
	if errors.As(l.feed.Err(), &refused) && refused.Reason == peerv1.FeedReason_FEED_REASON_NOT_TAKEN {
		s.totals.refused.Add(1)
		s.full.by.Store(&l.to.Node)
	}
	l.jobs = nil
	for end, p := range s.plan.syncs {
		if p.link == l {
			delete(s.plan.syncs, end)
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
