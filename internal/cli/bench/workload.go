package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mrand "math/rand/v2"
	"strconv"

	"google.golang.org/grpc"

	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// worker is one of the concurrent callers of a measurement.
type worker struct {
	conn   *grpc.ClientConn
	keys   []string
	rng    *mrand.Rand
	cfg    *Config
	number int
	client []byte // for request ids
	seq    uint64
}

func newWorker(conn *grpc.ClientConn, keys []string, cfg *Config, number int) *worker {
	w := &worker{conn: conn, keys: keys, cfg: cfg, number: number, client: make([]byte, 16)}
	_, _ = rand.Read(w.client) // never fails
	w.rng = mrand.New(mrand.NewPCG(uint64(number), 7400))
	return w
}

func (w *worker) key() string { return w.keys[w.rng.IntN(len(w.keys))] }

func (w *worker) requestID() *pb.RequestId {
	if !w.cfg.RequestIDs {
		return nil
	}
	w.seq++
	return &pb.RequestId{Client: w.client, Sequence: w.seq, Settled: w.seq}
}

func (w *worker) check() *pb.CheckRequest {
	return &pb.CheckRequest{Key: w.key(), Name: "bench-limit", Limit: 1_000_000, PeriodNs: 1_000_000_000, RequestId: w.requestID()}
}

func (w *worker) checks() []*pb.CheckRequest {
	checks := make([]*pb.CheckRequest, w.cfg.Batch)
	for i := range checks {
		checks[i] = w.check()
	}
	return checks
}

// cycle is one call, or one round of calls, of a workload.
type cycle func(ctx context.Context) error

// workload is a way to use a node.
type workload struct {
	about string
	items func(*Config) int // that one cycle counts for
	start func(ctx context.Context, w *worker) (cycle, error)
}

func single(*Config) int    { return 1 }
func batch(cfg *Config) int { return cfg.Batch }

// workloads by name.
var workloads = map[string]workload{
	"check":   {"one limit check a call", single, startCheck},
	"batch":   {"limit checks in batches", batch, startBatch},
	"stream":  {"limit checks in batches on a stream, answers awaited one message later", batch, startStream},
	"counter": {"one counter add a call", single, startCounter},
	"lock":    {"acquire and release a lock, two calls", single, startLock},
	"rls":     {"one descriptor a call of Envoy's rate limit service", single, startRLS(1)},
	"rls4":    {"four descriptors a call of Envoy's rate limit service", several(4), startRLS(4)},
	"id":      {"one id a call", single, startID},
}

// Workloads are the names of the workloads in the order in which they run.
var Workloads = []string{"check", "batch", "stream", "counter", "lock", "id"}

func startCheck(_ context.Context, w *worker) (cycle, error) {
	c := pb.NewLimitServiceClient(w.conn)
	return func(ctx context.Context) error {
		_, err := c.Check(ctx, w.check())
		return err
	}, nil
}

func startBatch(_ context.Context, w *worker) (cycle, error) {
	c := pb.NewLimitServiceClient(w.conn)
	return func(ctx context.Context) error {
		r, err := c.BatchCheck(ctx, &pb.BatchCheckRequest{Checks: w.checks()})
		if err != nil {
			return err
		}
		return allAnswered(r.Results, w.cfg.Batch)
	}, nil
}

func allAnswered(results []*pb.CheckResult, want int) error {
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
	s, err := pb.NewLimitServiceClient(w.conn).StreamCheck(ctx)
	if err != nil {
		return nil, err
	}
	send := func(tag uint64) error {
		return s.Send(&pb.StreamCheckRequest{Tag: tag, Checks: w.checks()})
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
	c := pb.NewCounterServiceClient(w.conn)
	return func(ctx context.Context) error {
		_, err := c.Add(ctx, &pb.AddRequest{Key: w.key(), Name: "bench", Delta: 1, RequestId: w.requestID()})
		return err
	}, nil
}

func startLock(_ context.Context, w *worker) (cycle, error) {
	c := pb.NewLockServiceClient(w.conn)
	key, holder := hex.EncodeToString(w.client), "bench-"+strconv.Itoa(w.number)
	return func(ctx context.Context) error {
		r, err := c.Acquire(ctx, &pb.AcquireRequest{Key: key, Name: "bench", Holder: holder, TtlNs: 10_000_000_000, RequestId: w.requestID()})
		if err != nil {
			return err
		}
		if !r.Acquired {
			return fmt.Errorf("lock %s is held by %s", key, r.GetHolder().GetHolder())
		}
		_, err = c.Release(ctx, &pb.ReleaseRequest{Key: key, Name: "bench", Token: r.Token, RequestId: w.requestID()})
		return err
	}, nil
}

func startID(_ context.Context, w *worker) (cycle, error) {
	c := pb.NewIdServiceClient(w.conn)
	return func(ctx context.Context) error {
		_, err := c.Next(ctx, &pb.NextRequest{Count: 1})
		return err
	}, nil
}
