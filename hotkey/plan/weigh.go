package plan

import (
	"cmp"
	"math"
	"slices"
)

const (
	// FullWeight is the weight of all parts of an object together.
	FullWeight = 1 << 16
	// leastShare is how much of an even share the weight of a part is at least, one in so
	// many: nobody asks a part that refuses everything, and so it would never get more.
	leastShare = 8
	// offBy is how far a weight may be from what is wanted, one in so many of it, before
	// weights are changed: a cut takes tokens away, and a change is agreed on twice.
	offBy = 5
	// smoothing is how much of the way to what is wanted a change goes, one in so many: what
	// parts are asked for goes up and down.
	smoothing = 2
)

// Share is a part of a limit as it was lately.
type Share struct {
	Weight uint32
	// Asked is what the part was asked for, in tokens a second, and Refused how much of that
	// it refused. What is below 0 or no number counts as 0, and Refused as Asked at most.
	Asked, Refused float64
}

// Even returns the weights of n parts that begin, which sum up to [FullWeight]. n is 1 to [MaxParts].
func Even(n int) []uint32 {
	weights := make([]uint32, n)
	for i := range weights {
		weights[i] = uint32(FullWeight*(i+1)/n - FullWeight*i/n)
	}
	return weights
}

// Reweigh is a change of weights. No weight is raised before all owners whose weight was
// cut go by that, so it takes two steps.
type Reweigh struct {
	Cut []uint32 // the lower one of old and new, part by part; as the old ones if there is nothing to cut
	New []uint32 // they sum up to FullWeight
}

// Weigh finds weights in proportion to what the parts are asked for, none below
// [FullWeight] ÷ (8 × number of parts). What was refused counts twice: it is what another
// weight can mend. A change goes half of the way, and false is returned, with no change,
// if no weight is off by more than a fifth. Weights that do not sum up to FullWeight, because
// somebody did not get further than the cut, are changed in any case.
//
// Shares are 1 to [MaxParts], and their weights sum up to FullWeight at most. The result
// depends on them alone; what they were asked for should be of the time since weights
// were changed last.
func Weigh(shares []Share) (Reweigh, bool) {
	demands, old := make([]float64, len(shares)), make([]float64, len(shares))
	sum, all := uint64(0), 0.0
	for i, s := range shares {
		demands[i], old[i] = s.demand(), float64(s.Weight)
		sum += uint64(s.Weight)
		all += demands[i]
	}
	aim := old // nobody asks: what there was, made whole
	if all > 0 {
		aim = proportional(demands)
	}
	off := sum != FullWeight
	for i := range aim {
		off = off || math.Abs(aim[i]-old[i])*offBy > old[i]
	}
	if !off {
		return Reweigh{}, false
	}
	mixed := make([]float64, len(aim))
	for i := range aim {
		mixed[i] = old[i] + (aim[i]-old[i])/smoothing
	}
	r := Reweigh{Cut: make([]uint32, len(shares)), New: rounded(proportional(mixed))}
	for i, s := range shares {
		r.Cut[i] = min(s.Weight, r.New[i])
	}
	return r, true
}

// demand is at most 1e15 tokens a second, so that sums are exact enough.
func (s Share) demand() float64 {
	positive := func(x float64) float64 {
		if x > 0 { // not if it is no number
			return min(x, 1e15)
		}
		return 0
	}
	asked := positive(s.Asked)
	return asked + min(positive(s.Refused), asked)
}

// least returns the lowest weight of one of n parts.
func least(n int) float64 { return float64(FullWeight / (leastShare * n)) }

// proportional divides FullWeight in proportion to demands, but for parts that would get less
// than the least, which get that. Where there are no demands, parts are even.
func proportional(demands []float64) []float64 {
	n := len(demands)
	weights := make([]float64, n)
	floor := least(n)
	lowest := make([]int, n) // the parts, those with the lowest demand first
	left, all := float64(FullWeight), 0.0
	for i, d := range demands {
		lowest[i] = i
		all += d
	}
	slices.SortStableFunc(lowest, func(a, b int) int { return cmp.Compare(demands[a], demands[b]) })
	for k, i := range lowest {
		share := left / float64(n-k)
		if all > 0 {
			share = left * (demands[i] / all)
		}
		weights[i] = max(share, floor)
		left -= weights[i]
		all -= demands[i]
	}
	return weights
}

// rounded turns weights that sum up to about FullWeight into whole numbers that sum up to just
// that: each is rounded down, and what is left goes to those that lost most by it.
func rounded(weights []float64) []uint32 {
	down, order := make([]uint32, len(weights)), make([]int, len(weights))
	left := FullWeight
	for i, w := range weights {
		down[i], order[i] = uint32(w), i
		left -= int(down[i])
	}
	lost := func(i int) float64 { return weights[i] - float64(down[i]) }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(lost(b), lost(a)) })
	for k := 0; left > 0; k++ {
		down[order[k%len(order)]]++
		left--
	}
	for ; left < 0; left++ { // sums of floats may be a little off
		down[slices.Index(down, slices.Max(down))]--
	}
	return down
}
