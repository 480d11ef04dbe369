package limit

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// What is spent goes on by another rate as after a check of it that was refused.
func TestRepaceIsARefusedCheck(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		algorithm := []Algorithm{TokenBucket, FixedWindow, SlidingWindow}[rng.IntN(3)]
		rate := func() Params {
			return Params{Algorithm: algorithm, Limit: 1 + rng.Uint64N(50), Period: []int64{MinPeriod, 10_000, 77_777}[rng.IntN(3)]}
		}
		var s State
		var marks []Mark
		at, p := int64(0), rate()
		for range rng.IntN(6) {
			s, marks = s.Take(p, 1+rng.Uint64N(30), marks, at, 0)
			at += rng.Int64N(30_000)
		}
		to := Op{Params: rate(), Cost: 2 * MaxLimit}
		var want State
		var wantMarks []Mark
		var changed bool
		if to.Slides(&s) {
			want, wantMarks, _, changed = Slide(s, slices.Clone(marks), to, at)
		} else {
			want, _, changed = Apply(s, to, at)
		}
		got, gotMarks := s.Repace(to.Rate(), slices.Clone(marks), at, 0, 0)
		if !changed {
			want, wantMarks = s, marks
		}
		if want.Spent == 2*MaxLimit || s.Used(slices.Clone(marks), at) == 0 {
			if got.Used(gotMarks, at) != 0 {
				t.Fatalf("%+v becomes %+v", s, got)
			}
			continue
		}
		if got != want || len(gotMarks) > 0 && !slices.Equal(gotMarks, wantMarks) {
			t.Fatalf("%+v %v by %+v at %d becomes %+v %v, want %+v %v", s, marks, to.Rate(), at, got, gotMarks, want, wantMarks)
		}
	}
}

// A part goes on by its share of the rate, and by the lower of its weights until then.
func TestRepaceOfAPart(t *testing.T) {
	s := State{Weight: FullWeight / 2, Spent: 100, Limit: 10, Period: 2 * MinPeriod}
	got, _ := s.Repace(Rate{Limit: 1, Period: MinPeriod}, nil, 4*MinPeriod, 0, 0)
	if want := (State{Weight: FullWeight / 2, At: 4 * MinPeriod, Spent: 80, Limit: 1, Period: 2 * MinPeriod}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	got, _ = s.Repace(Rate{Limit: 1, Period: MinPeriod}, nil, 4*MinPeriod, 0, FullWeight/4)
	if want := (State{Weight: FullWeight / 2, At: 4 * MinPeriod, Spent: 90, Limit: 1, Period: 2 * MinPeriod}); got != want {
		t.Errorf("with a lower weight: %+v, want %+v", got, want)
	}
}
