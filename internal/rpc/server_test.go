package rpc

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

func TestHealth(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		c := healthpb.NewHealthClient(h.conn)
		if r := must(c.Check(bound(t), &healthpb.HealthCheckRequest{}))(t); r.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health: %v", r)
		}
		watch := must(c.Watch(bound(t), &healthpb.HealthCheckRequest{}))(t)
		if r := must(watch.Recv())(t); r.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("watched: %v", r)
		}
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			h.server.Stop(3 * time.Second)
		}()
		if r := must(watch.Recv())(t); r.Status != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("watched while stopping: %v", r)
		}
		<-stopped
		if _, err := watch.Recv(); err == nil {
			t.Error("the watch goes on after the stop")
		}
	})
}

func TestReflection(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		s := must(reflectpb.NewServerReflectionClient(h.conn).ServerReflectionInfo(bound(t)))(t)
		ask := func(req *reflectpb.ServerReflectionRequest) *reflectpb.ServerReflectionResponse {
			if err := s.Send(req); err != nil {
				t.Fatal(err)
			}
			return must(s.Recv())(t)
		}
		var names []string
		list := ask(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{}})
		for _, s := range list.GetListServicesResponse().GetService() {
			names = append(names, s.Name)
		}
		for _, want := range []string{"keystead.counter.v1.CounterService", "keystead.limit.v1.LimitService", "keystead.lock.v1.LockService", "grpc.health.v1.Health"} {
			if !slices.Contains(names, want) {
				t.Errorf("%s is not in %v", want, names)
			}
		}
		file := ask(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: "keystead.counter.v1.CounterService.BatchAdd"}})
		if len(file.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("no descriptor: %v", file)
		}
	})
}

// Stop does not wait for a stream that is neither used nor closed, beyond the
// time that its last answer may need.
func TestStopCutsOff(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		s := stream(t, h, context.Background(), h.conn)
		if err := s.Send(&limitpb.StreamCheckRequest{Tag: 1}); err != nil {
			t.Fatal(err)
		}
		must(s.Recv())(t)
		synctest.Wait() // until the answer is done with
		began := time.Now()
		h.server.Stop(3 * time.Second)
		if took := time.Since(began); took != lastAnswers {
			t.Errorf("it took %v", took)
		}
		if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v", err)
		}
		h.server.Stop(time.Hour) // again, which does nothing
	})
}

// While the server stops, streams are told so at their next message.
func TestStopEndsStreams(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		s := stream(t, h, context.Background(), h.conn)
		if err := s.Send(&limitpb.StreamCheckRequest{Tag: 1}); err != nil {
			t.Fatal(err)
		}
		must(s.Recv())(t)
		began := time.Now()
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			h.server.Stop(time.Hour)
		}()
		synctest.Wait()
		_ = s.Send(&limitpb.StreamCheckRequest{Tag: 2, Checks: []*limitpb.CheckRequest{{Key: "k", Limit: 1, PeriodNs: int64(time.Second)}}})
		_, err := s.Recv()
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: 500 * time.Millisecond}.check(t, err)
		<-stopped
		if took := time.Since(began); took != 0 {
			t.Errorf("the stop took %v", took)
		}
		if n := h.rule.confirms.Load(); n != 0 {
			t.Errorf("%d checks were answered", n)
		}
	})
}

func TestStopBeforeServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, nil)
		h.listen()
		h.server.Stop(0)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := h.counters.Get(ctx, &counterpb.GetRequest{Key: "k"})
		if c := status.Code(err); c != codes.Unavailable && c != codes.DeadlineExceeded {
			t.Errorf("a stopped server answers %v", err)
		}
	})
}

// A call whose deadline has passed before it is looked at does nothing.
func TestLateCalls(t *testing.T) {
	h := newHouse(t, nil)
	s := bare(h)
	past, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	gone, leave := context.WithCancel(context.Background())
	leave()
	for what, c := range map[string]struct {
		ctx  context.Context
		code codes.Code
	}{"deadline": {past, codes.DeadlineExceeded}, "cancel": {gone, codes.Canceled}} {
		t.Run(what, func(t *testing.T) {
			_, err := s.bounded(c.ctx, &counterpb.AddRequest{Key: "k", Delta: 1}, s.cfg.Metrics.other, func(context.Context, any) (any, error) {
				t.Error("the handler was called")
				return nil, nil
			})
			refusal{code: c.code, why: commonpb.Reason_REASON_GAVE_UP}.check(t, err)
		})
	}
}

// More calls under way than there may be are refused, streams and waiting ones
// counted; when one ends, there is room again.
func TestTooManyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, nil)
		h.maxCalls = 2
		h.listen()
		must(h.locks.Acquire(bound(t), acquire("holder", time.Hour, 0)))(t)
		waits := h.await(acquire("waiter", time.Second, time.Hour))
		s := stream(t, h, bound(t), h.conn)
		synctest.Wait()
		overloaded := refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_OVERLOADED, hint: true, retry: errOverloaded.RetryAfter}
		other := h.connect() // on its own connection grpc makes a client wait
		_, err := counterpb.NewCounterServiceClient(other).Get(bound(t), &counterpb.GetRequest{Key: "k"})
		overloaded.check(in(t, "a call"), err)
		_, err = stream(t, h, bound(t), other).Recv()
		overloaded.check(in(t, "a stream"), err)
		if n := failures(t, h.server.cfg.Metrics, commonpb.Reason_REASON_OVERLOADED); n != 2 {
			t.Errorf("%v refused calls are counted", n)
		}
		waits.cancel()
		<-waits.done
		synctest.Wait()
		must(h.counters.Get(bound(t), &counterpb.GetRequest{Key: "k"}))(t)
		_ = s.CloseSend()
	})
}

// failures returns how many operations or calls are counted as failed for a reason.
func failures(t *testing.T, m *Metrics, why commonpb.Reason) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.failed[why])
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].Metric[0].Counter.GetValue()
}
