package rpc

import (
	"context"
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

func same(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestCounterAnswers(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := bound(t)
		add := func(req *counterpb.AddRequest) *counterpb.AddResponse {
			req.Key = "k"
			return must(h.counters.Add(ctx, req))(t)
		}
		get := func() *counterpb.GetResponse { return must(h.counters.Get(ctx, &counterpb.GetRequest{Key: "k"}))(t) }

		same(t, get(), &counterpb.GetResponse{Epoch: testEpoch})
		same(t, must(h.counters.Reset(ctx, &counterpb.ResetRequest{Key: "k"}))(t), &counterpb.ResetResponse{Epoch: testEpoch})
		first := add(&counterpb.AddRequest{Delta: 7, Max: proto.Int64(10)})
		same(t, first, &counterpb.AddResponse{Applied: true, Value: 7, Current: 7, Version: first.Version, Epoch: testEpoch})
		if first.Version == 0 {
			t.Error("a counter that exists has version 0")
		}
		unchanged := func(why counterpb.Refusal, req *counterpb.AddRequest) {
			t.Helper()
			same(t, add(req), &counterpb.AddResponse{Value: 7, Current: 7, Version: first.Version, Refusal: why, Epoch: testEpoch})
		}
		unchanged(counterpb.Refusal_REFUSAL_ABOVE_MAX, &counterpb.AddRequest{Delta: 4, Max: proto.Int64(10)})
		unchanged(counterpb.Refusal_REFUSAL_BELOW_MIN, &counterpb.AddRequest{Delta: -8, Min: proto.Int64(0)})
		unchanged(counterpb.Refusal_REFUSAL_OVERFLOW, &counterpb.AddRequest{Delta: math.MaxInt64})
		same(t, get(), &counterpb.GetResponse{Value: 7, Version: first.Version, Epoch: testEpoch})

		// Bounds of 0 are bounds.
		if r := add(&counterpb.AddRequest{Delta: 1, Max: proto.Int64(0)}); r.Applied {
			t.Errorf("a max of 0 bounds nothing: %v", r)
		}

		no := must(h.counters.CompareAndSet(ctx, &counterpb.CompareAndSetRequest{Key: "k", Value: -5}))(t)
		same(t, no, &counterpb.CompareAndSetResponse{Value: 7, Current: 7, Version: first.Version, Epoch: testEpoch})
		yes := must(h.counters.CompareAndSet(ctx, &counterpb.CompareAndSetRequest{Key: "k", Value: -5, Version: first.Version}))(t)
		same(t, yes, &counterpb.CompareAndSetResponse{Applied: true, Value: -5, Current: -5, Version: yes.Version, Epoch: testEpoch})
		reset := must(h.counters.Reset(ctx, &counterpb.ResetRequest{Key: "k"}))(t)
		same(t, reset, &counterpb.ResetResponse{Previous: -5, Version: reset.Version, Epoch: testEpoch})
		if yes.Version <= first.Version || reset.Version <= yes.Version {
			t.Errorf("versions do not rise: %d, %d, %d", first.Version, yes.Version, reset.Version)
		}
	})
}

func TestIdleCounterIsForgotten(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := bound(t)
		must(h.counters.Add(ctx, &counterpb.AddRequest{Key: "k", Delta: 3, IdleTtlNs: int64(time.Second)}))(t)
		time.Sleep(time.Second - 1)
		if r := must(h.counters.Get(ctx, &counterpb.GetRequest{Key: "k"}))(t); r.Value != 3 {
			t.Errorf("gone a nanosecond early: %v", r)
		}
		time.Sleep(1 * time.Nanosecond)
		same(t, must(h.counters.Get(ctx, &counterpb.GetRequest{Key: "k"}))(t), &counterpb.GetResponse{Epoch: testEpoch})
	})
}

func TestDefaultNamesAreOneObject(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := bound(t)
		must(h.counters.Add(ctx, &counterpb.AddRequest{Key: "k", Delta: 3}))(t)
		must(h.limits.Check(ctx, &limitpb.CheckRequest{Key: "k", Limit: 1, PeriodNs: int64(time.Second)}))(t)
		must(h.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "k", Holder: "me", TtlNs: int64(time.Second)}))(t)
		if r := must(h.counters.Get(ctx, &counterpb.GetRequest{Key: "k", Name: "counter"}))(t); r.Value != 3 {
			t.Errorf("the empty name is not \"counter\": %v", r)
		}
		if r := must(h.limits.Check(ctx, &limitpb.CheckRequest{Key: "k", Name: "limit", Limit: 1, PeriodNs: int64(time.Second)}))(t); r.Allowed {
			t.Errorf("the empty name is not \"limit\": %v", r)
		}
		if r := must(h.locks.Inspect(ctx, &lockpb.InspectRequest{Key: "k", Name: "lock"}))(t); r.Holder == nil {
			t.Errorf("the empty name is not \"lock\": %v", r)
		}
	})
}

func TestLimitAnswers(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := bound(t)
		const second = int64(time.Second)
		check := func(req *limitpb.CheckRequest) *limitpb.CheckResponse {
			t.Helper()
			req.Key = "k"
			return must(h.limits.Check(ctx, req))(t)
		}
		bucket := func(cost uint64, peek bool) *limitpb.CheckRequest {
			return &limitpb.CheckRequest{Limit: 2, PeriodNs: second, Burst: 4, Cost: cost, Peek: peek}
		}
		same(t, check(bucket(4, true)), &limitpb.CheckResponse{Allowed: true, Capacity: 4, Limit: 2, Remaining: 4, Epoch: testEpoch})
		same(t, check(bucket(3, false)), &limitpb.CheckResponse{Allowed: true, Capacity: 4, Limit: 2, Remaining: 1, ResetAfterNs: 3 * second / 2, Epoch: testEpoch})
		over := &limitpb.CheckResponse{Capacity: 4, Limit: 2, Remaining: 1, RetryAfterNs: second / 2, ResetAfterNs: 3 * second / 2, Epoch: testEpoch}
		same(t, check(bucket(2, false)), over)
		same(t, check(bucket(2, true)), over)
		time.Sleep(time.Second / 2)
		same(t, check(bucket(2, false)), &limitpb.CheckResponse{Allowed: true, Capacity: 4, Limit: 2, ResetAfterNs: 2 * second, Epoch: testEpoch})
		// Cost 0 is 1, burst 0 is the limit, no algorithm is a token bucket.
		time.Sleep(2 * time.Second)
		same(t, check(&limitpb.CheckRequest{Limit: 2, PeriodNs: second}),
			&limitpb.CheckResponse{Allowed: true, Capacity: 2, Limit: 2, Remaining: 1, ResetAfterNs: second / 2, Epoch: testEpoch})

		window := &limitpb.CheckRequest{Name: "window", Limit: 2, PeriodNs: second, Algorithm: limitpb.Algorithm_ALGORITHM_FIXED_WINDOW}
		same(t, check(window), &limitpb.CheckResponse{Allowed: true, Capacity: 2, Limit: 2, Remaining: 1, ResetAfterNs: second, Epoch: testEpoch})
		time.Sleep(time.Second / 4)
		same(t, check(window), &limitpb.CheckResponse{Allowed: true, Capacity: 2, Limit: 2, ResetAfterNs: 3 * second / 4, Epoch: testEpoch})
		same(t, check(window), &limitpb.CheckResponse{Capacity: 2, Limit: 2, RetryAfterNs: 3 * second / 4, ResetAfterNs: 3 * second / 4, Epoch: testEpoch})
		window.Refund = 1
		same(t, check(window), &limitpb.CheckResponse{Allowed: true, Capacity: 2, Limit: 2, Remaining: 1, ResetAfterNs: 3 * second / 4, Epoch: testEpoch})
		time.Sleep(time.Second) // over: there is nothing to give back
		same(t, check(window), &limitpb.CheckResponse{Allowed: true, Capacity: 2, Limit: 2, Remaining: 2, Epoch: testEpoch})

		sliding := &limitpb.CheckRequest{Name: "sliding", Limit: 2, PeriodNs: second, Algorithm: limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW}
		same(t, check(sliding), &limitpb.CheckResponse{Allowed: true, Capacity: 2, Limit: 2, Remaining: 1, ResetAfterNs: second, Epoch: testEpoch})
		time.Sleep(time.Second / 4)
		same(t, check(sliding), &limitpb.CheckResponse{Allowed: true, Capacity: 2, Limit: 2, ResetAfterNs: second, Epoch: testEpoch})
		same(t, check(sliding), &limitpb.CheckResponse{Capacity: 2, Limit: 2, RetryAfterNs: 3 * second / 4, ResetAfterNs: second, Epoch: testEpoch})
		sliding.Refund = 1
		same(t, check(sliding), &limitpb.CheckResponse{Allowed: true, Capacity: 2, Limit: 2, Remaining: 1, ResetAfterNs: second, Epoch: testEpoch})
	})
}

// A retry of a refund gives back once, whatever was spent meanwhile.
func TestRefundIsDoneOnce(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		time.Sleep(time.Minute) // retries of before the start are refused
		ctx := bound(t)
		req := &limitpb.CheckRequest{Key: "k", Limit: 4, PeriodNs: int64(time.Hour), Algorithm: limitpb.Algorithm_ALGORITHM_FIXED_WINDOW, Cost: 3}
		must(h.limits.Check(ctx, req))(t)
		back := &limitpb.CheckRequest{Key: "k", Limit: 4, PeriodNs: req.PeriodNs, Algorithm: req.Algorithm, Refund: 2,
			RequestId: &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 1}}
		if r := must(h.limits.Check(ctx, back))(t); !r.Allowed || r.Remaining != 3 || r.Replay != nil {
			t.Errorf("the refund: %v", r)
		}
		must(h.limits.Check(ctx, req))(t)
		back.RequestId.AgeNs = 1
		if r := must(h.limits.Check(ctx, back))(t); !r.Allowed || r.Remaining != 0 || r.Replay == nil {
			t.Errorf("its retry: %v", r)
		}
		back.Refund = 1
		if _, err := h.limits.Check(ctx, back); err == nil {
			t.Error("another refund under the same id is taken for it")
		}
	})
}

func TestLockAnswers(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := bound(t)
		const second = int64(time.Second)
		try := func(holder string) *lockpb.AcquireResponse {
			return must(h.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "k", Holder: holder, TtlNs: 2 * second, Metadata: []byte{0xff, 1}}))(t)
		}
		renew := func(token uint64) *lockpb.RenewResponse {
			return must(h.locks.Renew(ctx, &lockpb.RenewRequest{Key: "k", Token: token, TtlNs: 3 * second}))(t)
		}
		release := func(token uint64) *lockpb.ReleaseResponse {
			return must(h.locks.Release(ctx, &lockpb.ReleaseRequest{Key: "k", Token: token}))(t)
		}
		inspect := func() *lockpb.InspectResponse { return must(h.locks.Inspect(ctx, &lockpb.InspectRequest{Key: "k"}))(t) }

		same(t, inspect(), &lockpb.InspectResponse{Epoch: testEpoch})
		same(t, renew(1), &lockpb.RenewResponse{Epoch: testEpoch})
		same(t, release(1), &lockpb.ReleaseResponse{Epoch: testEpoch})
		got := try("a")
		same(t, got, &lockpb.AcquireResponse{Acquired: true, Token: got.Token, TtlNs: 2 * second, Epoch: testEpoch})
		if got.Token>>24 != testEpoch {
			t.Errorf("token %d is not of epoch %d", got.Token, testEpoch)
		}
		time.Sleep(time.Second)
		holder := &lockpb.Holder{Id: "a", Token: got.Token, HeldNs: second, TtlNs: second, Metadata: []byte{0xff, 1}}
		same(t, inspect(), &lockpb.InspectResponse{Holder: holder, Holders: []*lockpb.Holder{holder}, Holding: 1, Epoch: testEpoch})
		// Not re-entrant: the holder itself is refused, too.
		same(t, try("a"), &lockpb.AcquireResponse{Holder: holder, QueuePosition: 1, Epoch: testEpoch})
		same(t, renew(got.Token+1), &lockpb.RenewResponse{Holder: holder, Epoch: testEpoch})
		same(t, renew(got.Token), &lockpb.RenewResponse{Renewed: true, TtlNs: 3 * second, Epoch: testEpoch})
		same(t, release(got.Token+1), &lockpb.ReleaseResponse{Epoch: testEpoch})
		same(t, release(got.Token), &lockpb.ReleaseResponse{Released: true, Epoch: testEpoch})
		same(t, release(got.Token), &lockpb.ReleaseResponse{Epoch: testEpoch})
		if next := try("b"); next.Token <= got.Token {
			t.Errorf("token %d comes after %d", next.Token, got.Token)
		}
	})
}

// A lock's waiters are listed in order, as many as asked for.
func TestInspectListsWaiters(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		holder := must(h.locks.Acquire(bound(t), acquire("holder", time.Minute, 0)))(t)
		for i := range 12 {
			h.await(acquire(string(rune('a'+i)), time.Minute, time.Minute))
			time.Sleep(time.Millisecond)
		}
		for _, c := range []struct {
			ask  uint32
			list int
		}{{0, 10}, {1, 1}, {12, 12}, {math.MaxUint32, 12}} {
			r := must(h.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: "k", MaxWaiters: c.ask}))(t)
			if len(r.Waiters) != c.list || r.Waiting != 12 || r.Holder.GetToken() != holder.Token {
				t.Errorf("asked for %d: %v", c.ask, r)
			}
			if w := r.Waiters[0]; w.Id != "a" || w.WaitedNs != int64(12*time.Millisecond) {
				t.Errorf("the first waiter is %v", w)
			}
		}
	})
}

// The same server over a real connection and in real time.
func TestLoopback(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, nil)
	var d net.Dialer
	h.dial = func(ctx context.Context, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", l.Addr().String())
	}
	h.run(l)
	ctx := bound(t)
	if r := must(h.counters.Add(ctx, &counterpb.AddRequest{Key: "k", Delta: 3}))(t); r.Value != 3 {
		t.Errorf("add: %v", r)
	}
	got := must(h.locks.Acquire(ctx, acquire("a", 20*time.Millisecond, 0)))(t)
	next := must(h.locks.Acquire(ctx, acquire("b", time.Second, 10*time.Second)))(t)
	if !got.Acquired || !next.Acquired || next.WaitedNs <= 0 || next.WaitedNs > int64(5*time.Second) {
		t.Errorf("%v, then %v", got, next)
	}
}

func TestSpeaksToEveryClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := build(t, nil)
		conn := h.connectStandard()
		r := must(counterpb.NewCounterServiceClient(conn).Add(bound(t), &counterpb.AddRequest{Key: "k", Delta: 3}))(t)
		if r.Value != 3 {
			t.Errorf("through the standard codec: %v", r)
		}
	})
}
