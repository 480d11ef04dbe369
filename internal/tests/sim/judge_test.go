package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/internal/tests/kinds"
	"github.com/keystead/keystead/owner"
)

// TestJudgeSees: answers made by hand. The state of "k" was lost in epoch 20.
func TestJudgeSees(t *testing.T) {
	t.Parallel()
	const ms = int64(time.Millisecond)
	call := func(from int64, epoch uint64, in, out any) history.Call {
		return history.Call{Object: "k", Input: in, Start: from * ms, End: (from + 1) * ms, Output: out, Epoch: epoch, Owner: "n1"}
	}
	add := func(from int64, epoch uint64, value int64, version uint64) history.Call {
		return call(from, epoch, history.CounterInput{Op: history.CounterAdd, Delta: 1}, history.CounterOutput{Applied: true, Value: value, Version: version})
	}
	acquire := func(from int64, epoch uint64, holder string, token uint64) history.Call {
		return call(from, epoch, history.LockInput{Op: history.LockAcquire, Holder: holder, TTL: 1000 * ms}, history.LockOutput{OK: true, Token: token, TTL: 1000 * ms})
	}
	release := func(from int64, epoch uint64, token uint64) history.Call {
		return call(from, epoch, history.LockInput{Op: history.LockRelease, Token: token}, history.LockOutput{OK: true})
	}
	check := func(from int64, epoch uint64, allowed bool) history.Call {
		return call(from, epoch, history.BucketInput{Cost: 20}, history.BucketOutput{Allowed: allowed, Bare: true})
	}
	permit := func(from int64, epoch uint64) history.Call {
		return call(from, epoch, history.SemaphoreInput{Op: history.PermitsAcquire, Permits: 1, Capacity: 1, TTL: 1000 * ms},
			history.SemaphoreOutput{OK: true, Token: epoch<<owner.SeqBits + 1, TTL: 1000 * ms})
	}
	end := func(from int64, epoch uint64) history.Call { // of a session
		return call(from, 0, history.SemaphoreInput{Op: history.PermitsEnd, Token: epoch<<owner.SeqBits + 1}, history.SemaphoreOutput{OK: true})
	}
	lost := func(c history.Call) history.Call {
		c.End, c.Output, c.Epoch = history.Never, nil, 0
		return c
	}
	write := func(holder string, token uint64, at, until int64, accepted bool) kinds.Write {
		return kinds.Write{Holder: holder, Token: token, At: at * ms, Until: until * ms, Accepted: accepted}
	}
	for name, c := range map[string]struct {
		kind   kinds.Kind
		calls  []history.Call
		writes []kinds.Write
		want   string // part of the fault; "" = all is well
	}{
		"tokens rise":                 {kind: kinds.Lock, calls: []history.Call{acquire(0, 5, "a", 5), release(2, 5, 5), acquire(4, 5, "b", 6)}},
		"tokens fall":                 {kind: kinds.Lock, calls: []history.Call{acquire(0, 5, "a", 5), release(2, 5, 5), acquire(4, 5, "b", 4)}, want: "no order"},
		"one token twice":             {kind: kinds.Lock, calls: []history.Call{acquire(0, 5, "a", 5), release(2, 5, 5), acquire(4, 5, "b", 5)}, want: "no order"},
		"two holders":                 {kind: kinds.Lock, calls: []history.Call{acquire(0, 5, "a", 5), acquire(900, 5, "b", 6)}, want: "no order"},
		"one after another":           {kind: kinds.Lock, calls: []history.Call{acquire(0, 5, "a", 5), acquire(1002, 5, "b", 6)}},
		"… by a fast clock":           {kind: kinds.Lock, calls: []history.Call{acquire(0, 5, "a", 5), acquire(985, 5, "b", 6)}},
		"… much later":                {kind: kinds.Lock, calls: []history.Call{acquire(0, 5, "a", 5), acquire(99_000, 5, "b", 6)}},
		"lost with its lock":          {kind: kinds.Lock, calls: []history.Call{acquire(0, 5, "a", 5), acquire(900, 20, "b", 6)}}, // its writes tell
		"a session of each life":      {kind: kinds.Semaphore, calls: []history.Call{permit(0, 5), end(2, 5), permit(4, 20), end(6, 20)}},
		"a session that ends nothing": {kind: kinds.Semaphore, calls: []history.Call{permit(0, 5), end(2, 6)}, want: "no order"},
		"refused under its lease, and a loss between them": {kind: kinds.Lock, writes: []kinds.Write{
			write("a", 5, 1, 1000, true), write("b", 6, 900, 1900, true), write("a", 5, 950, 1000, false)}, want: "was refused"},
		"tokens fall, and a loss between them": {kind: kinds.Lock, writes: []kinds.Write{
			write("a", 5, 1, 1000, true), write("b", 4, 1100, 2000, false)}, want: "was refused"},
		"adds add up":                        {kind: kinds.Counter, calls: []history.Call{add(0, 5, 1, 1), add(2, 5, 2, 2)}},
		"an add is lost":                     {kind: kinds.Counter, calls: []history.Call{add(0, 5, 1, 1), add(2, 5, 1, 2)}, want: "no order"},
		"counted twice":                      {kind: kinds.Counter, calls: []history.Call{add(0, 5, 1, 1), add(2, 5, 3, 3)}, want: "no order"},
		"a lost one":                         {kind: kinds.Counter, calls: []history.Call{add(0, 5, 1, 1), lost(add(1, 5, 0, 0)), add(2, 5, 3, 3)}},
		"a lost one, and a loss":             {kind: kinds.Counter, calls: []history.Call{add(0, 5, 1, 1), lost(add(1, 5, 0, 0)), add(2, 20, 2, 9)}},
		"a loss declared":                    {kind: kinds.Counter, calls: []history.Call{add(0, 19, 1, 1), add(2, 19, 2, 2), add(4, 20, 1, 3), add(6, 21, 2, 4)}},
		"a loss not declared":                {kind: kinds.Counter, calls: []history.Call{add(0, 5, 1, 1), add(2, 5, 2, 2), add(4, 6, 1, 3)}, want: "no order"},
		"a copy that did not count":          {kind: kinds.Counter, calls: []history.Call{add(0, 5, 1, 1), add(2, 5, 2, 2), add(4, 20, 2, 2), add(6, 20, 3, 3)}},
		"tokens of a copy":                   {kind: kinds.Bucket, calls: []history.Call{check(0, 5, true), check(900, 20, false), check(11_000, 20, true), check(12_000, 20, true)}, want: "no order"},
		"one after the loss":                 {kind: kinds.Counter, calls: []history.Call{add(0, 20, 1, 1), add(2, 21, 1, 3)}, want: "no order"},
		"epochs fall":                        {kind: kinds.Counter, calls: []history.Call{add(0, 6, 1, 1), add(2, 5, 2, 2)}, want: "under the epoch 5"},
		"a bucket is filled":                 {kind: kinds.Bucket, calls: []history.Call{check(0, 5, true), check(900, 6, true)}, want: "no order"},
		"… by a loss":                        {kind: kinds.Bucket, calls: []history.Call{check(0, 5, true), check(900, 20, true)}},
		"what nobody heard of is of no life": {kind: kinds.Bucket, calls: []history.Call{lost(check(0, 5, true)), check(900, 20, true)}},
	} {
		j := NewJudge(clockDrift)
		j.losses["k"] = []uint64{0, 20}
		faults := j.judgeLocked(kinds.Record{Calls: map[string][]history.Call{c.kind.Name: c.calls}, Writes: map[string][]kinds.Write{"k": c.writes}})
		got := strings.Join(faults, "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: found %q, want %q", name, got, c.want)
		}
	}
}
