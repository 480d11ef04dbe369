package owner

import (
	"github.com/keystead/keystead/owner/gather"
	"github.com/keystead/keystead/owner/internal/flat"
)

// gathering is what a shard has of barriers, and of callers that await something.
type gathering struct {
	gathers  flat.Slab[gather.State]
	gatherFx gather.Effects                         // of the last step of a barrier; reused
	parties  []uint64                               // numbers of parties of a barrier that changed since the last record; reused
	gates    map[uint32]*gates[PhaseAnswer]         // by barrier, in gathers: the calls that wait for its phase
	children map[uint32]uint32                      // barriers that are phasers with a parent, in gathers: their slots
	sums     map[address]map[Cond]*gates[GetAnswer] // counters that are awaited, each with its conditions
}

// Callers that await something of an object, and whose order nobody promised, stand in no queue:
// nothing of them is recorded, and nothing moves with their object. They wait in gates, some in
// each. When what they await comes, the answer is put into all of its gates under the lock of
// the shard, and the gates are opened without it.
//
//	phase p ─▶ gate (64 callers) gate gate …      Arrive: the last one
//	              │                                  │ puts the answer there
//	              └── opened one after the other ◀───┘
//
// Whatever takes the object from here opens the gates, too: the callers ask again.

// gateSize is how many callers one gate has: to open it takes a few microseconds.
const gateSize = 64

// gate is where some callers wait for an answer.
type gate[A any] struct {
	open   chan struct{}
	of     *gates[A] // nil once it is open; guarded by the shard's mutex, as n
	n      int       // callers
	answer A         // constant once it is open
	again  bool      // there is no answer: ask again
}

// gates are those of one thing that is awaited.
type gates[A any] struct {
	hash uint64 // of the key
	n    int    // callers
	all  []*gate[A]
	room []*gate[A] // those that have room for one more
}

// Pending is a caller that awaits an answer. End is to be called once, when it does not any
// more.
type Pending[A any] struct {
	sh *shard
	g  *gate[A]
}

// Done is closed when there is an answer, or reason to ask again.
func (p *Pending[A]) Done() <-chan struct{} { return p.g.open }

// Answer returns the answer, once Done is closed; false if the caller has to ask again.
func (p *Pending[A]) Answer() (A, bool) { return p.g.answer, !p.g.again }

// End is for a caller that does not wait any more.
func (p *Pending[A]) End() {
	p.sh.store.waiting.Add(-1)
	select {
	case <-p.g.open:
		return // nobody needs its place
	default:
	}
	p.sh.mu.Lock()
	defer p.sh.mu.Unlock()
	of := p.g.of
	if of == nil {
		return
	}
	of.n--
	//guard:gate-room
	if p.g.n--; p.g.n == gateSize-1 {
		of.room = append(of.room, p.g)
	}
}

// pendLocked gives a caller a place in a gate of what it awaits. It is nil with an error.
func pendLocked[K comparable, A any](sh *shard, all map[K]*gates[A], what K, hash uint64) (*Pending[A], error) {
	s := sh.store
	//guard:awaits-bound
	if s.waiting.Add(1) > s.cfg.MaxWaiters {
		s.waiting.Add(-1)
		return nil, errWaiters
	}
	of := all[what]
	if of == nil {
		of = &gates[A]{hash: hash}
		all[what] = of
	}
	if len(of.room) == 0 {
		g := &gate[A]{open: make(chan struct{}), of: of}
		of.all, of.room = append(of.all, g), append(of.room, g)
	}
	g := of.room[len(of.room)-1]
	of.n++
	if g.n++; g.n == gateSize {
		of.room = of.room[:len(of.room)-1]
	}
	return &Pending[A]{sh, g}, nil
}

// endLocked answers the waiters, or has them ask again. None comes to these gates any more.
func (of *gates[A]) endLocked(answer A, again bool) {
	for _, g := range of.all {
		g.of, g.answer, g.again = nil, answer, again
	}
	if len(of.all) == 1 {
		close(of.all[0].open)
		return
	}
	go openAll(of.all) // not under the lock of the shard
}

func openAll[A any](all []*gate[A]) {
	for _, g := range all {
		close(g.open)
	}
}

// dismissAwaits has calls ask again that await something of keys that have another owner.
func (sh *shard) dismissAwaits(lost func(hash uint64) bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for barrier, of := range sh.gates {
		if lost(of.hash) {
			sh.endPhaseLocked(barrier, PhaseAnswer{}, true)
		}
	}
	for at, sums := range sh.sums {
		for cond, of := range sums {
			if lost(of.hash) {
				delete(sums, cond)
				of.endLocked(GetAnswer{}, true)
			}
		}
		if len(sums) == 0 {
			delete(sh.sums, at)
		}
	}
}
