package history

import (
	"errors"
	"strings"
	"testing"
)

func repeated(o CounterOutput, age, current int64) CounterOutput {
	o.Replay, o.Current = Replay{true, age}, current
	return o
}

// A retried request counts once and returns its first result.
func TestRetriesOfACounter(t *testing.T) {
	histories{
		"answered twice": {true, []Call{
			as("r", done(0, 10, add(2), applied(2, 5))), as("r", done(20, 30, add(2), repeated(applied(2, 5), 20, 2))), done(40, 50, get, is(2, 5))}},
		"the first answer was lost": {true, []Call{
			as("r", lost(0, add(2))), as("r", done(20, 30, add(2), repeated(applied(2, 5), 20, 2))), done(40, 50, get, is(2, 5))}},
		"the first attempt was": {true, []Call{
			as("r", lost(0, add(2))), as("r", done(20, 30, add(2), applied(2, 5))), done(40, 50, get, is(2, 5))}},
		"it acted twice": {false, []Call{
			as("r", lost(0, add(2))), as("r", done(20, 30, add(2), applied(2, 5))), done(40, 50, get, is(4, 6))}},
		"others came between": {true, []Call{
			as("r", lost(0, add(2))), done(15, 18, add(1), applied(3, 6)), as("r", done(20, 30, add(2), repeated(applied(2, 5), 20, 3)))}},
		"the current value is stale": {false, []Call{
			as("r", lost(0, add(2))), done(15, 18, add(1), applied(3, 6)), as("r", done(20, 30, add(2), repeated(applied(2, 5), 20, 2)))}},
		"the age says when at the earliest": {false, []Call{
			as("r", lost(0, add(2))), done(11, 12, get, is(2, 5)), as("r", done(40, 50, add(2), repeated(applied(2, 5), 20, 2)))}},
		"but not when at the latest": {true, []Call{
			as("r", lost(0, add(2))), done(11, 12, get, is(0, 0)), as("r", done(20, 30, add(2), repeated(applied(2, 5), 20, 2)))}},
		"the replay comes before it": {false, []Call{
			as("r", lost(0, add(2))), as("r", done(20, 30, add(2), repeated(applied(2, 5), 20, 2))), done(40, 50, get, is(0, 0))}},
		"all attempts were lost": {true, []Call{
			as("r", lost(0, add(2))), as("r", lost(20, add(2))), done(40, 50, get, is(2, 5))}},
		"all were lost, and two acted": {false, []Call{
			as("r", lost(0, add(2))), as("r", lost(20, add(2))), done(40, 50, get, is(4, 5))}},
	}.check(t, Counter())
}

func TestRetriesOfABucket(t *testing.T) {
	again := func(o BucketOutput, age int64) BucketOutput {
		o.Replay = Replay{true, age}
		return o
	}
	histories{
		"spent once": {true, []Call{
			as("r", lost(0, check(2))), as("r", done(20, 20, check(2), again(allowed(1, 190), 10))), done(20, 20, check(1), allowed(0, 290))}},
		"spent twice": {false, []Call{
			as("r", lost(0, check(2))), as("r", done(20, 20, check(2), again(allowed(1, 190), 10))), done(21, 21, check(1), denied(0, 100, 300))}},
		"what is left is a lie": {false, []Call{
			as("r", lost(0, check(2))), as("r", done(20, 20, check(2), again(allowed(3, 0), 10)))}},
		"denied stays denied": {true, []Call{
			done(0, 0, check(3), allowed(0, 300)), as("r", lost(0, check(2))), as("r", done(250, 250, check(2), again(denied(2, 0, 50), 245)))}},
	}.check(t, Bucket(BucketParams{Limit: 1, Period: 100, Burst: 3}))
}

func TestRetriesOfALock(t *testing.T) {
	again := func(o LockOutput, age int64) LockOutput {
		o.Replay = Replay{true, age}
		return o
	}
	histories{
		"still held": {true, []Call{
			as("r", lost(0, acquire("a", 100, 0))), as("r", done(50, 50, acquire("a", 100, 0), again(got(1, 60), 40))),
			done(60, 60, acquire("b", 100, 0), heldBy("a", 1, 50)), done(110, 110, acquire("b", 100, 0), got(2, 100))}},
		"told that it holds, and yet": {false, []Call{
			as("r", lost(0, acquire("a", 100, 0))), as("r", done(50, 50, acquire("a", 100, 0), again(got(1, 60), 40))),
			done(60, 60, acquire("b", 100, 0), got(2, 100))}},
		"over, held by another": {true, []Call{
			as("r", lost(0, acquire("a", 100, 0))), done(110, 120, acquire("b", 100, 0), got(2, 100)),
			as("r", done(130, 130, acquire("a", 100, 0), again(LockOutput{OK: true, Token: 1, Holder: "b", HolderToken: 2, HolderTTL: 80}, 125)))}},
		"another holds it, and yet": {false, []Call{
			as("r", lost(0, acquire("a", 100, 0))), done(110, 120, acquire("b", 100, 0), got(2, 100)),
			as("r", done(130, 130, acquire("a", 100, 0), again(got(1, 60), 125)))}},
		"over, free": {true, []Call{
			as("r", lost(0, acquire("a", 100, 0))), as("r", done(130, 130, acquire("a", 100, 0), again(got(1, 0), 125)))}},
		"given back when its caller left": {true, []Call{
			as("r", lost(0, acquire("a", 100, 0))), as("r", done(30, 30, acquire("a", 100, 0), again(got(1, 0), 25)))}},
		"refused stays refused": {true, []Call{
			done(0, 1, acquire("b", 10, 0), got(1, 10)), as("r", lost(2, acquire("a", 100, 0))),
			as("r", done(30, 30, acquire("a", 100, 0), again(notHeld, 25)))}},
		"refused, though it was free": {false, []Call{
			as("r", lost(2, acquire("a", 100, 0))), as("r", done(30, 30, acquire("a", 100, 0), again(notHeld, 25)))}},
		"a release that was lost": {true, []Call{
			done(0, 1, acquire("a", 100, 0), got(1, 100)), as("r", lost(2, release(1))), done(10, 11, acquire("b", 100, 0), got(2, 100)),
			as("r", done(20, 20, release(1), again(freed, 15)))}},
	}.check(t, Lock())
}

// What the attempts of one request say must fit together before any model is
// asked.
func TestFoldRejects(t *testing.T) {
	for what, calls := range map[string][]Call{
		"acted twice": {
			as("r", done(0, 10, add(2), applied(2, 5))), as("r", done(20, 30, add(2), applied(4, 6)))},
		"has two results": {
			as("r", done(0, 10, add(2), applied(2, 5))), as("r", done(20, 30, add(2), repeated(applied(4, 6), 20, 4)))},
		"is a replay, but nothing went before it": {
			as("r", done(20, 30, add(2), repeated(applied(2, 5), 20, 2)))},
		"when no attempt of it was under way": {
			as("r", done(0, 10, add(2), applied(2, 5))), as("r", done(50, 60, add(2), repeated(applied(2, 5), 20, 2)))},
		"took effect when": {
			as("r", lost(30, add(2))), as("r", done(50, 60, add(2), repeated(applied(2, 5), 40, 2)))},
		"is used for": {
			as("r", lost(30, add(2))), as("r", lost(40, add(3)))},
	} {
		t.Run(what, func(t *testing.T) {
			if err := Check(Counter(), calls, 0); err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Each object is judged by itself, and the one at fault is named.
func TestObjectsAreApart(t *testing.T) {
	good, bad := done(0, 10, add(2), applied(2, 5)), done(0, 10, get, is(7, 5))
	bad.Object = "y"
	if err := Check(Counter(), []Call{good}, 0); err != nil {
		t.Error(err)
	}
	var v *Violation
	if err := Check(Counter(), []Call{good, bad}, 0); !errors.As(err, &v) || v.Object != "y" || len(v.Ops) != 1 {
		t.Errorf("got %v", err)
	}
}

func TestRecorder(t *testing.T) {
	now := int64(0)
	r := NewRecorder(func() int64 { now++; return now })
	a, b, c := r.Begin(1, "x", "r1", add(1)), r.Begin(2, "x", "r2", add(2)), r.Begin(3, "y", "", get)
	b.Answer(applied(2, 1))
	c.Nothing()
	calls := r.Calls()
	if len(calls) != 2 || calls[0].Client != 1 || calls[0].End != Never || calls[0].Start != 1 || calls[1].Start != 2 || calls[1].End != 4 {
		t.Errorf("recorded %+v", calls)
	}
	a.Answer(applied(3, 2))
	if err := Check(Counter(), r.Calls(), 0); err != nil {
		t.Error(err)
	}
}
