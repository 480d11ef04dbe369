package p2c

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/leastrequest" // least_request_experimental
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/internal/cli/latency"
)

var (
	figures       = flag.Bool("figures", false, "TestFigures: measure two choices against round robin; otherwise it makes one short round")
	figuresTCP    = flag.Bool("figures.tcp", false, "TestFigures: over TCP and in real time, which needs a calm machine, rather than in a bubble")
	figuresRounds = flag.Int("figures.rounds", 5, "TestFigures: rounds of each")
	figuresLasts  = flag.Duration("figures.lasts", 20*time.Second, "TestFigures: how long each measurement lasts")
	figuresRate   = flag.Float64("figures.rate", 100, "TestFigures: calls a second, in an open loop")
	figuresMean   = flag.Duration("figures.mean", 10*time.Millisecond, "TestFigures: mean time that a server takes for a call; one takes 10 times as long")
)

// worker is a server that does one thing after the other with each of its
// workers. The work takes an exponentially distributed time, and no processor.
type worker struct {
	grpc_health_v1.UnimplementedHealthServer
	mean  time.Duration
	slots chan struct{}

	mu    sync.Mutex // guards what follows
	rnd   *rand.Rand
	calls int
}

// Check does the work.
func (w *worker) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	w.mu.Lock()
	w.calls++
	work := time.Duration(w.rnd.ExpFloat64() * float64(w.mean))
	w.mu.Unlock()
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case <-time.After(work):
	case <-ctx.Done():
	}
	return &grpc_health_v1.HealthCheckResponse{}, ctx.Err()
}

// measured is one measurement.
type measured struct {
	latency.Histogram
	failed int
	calls  []int // by server
}

// listen opens a listener, and says how to reach it.
func listen(t *testing.T, tcp bool) (net.Listener, func(context.Context) (net.Conn, error)) {
	t.Helper()
	if !tcp {
		l := bufconn.Listen(1 << 16)
		return l, l.DialContext
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}
}

// measure calls four servers, the last of which takes 10 times as long, in an open
// loop: calls begin at moments that are drawn before, however long the answers
// take, and their latency counts from the moment at which they should have begun.
func measure(t *testing.T, config string, tcp bool, rate float64, lasts time.Duration, seed uint64) *measured {
	t.Helper()
	r := manual.NewBuilderWithScheme("figures")
	var state resolver.State
	var workers []*worker
	dials := map[string]func(context.Context) (net.Conn, error){}
	for i := range 4 {
		w := &worker{mean: *figuresMean, slots: make(chan struct{}, 8), rnd: rand.New(rand.NewPCG(seed, uint64(i)))}
		if i == 3 {
			w.mean *= 10
		}
		l, dial := listen(t, tcp)
		s := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(s, w)
		go func() { _ = s.Serve(l) }()
		defer s.Stop()
		workers = append(workers, w)
		addr := fmt.Sprint(i)
		dials[addr] = dial
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: addr}}})
	}
	r.InitialState(state)
	conn, err := grpc.NewClient("figures:///", grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(config),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dials[addr](ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := grpc_health_v1.NewHealthClient(conn)
	out := &measured{}
	var mu sync.Mutex // guards out
	var wg sync.WaitGroup
	rnd := rand.New(rand.NewPCG(seed, 99))
	warm := time.Now().Add(lasts / 5) // connections are made; not counted
	for at := time.Now(); at.Before(warm.Add(lasts)); at = at.Add(time.Duration(rnd.ExpFloat64() / rate * float64(time.Second))) {
		<-time.After(time.Until(at))
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
			took := time.Since(at)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				out.failed++
			case at.After(warm):
				out.Record(took)
			}
		})
	}
	wg.Wait()
	for _, w := range workers {
		out.calls = append(out.calls, w.calls)
	}
	return out
}

// TestFigures measures with real gRPC clients and servers, in a bubble: on
// connections in memory and in simulated time, so that what else the machine does
// is not measured. With -figures.tcp it does so on TCP and in real time. Without
// -figures it makes one short round of both, which says only that they work.
func TestFigures(t *testing.T) {
	if *figures {
		compare(t, *figuresTCP, *figuresRounds, *figuresLasts)
		return
	}
	compare(t, false, 1, 2*time.Second)
	compare(t, true, 1, time.Second/2)
}

// compare measures the policies in turn.
func compare(t *testing.T, tcp bool, rounds int, lasts time.Duration) {
	t.Helper()
	policies := []struct{ name, config string }{
		{"round robin", inTurn},
		{"keystead_p2c", Config{}.ServiceConfig()},
		{"least_request", `{"loadBalancingConfig":[{"least_request_experimental":{"choiceCount":2}}]}`},
	}
	p99 := map[string][]float64{}
	for round := range rounds {
		for _, p := range policies {
			var m *measured
			if tcp {
				m = measure(t, p.config, tcp, *figuresRate, lasts, uint64(round))
			} else {
				synctest.Test(t, func(t *testing.T) { m = measure(t, p.config, tcp, *figuresRate, lasts, uint64(round)) })
			}
			if m.failed > 0 || m.Count() == 0 {
				t.Fatalf("%s: %d answers, %d failures", p.name, m.Count(), m.failed)
			}
			t.Logf("round %d, %-13s: %5d calls, p50 %6s, p99 %6s, max %6s, by server %v", round, p.name, m.Count(),
				short(m.Quantile(0.5)), short(m.Quantile(0.99)), short(m.Max()), m.calls)
			p99[p.name] = append(p99[p.name], float64(m.Quantile(0.99)))
		}
	}
	for _, p := range policies[1:] {
		var ratios []float64
		for i, v := range p99[p.name] {
			ratios = append(ratios, v/p99["round robin"][i])
		}
		slices.Sort(ratios)
		t.Logf("p99 of %s ÷ p99 of round robin: median %.2f of %.2f", p.name, ratios[len(ratios)/2], ratios)
	}
}

func short(d time.Duration) string {
	return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
}
