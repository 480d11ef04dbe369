package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keystead/keystead/internal/cli/latency"
	"github.com/keystead/keystead/internal/vtcodec"
)

// Names of the targets.
const (
	Keystead  = "keystead"
	Echo      = "echo"
	TunedEcho = "tuned-echo"
	HTTP      = "http" // the node, over HTTP with JSON: only workloads that have that form

	// Nodes that run alone with a directory for their data, and this --durability.
	Interval = "interval"
	Always   = "always"
)

// Durabilities are the targets that are compared with the node, which keeps nothing on disk.
var Durabilities = []string{Interval, Always}

// Target is a server to measure.
type Target struct {
	Name string
	Addr string
	// More are further addresses of the same cluster, over which connections are spread.
	More []string
}

// Config is what to measure.
type Config struct {
	Targets     []Target
	Workloads   []string      // names; see Workloads
	Concurrency []int         // callers at once, each in turn
	Duration    time.Duration // of one measurement
	Rounds      int           // measurements of each target
	Batch       int           // checks in a batch or stream message
	Keys        int           // distinct keys
	Conns       int           // connections to each target
	RequestIDs  bool          // send a request id with each operation
	// SlowRefill has limits of checks refill by one in 10 s, not in 1 µs: what is full again within the
	// interval costs a disk nothing.
	SlowRefill bool
	// Progress is called before each measurement. It may be nil.
	Progress func(done, total int, what string)
}

// Bounds of a run: it ends by itself.
const (
	maxConcurrency = 10_000
	maxRun         = 2 * time.Hour
)

// Validate returns what in c makes no sense. Run calls it, too.
func (c *Config) Validate() error {
	switch {
	case len(c.Targets) == 0 || len(c.Workloads) == 0 || len(c.Concurrency) == 0:
		return errors.New("there is nothing to measure")
	case c.Duration < 10*time.Millisecond:
		return fmt.Errorf("a measurement of %s is too short; 10ms is the least", c.Duration)
	case c.Rounds < 1:
		return errors.New("at least one round is needed")
	case c.Batch < 1 || c.Batch > 10_000:
		return fmt.Errorf("a batch of %d: choose 1 to 10,000", c.Batch)
	case c.Keys < 1 || c.Keys > 10_000_000:
		return fmt.Errorf("%d keys: choose 1 to 10,000,000", c.Keys)
	case c.Conns < 1 || c.Conns > 1000:
		return fmt.Errorf("%d connections: choose 1 to 1,000", c.Conns)
	}
	for _, n := range c.Concurrency {
		if n < 1 || n > maxConcurrency {
			return fmt.Errorf("a concurrency of %d: choose 1 to %d", n, maxConcurrency)
		}
	}
	for _, name := range c.Workloads {
		if _, ok := find(name); !ok {
			return fmt.Errorf("workload %q: choose from %s", name, strings.Join(slices.Concat(Workloads, EnvoyWorkloads), ", "))
		}
	}
	if total := time.Duration(c.measurements()) * c.Duration; total > maxRun {
		return fmt.Errorf("this would take %s; %s is the most", total, maxRun)
	}
	return nil
}

func (c *Config) measurements() (n int) {
	for _, name := range c.Workloads {
		w, _ := find(name)
		n += len(c.targetsOf(w)) * len(c.Concurrency) * c.Rounds
	}
	return n
}

// targetsOf returns the targets that a workload is for.
func (c *Config) targetsOf(w workload) (targets []Target) {
	for _, t := range c.Targets {
		if t.Name != HTTP || w.http != nil {
			targets = append(targets, t)
		}
	}
	return targets
}

// Result is one target under one workload and concurrency, over all rounds.
type Result struct {
	Workload    string  `json:"workload"`
	Concurrency int     `json:"concurrency"`
	Target      string  `json:"target"`
	ItemsPerSec float64 `json:"items_per_second"` // median of the rounds
	P50         float64 `json:"p50_us"`           // of one call or cycle, over all rounds
	P99         float64 `json:"p99_us"`
	P999        float64 `json:"p999_us"`
	Errors      int64   `json:"errors"`
	FirstError  string  `json:"first_error,omitempty"`
	// Ratios of the node to the others: the median of the rounds' ratios.
	PerEcho      float64 `json:"per_echo,omitempty"`
	PerTunedEcho float64 `json:"per_tuned_echo,omitempty"`
	// PerGRPC is the ratio of the node over HTTP to the node over gRPC, likewise.
	PerGRPC float64 `json:"per_grpc,omitempty"`
	// PerNone is the ratio of a node with a disk to the node without, likewise.
	PerNone float64 `json:"per_none,omitempty"`
}

// measurement is one target for one Duration.
type measurement struct {
	rate   float64
	hist   *latency.Histogram
	errors int64
	first  error
}

// Run measures. Results come workload by workload, in the order of Config.
func Run(ctx context.Context, cfg Config) ([]Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	conns := map[string][]*grpc.ClientConn{}
	defer func() {
		for _, cs := range conns {
			for _, c := range cs {
				_ = c.Close()
			}
		}
	}()
	for _, t := range cfg.Targets {
		addrs := append([]string{t.Addr}, t.More...)
		for i := range max(cfg.Conns, len(addrs)) {
			c, err := dialBench(addrs[i%len(addrs)])
			if err != nil {
				return nil, err
			}
			conns[t.Name] = append(conns[t.Name], c)
		}
	}
	keys := keysOf(&cfg)
	var results []Result
	done := 0
	for _, name := range cfg.Workloads {
		w, _ := find(name)
		targets := cfg.targetsOf(w)
		for _, n := range cfg.Concurrency {
			rounds := map[string][]measurement{}
			for round := range cfg.Rounds {
				for _, i := range rand.Perm(len(targets)) {
					t := targets[i]
					if cfg.Progress != nil {
						cfg.Progress(done, cfg.measurements(), fmt.Sprintf("%s ×%d, %s", name, n, t.Name))
					}
					m, err := measure(ctx, &cfg, w, t, conns[t.Name], keys, n)
					if err != nil {
						return results, fmt.Errorf("%s with %d callers on %s, round %d: %w", name, n, t.Name, round+1, err)
					}
					rounds[t.Name] = append(rounds[t.Name], m)
					done++
				}
			}
			for _, t := range targets {
				results = append(results, summarize(name, n, t.Name, rounds))
			}
		}
	}
	if cfg.Progress != nil {
		cfg.Progress(done, done, "")
	}
	return results, nil
}

func dialBench(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.New())))
}

// measure lets n workers call a target for the configured time. A failed call
// is counted; a worker that cannot start, or fails ten times, ends the run.
func measure(ctx context.Context, cfg *Config, w workload, t Target, conns []*grpc.ClientConn, keys []string, n int) (measurement, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Duration+30*time.Second)
	defer cancel()
	s := &stint{start: w.start, begin: make(chan struct{})}
	if t.Name == HTTP {
		s.start = w.http
	}
	parts := make([]measurement, n)
	calls := make([]int, n)
	var wg sync.WaitGroup
	s.ready.Add(n)
	for i := range n {
		wg.Go(func() {
			parts[i], calls[i] = s.work(ctx, newWorker(conns[i%len(conns)], t.Addr, keys, cfg, i))
		})
	}
	s.ready.Wait()
	started := time.Now()
	s.end = started.Add(cfg.Duration)
	close(s.begin)
	wg.Wait()
	took := time.Since(started)
	sum := measurement{hist: new(latency.Histogram)}
	total := 0
	for i := range parts {
		if parts[i].errors >= maxFailures {
			return sum, parts[i].first
		}
		sum.hist.Merge(parts[i].hist)
		sum.errors += parts[i].errors
		if sum.first == nil {
			sum.first = parts[i].first
		}
		total += calls[i]
	}
	sum.rate = float64(total*w.items(cfg)) / took.Seconds()
	return sum, nil
}

// stint is the time in which the workers of one measurement call.
type stint struct {
	start starter
	ready sync.WaitGroup // workers that warm up
	begin chan struct{}
	end   time.Time // set before begin is closed
}

// work returns what one worker does, and how many of its calls had an answer.
func (s *stint) work(ctx context.Context, worker *worker) (m measurement, calls int) {
	m.hist = new(latency.Histogram)
	call, err := s.start(ctx, worker)
	defer func() { _ = worker.close() }()
	if err == nil {
		err = call(ctx) // warm-up: connections, stream windows, objects
	}
	s.ready.Done()
	if m.first = err; err != nil {
		m.errors = maxFailures
		return m, 0
	}
	<-s.begin
	for last := time.Now(); last.Before(s.end) && m.errors < maxFailures; {
		err := call(ctx)
		now := time.Now()
		if err != nil {
			m.errors++
			if m.first == nil {
				m.first = err
			}
		} else {
			calls++
			m.hist.Record(now.Sub(last))
		}
		last = now
	}
	return m, calls
}

const maxFailures = 10

func summarize(workload string, n int, target string, rounds map[string][]measurement) Result {
	hist := new(latency.Histogram)
	r := Result{Workload: workload, Concurrency: n, Target: target}
	var rates []float64
	for _, m := range rounds[target] {
		rates = append(rates, m.rate)
		hist.Merge(m.hist)
		r.Errors += m.errors
		if m.first != nil && r.FirstError == "" {
			r.FirstError = m.first.Error()
		}
	}
	r.ItemsPerSec = median(rates)
	us := func(q float64) float64 { return float64(hist.Quantile(q)) / float64(time.Microsecond) }
	r.P50, r.P99, r.P999 = us(0.5), us(0.99), us(0.999)
	if target == Keystead {
		r.PerEcho, r.PerTunedEcho = ratio(rounds, target, Echo), ratio(rounds, target, TunedEcho)
	}
	if target == HTTP {
		r.PerGRPC = ratio(rounds, target, Keystead)
	}
	if slices.Contains(Durabilities, target) {
		r.PerNone = ratio(rounds, target, Keystead)
	}
	return r
}

// ratio returns the median over the rounds of a target's rate to another's.
func ratio(rounds map[string][]measurement, target, other string) float64 {
	var rs []float64
	for i, m := range rounds[other] {
		if m.rate > 0 && i < len(rounds[target]) {
			rs = append(rs, rounds[target][i].rate/m.rate)
		}
	}
	return median(rs)
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
