package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// A retry of each call that changes something returns the first result with its
// age, changes nothing, and shows the state as it is now.
func TestReplays(t *testing.T) {
	const (
		second = int64(time.Second)
		age    = 3 * time.Second
	)
	replay := &commonpb.Replay{AgeNs: int64(age)}
	for what, f := range map[string]func(t *testing.T, h *house, id *commonpb.RequestId){
		"Check allowed": func(t *testing.T, h *house, id *commonpb.RequestId) {
			req := &limitpb.CheckRequest{Key: "k", Limit: 4, PeriodNs: 100 * second, RequestId: id, Cost: 3}
			must(h.limits.Check(bound(t), req))(t)
			time.Sleep(age)
			req.RequestId = again(id, age)
			same(t, must(h.limits.Check(bound(t), req))(t), &limitpb.CheckResponse{Allowed: true, Capacity: 4, Limit: 4, Remaining: 1,
				ResetAfterNs: 72 * second, Epoch: testEpoch, Replay: replay})
			req.RequestId = nil
			if r := must(h.limits.Check(bound(t), req))(t); r.Allowed || r.Remaining != 1 {
				t.Errorf("after the replay: %v", r)
			}
		},
		"Check denied": func(t *testing.T, h *house, id *commonpb.RequestId) {
			req := &limitpb.CheckRequest{Key: "k", Limit: 1, PeriodNs: second}
			must(h.limits.Check(bound(t), req))(t)
			req.RequestId = id
			must(h.limits.Check(bound(t), req))(t)
			time.Sleep(age) // it would be allowed by now
			req.RequestId = again(id, age)
			if r := must(h.limits.Check(bound(t), req))(t); r.Allowed || r.Remaining != 1 || r.Replay.GetAgeNs() != int64(age) {
				t.Errorf("replay: %v", r)
			}
		},
		"Add applied": func(t *testing.T, h *house, id *commonpb.RequestId) {
			first := must(h.counters.Add(bound(t), &counterpb.AddRequest{Key: "k", Delta: 5, RequestId: id}))(t)
			must(h.counters.Add(bound(t), &counterpb.AddRequest{Key: "k", Delta: 1}))(t)
			time.Sleep(age)
			same(t, must(h.counters.Add(bound(t), &counterpb.AddRequest{Key: "k", Delta: 5, RequestId: again(id, age)}))(t),
				&counterpb.AddResponse{Applied: true, Value: 5, Version: first.Version, Current: 6, Epoch: testEpoch, Replay: replay})
		},
		"Add refused": func(t *testing.T, h *house, id *commonpb.RequestId) {
			req := &counterpb.AddRequest{Key: "k", Delta: 5, Max: new(int64), RequestId: id}
			must(h.counters.Add(bound(t), req))(t)
			must(h.counters.Add(bound(t), &counterpb.AddRequest{Key: "k", Delta: -9}))(t) // it would be applied by now
			time.Sleep(age)
			req.RequestId = again(id, age)
			same(t, must(h.counters.Add(bound(t), req))(t),
				&counterpb.AddResponse{Refusal: counterpb.Refusal_REFUSAL_ABOVE_MAX, Current: -9, Epoch: testEpoch, Replay: replay})
		},
		"CompareAndSet": func(t *testing.T, h *house, id *commonpb.RequestId) {
			first := must(h.counters.CompareAndSet(bound(t), &counterpb.CompareAndSetRequest{Key: "k", Value: 5, RequestId: id}))(t)
			must(h.counters.Add(bound(t), &counterpb.AddRequest{Key: "k", Delta: 1}))(t)
			time.Sleep(age)
			same(t, must(h.counters.CompareAndSet(bound(t), &counterpb.CompareAndSetRequest{Key: "k", Value: 5, RequestId: again(id, age)}))(t),
				&counterpb.CompareAndSetResponse{Applied: true, Value: 5, Version: first.Version, Current: 6, Epoch: testEpoch, Replay: replay})
		},
		"Reset": func(t *testing.T, h *house, id *commonpb.RequestId) {
			must(h.counters.Add(bound(t), &counterpb.AddRequest{Key: "k", Delta: 5}))(t)
			first := must(h.counters.Reset(bound(t), &counterpb.ResetRequest{Key: "k", RequestId: id}))(t)
			must(h.counters.Add(bound(t), &counterpb.AddRequest{Key: "k", Delta: 1}))(t)
			time.Sleep(age)
			same(t, must(h.counters.Reset(bound(t), &counterpb.ResetRequest{Key: "k", RequestId: again(id, age)}))(t),
				&counterpb.ResetResponse{Previous: 5, Version: first.Version, Current: 1, Epoch: testEpoch, Replay: replay})
		},
		"Acquire granted": func(t *testing.T, h *house, id *commonpb.RequestId) {
			req := acquire("a", 10*time.Second, 0)
			req.RequestId = id
			first := must(h.locks.Acquire(bound(t), req))(t)
			time.Sleep(age)
			req.RequestId = again(id, age)
			same(t, must(h.locks.Acquire(bound(t), req))(t),
				&lockpb.AcquireResponse{Acquired: true, Token: first.Token, TtlNs: 7 * second, Epoch: testEpoch, Replay: replay})
		},
		"Acquire refused": func(t *testing.T, h *house, id *commonpb.RequestId) {
			must(h.locks.Acquire(bound(t), acquire("holder", time.Second, 0)))(t)
			req := acquire("a", time.Second, 0)
			req.RequestId = id
			must(h.locks.Acquire(bound(t), req))(t)
			time.Sleep(age) // it would be granted by now
			req.RequestId = again(id, age)
			r := must(h.locks.Acquire(bound(t), req))(t)
			if r.Acquired || r.Token != 0 || r.TtlNs != 0 || r.Replay.GetAgeNs() != int64(age) {
				t.Errorf("replay: %v", r)
			}
		},
		"Release": func(t *testing.T, h *house, id *commonpb.RequestId) {
			first := must(h.locks.Acquire(bound(t), acquire("a", time.Minute, 0)))(t)
			must(h.locks.Release(bound(t), &lockpb.ReleaseRequest{Key: "k", Token: first.Token, RequestId: id}))(t)
			must(h.locks.Acquire(bound(t), acquire("b", time.Minute, 0)))(t)
			time.Sleep(age)
			same(t, must(h.locks.Release(bound(t), &lockpb.ReleaseRequest{Key: "k", Token: first.Token, RequestId: again(id, age)}))(t),
				&lockpb.ReleaseResponse{Released: true, Epoch: testEpoch, Replay: replay})
			if r := must(h.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: "k"}))(t); r.Holder.GetId() != "b" {
				t.Errorf("the replay released the lock of another: %v", r)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, h *house) {
				time.Sleep(time.Minute) // so that nothing is old because the node is young
				f(t, h, requestN(1, 1))
			})
		})
	}
}

// The answer to an acquire was lost, its TTL ended, and another holds the lock:
// the retry must not believe that it does.
func TestReplayOfAGrantThatIsOver(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		time.Sleep(time.Minute)
		req := acquire("a", 2*time.Second, 0)
		req.RequestId = requestN(1, 1)
		first := must(h.locks.Acquire(bound(t), req))(t)
		time.Sleep(2 * time.Second)
		req.RequestId = again(req.RequestId, 2*time.Second)
		free := must(h.locks.Acquire(bound(t), req))(t)
		same(t, free, &lockpb.AcquireResponse{Acquired: true, Token: first.Token, Epoch: testEpoch, Replay: &commonpb.Replay{AgeNs: int64(2 * time.Second)}})
		other := must(h.locks.Acquire(bound(t), acquire("b", time.Minute, 0)))(t)
		time.Sleep(time.Second)
		req.RequestId = again(req.RequestId, 3*time.Second)
		same(t, must(h.locks.Acquire(bound(t), req))(t), &lockpb.AcquireResponse{
			Acquired: true, Token: first.Token, TtlNs: 0, Epoch: testEpoch, Replay: &commonpb.Replay{AgeNs: int64(3 * time.Second)},
			Holder: &lockpb.Holder{Id: "b", Token: other.Token, HeldNs: int64(time.Second), TtlNs: int64(59 * time.Second)},
		})
	})
}

// A grant that came after waiting is remembered with the time that it waited,
// and one that was given back says that it is over.
func TestReplayAfterWaiting(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		time.Sleep(time.Minute)
		must(h.locks.Acquire(bound(t), acquire("holder", time.Second, 0)))(t)
		req := acquire("a", 5*time.Second, time.Minute)
		req.RequestId = requestN(1, 1)
		first := h.await(req).granted(t)
		time.Sleep(time.Second)
		req.RequestId = again(req.RequestId, 2*time.Second)
		same(t, must(h.locks.Acquire(bound(t), req))(t), &lockpb.AcquireResponse{Acquired: true, Token: first.Token,
			WaitedNs: int64(time.Second), TtlNs: int64(4 * time.Second), Epoch: testEpoch, Replay: &commonpb.Replay{AgeNs: int64(time.Second)}})
	})
}

// A wait that ended without a grant is a result, too.
func TestReplayOfATimedOutWait(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		time.Sleep(time.Minute)
		must(h.locks.Acquire(bound(t), acquire("holder", 2*time.Second, 0)))(t)
		req := acquire("a", time.Second, time.Second)
		req.RequestId = requestN(1, 1)
		p := h.await(req)
		<-p.done
		time.Sleep(2 * time.Second) // the lock is free now
		req.RequestId = again(req.RequestId, 3*time.Second)
		r := must(h.locks.Acquire(bound(t), req))(t)
		if r.Acquired || r.Token != 0 || r.Replay.GetAgeNs() != int64(2*time.Second) {
			t.Errorf("first %v, then %v", p.resp, r)
		}
	})
}

// A retry takes the place of the call that it repeats, and keeps it, however
// old the request is: it was never answered.
func TestRetryOfAWaitingCall(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		time.Sleep(time.Minute)
		holder := must(h.locks.Acquire(bound(t), acquire("holder", 2*time.Hour, 0)))(t)
		req := acquire("a", time.Minute, time.Hour)
		req.RequestId = requestN(1, 1)
		first := h.await(req)
		second := h.await(acquire("b", time.Minute, time.Hour))
		for _, age := range []time.Duration{time.Second, 10 * time.Minute} {
			time.Sleep(age)
			retry := acquire("a", time.Minute, time.Hour)
			retry.RequestId = again(req.RequestId, age)
			next := h.await(retry)
			<-first.done
			refusal{code: codes.Aborted, why: commonpb.Reason_REASON_SUPERSEDED, hint: true}.check(t, first.err)
			first = next
		}
		if r := must(h.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: "k"}))(t); r.Waiting != 2 || r.Waiters[0].Id != "a" || r.Waiters[0].WaitedNs != int64(601*time.Second) {
			t.Errorf("the queue is %v", r)
		}
		must(h.locks.Release(bound(t), &lockpb.ReleaseRequest{Key: "k", Token: holder.Token}))(t)
		if r := first.granted(t); r.WaitedNs != int64(601*time.Second) || r.Replay != nil {
			t.Errorf("granted: %v", r)
		}
		synctest.Wait()
		if second.over() {
			t.Errorf("the second was served as well: %v", second.resp)
		}
	})
}

// The retry may be there before the first attempt has noticed that its time is
// over: one id has one result.
func TestRetryAtTheEndOfTheWait(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		time.Sleep(time.Minute)
		must(h.locks.Acquire(bound(t), acquire("holder", time.Hour, 0)))(t)
		req := acquire("a", time.Minute, time.Second)
		req.RequestId = requestN(1, 1)
		first := h.await(req)
		time.Sleep(time.Second)
		req.RequestId = again(req.RequestId, time.Second)
		r := must(h.locks.Acquire(bound(t), req))(t)
		<-first.done
		if first.err != nil || first.resp.Acquired || r.Acquired || r.Replay == nil {
			t.Errorf("first %v, %v; then %v", first.resp, first.err, r)
		}
	})
}

// Releasing what nobody ever held, under an id, leaves nothing that the sweep
// stumbles over.
func TestIDsOfAnObjectThatNeverWas(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		for rpc, call := range h.calls(bound(t), "k", "n", requestN(1, 1)) {
			if rpc == "Release" {
				if err := call(); err != nil {
					t.Fatal(err)
				}
			}
		}
		must(h.counters.Reset(bound(t), &counterpb.ResetRequest{Key: "k", RequestId: requestN(1, 1)}))(t)
		time.Sleep(15 * time.Minute)
		for kind, n := range h.store.Stats().Objects {
			if n != 0 {
				t.Errorf("%d %vs are left", n, kind)
			}
		}
	})
}
