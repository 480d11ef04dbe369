package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
)

// Config says what clients do.
type Config struct {
	// Clients is how many there are, 1 to MaxClients; Keys, how many objects of
	// each kind, 1 to MaxKeys.
	Clients, Keys int
	Seed          uint64
	// Splits says that objects are split meanwhile: every other counter seldom gets an
	// operation that needs the whole, so that it stays split for a while; some checks have
	// no request id, so that any part may decide them; some requests are sent again after
	// their answer.
	Splits bool
	// Now is the clock, in ns: the one that the nodes use.
	Now func() int64
	// Connect returns a client's connections to the nodes that there are now. It
	// is called again when Nodes says another number. The workload closes them.
	Connect func() ([]*grpc.ClientConn, error)
	Nodes   func() int
}

const (
	// MaxClients bounds the concurrency that a check has to untangle.
	MaxClients = 10
	// MaxKeys bounds the probes.
	MaxKeys = 64

	// pace is the longest rest of a worker between operations, probePace that of a
	// probe between reads.
	pace, probePace = 16 * time.Millisecond, 50 * time.Millisecond
	// attemptTime bounds an attempt, probeTime one of a probe.
	attemptTime, probeTime = time.Second, 500 * time.Millisecond
	// insistFor is how long an operation is tried, from its first attempt on. Its
	// request id is known for longer.
	insistFor = 20 * time.Second
	// Attempts rest between these before the next.
	leastRest, mostRest = 10 * time.Millisecond, 160 * time.Millisecond
)

// Workload is a number of clients at work.
type Workload struct {
	cfg                      Config
	counters, buckets, locks *history.Recorder
	windows                  *history.Recorder
	names                    map[kind][]string
	registers                map[string]*Register

	stop context.CancelFunc // no new operations
	wg   sync.WaitGroup

	from, until int64

	mu                     sync.Mutex // guards what follows
	served                 map[string][]Span
	operations, lost, open int
	odd                    []string
}

type kind string

const (
	counterKind kind = "counter"
	bucketKind  kind = "limit"
	windowKind  kind = "window" // a sliding one
	lockKind    kind = "lock"
)

var kinds = []kind{counterKind, bucketKind, windowKind, lockKind}

// params are those of all buckets: slow to refill, so that one that has forgotten
// what was spent is seen.
var params = history.BucketParams{Limit: 2, Period: int64(time.Second), Burst: 20}

// window is that of all sliding windows: so small that it is exact, and so long that one
// that has forgotten what was spent is seen.
var window = history.WindowParams{Limit: 12, Period: int64(4 * time.Second)}

// Start starts the clients. Stop them.
func Start(cfg Config) (*Workload, error) {
	switch {
	case cfg.Clients < 1 || cfg.Clients > MaxClients:
		return nil, fmt.Errorf("workload: %d clients: choose 1 to %d", cfg.Clients, MaxClients)
	case cfg.Keys < 1 || cfg.Keys > MaxKeys:
		return nil, fmt.Errorf("workload: %d keys: choose 1 to %d", cfg.Keys, MaxKeys)
	}
	w := &Workload{cfg: cfg, names: map[kind][]string{}, registers: map[string]*Register{}, served: map[string][]Span{}}
	w.windows = history.NewRecorder(cfg.Now)
	w.counters, w.buckets, w.locks = history.NewRecorder(cfg.Now), history.NewRecorder(cfg.Now), history.NewRecorder(cfg.Now)
	for _, k := range kinds {
		for i := range cfg.Keys {
			name := fmt.Sprintf("%s-%d-%d", k, cfg.Seed, i)
			w.names[k] = append(w.names[k], name)
			w.served[name] = nil
			if k == lockKind {
				w.registers[name] = &Register{now: cfg.Now}
			}
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	w.from = cfg.Now()
	rng := rand.New(rand.NewPCG(cfg.Seed, 0xc11e27))
	var all []*client
	for i := range cfg.Clients {
		all = append(all, w.newClient(i, rng.Uint64()))
	}
	probes := cfg.Clients
	for _, k := range kinds {
		for _, key := range w.names[k] {
			c := w.newClient(probes, rng.Uint64())
			probes++
			w.wg.Go(func() { defer c.close(); c.probe(ctx, k, key) })
		}
	}
	for _, c := range all {
		w.wg.Go(func() { defer c.close(); c.work(ctx) })
	}
	return w, nil
}

// Keys are those of all objects.
func (w *Workload) Keys() []string {
	return slices.Concat(w.names[counterKind], w.names[bucketKind], w.names[windowKind], w.names[lockKind])
}

// Counters are the keys of the counters.
func (w *Workload) Counters() []string { return slices.Clone(w.names[counterKind]) }

// Limits are the keys of the token buckets.
func (w *Workload) Limits() []string { return slices.Clone(w.names[bucketKind]) }

// Stop ends new operations, waits until those under way are answered or given up,
// and returns what was recorded.
func (w *Workload) Stop() *Record {
	w.until = w.cfg.Now()
	w.stop()
	w.wg.Wait()
	r := &Record{
		Counters: w.counters.Calls(), Buckets: w.buckets.Calls(), Locks: w.locks.Calls(), Params: params,
		Windows: w.windows.Calls(), Window: window,
		Writes: map[string][]Write{}, Served: w.served, From: w.from, Until: w.until,
		Operations: w.operations, Lost: w.lost, Open: w.open, Odd: w.odd,
	}
	for key, reg := range w.registers {
		r.Writes[key] = reg.Writes()
	}
	for _, spans := range r.Served {
		slices.SortFunc(spans, func(a, b Span) int { return int(a.End - b.End) })
	}
	return r
}

// Unserved are the objects on which no call was answered since a moment.
func (w *Workload) Unserved(since int64) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []string
	for key, spans := range w.served {
		if len(spans) == 0 || spans[len(spans)-1].End < since {
			keys = append(keys, key)
		}
	}
	return keys
}

// answered notes that a call on an object was answered.
func (w *Workload) answered(key string, start, end int64, probe bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.served[key] = append(w.served[key], Span{start, end})
	if !probe {
		w.operations++
	}
}

func (w *Workload) note(lost, open int, odd string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost, w.open = w.lost+lost, w.open+open
	if odd != "" && len(w.odd) < maxOdd {
		w.odd = append(w.odd, odd)
	}
}
