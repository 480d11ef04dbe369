package queue

import (
	"fmt"
	"math"
	"slices"

	"github.com/keystead/keystead/owner/reqid"
)

// Bounds, with their reasons. Times are in nanoseconds.
const (
	MaxWait = 86_400_000_000_000 // 24 h: a caller that waits for longer should ask again

	// keepRoom is the room, in places, that an empty queue keeps: enough that an
	// object which two or three contend for does not allocate at every handover.
	keepRoom = 8

	// moveAll is the length up to which a queue is moved at each Pop: that costs less
	// than to keep account of where it begins.
	moveAll = 16
)

// Caller is the request that has a place.
type Caller struct {
	ID    reqid.ID // not Given: nobody can come back to the place
	Print uint32   // the fingerprint of the request
}

// Verdict is what an attempt may do with the place of a Caller.
type Verdict uint8

const (
	Newer  Verdict = iota // it is a later attempt: it takes the place over
	Older                 // a later attempt of the same request has the place already
	Reused                // it is another request under the same id
)

// Judge compares an attempt under the id of c with c. away reports whether c has
// left its place. Any attempt may then take the place over.
func (c *Caller) Judge(attempt *Caller, away bool) Verdict {
	switch {
	case c.Print != attempt.Print:
		return Reused
	//guard:older-attempt
	case !away && attempt.ID.Age < c.ID.Age:
		return Older
	}
	return Newer
}

// Place is a place in a queue. R is what its caller asks for.
type Place[R any] struct {
	Ticket  uint64 // chosen by the machine's caller; unique in the queue
	Caller  Caller
	Request R
	Since   int64 // moment at which the caller came
	GiveUp  int64 // moment from which it no longer waits
	Away    bool  // its caller is not here: it is served nothing until Supersede
}

// Queue holds places, the next one first. The zero value is empty.
type Queue[R any] struct {
	// Invariant: the Since of places never fall. Tickets differ.
	Places []Place[R]

	// Grace is the moment from which places that are Away are over, all at once;
	// 0 = not before their GiveUp.
	Grace int64

	// array is the array that Places is the end of, nil if it is all of it: a long queue
	// is not moved at each Pop. What is in front of Places is zero.
	array []Place[R]
}

// Left is a place whose time was over.
type Left struct {
	Ticket   uint64
	Caller   Caller
	Position int   // among those that still waited; 1 is next
	Waited   int64 // ns in the queue
}

// Len returns the number of places, those included whose time is over.
func (q *Queue[R]) Len() int { return len(q.Places) }

// Seat returns the ticket and the caller of the place at index i.
func (q *Queue[R]) Seat(i int) (ticket uint64, caller *Caller) {
	return q.Places[i].Ticket, &q.Places[i].Caller
}

// Index returns that of a place, or -1.
func (q *Queue[R]) Index(ticket uint64) int {
	for i := range q.Places {
		if q.Places[i].Ticket == ticket {
			return i
		}
	}
	return -1
}

// Find returns a place, nil if the ticket does not wait. It is valid until the next
// change.
func (q *Queue[R]) Find(ticket uint64) *Place[R] {
	if i := q.Index(ticket); i >= 0 {
		return &q.Places[i]
	}
	return nil
}

// Head returns the place that is served next; nil if nobody waits, or while the
// object is kept for a head that is Away. It is valid until the next change.
func (q *Queue[R]) Head() *Place[R] {
	if len(q.Places) == 0 || q.Places[0].Away {
		return nil
	}
	return &q.Places[0]
}

// Pop removes the first place.
func (q *Queue[R]) Pop() {
	last := len(q.Places) - 1
	if last >= moveAll {
		if q.array == nil {
			q.array = q.Places[:cap(q.Places)]
		}
		q.Places[0] = Place[R]{}
		q.Places = q.Places[1:]
		return
	}
	copy(q.Places, q.Places[1:])
	q.Places[last] = Place[R]{}
	if q.Places = q.Places[:last]; last == 0 && q.Room() > keepRoom {
		q.Clear()
	}
}

// Push puts a newcomer at the end, and returns its place to be filled in.
func (q *Queue[R]) Push(ticket uint64) *Place[R] {
	if q.Index(ticket) >= 0 {
		panic(fmt.Sprintf("queue: ticket %d is in the queue already", ticket))
	}
	return q.add(Place[R]{Ticket: ticket})
}

// add puts a place at the end.
func (q *Queue[R]) add(p Place[R]) *Place[R] {
	n := len(q.Places)
	if n == cap(q.Places) && q.array != nil {
		if all := q.array; n+n/8 < len(all) { // enough has been popped in front of it
			copy(all, q.Places)
			clear(all[max(n, len(all)-n):])
			q.Places = all[:n]
		}
		q.array = nil
	}
	q.Places = append(q.Places, p)
	return &q.Places[n]
}

// Room returns the number of places that memory is allocated for.
func (q *Queue[R]) Room() int { return max(cap(q.Places), len(q.array)) }

// Append puts a place at the end of the queue of a copy, whose last change was at
// last. It came no earlier than those ahead of it, and no later than the last
// change, whatever p has.
func (q *Queue[R]) Append(p Place[R], last int64) {
	p.Since = min(p.Since, last)
	if n := len(q.Places); n > 0 {
		//guard:place-moments
		p.Since = max(p.Since, q.Places[n-1].Since)
	}
	p.GiveUp = max(p.GiveUp, p.Since)
	q.add(p)
}

// Cancel removes a place and returns the position that it had; found is false if
// the ticket does not wait: it was served, timed out or was superseded.
func (q *Queue[R]) Cancel(ticket uint64, now int64) (position int, found bool) {
	i := q.Index(ticket)
	if i < 0 {
		return 0, false
	}
	position = q.position(i, now)
	copy(q.Places[i:], q.Places[i+1:])
	q.truncate(len(q.Places) - 1)
	return position, true
}

// Leave ends the wait of a place as of the last change: the next Expire removes it.
// It is for a queue that may not be changed now. It reports whether the ticket
// waits.
func (q *Queue[R]) Leave(ticket uint64, last int64) bool {
	p := q.Find(ticket)
	if p == nil {
		return false
	}
	//guard:leave-together
	p.GiveUp, p.Away = min(p.GiveUp, last), true
	return true
}

// Detach keeps the place of a caller that is not here any more, and may come back
// (Supersede). It is Away from now on, for grace at most. All that are Away share
// one Grace. It is prolonged while the object is busy, for they are in nobody's way
// then; an object that is kept for one of them is not kept longer for another one.
// It reports whether the ticket waits.
func (q *Queue[R]) Detach(ticket uint64, now, grace int64, busy bool) bool {
	p := q.Find(ticket)
	if p == nil {
		return false
	}
	//guard:detached-granted
	p.Away = true
	//guard:detached-grace true
	if busy || q.Grace <= now {
		q.Grace = now + grace
	}
	return true
}

// DetachAll makes the queue what a copy has: its callers are elsewhere, those that
// nobody can come back to are gone, and no grace runs.
func (q *Queue[R]) DetachAll() {
	kept := 0
	for i := range q.Places {
		if p := &q.Places[i]; p.Caller.ID.Given() {
			p.Away = true
			q.Places[kept] = *p
			kept++
		}
	}
	q.truncate(kept)
	q.Grace = 0
}

// BeginGrace sets the moment from which places that are Away are over, and returns
// the one that it was.
func (q *Queue[R]) BeginGrace(until int64) (before int64) {
	before, q.Grace = q.Grace, until
	return before
}

// Clear removes all places.
func (q *Queue[R]) Clear() { q.Places, q.array = nil, nil }

// Supersede hands a place to a later attempt of the same request, which waits under
// its own ticket until now + wait (0 to MaxWait; what is outside counts as the
// nearest; 0 gives up at the next step). The rest is of the first attempt: the
// position, when the wait began and what was asked for. found is false if the old
// ticket does not wait, or has to give up by now: the attempt is a newcomer then.
// It serves nobody: if the object was kept for a place that was Away, the next step
// serves it.
func (q *Queue[R]) Supersede(old, ticket uint64, id reqid.ID, wait, now int64) (position int, found bool) {
	i := q.Index(old)
	if i < 0 || now >= q.until(&q.Places[i]) {
		return 0, false
	}
	if ticket != old && q.Index(ticket) >= 0 {
		panic(fmt.Sprintf("queue: ticket %d is in the queue already", ticket))
	}
	p := &q.Places[i]
	p.Ticket, p.Caller.ID, p.GiveUp, p.Away = ticket, id, now+min(max(wait, 0), MaxWait), false
	return q.position(i, now), true
}

// Expire removes the places whose time is over and appends them to `left`, in order.
func (q *Queue[R]) Expire(now int64, left []Left) []Left {
	return q.remove(now, left, func(p *Place[R]) bool { return now >= q.until(p) })
}

// Drop removes the places that can never be served, as unfit reports, and appends them to
// `left`, in order.
func (q *Queue[R]) Drop(now int64, unfit func(*Place[R]) bool, left []Left) []Left {
	return q.remove(now, left, unfit)
}

func (q *Queue[R]) remove(now int64, left []Left, gone func(*Place[R]) bool) []Left {
	kept := 0
	for i := range q.Places {
		p := &q.Places[i]
		if gone(p) {
			left = append(left, Left{Ticket: p.Ticket, Caller: p.Caller, Position: kept + 1, Waited: now - p.Since})
			continue
		}
		if kept < i {
			q.Places[kept] = *p
		}
		kept++
	}
	if kept < len(q.Places) {
		q.truncate(kept)
	}
	return left
}

// NextExpiry returns the next moment at which Expire removes a place; math.MaxInt64 if
// nobody waits.
func (q *Queue[R]) NextExpiry() int64 {
	next := int64(math.MaxInt64)
	for i := range q.Places {
		next = min(next, q.until(&q.Places[i]))
	}
	return next
}

// Over reports whether the time of the place at index i is over, whether or not
// Expire has removed it.
func (q *Queue[R]) Over(i int, now int64) bool { return now >= q.until(&q.Places[i]) }

// Clone returns a copy that shares nothing with q but what requests refer to.
func (q *Queue[R]) Clone() Queue[R] {
	c := Queue[R]{Grace: q.Grace}
	if len(q.Places) > 0 {
		c.Places = slices.Clone(q.Places)
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
	seen := make(map[uint64]struct{}, len(q.Places))
	since := q.Places[0].Since
	for i := range q.Places {
		p := &q.Places[i]
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

// until returns the moment from which a place no longer waits.
func (q *Queue[R]) until(p *Place[R]) int64 {
	if p.Away && q.Grace != 0 {
		return min(p.GiveUp, q.Grace)
	}
	return p.GiveUp
}

// position returns that of the place at index i among those that still wait.
func (q *Queue[R]) position(i int, now int64) int {
	position := 1
	for j := range q.Places[:i] {
		if now < q.until(&q.Places[j]) {
			position++
		}
	}
	return position
}

// truncate shortens the queue and lets go of what the rest refers to.
func (q *Queue[R]) truncate(n int) {
	if n == 0 && q.Room() > keepRoom {
		q.Clear()
		return
	}
	clear(q.Places[n:])
	q.Places = q.Places[:n]
}
