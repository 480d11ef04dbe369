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
		sh := &s.shards[i]
		sh.dismissAwaits(lost)
		for range discardTries {
			if sh.discard(lost, sweepStep) {
				break
			}
		}
		for !sh.discard(lost, int(^uint(0)>>1)) {
		}
	}
}

// discard looks through the shard, some entries under one hold of its lock. It
// returns false if entries were moved in between, so that some may have been
// missed.
func (sh *shard) discard(lost func(uint64) bool, step int) (complete bool) {
	var at uint32
	for first, shifts := true, uint64(0); ; first = false {
		done, moved := sh.discardStep(lost, step, &at, &shifts, first)
		if done || moved {
			return !moved
		}
	}
}

func (sh *shard) discardStep(lost func(uint64) bool, step int, at *uint32, shifts *uint64, first bool) (done, moved bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !first && *shifts != sh.shifts {
		return false, true
	}
	for ; step > 0 && *at < sh.index.Span(); step-- {
		slot := sh.index.Slot(*at)
		if slot == 0 || !lost(sh.hashLocked(slot)) {
			*at++
			continue // else another entry may have moved here
		}
		if sh.shortenLocked(slot) {
			break // the rest under the next hold of the lock
		}
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
	//guard:discard-all
	if e.ids != 0 {
		sh.ids.Drop(e.ids)
		e.ids = 0
	}
	sh.forgetLocked(slot)
}
