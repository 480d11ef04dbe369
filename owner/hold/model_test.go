package hold

import (
	"slices"

	"github.com/keystead/keystead/owner/queue"
)

// model is the object as two lists, without anything that follows from them. Every question is
// answered by looking at all of both.
type model struct {
	capacity uint32
	fixed    bool
	held     []modelHolder // by token
	line     []modelPlace
	last     uint64 // token
	at       int64
	grace    int64 // from which places are over that are away and not kept; 0 = none
}

type modelHolder struct {
	token          uint64
	weight         uint32
	until, blocked int64 // of the grant, and of its room
	waited         int64
}

type modelPlace struct {
	ticket       uint64
	weight       uint32
	since, until int64
	ttl, delay   int64
	away, kept   bool
}

func (m *model) over(p *modelPlace, now int64) bool {
	return now >= p.until || p.away && !p.kept && m.grace != 0 && now >= m.grace
}

func (m *model) fits(p *modelPlace) bool { return m.used()+uint64(p.weight) <= uint64(m.capacity) }

// call has a head that is away and has a ticket give up one lease after what it asks for was free.
func (m *model) call(now int64, fx *Effects) {
	if len(m.line) == 0 {
		return
	}
	if p := &m.line[0]; p.away && p.kept && m.fits(p) && p.until > now+p.ttl {
		p.until, fx.Called, m.at = now+p.ttl, p.ticket, now
	}
}

func (m *model) detach(ticket uint64, now, grace int64) bool {
	i := slices.IndexFunc(m.line, func(p modelPlace) bool { return p.ticket == ticket })
	if i < 0 {
		return false
	}
	now = max(now, m.at)
	head := &m.line[0]
	inTheWay := m.fits(head) || head.away && m.used() < uint64(m.capacity)
	if m.line[i].away = true; !m.line[i].kept && (!inTheWay || m.grace <= now) {
		m.grace = now + grace
	}
	return true
}

func (m *model) used() (n uint64) {
	for _, h := range m.held {
		n += uint64(h.weight)
	}
	return n
}

// pass lets time come to now.
func (m *model) pass(now int64, fx *Effects) int64 {
	now = max(now, m.at)
	fx.Reset()
	ahead := 0
	m.line = slices.DeleteFunc(m.line, func(p modelPlace) bool {
		if !m.over(&p, now) {
			ahead++
			return false
		}
		fx.TimedOut = append(fx.TimedOut, queue.Left{Ticket: p.ticket, Position: ahead + 1, Waited: now - p.since})
		m.at = now
		return true
	})
	for i := range m.held {
		if h := &m.held[i]; h.until > 0 && now >= h.until {
			h.until = 0
			fx.Lapsed++
			m.at = now
		}
	}
	m.held = slices.DeleteFunc(m.held, func(h modelHolder) bool {
		gone := h.until == 0 && now >= h.blocked
		if gone {
			m.at = now
		}
		return gone
	})
	return now
}

// serve grants to the head what fits, so many times at most.
func (m *model) serve(now int64, token uint64, most int, fx *Effects) uint64 {
	for ; most > 0 && len(m.line) > 0 && m.fits(&m.line[0]) && !m.line[0].away; most-- {
		p := m.line[0]
		m.line = m.line[1:]
		m.grant(p.weight, p.ttl, p.delay, now-p.since, now, token)
		fx.Grants = append(fx.Grants, Grant{Ticket: p.ticket, Token: token, Waited: now - p.since, Expires: now + p.ttl})
		token++
	}
	m.call(now, fx)
	return token
}

func (m *model) grant(weight uint32, ttl, delay, waited, now int64, token uint64) {
	m.held = append(m.held, modelHolder{token, weight, now + ttl, now + ttl + delay, waited})
	m.last, m.at = token, now
}

func (m *model) settle() {
	if len(m.held)+len(m.line) == 0 && !m.fixed {
		m.capacity = 0
	}
}

func (m *model) end(now int64, tokens Tokens, fx *Effects) {
	m.serve(now, tokens.First, tokens.Count, fx)
	m.settle()
}

func (m *model) acquire(op Acquire, now int64, tokens Tokens, limit int, fx *Effects) AcquireResult {
	now = m.pass(now, fx)
	token := m.serve(now, tokens.First, tokens.Count-1, fx)
	m.settle()
	defer m.settle()
	capacity := max(m.capacity, op.Capacity)
	if m.capacity != 0 {
		capacity = m.capacity
	}
	place := len(m.line) + 1
	switch {
	case capacity == 0:
		return AcquireResult{Outcome: NoCapacity}
	case op.Capacity != 0 && op.Capacity != capacity:
		return AcquireResult{Outcome: CapacityDiffers, Capacity: capacity}
	case op.Weight > capacity:
		return AcquireResult{Outcome: TooLarge, Capacity: capacity}
	case len(m.line) == 0 && m.used()+uint64(op.Weight) <= uint64(capacity):
		m.capacity = capacity
		m.grant(op.Weight, op.TTL, op.Delay, 0, now, token)
		return AcquireResult{Outcome: Granted, Capacity: capacity, Token: token, Expires: now + op.TTL}
	case op.Wait == 0 && op.Keep == 0:
		return AcquireResult{Outcome: Refused, Capacity: capacity, Place: place}
	case place > limit:
		return AcquireResult{Outcome: QueueFull, Capacity: capacity, Place: place}
	}
	m.line = append(m.line, modelPlace{ticket: op.Ticket, weight: op.Weight, since: now, until: now + op.Wait + op.Keep, ttl: op.TTL, delay: op.Delay, kept: op.Keep > 0})
	m.at = now
	return AcquireResult{Outcome: Queued, Capacity: capacity, Place: place}
}

// find returns the holder with a token if its grant is in force.
func (m *model) find(token uint64, now int64) *modelHolder {
	for i := range m.held {
		if h := &m.held[i]; h.token == token && now < h.until {
			return h
		}
	}
	return nil
}

func (m *model) renew(token uint64, ttl, now int64, tokens Tokens, fx *Effects) (res RenewResult) {
	now = m.pass(now, fx)
	if h := m.find(token, now); h != nil {
		delay := h.blocked - h.until
		h.until, h.blocked, m.at = now+ttl, now+ttl+delay, now
		res = RenewResult{true, now + ttl}
	}
	m.end(now, tokens, fx)
	return res
}

func (m *model) release(token uint64, now int64, tokens Tokens, fx *Effects) bool {
	now = m.pass(now, fx)
	held := m.find(token, now) != nil
	m.held = slices.DeleteFunc(m.held, func(h modelHolder) bool {
		if h.token == token {
			m.at = now
		}
		return h.token == token
	})
	m.end(now, tokens, fx)
	return held
}

func (m *model) revoke(token uint64, now int64, tokens Tokens, fx *Effects) bool {
	now = m.pass(now, fx)
	h := m.find(token, now)
	if h != nil {
		h.blocked, h.until, m.at = now+h.blocked-h.until, 0, now
		if h.blocked == now {
			m.held = slices.DeleteFunc(m.held, func(h modelHolder) bool { return h.token == token })
		}
	}
	m.end(now, tokens, fx)
	return h != nil
}

func (m *model) downgrade(token uint64, weight uint32, now int64, tokens Tokens, fx *Effects) (res DowngradeResult) {
	now = m.pass(now, fx)
	if h := m.find(token, now); h != nil {
		if weight < h.weight {
			h.weight, m.at = weight, now
		}
		res = DowngradeResult{true, h.weight}
	}
	m.end(now, tokens, fx)
	return res
}

func (m *model) setCapacity(capacity uint32, now int64, tokens Tokens, fx *Effects) {
	now = m.pass(now, fx)
	if capacity == 0 {
		if m.fixed {
			m.fixed, m.at = false, now
		}
	} else {
		if capacity != m.capacity || !m.fixed {
			m.at = now
		}
		m.capacity, m.fixed = capacity, true
		ahead := 0
		m.line = slices.DeleteFunc(m.line, func(p modelPlace) bool {
			if p.weight <= capacity {
				ahead++
				return false
			}
			fx.TooLarge = append(fx.TooLarge, queue.Left{Ticket: p.ticket, Position: ahead + 1, Waited: now - p.since})
			return true
		})
	}
	m.end(now, tokens, fx)
}

func (m *model) cancel(ticket uint64, now int64) bool {
	i := slices.IndexFunc(m.line, func(p modelPlace) bool { return p.ticket == ticket })
	if i < 0 {
		return false
	}
	m.at = max(m.at, now)
	m.line = slices.Delete(m.line, i, i+1)
	m.settle()
	return true
}

func (m *model) supersede(old, ticket uint64, wait, now int64, kept bool) bool {
	now = max(now, m.at)
	i := slices.IndexFunc(m.line, func(p modelPlace) bool { return p.ticket == old })
	if i < 0 || m.over(&m.line[i], now) {
		return false
	}
	m.line[i].ticket, m.line[i].until, m.at = ticket, now+wait, now
	m.line[i].away, m.line[i].kept = false, kept
	return true
}

// nextWake returns the next moment at which time changes something.
func (m *model) nextWake(now int64) (int64, bool) {
	if len(m.line) == 0 {
		return 0, false
	}
	wake := m.line[0].until
	for _, p := range m.line {
		wake = min(wake, p.until)
		if p.away && !p.kept && m.grace != 0 {
			wake = min(wake, m.grace)
		}
	}
	for _, h := range m.held {
		if h.until == 0 {
			wake = min(wake, h.blocked)
		} else {
			wake = min(wake, h.until)
		}
	}
	now = max(now, m.at)
	if p := &m.line[0]; m.fits(p) && (!p.away || p.kept && p.until > now+p.ttl) {
		wake = 0
	}
	return max(wake, now, m.at), true
}
