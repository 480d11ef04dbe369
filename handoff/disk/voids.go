package disk

import (
	"cmp"
	"slices"
)

// voids says which entries about request ids are void: those before a stretch was discarded, of objects in it.
type voids struct {
	list  []void
	parts []void // in order and apart: of each part the last time
}

// void is one of the stretches, with both ends in it.
type void struct {
	first, last uint64
	at          place
}

// add takes in a stretch, as Batch.DeleteRange has it.
func (v *voids) add(after, upTo uint64, at place) {
	if first := after + 1; after == upTo {
		v.list = append(v.list, void{0, 1<<64 - 1, at})
	} else if first <= upTo {
		v.list = append(v.list, void{first, upTo, at})
	} else {
		v.list = append(v.list, void{0, upTo, at}, void{first, 1<<64 - 1, at})
	}
}

// prepare cuts what was added into parts.
func (v *voids) prepare() {
	// The last ones first: each takes what is left of its stretch.
	slices.SortFunc(v.list, func(a, b void) int { return -cmp.Or(cmp.Compare(a.at.round, b.at.round), cmp.Compare(a.at.n, b.at.n)) })
	for _, w := range v.list {
		v.parts = insert(v.parts, w)
	}
	v.list = nil
}

// insert adds what parts do not cover of a stretch.
func insert(parts []void, w void) []void {
	i, _ := slices.BinarySearchFunc(parts, w.first, func(p void, first uint64) int { return cmp.Compare(p.last, first) })
	for {
		if i == len(parts) || w.last < parts[i].first {
			return slices.Insert(parts, i, w)
		}
		p := parts[i]
		if w.first < p.first {
			parts = slices.Insert(parts, i, void{w.first, p.first - 1, w.at})
			i++
		}
		if w.last <= p.last {
			return parts
		}
		w.first = p.last + 1
		i++
	}
}

// is reports whether an entry about an object is void.
func (v *voids) is(hash uint64, at place) bool {
	i, _ := slices.BinarySearchFunc(v.parts, hash, func(p void, h uint64) int { return cmp.Compare(p.last, h) })
	return i < len(v.parts) && v.parts[i].first <= hash && at.before(v.parts[i].at)
}
