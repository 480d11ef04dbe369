package queue

import "fmt"

// Clone returns a copy that shares nothing with q but what requests refer to.
func (q *Queue[R]) Clone() Queue[R] {
	c := Queue[R]{Grace: q.Grace}
	for _, p := range q.All() {
		c.add(*p, false)
	}
	return c
}

// Valid returns which invariant the queue breaks, if any. It holds after every
// change, `last` being the moment of the last one of the machine; ask it of a queue
// that came from elsewhere, whose moments are in range.
func (q *Queue[R]) Valid(last int64) error {
	if len(q.Places) == 0 {
		return nil
	}
	seen := make(map[uint64]struct{}, q.Len())
	since := q.Places[0].Since
	for i, p := range q.All() {
		switch _, twice := seen[p.Ticket]; {
		case twice:
			return fmt.Errorf("ticket %d waits twice", p.Ticket)
		case p.Since < since || p.Since > last:
			return fmt.Errorf("place %d came before the one ahead of it, or after the last change", i+1)
		case p.GiveUp < p.Since || p.GiveUp-last > MaxWait:
			return fmt.Errorf("place %d gives up before it came, or too late", i+1)
		}
		seen[p.Ticket] = struct{}{}
		since = p.Since
	}
	return nil
}

// Keep sets whether a place is Kept. It reports whether there is one of the ticket.
func (q *Queue[R]) Keep(ticket uint64, kept bool) bool {
	p, in := q.find(ticket)
	if p == nil {
		return false
	}
	p.Kept = kept
	q.changed(in)
	return true
}

// Hasten has the first place give up at a moment, if it waits for longer.
func (q *Queue[R]) Hasten(until int64) {
	if p := &q.Places[0]; p.GiveUp > until {
		p.GiveUp = max(until, p.Since)
	}
}

// remove removes places that are gone, until `most` are in left.
func (q *Queue[R]) remove(now int64, left []Left, most int, only func(*segment[R]) bool, gone func(*Place[R]) bool) []Left {
	kept := 0
	q.filter(func(s *segment[R]) bool {
		if len(left) < most && only(s) {
			return true
		}
		kept += len(s.places)
		return false
	}, func(p *Place[R]) bool {
		if len(left) == most || !gone(p) {
			kept++
			return false
		}
		left = append(left, Left{Ticket: p.Ticket, Caller: p.Caller, Position: kept + 1, Waited: now - p.Since})
		return true
	})
	return left
}

// filter removes the places that are gone. Of the rest, it looks through the segments that only
// says.
func (q *Queue[R]) filter(only func(*segment[R]) bool, gone func(*Place[R]) bool) {
	kept := 0
	for i := range q.Places {
		p := &q.Places[i]
		if gone(p) {
			continue
		}
		if kept < i {
			q.Places[kept] = *p
		}
		kept++
	}
	if q.rest != nil {
		q.rest.sweep(only, gone)
	}
	if kept < len(q.Places) {
		q.truncate(kept)
	}
}

// Position returns that of a place among those that still wait, 0 if the ticket does not wait;
// 1 is next.
func (q *Queue[R]) Position(ticket uint64, now int64) int {
	position, _ := q.position(ticket, now)
	return position
}

// position returns that of a place among those that still wait.
func (q *Queue[R]) position(ticket uint64, now int64) (position int, found bool) {
	position = 1
	if r := q.rest; r != nil {
		if in := r.of[ticket]; in != nil {
			r.settle()
			position += q.waiting(q.Places, now)
			for _, s := range r.segments {
				switch {
				case s == in:
					return position + q.waiting(s.places[:s.index(ticket)], now), true
				case s.waits(now, q.Grace):
					position += len(s.places)
				default:
					position += q.waiting(s.places, now)
				}
			}
		}
	}
	if i := index(q.Places, ticket); i >= 0 {
		return position + q.waiting(q.Places[:i], now), true
	}
	return 0, false
}

func (q *Queue[R]) waiting(places []Place[R], now int64) (n int) {
	for i := range places {
		if now < q.until(&places[i]) {
			n++
		}
	}
	return n
}

// find returns a place to be changed, and the segment that it is in, nil if that is Places:
// changed is to be called after the change.
func (q *Queue[R]) find(ticket uint64) (p *Place[R], in *segment[R]) {
	if q.rest != nil {
		if s := q.rest.of[ticket]; s != nil {
			return &s.places[s.index(ticket)], s
		}
	}
	if i := index(q.Places, ticket); i >= 0 {
		return &q.Places[i], nil
	}
	return nil, nil
}

func (q *Queue[R]) changed(in *segment[R]) {
	if in != nil {
		q.rest.count(in)
	}
}

func index[R any](places []Place[R], ticket uint64) int {
	for i := range places {
		if places[i].Ticket == ticket {
			return i
		}
	}
	return -1
}

func (s *segment[R]) index(ticket uint64) int { return index(s.places, ticket) }

// last returns the last place, nil if nobody waits.
func (q *Queue[R]) last() *Place[R] {
	if r := q.rest; r != nil && r.n > 0 {
		s := r.segments[len(r.segments)-1]
		return &s.places[len(s.places)-1]
	}
	if n := len(q.Places); n > 0 {
		return &q.Places[n-1]
	}
	return nil
}

// truncate shortens Places and lets go of what is behind them.
func (q *Queue[R]) truncate(n int) {
	clear(q.Places[n:])
	q.Places = q.Places[:n]
	q.refill()
}
