package ring

import "math/bits"

// Index finds the point that a position belongs to: the first one at or after
// it, around the end. It needs about one comparison.
type Index struct {
	points []uint64 // ascending
	// first[s] is the first point at or after the start of the s-th stretch of
	// the hash space. There are 2 to 4 stretches a point.
	first []int32
	shift int // of a position, to its stretch
}

// NewIndex returns the index of points in ascending order; there must be at
// least one and at most MaxPoints, and they must not change any more.
func NewIndex(points []uint64) Index {
	n := len(points)
	stretches := 1 << bits.Len(uint(2*n-1))
	x := Index{points: points, shift: 64 - bits.TrailingZeros(uint(stretches)), first: make([]int32, stretches)}
	p := 0
	for s := range stretches {
		for p < n && points[p] < uint64(s)<<x.shift {
			p++
		}
		x.first[s] = int32(p)
	}
	return x
}

// Find returns the index of the point that a position belongs to.
func (x *Index) Find(h uint64) int {
	i := int(x.first[h>>x.shift])
	for i < len(x.points) && x.points[i] < h {
		i++
	}
	if i == len(x.points) {
		return 0
	}
	return i
}
