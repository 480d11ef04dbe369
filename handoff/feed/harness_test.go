package feed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	n1    = table.Holder{Node: "n1", Incarnation: 7}
	n2    = table.Holder{Node: "n2", Incarnation: 3}
	quiet = slog.New(slog.DiscardHandler)
)

// target is a process that takes records in and writes down which.
type target struct {
	t      *testing.T
	intake *Intake
	server *grpc.Server
	l      *bufconn.Listener
	self   atomic.Pointer[table.Holder]
	epoch  atomic.Uint64 // of its table; batches of later ones wait
	gate   atomic.Pointer[chan struct{}]
	refuse atomic.Pointer[func(record string) error]
	within atomic.Bool // somebody installs
	number atomic.Uint64

	mu        sync.Mutex
	installed []string // guarded by mu; control records are "begin" and a number
	ranges    []serving.Range
}

func newTarget(t *testing.T, change func(*IntakeConfig)) *target {
	g := &target{t: t, l: bufconn.Listen(1 << 16)}
	g.self.Store(&n2)
	g.epoch.Store(1000)
	cfg := IntakeConfig{
		Self: func() table.Holder { return *g.self.Load() },
		Await: func(ctx context.Context, epoch uint64) error {
			for g.epoch.Load() < epoch {
				select {
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		},
		Begin: func(from table.Holder, ranges []serving.Range) error {
			g.mu.Lock()
			g.ranges = append(g.ranges, ranges...)
			g.mu.Unlock()
			return g.install("begin")
		},
		Versions: func(last uint64) error { return g.install(fmt.Sprint("versions ", last)) },
		Install:  func(from table.Holder, record []byte) error { return g.install(string(record)) },
		Log:      quiet,
	}
	if change != nil {
		change(&cfg)
	}
	g.intake = NewIntake(cfg)
	g.server = grpc.NewServer(grpc.MaxRecvMsgSize(4 << 20))
	peerv1.RegisterStateServiceServer(g.server, g.intake)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.server.Serve(g.l) }()
	t.Cleanup(func() { g.open(); g.server.Stop(); <-done })
	return g
}

func (g *target) install(record string) error {
	if !g.within.CompareAndSwap(false, true) {
		g.t.Error("two records are installed at a time")
	}
	defer g.within.Store(false)
	if gate := g.gate.Load(); gate != nil {
		<-*gate
	}
	if f := g.refuse.Load(); f != nil {
		if err := (*f)(record); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.installed = append(g.installed, record)
	g.number.Add(1)
	return nil
}

// shut has records wait before they are installed; open lets them go on.
func (g *target) shut() {
	c := make(chan struct{})
	g.gate.Store(&c)
}

func (g *target) open() {
	if c := g.gate.Swap(nil); c != nil {
		close(*c)
	}
}

func (g *target) log() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string{}, g.installed...)
}

// wires are the connections to a target. Each takes delay in each direction.
type wires struct {
	g     *target
	delay time.Duration

	mu    sync.Mutex
	rnd   *rand.Rand // guarded by mu; nil = they do not break by themselves
	open  []*wire    // guarded by mu
	down  bool       // guarded by mu: no new ones
	black bool       // guarded by mu: new ones carry nothing
	count int        // guarded by mu: made
	wg    sync.WaitGroup
}

// wire is one connection: what one end writes comes out at the other one later.
type wire struct {
	a, b      net.Conn // the source's end and the target's
	cutOnce   sync.Once
	cut       chan struct{}
	black     atomic.Bool // what is written is lost
	halfBreak bool        // the target notices late, and gets what is under way
}

func newWires(t *testing.T, g *target, delay time.Duration) *wires {
	synctest.Wait() // panics outside a bubble
	w := &wires{g: g, delay: delay}
	t.Cleanup(func() { w.breakAll(); w.wg.Wait() })
	return w
}

// dial is SenderConfig.Dial.
func (w *wires) dial(context.Context) (grpc.ClientConnInterface, error) {
	return grpc.NewClient("passthrough:///n2",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.connect() }))
}

func (w *wires) connect() (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return nil, errors.New("the target is not reached")
	}
	b, err := w.g.l.Dial()
	if err != nil {
		return nil, err
	}
	mine, a := net.Pipe()
	k := &wire{a: a, b: b, cut: make(chan struct{})}
	k.black.Store(w.black)
	up, down := 1<<30, 1<<30
	var jitter *rand.Rand
	if w.rnd != nil {
		up, down = w.budget(), w.budget()
		k.halfBreak = w.rnd.IntN(2) == 0
		jitter = rand.New(rand.NewPCG(w.rnd.Uint64(), 1))
	}
	w.open = append(w.open, k)
	w.count++
	w.wg.Go(func() { w.carry(k, a, b, up, jitter) })
	w.wg.Go(func() { w.carry(k, b, a, down, nil) })
	return mine, nil
}

// budget returns how many bytes a direction carries before it breaks.
func (w *wires) budget() int { return 250 + int(w.rnd.ExpFloat64()*700) }

// chunk is some bytes under way.
type chunk struct {
	at time.Time
	b  []byte
}

// carry moves bytes from one end to the other until the connection breaks.
func (w *wires) carry(k *wire, from, to net.Conn, budget int, jitter *rand.Rand) {
	chunks := make(chan chunk, 1000)
	w.wg.Go(func() {
		defer close(chunks)
		for buf := make([]byte, 4096); budget > 0; {
			n, err := from.Read(buf[:min(len(buf), budget)])
			if err != nil {
				return
			}
			budget -= n
			if k.black.Load() {
				continue
			}
			delay := w.delay
			if jitter != nil {
				delay += time.Duration(jitter.IntN(3)) * time.Millisecond
			}
			chunks <- chunk{time.Now().Add(delay), append([]byte{}, buf[:n]...)}
		}
	})
	for c := range chunks {
		time.Sleep(time.Until(c.at))
		select {
		case <-k.cut:
			if !k.halfBreak {
				continue
			}
		default:
		}
		if _, err := to.Write(c.b); err != nil {
			k.end()
		}
	}
	k.end()
}

// end breaks a connection; in half-break the target is told later.
func (k *wire) end() {
	k.cutOnce.Do(func() {
		close(k.cut)
		_ = k.a.Close()
		if k.halfBreak {
			time.AfterFunc(50*time.Millisecond, func() { _ = k.b.Close() })
		} else {
			_ = k.b.Close()
		}
	})
}

// lift reports whether new connections can be made.
func (w *wires) lift(up bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = !up
}

// breakAll breaks all connections there are.
func (w *wires) breakAll() {
	w.mu.Lock()
	open := w.open
	w.open = nil
	w.mu.Unlock()
	for _, k := range open {
		k.end()
	}
}

// newSender returns a sender of n1 to n2 over wires, which is closed with the test.
func newSender(t *testing.T, w *wires, change func(*SenderConfig)) *Sender {
	start := time.Now()
	cfg := SenderConfig{
		Source: n1, Target: n2, Session: 1,
		Encode: func(dst []byte, r *owner.Record, _ int64) []byte { return append(dst, r.Key...) },
		Dial:   w.dial,
		Epoch:  func() uint64 { return 5 },
		Now:    func() int64 { return int64(time.Since(start)) },
		Log:    quiet,
	}
	if change != nil {
		change(&cfg)
	}
	s := NewSender(cfg)
	t.Cleanup(s.Close)
	return s
}

// put appends a record with this content.
func put(s *Sender, content string) uint64 {
	return s.Append(&owner.Record{Hash: hashOf(content), Key: []byte(content)}, 0)
}

func hashOf(content string) uint64 {
	return binary.LittleEndian.Uint64(append([]byte(content), 0, 0, 0, 0, 0, 0, 0, 0))
}

// soon waits, in a bubble, until everything up to seq is acknowledged.
func soon(t *testing.T, s *Sender, seq uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Wait(ctx, seq); err != nil {
		t.Fatalf("record %d of %d, %d acknowledged: %v", seq, s.Last(), s.Acked(), err)
	}
}

// fails waits, in a bubble, until a sender has failed.
func fails(t *testing.T, s *Sender) {
	t.Helper()
	select {
	case <-s.Failed():
	case <-time.After(time.Minute):
		t.Fatalf("the sender does not fail; %d of %d acknowledged", s.Acked(), s.Last())
	}
}
