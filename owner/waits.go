package owner

import (
	"container/heap"
	"sync"
	"unsafe"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// waiterSize is what a place in a queue takes, without the text that it refers to.
const waiterSize = int(unsafe.Sizeof(lock.Waiter{}))

// Wait is a caller in the queue of a lock.
type Wait struct {
	sh     *shard
	ref    Ref
	ticket uint64
	id     reqid.ID
	print  uint32
	text   int           // bytes of holder and metadata, counted while it waits
	done   chan struct{} // closed when the answer is there; nil = the caller is not here (see Own, Detach)

	counts bool // it is one of Store.waiting: it waits here, or did before it was detached

	// Guarded by sh.mu until done is closed, constant from then on.
	answer AcquireAnswer
	err    error
}

// away reports whether nobody waits here for the place: it came from elsewhere, or
// its caller was detached or has left.
func (w *Wait) away() bool { return w.done == nil }

// waitID finds the caller in a queue that has a request id.
type waitID struct {
	slot   uint32
	client reqid.Client
	seq    uint64
}

// Done is closed when the answer is there.
func (w *Wait) Done() <-chan struct{} { return w.done }

// Answer is the answer, once Done is closed.
func (w *Wait) Answer() (AcquireAnswer, error) { return w.answer, w.err }

// Waits reports whether a call with this request id has a place in the queue of a lock, so
// that another one with it takes that over.
func (s *Store) Waits(ref Ref, id reqid.ID) bool {
	if !id.Given() {
		return false
	}
	sh := s.shard(Hash(ref.Key))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slot := sh.findLocked(s.addressTag(ref), ref)
	return slot != 0 && sh.waitIDs[waitID{slot, id.Client, id.Sequence}] != nil
}

// addWaitLocked registers a caller that has just been queued.
func (s *Store) addWaitLocked(t *target, ticket uint64, id reqid.ID, print uint32, text int) *Wait {
	sh := t.sh
	w := &Wait{text: text, sh: sh, ref: t.ref, ticket: ticket, id: id, print: print, done: make(chan struct{}), counts: true}
	if sh.waits == nil {
		sh.waits, sh.waitIDs = map[uint64]*Wait{}, map[waitID]*Wait{}
	}
	sh.waits[ticket] = w
	sh.lockText += text
	if id.Given() {
		sh.waitIDs[waitID{t.slot, id.Client, id.Sequence}] = w
	}
	s.waiting.Add(1)
	return w
}

// recordLocked remembers what became of a place, for the next record: nil = it is gone.
func (w *Wait) recordLocked(place *lock.Waiter) {
	sh := w.sh
	if sh.store.places == nil || !w.id.Given() {
		return
	}
	m := Move{Gone: place == nil}
	if place != nil {
		m.Waiter = *place
	}
	m.Caller = queue.Caller{ID: w.id, Print: w.print}
	sh.moves = append(sh.moves, m)
}

// finishLocked takes a caller out of the books and delivers its answer.
func (w *Wait) finishLocked(slot uint32, answer AcquireAnswer, err error) {
	sh := w.sh
	delete(sh.waits, w.ticket)
	if key := (waitID{slot, w.id.Client, w.id.Sequence}); sh.waitIDs[key] == w {
		delete(sh.waitIDs, key)
	}
	sh.lockText -= w.text
	if w.counts {
		sh.store.waiting.Add(-1)
	}
	if w.away() {
		return
	}
	w.answer, w.err = answer, err
	close(w.done)
}

// leaveLocked answers a caller whose lock the rule does not let the node act for.
// Its place has given up: the next step drops it, with all who left likewise. One
// that has a request id stays in the books until then, for copies have it as well.
func (w *Wait) leaveLocked(slot uint32, err error) {
	sh := w.sh
	w.finishLocked(slot, AcquireAnswer{}, err)
	if slot == 0 || !sh.locks.At(sh.entryLocked(slot).lock).Leave(w.ticket) || !w.id.Given() {
		return
	}
	sh.addAwayLocked(slot, w.ticket, w.ref, queue.Caller{ID: w.id, Print: w.print}, w.text)
}

// supersedeLocked hands the place of a waiting call to a retry of it, and
// returns the retry's Wait; nil if no such call waits.
func (t *target) supersedeLocked(id *reqid.ID, print uint32, wait int64) (*Wait, error) {
	if !id.Given() || t.slot == 0 || t.e.lock == 0 {
		return nil, nil
	}
	old := t.sh.waitIDs[waitID{t.slot, id.Client, id.Sequence}]
	if old == nil {
		return nil, nil
	}
	was := queue.Caller{ID: old.id, Print: old.print}
	switch was.Judge(&queue.Caller{ID: *id, Print: print}, old.away()) {
	case queue.Reused:
		return nil, errReused
	case queue.Older:
		return nil, errSuperseded // it was held up: a later attempt of the request waits
	}
	ticket := t.sh.store.tickets.Add(1)
	if _, found := t.sh.locks.At(t.e.lock).Supersede(old.ticket, ticket, id, wait, t.now); !found {
		return nil, t.expireLocked() // its wait is over: what became of it is remembered then
	}
	old.finishLocked(t.slot, AcquireAnswer{}, errSuperseded)
	text := old.text
	if old.away() {
		text -= awaySize
	}
	w := t.sh.store.addWaitLocked(t, ticket, *id, old.print, text)
	//guard:place-changed
	w.recordLocked(t.sh.locks.At(t.e.lock).Queue.Find(ticket))
	t.sh.version++
	t.changedLocked(&reqid.ID{}, reqid.Outcome{})
	if t.sh.locks.At(t.e.lock).Token == 0 { // it was kept for the head, which may be this one
		_ = t.expireLocked() // a wake follows if it fails
	}
	t.scheduleLocked()
	return w, nil
}

// noteAnswersLocked remembers the answers that tellLocked gives under the
// request ids of those whom the last step of a lock concerned. One record has all
// of them: a copy must not know of a grant and not for whom it is.
func (t *target) noteAnswersLocked() {
	sh := t.sh
	for _, over := range sh.fx.TimedOut {
		w := sh.waits[over.Ticket]
		if w == nil {
			continue // it left, and had no request id
		}
		//guard:place-gone
		w.recordLocked(nil)
		if !w.away() && w.id.Given() {
			t.noteLocked(&w.id, reqid.Outcome{Print: w.print, Code: refused})
		}
	}
	g := sh.fx.Grant
	if g.Token == 0 {
		return
	}
	if w := sh.waits[g.Ticket]; w != nil && w.id.Given() {
		w.recordLocked(nil)
		t.noteLocked(&w.id, reqid.Outcome{Print: w.print, Code: done, A: int64(g.Token), B: g.Waited})
	}
}

// tellLocked gives those their answers whom the last step of a lock concerned:
// the one that was granted it, and those whose wait was over. A place whose caller is not
// here, and whose time is over, was nobody's: should its caller come back all the
// same, it begins anew.
func (t *target) tellLocked() {
	sh := t.sh
	for _, over := range sh.fx.TimedOut {
		w := sh.waits[over.Ticket]
		if w == nil {
			continue // it left, and had no request id
		}
		w.finishLocked(t.slot, AcquireAnswer{
			Holder: sh.locks.At(t.e.lock).Holding(t.now), Place: over.Position, Meta: Meta{Permit: t.permit},
		}, nil)
	}
	g := sh.fx.Grant
	if g.Token == 0 {
		return
	}
	sh.tokenUsedLocked(g.Token)
	w := sh.waits[g.Ticket]
	if w == nil || w.away() {
		panic("owner: a lock was granted to nobody")
	}
	w.finishLocked(t.slot, AcquireAnswer{
		Acquired: true, Token: g.Token, TTL: g.Expires - sh.locks.At(t.e.lock).At, Waited: g.Waited, Meta: Meta{Permit: t.permit},
	}, nil)
}

// GiveUp is for a caller that has left: it leaves the queue, and if the lock was
// granted to it, or is in this very moment, gives it back, so that nobody waits
// for somebody who is gone. A replay of the request then says that the grant is
// over. A grant that a retry has been told of in the meantime is the retry's.
func (w *Wait) GiveUp(now int64) {
	s := w.sh.store
	t := target{ref: w.ref, kind: KindLock, now: now}
	if err := t.enter(s); err != nil {
		// The rule lets nobody in: this node may not speak for the lock. The
		// caller must be told something all the same.
		w.sh.mu.Lock()
		defer w.sh.mu.Unlock()
		if !w.finished() {
			w.leaveLocked(w.sh.findLocked(s.addressTag(w.ref), w.ref), err)
		}
		return
	}
	defer t.leave()
	if w.finished() {
		if w.err == nil && w.answer.Acquired && t.sh.retold[t.slot] != w.answer.Token {
			_, _ = t.releaseLocked(w.answer.Token, &reqid.ID{}, 0) // its TTL ends it otherwise
		}
		return
	}
	if _, found := t.sh.locks.At(t.e.lock).Cancel(w.ticket, t.now); found {
		t.sh.version++
		t.countTextLocked()
		w.recordLocked(nil)
		t.changedLocked(&reqid.ID{}, reqid.Outcome{})
	}
	w.finishLocked(t.slot, AcquireAnswer{}, errGaveUp)
	t.scheduleLocked()
}

// Detach is for a caller whose way to this node has ended, while the caller may
// still be there: a node that passed it on, or this one, stops, or the stream
// between them broke. A place that has a request id is kept for OwnGrace, as one
// that moved here; see Own. Without one, nobody can come back to it, and it is given
// up.
//
// The result reports whether the lock was granted to it, so that the answer may be
// lost: GiveUp is to be called then, OwnGrace later.
func (w *Wait) Detach(now int64) (granted bool) {
	if !w.id.Given() {
		w.GiveUp(now)
		return false
	}
	sh := w.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if w.finished() {
		return w.err == nil && w.answer.Acquired
	}
	sh.now = max(sh.now, now)
	t := sh.targetLocked(sh.findLocked(sh.store.addressTag(w.ref), w.ref))
	sh.locks.At(t.e.lock).Detach(w.ticket, sh.now, OwnGrace)
	w.finishLocked(t.slot, AcquireAnswer{}, errGaveUp)
	//guard:detached-counted true -> false
	sh.addAwayLocked(t.slot, w.ticket, w.ref, queue.Caller{ID: w.id, Print: w.print}, w.text).counts = true
	//guard:detached-counted
	sh.store.waiting.Add(1)
	sh.accountLocked()
	t.scheduleLocked()
	return false
}

func (w *Wait) finished() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// wakes are the moments at which locks must be looked at because somebody's
// time runs out.
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

// wakeHeap has one wake at most for each lock.
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

// scheduleLocked asks for a wake when the lock needs one earlier than asked for
// already. Wakes that have become needless find nothing to do.
func (t *target) scheduleLocked() {
	if t.e == nil || t.e.lock == 0 {
		return
	}
	at, ok := t.sh.locks.At(t.e.lock).NextWake(t.now)
	if !ok {
		return
	}
	if before, ok := t.sh.scheduled[t.slot]; ok && before <= at {
		return
	}
	if t.sh.scheduled == nil {
		t.sh.scheduled = map[uint32]int64{}
	}
	t.sh.scheduled[t.slot] = at
	t.sh.store.wakes.add(wake{at, wakeOf{t.sh, t.slot}})
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

// due takes a wake whose time has come.
func (w *wakes) due(now int64) (wake, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.heap.Len() == 0 || w.heap.wakes[0].at > now {
		return wake{}, false
	}
	return heap.Pop(&w.heap).(wake), true
}

// NextWake is the moment at which Wake has something to do, if there is one.
func (s *Store) NextWake() (at int64, ok bool) {
	s.wakes.mu.Lock()
	defer s.wakes.mu.Unlock()
	if s.wakes.heap.Len() == 0 {
		return 0, false
	}
	return s.wakes.heap.wakes[0].at, true
}

// WakeChanged says that NextWake has become earlier.
func (s *Store) WakeChanged() <-chan struct{} { return s.wakes.signal }

// Wake lets time pass for the locks whose holder's or waiters' time has run
// out.
func (s *Store) Wake(now int64) {
	for {
		x, ok := s.wakes.due(now)
		if !ok {
			return
		}
		x.of.sh.wake(x, now)
	}
}

// retryWake is when a lock is looked at again that could not be served: the
// rule did not let the node act for it.
const retryWake = int64(100_000_000)

func (sh *shard) wake(x wake, now int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.scheduled[x.of.slot] != x.at {
		return // an earlier wake took its place, or the lock is gone
	}
	delete(sh.scheduled, x.of.slot)
	e := sh.entryLocked(x.of.slot)
	text := e.text()
	sh.now = max(sh.now, now)
	ref := Ref{Key: string(text[:e.keyLen]), Name: string(text[e.keyLen:])}
	t := target{sh: sh, e: e, slot: x.of.slot, kind: KindLock, hash: Hash(ref.Key), ref: ref, now: sh.now}
	var err error
	if t.permit, err = sh.store.cfg.Rule.Admit(t.hash, now); err == nil {
		if sh.isCopyLocked(t.slot) {
			err = t.ownLocked(OwnGrace)
		} else {
			err = t.expireLocked()
		}
	}
	if err == nil {
		return
	}
	places, here := sh.locks.At(e.lock).Queue.Places, false
	for i := range places {
		w := sh.waits[places[i].Ticket]
		if w == nil || w.away() {
			continue
		}
		if here = true; now >= places[i].GiveUp {
			w.leaveLocked(x.of.slot, err) // its time is over, whether or not this node may act
		}
	}
	switch {
	case here || len(places) > 0 && failure.ReasonOf(err) != failure.NotOwner:
		t.retryLocked()
	case len(places) > 0:
		sh.copyLocked(t.slot)
	}
}

// retryLocked has a lock looked at again in a while.
func (t *target) retryLocked() {
	if t.sh.scheduled == nil {
		t.sh.scheduled = map[uint32]int64{}
	}
	at := t.sh.now + retryWake
	t.sh.scheduled[t.slot] = at
	t.sh.store.wakes.add(wake{at, wakeOf{t.sh, t.slot}})
}
