package history

import (
	"errors"
	"testing"
	"time"
)

// TestSemaphoreModel: what no semaphore can tell is found, and what one can is not.
func TestSemaphoreModel(t *testing.T) {
	acquire := SemaphoreInput{Op: PermitsAcquire, Permits: 2, Capacity: 3, TTL: 100}
	one := SemaphoreInput{Op: PermitsAcquire, Permits: 1, Capacity: 3, TTL: 100}
	got := func(token uint64) SemaphoreOutput { return SemaphoreOutput{OK: true, Token: token, TTL: 100} }
	under := func(op SemaphoreOp, token uint64) SemaphoreInput {
		return SemaphoreInput{Op: op, Token: token, TTL: 100}
	}
	inspect := SemaphoreInput{Op: PermitsInspect}
	call := func(start, end int64, in SemaphoreInput, out any) Call {
		return Call{Object: "s", Start: start, End: end, Input: in, Output: out}
	}
	for name, c := range map[string]struct {
		calls []Call
		bad   bool
	}{
		"fits":               {[]Call{call(0, 1, acquire, got(1)), call(2, 3, one, got(2)), call(4, 5, inspect, SemaphoreOutput{Held: 3})}, false},
		"too many":           {[]Call{call(0, 1, acquire, got(1)), call(2, 3, acquire, got(2))}, true},
		"after the TTL":      {[]Call{call(0, 1, acquire, got(1)), call(100, 105, acquire, got(2))}, false},
		"before the TTL":     {[]Call{call(0, 1, acquire, got(1)), call(90, 99, acquire, got(2))}, true},
		"after a release":    {[]Call{call(0, 1, acquire, got(1)), call(2, 3, under(PermitsRelease, 1), SemaphoreOutput{OK: true}), call(4, 5, acquire, got(2))}, false},
		"released twice":     {[]Call{call(0, 1, acquire, got(1)), call(2, 3, under(PermitsRelease, 1), SemaphoreOutput{OK: true}), call(4, 5, under(PermitsRelease, 1), SemaphoreOutput{OK: true})}, true},
		"lost before":        {[]Call{call(0, 1, acquire, got(1)), call(2, 3, under(PermitsVerify, 1), SemaphoreOutput{})}, true},
		"there again":        {[]Call{call(0, 1, acquire, got(1)), call(110, 111, acquire, got(2)), call(112, 113, under(PermitsRenew, 1), SemaphoreOutput{OK: true})}, true},
		"renewed":            {[]Call{call(0, 1, acquire, got(1)), call(50, 51, under(PermitsRenew, 1), SemaphoreOutput{OK: true, TTL: 100}), call(120, 130, acquire, got(2))}, true},
		"token falls":        {[]Call{call(0, 1, one, got(5)), call(2, 3, one, got(4))}, true},
		"orphaned":           {[]Call{call(0, 1, acquire, got(1)), call(200, 201, inspect, SemaphoreOutput{Held: 2})}, true},
		"not counted":        {[]Call{call(0, 1, acquire, got(1)), call(2, 3, inspect, SemaphoreOutput{})}, true},
		"lost, perhaps done": {[]Call{call(0, Never, acquire, nil), call(5, 6, inspect, SemaphoreOutput{Held: 2})}, false},
		"lost, perhaps not":  {[]Call{call(0, Never, acquire, nil), call(5, 6, inspect, SemaphoreOutput{})}, false},
	} {
		err := Check(Semaphore(0), c.calls, time.Minute)
		if v := (*Violation)(nil); errors.As(err, &v) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
	late := []Call{call(0, 1, acquire, got(1)), call(120, 121, inspect, SemaphoreOutput{Held: 2})}
	if err := Check(Semaphore(30), late, time.Minute); err != nil {
		t.Errorf("a copy's time runs on: %v", err)
	}
}
