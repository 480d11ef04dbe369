package p2c

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/internal/cli/latency"
)

func TestMain(m *testing.M) {
	Register()
	goleak.VerifyTestMain(m)
}

// backend is a gRPC server whose answers the test decides on.
type backend struct {
	grpc_health_v1.UnimplementedHealthServer
	name  string
	delay atomic.Int64  // ns
	code  atomic.Uint32 // of its answers
	calls atomic.Int64

	mu sync.Mutex // guards what follows
	l  *bufconn.Listener
	s  *grpc.Server // nil = it does not run
}

// Check answers after a while.
func (b *backend) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	b.calls.Add(1)
	if d := b.delay.Load(); d > 0 {
		select {
		case <-time.After(time.Duration(d)):
		case <-ctx.Done():
		}
	}
	if c := codes.Code(b.code.Load()); c != codes.OK {
		return nil, status.Error(c, "as the test wants it")
	}
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func (b *backend) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.l, b.s = bufconn.Listen(1<<16), grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(b.s, b)
	go func(s *grpc.Server, l *bufconn.Listener) { _ = s.Serve(l) }(b.s, b.l)
}

func (b *backend) stop() {
	b.mu.Lock()
	s := b.s
	b.s = nil
	b.mu.Unlock()
	if s != nil {
		s.Stop()
	}
}

func (b *backend) dial(ctx context.Context) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.s == nil {
		return nil, errors.New("connection refused")
	}
	return b.l.DialContext(ctx)
}

// stage is some backends and a client of them, in a bubble.
type stage struct {
	t        *testing.T
	backends []*backend
	resolver *manual.Resolver
	conn     *grpc.ClientConn
	rnd      *rand.Rand
}

func build(t *testing.T, n int, serviceConfig string) *stage {
	t.Helper()
	s := &stage{t: t, resolver: manual.NewBuilderWithScheme("stage"), rnd: rand.New(rand.NewPCG(uint64(n), 5))}
	for i := range n {
		b := &backend{name: string(rune('a' + i))}
		b.delay.Store(5 * ms)
		b.start()
		t.Cleanup(b.stop)
		s.backends = append(s.backends, b)
	}
	s.resolver.InitialState(s.state(s.backends...))
	conn, err := grpc.NewClient("stage:///", grpc.WithResolvers(s.resolver), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(serviceConfig), grpc.WithStaticStreamWindowSize(1<<17), grpc.WithStaticConnWindowSize(1<<17),
		grpc.WithContextDialer(func(ctx context.Context, name string) (net.Conn, error) {
			for _, b := range s.backends {
				if b.name == name {
					return b.dial(ctx)
				}
			}
			return nil, errors.New("no such backend")
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.conn = conn
	conn.Connect()
	synctest.Wait() // all are READY
	return s
}

func (s *stage) state(of ...*backend) resolver.State {
	var state resolver.State
	for _, b := range of {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: b.name}}})
	}
	return state
}

// seen is what the calls of one stretch showed.
type seen struct {
	latency.Histogram
	failed int
	calls  map[string]int64 // that arrived, by backend
}

// load makes calls in an open loop, rate a second on average, for so long.
func (s *stage) load(rate float64, lasts time.Duration) *seen {
	out := &seen{calls: map[string]int64{}}
	before := map[string]int64{}
	for _, b := range s.backends {
		before[b.name] = b.calls.Load()
	}
	client := grpc_health_v1.NewHealthClient(s.conn)
	var mu sync.Mutex // guards out
	var wg sync.WaitGroup
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			start := time.Now()
			_, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				out.failed++
				return
			}
			out.Record(time.Since(start))
		})
		time.Sleep(time.Duration(s.rnd.ExpFloat64() / rate * float64(time.Second)))
	}
	wg.Wait()
	for _, b := range s.backends {
		out.calls[b.name] = b.calls.Load() - before[b.name]
	}
	return out
}

// bubble is a test in simulated time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

const inTurn = `{"loadBalancingConfig":[{"round_robin":{}}]}`

// Real gRPC: one of four backends is 10 times slower.
func TestSlowBackend(t *testing.T) {
	p99 := map[string]time.Duration{}
	for name, config := range map[string]string{"p2c": Config{}.ServiceConfig(), "round robin": inTurn} {
		bubble(t, func(t *testing.T) {
			s := build(t, 4, config)
			s.backends[0].delay.Store(50 * ms)
			got := s.load(60, 20*time.Second)
			p99[name] = got.Quantile(0.99)
			t.Logf("%s: p99 %s, %v", name, p99[name], got.calls)
			if got.failed > 0 {
				t.Errorf("%s: %d failed", name, got.failed)
			}
			if name == "p2c" && got.calls["a"] > 12 {
				t.Errorf("the slow one got %v", got.calls)
			}
		})
	}
	if p99["p2c"] > p99["round robin"]/2 {
		t.Errorf("%v", p99)
	}
}

// A backend whose connection is gone gets no call and costs none, and is back soon
// after it is.
func TestOnlyReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := build(t, 3, Config{}.ServiceConfig())
		s.load(20, 5*time.Second)
		for _, b := range s.backends[:2] {
			b.stop()
			synctest.Wait()
			if got := s.load(20, 20*time.Second); got.failed > 0 || got.calls[b.name] > 0 {
				t.Errorf("without %s: %d failed, %v", b.name, got.failed, got.calls)
			}
		}
		s.backends[2].stop()
		synctest.Wait()
		if got := s.load(10, time.Second); got.Count() > 0 || got.failed == 0 {
			t.Errorf("without any: %d answers, %d failures", got.Count(), got.failed)
		}
		for _, b := range s.backends {
			b.start()
		}
		time.Sleep(3 * time.Minute) // gRPC tries again after up to 2
		if got := s.load(20, 20*time.Second); got.failed > 0 || min(got.calls["a"], got.calls["b"], got.calls["c"]) < 40 {
			t.Errorf("with all again: %d failed, %v", got.failed, got.calls)
		}
	})
}

// What is known of a backend outlasts the loss of other connections, and of its own.
func TestRemembers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := build(t, 3, Config{}.ServiceConfig())
		s.backends[0].delay.Store(500 * ms)
		s.load(20, 5*time.Second)
		calls := s.backends[0].calls.Load()
		for i := range 8 {
			b := s.backends[i%2]
			b.stop()
			time.Sleep(10 * time.Millisecond)
			b.start()
			time.Sleep(time.Second) // gRPC has connected again
			if got := s.load(50, 200*time.Millisecond); got.failed > 0 {
				t.Errorf("%d failed", got.failed)
			}
		}
		if n := s.backends[0].calls.Load() - calls; n > 3 {
			t.Errorf("the slow one got %d calls in 10 s", n)
		}
	})
}

// A backend that refuses everything at once gets a few calls, and is found when it
// has recovered.
func TestInstantFailure(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.ResourceExhausted} {
		bubble(t, func(t *testing.T) {
			s := build(t, 4, Config{}.ServiceConfig())
			s.load(20, 5*time.Second)
			s.backends[1].delay.Store(0)
			s.backends[1].code.Store(uint32(code))
			if got := s.load(20, 30*time.Second); got.failed > 15 || got.failed < 3 {
				t.Errorf("%s: %d failed, %v", code, got.failed, got.calls)
			}
			s.backends[1].delay.Store(5 * ms)
			s.backends[1].code.Store(0)
			s.load(5, 90*time.Second) // it is probed every 80 s at the least
			if got := s.load(20, 10*time.Second); got.failed > 0 || got.calls["b"] < 20 {
				t.Errorf("%s: after it recovered: %d failed, %v", code, got.failed, got.calls)
			}
		})
	}
}

// A backend that never answers holds some calls until their deadlines, and then
// none but probes.
func TestHanging(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := build(t, 4, Config{}.ServiceConfig())
		s.load(20, 5*time.Second)
		s.backends[2].delay.Store(int64(time.Hour))
		if got := s.load(20, 30*time.Second); got.failed > 12 {
			t.Errorf("%d failed, %v", got.failed, got.calls)
		}
	})
}

// The resolver takes a backend away, adds one, and changes the settings.
func TestResolver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := build(t, 4, Config{}.ServiceConfig())
		s.backends[0].delay.Store(500 * ms)
		s.resolver.UpdateState(s.state(s.backends[:3]...))
		synctest.Wait()
		if got := s.load(20, 30*time.Second); got.failed > 0 || got.calls["d"] > 0 || got.calls["a"] > 12 {
			t.Errorf("%d failed, %v", got.failed, got.calls)
		}
		state := s.state(s.backends...)
		state.ServiceConfig = s.resolver.CC().ParseServiceConfig(Config{Probe: time.Second}.ServiceConfig())
		s.resolver.UpdateState(state)
		synctest.Wait()
		if got := s.load(20, 30*time.Second); got.failed > 0 || got.calls["d"] < 80 || got.calls["a"] < 20 {
			t.Errorf("with probes every second: %d failed, %v", got.failed, got.calls)
		}
	})
}

func TestBadSettings(t *testing.T) {
	_, err := grpc.NewClient("passthrough:///a", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"keystead_p2c":{"probe":"soon"}}]}`))
	if err == nil || !strings.Contains(err.Error(), `"soon" is no duration`) {
		t.Error(err)
	}
	if b := balancer.Get(Name); b == nil || b.Name() != Name {
		t.Errorf("registered: %v", b)
	}
}

// nobody is a backend's picker that knows no connection.
type nobody struct {
	err  error
	done func(balancer.DoneInfo)
}

func (n nobody) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	return balancer.PickResult{Done: n.done}, n.err
}

func TestPick(t *testing.T) {
	p := &picker{b: &p2c{born: time.Now()}, loads: fleet(t, 4), backends: []balancer.Picker{nobody{}, nobody{}, nobody{}, nobody{}}}
	p.chooser = NewChooser(p.loads)
	if n := testing.AllocsPerRun(1000, func() {
		r, err := p.Pick(balancer.PickInfo{})
		if err != nil {
			t.Fatal(err)
		}
		r.Done(balancer.DoneInfo{BytesSent: true, BytesReceived: true})
	}); n > 1 {
		t.Errorf("%v allocations a call", n)
	}
	p.loads = p.loads[:1]
	p.chooser = NewChooser(p.loads)
	told := 0
	p.backends = []balancer.Picker{nobody{done: func(balancer.DoneInfo) { told++ }}}
	r, err := p.Pick(balancer.PickInfo{})
	if err != nil || p.loads[0].InFlight() != 1 {
		t.Fatalf("%v, %d in flight", err, p.loads[0].InFlight())
	}
	if r.Done(balancer.DoneInfo{}); told != 1 || p.loads[0].InFlight() != 0 {
		t.Errorf("what stands below was told %d times, %d in flight", told, p.loads[0].InFlight())
	}
	p.backends = []balancer.Picker{nobody{err: balancer.ErrNoSubConnAvailable}}
	if _, err := p.Pick(balancer.PickInfo{}); !errors.Is(err, balancer.ErrNoSubConnAvailable) || p.loads[0].InFlight() != 0 {
		t.Errorf("a call that did not begin: %v, %d in flight", err, p.loads[0].InFlight())
	}
}
