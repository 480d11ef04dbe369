package lock

import (
	"fmt"
	"slices"

	"github.com/keystead/keystead/owner/queue"
)

// model is the lock as a list of what happened. Nothing is kept besides: who
// holds and who waits is found by reading the list from its beginning.
type model struct {
	events []event
	last   int64 // moment of the last event
}

type event struct {
	kind   kind
	at     int64
	ticket uint64 // queued, left, moved, granted (0: to a newcomer)
	to     uint64 // moved: the new ticket
	token  uint64 // granted, renewed, ended
	until  int64  // queued, moved: gives up; granted, renewed: expires
	ttl    int64  // queued
	waited int64  // granted
}

type kind int

const (
	queued  kind = iota // a caller joined the queue
	moved               // a retry took a place over
	left                // a waiter gave up or cancelled
	granted             // a caller or waiter got the lock
	renewed
	reclaimed // a holder got a grant back that the lock did not know
	ended     // a grant was released or revoked, or its TTL ended
)

func (m *model) add(e event) {
	m.events = append(m.events, e)
	m.last = e.at
}

// waiting lists those in the queue, as the events that put them there.
func (m *model) waiting() []event {
	var q []event
	for _, e := range m.events {
		at := slices.IndexFunc(q, func(w event) bool { return w.ticket == e.ticket })
		switch e.kind {
		case queued:
			q = append(q, e)
		case moved:
			q[at].ticket, q[at].until = e.to, e.until
		case left:
			q = slices.Delete(q, at, at+1)
		case granted:
			if e.ticket != 0 {
				q = slices.Delete(q, at, at+1)
			}
		}
	}
	return q
}

// holding returns the grant in force with its present end, or nil.
func (m *model) holding() *event {
	var h *event
	for _, e := range m.events {
		switch e.kind {
		case granted, reclaimed:
			h = &e
		case renewed:
			h.until = e.until
		case ended:
			h = nil
		}
	}
	return h
}

// pass lets time come to now: see the package doc for the order.
func (m *model) pass(now int64, next uint64, giveBack bool, fx *Effects) {
	*fx = Effects{}
	ahead := 0
	for _, w := range m.waiting() {
		if now < w.until {
			ahead++
			continue
		}
		m.add(event{kind: left, at: now, ticket: w.ticket})
		fx.TimedOut = append(fx.TimedOut, queue.Left{Ticket: w.ticket, Position: ahead + 1, Waited: now - w.at})
	}
	if h := m.holding(); h != nil && (giveBack || now >= h.until) {
		m.add(event{kind: ended, at: now, token: h.token})
		fx.Lapsed = !giveBack
	}
	if q := m.waiting(); m.holding() == nil && len(q) > 0 {
		w := q[0]
		g := event{kind: granted, at: now, ticket: w.ticket, token: next, until: now + w.ttl, waited: now - w.at}
		m.add(g)
		fx.Grant = Grant{Ticket: g.ticket, Token: g.token, Waited: g.waited, Expires: g.until}
	}
}

func (m *model) acquire(op Acquire, now int64, token uint64, limit int, fx *Effects) AcquireResult {
	now = max(now, m.last)
	m.pass(now, token, false, fx)
	place := len(m.waiting()) + 1
	switch {
	case m.holding() == nil:
		m.add(event{kind: granted, at: now, token: token, until: now + op.TTL})
		return AcquireResult{Outcome: Granted, Token: token, Expires: now + op.TTL}
	case op.Wait == 0:
		return AcquireResult{Outcome: Refused, Place: place}
	case place > limit:
		return AcquireResult{Outcome: QueueFull, Place: place}
	}
	m.add(event{kind: queued, at: now, ticket: op.Ticket, until: now + op.Wait, ttl: op.TTL})
	return AcquireResult{Outcome: Queued, Place: place}
}

func (m *model) holds(token uint64, now int64) bool {
	h := m.holding()
	return h != nil && h.token == token && now < h.until
}

func (m *model) renew(token uint64, ttl, now int64, next uint64, fx *Effects) RenewResult {
	now = max(now, m.last)
	held := m.holds(token, now)
	m.pass(now, next, false, fx)
	if !held {
		return RenewResult{}
	}
	m.add(event{kind: renewed, at: now, token: token, until: now + ttl})
	return RenewResult{true, now + ttl}
}

func (m *model) release(token uint64, now int64, next uint64, fx *Effects) ReleaseResult {
	now = max(now, m.last)
	held := m.holds(token, now)
	m.pass(now, next, held, fx)
	return ReleaseResult{held}
}

func (m *model) reclaim(op Reclaim, now int64, next uint64, fx *Effects) ReclaimResult {
	now = max(now, m.last)
	m.pass(now, next, false, fx)
	for _, e := range m.events {
		if e.token >= op.Token {
			return ReclaimResult{}
		}
	}
	res := ReclaimResult{Reclaimed: true, Expires: now + op.Left}
	if h := m.holding(); h != nil {
		res.Revoked = h.token
		m.add(event{kind: ended, at: now, token: h.token})
	}
	m.add(event{kind: reclaimed, at: now, token: op.Token, until: res.Expires})
	return res
}

func (m *model) cancel(ticket uint64, now int64) (int, bool) {
	place, ok := m.placeOf(ticket, now)
	if ok {
		m.add(event{kind: left, at: max(now, m.last), ticket: ticket})
	}
	return place, ok
}

func (m *model) supersede(old, ticket uint64, wait, now int64) (int, bool) {
	now = max(now, m.last)
	place, ok := m.placeOf(old, now)
	if !ok || slices.ContainsFunc(m.waiting(), func(w event) bool { return w.ticket == old && now >= w.until }) {
		return 0, false
	}
	m.add(event{kind: moved, at: now, ticket: old, to: ticket, until: now + wait})
	return place, true
}

func (m *model) placeOf(ticket uint64, now int64) (int, bool) {
	ahead := 0
	for _, w := range m.waiting() {
		if w.ticket == ticket {
			return ahead + 1, true
		}
		if max(now, m.last) < w.until {
			ahead++
		}
	}
	return 0, false
}

func (m *model) nextWake(now int64) (int64, bool) {
	q := m.waiting()
	if len(q) == 0 {
		return 0, false
	}
	wake := m.holding().until
	for _, w := range q {
		wake = min(wake, w.until)
	}
	return max(wake, now, m.last), true
}

func (m *model) view(now int64) View {
	now = max(now, m.last)
	var v View
	if h := m.holding(); h != nil && now < h.until {
		v.Holding = Holding{Token: h.token, Age: now - h.at, Left: h.until - now, Waited: h.waited}
	}
	for _, w := range m.waiting() {
		if now < w.until {
			v.Waiting++
			v.First = append(v.First, Place{Ticket: w.ticket, Waited: now - w.at, Left: w.until - now})
		}
	}
	return v
}

// history checks what must be true of any list of events.
func (m *model) history() error {
	var (
		token  uint64
		holder *event
		gone   = map[uint64]bool{} // tickets that left, moved or were granted
		line   []event
	)
	for i, e := range m.events {
		at := slices.IndexFunc(line, func(w event) bool { return w.ticket == e.ticket })
		if e.kind != queued && e.kind != renewed && e.kind != reclaimed && e.kind != ended && e.ticket != 0 && (at < 0 || gone[e.ticket]) {
			return fmt.Errorf("event %d: ticket %d is not in the queue: %+v", i, e.ticket, e)
		}
		switch e.kind {
		case queued:
			if holder == nil {
				return fmt.Errorf("event %d: waits for a free lock: %+v", i, e)
			}
			line = append(line, e)
		case moved:
			gone[e.ticket] = true
			line[at].ticket, line[at].until = e.to, e.until
		case left:
			gone[e.ticket] = true
			line = slices.Delete(line, at, at+1)
		case granted:
			switch {
			case holder != nil:
				return fmt.Errorf("event %d: two holders: %+v", i, e)
			case e.token <= token:
				return fmt.Errorf("event %d: token does not rise: %+v", i, e)
			case e.ticket == 0 && len(line) > 0, e.ticket != 0 && at != 0:
				return fmt.Errorf("event %d: not the head of the queue: %+v", i, e)
			case e.ticket != 0 && e.at >= line[at].until:
				return fmt.Errorf("event %d: granted to one that gave up: %+v", i, e)
			}
			if e.ticket != 0 {
				gone[e.ticket] = true
				line = slices.Delete(line, at, at+1)
			}
			token, holder = e.token, &e
		case reclaimed:
			if holder != nil || e.token <= token {
				return fmt.Errorf("event %d: token does not rise, or two holders: %+v", i, e)
			}
			token, holder = e.token, &e
		case renewed:
			if holder == nil || e.token != holder.token || e.at >= holder.until {
				return fmt.Errorf("event %d: renewed what is not held: %+v", i, e)
			}
			holder.until = e.until
		case ended:
			holder = nil
		}
	}
	return nil
}
