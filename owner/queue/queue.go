package queue

import (
	"fmt"
	"iter"
	"math"
	"unsafe"

	"github.com/keystead/keystead/owner/reqid"
)

// Bounds, with their reasons. Times are in nanoseconds.
const (
	MaxWait = 86_400_000_000_000 // 24 h: a caller that waits for longer should ask again

	// keepRoom is the room, in places, that an empty queue keeps: enough that an
	// object which two or three contend for does not allocate at every handover.
	keepRoom = 8

	// MaxExpire bounds the places that Expire removes at a time: some hundred microseconds for
	// the one that answers their callers.
	MaxExpire = 1024

	// ticketBytes is what it takes to find a place by its ticket in a long queue.
	ticketBytes = 40

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
	Kept    bool  // … and no Grace ends it, only GiveUp

	number uint64 // above those of all places ahead of it, once the queue has put it there
}

// Number returns what After goes by: a place keeps it, whatever becomes of those ahead of it.
func (p *Place[R]) Number() uint64 { return p.number }

// Queue holds places, the next one first. The zero value is empty.
type Queue[R any] struct {
	// Places are the first ones, and all of them if the queue is short. What stands behind
	// them is in rest.
	// Invariant: the Since of places never fall. Tickets differ. If Places is empty, the
	// queue is.
	Places []Place[R]

	// Grace is the moment from which places that are Away are over, all at once;
	// 0 = not before their GiveUp.
	Grace int64

	// array is the array that Places is the end of, nil if it is all of it: Places is not
	// moved at each Pop. What is in front of Places is zero.
	array []Place[R]

	rest *rest[R] // nil: the queue has been short since it was empty

	numbered uint64 // the last number that a place got
}

// Left is a place whose time was over.
type Left struct {
	Ticket   uint64
	Caller   Caller
	Position int   // among those that still waited; 1 is next
	Waited   int64 // ns in the queue
}

// Len returns the number of places, those included whose time is over.
func (q *Queue[R]) Len() int {
	if q.rest == nil {
		return len(q.Places)
	}
	return len(q.Places) + q.rest.n
}

// All returns the places, in order, with their indexes. They may be read only, and the queue
// must not change meanwhile.
func (q *Queue[R]) All() iter.Seq2[int, *Place[R]] {
	return func(yield func(int, *Place[R]) bool) {
		i := 0
		for s := range q.segments() {
			for j := range s {
				if !yield(i, &s[j]) {
					return
				}
				i++
			}
		}
	}
}

// After calls f for the places with numbers above one, in order, until f returns false.
func (q *Queue[R]) After(number uint64, f func(*Place[R]) bool) {
	for s := range q.segments() {
		if n := len(s); n == 0 || s[n-1].number <= number {
			continue
		}
		for i := range s {
			if s[i].number > number && !f(&s[i]) {
				return
			}
		}
	}
}

// Callers calls f for each place, in order, until f returns false.
func (q *Queue[R]) Callers(f func(ticket uint64, caller *Caller, giveUp int64) bool) {
	for _, p := range q.All() {
		if !f(p.Ticket, &p.Caller, q.until(p)) {
			return
		}
	}
}

// Caller returns that of a place, nil if the ticket does not wait. It is valid until the next
// change.
func (q *Queue[R]) Caller(ticket uint64) *Caller {
	if p := q.Find(ticket); p != nil {
		return &p.Caller
	}
	return nil
}

// Find returns a place, nil if the ticket does not wait. It may be read only, and is valid until
// the next change.
func (q *Queue[R]) Find(ticket uint64) *Place[R] {
	p, _ := q.find(ticket)
	return p
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
	q.Places = q.Places[:last]
	q.refill()
}

// refill has places of the rest stand in front when those that did are gone, and gives room back
// when nobody waits.
func (q *Queue[R]) refill() {
	switch {
	case len(q.Places) > 0:
	case q.rest != nil && q.rest.n > 0:
		before := q.Places
		if q.array != nil {
			before = q.array
		}
		q.Places, q.array = q.rest.take(), nil
		q.rest.keep(before)
	case q.Room() > keepRoom:
		q.Clear()
	}
}

// Push puts a newcomer at the end, and returns its place to be filled in.
func (q *Queue[R]) Push(ticket uint64) *Place[R] {
	q.mustBeNew(ticket)
	return q.add(Place[R]{Ticket: ticket}, true)
}

// Enter puts a newcomer at the end. Nothing of its place is to be filled in.
func (q *Queue[R]) Enter(p Place[R]) {
	q.mustBeNew(p.Ticket)
	q.add(p, false)
}

func (q *Queue[R]) mustBeNew(ticket uint64) {
	if q.Find(ticket) != nil {
		panic(fmt.Sprintf("queue: ticket %d is in the queue already", ticket))
	}
}

// add puts a place at the end. If open is set, the caller fills it in.
func (q *Queue[R]) add(p Place[R], open bool) *Place[R] {
	n := len(q.Places)
	q.numbered++
	p.number = q.numbered
	if r := q.rest; r != nil && r.n > 0 || n >= segmentLen {
		if r == nil {
			q.rest = &rest[R]{of: map[uint64]*segment[R]{}, giveUp: math.MaxInt64, known: true}
		}
		return q.rest.add(p, open)
	}
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

// Bytes returns how many bytes the queue takes, without what requests refer to.
func (q *Queue[R]) Bytes() int {
	n := q.Room() * int(unsafe.Sizeof(Place[R]{}))
	if q.rest != nil {
		n += q.rest.n * ticketBytes
	}
	return n
}

// Room returns the number of places that memory is allocated for.
func (q *Queue[R]) Room() int {
	n := max(cap(q.Places), len(q.array))
	if q.rest != nil {
		n += q.rest.room
	}
	return n
}

// Append puts a place at the end of the queue of a copy, whose last change was at
// last. It came no earlier than those ahead of it, and no later than the last
// change, whatever p has.
func (q *Queue[R]) Append(p Place[R], last int64) {
	p.Since = min(p.Since, last)
	if before := q.last(); before != nil {
		//guard:place-moments
		p.Since = max(p.Since, before.Since)
	}
	p.GiveUp = max(p.GiveUp, p.Since)
	q.add(p, false)
}

// ToEnd moves a place of a copy to the end, as Append puts one there, and gives it what its
// request says by now. It reports whether the ticket waits.
func (q *Queue[R]) ToEnd(ticket uint64, id reqid.ID, giveUp, last int64) bool {
	p := q.Find(ticket)
	if p == nil {
		return false
	}
	again := *p
	again.Caller.ID, again.GiveUp = id, giveUp
	q.take(ticket)
	q.Append(again, last)
	return true
}

// Change gives a place of a copy what its request says by now.
func (q *Queue[R]) Change(ticket uint64, id reqid.ID, giveUp int64) {
	if p, in := q.find(ticket); p != nil {
		p.Caller.ID, p.GiveUp = id, max(giveUp, p.Since)
		q.changed(in)
	}
}

// Cancel removes a place and returns the position that it had; found is false if
// the ticket does not wait: it was served, timed out or was superseded.
func (q *Queue[R]) Cancel(ticket uint64, now int64) (position int, found bool) {
	position, found = q.position(ticket, now)
	if found {
		q.take(ticket)
	}
	return position, found
}

// take removes a place that is there.
func (q *Queue[R]) take(ticket uint64) {
	if r := q.rest; r != nil {
		if s := r.of[ticket]; s != nil {
			r.remove(s, s.index(ticket))
			return
		}
	}
	i := index(q.Places, ticket)
	copy(q.Places[i:], q.Places[i+1:])
	q.truncate(len(q.Places) - 1)
}

// Shorten removes up to `most` places from the front and calls f for each: nobody is served.
func (q *Queue[R]) Shorten(most int, f func(ticket uint64, caller *Caller)) {
	for ; most > 0 && len(q.Places) > 0; most-- {
		p := q.Places[0]
		q.Pop()
		f(p.Ticket, &p.Caller)
	}
}

// Leave ends the wait of a place as of the last change: the next Expire removes it.
// It is for a queue that may not be changed now. It reports whether the ticket
// waits.
func (q *Queue[R]) Leave(ticket uint64, last int64) bool {
	p, in := q.find(ticket)
	if p == nil {
		return false
	}
	//guard:leave-together
	p.GiveUp, p.Away = min(p.GiveUp, last), true
	q.changed(in)
	return true
}

// Detach keeps the place of a caller that is not here any more, and may come back
// (Supersede). It is Away from now on, for grace at most. All that are Away share
// one Grace. It is prolonged while the object is busy, for they are in nobody's way
// then; an object that is kept for one of them is not kept longer for another one.
// It reports whether the ticket waits.
func (q *Queue[R]) Detach(ticket uint64, now, grace int64, busy bool) bool {
	p, in := q.find(ticket)
	if p == nil {
		return false
	}
	//guard:detached-granted
	p.Away = true
	q.changed(in)
	//guard:detached-grace true
	if !p.Kept && (busy || q.Grace <= now) {
		q.Grace = now + grace
	}
	return true
}

// DetachAll makes the queue what a copy has: its callers are elsewhere, those that
// nobody can come back to are gone, and no grace runs.
func (q *Queue[R]) DetachAll() {
	q.filter(every, func(p *Place[R]) bool {
		p.Away = true
		return !p.Caller.ID.Given()
	})
	q.Grace = 0
}

// DetachOne is DetachAll for one place, while others of the queue are still to be treated. It
// reports whether the ticket waits.
func (q *Queue[R]) DetachOne(ticket uint64) bool {
	p, in := q.find(ticket)
	switch {
	case p == nil:
		return false
	case !p.Caller.ID.Given():
		q.take(ticket)
	default:
		p.Away = true
		q.changed(in)
	}
	q.Grace = 0
	return true
}

// BeginGrace sets the moment from which places that are Away are over, and returns
// the one that it was.
func (q *Queue[R]) BeginGrace(until int64) (before int64) {
	before, q.Grace = q.Grace, until
	return before
}

// Clear removes all places.
func (q *Queue[R]) Clear() { q.Places, q.array, q.rest = nil, nil, nil }

// Supersede hands a place to a later attempt of the same request, which waits under
// its own ticket until now + wait (0 to MaxWait; what is outside counts as the
// nearest; 0 gives up at the next step). The rest is of the first attempt: the
// position, when the wait began and what was asked for. found is false if the old
// ticket does not wait, or has to give up by now: the attempt is a newcomer then.
// It serves nobody: if the object was kept for a place that was Away, the next step
// serves it.
func (q *Queue[R]) Supersede(old, ticket uint64, id reqid.ID, wait, now int64) (position int, found bool) {
	p, in := q.find(old)
	if p == nil || now >= q.until(p) {
		return 0, false
	}
	if ticket != old {
		q.mustBeNew(ticket)
		if in != nil {
			delete(q.rest.of, old)
			q.rest.of[ticket] = in
		}
	}
	p.Ticket, p.Caller.ID, p.GiveUp, p.Away = ticket, id, now+min(max(wait, 0), MaxWait), false
	q.changed(in)
	return q.position(ticket, now)
}

// Expire removes the places whose time is over, the first MaxExpire of them, and appends them
// to `left`, in order. If there are more, NextExpiry is not after now.
func (q *Queue[R]) Expire(now int64, left []Left) []Left {
	if q.NextExpiry() > now {
		return left
	}
	//guard:expire-slice MaxExpire -> math.MaxInt
	most := len(left) + MaxExpire
	due := func(s *segment[R]) bool { return !s.waits(now, q.Grace) }
	return q.remove(now, left, most, due, func(p *Place[R]) bool { return now >= q.until(p) })
}

// Drop removes the places that can never be served, as unfit reports, and appends them to
// `left`, in order.
func (q *Queue[R]) Drop(now int64, unfit func(*Place[R]) bool, left []Left) []Left {
	return q.remove(now, left, math.MaxInt, every, unfit)
}

func every[R any](*segment[R]) bool { return true }

// NextExpiry returns the next moment at which Expire removes a place; math.MaxInt64 if
// nobody waits.
func (q *Queue[R]) NextExpiry() int64 {
	next := int64(math.MaxInt64)
	for i := range q.Places {
		next = min(next, q.until(&q.Places[i]))
	}
	if q.rest != nil && q.rest.n > 0 {
		next = min(next, q.rest.next(q.Grace))
	}
	return next
}

// Over reports whether the time of the first place is over, whether or not Expire has removed it;
// false if nobody waits.
func (q *Queue[R]) Over(now int64) bool { return len(q.Places) > 0 && q.OverAt(&q.Places[0], now) }

// OverAt is Over of any place.
func (q *Queue[R]) OverAt(p *Place[R], now int64) bool { return now >= q.until(p) }

// Waiting returns how many places there are whose time is not over.
func (q *Queue[R]) Waiting(now int64) int {
	n := q.Len()
	if n == 0 || q.NextExpiry() > now {
		return n
	}
	for _, p := range q.All() {
		if now >= q.until(p) {
			n--
		}
	}
	return n
}

// until returns the moment from which a place no longer waits.
func (q *Queue[R]) until(p *Place[R]) int64 {
	//guard:kept-no-grace p.Away && !p.Kept && q.Grace != 0 -> p.Away && q.Grace != 0
	if p.Away && !p.Kept && q.Grace != 0 {
		return min(p.GiveUp, q.Grace)
	}
	return p.GiveUp
}
