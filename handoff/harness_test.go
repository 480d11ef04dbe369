package handoff

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The harness is some processes with what they have in a node: a store, a rule, a
// source and a target, and gRPC between them over wires that can be stalled. Only
// the agreement is made by hand: a table under a mutex. A test may hold commands
// back, lose what became of them, and keep tables from a process.

// fate is what becomes of a command that a process proposes.
type fate int

const (
	passes  fate = iota // it is applied, and the proposer hears of it
	held                // nothing happens before release, or for ever
	lost                // it is applied, and the proposer hears that the outcome is unknown
	refused             // it is not applied, and the proposer hears so after a while
)

// How long proposals take: without that, a source that proposes again and again
// would do so and no time would pass.
const (
	roundTrip = time.Millisecond
	refusal   = 20 * time.Millisecond
)

var errUnknown = errors.New("the outcome is unknown")

// world is the agreement and the processes.
type world struct {
	t     *testing.T
	began time.Time
	disks func(p *process) *fakeDisk // of processes that start; nil = they have none
	ids   atomic.Uint64              // of commands
	looks atomic.Int64               // at the clock

	mu           sync.Mutex
	table        *table.Table              // guarded by mu
	fates        map[string]fate           // guarded by mu: by kind of command
	waiting      []table.Command           // guarded by mu: proposed and held, each id once
	proposed     map[string]int            // guarded by mu: by kind
	beforeJudged func(c table.Command)     // guarded by mu: called before a command is judged
	nodes        map[table.Holder]*process // guarded by mu
}

// process is a node in one incarnation.
type process struct {
	w      *world
	self   table.Holder
	rule   *serving.Rule
	store  *owner.Store
	source *Source
	target *Target
	disk   *fakeDisk // nil = it has none
	l      *bufconn.Listener
	into   func(r *owner.Record) // called before a record goes to the source, under the lock of a shard

	mu      sync.Mutex
	known   *table.Table            // guarded by mu: that it goes by
	changed chan struct{}           // guarded by mu: closed when there is another one
	deaf    bool                    // guarded by world.mu: tables do not reach it
	unheard atomic.Bool             // the leader's answers do not reach it
	dirty   bool                    // guarded by mu: what it loses is not discarded before clean
	lost    []serving.Range         // guarded by mu: to be discarded
	wires   map[table.Holder]*wires // guarded by mu: to others
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, began: time.Now(), fates: map[string]fate{}, proposed: map[string]int{}, nodes: map[table.Holder]*process{}}
	w.table, _ = (&table.Table{}).Apply(table.Command{Init: &table.Init{Cluster: "test", Epoch: 100}})
	return w
}

func (w *world) now() int64 {
	w.looks.Add(1)
	return int64(time.Since(w.began)) + 1
}

// start admits a process. It may act for an hour.
func (w *world) start(node string, incarnation uint64) *process {
	w.t.Helper()
	p := &process{
		w: w, self: table.Holder{Node: node, Incarnation: incarnation}, l: bufconn.Listen(1 << 16),
		known: &table.Table{}, changed: make(chan struct{}), wires: map[table.Holder]*wires{},
	}
	p.rule = serving.New(p.self)
	p.rule.Extend(int64(time.Hour))
	log := slog.New(slog.DiscardHandler)
	conf := Config{Propose: p.propose, Dial: p.dial, Rule: p.rule, NewID: w.newID, Now: w.now, Log: log,
		Heard: func(int64) bool { return !p.unheard.Load() }}
	var urgent func()
	if w.disks != nil {
		p.disk = w.disks(p)
		conf.Disk, urgent = p.disk, p.disk.Urge
	}
	p.source = New(conf)
	var err error
	if p.store, err = owner.New(owner.Config{Rule: p, Sink: p, Shards: 4, MaxWaitersPerLock: owner.MaxQueue}, w.now()); err != nil {
		w.t.Fatal(err)
	}
	p.target = NewTarget(TargetConfig{Rule: p.rule, Store: p.store, Await: p.await, Now: w.now, Urgent: urgent, Log: log})
	server := grpc.NewServer(grpc.MaxRecvMsgSize(4 << 20))
	peerv1.RegisterStateServiceServer(server, p.target.Intake)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(p.l) })
	p.source.Run(p.store)
	if p.disk != nil {
		running.Go(p.disk.run)
	}
	w.t.Cleanup(func() {
		for _, x := range p.all() {
			x.flow()
		}
		if p.disk != nil {
			close(p.disk.over)
		}
		p.source.Close()
		server.Stop()
		running.Wait()
	})
	w.mu.Lock()
	w.nodes[p.self] = p
	w.mu.Unlock()
	w.apply(table.Command{Admit: &table.Admit{Member: table.Member{Node: node, Incarnation: incarnation, HashKey: node, Level: max(table.Level, table.DiskLevel)}}})
	return p
}

func (w *world) newID() string { return fmt.Sprint(w.ids.Add(1)) }

// agreed returns the table that was agreed on last.
func (w *world) agreed() *table.Table {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.table
}

// apply has a command agreed on that the test proposes; it must not be refused.
func (w *world) apply(c table.Command) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.applyLocked(c); err != nil {
		w.t.Fatalf("%s: %v", c.Kind(), err)
	}
}

// applyLocked changes the table, and tells those that are not deaf.
func (w *world) applyLocked(c table.Command) error {
	next, err := w.table.Apply(c)
	if err != nil {
		return err
	}
	w.table = next
	for _, p := range w.nodes {
		if !p.deaf {
			p.learn(next)
		}
	}
	return nil
}

// towards begins a transition to these nodes.
func (w *world) towards(nodes ...*process) {
	w.t.Helper()
	var want []table.Holder
	for _, p := range nodes {
		want = append(want, p.self)
	}
	w.apply(table.Command{Begin: &table.Begin{Want: want}})
}

// set says what becomes of commands of a kind from now on.
func (w *world) set(kind string, f fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fates[kind] = f
}

// watch has f see each command that a process proposes, before it is judged.
func (w *world) watch(f func(c table.Command)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beforeJudged = f
}

// count returns how many commands of a kind were proposed.
func (w *world) count(kind string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.proposed[kind]
}

// another waits until one more command of a kind is proposed.
func (w *world) another(kind string) {
	w.t.Helper()
	was := w.count(kind)
	w.until("another "+kind+" is proposed", func() bool { return w.count(kind) > was })
}

// release judges what was held back of a kind, and lets such commands pass from
// now on.
func (w *world) release(kind string) (refusals []error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fates[kind] = passes
	w.waiting = slices.DeleteFunc(w.waiting, func(c table.Command) bool {
		if c.Kind() == kind {
			if err := w.applyLocked(c); err != nil {
				refusals = append(refusals, err)
			}
		}
		return c.Kind() == kind
	})
	return refusals
}

// propose is Config.Propose.
func (p *process) propose(ctx context.Context, c table.Command) (uint64, error) {
	w := p.w
	time.Sleep(roundTrip)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.proposed[c.Kind()]++
	if w.beforeJudged != nil {
		w.beforeJudged(c)
	}
	switch w.fates[c.Kind()] {
	case held:
		w.waiting = slices.DeleteFunc(w.waiting, func(x table.Command) bool { return x.ID == c.ID })
		w.waiting = append(w.waiting, c)
		w.mu.Unlock()
		<-ctx.Done()
		w.mu.Lock()
		return 0, errUnknown
	case refused:
		w.mu.Unlock()
		time.Sleep(refusal)
		w.mu.Lock()
		return w.table.Epoch, &table.Refused{Why: "the test says so"}
	case lost:
		_ = w.applyLocked(c)
		return 0, errUnknown
	}
	err := w.applyLocked(c)
	epoch := w.table.Epoch
	if err != nil {
		w.mu.Unlock()
		time.Sleep(refusal)
		w.mu.Lock()
	}
	return epoch, err
}

// learn makes the process go by a table, as the state machine of a node does.
func (p *process) learn(t *table.Table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.source.Learn(t)
	p.lost = append(p.lost, p.rule.Learn(t)...)
	p.known = t
	p.cleanLocked()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *process) cleanLocked() {
	if p.dirty && len(p.lost) > 0 {
		return
	}
	lost := p.lost
	p.lost = nil
	if len(lost) > 0 {
		p.store.Discard(func(h uint64) bool {
			return slices.ContainsFunc(lost, func(r serving.Range) bool { return r.Holds(h) })
		})
	}
	p.rule.Cleaned(p.known.Epoch)
}

// soil keeps what the process loses from being discarded, until clean.
func (p *process) soil() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dirty = true
}

func (p *process) clean() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dirty = false
	p.cleanLocked()
}

// await is TargetConfig.Await.
func (p *process) await(ctx context.Context, epoch uint64) error {
	for {
		p.mu.Lock()
		known, changed := p.known.Epoch, p.changed
		p.mu.Unlock()
		if known >= epoch {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// deafen keeps tables from a process; hear gives it the last one, and those to
// come.
func (p *process) deafen() {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.deaf = true
}

func (p *process) hear() {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.deaf = false
	p.learn(p.w.table)
}

// Admit implements owner.Rule, as internal/node does.
func (p *process) Admit(h uint64, now int64) (owner.Permit, error) {
	since, seen, v := p.rule.May(h, now)
	if v != serving.Yes {
		return owner.Permit{}, &failure.Error{Reason: failure.NotOwner}
	}
	return owner.Permit{Epoch: since, Seen: seen, Hash: h}, nil
}

// Confirm implements owner.Rule.
func (p *process) Confirm(m owner.Permit, now int64) error {
	if p.rule.Still(m.Hash, m.Seen, now) {
		return nil
	}
	return &failure.Error{Reason: failure.OutcomeUnknown}
}

// Exhausted implements owner.Rule.
func (p *process) Terms() owner.Terms { return owner.Terms{} }

func (p *process) Exhausted(epoch uint64) (uint64, error) { return epoch + 1, nil }

// Changed implements owner.Sink.
func (p *process) Changed(r *owner.Record) {
	if p.into != nil {
		p.into(r)
	}
	p.source.Changed(r)
}

// Partial implements owner.PartialSink.
func (p *process) Partial() bool { return p.source.Partial() }

// wires are the connections of one process to another, in both directions.
type wires struct {
	mu    sync.Mutex
	flows chan struct{} // guarded by mu; closed = bytes go through
	open  []net.Conn    // guarded by mu
}

func (p *process) to(h table.Holder) *wires {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wires[h] == nil {
		p.wires[h] = &wires{flows: make(chan struct{})}
		close(p.wires[h].flows)
	}
	return p.wires[h]
}

func (p *process) all() []*wires {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*wires
	for _, x := range p.wires {
		all = append(all, x)
	}
	return all
}

// stall holds what is written, in both directions; flow lets it go.
func (x *wires) stall() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.flows = make(chan struct{})
}

func (x *wires) flow() {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.flows:
	default:
		close(x.flows)
	}
}

// cut breaks the connections there are.
func (x *wires) cut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.open {
		_ = c.Close()
	}
	x.open = nil
}

// end is the source's end of a connection.
type end struct {
	net.Conn
	x      *wires
	once   sync.Once
	closed chan struct{}
}

func (e *end) wait() {
	e.x.mu.Lock()
	flows := e.x.flows
	e.x.mu.Unlock()
	select {
	case <-flows:
	case <-e.closed:
	}
}

func (e *end) Read(b []byte) (int, error) {
	n, err := e.Conn.Read(b)
	e.wait()
	return n, err
}

func (e *end) Write(b []byte) (int, error) {
	e.wait()
	return e.Conn.Write(b)
}

func (e *end) Close() error {
	e.once.Do(func() { close(e.closed) })
	return e.Conn.Close()
}

// dial is Config.Dial.
func (p *process) dial(_ context.Context, to table.Holder) (grpc.ClientConnInterface, error) {
	p.w.mu.Lock()
	other := p.w.nodes[to]
	p.w.mu.Unlock()
	if other == nil {
		return nil, errors.New("nobody is there")
	}
	x := p.to(to)
	return grpc.NewClient("passthrough:///"+to.Node, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := other.l.DialContext(ctx)
			if err != nil {
				return nil, err
			}
			e := &end{Conn: c, x: x, closed: make(chan struct{})}
			x.mu.Lock()
			defer x.mu.Unlock()
			x.open = append(x.open, e)
			return e, nil
		}))
}

// stableTime bounds the wait for what processes do by themselves, and stablePoll is
// between two looks.
const (
	stableTime = time.Minute
	stablePoll = 10 * time.Millisecond
)

// pass lets time pass.
func pass(d time.Duration) { time.Sleep(d) }

// until waits for a condition.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for over := time.Now().Add(stableTime); !ok(); time.Sleep(stablePoll) {
		if time.Now().After(over) {
			t := w.agreed()
			w.t.Fatalf("not within %s: %s; %d rows to move, %d unprotected", stableTime, what, len(t.Moves()), t.Unprotected())
		}
	}
}

// awaitStable waits until all rows and standbys stand where they are wanted, and ends
// the transition.
func (w *world) awaitStable() {
	w.t.Helper()
	w.until("all rows stand where they are wanted", func() bool {
		t := w.agreed()
		return len(t.Moves()) == 0 && t.Unprotected() == 0
	})
	if t := w.agreed(); t.Transition != nil {
		w.apply(table.Command{End: &table.End{Transition: t.Transition.ID}})
	}
}

// cluster starts processes n1 to n<n>, which share the ring and stand by.
func (w *world) cluster(n int) []*process {
	w.t.Helper()
	var all []*process
	for i := range n {
		all = append(all, w.start(fmt.Sprint("n", i+1), 1))
	}
	w.towards(all...)
	w.awaitStable()
	return all
}

// bubble runs a test in simulated time.
func bubble(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) { f(t, newWorld(t)) })
}

// keys returns keys whose rows satisfy, n of them.
func (w *world) keys(n int, ok func(t *table.Table, r *table.Row) bool) []string {
	w.t.Helper()
	t := w.agreed()
	var keys []string
	for i := 0; len(keys) < n; i++ {
		if i > 1_000_000 {
			w.t.Fatal("no such key")
		}
		key := fmt.Sprint("key", i)
		if ok(t, &t.Rows[t.Find(owner.Hash(key))]) {
			keys = append(keys, key)
		}
	}
	return keys
}

// ownedBy returns for keys: rows of an owner with a standby.
func ownedBy(o, standby *process) func(*table.Table, *table.Row) bool {
	return func(_ *table.Table, r *table.Row) bool { return r.Owner == o.self && r.Standby == standby.self }
}

func ref(key string) owner.Ref { return owner.Ref{Key: key, Name: "c"} }

// put gives counters their values, and wants no answers.
func (p *process) put(keys []string, value int64) {
	p.w.t.Helper()
	for _, k := range keys {
		if _, err := p.store.Add(p.w.now(), ref(k), reqid.ID{}, counter.AddOp{Delta: value}); err != nil {
			p.w.t.Fatal(k, err)
		}
	}
}

// answer is one that is on its way to its caller.
type answer struct {
	done chan struct{}
	err  error // of the check before the answer
}

var errUntold = errors.New("it is not known whether the copies have it")

// ask does an operation, and gives its answer away as a server does.
func (p *process) ask(do func(now int64) (owner.Meta, error)) *answer {
	p.w.t.Helper()
	m, err := do(p.w.now())
	if err != nil {
		p.w.t.Fatal(err)
	}
	a := &answer{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		if !p.source.Replicated(m.Permit.Hash) && !p.source.Await(m.Permit.Hash) {
			a.err = errUntold
			return
		}
		a.err = p.store.Confirm(m.Permit, p.w.now())
	}()
	return a
}

func (p *process) add(key string) *answer {
	p.w.t.Helper()
	return p.ask(func(now int64) (owner.Meta, error) {
		a, err := p.store.Add(now, ref(key), reqid.ID{}, counter.AddOp{Delta: 1})
		return a.Meta, err
	})
}

// pending checks that an answer waits.
func (a *answer) pending(t *testing.T, why string) {
	t.Helper()
	synctest.Wait()
	select {
	case <-a.done:
		t.Errorf("an answer is told (%v), although %s", a.err, why)
	default:
	}
}

// checkAnswered checks that an answer has been told, now.
func (a *answer) checkAnswered(t *testing.T, why string) {
	t.Helper()
	synctest.Wait()
	select {
	case <-a.done:
		if a.err != nil {
			t.Errorf("an answer is not confirmed, although %s: %v", why, a.err)
		}
	default:
		t.Errorf("an answer waits, although %s", why)
	}
}

// holds returns the counters that a process has in its memory.
func (p *process) holds() map[string]int64 {
	values := map[string]int64{}
	p.store.Export(p.w.now, func(uint64) bool { return true },
		func(r *owner.Record, _ int64) bool { values[string(r.Key)] = r.Counter().Value; return true },
		func() bool { return true })
	return values
}

// alike checks that every synced standby has what the owner has, and nothing else.
func (w *world) alike() {
	w.t.Helper()
	synctest.Wait()
	t := w.agreed()
	has := map[table.Holder]map[string]int64{}
	for h, p := range w.nodes {
		has[h] = p.holds()
	}
	objects, wrong := 0, 0
	for h, values := range has {
		for key := range values {
			r := &t.Rows[t.Find(owner.Hash(key))]
			if !r.Synced || h != r.Owner && h != r.Standby || has[r.Owner] == nil || has[r.Standby] == nil {
				continue
			}
			objects++
			at, copied := has[r.Owner], has[r.Standby]
			if _, is := at[key]; at[key] != copied[key] || !is {
				if wrong++; wrong == 1 {
					w.t.Errorf("%s is %d (%v) at its owner %s, and %d at the standby %s", key, at[key], is, r.Owner.Node, copied[key], r.Standby.Node)
				}
			}
		}
	}
	if wrong > 1 {
		w.t.Errorf("%d of %d objects are not alike", wrong, objects)
	}
	if objects == 0 {
		w.t.Error("no row with a standby has an object")
	}
}
