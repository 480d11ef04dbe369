package counter

import (
	"errors"
	"math"
	"testing"

	"github.com/keystead/keystead/internal/failure"
)

func at(value int64) State { return State{Value: value, Version: 7, At: 100} }

func TestAdd(t *testing.T) {
	bounds := func(delta, low, high int64) AddOp {
		return AddOp{Delta: delta, Min: low, Max: high, HasMin: true, HasMax: true}
	}
	ttl := State{Value: 5, Version: 7, At: 100, IdleTTL: MinIdleTTL}
	tests := []struct {
		name    string
		state   State
		op      AddOp
		now     int64
		want    State
		refusal Refusal
		changed bool
	}{
		{name: "to nothing", state: State{}, op: AddOp{Delta: 3}, now: 200, want: State{3, 8, 200, 0}, changed: true},
		{name: "a negative delta", state: at(5), op: AddOp{Delta: -7}, now: 200, want: State{-2, 8, 200, 0}, changed: true},
		{name: "up to the bound", state: at(5), op: bounds(5, 0, 10), now: 200, want: State{10, 8, 200, 0}, changed: true},
		{name: "over the bound", state: at(5), op: bounds(6, 0, 10), now: 200, want: at(5), refusal: AboveMax},
		{name: "down to the bound", state: at(5), op: bounds(-5, 0, 10), now: 200, want: State{0, 8, 200, 0}, changed: true},
		{name: "under the bound", state: at(5), op: bounds(-6, 0, 10), now: 200, want: at(5), refusal: BelowMin},
		{name: "back from outside, above", state: at(50), op: bounds(-1, 0, 10), now: 200, want: State{49, 8, 200, 0}, changed: true},
		{name: "back from outside, below", state: at(-50), op: bounds(1, 0, 10), now: 200, want: State{-49, 8, 200, 0}, changed: true},
		{name: "overflow", state: at(math.MaxInt64), op: AddOp{Delta: 1}, now: 200, want: at(math.MaxInt64), refusal: Overflow},
		{name: "underflow", state: at(math.MinInt64), op: AddOp{Delta: -1}, now: 200, want: at(math.MinInt64), refusal: Overflow},
		{name: "the least delta to zero", state: at(0), op: AddOp{Delta: math.MinInt64}, now: 200, want: State{math.MinInt64, 8, 200, 0}, changed: true},
		{name: "the least delta to minus one", state: at(-1), op: AddOp{Delta: math.MinInt64}, now: 200, want: at(-1), refusal: Overflow},
		{name: "overflow past a bound", state: at(math.MaxInt64), op: bounds(1, 0, 10), now: 200, want: at(math.MaxInt64), refusal: AboveMax},
		{name: "zero to nothing", state: State{}, op: AddOp{IdleTTL: MinIdleTTL}, now: 200, want: State{}},
		{name: "zero without a TTL", state: at(5), op: AddOp{}, now: 200, want: at(5)},
		{name: "zero keeps from expiring", state: ttl, op: AddOp{IdleTTL: MinIdleTTL}, now: 200, want: State{5, 8, 200, MinIdleTTL}, changed: true},
		{name: "an add takes the TTL away", state: ttl, op: AddOp{Delta: 1}, now: 200, want: State{6, 8, 200, 0}, changed: true},
		{name: "to one that expired", state: ttl, op: AddOp{Delta: 1}, now: 100 + MinIdleTTL, want: State{1, 8, 100 + MinIdleTTL, 0}, changed: true},
		{name: "a delta down past the least, with a min", state: at(math.MinInt64), op: bounds(-1, 0, 10), now: 200, want: at(math.MinInt64), refusal: BelowMin},
		{name: "overflow with a min only", state: at(math.MaxInt64), op: AddOp{Delta: 1, HasMin: true}, now: 200, want: at(math.MaxInt64), refusal: Overflow},
		{name: "underflow with a max only", state: at(math.MinInt64), op: AddOp{Delta: -1, HasMax: true}, now: 200, want: at(math.MinInt64), refusal: Overflow},
		{name: "further outside, above", state: at(50), op: bounds(1, 0, 10), now: 200, want: at(50), refusal: AboveMax},
		{name: "further outside, below", state: at(-50), op: bounds(-1, 0, 10), now: 200, want: at(-50), refusal: BelowMin},
		{name: "through the bounds and out", state: at(50), op: bounds(-60, 0, 10), now: 200, want: at(50), refusal: BelowMin},
		{name: "zero outside the bounds", state: at(50), op: bounds(0, 0, 10), now: 200, want: at(50)},
		{name: "zero gives a TTL", state: at(5), op: AddOp{IdleTTL: MinIdleTTL}, now: 200, want: State{5, 8, 200, MinIdleTTL}, changed: true},
		{name: "zero takes the TTL away", state: ttl, op: AddOp{}, now: 200, want: State{5, 8, 200, 0}, changed: true},
		{name: "zero at the moment of the last change", state: ttl, op: AddOp{IdleTTL: MinIdleTTL}, now: 100, want: ttl},
		{name: "zero, and a clock that went back", state: ttl, op: AddOp{IdleTTL: MinIdleTTL}, now: 99, want: ttl},
		{name: "zero to one that expired", state: ttl, op: AddOp{IdleTTL: MinIdleTTL}, now: 100 + MinIdleTTL, want: State{}},
		{name: "over the bound of one that expired", state: ttl, op: bounds(11, 0, 10), now: 100 + MinIdleTTL, want: State{}, refusal: AboveMax},
		{name: "a clock that went back", state: ttl, op: AddOp{Delta: 1, IdleTTL: MinIdleTTL}, now: 40, want: State{6, 8, 100, MinIdleTTL}, changed: true},
		{name: "new, at a negative time", state: State{}, op: AddOp{Delta: 1}, now: -40, want: State{1, 8, -40, 0}, changed: true},
		{name: "to one that expires next", state: ttl, op: AddOp{Delta: 1}, now: 99 + MinIdleTTL, want: State{6, 8, 99 + MinIdleTTL, 0}, changed: true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			next, res, changed := Add(tc.state, tc.op, 8, tc.now)
			want := AddResult{tc.refusal == None, tc.want.Value, tc.want.Version, tc.refusal}
			if next != tc.want || res != want || changed != tc.changed {
				t.Errorf("got %+v %+v %v\nwant %+v %+v %v", next, res, changed, tc.want, want, tc.changed)
			}
		})
	}
}

func TestCompareAndSet(t *testing.T) {
	ttl := State{Value: 5, Version: 7, At: 100, IdleTTL: MinIdleTTL}
	tests := []struct {
		name  string
		state State
		op    CompareAndSetOp
		now   int64
		want  State
		done  bool
	}{
		{name: "create", op: CompareAndSetOp{Value: 3}, now: 200, want: State{3, 8, 200, 0}, done: true},
		{name: "create with a TTL", op: CompareAndSetOp{Value: 3, IdleTTL: MinIdleTTL}, now: 200, want: State{3, 8, 200, MinIdleTTL}, done: true},
		{name: "create what exists", state: at(5), op: CompareAndSetOp{Value: 3}, now: 200, want: at(5)},
		{name: "set what does not exist", op: CompareAndSetOp{Value: 3, Version: 7}, now: 200, want: State{}},
		{name: "set", state: at(5), op: CompareAndSetOp{Value: math.MinInt64, Version: 7}, now: 200, want: State{math.MinInt64, 8, 200, 0}, done: true},
		{name: "set to the same value", state: at(5), op: CompareAndSetOp{Value: 5, Version: 7}, now: 200, want: State{5, 8, 200, 0}, done: true},
		{name: "an older version", state: at(5), op: CompareAndSetOp{Value: 3, Version: 6}, now: 200, want: at(5)},
		{name: "the TTL goes away", state: ttl, op: CompareAndSetOp{Value: 3, Version: 7}, now: 200, want: State{3, 8, 200, 0}, done: true},
		{name: "expired: its version is gone", state: ttl, op: CompareAndSetOp{Value: 3, Version: 7}, now: 100 + MinIdleTTL, want: State{}},
		{name: "expired: create", state: ttl, op: CompareAndSetOp{Value: 3}, now: 100 + MinIdleTTL, want: State{3, 8, 100 + MinIdleTTL, 0}, done: true},
		{name: "a clock that went back", state: ttl, op: CompareAndSetOp{Value: 3, Version: 7, IdleTTL: MinIdleTTL}, now: 40, want: State{3, 8, 100, MinIdleTTL}, done: true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			next, res, changed := CompareAndSet(tc.state, tc.op, 8, tc.now)
			if want := (CompareAndSetResult{tc.done, tc.want.Value, tc.want.Version}); next != tc.want || res != want || changed != tc.done {
				t.Errorf("got %+v %+v %v\nwant %+v %+v", next, res, changed, tc.want, want)
			}
		})
	}
}

func TestReset(t *testing.T) {
	ttl := State{Value: 5, Version: 7, At: 100, IdleTTL: MinIdleTTL}
	tests := []struct {
		name    string
		state   State
		now     int64
		want    State
		res     ResetResult
		changed bool
	}{
		{name: "nothing", now: 200},
		{name: "a counter", state: at(5), now: 200, want: State{0, 8, 200, 0}, res: ResetResult{5, 8}, changed: true},
		{name: "one at 0", state: at(0), now: 200, want: State{0, 8, 200, 0}, res: ResetResult{0, 8}, changed: true},
		{name: "keeps the TTL", state: ttl, now: 200, want: State{0, 8, 200, MinIdleTTL}, res: ResetResult{5, 8}, changed: true},
		{name: "expired", state: ttl, now: 100 + MinIdleTTL},
		{name: "a clock that went back", state: ttl, now: 40, want: State{0, 8, 100, MinIdleTTL}, res: ResetResult{5, 8}, changed: true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			next, res, changed := Reset(tc.state, 8, tc.now)
			if next != tc.want || res != tc.res || changed != tc.changed {
				t.Errorf("got %+v %+v %v\nwant %+v %+v %v", next, res, changed, tc.want, tc.res, tc.changed)
			}
		})
	}
}

func TestExpired(t *testing.T) {
	tests := []struct {
		name  string
		state State
		now   int64
		want  bool
	}{
		{name: "nothing", now: math.MaxInt64},
		{name: "no TTL", state: at(5), now: math.MaxInt64},
		{name: "just before", state: State{5, 7, 100, MinIdleTTL}, now: 99 + MinIdleTTL},
		{name: "at the moment", state: State{5, 7, 100, MinIdleTTL}, now: 100 + MinIdleTTL, want: true},
		{name: "a clock that went back", state: State{5, 7, 100, MinIdleTTL}, now: math.MinInt64},
		{name: "an end beyond time", state: State{5, 7, math.MaxInt64 - 5, MaxIdleTTL}, now: math.MaxInt64},
		{name: "more than MaxInt64 later", state: State{5, 7, math.MinInt64, MaxIdleTTL}, now: math.MaxInt64, want: true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			want := tc.state
			if tc.want {
				want = State{}
			}
			value, version := Get(tc.state, tc.now)
			if tc.state.Expired(tc.now) != tc.want || tc.state.Live(tc.now) != want || value != want.Value || version != want.Version {
				t.Errorf("expired %v, reads %d at version %d", tc.state.Expired(tc.now), value, version)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		err   error
		field string
	}{
		{err: AddOp{Min: 2, Max: 1, HasMin: true, HasMax: true}.Validate(), field: "min"},
		{err: AddOp{Min: 2, Max: 1, HasMin: true}.Validate()},
		{err: AddOp{Min: 1, Max: 1, HasMin: true, HasMax: true}.Validate()},
		{err: AddOp{IdleTTL: MinIdleTTL}.Validate()},
		{err: CompareAndSetOp{IdleTTL: -1}.Validate(), field: "idle_ttl_ns"},
		{err: AddOp{IdleTTL: -1}.Validate(), field: "idle_ttl_ns"},
		{err: AddOp{IdleTTL: MinIdleTTL - 1}.Validate(), field: "idle_ttl_ns"},
		{err: CompareAndSetOp{IdleTTL: MaxIdleTTL + 1}.Validate(), field: "idle_ttl_ns"},
		{err: CompareAndSetOp{IdleTTL: MaxIdleTTL}.Validate()},
	}
	for i, tc := range tests {
		var fe *failure.Error
		if errors.As(tc.err, &fe); (fe == nil) != (tc.field == "") || fe != nil && fe.Field != tc.field {
			t.Errorf("%d: %v, want field %q", i, tc.err, tc.field)
		}
	}
}

func TestAllocatesNothing(t *testing.T) {
	var s State
	var now int64
	add := AddOp{Delta: 1, Max: 3, HasMax: true, IdleTTL: MinIdleTTL}
	if n := testing.AllocsPerRun(1000, func() {
		now += MinIdleTTL / 4
		set := CompareAndSetOp{Value: 2, Version: s.Version}
		if add.Validate() != nil || set.Validate() != nil {
			t.Fatal("not valid")
		}
		s, _, _ = Add(s, add, s.Version+1, now)
		s, _, _ = Add(s, AddOp{Delta: 5, HasMax: true}, s.Version+1, now) // refused
		s, _, _ = CompareAndSet(s, set, s.Version+1, now)
		s, _, _ = Reset(s, s.Version+1, now)
		_, _ = Get(s, now)
	}); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	benchmarks := []struct {
		name string
		op   AddOp
	}{
		{name: "plain", op: AddOp{Delta: 1}},
		{name: "bounded, with a TTL", op: AddOp{Delta: 1, Max: math.MaxInt64, HasMin: true, HasMax: true, IdleTTL: MaxIdleTTL}},
		{name: "refused", op: AddOp{Delta: 1, HasMax: true}},
	}
	for _, bm := range benchmarks {
		b.Run(bm.name, func(b *testing.B) {
			var s State
			var now int64
			b.ReportAllocs()
			for b.Loop() {
				now++
				s, _, _ = Add(s, bm.op, s.Version+1, now)
			}
		})
	}
}

func BenchmarkCompareAndSet(b *testing.B) {
	var s State
	b.ReportAllocs()
	for b.Loop() {
		s, _, _ = CompareAndSet(s, CompareAndSetOp{Value: 5, Version: s.Version}, s.Version+1, 5)
	}
}

func BenchmarkReset(b *testing.B) {
	s := at(5)
	b.ReportAllocs()
	for b.Loop() {
		s, _, _ = Reset(s, s.Version+1, 200)
	}
}
