package workload

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/caller"
	"github.com/keystead/keystead/internal/tests/kinds"
)

// Config says what clients do.
type Config struct {
	// Clients is how many there are, 1 to MaxClients; Keys, how many objects of
	// each kind, 1 to MaxKeys.
	Clients, Keys int
	Seed          uint64
	// Kinds are those of the objects. Default all.
	Kinds []*kinds.Kind
	// Splits says that objects are split meanwhile: see kinds.Config.
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
	// insistFor is how long an operation is tried, from its first attempt on.
	insistFor = 20 * time.Second
	// longestTTL is that of grants.
	longestTTL = 1500 * time.Millisecond
	// sessionTTL is that of grants under sessions: the longest that the nodes allow, as that is
	// less than a session's least.
	sessionTTL = 2 * time.Second
)

// Workload is a number of clients at work.
type Workload struct {
	cfg       Config
	recording *kinds.Recording
	objects   kinds.Objects

	stop context.CancelFunc // no new operations
	wg   sync.WaitGroup

	from, until int64

	mu                     sync.Mutex // guards what follows
	served                 map[string][]Span
	operations, lost, open int
	unexpected             []string
}

// Start starts the clients. Stop them.
func Start(cfg Config) (*Workload, error) {
	switch {
	case cfg.Clients < 1 || cfg.Clients > MaxClients:
		return nil, fmt.Errorf("workload: %d clients: choose 1 to %d", cfg.Clients, MaxClients)
	case cfg.Keys < 1 || cfg.Keys > MaxKeys:
		return nil, fmt.Errorf("workload: %d keys: choose 1 to %d", cfg.Keys, MaxKeys)
	}
	w := &Workload{cfg: cfg, recording: kinds.NewRecording(cfg.Now), served: map[string][]Span{}}
	w.objects = kinds.NewObjects(cfg.Keys, fmt.Sprint(cfg.Seed, "-"))
	maps.DeleteFunc(w.objects, func(k *kinds.Kind, _ []kinds.Object) bool {
		return len(cfg.Kinds) > 0 && !slices.Contains(cfg.Kinds, k)
	})
	objects := w.objects.Each()
	for _, o := range objects {
		w.served[o.Key] = nil
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	w.from = cfg.Now()
	rng := rand.New(rand.NewPCG(cfg.Seed, 0xc11e27))
	var all []*kinds.Worker
	for i := range cfg.Clients + len(objects) {
		all = append(all, kinds.NewWorker(kinds.Config{
			Recording: w.recording, Connect: cfg.Connect, Nodes: cfg.Nodes, Log: w,
			Attempt: attemptTime, Insist: insistFor, LongestTTL: longestTTL, SessionTTL: sessionTTL, Splits: cfg.Splits,
		}, i, rng.Uint64()))
	}
	for i, c := range all {
		w.wg.Go(func() {
			defer c.Close()
			if i < cfg.Clients {
				for c.Rest(ctx, pace) {
					c.Work(ctx, w.objects)
				}
				return
			}
			for c.Rest(ctx, 2*probePace) {
				c.Probe(ctx, objects[i-cfg.Clients], probeTime)
			}
		})
	}
	return w, nil
}

// Objects returns those that the clients work on.
func (w *Workload) Objects() []kinds.Object { return w.objects.Each() }

// Stop ends new operations, waits until those under way are answered or given up,
// and returns what was recorded.
func (w *Workload) Stop() *Record {
	w.until = w.cfg.Now()
	w.stop()
	w.wg.Wait()
	r := &Record{
		Record: w.recording.Record(), Served: w.served, From: w.from, Until: w.until,
		Operations: w.operations, Lost: w.lost, Open: w.open, Unexpected: w.unexpected,
	}
	for _, spans := range r.Served {
		slices.SortFunc(spans, func(a, b Span) int { return int(a.End - b.End) })
	}
	return r
}

// Unserved returns the objects on which no call was answered since a moment.
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

// Answered implements kinds.Log.
func (w *Workload) Answered(key string, start, end int64, probe bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.served[key] = append(w.served[key], Span{start, end})
	if !probe {
		w.operations++
	}
}

// Failed implements kinds.Log.
func (w *Workload) Failed(_ error, f caller.Fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f == caller.Lost {
		w.lost++
	}
}

// Open implements kinds.Log.
func (w *Workload) Open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open++
}

// Unexpected implements kinds.Log.
func (w *Workload) Unexpected(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.unexpected) < maxUnexpected {
		w.unexpected = append(w.unexpected, what)
	}
}
