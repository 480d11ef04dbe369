package owner

import (
	"container/heap"
	"sync"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/queue"
)

// wakes are the moments at which time changes an object that callers wait for.
type wakes struct {
	mu     sync.Mutex
	heap   wakeHeap      // guarded by mu
	signal chan struct{} // capacity 1: the earliest wake has changed
}

type wake struct {
	at int64
	of wakeOf
}

type wakeOf struct {
	sh   *shard
	slot uint32
}

// wakeHeap has one wake at most for each object.
type wakeHeap struct {
	wakes []wake
	place map[wakeOf]int // Invariant: wakes[place[of]].of == of
}

func (h *wakeHeap) Len() int           { return len(h.wakes) }
func (h *wakeHeap) Less(i, j int) bool { return h.wakes[i].at < h.wakes[j].at }
func (h *wakeHeap) Swap(i, j int) {
	h.wakes[i], h.wakes[j] = h.wakes[j], h.wakes[i]
	h.place[h.wakes[i].of], h.place[h.wakes[j].of] = i, j
}

func (h *wakeHeap) Push(x any) {
	h.place[x.(wake).of] = len(h.wakes)
	h.wakes = append(h.wakes, x.(wake))
}

func (h *wakeHeap) Pop() any {
	last := h.wakes[len(h.wakes)-1]
	h.wakes = h.wakes[:len(h.wakes)-1]
	delete(h.place, last.of)
	return last
}

func (w *wakes) add(x wake) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i, ok := w.heap.place[x.of]; ok {
		w.heap.wakes[i].at = x.at
		heap.Fix(&w.heap, i)
	} else {
		heap.Push(&w.heap, x)
	}
	if w.heap.wakes[0] == x {
		select {
		case w.signal <- struct{}{}:
		default:
		}
	}
}

// due removes and returns a wake whose time has come.
func (w *wakes) due(now int64) (wake, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.heap.Len() == 0 || w.heap.wakes[0].at > now {
		return wake{}, false
	}
	return heap.Pop(&w.heap).(wake), true
}

// NextWake returns the moment at which Wake has something to do, if there is one.
func (s *Store) NextWake() (at int64, ok bool) {
	s.wakes.mu.Lock()
	defer s.wakes.mu.Unlock()
	if s.wakes.heap.Len() == 0 {
		return 0, false
	}
	return s.wakes.heap.wakes[0].at, true
}

// WakeChanged receives when NextWake has become earlier.
func (s *Store) WakeChanged() <-chan struct{} { return s.wakes.signal }

// Wake lets time pass for the objects that callers wait for, where it changes
// something by now.
func (s *Store) Wake(now int64) {
	for {
		x, ok := s.wakes.due(now)
		if !ok {
			return
		}
		x.of.sh.wake(x, now)
	}
}

// scheduleLocked asks for a wake when the object needs one earlier than asked for
// already. Wakes that have become needless find nothing to do.
func (t *target) scheduleLocked() {
	if t.e == nil {
		return
	}
	at, ok := t.nextWakeLocked()
	if !ok {
		return
	}
	if before, ok := t.sh.scheduled[t.slot]; ok && before <= at {
		return
	}
	t.sh.scheduleLocked(t.slot, at)
}

// nextWakeLocked returns when time changes the object for its waiters, if it does.
func (t *target) nextWakeLocked() (at int64, ok bool) {
	if timed := machines[t.kind].timed; timed != nil {
		return timed.next(t.sh, t.e)
	}
	if l := t.sh.lineLocked(t.e); l.object != nil {
		return l.object.NextWake(t.now)
	}
	return 0, false
}

func (sh *shard) scheduleLocked(slot uint32, at int64) {
	if sh.scheduled == nil {
		sh.scheduled = map[uint32]int64{}
	}
	sh.scheduled[slot] = at
	sh.store.wakes.add(wake{at, wakeOf{sh, slot}})
}

// retryWake is how long until the next try for an object that could not be served:
// the rule did not let the node act for it.
const retryWake = int64(100_000_000)

// retryLocked has the object tried again in a while.
func (t *target) retryLocked() { t.sh.scheduleLocked(t.slot, t.sh.now+retryWake) }

func (sh *shard) wake(x wake, now int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.scheduled[x.of.slot] != x.at {
		return // an earlier wake took its place, or the object is gone
	}
	delete(sh.scheduled, x.of.slot)
	sh.now = max(sh.now, now)
	t := sh.targetLocked(x.of.slot)
	if timed := machines[t.kind].timed; timed != nil {
		sh.wakeTimed(t, timed)
		return
	}
	l := sh.lineLocked(t.e)
	if l.object == nil {
		return // nobody waits any more
	}
	var err error
	if t.permit, err = sh.store.cfg.Rule.Admit(t.hash, now); err == nil {
		if sh.isCopyLocked(t.slot) {
			err = t.ownLocked(OwnGrace)
		} else {
			err = machines[t.kind].waits.step(t)
		}
	}
	if err == nil {
		return
	}
	here := sh.endOverLocked(x.of.slot, l, now, err)
	switch waiting := l.places.Len() > 0; {
	case here || waiting && failure.ReasonOf(err) != failure.NotOwner:
		t.retryLocked()
	case waiting:
		sh.copyLocked(t.slot)
	}
}

// endOverLocked answers the callers whose time is over, whether or not this node may act for the
// object. It reports whether callers are here.
func (sh *shard) endOverLocked(slot uint32, l line, now int64, err error) (here bool) {
	var over []*waiter
	l.places.Callers(func(ticket uint64, _ *queue.Caller, giveUp int64) bool {
		w := sh.waits[ticket]
		if w == nil || w.away() {
			return true
		}
		if here = true; now >= giveUp {
			over = append(over, w)
		}
		return len(over) < queue.MaxExpire
	})
	for _, w := range over {
		w.leaveLocked(slot, err)
	}
	return here
}

// wakeTimed lets time pass for an object without a queue.
func (sh *shard) wakeTimed(t target, of timed) {
	if at, ok := of.next(sh, t.e); !ok {
		return
	} else if at > t.now {
		t.scheduleLocked()
		return
	}
	var err error
	if t.permit, err = sh.store.cfg.Rule.Admit(t.hash, t.now); err == nil {
		err = of.lapse(t)
	}
	if err != nil && failure.ReasonOf(err) != failure.NotOwner {
		t.retryLocked()
	}
}
