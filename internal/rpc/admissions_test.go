package rpc

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

const someHold = "0123456789abcdef0123456789abcdef-7"

// envelopedAdmissions are those of enveloped that are of admissions.
func envelopedAdmissions() []envelopedCall {
	id := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 7, Settled: 5, AgeNs: 9}
	return []envelopedCall{
		{admissionAdmit.operation, &admissionpb.AdmitRequest{Key: "k", Demands: []*admissionpb.Demand{{Name: "r", Cost: 2, Limit: &admissionpb.LimitDemand{Limit: 3, PeriodNs: 1e9}}}, HoldNs: 1e9, RequestId: id}, "", "0801100218038001648a01340a016b1a0f0a0172100222080803108094ebdc03208094ebdc033a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&admissionpb.AdmitResponse{Admitted: true, HoldId: "h"}, "", "080170647a050801120168", false},
		{admissionAnywhere.operation, &admissionpb.AdmitRequest{Key: "k", Demands: []*admissionpb.Demand{{Name: "r", Key: "l", Anywhere: true, Limit: &admissionpb.LimitDemand{Limit: 3, PeriodNs: 1e9}}}}, "", "0801100218038001778a01170a016b1a120a017222080803108094ebdc033a016c40019201016b",
			&admissionpb.AdmitResponse{Owner: "n", Epoch: 3}, "", "080170777a0530033a016e", false},
		{admissionSettle.operation, &admissionpb.SettleRequest{Key: "k", HoldId: "h", Costs: []*admissionpb.Cost{{Name: "r", Cost: 1}}, RequestId: id}, "", "0801100218038001658a01270a016b1a016822050a0172100132180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&admissionpb.SettleResponse{State: admissionpb.HoldState_HOLD_STATE_HELD}, "", "080170657a020801", false},
		{admissionExtend.operation, &admissionpb.ExtendRequest{Key: "k", HoldId: "h", HoldNs: 1e9}, "", "0801100218038001668a010c0a016b1a0168208094ebdc039201016b",
			&admissionpb.ExtendResponse{State: admissionpb.HoldState_HOLD_STATE_HELD, HoldNs: 5}, "", "080170667a0408011005", false},
		{admissionInspect.operation, &admissionpb.InspectRequest{Key: "k"}, "", "0801100218038001678a01030a016b9201016b",
			&admissionpb.InspectResponse{Total: 2}, "", "080170677a021002", false},
	}
}

func rpm(name string, cost, limit uint64) *admissionpb.Demand {
	return &admissionpb.Demand{Name: name, Cost: cost, Limit: &admissionpb.LimitDemand{Limit: limit, PeriodNs: int64(time.Hour), Algorithm: limitpb.Algorithm_ALGORITHM_FIXED_WINDOW}}
}

func running(most int64) *admissionpb.Demand {
	return &admissionpb.Demand{Slots: &admissionpb.SlotsDemand{Max: most}}
}

// Through any node: levels of one key are charged together, checks beside them see it, and what was not used comes
// back.
func TestAdmissions(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := context.Background()
		q := &admissionpb.AdmitRequest{Key: "org:7", Demands: []*admissionpb.Demand{rpm("user", 4, 10), rpm("team", 4, 10), running(2)}, HoldNs: int64(time.Minute),
			RequestId: &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 1}}
		a := must(h.admissions.Admit(ctx, q))(t)
		if !a.Admitted || a.HoldNs != int64(time.Minute) || a.Demands[1].Remaining != 6 || a.Demands[2].Capacity != 2 {
			t.Fatal(a)
		}
		if again := must(h.admissions.Admit(ctx, q))(t); again.Replay == nil || again.HoldId != a.HoldId || !again.Admitted {
			t.Error(again)
		}
		check := must(h.limits.Check(ctx, &limitpb.CheckRequest{Key: "org:7", Name: "team", Limit: 10, PeriodNs: int64(time.Hour), Algorithm: limitpb.Algorithm_ALGORITHM_FIXED_WINDOW, Cost: 7}))(t)
		if check.Allowed || check.Remaining != 6 {
			t.Error(check)
		}
		if c := must(h.counters.Get(ctx, &counterpb.GetRequest{Key: "org:7", Name: "slots"}))(t); c.Value != 1 {
			t.Error(c)
		}
		r := must(h.admissions.Admit(ctx, &admissionpb.AdmitRequest{Key: "org:7", Demands: []*admissionpb.Demand{rpm("user", 1, 10), rpm("team", 9, 10)}}))(t)
		if r.Admitted || r.Demands[0].Refused || !r.Demands[1].Refused || r.RetryAfterNs != r.Demands[1].RetryAfterNs || r.RetryAfterNs == 0 {
			t.Error(r)
		}
		i := must(h.admissions.Inspect(ctx, &admissionpb.InspectRequest{Key: "org:7", HoldId: a.HoldId}))(t)
		if i.Total != 1 || len(i.Holds) != 1 || i.Holds[0].State != admissionpb.HoldState_HOLD_STATE_HELD || i.Holds[0].Reserved[2].Cost != 1 {
			t.Error(i)
		}
		if e := must(h.admissions.Extend(ctx, &admissionpb.ExtendRequest{Key: "org:7", HoldId: a.HoldId, HoldNs: int64(time.Hour)}))(t); e.State != admissionpb.HoldState_HOLD_STATE_HELD || e.HoldNs != int64(time.Hour) {
			t.Error(e)
		}
		s := must(h.admissions.Settle(ctx, &admissionpb.SettleRequest{Key: "org:7", HoldId: a.HoldId, Costs: []*admissionpb.Cost{{Name: "user", Cost: 1}, {Name: "team", Cost: 20}}}))(t)
		if s.State != admissionpb.HoldState_HOLD_STATE_HELD || s.Costs[0].Back != 3 || s.Costs[1].Taken != 16 || s.Costs[1].Debt != 10 || s.Costs[2].Back != 1 {
			t.Error(s)
		}
		if again := must(h.admissions.Settle(ctx, &admissionpb.SettleRequest{Key: "org:7", HoldId: a.HoldId, Release: true}))(t); again.State != admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN {
			t.Error(again)
		}
	})
}

// TestAdmitOfAllLimits: a demand is of any algorithm, and goes by an override.
func TestAdmitOfAllLimits(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := context.Background()
		must(h.limits.SetOverride(ctx, &limitpb.SetOverrideRequest{Key: "k", Name: "over", Limit: 20, PeriodNs: int64(time.Hour)}))(t)
		turn := &admissionpb.Demand{Name: "turns", Limit: &admissionpb.LimitDemand{Limit: 10, PeriodNs: 1e9, Algorithm: limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET}}
		q := &admissionpb.AdmitRequest{Key: "k", Demands: []*admissionpb.Demand{turn, rpm("over", 15, 10)}}
		if a := must(h.admissions.Admit(ctx, q))(t); !a.Admitted || !a.Demands[1].Overridden || a.Demands[1].Capacity != 20 || a.Demands[1].Remaining != 5 || a.Demands[0].Overridden {
			t.Error(a)
		}
		if a := must(h.admissions.Admit(ctx, q))(t); a.Admitted || a.Demands[0].RetryAfterNs != 1e8 || !a.Demands[1].Refused {
			t.Error(a)
		}
		_, err := h.admissions.Admit(ctx, &admissionpb.AdmitRequest{Key: "k", Demands: []*admissionpb.Demand{{Name: "day", Limit: &admissionpb.LimitDemand{Limit: 10, Calendar: limitpb.CalendarUnit_CALENDAR_UNIT_DAY, Algorithm: limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW}}}})
		if status.Code(err) != codes.Unavailable { // a bare store knows no time
			t.Error(err)
		}
	})
}

// TestHoldOfATag: who was never told the id of a hold ends it by its tag, once.
func TestHoldOfATag(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := context.Background()
		tag := strings.Repeat("t", 128)
		q := &admissionpb.AdmitRequest{Key: "k", Demands: []*admissionpb.Demand{running(2)}, HoldNs: int64(time.Minute), HoldTag: tag}
		end := &admissionpb.SettleRequest{Key: "k", HoldTag: tag, Release: true}
		for i, want := range []admissionpb.HoldState{admissionpb.HoldState_HOLD_STATE_HELD, admissionpb.HoldState_HOLD_STATE_HELD, admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN} {
			if i == 0 {
				must(h.admissions.Admit(ctx, q))(t)
				if a := must(h.admissions.Admit(ctx, q))(t); !a.Admitted || a.Replay != nil || a.Demands[0].Remaining != 0 {
					t.Error(a)
				}
			}
			if r := must(h.admissions.Settle(ctx, end))(t); r.State != want {
				t.Errorf("%d: %v", i, r.State)
			}
		}
		long := &admissionpb.AdmitRequest{Key: "k", Demands: q.Demands, HoldNs: q.HoldNs, HoldTag: tag + "t"}
		_, err := h.admissions.Admit(ctx, long)
		badField("hold_tag").check(t, err)
		_, err = h.admissions.Settle(ctx, &admissionpb.SettleRequest{Key: "k", HoldTag: tag + "t"})
		badField("hold_tag").check(t, err)
		_, err = h.admissions.Settle(ctx, &admissionpb.SettleRequest{Key: "k", HoldTag: tag, HoldId: someHold})
		badField("hold_tag").check(t, err)
	})
}

// TestHoldEnds: nobody asks, and what is over is given back; what it cost is charged when it is told late.
func TestHoldEnds(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := context.Background()
		a := must(h.admissions.Admit(ctx, &admissionpb.AdmitRequest{Key: "k", Demands: []*admissionpb.Demand{rpm("r", 4, 10), running(1)}, HoldNs: int64(time.Second),
			RequestId: &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 1}}))(t)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if c := must(h.counters.Get(ctx, &counterpb.GetRequest{Key: "k", Name: "slots"}))(t); c.Value != 0 {
			h.store.Wake(h.clock.Now()) // a bare store has nobody that wakes it
			if c := must(h.counters.Get(ctx, &counterpb.GetRequest{Key: "k", Name: "slots"}))(t); c.Value != 0 {
				t.Error(c)
			}
		}
		if e := must(h.admissions.Extend(ctx, &admissionpb.ExtendRequest{Key: "k", HoldId: a.HoldId, HoldNs: int64(time.Hour)}))(t); e.State != admissionpb.HoldState_HOLD_STATE_RELEASED {
			t.Error(e)
		}
		s := must(h.admissions.Settle(ctx, &admissionpb.SettleRequest{Key: "k", HoldId: a.HoldId, Costs: []*admissionpb.Cost{{Name: "r", Cost: 3}}}))(t)
		if s.State != admissionpb.HoldState_HOLD_STATE_RELEASED || s.Costs[0].Taken != 3 {
			t.Error(s)
		}
	})
}

// TestAdmissionNonsense: each with the field that is wrong.
func TestAdmissionNonsense(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := context.Background()
		for field, q := range map[string]*admissionpb.AdmitRequest{
			"demands":                    {Key: "k"},
			"demands[0].limit":           {Key: "k", Demands: []*admissionpb.Demand{{}}},
			"demands[1].limit":           {Key: "k", Demands: []*admissionpb.Demand{rpm("r", 1, 1), {Limit: &admissionpb.LimitDemand{}, Slots: &admissionpb.SlotsDemand{}}}},
			"demands[0].limit.algorithm": {Key: "k", Demands: []*admissionpb.Demand{{Limit: &admissionpb.LimitDemand{Limit: 1, PeriodNs: 1e9, Algorithm: 77}}}},
			"demands[0].limit.time_zone": {Key: "k", Demands: []*admissionpb.Demand{{Limit: &admissionpb.LimitDemand{Limit: 1, Algorithm: limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW, Calendar: limitpb.CalendarUnit_CALENDAR_UNIT_DAY, TimeZone: "Nowhere"}}}},
			"demands[0].limit.calendar":  {Key: "k", Demands: []*admissionpb.Demand{{Limit: &admissionpb.LimitDemand{Limit: 1, PeriodNs: 1e9, Calendar: limitpb.CalendarUnit_CALENDAR_UNIT_DAY}}}},
			"on_expiry":                  {Key: "k", Demands: []*admissionpb.Demand{rpm("r", 1, 1)}, OnExpiry: 9},
			"request_id":                 {Key: "k", Demands: []*admissionpb.Demand{rpm("r", 1, 1)}, HoldNs: 1e9},
		} {
			_, err := h.admissions.Admit(ctx, q)
			f := badField(field)
			f.hint = field != "demands"
			f.check(t, err)
		}
		for _, hold := range []string{"", "x", someHold[1:], someHold + "0x", "0123456789ABCDEF0123456789abcdef-7", someHold[:33] + "0", someHold + "-1"} {
			_, err := h.admissions.Settle(ctx, &admissionpb.SettleRequest{Key: "k", HoldId: hold})
			f := badField("hold_id")
			f.hint = true
			f.check(t, err)
		}
	})
}
