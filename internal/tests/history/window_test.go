package history

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/keystead/keystead/owner/limit"
)

// TestWindow: of a window of 3 in 100 ns.
func TestWindow(t *testing.T) {
	m := Window(WindowParams{Limit: 3, Period: 100})
	in := func(cost uint64) BucketInput { return BucketInput{Cost: cost} }
	peek := BucketInput{Cost: 1, Peek: true}
	yes := func(left uint64) BucketOutput { return BucketOutput{Allowed: true, Remaining: left, ResetAfter: 100} }
	no := func(left uint64, retry, reset int64) BucketOutput {
		return BucketOutput{Remaining: left, RetryAfter: retry, ResetAfter: reset}
	}
	bare := func(ok bool) BucketOutput { return BucketOutput{Allowed: ok, Bare: true} }
	histories{
		"used up":           {true, []Call{done(0, 5, in(2), yes(1)), done(10, 15, in(1), yes(0)), done(20, 25, in(1), no(0, 80, 90))}},
		"comes back":        {true, []Call{done(0, 5, in(3), yes(0)), done(104, 110, in(3), yes(0))}},
		"… too early":       {false, []Call{done(0, 5, in(3), yes(0)), done(90, 99, in(1), yes(0))}},
		"… within its call": {true, []Call{done(0, 5, in(3), yes(0)), done(90, 100, in(3), yes(0))}},
		"… in part":         {true, []Call{done(0, 5, in(2), yes(1)), done(50, 55, in(1), yes(0)), done(110, 115, in(2), yes(0))}},
		"… and not all":     {false, []Call{done(0, 5, in(2), yes(1)), done(50, 55, in(1), yes(0)), done(110, 115, in(3), yes(0))}},
		"over the edge of a fixed window": {false, []Call{done(0, 1, in(1), yes(2)), done(98, 99, in(2), yes(0)),
			done(105, 106, in(3), yes(0))}},
		"denied for nothing":  {false, []Call{done(0, 5, in(2), yes(1)), done(10, 15, in(1), no(1, 80, 90))}},
		"denied too long":     {false, []Call{done(0, 5, in(3), yes(0)), done(105, 110, in(1), no(0, 10, 10))}},
		"another remainder":   {false, []Call{done(0, 5, in(1), yes(2)), done(10, 15, in(1), yes(0))}},
		"another reset":       {false, []Call{done(0, 5, in(1), BucketOutput{Allowed: true, Remaining: 2, ResetAfter: 99})}},
		"no time to wait":     {false, []Call{done(0, 5, in(3), yes(0)), done(10, 15, in(1), no(0, 0, 90))}},
		"a peek":              {true, []Call{done(0, 5, in(2), yes(1)), done(10, 15, peek, BucketOutput{Allowed: true, Remaining: 1, ResetAfter: 90}), done(20, 25, in(1), yes(0))}},
		"a peek that spends":  {false, []Call{done(0, 5, in(2), yes(1)), done(10, 15, peek, BucketOutput{Allowed: true, Remaining: 1, ResetAfter: 90}), done(20, 25, in(1), no(0, 70, 80))}},
		"at the same time":    {true, []Call{done(0, 9, in(2), yes(1)), done(1, 8, in(2), no(1, 100, 100)), done(2, 7, in(1), yes(0))}},
		"both at once":        {false, []Call{done(0, 9, in(2), bare(true)), done(1, 8, in(2), bare(true))}},
		"lost and done":       {true, []Call{lost(0, in(3)), done(10, 15, in(1), no(0, 95, 95))}},
		"lost and not done":   {true, []Call{lost(0, in(3)), done(10, 15, in(3), yes(0))}},
		"lost and done later": {true, []Call{lost(0, in(3)), done(10, 15, in(2), yes(1)), done(120, 125, in(1), no(0, 60, 60))}},
		"made full":           {true, []Call{done(0, 5, in(3), yes(0)), done(10, 15, BucketReset{}, bare(true)), done(20, 25, in(3), yes(0)), done(30, 35, in(1), no(0, 90, 90))}},
		"not made full":       {false, []Call{done(0, 5, in(3), yes(0)), done(10, 15, BucketReset{}, bare(true)), done(20, 25, in(1), no(0, 80, 80))}},
	}.check(t, m)
	delay := Window(WindowParams{Limit: 3, Period: 100, Delay: 50})
	histories{
		"late":       {true, []Call{done(0, 5, in(3), yes(0)), done(140, 145, in(1), no(0, 10, 10))}},
		"too late":   {false, []Call{done(0, 5, in(3), yes(0)), done(156, 160, in(1), no(0, 10, 10))}},
		"never soon": {false, []Call{done(0, 5, in(3), yes(0)), done(90, 95, in(1), yes(0))}},
	}.check(t, delay)
}

// served is a history of four callers of a window, as an owner decides it: some of their
// answers are lost. more is by how much it admits too much.
func served(seed, most, more uint64, period int64, n int) []Call {
	rnd := rand.New(rand.NewPCG(seed, 7))
	op := limit.Op{Params: limit.Params{Algorithm: limit.SlidingWindow, Limit: most + more, Period: period}}
	var s limit.State
	var marks []limit.Mark
	var calls []Call
	free := make([]int64, 4) // when a caller is
	for now := int64(1); len(calls) < n; now += 1 + rnd.Int64N(period/int64(most)) {
		who := rnd.IntN(len(free))
		begun := max(free[who], now-rnd.Int64N(20)) + 1
		at := max(now, begun)
		now = at
		op.Cost, op.Peek = 1+rnd.Uint64N(3), rnd.IntN(5) == 0
		next, after, res, changed := limit.Slide(s, append(make([]limit.Mark, 0, limit.MaxMarks+1), marks...), op, at)
		if changed {
			s, marks = next, after
		}
		ended := at + rnd.Int64N(20)
		free[who] = ended
		c := Call{Client: who, Object: "x", Input: BucketInput{Cost: op.Cost, Peek: op.Peek}, Start: begun, End: ended,
			Output: BucketOutput{Allowed: res.Allowed, Remaining: res.Remaining - min(more, res.Remaining), RetryAfter: res.RetryAfter, ResetAfter: res.ResetAfter}}
		if len(calls)%30 == 7 { // few: a check tries each at every moment
			c.End, c.Output = Never, nil
		}
		calls = append(calls, c)
	}
	return calls
}

// TestWindowOfAnOwner: what an owner answers is accepted; an owner that admits one token
// more than it should is found out.
func TestWindowOfAnOwner(t *testing.T) {
	const period = 1000
	found := 0
	const runs = 30
	for seed := range uint64(runs) {
		most := 4 + seed%(MaxWindow-3)
		m := Window(WindowParams{Limit: most, Period: period})
		if err := Check(m, served(seed, most, 0, period, 80), 0); err != nil {
			t.Errorf("limit %d, seed %d: %v", most, seed, err)
		}
		var v *Violation
		switch err := Check(m, served(seed, most, 1, period, 80), 0); {
		case errors.As(err, &v):
			found++
		case err != nil:
			t.Error(err)
		}
	}
	if found < runs*3/4 { // in the others a lost answer explains it
		t.Errorf("%d of %d owners that admit too much were found out", found, runs)
	}
	t.Logf("%d of %d owners that admit one token too much were found out", found, runs)
}
