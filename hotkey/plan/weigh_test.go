package plan

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestEven(t *testing.T) {
	for n := 1; n <= MaxParts; n++ {
		weights := Even(n)
		if s := sum(weights); s != FullWeight || slices.Max(weights)-slices.Min(weights) > 1 {
			t.Errorf("%d parts: %v, which are %d", n, weights, s)
		}
	}
}

func sum(weights []uint32) (s uint64) {
	for _, w := range weights {
		s += uint64(w)
	}
	return s
}

func TestWeigh(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		why      string
		shares   []Share
		cut, new []uint32 // nil: no change
	}{
		{"alike", []Share{{32768, 100, 0}, {32768, 100, 0}}, nil, nil},
		{"nobody asks", []Share{{10000, 0, 0}, {55536, 0, 0}}, nil, nil},
		{"no numbers", []Share{{10000, nan, nan}, {55536, -1, 5}}, nil, nil},
		{"a fifth is not too much", []Share{{32768, 119, 0}, {32768, 81, 0}}, nil, nil},
		{"more than that", []Share{{32768, 121, 0}, {32768, 79, 0}}, []uint32{32768, 29327}, []uint32{36209, 29327}},
		{"half of the way", []Share{{32768, 300, 0}, {32768, 100, 0}}, []uint32{32768, 24576}, []uint32{40960, 24576}},
		{"refused", []Share{{32768, 100, 100}, {32768, 100, 0}}, []uint32{32768, 27307}, []uint32{38229, 27307}},
		{"refused as asked at most", []Share{{32768, 100, 1e9}, {32768, 100, 0}}, []uint32{32768, 27307}, []uint32{38229, 27307}},
		{"all alike refused", []Share{{32768, 900, 800}, {32768, 900, 800}}, nil, nil},
		{"not below an eighth of an even share", []Share{{61440, 1, 0}, {4096, 0, 0}}, nil, nil},
		{"towards that", []Share{{32768, 1, 0}, {32768, 0, 0}}, []uint32{32768, 18432}, []uint32{47104, 18432}},
		{"only cut, and nobody asks", []Share{{32768, 0, 0}, {16384, 0, 0}}, []uint32{32768, 16384}, []uint32{43691, 21845}},
		{"only cut, and asked alike", []Share{{32768, 7, 0}, {24576, 7, 0}}, []uint32{32768, 24576}, []uint32{34953, 30583}},
		{"alone", []Share{{FullWeight, 7, 7}}, nil, nil},
		{"infinitely", []Share{{32768, math.Inf(1), 0}, {32768, 1, 0}}, []uint32{32768, 18432}, []uint32{47104, 18432}},
	} {
		r, ok := Weigh(c.shares)
		if ok != (c.new != nil) || !slices.Equal(r.Cut, c.cut) || !slices.Equal(r.New, c.new) {
			t.Errorf("%s: %v %v, want %v %v", c.why, r.Cut, r.New, c.cut, c.new)
		}
	}
}

func draw(t *rapid.T) []Share {
	shares := make([]Share, rapid.IntRange(1, MaxParts).Draw(t, "parts"))
	rate := rapid.OneOf(rapid.Float64Range(0, 10_000), rapid.SampledFrom([]float64{0, 1, 1000, 1e-300, 1e300, math.Inf(1), math.NaN(), -1}))
	left := uint32(FullWeight)
	for i := range shares {
		shares[i] = Share{rapid.Uint32Range(0, left).Draw(t, "weight"), rate.Draw(t, "asked"), rate.Draw(t, "refused")}
		left -= shares[i].Weight
	}
	if rapid.Bool().Draw(t, "whole") {
		shares[len(shares)-1].Weight += left
	}
	return shares
}

// Whatever parts have and are asked for: the new weights are the whole and none is too
// small, a cut raises none, and the same shares give the same again.
func TestWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := draw(t)
		r, ok := Weigh(shares)
		if again, too := Weigh(slices.Clone(shares)); too != ok || !slices.Equal(again.New, r.New) || !slices.Equal(again.Cut, r.Cut) {
			t.Fatalf("%v and %v of the same", r, again)
		}
		old := make([]uint32, len(shares))
		for i, s := range shares {
			old[i] = s.Weight
		}
		if !ok {
			if s := sum(old); s != FullWeight {
				t.Fatalf("weights that are %d stay", s)
			}
			return
		}
		if s := sum(r.New); s != FullWeight || len(r.New) != len(shares) {
			t.Fatalf("%d weights, which are %d", len(r.New), s)
		}
		for i, w := range r.New {
			if w < FullWeight/uint32(8*len(shares)) {
				t.Fatalf("part %d gets %d of %d", i, w, len(shares))
			}
			if r.Cut[i] != min(old[i], w) {
				t.Fatalf("part %d has %d, is to have %d, and is cut to %d", i, old[i], w, r.Cut[i])
			}
		}
	})
}

// What is asked for all the time is followed in few steps, and then nothing changes.
func TestWeightsSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := draw(t)
		steps := 0
		for ; ; steps++ {
			r, ok := Weigh(shares)
			if !ok {
				break
			}
			for i := range shares {
				shares[i].Weight = r.New[i]
			}
			if steps > 20 {
				t.Fatalf("still changing: %v", shares)
			}
		}
		all := 0.0
		for _, s := range shares {
			all += s.demand()
		}
		for i, s := range shares { // within a fifth of the weight, or less than asked for because of the least weights
			share := s.demand() / all * FullWeight
			if all > 0 && share > float64(s.Weight)*1.2+1 && share/float64(s.Weight) > 1.2*8/7+0.01 {
				t.Fatalf("part %d is asked for %.0f of the whole, and has %d", i, share, s.Weight)
			}
		}
	})
}

// A load that refuses because weights do not fit ends with a part of it refused everywhere
// or nowhere: weights go where the demand is, in few steps, although refusals count twice
// and change with the weights.
func TestRefusalsSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(10, 10_000).Draw(t, "rate") // of the whole limit, tokens a second
		shares := make([]Share, rapid.IntRange(2, 12).Draw(t, "parts"))
		weights := Even(len(shares))
		for i := range shares {
			shares[i].Asked = rapid.Float64Range(rate/50, rate).Draw(t, "asked")
		}
		for step := 0; ; step++ {
			for i := range shares {
				shares[i].Weight = weights[i]
				shares[i].Refused = max(0, shares[i].Asked-rate*float64(weights[i])/FullWeight)
			}
			r, ok := Weigh(shares)
			if !ok {
				return
			}
			if weights = r.New; step > 20 {
				t.Fatalf("still changing: %v", shares)
			}
		}
	})
}
