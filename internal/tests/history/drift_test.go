package history

import (
	"testing"
	"time"
)

// A grant, a token and a hit may be over sooner than by an exact clock if the node's is
// fast, by no more than that, and only if the model allows it.
func TestDrift(t *testing.T) {
	const ms, fast = int64(time.Millisecond), Drift(20_000)
	call := func(from int64, in, out any) Call {
		return Call{Object: "o", Input: in, Start: from, End: from + ms, Output: out}
	}
	acquire := func(from int64, holder string, token uint64) Call {
		return call(from, LockInput{Op: LockAcquire, Holder: holder, TTL: 1000 * ms}, LockOutput{OK: true, Token: token, TTL: 1000 * ms})
	}
	check := func(from int64, cost uint64, allowed bool) Call {
		return call(from, BucketInput{Cost: cost}, BucketOutput{Allowed: allowed, Bare: true})
	}
	bucket := Bucket(BucketParams{Limit: 1, Period: int64(time.Second), Burst: 1})
	window := Window(WindowParams{Limit: 1, Period: int64(time.Second)})
	for what, tc := range map[string]struct {
		m     Model
		early func(at int64) []Call
	}{
		"lock":   {Lock(), func(at int64) []Call { return []Call{acquire(0, "a", 1), acquire(at, "b", 2)} }},
		"bucket": {bucket, func(at int64) []Call { return []Call{check(0, 1, true), check(at, 1, true)} }},
		"window": {window, func(at int64) []Call { return []Call{check(0, 1, true), check(at, 1, true)} }},
	} {
		exact, drifting := tc.early(1001*ms), tc.early(985*ms)
		if err := Check(tc.m, exact, time.Second); err != nil {
			t.Errorf("%s, on time: %v", what, err)
		}
		if err := Check(tc.m, drifting, time.Second); err == nil {
			t.Errorf("%s: early, by an exact clock", what)
		}
		if err := Check(tc.m.Drifting(fast), drifting, time.Second); err != nil {
			t.Errorf("%s, early by a fast clock: %v", what, err)
		}
		if err := Check(tc.m.Drifting(fast), tc.early(970*ms), time.Second); err == nil {
			t.Errorf("%s: earlier than the clock is fast", what)
		}
	}
	if fast.Least(1000) < 978 || fast.Least(1000) > 981 || fast.most(1000) < 1020 || fast.most(1000) > 1023 || Drift(0).Least(7) != 7 || Drift(0).most(7) != 7 {
		t.Errorf("least %d, most %d", fast.Least(1000), fast.most(1000))
	}
}

// An earlier epoch after a later one is seen, but not of answers at the same time, of
// replays, or of parts.
func TestEpochs(t *testing.T) {
	call := func(from, to int64, epoch uint64, out any) Call {
		return Call{Object: "o", Start: from, End: to, Output: out, Epoch: epoch, Owner: "n"}
	}
	told := CounterOutput{Value: 1}
	for what, tc := range map[string]struct {
		second Call
		wrong  bool
	}{
		"the same":    {second: call(3, 4, 7, told)},
		"a later one": {second: call(3, 4, 8, told)},
		"earlier":     {second: call(3, 4, 6, told), wrong: true},
		"beside it":   {second: call(1, 4, 6, told)},
		"a replay":    {second: call(3, 4, 6, CounterOutput{Replay: Replay{Replayed: true}})},
		"a part":      {second: call(3, 4, 6, CounterOutput{Parts: 2})},
		"no answer":   {second: call(3, Never, 0, nil)},
	} {
		if err := Epochs([]Call{call(1, 2, 7, told), tc.second}); (err != nil) != tc.wrong {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A replay can be of its own attempt that was passed on twice, also if its age, by a fast
// clock, is more than the attempt has taken.
func TestDriftOfAReplay(t *testing.T) {
	const ms = int64(time.Millisecond)
	again := func(age int64) []Call {
		return []Call{as("r", done(0, 1000*ms, add(2), repeated(applied(2, 5), age, 2)))}
	}
	m := Counter().Drifting(20_000)
	if err := Check(m, again(1015*ms), time.Second); err != nil {
		t.Errorf("passed on twice: %v", err)
	}
	if err := Check(Counter(), again(1015*ms), time.Second); err == nil {
		t.Error("older than its attempt, by an exact clock")
	}
	if err := Check(m, again(1030*ms), time.Second); err == nil {
		t.Error("older than its attempt by more than clocks drift")
	}
}
