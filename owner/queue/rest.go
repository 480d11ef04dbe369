package queue

import (
	"iter"
	"math"
	"slices"
)

// segmentLen is how many places stand side by side: what is looked through, or moved, for a
// place in the middle of a long queue. Tests have short ones.
var segmentLen = 64

// rest has the places of a long queue that stand behind Queue.Places: in segments, so that one
// that leaves moves few others, and no change looks at all of them.
type rest[R any] struct {
	segments []*segment[R]          // in order; none is empty
	of       map[uint64]*segment[R] // by ticket
	n        int                    // places
	room     int                    // … that memory is allocated for, the spare included
	away     int                    // places that are Away and that the grace ends
	giveUp   int64                  // the least of all, if known
	known    bool
	spare    []Place[R] // empty
}

type segment[R any] struct {
	places []Place[R]
	away   int
	giveUp int64 // the least of places
	stale  bool  // a place was handed out to be filled in: it is to be counted
}

// add puts a place at the end. If stale is set, the caller fills it in.
func (r *rest[R]) add(p Place[R], stale bool) *Place[R] {
	var s *segment[R]
	if n := len(r.segments); n > 0 && len(r.segments[n-1].places) < cap(r.segments[n-1].places) {
		s = r.segments[n-1]
	} else {
		s = &segment[R]{places: r.spare, giveUp: math.MaxInt64}
		if r.spare = nil; cap(s.places) == 0 {
			s.places = make([]Place[R], 0, segmentLen)
			r.room += segmentLen
		}
		r.segments = append(r.segments, s)
	}
	s.places = append(s.places, p)
	r.of[p.Ticket] = s
	r.n++
	s.giveUp = min(s.giveUp, p.GiveUp)
	r.giveUp = min(r.giveUp, p.GiveUp)
	if p.Away && !p.Kept {
		s.away++
		r.away++
	}
	if stale {
		s.stale, r.known = true, false
	}
	return &s.places[len(s.places)-1]
}

// count makes what follows from the places of a segment so.
func (r *rest[R]) count(s *segment[R]) {
	was, away := s.giveUp, s.away
	s.stale, s.away, s.giveUp = false, 0, math.MaxInt64
	for i := range s.places {
		p := &s.places[i]
		s.giveUp = min(s.giveUp, p.GiveUp)
		if p.Away && !p.Kept {
			s.away++
		}
	}
	r.away += s.away - away
	switch {
	case s.giveUp <= r.giveUp:
		r.giveUp = s.giveUp
	case was == r.giveUp:
		r.known = false
	}
}

// settle counts the segments that were handed out to be filled in, and finds the least moment at
// which a place gives up.
func (r *rest[R]) settle() {
	if r.known {
		return
	}
	r.giveUp = math.MaxInt64
	for _, s := range r.segments {
		if s.stale {
			r.count(s)
		}
		r.giveUp = min(r.giveUp, s.giveUp)
	}
	r.known = true
}

// next returns the next moment at which the time of a place is over, under a grace.
func (r *rest[R]) next(grace int64) int64 {
	r.settle()
	if r.away > 0 && grace != 0 {
		return min(r.giveUp, grace)
	}
	return r.giveUp
}

// waits reports whether no time of a segment is over.
func (s *segment[R]) waits(now, grace int64) bool {
	return now < s.giveUp && (s.away == 0 || grace == 0 || now < grace)
}

// take removes the first segment and returns its places.
func (r *rest[R]) take() []Place[R] {
	s := r.segments[0]
	r.segments = slices.Delete(r.segments, 0, 1)
	for i := range s.places {
		delete(r.of, s.places[i].Ticket)
	}
	r.n -= len(s.places)
	r.room -= cap(s.places)
	r.away -= s.away
	r.known = r.known && s.giveUp != r.giveUp
	return s.places
}

// keep keeps the room of places that are no longer used for the next segment.
func (r *rest[R]) keep(places []Place[R]) {
	if cap(r.spare) == 0 && cap(places) == segmentLen {
		r.spare = places[:0]
		r.room += cap(places)
	}
}

// remove takes a place out of a segment.
func (r *rest[R]) remove(s *segment[R], i int) {
	delete(r.of, s.places[i].Ticket)
	s.places = slices.Delete(s.places, i, i+1)
	r.n--
	r.count(s)
	if n := len(s.places); n <= segmentLen/4 {
		at := slices.Index(r.segments, s)
		switch {
		case n == 0:
			r.drop(at)
		case at > 0 && r.merge(r.segments[at-1], s):
			r.drop(at)
		case at+1 < len(r.segments) && r.merge(s, r.segments[at+1]):
			r.drop(at + 1)
		}
	}
}

// drop removes a segment that has become empty.
func (r *rest[R]) drop(at int) {
	s := r.segments[at]
	r.segments = slices.Delete(r.segments, at, at+1)
	r.room -= cap(s.places)
	r.keep(s.places)
}

// merge moves the places of a segment to the one before it, if they are so few that both
// together leave half a segment free: else the room of many that have left would stay.
func (r *rest[R]) merge(to, from *segment[R]) bool {
	if len(to.places)+len(from.places) > segmentLen/2 {
		return false
	}
	r.away -= from.away // they are counted again
	for i := range from.places {
		r.of[from.places[i].Ticket] = to
	}
	to.places = append(to.places, from.places...)
	clear(from.places)
	from.places, from.away = from.places[:0], 0
	r.count(to)
	return true
}

// sweep removes the places that gone reports, from the first on, as long as more allows it. Where
// only says so, a segment is looked through.
func (r *rest[R]) sweep(only func(*segment[R]) bool, gone func(*Place[R]) bool) {
	r.settle()
	kept := r.segments[:0]
	for _, s := range r.segments {
		if only(s) {
			r.filter(s, gone)
		}
		switch n := len(kept); {
		case len(s.places) == 0:
			r.room -= cap(s.places)
			r.keep(s.places)
		case len(s.places) <= segmentLen/4 && n > 0 && r.merge(kept[n-1], s):
			r.room -= cap(s.places)
			r.keep(s.places)
		default:
			kept = append(kept, s)
		}
	}
	clear(r.segments[len(kept):])
	r.segments = kept
}

func (r *rest[R]) filter(s *segment[R], gone func(*Place[R]) bool) {
	kept := 0
	for i := range s.places {
		p := &s.places[i]
		if gone(p) {
			delete(r.of, p.Ticket)
			continue
		}
		if kept < i {
			s.places[kept] = *p
		}
		kept++
	}
	r.n -= len(s.places) - kept
	clear(s.places[kept:])
	s.places = s.places[:kept]
	r.count(s)
}

// segments returns all places, some at a time, in order.
func (q *Queue[R]) segments() iter.Seq[[]Place[R]] {
	return func(yield func([]Place[R]) bool) {
		if !yield(q.Places) || q.rest == nil {
			return
		}
		for _, s := range q.rest.segments {
			if !yield(s.places) {
				return
			}
		}
	}
}
