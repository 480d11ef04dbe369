package rpc

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/keystead/keystead/owner"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	electionpb "github.com/keystead/keystead/proto/keystead/election/v1"
	grouppb "github.com/keystead/keystead/proto/keystead/group/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// calls returns all unary RPCs on one address, with what else they need filled in.
func (h *house) calls(ctx context.Context, key, name string, id *commonpb.RequestId) map[string]func() error {
	second := int64(time.Second)
	return map[string]func() error{
		"Check": func() error {
			_, err := h.limits.Check(ctx, &limitpb.CheckRequest{Key: key, Name: name, Limit: 5, PeriodNs: second, RequestId: id})
			return err
		},
		"Add": func() error {
			_, err := h.counters.Add(ctx, &counterpb.AddRequest{Key: key, Name: name, Delta: 1, RequestId: id})
			return err
		},
		"Get": func() error {
			_, err := h.counters.Get(ctx, &counterpb.GetRequest{Key: key, Name: name})
			return err
		},
		"CompareAndSet": func() error {
			_, err := h.counters.CompareAndSet(ctx, &counterpb.CompareAndSetRequest{Key: key, Name: name, Value: 1, RequestId: id})
			return err
		},
		"Reset": func() error {
			_, err := h.counters.Reset(ctx, &counterpb.ResetRequest{Key: key, Name: name, RequestId: id})
			return err
		},
		"Acquire": func() error {
			_, err := h.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Name: name, Holder: "me", TtlNs: second, RequestId: id})
			return err
		},
		"Renew": func() error {
			_, err := h.locks.Renew(ctx, &lockpb.RenewRequest{Key: key, Name: name, Token: 1, TtlNs: second})
			return err
		},
		"Release": func() error {
			_, err := h.locks.Release(ctx, &lockpb.ReleaseRequest{Key: key, Name: name, Token: 1, RequestId: id})
			return err
		},
		"GetRegister": func() error {
			_, err := h.registers.Get(ctx, &registerpb.GetRequest{Key: key, Name: name})
			return err
		},
		"Put": func() error {
			_, err := h.registers.Put(ctx, &registerpb.PutRequest{Key: key, Name: name, Value: []byte("v"), RequestId: id})
			return err
		},
		"PutIf": func() error {
			_, err := h.registers.CompareAndSet(ctx, &registerpb.CompareAndSetRequest{Key: key, Name: name, Value: []byte("v"), RequestId: id})
			return err
		},
		"DeleteRegister": func() error {
			_, err := h.registers.Delete(ctx, &registerpb.DeleteRequest{Key: key, Name: name, RequestId: id})
			return err
		},
		"BeginOnce": func() error {
			_, err := h.onces.Begin(ctx, &oncepb.BeginRequest{Key: key, Name: name, TtlNs: second, RequestId: id})
			return err
		},
		"RenewOnce": func() error {
			_, err := h.onces.Renew(ctx, &oncepb.RenewRequest{Key: key, Name: name, Token: 1, TtlNs: second})
			return err
		},
		"CompleteOnce": func() error {
			_, err := h.onces.Complete(ctx, &oncepb.CompleteRequest{Key: key, Name: name, Token: 1, RequestId: id})
			return err
		},
		"AbandonOnce": func() error {
			_, err := h.onces.Abandon(ctx, &oncepb.AbandonRequest{Key: key, Name: name, Token: 1, RequestId: id})
			return err
		},
		"GetOnce": func() error {
			_, err := h.onces.Get(ctx, &oncepb.GetRequest{Key: key, Name: name})
			return err
		},
		"ForgetOnce": func() error {
			_, err := h.onces.Forget(ctx, &oncepb.ForgetRequest{Key: key, Name: name, RequestId: id})
			return err
		},
		"AcquirePermits": func() error {
			_, err := h.permits.Acquire(ctx, &semaphorepb.AcquireRequest{Key: key, Name: name, Holder: "me", Capacity: 2, TtlNs: second, RequestId: id})
			return err
		},
		"ReleasePermits": func() error {
			_, err := h.permits.Release(ctx, &semaphorepb.ReleaseRequest{Key: key, Name: name, Token: 1, RequestId: id})
			return err
		},
		"SetCapacity": func() error {
			_, err := h.permits.SetCapacity(ctx, &semaphorepb.SetCapacityRequest{Key: key, Name: name, Capacity: 2, RequestId: id})
			return err
		},
		"Campaign": func() error {
			_, err := h.elections.Campaign(ctx, &electionpb.CampaignRequest{Key: key, Name: name, Candidate: "me", TtlNs: second, RequestId: id})
			return err
		},
		"Proclaim": func() error {
			_, err := h.elections.Proclaim(ctx, &electionpb.ProclaimRequest{Key: key, Name: name, Token: 1, RequestId: id})
			return err
		},
		"Resign": func() error {
			_, err := h.elections.Resign(ctx, &electionpb.ResignRequest{Key: key, Name: name, Token: 1, RequestId: id})
			return err
		},
		"Join": func() error {
			_, err := h.groups.Join(ctx, &grouppb.JoinRequest{Key: key, Name: name, Id: "me", TtlNs: second, RequestId: id})
			return err
		},
		"UpdateMember": func() error {
			_, err := h.groups.Update(ctx, &grouppb.UpdateRequest{Key: key, Name: name, Token: 1, RequestId: id})
			return err
		},
		"LeaveGroup": func() error {
			_, err := h.groups.Leave(ctx, &grouppb.LeaveRequest{Key: key, Name: name, Token: 1, RequestId: id})
			return err
		},
		"Admit": func() error {
			_, err := h.admissions.Admit(ctx, &admissionpb.AdmitRequest{Key: key, Name: name, Demands: []*admissionpb.Demand{{Name: "rpm", Limit: &admissionpb.LimitDemand{Limit: 1, PeriodNs: second}}}, RequestId: id})
			return err
		},
		"Settle": func() error {
			_, err := h.admissions.Settle(ctx, &admissionpb.SettleRequest{Key: key, Name: name, HoldId: "0123456789abcdef0123456789abcdef-1", RequestId: id})
			return err
		},
		"Arrive": func() error {
			_, err := h.barriers.Arrive(ctx, &barrierpb.ArriveRequest{Key: key, Name: name, Party: "me", Parties: 2, RequestId: id})
			return err
		},
		"LeaveBarrier": func() error {
			_, err := h.barriers.Leave(ctx, &barrierpb.LeaveRequest{Key: key, Name: name, Party: "me", RequestId: id})
			return err
		},
		"BreakBarrier": func() error {
			_, err := h.barriers.Break(ctx, &barrierpb.BreakRequest{Key: key, Name: name, RequestId: id})
			return err
		},
		"RegisterParty": func() error {
			_, err := h.barriers.Register(ctx, &barrierpb.RegisterRequest{Key: key, Name: name, Party: "me", TtlNs: second, RequestId: id})
			return err
		},
		"Inspect": func() error {
			_, err := h.locks.Inspect(ctx, &lockpb.InspectRequest{Key: key, Name: name})
			return err
		},
	}
}

// takesID says which of calls carry a request id.
var takesID = map[string]bool{"Check": true, "Add": true, "CompareAndSet": true, "Reset": true, "Acquire": true, "Release": true, "Put": true, "PutIf": true, "DeleteRegister": true,
	"AcquirePermits": true, "ReleasePermits": true, "SetCapacity": true, "BeginOnce": true, "CompleteOnce": true, "AbandonOnce": true, "ForgetOnce": true,
	"Arrive": true, "LeaveBarrier": true, "BreakBarrier": true, "RegisterParty": true, "Campaign": true, "Proclaim": true, "Resign": true, "Join": true, "UpdateMember": true, "LeaveGroup": true, "Admit": true, "Settle": true}

func TestAddresses(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		for _, c := range []struct {
			what, key, name, field string
		}{
			{"no key", "", "", "key"},
			{"a long key", strings.Repeat("k", owner.MaxKey+1), "", "key"},
			{"a key that is not UTF-8", "k\xff", "", "key"},
			{"a long name", "k", strings.Repeat("n", owner.MaxName+1), "name"},
			{"a name that is not UTF-8", "k", "\xc3\x28", "name"},
			{"the longest address", strings.Repeat("k", owner.MaxKey), "", ""},
			{"bytes that are text", "\n\x00 ключ", "", ""},
			{"a key that is for parts", "\x001.0.0", "", "key"},
		} {
			for rpc, call := range h.calls(bound(t), c.key, c.name, nil) {
				what := c.what + "/" + rpc
				switch err := call(); {
				case c.field != "":
					badField(c.field).check(in(t, what), err)
				case err != nil && status.Code(err) != codes.FailedPrecondition: // one name, all kinds
					t.Errorf("%s: %v", what, err)
				}
			}
		}
	})
}

func TestRequestIDs(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		client := requestN(1, 1).Client
		for _, c := range []struct {
			what  string
			id    *commonpb.RequestId
			field string
		}{
			{"an empty one", &commonpb.RequestId{}, "request_id.client"},
			{"a short client", &commonpb.RequestId{Client: client[1:], Sequence: 1}, "request_id.client"},
			{"a long client", &commonpb.RequestId{Client: append(client, 0), Sequence: 1}, "request_id.client"},
			{"no sequence", &commonpb.RequestId{Client: client}, "request_id.sequence"},
			{"a negative age", &commonpb.RequestId{Client: client, Sequence: 1, AgeNs: -1}, "request_id.age_ns"},
			{"settled before it was sent", &commonpb.RequestId{Client: client, Sequence: 1, Settled: 2}, "request_id.settled"},
		} {
			for rpc, call := range h.calls(bound(t), "k", "", c.id) {
				if takesID[rpc] {
					badField(c.field).check(in(t, c.what+"/"+rpc), call())
				}
			}
		}
		if st := h.store.Stats(); len(st.Objects) != 10 || st.Objects[owner.KindCounter]+st.Objects[owner.KindLimit]+st.Objects[owner.KindLock]+st.Objects[owner.KindRegister]+st.Objects[owner.KindSemaphore]+st.Objects[owner.KindOnce]+st.Objects[owner.KindElection]+st.Objects[owner.KindBarrier]+st.Objects[owner.KindGroup]+st.Objects[owner.KindAdmission] != 0 {
			t.Errorf("refused requests left something behind: %v", st)
		}
	})
}

func TestFields(t *testing.T) {
	const second = int64(time.Second)
	check := func(change func(*limitpb.CheckRequest)) func(h *house, ctx context.Context) error {
		return func(h *house, ctx context.Context) error {
			req := &limitpb.CheckRequest{Key: "k", Limit: 5, PeriodNs: second}
			change(req)
			_, err := h.limits.Check(ctx, req)
			return err
		}
	}
	add := func(req *counterpb.AddRequest) func(h *house, ctx context.Context) error {
		return func(h *house, ctx context.Context) error {
			req.Key = "k"
			_, err := h.counters.Add(ctx, req)
			return err
		}
	}
	acquire := func(change func(*lockpb.AcquireRequest)) func(h *house, ctx context.Context) error {
		return func(h *house, ctx context.Context) error {
			req := &lockpb.AcquireRequest{Key: "k", Holder: "me", TtlNs: second}
			change(req)
			_, err := h.locks.Acquire(ctx, req)
			return err
		}
	}
	renew := func(ttl int64) func(h *house, ctx context.Context) error {
		return func(h *house, ctx context.Context) error {
			_, err := h.locks.Renew(ctx, &lockpb.RenewRequest{Key: "k", Token: 1, TtlNs: ttl})
			return err
		}
	}
	bubble(t, func(c *owner.Config) { c.MaxLockTTL = int64(time.Hour) }, func(t *testing.T, h *house) {
		for _, c := range []struct {
			what, field string
			hint        bool
			call        func(h *house, ctx context.Context) error
		}{
			{"no limit", "limit", false, check(func(r *limitpb.CheckRequest) { r.Limit = 0 })},
			{"a huge limit", "limit", false, check(func(r *limitpb.CheckRequest) { r.Limit = 1e12 + 1 })},
			{"no period", "period_ns", false, check(func(r *limitpb.CheckRequest) { r.PeriodNs = 0 })},
			{"a short period", "period_ns", false, check(func(r *limitpb.CheckRequest) { r.PeriodNs = 999 })},
			{"a negative period", "period_ns", false, check(func(r *limitpb.CheckRequest) { r.PeriodNs = math.MinInt64 })},
			{"a period above a year", "period_ns", false, check(func(r *limitpb.CheckRequest) { r.PeriodNs = 366*24*3600*second + 1 })},
			{"a huge burst", "burst", false, check(func(r *limitpb.CheckRequest) { r.Burst = math.MaxUint64 })},
			{"a window with a burst", "burst", false, check(func(r *limitpb.CheckRequest) { r.Burst, r.Algorithm = 5, limitpb.Algorithm_ALGORITHM_FIXED_WINDOW })},
			{"an unknown algorithm", "algorithm", true, check(func(r *limitpb.CheckRequest) { r.Algorithm = 77 })},
			{"a negative algorithm", "algorithm", true, check(func(r *limitpb.CheckRequest) { r.Algorithm = -1 })},
			{"a cost that never fits", "cost", false, check(func(r *limitpb.CheckRequest) { r.Cost = 6 })},
			{"a peek that never fits", "cost", false, check(func(r *limitpb.CheckRequest) { r.Cost, r.Peek = 6, true })},
			{"a sliding window with a burst", "burst", false, check(func(r *limitpb.CheckRequest) { r.Burst, r.Algorithm = 5, limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW })},
			{"the hugest refund", "refund", false, check(func(r *limitpb.CheckRequest) { r.Cost, r.Refund = 0, math.MaxUint64 })},
			{"a refund with a cost", "refund", true, check(func(r *limitpb.CheckRequest) { r.Cost, r.Refund = 1, 1 })},
			{"a refund that is a peek", "refund", true, check(func(r *limitpb.CheckRequest) { r.Cost, r.Refund, r.Peek = 0, 1, true })},
			{"a huge refund", "refund", false, check(func(r *limitpb.CheckRequest) { r.Cost, r.Refund = 0, 1e12+1 })},
			{"min above max", "min", false, add(&counterpb.AddRequest{Delta: 1, Min: proto.Int64(2), Max: proto.Int64(1)})},
			{"a short idle TTL", "idle_ttl_ns", false, add(&counterpb.AddRequest{Delta: 1, IdleTtlNs: 999_999})},
			{"a negative idle TTL", "idle_ttl_ns", false, add(&counterpb.AddRequest{Delta: 1, IdleTtlNs: -1})},
			{"an idle TTL above a year", "idle_ttl_ns", false, add(&counterpb.AddRequest{Delta: 1, IdleTtlNs: math.MaxInt64})},
			{"a bad idle TTL in CompareAndSet", "idle_ttl_ns", false, func(h *house, ctx context.Context) error {
				_, err := h.counters.CompareAndSet(ctx, &counterpb.CompareAndSetRequest{Key: "k", IdleTtlNs: 1})
				return err
			}},
			{"no holder", "holder", false, acquire(func(r *lockpb.AcquireRequest) { r.Holder = "" })},
			{"a long holder", "holder", false, acquire(func(r *lockpb.AcquireRequest) { r.Holder = strings.Repeat("h", 129) })},
			{"a holder that is not UTF-8", "holder", false, acquire(func(r *lockpb.AcquireRequest) { r.Holder = "\xff" })},
			{"no TTL", "ttl_ns", false, acquire(func(r *lockpb.AcquireRequest) { r.TtlNs = 0 })},
			{"a short TTL", "ttl_ns", false, acquire(func(r *lockpb.AcquireRequest) { r.TtlNs = 9_999_999 })},
			{"a TTL above the node's", "ttl_ns", false, acquire(func(r *lockpb.AcquireRequest) { r.TtlNs = int64(time.Hour) + 1 })},
			{"a negative wait", "wait_ns", false, acquire(func(r *lockpb.AcquireRequest) { r.WaitNs = -1 })},
			{"a wait above a day", "wait_ns", false, acquire(func(r *lockpb.AcquireRequest) { r.WaitNs = 86_400*second + 1 })},
			{"much metadata", "metadata", false, acquire(func(r *lockpb.AcquireRequest) { r.Metadata = make([]byte, 1025) })},
			{"a short TTL in Renew", "ttl_ns", false, renew(1)},
			{"a TTL above the node's in Renew", "ttl_ns", false, renew(int64(time.Hour) + 1)},
		} {
			f := badField(c.field)
			f.hint = c.hint
			f.check(in(t, c.what), c.call(h, bound(t)))
		}
	})
}

func TestKindMismatch(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		want := refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_KIND_MISMATCH, hint: true}
		kind := map[string]string{"Check": "limit", "Add": "counter", "Get": "counter", "CompareAndSet": "counter", "Reset": "counter",
			"Acquire": "lock", "Renew": "lock", "Release": "lock", "Inspect": "lock"}
		for _, first := range []string{"Check", "Add", "Acquire"} {
			calls := h.calls(bound(t), "key of "+first, "thing", nil)
			if err := calls[first](); err != nil {
				t.Fatal(err)
			}
			for rpc, call := range calls {
				if kind[rpc] != kind[first] {
					want.check(in(t, rpc+" on a "+kind[first]), call())
				}
			}
		}
	})
}

func TestRequestTooOld(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		want := refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_REQUEST_TOO_OLD, hint: true}
		time.Sleep(5 * time.Minute)
		for rpc, call := range h.calls(bound(t), "k", "of age", again(requestN(1, 1), 150*time.Second)) {
			if takesID[rpc] {
				want.check(in(t, rpc+" that is old"), call())
			}
		}
		for rpc := range takesID {
			later := requestN(2, 9)
			later.Settled = 9
			if err := h.calls(bound(t), "k", rpc, later)[rpc](); err != nil {
				t.Fatal(err)
			}
			want.check(in(t, rpc+" that is settled"), h.calls(bound(t), "k", rpc, requestN(2, 8))[rpc]())
		}
	})
}

func TestRequestIDReused(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		want := refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_REQUEST_ID_REUSED, field: "request_id", hint: true}
		ctx, id := bound(t), requestN(1, 1)
		must(h.counters.Add(ctx, &counterpb.AddRequest{Key: "k", Delta: 3, RequestId: id}))(t)
		_, err := h.counters.Add(ctx, &counterpb.AddRequest{Key: "k", Delta: 4, RequestId: id})
		want.check(t, err)
		_, err = h.counters.Reset(ctx, &counterpb.ResetRequest{Key: "k", RequestId: id})
		want.check(t, err)
		must(h.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "k", Holder: "a", TtlNs: 1e9, RequestId: id}))(t)
		_, err = h.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: "k", Holder: "b", TtlNs: 1e9, RequestId: id})
		want.check(t, err)
		_, err = h.locks.Release(ctx, &lockpb.ReleaseRequest{Key: "k", Token: 1, RequestId: id})
		want.check(t, err)
	})
}

// The id of a call that waits is in use, too.
func TestRequestIDReusedWhileWaiting(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		must(h.locks.Acquire(bound(t), acquire("holder", time.Minute, 0)))(t)
		first := acquire("a", time.Second, time.Minute)
		first.RequestId = requestN(1, 1)
		waits := h.await(first)
		other := acquire("b", time.Second, time.Minute)
		other.RequestId = requestN(1, 1)
		_, err := h.locks.Acquire(bound(t), other)
		refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_REQUEST_ID_REUSED, field: "request_id", hint: true}.check(t, err)
		if waits.over() {
			t.Errorf("the first call lost its place: %v, %v", waits.resp, waits.err)
		}
	})
}

func TestStoreFull(t *testing.T) {
	want := refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_STORE_FULL, hint: true, retry: 100 * time.Millisecond}
	bubble(t, func(c *owner.Config) { c.MaxObjects = 1 }, func(t *testing.T, h *house) {
		ctx := bound(t)
		must(h.counters.Add(ctx, &counterpb.AddRequest{Key: "there", Delta: 1}))(t)
		for _, rpc := range []string{"Check", "Add", "CompareAndSet", "Acquire", "Put", "PutIf"} {
			want.check(in(t, rpc), h.calls(ctx, "new", "", nil)[rpc]())
		}
		for _, rpc := range []string{"Get", "Reset", "Renew", "Release", "Inspect", "GetRegister", "DeleteRegister"} {
			if err := h.calls(ctx, "new", "", nil)[rpc](); err != nil {
				t.Errorf("%s needs no room, but: %v", rpc, err)
			}
		}
		must(h.counters.Add(ctx, &counterpb.AddRequest{Key: "there", Delta: 1}))(t)
	})
	bubble(t, func(c *owner.Config) { c.MaxBytes = 1 << 20 }, func(t *testing.T, h *house) {
		for i := 0; ; i++ {
			_, err := h.counters.Add(bound(t), &counterpb.AddRequest{Key: fmt.Sprint(i, strings.Repeat("k", 500)), Delta: 1})
			if err != nil {
				want.check(t, err)
				return
			}
			if i > 1<<20/500 {
				t.Fatal("a memory limit of 1 MiB lets everything in")
			}
		}
	})
}

func TestTooManyWaiters(t *testing.T) {
	want := refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_TOO_MANY_WAITERS, hint: true, retry: 100 * time.Millisecond}
	for what, change := range map[string]func(*owner.Config){
		"of the lock": func(c *owner.Config) { c.MaxWaitersPerLock = 1 },
		"of the node": func(c *owner.Config) { c.MaxWaiters = 1 },
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, change, func(t *testing.T, h *house) {
				must(h.locks.Acquire(bound(t), acquire("holder", time.Minute, 0)))(t)
				first := h.await(acquire("first", time.Minute, time.Minute))
				_, err := h.locks.Acquire(bound(t), acquire("second", time.Minute, time.Minute))
				want.check(t, err)
				// Who does not want to wait takes no place.
				if r := must(h.locks.Acquire(bound(t), acquire("third", time.Minute, 0)))(t); r.Acquired || r.QueuePosition != 2 {
					t.Errorf("without waiting: %v", r)
				}
				first.cancel()
				synctest.Wait()
				h.await(acquire("fourth", time.Minute, time.Minute))
			})
		})
	}
}

func TestTooLarge(t *testing.T) {
	want := refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_TOO_LARGE, hint: true}
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := bound(t)
		for rpc, call := range h.calls(ctx, strings.Repeat("k", MaxRequest+1), "", nil) {
			want.check(in(t, rpc), call())
		}
		if failures(t, h.server.cfg.Metrics, commonpb.Reason_REASON_TOO_LARGE) == 0 {
			t.Error("what is too large is not counted")
		}
		_, err := h.counters.Get(ctx, &counterpb.GetRequest{Key: strings.Repeat("k", MaxRequest-100)})
		badField("key").check(t, err) // large, and yet not too large to look at

		many := func(n int) (gets []*counterpb.GetRequest) {
			for range n {
				gets = append(gets, &counterpb.GetRequest{Key: "k"})
			}
			return gets
		}
		if r := must(h.counters.BatchGet(ctx, &counterpb.BatchGetRequest{Gets: many(MaxBatchItems)}))(t); len(r.Results) != MaxBatchItems {
			t.Errorf("%d results", len(r.Results))
		}
		_, err = h.counters.BatchGet(ctx, &counterpb.BatchGetRequest{Gets: many(MaxBatchItems + 1)})
		want.check(t, err)
		_, err = h.counters.BatchAdd(ctx, &counterpb.BatchAddRequest{Adds: make([]*counterpb.AddRequest, MaxBatchItems+1)})
		want.check(t, err)
		_, err = h.limits.BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: make([]*limitpb.CheckRequest, MaxBatchItems+1)})
		want.check(t, err)

		long := strings.Repeat("k", 1000)
		_, err = h.counters.BatchGet(ctx, &counterpb.BatchGetRequest{Gets: []*counterpb.GetRequest{{Key: strings.Repeat(long, 1000)}}})
		if err != nil {
			t.Errorf("a batch of less than 1 MiB is refused as a whole: %v", err)
		}
		_, err = h.counters.BatchAdd(ctx, &counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{{Key: strings.Repeat(long, 1100)}}})
		want.check(t, err)
		_, err = h.counters.BatchGet(ctx, &counterpb.BatchGetRequest{Gets: []*counterpb.GetRequest{{Key: strings.Repeat(long, 1100)}}})
		want.check(t, err)
		_, err = h.limits.BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{{Key: strings.Repeat(long, 1100)}}})
		want.check(t, err)
		_, err = h.limits.BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{{Key: strings.Repeat(long, 3000)}}})
		if status.Code(err) != codes.ResourceExhausted { // cut off by grpc, which knows no reasons
			t.Errorf("3 MB: %v", err)
		}
	})
}

func TestAdmitFails(t *testing.T) {
	want := refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}
	bubble(t, nil, func(t *testing.T, h *house) {
		changes := 0
		h.sink.on(func(*owner.Record) { changes++ })
		h.rule.noAdmit.Store(true)
		for rpc, call := range h.calls(bound(t), "k", "", nil) {
			want.check(in(t, rpc), call())
		}
		r := must(h.counters.BatchAdd(bound(t), &counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{{Key: "k", Delta: 1}, {Key: "l", Delta: 1}}}))(t)
		for _, item := range r.Results {
			want.checkItem(t, item.Error)
		}
		h.rule.noAdmit.Store(false)
		if changes != 0 || h.store.Stats().Objects[owner.KindCounter] != 0 {
			t.Error("something happened all the same")
		}
	})
}

func TestConfirmFails(t *testing.T) {
	want := refusal{code: codes.Unknown, why: commonpb.Reason_REASON_OUTCOME_UNKNOWN}
	bubble(t, nil, func(t *testing.T, h *house) {
		h.rule.noConfirm.Store(true)
		id := requestN(1, 1)
		for rpc := range h.calls(bound(t), "k", "", nil) {
			want.check(in(t, rpc), h.calls(bound(t), "k", rpc, id)[rpc]())
		}
		r := must(h.counters.BatchAdd(bound(t), &counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{{Key: "k", Delta: 1}, {Key: "l", Delta: 1}}}))(t)
		for _, item := range r.Results {
			want.checkItem(t, item.Error)
			if item.Response != nil {
				t.Errorf("an answer that nobody stands behind: %v", item.Response)
			}
		}
		// What became of it is learned with the same id.
		h.rule.noConfirm.Store(false)
		time.Sleep(time.Second)
		req := &counterpb.AddRequest{Key: "k", Name: "Add", Delta: 1, RequestId: again(id, time.Second)}
		known := must(h.counters.Add(bound(t), req))(t)
		same(t, known, &counterpb.AddResponse{Applied: true, Value: 1, Current: 1, Version: known.Version,
			Epoch: testEpoch, Replay: &commonpb.Replay{AgeNs: int64(time.Second)}})
	})
}
