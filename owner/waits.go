package owner

import (
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// waits is a kind whose callers wait in a queue (package queue). Its methods are
// called with the shard locked. They take targets by value: a pointer that goes to a
// method of an interface is allocated.
type waits interface {
	// line returns the queue of an object, the zero line if the object is absent.
	line(sh *shard, e *entry) line
	// step lets time pass for an object that is not absent: places whose time is over
	// go, and the head is served if it can be. If it fails, nothing has changed.
	step(t target) error
	// end ends the wait of a place whose time is over, if a step has left it.
	end(t target, ticket uint64)
	// changed adds a place, as it is now, to the next record.
	changed(sh *shard, e *entry, ticket uint64)
	// fits returns the error of a judged record that leads to a queue that no owner can
	// have, nil if it does not. The target may be in no cell.
	fits(t target, r *Record, judged any) error
	// part adds members to a record, at most MaxPart: what there is beside places, if after is 0,
	// and the places behind the one of that number. It returns the number of the last place that
	// it added, 0 if there are none behind.
	part(sh *shard, e *entry, r *Record, after uint64) (last uint64)
	// account counts the memory that a state refers to, after a change of its queue.
	account(sh *shard, e *entry)
}

// line is the queue of an object, whatever its callers ask for.
type line struct {
	places places // a *queue.Queue
	object waited // the state that it is in: the same queue, under the state's clock
}

// places is a queue.Queue.
type places interface {
	Len() int
	Caller(ticket uint64) *queue.Caller
	Callers(f func(ticket uint64, caller *queue.Caller, giveUp int64) bool)
	BeginGrace(until int64) (before int64)
	DetachAll()
	DetachOne(ticket uint64) bool
	Shorten(most int, f func(ticket uint64, caller *queue.Caller))
	Clear()
}

// waited is the state of an object that callers wait for. See queue.Queue.
type waited interface {
	Cancel(ticket uint64, now int64) (place int, found bool)
	Leave(ticket uint64) bool
	Detach(ticket uint64, now, grace int64) bool
	Supersede(old, ticket uint64, id reqid.ID, wait, now int64) (place int, found bool)
	Keep(ticket uint64, kept bool)
	NextWake(now int64) (int64, bool)
	Over(now int64) bool // nothing is left to wait for
	Kept() bool          // it is kept for the head of its queue
}

// lineLocked returns the queue of an object, the zero line if it has none.
func (sh *shard) lineLocked(e *entry) line {
	if w := machines[e.kind].waits; w != nil {
		return w.line(sh, e)
	}
	return line{}
}

// waitingLocked returns the length of the queue of an object.
func (sh *shard) waitingLocked(e *entry) int {
	if l := sh.lineLocked(e); l.places != nil {
		return l.places.Len()
	}
	return 0
}

// caller returns that of a place, the zero Caller if the ticket does not wait.
func (l line) caller(ticket uint64) queue.Caller {
	if l.places == nil {
		return queue.Caller{}
	}
	if c := l.places.Caller(ticket); c != nil {
		return *c
	}
	return queue.Caller{}
}

// waiter is what the store knows of a place in a queue, beside the place.
type waiter struct {
	sh     *shard
	ref    Ref
	kind   Kind
	named  bool // its call has a request id
	counts bool // it is one of Store.waiting: its caller is here, or was before it was detached
	took   bool // under a key, it took the place from an attempt that was here; see GiveUp
	kept   bool // its place stands without it: see hold.Acquire.Keep
	ticket uint64
	text   int           // bytes that its place refers to, counted while it waits
	done   chan struct{} // closed when the answer is there; nil = the caller is not here (see Own, Detach)
	err    error         // guarded by sh.mu until done is closed, constant from then on
	wait   any           // the *Wait that it is part of, nil if the caller is not here
}

// away reports whether nobody waits here for the place: it came from elsewhere, or
// its caller was detached or has left.
func (w *waiter) away() bool { return w.done == nil }

func (w *waiter) finished() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// Wait is a caller in the queue of an object, waiting for the answer of its operation.
type Wait[A answer] struct {
	waiter
	answer A // guarded as waiter.err
}

// answer is the answer of an operation that may have to wait.
type answer interface {
	// given reports whether the caller was given something, and not refused.
	given() bool
	// giveBack gives that back for a caller that has left. The target is entered.
	giveBack(t target)
}

// Done is closed when the answer is there.
func (w *Wait[A]) Done() <-chan struct{} { return w.done }

// Answer returns the answer, once Done is closed.
func (w *Wait[A]) Answer() (A, error) { return w.answer, w.err }

// waitID finds the place of a call that has a request id.
type waitID struct {
	slot   uint32
	client reqid.Client
	seq    uint64
}

// waiterLocked returns the one that has a place in the queue of an object under a request
// id, nil if there is none.
func (sh *shard) waiterLocked(slot uint32, id *reqid.ID) *waiter {
	return sh.waitIDs[waitID{slot, id.Client, id.Sequence}]
}

// Waits reports whether a call with this request id has a place in the queue of an
// object, so that another one with it takes that over.
func (s *Store) Waits(ref Ref, id reqid.ID) bool {
	if !id.Given() {
		return false
	}
	sh := s.shard(ref.hash())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slot := sh.findLocked(s.addressTag(ref), ref)
	return slot != 0 && sh.waiterLocked(slot, &id) != nil
}

// addLocked registers a place. text is how many bytes it refers to.
func (w *waiter) addLocked(slot uint32, id *reqid.ID, text int) {
	sh := w.sh
	if sh.waits == nil {
		sh.waits, sh.waitIDs = map[uint64]*waiter{}, map[waitID]*waiter{}
	}
	w.named, w.text = id.Given(), text
	sh.waits[w.ticket] = w
	sh.text += text
	if w.named {
		sh.waitIDs[waitID{slot, id.Client, id.Sequence}] = w
	}
	if w.counts {
		sh.store.waiting.Add(1)
	}
}

// addWaitLocked registers a caller that has just been queued.
func addWaitLocked[A answer](t *target, ticket uint64, id *reqid.ID, text int) *Wait[A] {
	w := &Wait[A]{waiter: waiter{sh: t.sh, ref: t.ref, kind: t.kind, counts: true, ticket: ticket, done: make(chan struct{})}}
	w.wait = w
	w.addLocked(t.slot, id, text)
	return w
}

// awaySize is what a place takes whose caller is elsewhere, beside its text.
const awaySize = 256

// addAwayLocked registers a place whose caller is not here.
func (sh *shard) addAwayLocked(slot uint32, ticket uint64, ref Ref, id *reqid.ID, text int) *waiter {
	w := &waiter{sh: sh, ref: ref, kind: sh.entryLocked(slot).kind, ticket: ticket}
	w.addLocked(slot, id, text+awaySize)
	return w
}

// textLocked returns how many bytes the place refers to.
func (w *waiter) textLocked() int {
	if w.away() {
		return w.text - awaySize
	}
	return w.text
}

// goneLocked adds to the next record that a place is gone.
func (sh *shard) goneLocked(caller *queue.Caller) {
	if sh.store.partial != nil && caller.ID.Given() {
		sh.gone = append(sh.gone, *caller)
	}
}

// removeLocked removes the waiter of a caller, and returns the error to it if it is
// here.
func (w *waiter) removeLocked(slot uint32, caller *queue.Caller, err error) {
	sh := w.sh
	delete(sh.waits, w.ticket)
	if key := (waitID{slot, caller.ID.Client, caller.ID.Sequence}); sh.waitIDs[key] == w {
		delete(sh.waitIDs, key)
	}
	if n := len(sh.waits); n > 0 {
		sh.crowd = max(sh.crowd, n)
	} else if sh.crowd > queue.MaxExpire { // maps do not shrink
		sh.waits, sh.waitIDs, sh.crowd = nil, nil, 0
	}
	sh.text -= w.text
	if w.counts {
		sh.store.waiting.Add(-1)
	}
	if w.away() {
		return
	}
	w.err = err
	close(w.done)
}

// answerLocked removes the waiter of a caller, and returns the answer to it if it is
// here.
func answerLocked[A answer](w *waiter, slot uint32, caller *queue.Caller, a A) {
	if !w.away() {
		w.wait.(*Wait[A]).answer = a
	}
	w.removeLocked(slot, caller, nil)
}

// leaveLocked answers a caller whose object the rule does not let the node act for.
// Its place has given up: the next step drops it, with all that left likewise. One
// that has a request id stays registered until then, for copies have it as well.
func (w *waiter) leaveLocked(slot uint32, err error) {
	sh := w.sh
	var l line
	if slot != 0 {
		l = sh.lineLocked(sh.entryLocked(slot))
	}
	caller := l.caller(w.ticket)
	w.removeLocked(slot, &caller, err)
	if l.object != nil && l.object.Leave(w.ticket) && w.named {
		sh.addAwayLocked(slot, w.ticket, w.ref, &caller.ID, w.text)
	}
}

// supersedeLocked gives the place of a waiting call to a retry of it, and returns
// the retry's Wait; nil if no such call waits. For keep, see hold.Acquire.
func supersedeLocked[A answer](t *target, retry *queue.Caller, wait, keep int64) (*Wait[A], error) {
	sh, id := t.sh, &retry.ID
	if !id.Given() || t.slot == 0 {
		return nil, nil
	}
	l, old := sh.lineLocked(t.e), sh.waiterLocked(t.slot, id)
	if l.object == nil || old == nil {
		return nil, nil
	}
	was := l.caller(old.ticket)
	switch was.Judge(retry, old.away()) {
	case queue.Reused:
		return nil, reused(id)
	case queue.Older:
		return nil, errSuperseded // it was held up: a later attempt of the request waits
	}
	kind := machines[t.kind].waits
	ticket := sh.store.tickets.Add(1)
	if _, found := l.object.Supersede(old.ticket, ticket, *id, wait+keep, t.now); !found {
		err := kind.step(*t) // its wait is over: what became of it is remembered then
		//guard:over-in-slices
		if err == nil && sh.waits[old.ticket] == old {
			kind.end(*t, old.ticket)
		}
		return nil, err
	}
	old.removeLocked(t.slot, &was, errSuperseded)
	w := addWaitLocked[A](t, ticket, id, old.textLocked())
	w.took, w.kept = id.Keyed() && !old.away(), keep > 0
	l.object.Keep(ticket, w.kept)
	//guard:place-changed
	kind.changed(sh, t.e, ticket)
	sh.advanceLocked()
	t.changedLocked(&reqid.ID{}, reqid.Outcome{})
	if l.object.Kept() { // perhaps for this place
		_ = kind.step(*t) // a wake follows if it fails
	}
	t.scheduleLocked()
	return w, nil
}

// GiveUp is for a caller that has left: it leaves the queue, and gives back what it
// was granted, or is in this very moment, so that nobody waits for a caller that is
// gone. A replay of the request then says that the grant is over. A grant that a
// retry has been told of in the meantime is the retry's.
//
// Keys have no age: of two attempts under one, nobody knows which was sent later, and one
// that was held up on its way may have taken the place from the one that is meant. So that
// one has OwnGrace to come back to it.
//
// A place that is kept stands as long as its ticket does, and what was granted to it is its
// caller's, which polls.
func (w *Wait[A]) GiveUp(now int64) {
	sh := w.sh
	t := target{ref: w.ref, kind: w.kind, now: now}
	if err := t.enter(sh.store); err != nil {
		// The rule admits no one: this node must not decide about the object. The
		// caller must be told something all the same.
		sh.mu.Lock()
		defer sh.mu.Unlock()
		switch slot := sh.findLocked(sh.store.addressTag(w.ref), w.ref); {
		case w.finished():
		case w.kept:
			t = sh.targetLocked(slot)
			w.keepLocked(&t, sh.lineLocked(t.e))
		default:
			w.leaveLocked(slot, err)
		}
		return
	}
	defer t.leave()
	if w.finished() {
		//guard:ticket-grant-stays !w.kept -> true
		if !w.kept && w.err == nil && w.answer.given() {
			w.answer.giveBack(t)
		}
		return
	}
	l := sh.lineLocked(t.e)
	//guard:ticket-outlives
	if w.kept {
		w.keepLocked(&t, l)
		return
	}
	//guard:key-place-kept
	if w.took {
		w.keepLocked(&t, l)
		return
	}
	caller := l.caller(w.ticket)
	if _, found := l.object.Cancel(w.ticket, t.now); found {
		sh.advanceLocked()
		machines[t.kind].waits.account(sh, t.e)
		sh.goneLocked(&caller)
		t.changedLocked(&reqid.ID{}, reqid.Outcome{})
	}
	w.removeLocked(t.slot, &caller, errGaveUp)
	t.scheduleLocked()
}

// Detach is for a caller whose way to this node has ended, while the caller may
// still be there: a node that passed it on, or this one, stops, or the stream
// between them broke. A place that has a request id is kept for OwnGrace, as one
// that moved here; see Own. Without one, nobody can come back to it, and it is given
// up.
//
// The result reports whether the caller was granted what it waited for, so that the
// answer may be lost: GiveUp is to be called then, OwnGrace later.
func (w *Wait[A]) Detach(now int64) (granted bool) {
	if !w.named {
		w.GiveUp(now)
		return false
	}
	sh := w.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if w.finished() {
		return w.err == nil && w.answer.given()
	}
	sh.now = max(sh.now, now)
	t := sh.targetLocked(sh.findLocked(sh.store.addressTag(w.ref), w.ref))
	w.keepLocked(&t, sh.lineLocked(t.e))
	return false
}

// keepLocked keeps the place of a caller that is not here any more for OwnGrace, or for its ticket.
func (w *Wait[A]) keepLocked(t *target, l line) {
	sh := w.sh
	l.object.Detach(w.ticket, sh.now, OwnGrace)
	caller := l.caller(w.ticket)
	w.removeLocked(t.slot, &caller, errGaveUp)
	//guard:detached-counted true -> false
	sh.addAwayLocked(t.slot, w.ticket, w.ref, &caller.ID, w.text).counts = true
	//guard:detached-counted
	sh.store.waiting.Add(1)
	sh.accountLocked()
	t.scheduleLocked()
}
