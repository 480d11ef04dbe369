package lease

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
)

// The model: holders and a succession of leaders, with clocks that drift, lost
// and late messages, sleeps, removals that are proposed and committed later or
// never. Raft is a number: the term that a majority of the voters is in.

const (
	ttl    = 1000
	margin = 50
	drift  = 0.024 // (ttl+margin)/(1+drift) >= ttl/(1-drift)

	servers = 3
	holders = 3
	horizon = 25 * ttl
)

type key struct{ node, incarnation int }

// wrong is what a caller of the package may get wrong. The model finds each out.
type wrong struct {
	noProof       bool // the leader grants because it believes that it leads
	countAnswer   bool // the holder counts from the answer
	readyAtOnce   bool // a new leader does not wait for its barrier
	silentRemoval bool // the leader does not say that it proposes a removal
}

type event struct {
	at, seq int64
	party   int // that has to be awake; -1 = none
	do      func()
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(e any)   { *q = append(*q, e.(event)) }
func (q *queue) Pop() any     { e := (*q)[len(*q)-1]; *q = (*q)[:len(*q)-1]; return e }

type world struct {
	wrong
	r      *rand.Rand
	q      queue
	now    int64 // real time
	seq    int64
	rate   []float64
	offset []int64
	awake  []int64 // when a party wakes up

	term    uint64
	leader  int
	table   map[key]bool // committed
	removed map[key]bool
	pending *proposal
	grants  []*Grants[key]
	busy    []bool // a server's proposal is under way
	holder  []*model
	fault   string

	granted, removals, elections int
}

type proposal struct {
	gone []key
	term uint64
}

type model struct {
	node, incarnation, target int
	holding                   Holding
	until                     int64
	retired                   bool
}

func (m *model) key() key { return key{m.node, m.incarnation} }

func newWorld(seed uint64, how wrong) *world {
	w := &world{wrong: how, r: rand.New(rand.NewPCG(seed, 1)), table: map[key]bool{}, removed: map[key]bool{}, busy: make([]bool, servers)}
	for p := range servers + holders {
		w.rate = append(w.rate, 1+drift*(2*w.r.Float64()-1))
		w.offset = append(w.offset, w.r.Int64N(1e6))
		w.awake = append(w.awake, 0)
		if p < servers {
			w.grants = append(w.grants, NewGrants[key](Config{TTL: ttl, Margin: margin}))
			w.every(p, ttl/40, func() { w.tick(p) })
		}
		w.every(-1, 6*ttl, func() { w.awake[p] = w.now + w.r.Int64N(2*ttl) })
	}
	for n := range holders {
		m := &model{node: n, incarnation: 1}
		w.holder = append(w.holder, m)
		w.every(servers+n, ttl/4, func() { w.renew(m) })
		w.every(servers+n, 2*ttl, func() { m.target = w.leader })
		w.every(servers+n, 20*ttl, func() { m.holding.Drop(); m.until = 0 }) // its clocks do not agree
		w.every(servers+n, 40*ttl, func() { w.retire(m) })
	}
	w.every(-1, 3*ttl, w.elect)
	w.elect()
	return w
}

func (w *world) clock(party int) int64 {
	return w.offset[party] + int64(float64(w.now)*w.rate[party])
}

// after does something when some time of at most `most` is over and the party is
// awake.
func (w *world) after(party int, most int64, do func()) {
	w.seq++
	heap.Push(&w.q, event{w.now + 1 + w.r.Int64N(most), w.seq, party, do})
}

func (w *world) every(party int, about int64, do func()) {
	w.after(party, 2*about, func() { do(); w.every(party, about, do) })
}

func (w *world) lost() bool { return w.r.IntN(10) == 0 }

func (w *world) run() {
	for w.now < horizon && w.fault == "" {
		e := heap.Pop(&w.q).(event)
		w.now = max(w.now, e.at)
		if e.party >= 0 && w.awake[e.party] > w.now {
			// What waited for it to wake up comes in any order.
			e.at = w.awake[e.party] + w.r.Int64N(5)
			heap.Push(&w.q, e)
			continue
		}
		e.do()
	}
}

// elect makes a server the leader of a new term. The old one finds out later.
func (w *world) elect() {
	was := w.leader
	w.term++
	w.elections++
	w.leader = w.r.IntN(servers)
	term, s := w.term, w.leader
	if w.r.IntN(2) == 0 {
		w.pending = nil // it was in no log that counts any more
	}
	w.after(was, 2*ttl, func() {
		if w.grants[was].Term() != w.term {
			w.grants[was].Follow()
		}
	})
	w.after(s, ttl/2, func() {
		if term != w.term {
			return
		}
		w.grants[s].BeginTerm(term, w.clock(s))
		if w.readyAtOnce {
			w.grants[s].Ready(agreed)
		}
		w.sync(s)
		w.after(s, ttl, func() {
			if term != w.term {
				return
			}
			if p := w.pending; p != nil { // the barrier commits what is in the log
				w.commit(p)
			}
			w.grants[s].Ready(agreed)
			w.sync(s)
		})
	})
}

func (w *world) sync(s int) {
	var keys []key
	for k := range w.table {
		keys = append(keys, k)
	}
	w.grants[s].Members(w.clock(s), keys)
}

func (w *world) tick(s int) {
	g := w.grants[s]
	if g.Term() == 0 {
		return
	}
	now := w.clock(s)
	g.Tick(now)
	over := g.Expired(now)
	if len(over) == 0 || w.busy[s] || g.Term() != w.term || w.pending != nil {
		return
	}
	for _, k := range over {
		w.mustBeOver(k, "called expired")
	}
	if !w.silentRemoval {
		g.Removing(over)
	}
	p := &proposal{over, w.term}
	w.pending, w.busy[s] = p, true
	w.after(-1, ttl, func() {
		w.busy[s] = false
		if w.pending == p && w.term == p.term {
			w.commit(p)
			w.after(s, ttl/10, func() { w.sync(s) })
		}
	})
}

// mustBeOver is the invariant.
func (w *world) mustBeOver(k key, what string) {
	m := w.holder[k.node]
	if left := m.until - w.clock(servers+k.node); m.key() == k && left > 0 {
		w.fault = fmt.Sprintf("at %d, term %d: the lease of %v was %s, and the holder has %d left", w.now, w.term, k, what, left)
	}
}

func (w *world) commit(p *proposal) {
	w.pending = nil
	for _, k := range p.gone {
		if !w.table[k] {
			continue
		}
		w.mustBeOver(k, "removed")
		delete(w.table, k)
		w.removed[k] = true
		w.removals++
		w.after(servers+k.node, ttl, func() {
			if m := w.holder[k.node]; m.key() == k {
				m.holding.Forget()
				m.until, m.retired = 0, false
				m.incarnation++
			}
		})
	}
}

func (w *world) renew(m *model) {
	if m.retired {
		return
	}
	stamp, k, s := m.holding.Send(w.clock(servers+m.node)), m.key(), m.target
	if w.lost() {
		return
	}
	w.after(s, ttl/2, func() { w.received(m, k, s, stamp, false) })
}

func (w *world) retire(m *model) {
	k, s := m.key(), m.target
	m.holding.Drop()
	m.until, m.retired = 0, true
	w.after(s, ttl/2, func() { w.received(m, k, s, Stamp{}, true) })
	w.after(servers+m.node, 4*ttl, func() {
		if m.key() == k { // nobody heard it: another process begins
			m.retired, m.incarnation = false, m.incarnation+1
		}
	})
}

func (w *world) received(m *model, k key, s int, stamp Stamp, release bool) {
	g, received := w.grants[s], w.clock(s)
	term := g.Term()
	if term == 0 {
		return
	}
	w.after(-1, ttl/4, func() {
		proved := w.term == term || w.noProof
		w.after(s, ttl/4, func() {
			switch {
			case !proved || g.Term() != term:
			case release:
				g.Release(k)
			default:
				w.answer(m, k, s, stamp, received)
			}
		})
	})
}

func (w *world) answer(m *model, k key, s int, stamp Stamp, received int64) {
	g := w.grants[s]
	term := g.Term()
	grant, v := g.Grant(k, received, stamp.Term, stamp.Grant)
	if v == NotMember && term == w.term && !w.removed[k] {
		for other := range w.table {
			if other.node == k.node {
				return
			}
		}
		w.table[k] = true
		w.sync(s)
	}
	if v != Granted || w.lost() {
		return
	}
	w.granted++
	w.after(servers+m.node, ttl/2, func() {
		if m.key() != k || m.retired {
			return
		}
		if w.countAnswer {
			stamp.Sent = w.clock(servers + m.node)
		}
		m.until = m.holding.Received(stamp, ttl, term, grant)
		if w.removed[k] {
			w.mustBeOver(k, "removed before")
		}
	})
}

// TestLeasesThatAreCalledExpiredAreOver runs the model as it should be.
func TestLeasesThatAreCalledExpiredAreOver(t *testing.T) {
	granted, removals, elections := 0, 0, 0
	for seed := range uint64(400) {
		w := newWorld(seed, wrong{})
		w.run()
		if w.fault != "" {
			t.Fatalf("seed %d: %s", seed, w.fault)
		}
		granted, removals, elections = granted+w.granted, removals+w.removals, elections+w.elections
	}
	if granted < 10_000 || removals < 1000 || elections < 2000 {
		t.Errorf("the model is too quiet: %d grants, %d removals, %d elections", granted, removals, elections)
	}
	t.Logf("%d grants, %d removals, %d elections", granted, removals, elections)
}

// findsOut runs the model with something wrong and expects two owners.
func findsOut(t *testing.T, how wrong) {
	t.Helper()
	for seed := range uint64(5000) {
		w := newWorld(seed, how)
		if w.run(); w.fault != "" {
			t.Logf("seed %d: %s", seed, w.fault)
			return
		}
	}
	t.Error("nothing went wrong, so the model would not see it")
}

// TestTrap01NoProof: a leader that only believes that it leads.
func TestTrap01NoProof(t *testing.T) { findsOut(t, wrong{noProof: true}) }

// TestTrap02GrantBeforeTheBarrier: the removal is in the new leader's log.
func TestTrap02GrantBeforeTheBarrier(t *testing.T) {
	findsOut(t, wrong{readyAtOnce: true})
	g := NewGrants[key](Config{TTL: ttl, Margin: margin})
	g.BeginTerm(1, 0)
	g.Members(0, []key{{1, 1}})
	if _, v := g.Grant(key{1, 1}, 10, 0, 0); v != NotNow {
		t.Errorf("before the barrier the verdict is %d", v)
	}
	if over := g.Expired(10 * ttl); len(over) > 0 {
		t.Errorf("before the barrier %v are called expired", over)
	}
	g.Ready(agreed)
	g.Members(10, []key{{1, 1}})
	if _, v := g.Grant(key{1, 1}, 10, 0, 0); v != Granted {
		t.Errorf("after it %d", v)
	}
}

// TestTrap04CountFromTheAnswer: the holder counts from when it sent.
func TestTrap04CountFromTheAnswer(t *testing.T) {
	findsOut(t, wrong{countAnswer: true})
	var h Holding
	if got := h.Received(h.Send(100), ttl, 1, 1); got != 100+ttl {
		t.Errorf("sent at 100, it runs until %d", got)
	}
}
