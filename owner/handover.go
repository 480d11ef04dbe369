package owner

import (
	"slices"

	"github.com/keystead/keystead/owner/queue"
)

// OwnGrace is how long, in ns, places in queues that have come to this process are
// kept for their callers: as long as a call takes to be sent again.
const OwnGrace = int64(1_000_000_000)

// A crowd takes longer to come back than one call does: each caller beyond so many prolongs the
// grace by as long as a busy node takes to let one in.
const (
	graceCrowd  = queue.MaxExpire
	graceCaller = int64(400_000)
)

func crowdGrace(places int) int64 {
	//guard:crowd-grace graceCaller -> 0
	return int64(max(0, places-graceCrowd)) * graceCaller
}

// ownStep is how many objects or callers Own and Dismiss treat under one hold of a
// shard's lock.
const ownStep = 64

// Own is called when this process has become the owner of the keys at the
// positions that held reports, before or while operations on them are let in. It
// begins the grace of the objects among them that have a queue: a caller that waited
// elsewhere keeps its place for `grace` ns, and a call with the same request id takes
// the place over. Until then the place is granted nothing. If its turn comes, the
// object is kept for it until the grace ends; then all places that nobody has come
// back to are dropped at once, and the head of those that are left is served.
//
// An operation on an object that Own has not treated yet does the same for it.
func (s *Store) Own(now int64, held func(hash uint64) bool, grace int64) {
	for i := range s.shards {
		sh := &s.shards[i]
		for copies := range slices.Chunk(sh.copied(), ownStep) {
			sh.own(copies, now, held, grace)
		}
	}
}

// copied returns the objects with a queue that came from elsewhere.
func (sh *shard) copied() []uint32 {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slots := make([]uint32, 0, len(sh.copies))
	for slot := range sh.copies {
		slots = append(slots, slot)
	}
	slices.Sort(slots)
	return slots
}

func (sh *shard) own(slots []uint32, now int64, held func(uint64) bool, grace int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.now = max(sh.now, now)
	for _, slot := range slots {
		if !sh.isCopyLocked(slot) {
			continue // not any more
		}
		t := sh.targetLocked(slot)
		if !held(t.hash) {
			continue
		}
		var err error
		if t.permit, err = sh.store.cfg.Rule.Admit(t.hash, sh.now); err == nil {
			err = t.ownLocked(grace)
		}
		if err != nil {
			t.retryLocked()
		}
	}
}

// targetLocked returns an operation of the store's own on an object that is there.
func (sh *shard) targetLocked(slot uint32) target {
	e := sh.entryLocked(slot)
	text := e.text()
	ref := Ref{Key: string(text[:e.keyLen()]), Name: string(text[e.keyLen():])}
	return target{sh: sh, e: e, slot: slot, kind: e.kind, hash: Hash(ref.Key), ref: ref, now: sh.now}
}

// isCopyLocked reports whether an object has a queue that came from elsewhere, and
// this process has not treated it as its owner since.
func (sh *shard) isCopyLocked(slot uint32) bool {
	if len(sh.copies) == 0 {
		return false
	}
	_, ok := sh.copies[slot]
	//guard:copies-grant-nothing false
	return ok
}

func (sh *shard) copyLocked(slot uint32) {
	if sh.copies == nil {
		sh.copies = map[uint32]struct{}{}
	}
	sh.copies[slot] = struct{}{}
	delete(sh.scheduled, slot)
}

// ownLocked begins the grace of an object whose queue came from elsewhere, and lets
// time pass for it from now on. If it fails, it has to be called again.
func (t *target) ownLocked(grace int64) error {
	kind := machines[t.e.kind].waits
	places := kind.line(t.sh, t.e).places
	//guard:queue-grace max(1, t.now+grace+crowdGrace(places.Len())) -> 1
	before := places.BeginGrace(max(1, t.now+grace+crowdGrace(places.Len())))
	if err := kind.step(*t); err != nil {
		places.BeginGrace(before)
		return err
	}
	delete(t.sh.copies, t.slot)
	return nil
}

// Dismiss is called when the keys at the positions that lost reports have another
// owner, and this process keeps what it has of them as a copy. Callers that wait here
// are answered with NotOwner; the places of those that have a request id stay in the
// copy. (Discard does the same for what is not kept.)
func (s *Store) Dismiss(lost func(hash uint64) bool) {
	for i := range s.shards {
		sh := &s.shards[i]
		for callers := range slices.Chunk(sh.callers(), ownStep) {
			sh.dismiss(callers, lost)
		}
		sh.dismissAwaits(lost)
	}
}

// callers returns the tickets of all places.
func (sh *shard) callers() []uint64 {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	all := make([]uint64, 0, len(sh.waits))
	for ticket := range sh.waits {
		all = append(all, ticket)
	}
	return all
}

func (sh *shard) dismiss(callers []uint64, lost func(uint64) bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, ticket := range callers {
		w := sh.waits[ticket]
		if w == nil || w.away() || !lost(Hash(w.ref.Key)) {
			continue // answered already, or elsewhere
		}
		sh.detachOneLocked(sh.findLocked(sh.store.addressTag(w.ref), w.ref), w)
	}
	sh.accountLocked()
}

// detachOneLocked answers a caller that waits here for an object, and keeps its place if it can
// come back to it. The object is a copy from now on, though others may still be here.
func (sh *shard) detachOneLocked(slot uint32, w *waiter) {
	e := sh.entryLocked(slot)
	l := sh.lineLocked(e)
	sh.copyLocked(slot)
	caller := l.caller(w.ticket)
	w.removeLocked(slot, &caller, errMoved)
	if caller.ID.Given() {
		sh.addAwayLocked(slot, w.ticket, w.ref, &caller.ID, w.textLocked())
	}
	if l.places.DetachOne(w.ticket); l.places.Len() == 0 {
		delete(sh.copies, slot)
	}
	machines[e.kind].waits.account(sh, e)
}

// detachLocked answers all callers that wait here for an object, and keeps the
// places that they can come back to.
func (sh *shard) detachLocked(slot uint32) {
	e := sh.entryLocked(slot)
	places := sh.lineLocked(e).places
	places.Callers(func(ticket uint64, caller *queue.Caller, _ int64) bool {
		w := sh.waits[ticket]
		if w == nil {
			return true // it left, and had no request id
		}
		w.removeLocked(slot, caller, errMoved)
		if caller.ID.Given() {
			sh.addAwayLocked(slot, ticket, w.ref, &caller.ID, w.textLocked())
		}
		return true
	})
	places.DetachAll()
	machines[e.kind].waits.account(sh, e)
	delete(sh.scheduled, slot)
	if places.Len() > 0 {
		sh.copyLocked(slot)
	}
}

// answerMovedLocked answers all callers that wait here for an object that it has moved.
func (sh *shard) answerMovedLocked(slot uint32) {
	places := sh.lineLocked(sh.entryLocked(slot)).places
	if places == nil {
		return
	}
	places.Callers(func(ticket uint64, caller *queue.Caller, _ int64) bool {
		if w := sh.waits[ticket]; w != nil {
			w.removeLocked(slot, caller, errMoved)
		}
		return true
	})
}

// shortenLocked answers some of the callers that wait here for an object, which are to be
// forgotten with it, and reports whether there are more than are answered at a time.
func (sh *shard) shortenLocked(slot uint32) (more bool) {
	places := sh.lineLocked(sh.entryLocked(slot)).places
	if places == nil || places.Len() <= queue.MaxExpire {
		return false
	}
	places.Shorten(queue.MaxExpire, func(ticket uint64, caller *queue.Caller) {
		if w := sh.waits[ticket]; w != nil {
			w.removeLocked(slot, caller, errMoved)
		}
	})
	return true
}

// dropQueueLocked removes the queue of a copy.
func (sh *shard) dropQueueLocked(slot uint32) {
	sh.answerMovedLocked(slot)
	if l := sh.lineLocked(sh.entryLocked(slot)); l.places != nil {
		l.places.Clear()
	}
	delete(sh.copies, slot)
	delete(sh.scheduled, slot)
}
