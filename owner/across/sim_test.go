package across

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

const (
	tick     = int64(50_000_000)
	window   = 1200 * tick
	faults   = 2400 // ticks in which things fail
	capacity = 4    // of each key
	testKeys = 5
)

// weaker are rules of those that use the machines, switched off.
type weaker struct {
	early bool // an answer leaves before the standby has what it tells
	gives bool // a coordinator that gives up cancels
	deaf  bool // who cannot be reached counts as one that denies
	time  bool // a hold whose time is over is released without a question
}

// row is the object of one key at its owner, with what its standby has.
type row struct {
	name          string
	state         *State
	spent         map[ID]int   // what is charged
	seen          map[ID]Phase // the last phase of each admission, for the properties
	copy          *row         // at the standby
	alone         bool         // there is none
	sent, arrived int          // records
	epoch         uint64       // of the last change of its owner or standby
	frozen        int64        // until then nobody may act
	clock         int64        // of the owner, ahead of that of the test
	lost          int          // how often
	waiting       []waiting
	lostAt        int64
}

type waiting struct {
	record int
	then   func()
}

// request is an Admit of a caller.
type request struct {
	ID
	Terms
	rows     []*row
	began    int64
	losses   []int // of its rows when it began
	admitted bool
	refused  bool
	settled  Set // participants that have said so
	costs    []uint64
	stops    int64 // when the caller leaves for good
	again    int64
}

type sim struct {
	weaker
	rand     *rand.Rand
	now      int64
	epoch    uint64
	rows     []*row
	requests []*request
	messages []message
	calm     bool
	admitted int
	refused  int
	settled  int
	lost     int
}

type message struct {
	at   int64
	then func()
}

func newSim(seed uint64, w weaker) *sim {
	s := &sim{weaker: w, rand: rand.New(rand.NewPCG(seed, 57)), epoch: 1}
	for i := range testKeys {
		s.rows = append(s.rows, &row{name: fmt.Sprint("key-", i), state: NewState(Config{Window: window}), spent: map[ID]int{}, seen: map[ID]Phase{}, clock: s.rand.Int64N(1e9)})
		s.rows[i].copied()
	}
	return s
}

func (s *sim) one(of int) bool { return s.rand.IntN(of) == 0 }

// snapshot is a row as a standby has it, by its records.
func (r *row) snapshot() *row {
	c := &row{state: NewState(r.state.Config), spent: maps.Clone(r.spent), seen: maps.Clone(r.seen)}
	c.state.Lost, c.state.Since = r.state.Lost, r.state.Since
	r.state.Each(func(v *Vote) bool {
		w := wire.Writer{Now: max(v.Made, v.Began)}
		AppendVote(&w, v)
		read := wire.Reader{B: w.B, Now: w.Now}
		got, ok := ReadVote(&read, v.ID)
		if !ok {
			panic(fmt.Sprintf("%+v cannot be read", v))
		}
		again := wire.Writer{Now: w.Now}
		if AppendVote(&again, &got); !bytes.Equal(w.B, again.B) {
			panic(fmt.Sprintf("%+v is %+v after it was read", v, got))
		}
		if !c.state.Install(got) {
			panic("no room")
		}
		return true
	})
	return c
}

func (r *row) copied() { r.copy, r.alone, r.arrived = r.snapshot(), false, r.sent }

// send delivers a message later: not at all, once or twice, after those that follow it.
func (s *sim) send(then func()) {
	copies := 1
	if !s.calm {
		if s.one(8) {
			return
		}
		if s.one(6) {
			copies = 2
		}
	}
	for range copies {
		delay := s.rand.Int64N(4)
		if !s.calm && s.one(10) {
			delay = s.rand.Int64N(120)
		}
		s.messages = append(s.messages, message{s.now + delay*tick, then})
	}
}

// answers has an answer leave when the standby has what it tells.
func (s *sim) answers(r *row, changed bool, then func()) {
	if changed && !r.alone {
		r.sent++
		record, epoch, copy := r.sent, r.epoch, r.snapshot()
		s.messages = append(s.messages, message{s.now + s.rand.Int64N(8)*tick, func() {
			if r.epoch != epoch {
				return
			}
			if record > r.arrived {
				r.arrived, r.copy = record, copy
			}
			all := r.waiting
			r.waiting = nil
			for _, w := range all {
				if w.record <= r.arrived {
					s.send(w.then)
				} else {
					r.waiting = append(r.waiting, w)
				}
			}
		}})
	}
	if r.alone || s.early || r.arrived == r.sent {
		s.send(then)
		return
	}
	r.waiting = append(r.waiting, waiting{r.sent, then})
}

func (s *sim) acts(r *row) bool { return s.now >= r.frozen }

// done applies an effect to what is charged.
func (r *row) done(e Effect, cost int) {
	switch e.To {
	case Cancelled, Released:
		delete(r.spent, e.ID)
	case Settled:
		r.spent[e.ID] = cost
	}
}

// note keeps what is known of all admissions.
func (r *row) note() {
	r.state.Each(func(v *Vote) bool {
		r.seen[v.ID] = v.Phase
		return true
	})
}

// begin has a request sent, for the first time or again.
func (s *sim) begin(q *request) {
	epoch := s.epoch - min(s.epoch-1, uint64(s.rand.IntN(3))) // its table may be old
	age := s.now - q.began
	c := NewCoordinator(q.ID, q.Terms, epoch, age, s.now+20*Patience)
	holds := c.Holds(age)
	dies := int64(1) << 60
	if !s.calm && s.one(3) {
		dies = s.now + s.rand.Int64N(20)*tick
	}
	words := func(all []Word) {
		for i := range all {
			w := all[i]
			s.send(func() { s.tell(&w, nil, func(from uint8, a Answer) {}) })
		}
	}
	hear := func(from uint8, a Answer) {
		if s.now >= dies || c.Over() || s.now >= c.Deadline && c.answered == Unknown {
			return
		}
		done, all := c.Answered(from, a)
		if done != nil {
			s.send(func() { s.tells(q, done) })
		}
		for i := range all {
			w := all[i]
			s.send(func() {
				s.tell(&w, nil, func(from uint8, a Answer) {
					if s.now < dies {
						_, more := c.Answered(from, a)
						words(more)
					}
				})
			})
		}
	}
	var hold func(h Hold)
	hold = func(h Hold) {
		if s.now >= min(dies, c.Deadline) || c.answered != Unknown {
			return
		}
		h.Age = max(age+s.now-(c.Deadline-20*Patience), age)
		s.send(func() { s.hold(q, h, hear) })
		s.messages = append(s.messages, message{s.now + 40*tick, func() { hold(h) }})
	}
	for _, h := range holds {
		hold(h)
	}
	s.messages = append(s.messages, message{c.Deadline, func() {
		if s.now < dies {
			done, all := c.Expire(c.Deadline)
			if done != nil {
				s.send(func() { s.tells(q, done) })
			}
			if done != nil && s.gives && done.Phase == Unknown {
				all = c.tell(Cancelled, All(len(c.Keys)), false)
			}
			words(all)
		}
	}})
}

// tells is an answer to the caller.
func (s *sim) tells(q *request, o *Outcome) {
	switch {
	case o.Phase == Admitted && !q.admitted:
		q.admitted = true
		s.admitted++
		q.again = s.now + s.rand.Int64N(100)*tick
	case o.Phase == Refused && !q.refused:
		q.refused = true
		s.refused++
	}
}

// hold is a Hold at the owner.
func (s *sim) hold(q *request, h Hold, hear func(uint8, Answer)) {
	r := q.rows[h.Self]
	if !s.acts(r) {
		return
	}
	now := s.now + r.clock
	v, a, changed := r.state.Judge(&h, now)
	if v == Fresh {
		cost, used := s.costs(q, h.Self), 0
		for _, n := range r.spent {
			used += n
		}
		var no *Refusal
		if used+cost > capacity || s.one(12) {
			no = &Refusal{Demands: 1, RetryAt: now + tick}
		} else {
			r.spent[h.ID] = cost
		}
		a, changed = r.state.Vote(&h, now, no), true
	}
	r.note()
	s.answers(r, changed, func() { hear(h.Self, a) })
}

func (s *sim) costs(q *request, self uint8) (n int) {
	for _, of := range q.Of {
		if of == self {
			n++
		}
	}
	return n
}

// tell is a Word at the owner.
func (s *sim) tell(w *Word, _ *row, hear func(uint8, Answer)) {
	r := s.row(w.Key)
	if !s.acts(r) {
		return
	}
	a, e, changed := r.state.Told(w, s.now+r.clock)
	r.done(e, s.settledAt(w.ID, r, e.Costs))
	r.note()
	s.answers(r, changed, func() { hear(w.To, a) })
}

// settledAt is what an admission cost in the end at a row.
func (s *sim) settledAt(id ID, r *row, costs []uint64) (n int) {
	if costs == nil {
		return 0
	}
	q := s.requests[id.Sequence-1]
	for i, of := range q.Of {
		if q.rows[of] == r {
			n += int(costs[i])
		}
	}
	return n
}

func (s *sim) row(key string) *row {
	for _, r := range s.rows {
		if r.name == key {
			return r
		}
	}
	panic(key)
}

// wake lets time pass at an owner.
func (s *sim) wake(r *row) {
	if !s.acts(r) {
		return
	}
	now := s.now + r.clock
	at, ok := r.state.Next()
	if !ok || at > now {
		return
	}
	var ids []ID
	r.state.Each(func(v *Vote) bool {
		ids = append(ids, v.ID)
		return true
	})
	slices.SortFunc(ids, func(a, b ID) int { return int(a.Sequence) - int(b.Sequence) })
	changed := false
	for _, id := range ids {
		if v := r.state.Find(id); s.time && v.Phase == Held && now >= v.Until+Patience {
			r.done(r.state.cancel(v, now), 0)
			changed = true
			continue
		}
		e, did := r.state.Expire(id, now)
		r.done(e, 0)
		changed = changed || did
		questions, words := r.state.Due(id, now)
		for _, q := range questions {
			s.ask(r, q)
		}
		for _, w := range words {
			s.send(func() { s.tell(&w, nil, s.hears(r, w.ID)) })
		}
	}
	r.note()
	if changed {
		s.answers(r, true, func() {})
	}
}

// drains has what is spent come back with time, but for what is held.
func (s *sim) drains(r *row) {
	for id := range r.spent {
		if p := r.seen[id]; p != Held && p != Admitted && s.one(10) {
			delete(r.spent, id)
		}
	}
}

// hears returns what a participant does with an answer. It is lost with its owner.
func (s *sim) hears(r *row, id ID) func(uint8, Answer) {
	epoch := r.epoch
	return func(from uint8, a Answer) {
		if r.epoch != epoch || !s.acts(r) {
			return
		}
		e, changed := r.state.Answered(id, from, a, s.now+r.clock)
		r.done(e, s.settledAt(id, r, e.Costs))
		r.note()
		s.answers(r, changed, func() {})
	}
}

func (s *sim) ask(r *row, q Question) {
	hear := s.hears(r, q.ID)
	if s.deaf && s.one(2) {
		s.send(func() { hear(q.To, Answer{Phase: Aborted}) })
	}
	s.send(func() {
		other := s.row(q.Key)
		if !s.acts(other) {
			return
		}
		a, changed := other.state.Asked(&q, s.now+other.clock)
		other.note()
		s.answers(other, changed, func() { hear(q.To, a) })
	})
}

// table lets owners die, rows move and standbys be copied.
func (s *sim) table() {
	for _, r := range s.rows {
		if s.now < r.frozen {
			continue
		}
		change := func(freeze int) {
			s.epoch++
			r.epoch, r.waiting, r.frozen = s.epoch, nil, s.now+int64(freeze)*tick
		}
		promote := func(from *row, freeze int) {
			state, spent, seen := from.state, from.spent, from.seen
			change(freeze)
			r.state, r.spent, r.seen = state, spent, seen
		}
		switch x := s.rand.IntN(500); {
		case x == 0 && !r.alone && r.arrived == r.sent: // it moves
			promote(r.copy, s.rand.IntN(4))
			r.copied()
		case x <= 2 && !r.alone: // the owner dies
			promote(r.copy, 5+s.rand.IntN(20))
			r.alone = true
			if s.one(6) { // and so does its standby
				s.lose(r)
			}
		case x == 3 && r.alone:
			change(5 + s.rand.IntN(20))
			s.lose(r)
		case x == 4: // it cannot be reached
			r.frozen = s.now + s.rand.Int64N(400)*tick
		case x < 20 && r.alone:
			change(0)
			r.copied()
		}
	}
}

func (s *sim) lose(r *row) {
	s.lost++
	r.lost++
	r.lostAt = r.frozen
	r.state = NewState(Config{Window: window})
	r.state.Lost, r.state.Since = r.epoch, r.frozen+r.clock
	r.spent, r.seen = map[ID]int{}, map[ID]Phase{}
	r.alone = true
}

// live is a step of the callers.
func (s *sim) live() {
	if !s.calm && s.one(25) {
		s.requests = append(s.requests, s.newRequest())
		s.begin(s.requests[len(s.requests)-1])
	}
	for _, q := range s.requests {
		if s.now >= q.stops || s.now < q.again {
			continue
		}
		q.again = s.now + (30+s.rand.Int64N(200))*tick
		switch {
		case q.refused && !q.admitted:
			q.stops = s.now
		case !q.admitted:
			if s.now-q.began < window/2-20*Patience {
				s.begin(q)
			}
			if s.one(4) && q.Hold > 0 { // it does not wait to be told
				s.settle(q)
			}
		case q.Hold > 0:
			s.settle(q)
		}
	}
}

func (s *sim) settle(q *request) {
	if q.costs == nil {
		for range q.Of {
			q.costs = append(q.costs, uint64(s.rand.IntN(4)))
		}
		s.settled++
	}
	for i, r := range q.rows {
		if q.settled.Has(uint8(i)) || s.one(3) {
			continue
		}
		s.send(func() {
			if !s.acts(r) {
				return
			}
			a, e, changed := r.state.Settle(q.ID, q.costs, s.now+r.clock)
			r.done(e, s.settledAt(q.ID, r, e.Costs))
			r.note()
			s.answers(r, changed, func() {
				s.send(func() {
					if a.Phase == Settled || a.Phase == Forgotten {
						q.settled |= One(uint8(i))
					}
				})
			})
		})
	}
	if s.one(4) {
		q.stops = s.now
	}
}

func (s *sim) newRequest() *request {
	q := &request{ID: ID{reqid.Client{Hi: 1, Lo: 2}, uint64(len(s.requests) + 1)}, began: s.now}
	for _, i := range s.rand.Perm(testKeys)[:2+s.rand.IntN(3)] {
		q.rows = append(q.rows, s.rows[i])
		q.losses = append(q.losses, s.rows[i].lost)
		q.Of = append(q.Of, uint8(len(q.Keys)))
		q.Keys = append(q.Keys, s.rows[i].name)
	}
	if s.one(3) {
		q.Of = append(q.Of, 0)
	}
	q.Names = make([]uint32, len(q.Of))
	if s.one(2) {
		q.Hold, q.Charge = s.rand.Int64N(200)*tick+1, s.one(2)
	}
	q.again = s.now + s.rand.Int64N(100)*tick
	q.stops = s.now + s.rand.Int64N(600)*tick
	return q
}
