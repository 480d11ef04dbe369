package history

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/keystead/keystead/owner/limit"
)

// TestQuota: of 3 in each 10 s.
func TestQuota(t *testing.T) {
	m := Quota(QuotaParams{Limit: 3, Period: 10})
	in := func(cost uint64) BucketInput { return BucketInput{Cost: cost} }
	peek := BucketInput{Cost: 1, Peek: true}
	yes := func(ends int64, left uint64) BucketOutput {
		o := BucketOutput{Allowed: true, Remaining: left, Ends: ends, ResetAfter: 5}
		if left == 3 {
			o.ResetAfter = 0
		}
		return o
	}
	no := func(ends int64, left uint64) BucketOutput {
		return BucketOutput{Remaining: left, Ends: ends, ResetAfter: 5, RetryAfter: 5}
	}
	bare := func(ok bool) BucketOutput { return BucketOutput{Allowed: ok, Bare: true} }
	histories{
		"used up":                    {true, []Call{done(0, 5, in(2), yes(10, 1)), done(10, 15, in(1), yes(10, 0)), done(20, 25, in(1), no(10, 0))}},
		"one too many":               {false, []Call{done(0, 5, in(3), yes(10, 0)), done(10, 15, in(1), yes(10, 0))}},
		"the next period":            {true, []Call{done(0, 5, in(3), yes(10, 0)), done(10, 15, in(3), yes(20, 0))}},
		"goes on":                    {false, []Call{done(0, 5, in(3), yes(10, 0)), done(10, 15, in(1), no(20, 0))}},
		"the end falls":              {false, []Call{done(0, 5, in(1), yes(20, 2)), done(10, 15, in(1), yes(10, 2))}},
		"twice in one period":        {false, []Call{done(0, 5, in(3), yes(10, 0)), done(10, 15, in(1), yes(20, 2)), done(20, 25, in(1), yes(20, 2))}},
		"no period":                  {false, []Call{done(0, 5, in(3), yes(15, 0))}},
		"denied for nothing":         {false, []Call{done(0, 5, in(1), yes(10, 2)), done(10, 15, in(1), no(10, 2))}},
		"a look ahead":               {true, []Call{done(0, 5, in(3), yes(10, 0)), done(10, 15, peek, yes(20, 3)), done(20, 25, in(1), no(10, 0))}},
		"a peek that spends":         {false, []Call{done(0, 5, in(2), yes(10, 1)), done(10, 15, peek, yes(10, 1)), done(20, 25, in(1), no(10, 0))}},
		"a refund":                   {true, []Call{done(0, 5, in(3), yes(10, 0)), done(10, 15, BucketRefund{2}, yes(10, 2)), done(20, 25, in(2), yes(10, 0))}},
		"a refund of before":         {true, []Call{done(0, 5, in(3), yes(10, 0)), done(10, 15, BucketRefund{2}, yes(20, 3)), done(20, 25, in(3), yes(20, 0))}},
		"lost and done":              {true, []Call{lost(0, in(3)), done(10, 15, in(1), no(10, 0))}},
		"lost and not done":          {true, []Call{lost(0, in(3)), done(10, 15, in(3), yes(10, 0))}},
		"lost and done in the next":  {true, []Call{done(0, 5, in(3), yes(10, 0)), lost(10, in(2)), done(20, 25, in(1), yes(20, 0))}},
		"lost and half done":         {false, []Call{lost(0, in(3)), done(10, 15, in(2), no(10, 2))}},
		"made full":                  {true, []Call{done(0, 5, in(3), yes(20, 0)), done(10, 15, BucketReset{}, bare(true)), done(20, 25, in(3), yes(10, 0))}},
		"perhaps made full":          {true, []Call{done(0, 5, in(3), yes(10, 0)), lost(10, BucketReset{}), done(20, 25, in(1), no(10, 0)), done(30, 35, in(1), yes(10, 2))}},
		"not made full":              {false, []Call{done(0, 5, in(3), yes(10, 0)), done(10, 15, BucketReset{}, bare(true)), done(20, 25, in(1), no(10, 0))}},
		"told by a retry":            {true, []Call{as("a", lost(0, in(2))), as("a", done(10, 15, in(2), BucketOutput{Allowed: true, Remaining: 1, ResetAfter: 5, Ends: 10, Replay: Replay{true, 9}})), done(20, 25, in(2), no(10, 1))}},
		"told by a retry, and wrong": {false, []Call{as("a", lost(0, in(2))), as("a", done(10, 15, in(2), BucketOutput{Allowed: true, Remaining: 1, ResetAfter: 5, Ends: 10, Replay: Replay{true, 9}})), done(20, 25, in(2), yes(10, 0))}},
	}.check(t, m)
	unsure, ok := m.Unsure()
	if !ok {
		t.Fatal("it has no unknown state")
	}
	histories{
		"any":           {true, []Call{done(0, 5, in(1), no(10, 0)), done(10, 15, in(1), yes(20, 2))}},
		"and then sure": {false, []Call{done(0, 5, in(1), yes(10, 1)), done(10, 15, in(1), yes(10, 1))}},
	}.check(t, unsure)
}

// quotaServed is a history of four callers of a quota, as an owner decides it whose clock is set back and
// forth: some of their answers are lost. If forgets, a clock that is set back begins the period anew.
func quotaServed(seed uint64, forgets bool, n int) []Call {
	const second = int64(1e9)
	rnd := rand.New(rand.NewPCG(seed, 7))
	c, err := limit.NewAligned(10 * second)
	if err != nil {
		panic(err)
	}
	op := limit.Op{Params: limit.Params{Algorithm: limit.CalendarWindow, Limit: 3, Period: int64(c)}}
	var s limit.State
	var calls []Call
	free := make([]int64, 4) // when a caller is
	wall := 1000 * second
	for now := int64(1); len(calls) < n; now += 1 + rnd.Int64N(30) {
		if wall += rnd.Int64N(4 * second); rnd.IntN(8) == 0 {
			wall -= rnd.Int64N(25 * second)
		}
		who := rnd.IntN(len(free))
		begun := max(free[who], now-rnd.Int64N(20)) + 1
		at := max(now, begun)
		now = at
		op.Cost, op.Refund, op.Peek = 1+rnd.Uint64N(3), 0, rnd.IntN(5) == 0
		in := any(BucketInput{Cost: op.Cost, Peek: op.Peek})
		if !op.Peek && rnd.IntN(6) == 0 {
			op.Cost, op.Refund = 0, 1+rnd.Uint64N(2)
			in = BucketRefund{op.Refund}
		}
		if _, end := c.Period(wall); forgets && s.At > end {
			s = limit.State{}
		}
		next, res, changed := limit.Date(s, nil, op, at, wall)
		if changed {
			s = next
		}
		ended := at + rnd.Int64N(20)
		free[who] = ended
		call := Call{Client: who, Object: "x", Input: in, Start: begun, End: ended,
			Output: BucketOutput{Allowed: res.Allowed, Remaining: res.Remaining, RetryAfter: res.RetryAfter, ResetAfter: res.ResetAfter, Ends: res.Ends / second}}
		if len(calls)%30 == 7 { // few: a check tries each at every moment
			call.End, call.Output = Never, nil
		}
		calls = append(calls, call)
	}
	return calls
}

// TestQuotaOfAnOwner: what an owner answers is accepted, however its clock is set; one that gives a period
// twice when its clock is set back is found out.
func TestQuotaOfAnOwner(t *testing.T) {
	m := Quota(QuotaParams{Limit: 3, Period: 10})
	for seed := range uint64(30) {
		if err := Check(m, quotaServed(seed, false, 120), 0); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if err := Check(m, quotaServed(seed, true, 120), 0); !errors.As(err, new(*Violation)) {
			t.Errorf("seed %d: an owner that gives twice is not found out: %v", seed, err)
		}
	}
}
