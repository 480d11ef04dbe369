package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/serf/serf"
)

const (
	// pollEvery is how often members are looked at without an event: serf has
	// none for a member that begins to leave.
	pollEvery = time.Second
	// eventRoom is the number of serf's events that wait for the drain.
	eventRoom = 256
)

// ErrStopped is returned by calls on a pool that was stopped or has left.
var ErrStopped = errors.New("the gossip agent has stopped or left")

// Pool is the node's place among the members that gossip.
type Pool struct {
	cfg   Config
	log   *slog.Logger
	lines *logWriter // of serf and memberlist
	serf  *serf.Serf
	addr  string // advertised

	snapshot atomic.Pointer[snapshot]
	around   atomic.Pointer[around]
	events   chan Event
	queries  chan *serf.Query
	seen     *seen
	began    time.Time
	kick     chan struct{} // there is a reason to look
	turned   chan struct{} // there may be a reason to join
	claims   *claims
	dropped  atomic.Uint64
	// unanswered counts the queries for which there was no room.
	unanswered atomic.Uint64
	tries      atomic.Uint64
	known      atomic.Bool // the node has heard of its cluster
	changes    atomic.Uint64

	touchMu sync.Mutex // guards touched
	touched map[string]bool

	setMu sync.Mutex // serializes SetSelf, which serf's tags need

	mu       sync.Mutex    // guards what is below
	leaving  chan struct{} // closed when the leave is over; nil without one
	leaveErr error         // read after leaving is closed
	stopped  bool

	halt    context.Context // ends when the pool stops
	cancel  context.CancelFunc
	running sync.WaitGroup
	once    sync.Once
}

// snapshot is what readers see. It does not change.
type snapshot struct {
	facts []Fact // by name
	next  chan struct{}
}

// Start starts the agent and returns; joining goes on in the background. The
// first snapshot holds the node itself.
func Start(cfg Config) (*Pool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	logger, lines := newLogger(cfg.Log)
	w, err := newWire(cfg.Transport, cfg.Bind, logger)
	if err != nil {
		return nil, err
	}
	conf := cfg.serfConfig()
	if err := w.advertise(conf.MemberlistConfig, cfg.Advertise, cfg.Bind); err != nil {
		return nil, errors.Join(err, w.Shutdown())
	}
	p := &Pool{
		cfg: cfg, log: cfg.Log, lines: lines, began: time.Now(), seen: newSeen(), queries: make(chan *serf.Query, maxQueries),
		events: make(chan Event, maxEvents), kick: make(chan struct{}, 1), turned: make(chan struct{}, 1),
		touched: map[string]bool{},
	}
	p.claims = newClaims(p.pollSoon)
	fromSerf := make(chan serf.Event, eventRoom)
	conf.EventCh, conf.Merge = fromSerf, p.claims
	conf.LogOutput, conf.Logger = nil, logger
	conf.MemberlistConfig.LogOutput, conf.MemberlistConfig.Logger = nil, logger
	conf.MemberlistConfig.Transport = w
	if p.serf, err = serf.Create(conf); err != nil {
		return nil, errors.Join(fmt.Errorf("gossip: %w", err), w.Shutdown())
	}
	local := p.serf.LocalMember()
	p.addr = addrOf(local.Addr, local.Port)
	p.halt, p.cancel = context.WithCancel(context.Background())
	p.snapshot.Store(&snapshot{next: make(chan struct{})})
	p.around.Store(&around{})
	p.known.Store(cfg.Self.UID != "")
	o := &observer{p: p, debouncer: newDebouncer(cfg.Self.Node, cfg.Settle)}
	o.poll()
	p.running.Go(func() { p.drain(fromSerf) })
	p.running.Go(p.answer)
	p.running.Go(o.run)
	p.running.Go(p.join)
	return p, nil
}

// Addr returns the advertised gossip address, host:port.
func (p *Pool) Addr() string { return p.addr }

// Facts returns what gossip says now, by name, oneself included. The slice is shared:
// do not change it.
func (p *Pool) Facts() []Fact { return p.snapshot.Load().facts }

// Changed is closed when Facts returns something newer than at this call. Get it
// before Facts, and again afterwards, to miss nothing.
func (p *Pool) Changed() <-chan struct{} { return p.snapshot.Load().next }

// Joined reports whether another node of the cluster is alive in the pool.
func (p *Pool) Joined() bool { return p.around.Load().ours > 0 }

// SetSelf changes what the node says of itself, and tells the pool. Node and
// Cluster stay as they are. It takes until somebody was told, a moment; after
// seconds without that it returns an error, though the change stands and goes out
// with the next exchange.
func (p *Pool) SetSelf(s Self) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Node != p.cfg.Self.Node || s.Cluster != p.cfg.Self.Cluster {
		return fmt.Errorf("a node keeps its name and cluster: %s of %s", p.cfg.Self.Node, p.cfg.Self.Cluster)
	}
	p.setMu.Lock()
	defer p.setMu.Unlock()
	if !p.ready() {
		return ErrStopped
	}
	p.known.Store(s.UID != "")
	if err := p.serf.SetTags(s.tags()); err != nil {
		return fmt.Errorf("nobody was told yet: %w", err)
	}
	return nil
}

// ready reports whether the pool has neither stopped nor begun to leave.
func (p *Pool) ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.stopped && p.leaving == nil
}

// Leave tells the pool that this node goes, and waits until word is out. It takes
// a second or two, some more when nobody answers. When ctx ends first its error
// is returned and the leave goes on. Stop is still to be called. A second call
// waits for the first.
func (p *Pool) Leave(ctx context.Context) error {
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return ErrStopped
	}
	if p.leaving == nil {
		over := make(chan struct{})
		p.leaving = over
		p.running.Go(func() {
			defer close(over)
			p.leaveErr = p.serf.Leave()
		})
	}
	over := p.leaving
	p.mu.Unlock()
	select {
	case <-over:
		return p.leaveErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop ends the agent at once; to the others it fails. If a leave is under way it
// is waited for first, because serf cannot be stopped in the midst of one. Stop
// may be called again and from several goroutines. A probe that memberlist has under
// way runs out its time, up to eight probe intervals when the network is bad, and
// touches nothing any more.
func (p *Pool) Stop() {
	p.once.Do(func() {
		p.mu.Lock()
		p.stopped = true
		leaving := p.leaving
		p.mu.Unlock()
		if leaving != nil {
			<-leaving
		}
		p.lines.end()
		if err := p.serf.Shutdown(); err != nil {
			p.log.Warn("stopping gossip", "error", err)
		}
		p.cancel() // after serf, whose events are to be drained until then
		p.running.Wait()
	})
}

// Stats are numbers for metrics and status.
type Stats struct {
	Changes       uint64 // snapshots published
	JoinTries     uint64 // addresses that were tried
	EventsDropped uint64 // user events that nobody read in time
	Unanswered    uint64 // queries that came faster than they could be answered
	Health        int    // memberlist's health score: 0 is well, more is slow or deaf
	Queued        int    // words of serf that wait to be sent
}

// Stats returns the present numbers.
func (p *Pool) Stats() Stats {
	s := Stats{Changes: p.changes.Load(), JoinTries: p.tries.Load(), EventsDropped: p.dropped.Load(), Unanswered: p.unanswered.Load(), Health: p.serf.Memberlist().GetHealthScore()}
	for name, v := range p.serf.Stats() {
		if strings.HasSuffix(name, "_queue") {
			var n int
			_, _ = fmt.Sscan(v, &n)
			s.Queued += n
		}
	}
	return s
}

// pollSoon wakes the observer. It does not wait.
func (p *Pool) pollSoon() { wake(p.kick) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// observer owns the facts. Its methods are called by one goroutine.
type observer struct {
	p         *Pool
	debouncer *debouncer
	former    []string // addresses of ours that were alive, newest last
}

// run looks when there is a reason, and each second.
func (o *observer) run() {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	wait := o.poll()
	for {
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-o.p.kick:
		case <-tick.C:
		case <-due:
		case <-o.p.halt.Done():
			return
		}
		wait = o.poll()
	}
}

// poll takes in the members and shows what has settled. It returns how long to
// wait until something may have settled, 0 for no time in particular.
func (o *observer) poll() time.Duration {
	p := o.p
	p.touchMu.Lock()
	touched := p.touched
	p.touched = map[string]bool{}
	p.touchMu.Unlock()
	now := time.Now()
	members := map[string]Fact{}
	for _, m := range p.serf.Members() {
		members[m.Name] = newFact(p.cfg.Self.Cluster, m)
	}
	o.survey(now, members)
	o.debouncer.update(now, members, touched)
	changed, next := o.debouncer.turn(now)
	if changed {
		o.publish()
	}
	if next.IsZero() {
		return 0
	}
	return max(next.Sub(now), time.Millisecond)
}

// survey finds conflicts of names, and what the joiner wants to know.
func (o *observer) survey(now time.Time, members map[string]Fact) {
	p := o.p
	a := &around{alive: map[string]bool{}}
	known := map[string]string{}
	for name, f := range members {
		if f.State != Alive {
			continue
		}
		known[name] = f.Addr
		a.alive[f.Addr] = true
		if c, ok := p.claims.of(now, name, f.Addr); ok {
			f.Conflict = c.addr
			members[name] = f
			if name == p.cfg.Self.Node {
				a.named = true
			}
		}
		if f.Ours && name != p.cfg.Self.Node {
			a.ours++
			if !slices.Contains(o.former, f.Addr) {
				o.former = append(o.former, f.Addr)
				o.former = o.former[max(len(o.former)-maxFormer, 0):]
			}
		}
	}
	a.former = slices.Clone(o.former)
	p.claims.known.Store(&known)
	old := p.around.Swap(a)
	if (old.ours == 0) != (a.ours == 0) || a.named != old.named {
		wake(p.turned)
	}
}

// publish makes what is shown the next snapshot.
func (o *observer) publish() {
	next := &snapshot{next: make(chan struct{})}
	for _, name := range slices.Sorted(maps.Keys(o.debouncer.shown)) {
		next.facts = append(next.facts, o.debouncer.shown[name])
	}
	old := o.p.snapshot.Swap(next)
	o.p.changes.Add(1)
	o.report(old.facts, next.facts)
	close(old.next)
}

// report logs what has changed.
func (o *observer) report(old, now []Fact) {
	before := map[string]Fact{}
	for _, f := range old {
		before[f.Name] = f
	}
	for _, f := range now {
		was := before[f.Name]
		delete(before, f.Name)
		if f.Conflict != "" && f.Conflict != was.Conflict {
			o.p.log.Warn("two processes claim one name in the pool; if this node was just restarted at another address, it passes when the old one is found to have failed",
				"name", f.Name, "one", f.Addr, "other", f.Conflict, "hint", "give every node an id of its own")
		}
		was.Conflict, f.Conflict = "", ""
		if was != f {
			o.p.log.Info("member", "fact", f.String())
		}
	}
	for name := range before {
		o.p.log.Info("member is forgotten", "name", name)
	}
}
