package history

import "testing"

// A leaky bucket of three places, of which one is free again every 100 ns.
func TestTurns(t *testing.T) {
	turn := func(cost uint64, most int64) BucketInput {
		return BucketInput{Cost: cost, Turn: true, MaxDelay: most}
	}
	given := func(delay int64, remaining uint64, reset int64) BucketOutput {
		return BucketOutput{Allowed: true, Delay: delay, Remaining: remaining, ResetAfter: reset}
	}
	peek := turn(1, 300)
	peek.Peek = true
	one := done(0, 0, turn(1, 0), given(0, 2, 100))
	histories{
		"one after the other":       {true, []Call{one, done(0, 0, turn(2, 200), given(100, 0, 300)), done(0, 0, turn(1, 900), denied(0, 100, 300)), done(150, 150, turn(1, 150), given(150, 0, 250))}},
		"a turn that is too early":  {false, []Call{one, done(0, 0, turn(1, 200), given(0, 1, 100))}},
		"… and tokens that are not": {false, []Call{one, done(0, 0, turn(1, 200), given(50, 1, 200))}},
		"two at a time":             {false, []Call{one, done(0, 0, turn(1, 200), given(100, 1, 200)), done(0, 0, turn(1, 200), given(100, 1, 200))}},
		"not in time":               {true, []Call{one, done(0, 0, turn(1, 60), denied(2, 40, 100)), done(40, 40, turn(1, 60), given(60, 1, 160))}},
		"in time, and refused":      {false, []Call{one, done(0, 0, turn(1, 100), denied(2, 40, 100))}},
		"not in time, and given":    {false, []Call{one, done(0, 0, turn(1, 60), given(100, 1, 200))}},
		"a refusal with a turn":     {false, []Call{one, done(0, 0, turn(1, 60), BucketOutput{Delay: 100, Remaining: 2, RetryAfter: 40, ResetAfter: 100})}},
		"a peek takes no turn":      {true, []Call{one, done(0, 0, peek, given(100, 2, 100)), done(0, 0, turn(1, 100), given(100, 1, 200))}},
		"a retry": {true, []Call{one, as("r", done(0, 0, turn(1, 100), given(100, 1, 200))),
			as("r", done(50, 50, turn(1, 100), BucketOutput{Allowed: true, Delay: 50, Remaining: 1, ResetAfter: 150, Replay: Replay{true, 50}}))}},
	}.check(t, Bucket(BucketParams{Limit: 1, Period: 100, Burst: 3}))
}
