package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/internal/drain"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// town is some nodes, real servers with real stores on in-memory connections,
// that go by one table, which the test changes.
type town struct {
	t     *testing.T
	clock *clock.Process
	nodes map[string]*house

	mu      sync.Mutex // guards what follows
	table   *table.Table
	changed chan struct{}
}

// house is one node.
type house struct {
	*town
	id     string
	store  *owner.Store
	server *rpc.Server
	sink   atomic.Pointer[func(*owner.Record)]
	frozen atomic.Pointer[table.Table] // what it believes in, if it is cut off
	denies atomic.Bool                 // lets nothing in
	lostAt atomic.Int64                // when all that it keeps was lost, and is waited for; 0 = it was not
	calls  atomic.Int64                // connections that were asked for

	mu    sync.Mutex // guards what follows
	l     *bufconn.Listener
	conns []net.Conn // of clients
	ids   uint64     // handed out
	dead  bool
	done  chan struct{}
}

// build starts nodes that share out the ring, and other nodes that are no
// members.
func build(t *testing.T, members, others []string) *town {
	t.Helper()
	synctest.Wait() // panics outside a bubble
	w := &town{t: t, clock: clock.NewProcess(), nodes: map[string]*house{}, table: &table.Table{}, changed: make(chan struct{})}
	for _, id := range append(append([]string{}, members...), others...) {
		w.nodes[id] = w.house(id, nil)
	}
	time.Sleep(time.Minute) // a store does not know what was done before it was there
	w.apply(table.Command{Init: &table.Init{Cluster: "test", Epoch: 100}})
	for _, id := range members {
		w.admit(id)
	}
	w.ring(members...)
	t.Cleanup(func() {
		for _, h := range w.nodes {
			h.kill()
		}
	})
	return w
}

// house starts a node; store nil = one of its own.
func (w *town) house(id string, store *owner.Store) *house {
	w.t.Helper()
	h := &house{town: w, id: id, store: store, l: bufconn.Listen(1 << 20), done: make(chan struct{})}
	if store == nil {
		var err error
		if h.store, err = owner.New(owner.Config{Rule: h, Sink: h, Shards: 4}, w.clock.Now()); err != nil {
			w.t.Fatal(err)
		}
	}
	h.server = rpc.NewServer(rpc.Config{Store: h.store, Clock: w.clock, Metrics: rpc.NewMetrics(prometheus.NewRegistry()), Cluster: h, Node: id, IDs: h, Dial: w.dial})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _ = h.server.Serve(h.l); cancel() }()
	go func() { defer close(h.done); h.drive(ctx) }()
	return h
}

// drive lets time pass for the store as internal/node does.
func (h *house) drive(ctx context.Context) {
	for {
		sleep := time.Hour
		if at, ok := h.store.NextWake(); ok {
			sleep = max(time.Duration(at-h.clock.Now()), 0)
		}
		timer := time.NewTimer(sleep)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-h.store.WakeChanged():
		case <-timer.C:
			h.store.Wake(h.clock.Now())
		}
		timer.Stop()
	}
}

// kill ends a node without a word.
func (h *house) kill() {
	h.mu.Lock()
	h.dead = true
	conns := h.conns
	h.conns = nil
	h.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	h.server.Stop(0)
	<-h.done
}

// cut breaks the connections of clients, who may come back.
func (h *house) cut() {
	h.mu.Lock()
	conns := h.conns
	h.conns = nil
	h.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// cutAndDie breaks all connections, and takes none any more. It may be called
// under the lock of a shard.
func (h *house) cutAndDie() { h.isolate(true) }

// isolate makes a node unreachable: connections break, and none is taken.
func (h *house) isolate(yes bool) {
	h.mu.Lock()
	h.dead = yes
	h.mu.Unlock()
	if yes {
		h.cut()
	}
}

func (w *town) dial(ctx context.Context, addr string) (net.Conn, error) {
	id, _, _ := net.SplitHostPort(addr)
	h := w.nodes[id]
	if h == nil {
		return nil, fmt.Errorf("there is no %s", addr)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead {
		return nil, errors.New("connection refused")
	}
	c, err := h.l.DialContext(ctx)
	if err == nil {
		h.calls.Add(1)
		h.conns = append(h.conns, c)
	}
	return c, err
}

// client connects to the town by these nodes.
func (w *town) client(cfg Config, ids ...string) *Client {
	w.t.Helper()
	var addrs []string
	for _, id := range ids {
		addrs = append(addrs, id+":1")
	}
	cfg.clock = w.clock
	c, err := cfg.dialing(w.dial).Dial(context.Background(), addrs...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return c
}

// dialing returns the configuration with connections made by dial.
func (c Config) dialing(dial func(context.Context, string) (net.Conn, error)) Config {
	c.DialOptions = append(c.DialOptions, grpc.WithContextDialer(dial), grpc.WithStaticStreamWindowSize(1<<20), grpc.WithStaticConnWindowSize(4<<20))
	return c
}

// deafening gives connections of which nothing is heard once deaf is set, though they
// do not break.
func (w *town) deafening(deaf *atomic.Bool) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := w.dial(ctx, addr)
		return &deafConn{Conn: conn, deaf: deaf, closed: make(chan struct{})}, err
	}
}

type deafConn struct {
	net.Conn
	deaf   *atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (c *deafConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.deaf.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (w *town) apply(c table.Command) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	next, err := w.table.Apply(c)
	if err != nil {
		w.t.Fatal(c.Kind(), err)
	}
	w.table = next
	close(w.changed)
	w.changed = make(chan struct{})
}

func holder(id string) table.Holder { return table.Holder{Node: id, Incarnation: 1} }

func (w *town) admit(id string) {
	w.apply(table.Command{Admit: &table.Admit{Member: table.Member{Node: id, Incarnation: 1, HashKey: id + ":1", GRPCAddr: id + ":1", Level: table.Level}}})
}

// agree has all nodes use what they know.
func (w *town) agree() { w.apply(table.Command{Adopt: &table.Adopt{Level: table.Level}}) }

func (w *town) remove(id string) {
	w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{holder(id)}}})
}

// ring moves the ring to these members, row by row.
func (w *town) ring(ids ...string) {
	w.t.Helper()
	var want []table.Holder
	for _, id := range ids {
		want = append(want, holder(id))
	}
	// Members that are left out are drained, and those that were are taken back.
	for _, m := range w.now().Members {
		switch in := slices.Contains(ids, m.Node); {
		case in && m.Phase >= table.Leaving:
			w.apply(table.Command{Drain: &table.Drain{Member: m.Holder(), Undo: true}})
		case !in && m.Phase == table.Active:
			w.apply(table.Command{Drain: &table.Drain{Member: m.Holder()}})
		}
	}
	w.apply(table.Command{Begin: &table.Begin{Want: want}})
	id := w.now().Transition.ID
	for _, m := range w.now().Moves() {
		w.apply(table.Command{Flip: &table.Flip{Transition: id, WantSince: w.now().WantSince, From: m.From, To: m.To, Ends: []uint64{m.End}}})
	}
	w.apply(table.Command{End: &table.End{Transition: id}})
}

func (w *town) now() *table.Table {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.table
}

// keyOf is a key that a node owns.
func (w *town) keyOf(id string) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("key-%d", i)
		if m, _, _ := w.now().Owner(owner.Hash(key)); m.Node == id {
			return key
		}
	}
}

// A house is the Cluster of its server …

func (h *house) Self() table.Holder { return holder(h.id) }

func (h *house) Table() *table.Table {
	if t := h.frozen.Load(); t != nil {
		return t
	}
	return h.now()
}

// Drain gives the order to the table. A node that is cut off has nobody to ask.
func (h *house) Drain(_ context.Context, o drain.Order) (drain.State, error) {
	s, ok := drain.StateOf(h.Table(), o.Node)
	switch {
	case h.frozen.Load() != nil:
		return s, &failure.Error{Reason: failure.Unavailable, Message: "no leader", RetryAfter: time.Second}
	case !ok:
		return s, drain.ErrUnknownNode(o.Node)
	case o.Undo == (s.Member.Phase <= table.Active):
		s.Already = true
		return s, nil
	case !o.Force && !o.Undo:
		return s, drain.ErrTooFewLeft(o.Node, 1, 3)
	}
	h.apply(table.Command{Drain: &table.Drain{Member: s.Member.Holder(), Undo: o.Undo}})
	s, _ = drain.StateOf(h.now(), o.Node)
	return s, nil
}

func (h *house) State() rpc.ClusterState {
	return rpc.ClusterState{LeaseLeft: time.Second, GRPCAddr: h.id + ":1", Started: time.Now()}
}

func (h *house) Await(ctx context.Context, after uint64) (*table.Table, error) {
	for {
		h.town.mu.Lock()
		t, changed := h.table, h.changed
		h.town.mu.Unlock()
		if h.frozen.Load() == nil && t.Epoch > after {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// … the rule of its store …

func (h *house) Split(hash uint64) bool { return h.Table().MaySplit(hash) }

func (h *house) May(ref owner.Ref, kind owner.Kind) (uint32, error) {
	return divide.May(h.Table(), ref, kind)
}

func (h *house) Admit(hash uint64, _ int64) (owner.Permit, error) {
	t := h.Table()
	m, since, ok := t.Owner(hash)
	switch {
	case h.denies.Load():
		return owner.Permit{}, &failure.Error{Reason: failure.Unavailable, Message: "no lease", RetryAfter: 50 * time.Millisecond}
	case !ok || m.Node != h.id && h.nodes[m.Node].store != h.store:
		return owner.Permit{}, &failure.Error{Reason: failure.NotOwner, Message: "another owns the key", RetryAfter: 20 * time.Millisecond}
	}
	p := owner.Permit{Epoch: since, Seen: t.Epoch, Hash: hash}
	if at := h.lostAt.Load(); at != 0 {
		p.Epoch, p.Lost, p.LostAt = since+1, since+1, at
	}
	return p, nil
}

// grace is how long what was lost is waited for.
const grace = time.Minute

// lose has the node lose all that it keeps.
func (h *house) lose() {
	h.store.Discard(func(uint64) bool { return true })
	h.lostAt.Store(h.clock.Now())
}

func (h *house) Confirm(owner.Permit, int64) error      { return nil }
func (h *house) Terms() owner.Terms                     { return owner.Terms{LockTTL: int64(grace), Grace: int64(grace)} }
func (h *house) Exhausted(epoch uint64) (uint64, error) { return epoch + 1, nil }

// … and hears of changes.

func (h *house) Changed(r *owner.Record) {
	if f := h.sink.Load(); f != nil {
		(*f)(r)
	}
}

func (h *house) on(f func(*owner.Record)) { h.sink.Store(&f) }

// soon is a context for a call that must not hang.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// must unpacks the answer of a call that may not fail: must(call())(t).
func must[R any](r R, err error) func(testing.TB) R {
	return func(t testing.TB) R {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}
