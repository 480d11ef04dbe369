package history

import "testing"

// The bucket of TestBucket, whose tokens may come back up to 50 ns late in all.
func TestLateBucket(t *testing.T) {
	yes, no := BucketOutput{Allowed: true, Bare: true}, BucketOutput{Bare: true}
	full := done(0, 1, check(3), yes)
	histories{
		"on time":        {true, []Call{full, done(100, 101, check(1), yes)}},
		"late":           {true, []Call{full, done(150, 151, check(1), no), done(152, 153, check(1), yes)}},
		"too late":       {false, []Call{full, done(152, 153, check(1), no)}},
		"late twice":     {true, []Call{full, done(120, 121, check(1), no), done(150, 151, check(1), no)}},
		"too late twice": {false, []Call{full, done(140, 141, check(1), no), done(141, 142, check(1), yes), done(253, 254, check(1), no)}},
		"never early":    {false, []Call{full, done(90, 99, check(1), yes)}},
		"early after late": {false, []Call{
			full, done(130, 131, check(1), no), done(131, 132, check(2), yes)}},
		"says that it is late":     {true, []Call{full, done(100, 101, check(1), denied(0, 40, 240))}},
		"says that it is too late": {false, []Call{full, done(100, 101, check(1), denied(0, 60, 260))}},
		"late, and then not": {true, []Call{
			full, done(50, 51, check(1), denied(0, 80, 280)), done(60, 61, check(1), denied(0, 40, 240)), done(100, 101, check(1), yes)}},
		"late, and then early": {false, []Call{
			full, done(50, 51, check(1), denied(0, 80, 280)), done(60, 61, check(1), denied(0, 30, 230))}},
		"late, spent of a copy of before": {true, []Call{
			full, done(100, 101, check(1), denied(0, 40, 240)), done(150, 151, check(1), yes), done(160, 161, check(1), denied(0, 40, 240))}},
		"late, spent, and then early": {false, []Call{
			full, done(100, 101, check(1), denied(0, 40, 240)), done(150, 151, check(1), yes), done(160, 161, check(1), denied(0, 30, 230))}},
		"late, seen to be spent, and then not": {false, []Call{
			full, done(100, 101, check(1), denied(0, 40, 240)), done(150, 151, check(1), BucketOutput{Allowed: true, ResetAfter: 290}),
			done(160, 161, check(1), denied(0, 50, 250))}},
		// The spending is told of for a time in which what was put off may be hidden.
		"late by less than a call": {true, []Call{
			done(0, 0, check(3), yes), done(10, 10, check(1), denied(0, 94, 294)), done(101, 111, check(1), BucketOutput{Allowed: true, ResetAfter: 295}),
			done(120, 120, check(1), denied(0, 80, 280))}},
		"a level of before": {false, []Call{
			full, done(10, 11, check(1), denied(0, 90, 290)), done(12, 13, check(1), denied(0, 10, 210))}},
	}.check(t, Bucket(BucketParams{Limit: 1, Period: 100, Burst: 3, Delay: 50}))
}

// Grants may end up to 50 ns late in all.
func TestLateLock(t *testing.T) {
	a := done(0, 10, acquire("a", 100, 0), got(1, 100)) // ends between 100 and 160
	histories{
		"on time":                 {true, []Call{a, done(100, 110, acquire("b", 100, 0), got(2, 100))}},
		"late":                    {true, []Call{a, done(150, 155, acquire("b", 100, 0), heldBy("a", 1, 3)), done(158, 159, acquire("b", 100, 0), got(2, 100))}},
		"too late":                {false, []Call{a, done(161, 165, acquire("b", 100, 0), heldBy("a", 1, 3))}},
		"what is left says it":    {true, []Call{a, done(20, 21, inspect, heldBy("a", 1, 130))}},
		"more is left than may":   {false, []Call{a, done(20, 21, inspect, heldBy("a", 1, 141))}},
		"never early":             {false, []Call{a, done(90, 99, acquire("b", 100, 0), got(2, 100))}},
		"less is left than must":  {false, []Call{a, done(20, 21, inspect, heldBy("a", 1, 70))}},
		"late in all":             {false, []Call{a, done(140, 141, release(1), freed), done(150, 151, acquire("b", 100, 0), got(2, 100)), done(275, 276, inspect, heldBy("b", 2, 10))}},
		"put off, and then not":   {true, []Call{a, done(50, 51, inspect, heldBy("a", 1, 100)), done(105, 115, inspect, notHeld)}},
		"put off, and then early": {false, []Call{a, done(50, 51, inspect, heldBy("a", 1, 100)), done(90, 99, inspect, notHeld)}},
		"put off and renewed": {false, []Call{a, done(50, 51, inspect, heldBy("a", 1, 100)),
			done(60, 61, renew(1, 100), LockOutput{OK: true, TTL: 100}), done(120, 130, inspect, notHeld)}},
	}.check(t, DelayedLock(50))
}

// The age of a replay may be too small by as much: the operation took effect
// before the read that saw it, and not when the age says.
func TestLateReplay(t *testing.T) {
	aged := func(age int64) []Call {
		o := applied(2, 5)
		o.Current, o.Replay = 2, Replay{Replayed: true, Age: age}
		return []Call{as("r", lost(0, add(2))), done(20, 21, get, is(2, 5)), as("r", done(100, 101, add(2), o))}
	}
	for _, c := range []struct {
		age, delay int64
		legal      bool
	}{{80, 0, true}, {60, 0, false}, {60, 50, true}, {20, 50, false}, {102, 50, false}} {
		if err := Check(DelayedCounter(c.delay), aged(c.age), 0); (err == nil) != c.legal {
			t.Errorf("age %d, late by %d: %v", c.age, c.delay, err)
		}
	}
}
