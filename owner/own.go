package owner

import (
	"slices"

	"github.com/keystead/keystead/owner/queue"
)

// OwnGrace is how long, in ns, the places in the queues of locks that have come
// to this process are kept for their callers: as long as a call takes to be sent
// again.
const OwnGrace = int64(1_000_000_000)

// ownStep is how many locks or callers are seen to under one hold of a shard's
// lock.
const ownStep = 64

// awaySize is what a place takes whose caller is elsewhere, beside its text.
const awaySize = 256

// Own is called when this process has become the owner of the keys at the
// positions that held says, before or while operations on them are let in. It
// sees to the locks among them that have a queue: who waited elsewhere keeps the
// place for `grace` ns. An Acquire with the same request id takes the place over.
// Until then the place is granted nothing; if its turn comes, the lock is kept for
// it, till the end of the grace at most, when all places that nobody has come for
// are dropped at once and the lock goes to the first one who waits here.
//
// An operation on a lock that Own has not come to yet, does the same for this
// lock.
func (s *Store) Own(now int64, held func(hash uint64) bool, grace int64) {
	for i := range s.shards {
		sh := &s.shards[i]
		for copies := range slices.Chunk(sh.copied(), ownStep) {
			sh.own(copies, now, held, grace)
		}
	}
}

// copied are the locks with a queue that came from elsewhere.
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

// targetLocked is an operation of the store's own on an object that is there.
func (sh *shard) targetLocked(slot uint32) target {
	e := sh.entryLocked(slot)
	text := e.text()
	ref := Ref{Key: string(text[:e.keyLen]), Name: string(text[e.keyLen:])}
	return target{sh: sh, e: e, slot: slot, kind: e.kind, hash: Hash(ref.Key), ref: ref, now: sh.now}
}

// isCopyLocked says whether an object is a lock with a queue that came from
// elsewhere, and that this process was not seen to own since.
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

// ownLocked begins the grace of a lock that came from elsewhere, and lets it run
// from now on.
func (t *target) ownLocked(grace int64) error {
	if _, err := t.sh.nextTokenLocked(t.sh.store.cfg.Rule, t.permit); err != nil {
		return err
	}
	delete(t.sh.copies, t.slot)
	//guard:queue-grace max(1, t.now+grace) -> 1
	t.sh.locks.At(t.e.lock).Queue.Grace = max(1, t.now+grace)
	return t.expireLocked()
}

// Dismiss is called when the keys at the positions that lost says have another
// owner, and this process keeps what it has of them as a copy. Those who wait for
// locks here are answered with NotOwner; the places of those who have a request
// id stay in the copy. (Discard does the same for what is not kept.)
func (s *Store) Dismiss(lost func(hash uint64) bool) {
	for i := range s.shards {
		sh := &s.shards[i]
		for callers := range slices.Chunk(sh.callers(), ownStep) {
			sh.dismiss(callers, lost)
		}
	}
}

// callers are those who wait here.
func (sh *shard) callers() []*Wait {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	all := make([]*Wait, 0, len(sh.waits))
	for _, w := range sh.waits {
		if !w.away() {
			all = append(all, w)
		}
	}
	return all
}

func (sh *shard) dismiss(callers []*Wait, lost func(uint64) bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, w := range callers {
		if sh.waits[w.ticket] != w || !lost(Hash(w.ref.Key)) {
			continue // answered already, perhaps with others of its lock
		}
		sh.detachLocked(sh.findLocked(sh.store.addressTag(w.ref), w.ref))
	}
	sh.accountLocked()
}

// detachLocked answers all who wait here for a lock, and keeps the places that
// they can come back to.
func (sh *shard) detachLocked(slot uint32) {
	state := sh.locks.At(sh.entryLocked(slot).lock)
	for i := range state.Queue.Places {
		place := &state.Queue.Places[i]
		if w := sh.moveLocked(slot, place.Ticket); w != nil && w.id.Given() {
			sh.addAwayLocked(slot, place.Ticket, w.ref, place.Caller, textOf(place))
		}
	}
	state.Queue.DetachAll()
	delete(sh.scheduled, slot)
	if state.Queue.Len() > 0 {
		sh.copyLocked(slot)
	}
}

// moveLocked takes a place out of the books: its caller, if one waits here, is
// answered that the lock has moved. It returns who had the place, nil if nobody
// can come back to it.
func (sh *shard) moveLocked(slot uint32, ticket uint64) *Wait {
	w := sh.waits[ticket]
	if w == nil {
		return nil
	}
	w.finishLocked(slot, AcquireAnswer{}, errMoved)
	return w
}

// addAwayLocked registers a place in a queue whose caller is not here.
func (sh *shard) addAwayLocked(slot uint32, ticket uint64, ref Ref, p queue.Caller, text int) *Wait {
	w := &Wait{text: text + awaySize, sh: sh, ref: ref, ticket: ticket, id: p.ID, print: p.Print}
	if sh.waits == nil {
		sh.waits, sh.waitIDs = map[uint64]*Wait{}, map[waitID]*Wait{}
	}
	sh.waits[ticket] = w
	sh.waitIDs[waitID{slot, p.ID.Client, p.ID.Sequence}] = w
	sh.lockText += w.text
	return w
}

// dropQueueLocked takes all who wait for a copy out of the books. It returns
// true.
func (sh *shard) dropQueueLocked(slot uint32) bool {
	e := sh.entryLocked(slot)
	if e.lock == 0 {
		return true
	}
	state := sh.locks.At(e.lock)
	for i := range state.Queue.Places {
		sh.moveLocked(slot, state.Queue.Places[i].Ticket)
	}
	state.Queue.Places = nil
	delete(sh.copies, slot)
	delete(sh.scheduled, slot)
	return true
}
