package rpc

import (
	"math"
	"testing"

	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestSumOfPeeks: one that peeks at a split limit is told what all of it has.
func TestSumOfPeeks(t *testing.T) {
	sp := &table.Split{ID: 40, Parts: make([]table.Part, 3)}
	part := func(left uint64, reset int64, epoch uint64) *limitpb.CheckResponse {
		return &limitpb.CheckResponse{Allowed: left > 0, Capacity: 12, Remaining: left, ResetAfterNs: reset, Epoch: epoch, Slack: 8, Parts: 3}
	}
	parts := []*limitpb.CheckResponse{part(4, 0, 30), part(1, 9e9, 50), part(0, 12e9, 45)}
	ask := func(cost uint64) *limitpb.CheckRequest {
		return &limitpb.CheckRequest{Limit: 3, PeriodNs: 3e9, Burst: 12, Cost: cost, Peek: true}
	}
	for cost, wait := range map[uint64]int64{0: 0, 1: 0, 5: 0, 6: 1e9 + 1, 12: 7e9 + 1} {
		r := sumOfPeeks("n2", sp, ask(cost), parts)
		if r.Capacity != 12 || r.Limit != 3 || r.Remaining != 5 || r.ResetAfterNs != 12e9 || r.Epoch != 50 || r.Owner != "n2" || r.Parts != 3 || r.Slack != 0 {
			t.Errorf("%v", r)
		}
		if r.Allowed != (wait == 0) || r.RetryAfterNs != wait {
			t.Errorf("cost %d: %v in %d ns", cost, r.Allowed, r.RetryAfterNs)
		}
	}
	slow := &limitpb.CheckRequest{Limit: 1, PeriodNs: math.MaxInt64, Burst: 12, Cost: 12, Peek: true}
	if r := sumOfPeeks("n2", sp, slow, parts); r.RetryAfterNs != math.MaxInt64 {
		t.Errorf("longer than can be told: %d", r.RetryAfterNs)
	}
	if r := sumOfPeeks("n2", sp, ask(1), []*limitpb.CheckResponse{part(12, 0, 1), part(12, 0, 1), part(12, 0, 1)}); r.Remaining != 12 {
		t.Errorf("more than there can be: %d", r.Remaining)
	}
}

// TestPeeksThatAreSums tells which checks all parts answer.
func TestPeeksThatAreSums(t *testing.T) {
	for name, tc := range map[string]struct {
		req  *limitpb.CheckRequest
		want bool
	}{
		"a check":        {&limitpb.CheckRequest{}, false},
		"a refund":       {&limitpb.CheckRequest{Refund: 1}, false},
		"a peek":         {&limitpb.CheckRequest{Peek: true}, true},
		"a peek, window": {&limitpb.CheckRequest{Peek: true, Algorithm: limitpb.Algorithm_ALGORITHM_FIXED_WINDOW}, false},
		"a peek, policy": {&limitpb.CheckRequest{Peek: true, Policy: "p"}, false}, // nobody has said what it holds
	} {
		if c := limitCheck.call(tc.req, 0); c.All != tc.want {
			t.Errorf("%s: %v", name, c.All)
		}
	}
	if !getOf("k").All || addOf(&counterpb.AddRequest{}).All {
		t.Error("a get is of all parts, and an add of one")
	}
}
