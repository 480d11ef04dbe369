package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// worker is one of the concurrent callers of a measurement.
type worker struct {
	conn   *grpc.ClientConn
	addr   string       // of the target
	close  func() error // of what start has opened beside conn
	keys   []string
	rng    *mrand.Rand
	cfg    *Config
	number int
	client []byte // for request ids
	seq    uint64
}

func newWorker(conn *grpc.ClientConn, addr string, keys []string, cfg *Config, number int) *worker {
	w := &worker{conn: conn, addr: addr, close: func() error { return nil }, keys: keys, cfg: cfg, number: number, client: make([]byte, 16)}
	_, _ = rand.Read(w.client) // never fails
	w.rng = mrand.New(mrand.NewPCG(uint64(number), 7400))
	return w
}

func (w *worker) key() string { return w.keys[w.rng.IntN(len(w.keys))] }

func (w *worker) requestID() *commonpb.RequestId {
	if !w.cfg.RequestIDs {
		return nil
	}
	w.seq++
	return &commonpb.RequestId{Client: w.client, Sequence: w.seq, Settled: w.seq}
}

func (w *worker) check() *limitpb.CheckRequest {
	period := time.Second
	if w.cfg.SlowRefill {
		period = 10_000_000 * time.Second
	}
	return &limitpb.CheckRequest{Key: w.key(), Name: "bench-limit", Limit: 1_000_000, PeriodNs: int64(period), RequestId: w.requestID()}
}

func (w *worker) checks() []*limitpb.CheckRequest {
	checks := make([]*limitpb.CheckRequest, w.cfg.Batch)
	for i := range checks {
		checks[i] = w.check()
	}
	return checks
}

// cycle is one call, or one round of calls, of a workload.
type cycle func(ctx context.Context) error

// workload is a way to use a node.
type workload struct {
	name  string
	about string            // for people: what a cycle is
	named bool              // it is run only if it is named
	items func(*Config) int // that one cycle counts for
	start starter
	http  starter // the same over HTTP; nil = it has no such form
}

// starter makes a worker ready to call.
type starter func(ctx context.Context, w *worker) (cycle, error)

func single(*Config) int    { return 1 }
func batch(cfg *Config) int { return cfg.Batch }

// workloads are all that there are, in the order in which they run.
var workloads = []workload{
	{name: "check", about: "one limit check a call", items: single, start: startCheck, http: startHTTPCheck},
	{name: "batch", about: "limit checks in batches of --batch", items: batch, start: startBatch},
	{name: "stream", about: "limit checks in batches on a stream, answers awaited one message later", items: batch, start: startStream},
	{name: "counter", about: "one counter add a call", items: single, start: startCounter},
	{name: "lock", about: "acquire and release a lock, two calls", items: single, start: startLock},
	{name: "locks", about: "acquire and release locks in batches of --batch, two calls", items: batch, start: startLocks},
	{name: "semaphore", about: "acquire and release one of ten permits, two calls", items: single, start: startSemaphore},
	{name: "register", about: "put 100 bytes and get them, two calls", items: single, start: startRegister},
	{name: "once", about: "begin and complete work with a result of 100 bytes, two calls", items: single, start: startOnce},
	{name: "admit", about: "charge four limits of a key in one call", items: single, start: startAdmit},
	{name: "hold", about: "reserve four limits of a key and settle them, two calls", items: single, start: startHold},
	{name: "id", about: "one id a call", items: single, start: startID},
	{name: "rls", about: "one descriptor a call of Envoy's rate limit service", named: true, items: single, start: startRLS(1)},
	{name: "rls4", about: "four descriptors a call", named: true, items: several(4), start: startRLS(4)},
}

// Workloads are the names of the workloads that are run if none is named, in their order.
var Workloads = namesOf(false)

// EnvoyWorkloads are the names of those that call the rate limit service of Envoy. They
// need a node whose configuration is EnvoyConfig.
var EnvoyWorkloads = namesOf(true)

func namesOf(named bool) (names []string) {
	for _, w := range workloads {
		if w.named == named {
			names = append(names, w.name)
		}
	}
	return names
}

// find returns the workload of a name.
func find(name string) (workload, bool) {
	i := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
	if i < 0 {
		return workload{}, false
	}
	return workloads[i], true
}

// About describes workloads, one a line: those that are run if none is named, or those
// that have to be named.
func About(named bool) string {
	var b strings.Builder
	for _, w := range workloads {
		if w.named == named {
			fmt.Fprintf(&b, "\n  %-9s %s", w.name, w.about)
		}
	}
	return b.String()
}

func startCheck(_ context.Context, w *worker) (cycle, error) {
	c := limitpb.NewLimitServiceClient(w.conn)
	return func(ctx context.Context) error {
		_, err := c.Check(ctx, w.check())
		return err
	}, nil
}

func startBatch(_ context.Context, w *worker) (cycle, error) {
	c := limitpb.NewLimitServiceClient(w.conn)
	return func(ctx context.Context) error {
		r, err := c.BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: w.checks()})
		if err != nil {
			return err
		}
		return allAnswered(r.Results, w.cfg.Batch)
	}, nil
}

func allAnswered(results []*limitpb.CheckResult, want int) error {
	if len(results) != want {
		return fmt.Errorf("%d results for %d checks", len(results), want)
	}
	for _, r := range results {
		if r.Error != nil {
			return fmt.Errorf("a check failed: %s", r.Error.Message)
		}
	}
	return nil
}

func startStream(ctx context.Context, w *worker) (cycle, error) {
	s, err := limitpb.NewLimitServiceClient(w.conn).StreamCheck(ctx)
	if err != nil {
		return nil, err
	}
	send := func(tag uint64) error {
		return s.Send(&limitpb.StreamCheckRequest{Tag: tag, Checks: w.checks()})
	}
	if err := send(0); err != nil {
		return nil, err
	}
	var tag uint64
	return func(context.Context) error {
		if err := send(tag + 1); err != nil {
			return err
		}
		r, err := s.Recv()
		if err != nil {
			return err
		}
		if r.Tag != tag {
			return fmt.Errorf("answer %d came for request %d", r.Tag, tag)
		}
		tag++
		return allAnswered(r.Results, w.cfg.Batch)
	}, nil
}

func startCounter(_ context.Context, w *worker) (cycle, error) {
	c := counterpb.NewCounterServiceClient(w.conn)
	return func(ctx context.Context) error {
		_, err := c.Add(ctx, &counterpb.AddRequest{Key: w.key(), Name: "bench", Delta: 1, RequestId: w.requestID()})
		return err
	}, nil
}

func startLock(_ context.Context, w *worker) (cycle, error) {
	c := lockpb.NewLockServiceClient(w.conn)
	key, holder := hex.EncodeToString(w.client), "bench-"+strconv.Itoa(w.number)
	return func(ctx context.Context) error {
		r, err := c.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Name: "bench", Holder: holder, TtlNs: 10_000_000_000, RequestId: w.requestID()})
		if err != nil {
			return err
		}
		if !r.Acquired {
			return fmt.Errorf("lock %s is held by %s", key, r.GetHolder().GetId())
		}
		_, err = c.Release(ctx, &lockpb.ReleaseRequest{Key: key, Name: "bench", Token: r.Token, RequestId: w.requestID()})
		return err
	}, nil
}

// startLocks acquires and releases as many locks as a batch has.
func startLocks(_ context.Context, w *worker) (cycle, error) {
	c := lockpb.NewLockServiceClient(w.conn)
	holder := "bench-" + strconv.Itoa(w.number)
	var keys []string
	for i := range w.cfg.Batch {
		keys = append(keys, fmt.Sprintf("%x-%d", w.client, i))
	}
	return func(ctx context.Context) error {
		get, back := &lockpb.BatchAcquireRequest{}, &lockpb.BatchReleaseRequest{}
		for _, key := range keys {
			get.Acquires = append(get.Acquires, &lockpb.AcquireRequest{Key: key, Name: "bench", Holder: holder, TtlNs: 10_000_000_000, RequestId: w.requestID()})
		}
		r, err := c.BatchAcquire(ctx, get)
		if err != nil {
			return err
		}
		for i, x := range r.Results {
			if !x.Response.GetAcquired() {
				return fmt.Errorf("lock %s: held by %q, %s", keys[i], x.Response.GetHolder().GetId(), x.Error.GetMessage())
			}
			back.Releases = append(back.Releases, &lockpb.ReleaseRequest{Key: keys[i], Name: "bench", Token: x.Response.Token, RequestId: w.requestID()})
		}
		b, err := c.BatchRelease(ctx, back)
		if err != nil {
			return err
		}
		for i, x := range b.Results {
			if !x.Response.GetReleased() {
				return fmt.Errorf("lock %s was not released: %s", keys[i], x.Error.GetMessage())
			}
		}
		if len(b.Results) != len(keys) {
			return fmt.Errorf("%d results for %d locks", len(b.Results), len(keys))
		}
		return nil
	}, nil
}

// startOnce does work of a key of its own each time. It has no request ids, which would be kept for
// as long as they are on each key: a complete is told by its token.
func startOnce(_ context.Context, w *worker) (cycle, error) {
	c := oncepb.NewOnceServiceClient(w.conn)
	result, n := make([]byte, 100), 0
	_, _ = rand.Read(result) // never fails
	return func(ctx context.Context) error {
		n++
		key := fmt.Sprintf("bench-once-%x-%d", w.client, n)
		r, err := c.Begin(ctx, &oncepb.BeginRequest{Key: key, Name: "bench", Fingerprint: "bench", TtlNs: 10_000_000_000})
		if err != nil {
			return err
		}
		if r.Outcome != oncepb.Outcome_OUTCOME_FIRST {
			return fmt.Errorf("once %s: %s", key, r.Outcome)
		}
		_, err = c.Complete(ctx, &oncepb.CompleteRequest{Key: key, Name: "bench", Token: r.Token, Result: result, KeepNs: 1_000_000_000})
		return err
	}, nil
}

func startSemaphore(_ context.Context, w *worker) (cycle, error) {
	c := semaphorepb.NewSemaphoreServiceClient(w.conn)
	key, holder := hex.EncodeToString(w.client), "bench-"+strconv.Itoa(w.number)
	return func(ctx context.Context) error {
		r, err := c.Acquire(ctx, &semaphorepb.AcquireRequest{Key: key, Name: "bench", Holder: holder, Permits: 1, Capacity: 10, TtlNs: 10_000_000_000, RequestId: w.requestID()})
		if err != nil {
			return err
		}
		if !r.Acquired {
			return fmt.Errorf("semaphore %s: %d of %d permits are held", key, r.Held, r.Capacity)
		}
		_, err = c.Release(ctx, &semaphorepb.ReleaseRequest{Key: key, Name: "bench", Token: r.Token, RequestId: w.requestID()})
		return err
	}, nil
}

const (
	// benchRegister is the name of registers: their keys have counters, too, of other names.
	benchRegister = "bench-register"
	// valueSize is how long the values of registers are, in bytes.
	valueSize = 100
)

func startRegister(_ context.Context, w *worker) (cycle, error) {
	c := registerpb.NewRegisterServiceClient(w.conn)
	value := make([]byte, valueSize)
	return func(ctx context.Context) error {
		key := w.key()
		if _, err := c.Put(ctx, &registerpb.PutRequest{Key: key, Name: benchRegister, Value: value, RequestId: w.requestID()}); err != nil {
			return err
		}
		r, err := c.Get(ctx, &registerpb.GetRequest{Key: key, Name: benchRegister})
		if err == nil && len(r.Value) != valueSize {
			err = fmt.Errorf("register %s has %d bytes", key, len(r.Value))
		}
		return err
	}, nil
}

func startID(_ context.Context, w *worker) (cycle, error) {
	c := idpb.NewIdServiceClient(w.conn)
	return func(ctx context.Context) error {
		_, err := c.Next(ctx, &idpb.NextRequest{Count: 1})
		return err
	}, nil
}
