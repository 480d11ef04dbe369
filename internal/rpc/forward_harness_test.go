package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/internal/drain"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	electionpb "github.com/keystead/keystead/proto/keystead/election/v1"
	grouppb "github.com/keystead/keystead/proto/keystead/group/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// group is several servers, each with its store, that follow one table.
type group struct {
	t     testing.TB
	board *board   // the table that is agreed on
	conns sync.Map // from a node to another, as "n1 n2:7400" → net.Conn, the last one
	nodes map[string]*member
}

// member is one of them. It is the Cluster of its server, the rule of its store.
type member struct {
	admitted atomic.Int64 // how often its store asked whether it may act
	*house
	agreed.View
	self    table.Holder
	metrics *Metrics
	stop    func()
	shelf   shelf

	learning sync.Mutex // guards held, and is held while a table is learned
	held     bool       // it learns nothing

	known   atomic.Bool                  // nothing that was done before is unknown
	frozen  atomic.Bool                  // all its rows
	lost    atomic.Uint64                // epoch in which what its rows keep was lost; 0 = it was not
	loss    atomic.Pointer[owner.Permit] // Loss and LossAt of its rows by the table; nil = none was lost
	after   atomic.Pointer[func()]       // called once, when an operation was let in
	confirm atomic.Pointer[func()]       // called once, before an answer is let out
	owned   atomic.Pointer[func()]       // called once, when a list asks what is its own
	wire    atomic.Pointer[func() bool]  // whether it can be reached; nil = yes
}

// grouped starts the servers of n1 to n<n>, on sockets or in memory.
func grouped(t testing.TB, n int, sockets bool, change func(*Config)) *group {
	t.Helper()
	g := &group{t: t, nodes: map[string]*member{}}
	var names []string
	listeners := map[string]net.Listener{}
	for i := range n {
		name := fmt.Sprint("n", i+1)
		names = append(names, name)
		if !sockets {
			listeners[name+":7400"] = bufconn.Listen(1 << 20)
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[name+":7400"] = l
	}
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		if m := g.nodes[addr[:2]]; m != nil && m.wire.Load() != nil && !(*m.wire.Load())() {
			return nil, errors.New("nobody is there")
		}
		switch l := listeners[addr].(type) {
		case *bufconn.Listener:
			return l.DialContext(ctx)
		case nil:
			return nil, errors.New("nobody is there")
		default:
			return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
		}
	}
	g.board = newBoard(t, names...)
	for _, name := range names {
		g.nodes[name] = &member{self: agreed.Holder(name), metrics: NewMetrics(prometheus.NewRegistry())}
		g.nodes[name].Set(g.board.Table())
	}
	for _, name := range names {
		g.nodes[name].run(t, name, listeners[name+":7400"], dial, func(c *Config) {
			c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := dial(ctx, addr)
				if err == nil {
					g.conns.Store(name+" "+addr, conn)
				}
				return conn, err
			}
			if change != nil {
				change(c)
			}
		})
	}
	return g
}

func (m *member) run(t testing.TB, name string, l net.Listener, dial func(context.Context, string) (net.Conn, error), change func(*Config)) {
	t.Helper()
	m.house = &house{t: t, sink: &sink{}, clock: clock.NewProcess()}
	var err error
	if m.store, err = owner.New(owner.Config{Rule: m, Sink: m.sink, Shards: 4, Policies: &m.shelf.inForce}, m.clock.Now()); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Store: m.store, Clock: m.clock, Metrics: m.metrics, Cluster: m, Node: name, Policies: &m.shelf}
	change(&cfg)
	m.server = NewServer(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = m.server.Serve(l) })
	wg.Go(func() { m.drive(ctx) })
	m.stop = sync.OnceFunc(func() {
		m.server.Stop(0)
		cancel()
		wg.Wait()
	})
	t.Cleanup(m.stop)
	m.dial = func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, name+":7400") }
	m.conn = m.connect()
	m.limits, m.counters, m.locks = limitpb.NewLimitServiceClient(m.conn), counterpb.NewCounterServiceClient(m.conn), lockpb.NewLockServiceClient(m.conn)
	m.registers = registerpb.NewRegisterServiceClient(m.conn)
	m.permits = semaphorepb.NewSemaphoreServiceClient(m.conn)
	m.onces = oncepb.NewOnceServiceClient(m.conn)
	m.elections = electionpb.NewElectionServiceClient(m.conn)
	m.barriers = barrierpb.NewBarrierServiceClient(m.conn)
	m.groups = grouppb.NewGroupServiceClient(m.conn)
	m.admissions = admissionpb.NewAdmissionServiceClient(m.conn)
}

func (m *member) Self() table.Holder  { return m.self }
func (m *member) State() ClusterState { return ClusterState{LeaseLeft: time.Second} }

func (m *member) Drain(context.Context, drain.Order) (drain.State, error) {
	return drain.State{}, drain.ErrUnknownNode("")
}

// learn makes the member go by a table, and forget what it has lost by it.
func (m *member) learn(t *table.Table) {
	m.learning.Lock()
	defer m.learning.Unlock()
	before := m.Table()
	if m.held || before.Epoch >= t.Epoch {
		return
	}
	m.Set(t)
	m.store.Discard(func(h uint64) bool { return m.owns(before, h) && !m.owns(t, h) })
	m.Announce()
}

func (m *member) owns(t *table.Table, h uint64) bool {
	o, _, ok := t.Owner(h)
	return ok && o.Holder() == m.self
}

func (m *member) hold(held bool) {
	m.learning.Lock()
	defer m.learning.Unlock()
	m.held = held
}

// Admit implements owner.Rule.
func (m *member) Admit(h uint64, _ int64) (owner.Permit, error) {
	m.admitted.Add(1)
	t := m.Table()
	if !m.owns(t, h) || m.frozen.Load() {
		return owner.Permit{}, &failure.Error{Reason: failure.NotOwner, Message: "another node owns the key"}
	}
	if f := m.after.Swap(nil); f != nil {
		(*f)()
	}
	_, since, _ := t.Owner(h)
	lost := m.lost.Load()
	p := owner.Permit{Epoch: max(since, lost), Seen: t.Epoch, Hash: h, Lost: lost}
	if loss := m.loss.Load(); loss != nil {
		p.Loss, p.LossAt = loss.Loss, loss.LossAt
	}
	if m.known.Load() {
		p.Since = math.MinInt64
	}
	return p, nil
}

// Owns implements owner.Owners.
func (m *member) Owns(h uint64) bool {
	if f := m.owned.Swap(nil); f != nil {
		(*f)()
	}
	return m.owns(m.Table(), h)
}

// Shared implements owner.Owners.
func (m *member) Shared() bool { return len(m.Table().Members) > 1 }

// Uses implements owner.Levels.
func (m *member) Uses(level uint32) bool { return m.Table().Uses(level) }

// Confirm implements owner.Rule.
func (m *member) Confirm(p owner.Permit, _ int64) error {
	if f := m.confirm.Swap(nil); f != nil {
		(*f)()
	}
	t := m.Table()
	if _, since, _ := t.Owner(p.Hash); m.owns(t, p.Hash) && since <= p.Seen {
		return nil
	}
	return &failure.Error{Reason: failure.OutcomeUnknown, Message: "the right to act ended meanwhile"}
}

// Terms implements owner.Rule.
func (m *member) Terms() owner.Terms {
	return owner.Terms{LockTTL: int64(24 * time.Hour), Grace: int64(24 * time.Hour)}
}

// Exhausted implements owner.Rule.
func (m *member) Exhausted(epoch uint64) (uint64, error) { return epoch + 1, nil }

// apply changes the table, and tells it to all that are not held.
func (g *group) apply(c table.Command) {
	g.t.Helper()
	g.board.Must(c)
	g.tell()
}

func (g *group) tell() {
	for _, m := range g.nodes {
		m.learn(g.board.Table())
	}
}

// without takes a member out of the ring, whose keys go to the others.
func (g *group) without(node string) {
	g.t.Helper()
	g.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Holder(node)}}})
}

// begin starts a transition to the ring of these nodes.
func (g *group) begin(nodes ...string) {
	g.t.Helper()
	g.board.Begin(nodes...)
	g.tell()
}

// flip moves the row of a key as the transition wants; to whom, it returns.
func (g *group) flip(key string) string {
	g.t.Helper()
	t := g.board.Table()
	end := t.Rows[t.Find(owner.Hash(key))].End
	for _, m := range t.Moves() {
		if m.End == end {
			g.apply(table.Command{Flip: &table.Flip{Transition: t.Transition.ID, WantSince: t.WantSince, From: m.From, To: m.To, Ends: []uint64{end}}})
			return m.To.Node
		}
	}
	g.t.Fatalf("%s does not move", key)
	return ""
}

// finish moves all that is left to move, and ends the transition.
func (g *group) finish() {
	g.t.Helper()
	g.board.FlipAll()
	g.board.End()
	g.tell()
}

// keys are n keys that a node owns and for which want, if any, is true.
func (g *group) keys(node string, n int, want func(h uint64) bool) []string {
	t := g.board.Table()
	var out []string
	for i := 0; len(out) < n; i++ {
		k := fmt.Sprint("key-", i)
		if o, _, _ := t.Owner(owner.Hash(k)); o.Node == node && (want == nil || want(owner.Hash(k))) {
			out = append(out, k)
		}
	}
	return out
}

func (g *group) key(node string) string { return g.keys(node, 1, nil)[0] }

// moving is a key that a transition takes from one node to another.
func (g *group) moving(from, to string) string {
	return g.keys(from, 1, func(h uint64) bool {
		m, ok := g.board.Table().WantedOwner(h)
		return ok && m.Node == to
	})[0]
}

func (g *group) since(key string) uint64 {
	_, since, _ := g.board.Table().Owner(owner.Hash(key))
	return since
}

func (g *group) names() []string {
	var out []string
	for n := range g.nodes {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// count returns what a counter stands at.
func count(t testing.TB, c prometheus.Collector) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].Metric[0].Counter.GetValue()
}

var (
	unavailable = refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: 200 * time.Millisecond}
	unheard     = refusal{code: codes.Unknown, why: commonpb.Reason_REASON_OUTCOME_UNKNOWN, hint: true, retry: 200 * time.Millisecond}
)

// passed is a call as another node sends it, in the envelope of level 3.
func passed(t testing.TB, tag uint64, deadline int64, c *forward.Call) *peerv1.ForwardCall {
	t.Helper()
	f, err := forward.Encode(c, false)
	if err != nil {
		t.Fatal(err)
	}
	f.Tag, f.DeadlineNs = tag, deadline
	return f
}
