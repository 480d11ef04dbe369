package rpc

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/keystead/keystead/internal/vtcodec"
	"github.com/keystead/keystead/owner"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// fuzzed returns the requests that arbitrary bytes are read as, and their handlers.
func fuzzed(s *Server) []struct {
	req proto.Message
	do  func(ctx context.Context, req any) (any, error)
} {
	l, c := &limits{s: s}, &counters{s: s}
	return []struct {
		req proto.Message
		do  func(ctx context.Context, req any) (any, error)
	}{
		{&limitpb.CheckRequest{}, func(ctx context.Context, r any) (any, error) { return l.Check(ctx, r.(*limitpb.CheckRequest)) }},
		{&counterpb.AddRequest{}, func(ctx context.Context, r any) (any, error) {
			return counterAdd.serve(ctx, s, r.(*counterpb.AddRequest))
		}},
		{&lockpb.AcquireRequest{}, func(ctx context.Context, r any) (any, error) {
			return lockAcquire.serve(ctx, s, r.(*lockpb.AcquireRequest))
		}},
		{&counterpb.CompareAndSetRequest{}, func(ctx context.Context, r any) (any, error) {
			return counterCompareAndSet.serve(ctx, s, r.(*counterpb.CompareAndSetRequest))
		}},
		{&lockpb.ReleaseRequest{}, func(ctx context.Context, r any) (any, error) {
			return lockRelease.serve(ctx, s, r.(*lockpb.ReleaseRequest))
		}},
		{&lockpb.RenewRequest{}, func(ctx context.Context, r any) (any, error) {
			return lockRenew.serve(ctx, s, r.(*lockpb.RenewRequest))
		}},
		{&limitpb.BatchCheckRequest{}, func(ctx context.Context, r any) (any, error) {
			return l.BatchCheck(ctx, r.(*limitpb.BatchCheckRequest))
		}},
		{&counterpb.BatchAddRequest{}, func(ctx context.Context, r any) (any, error) { return c.BatchAdd(ctx, r.(*counterpb.BatchAddRequest)) }},
		{&lockpb.InspectRequest{}, func(ctx context.Context, r any) (any, error) {
			return lockInspect.serve(ctx, s, r.(*lockpb.InspectRequest))
		}},
	}
}

// clockAt is a clock that a test moves.
type clockAt struct{ now atomic.Int64 }

func (c *clockAt) Now() int64 { return c.now.Load() }

// FuzzUnmarshalAndServe feeds bytes through the codec and a handler's whole
// path, twice, so that the second call meets what the first one left. Nothing
// panics, and what fails fails with a typed error.
func FuzzUnmarshalAndServe(f *testing.F) {
	metrics := NewMetrics(prometheus.NewRegistry())
	for i := range fuzzed(nil) {
		f.Add(uint8(i), []byte{}, int64(0))
	}
	seeds := []proto.Message{
		&limitpb.CheckRequest{Key: "k", Name: "n", Limit: 5, PeriodNs: 1e9, Burst: 7, Cost: 2, RequestId: requestN(1, 1)},
		&counterpb.AddRequest{Key: "k", Delta: -5, Min: proto.Int64(-9), Max: proto.Int64(9), IdleTtlNs: 1e9, RequestId: requestN(1, 1)},
		&lockpb.AcquireRequest{Key: "k", Holder: "h", TtlNs: 1e9, WaitNs: 1e9, Metadata: []byte("m"), RequestId: requestN(1, 1)},
		&counterpb.CompareAndSetRequest{Key: "k", Value: 5, RequestId: requestN(1, 1)},
		&lockpb.ReleaseRequest{Key: "k", Token: testEpoch<<owner.SeqBits | 1, RequestId: requestN(1, 1)},
		&lockpb.RenewRequest{Key: "k", Token: testEpoch<<owner.SeqBits | 1, TtlNs: 1e9},
		&limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{{Key: "k", Limit: 1, PeriodNs: 1e9}, {}}},
		&counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{{Key: "k", Delta: 1}, {}}},
		&lockpb.InspectRequest{Key: "k", MaxWaiters: 1 << 31},
	}
	for i, m := range seeds {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b, int64(1e9))
		f.Add(uint8(i), b[:len(b)-1], int64(1e18))
	}
	keyed := []proto.Message{
		&limitpb.CheckRequest{Key: "k", Limit: 5, PeriodNs: 1e9, IdempotencyKey: "order-7"},
		&counterpb.AddRequest{Key: "k", Delta: -5, IdempotencyKey: "order-7"},
		&lockpb.AcquireRequest{Key: "k", Holder: "h", TtlNs: 1e9, WaitNs: 1e9, IdempotencyKey: "order-7"},
		&counterpb.CompareAndSetRequest{Key: "k", Value: 5, IdempotencyKey: "order-7", RequestId: requestN(1, 1)},
		&lockpb.ReleaseRequest{Key: "k", Token: 1, IdempotencyKey: strings.Repeat("k", 65)},
	}
	for i, m := range keyed {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b, int64(400e9))
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte, pause int64) {
		now := &clockAt{}
		sink := &sink{}
		store, err := owner.New(owner.Config{Rule: &rule{}, Sink: sink, Shards: 1}, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := &Server{cfg: Config{Store: store, Clock: now, Metrics: metrics}, stopping: make(chan struct{})}
		all := fuzzed(s)
		x := all[int(which)%len(all)]
		if vtcodec.New().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, x.req) != nil {
			return
		}
		for range 3 {
			// Who has to wait leaves as soon as it stands in the queue.
			ctx, cancel := context.WithCancel(context.Background())
			sink.on(func(r *owner.Record) {
				if l := r.Hold(); l != nil && l.Queue.Len() > 0 {
					cancel()
				}
			})
			resp, err := s.bounded(ctx, x.req, metrics.other, x.do)
			cancel()
			checkOutcome(t, resp, err)
			now.now.Store(now.now.Load() + max(min(pause, 1<<60), 0)/3)
			store.Wake(now.Now())
			store.Sweep(now.Now())
		}
	})
}

func checkOutcome(t *testing.T, resp any, err error) {
	t.Helper()
	if err == nil {
		if _, err := vtcodec.New().Marshal(resp); err != nil {
			t.Errorf("the answer %v cannot be sent: %v", resp, err)
		}
		return
	}
	st := status.Convert(err)
	if len(st.Details()) == 0 || st.Code() == codes.Internal || st.Code() == codes.OK {
		t.Fatalf("%v is not typed", err)
	}
	info, ok := st.Details()[0].(*errdetails.ErrorInfo)
	if !ok || info.Domain != Domain || info.Reason == "" || info.Reason == "UNSPECIFIED" {
		t.Errorf("%v has details %v", err, st.Details())
	}
}
