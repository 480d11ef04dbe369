package owner

import "github.com/cespare/xxhash/v2"

// discardTries is how often a shard is looked through in small steps before it
// is looked through under one hold of its lock: others may move entries while it
// is let go.
const discardTries = 3

// Discard forgets everything about keys at positions that lost says are lost:
// objects, request ids and places in queues. Callers that wait are answered with
// NotOwner. The serving rule must admit no operation at these positions until it
// returns.
//
// It sends no records: the objects are another node's now.
func (s *Store) Discard(lost func(hash uint64) bool) {
	for i := range s.shards {
		s.shards[i].discardAll(&discarding{lost: lost})
	}
}

// DiscardSpans is Discard for all keys in some stretches, as far as lost says so as well. Whoever keeps the store on disk
// is told of the stretches, not of each object; what lost leaves there is put again.
func (s *Store) DiscardSpans(spans []Span, lost func(hash uint64) bool) {
	for i := range s.shards {
		in := s.stretches(spans, i)
		if len(in) == 0 {
			continue
		}
		s.shards[i].discardAll(&discarding{in: in, lost: func(h uint64) bool { return within(in, h) && lost(h) }})
	}
}

// discarding is a Discard of a shard.
type discarding struct {
	lost  func(hash uint64) bool
	in    []stretch // all that is lost is there; nil = nobody knows
	noted uint64    // the round after which in was noted last, and 1 more; 0 = it was not
}

func (sh *shard) discardAll(d *discarding) {
	sh.dismissAwaits(d.lost)
	for range discardTries {
		if sh.discard(d, sweepStep) {
			return
		}
	}
	for !sh.discard(d, int(^uint(0)>>1)) {
	}
}

// discard looks through the shard, some entries under one hold of its lock. It
// returns false if entries were moved in between, so that some may have been
// missed.
func (sh *shard) discard(d *discarding, step int) (complete bool) {
	var at uint32
	for first, shifts := true, uint64(0); ; first = false {
		done, moved := sh.discardStep(d, step, &at, &shifts, first)
		if done || moved {
			return !moved
		}
	}
}

func (sh *shard) discardStep(d *discarding, step int, at *uint32, shifts *uint64, first bool) (done, moved bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !first && *shifts != sh.shifts {
		return false, true
	}
	for ; step > 0 && *at < sh.index.Span(); step-- {
		slot := sh.index.Slot(*at)
		if slot == 0 || !d.lost(sh.hashLocked(slot)) {
			*at++
			continue // else another entry may have moved here
		}
		if sh.shortenLocked(slot) {
			break // the rest under the next hold of the lock
		}
		sh.noteSpansLocked(slot, d)
		sh.discardLocked(slot)
	}
	*shifts = sh.shifts
	if *at < sh.index.Span() {
		return false, false
	}
	sh.accountLocked()
	return true, false
}

func (sh *shard) hashLocked(slot uint32) uint64 {
	e := sh.entryLocked(slot)
	return xxhash.Sum64(e.text()[:e.keyLen()])
}

// discardLocked forgets an object whatever its state.
func (sh *shard) discardLocked(slot uint32) {
	e := sh.entryLocked(slot)
	sh.answerMovedLocked(slot)
	sh.voidIDsLocked(slot, e)
	//guard:discard-all
	if e.ids != 0 {
		sh.ids.Drop(e.ids)
		e.ids = 0
	}
	sh.forgetLocked(slot)
}
