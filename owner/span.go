package owner

import (
	"cmp"
	"math"
	"slices"
)

// Span is a stretch of positions: those after After up to and including UpTo, around the end; all of
// them if the two are equal.
type Span struct{ After, UpTo uint64 }

// stretch is a stretch that does not go around the end: first and last are in it.
type stretch struct{ first, last uint64 }

func (s stretch) span() Span { return Span{s.first - 1, s.last} }

// stretches returns what a shard has of spans: in order, and apart.
func (s *Store) stretches(spans []Span, shard int) (in []stretch) {
	of := stretch{0, math.MaxUint64}
	if len(s.shards) > 1 {
		of.first = uint64(shard) << s.shift
		of.last = of.first + (1<<s.shift - 1)
	}
	add := func(first, last uint64) {
		if first, last = max(first, of.first), min(last, of.last); first <= last {
			in = append(in, stretch{first, last})
		}
	}
	for _, p := range spans {
		switch {
		case p.After == p.UpTo:
			add(0, math.MaxUint64)
		case p.After < p.UpTo:
			add(p.After+1, p.UpTo)
		default:
			add(0, p.UpTo)
			//guard:span-wraps p.After < math.MaxUint64 -> false
			if p.After < math.MaxUint64 {
				add(p.After+1, math.MaxUint64)
			}
		}
	}
	return apart(in)
}

// apart puts stretches in order, and makes one of those that meet.
func apart(in []stretch) []stretch {
	slices.SortFunc(in, func(a, b stretch) int { return cmp.Compare(a.first, b.first) })
	n := 0
	for _, s := range in {
		if n > 0 && (in[n-1].last == math.MaxUint64 || s.first <= in[n-1].last+1) {
			in[n-1].last = max(in[n-1].last, s.last)
			continue
		}
		in[n] = s
		n++
	}
	return in[:n]
}

// within reports whether a position is in one of stretches that are in order and apart.
func within(in []stretch, h uint64) bool {
	i, _ := slices.BinarySearchFunc(in, h, func(s stretch, h uint64) int { return cmp.Compare(s.last, h) })
	return i < len(in) && in[i].first <= h
}
