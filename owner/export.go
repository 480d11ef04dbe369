package owner

import "github.com/keystead/keystead/owner/reqid"

// Bounds of what Export does under one hold of a shard's lock.
const (
	// exportStep is how many cells it looks at: each takes some nanoseconds.
	exportStep = 256
	// exportCost is what emitting an object counts for in cells, and exportIDs how
	// many request ids count for one more. Each caller that waits for a lock does, too.
	exportCost = 4
	exportIDs  = 4
	// exportBytes is how many bytes that a state refers to count for one more.
	exportBytes = 256
	// MaxKept is about how many request ids one record has: at most one more, their
	// clients included. Those of an object that has more go into several records.
	MaxKept = 4096
)

// Export emits all that the store holds of the keys at the positions that hold
// says: for each object a Record that is Whole, and those that are More if it has
// many request ids. It is called under the lock of the object's shard, so its
// records stand in one order with those that the Sink gets. An object that is
// there all the time is emitted exactly once; of one that comes, goes or changes
// meanwhile the Sink is told. Objects that equal ones that never were, and have no
// request ids, are left out.
//
// clock is read under the lock at each step; now is the moment by which the times
// of a record are to be turned into durations. emit returns false to stop. pause is
// called between the steps, when no lock is held, and returns false to stop; it may
// wait. The result reports whether everything was emitted.
func (s *Store) Export(clock func() int64, hold func(hash uint64) bool, emit func(r *Record, now int64) bool, pause func() bool) (whole bool) {
	for i := range s.shards {
		sh := &s.shards[i]
		for slot := uint32(0); ; {
			var ok bool
			if slot, ok = sh.export(slot, clock, hold, emit); !ok || !pause() {
				return false
			}
			if slot == 0 {
				break
			}
		}
	}
	return true
}

// export looks at some cells after one, and returns the last one that it has
// looked at, 0 at the end. Cells stay where they are, so none is missed.
func (sh *shard) export(slot uint32, clock func() int64, hold func(uint64) bool, emit func(*Record, int64) bool) (next uint32, ok bool) {
	now := clock()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.now = max(sh.now, now)
	for budget := exportStep; budget > 0; budget-- {
		if slot = sh.cells.Next(slot); slot == 0 {
			return 0, true
		}
		e := sh.entryLocked(slot)
		if e.kind == 0 || e.ids == 0 && sh.absentLocked(e, sh.now) {
			continue
		}
		hash := sh.hashLocked(slot)
		if !hold(hash) {
			continue
		}
		cost, ok := sh.exportOneLocked(slot, hash, emit)
		if !ok {
			return slot, false
		}
		budget -= cost
	}
	return slot, true
}

// exportOneLocked emits an object, and says what that counts for in cells.
func (sh *shard) exportOneLocked(slot uint32, hash uint64, emit func(*Record, int64) bool) (cost int, ok bool) {
	var at reqid.Cursor
	ids, waiting := 0, sh.waitingLocked(sh.entryLocked(slot))
	for done, more := false, false; !done; more = true {
		at, done = sh.ids.Save(sh.entryLocked(slot).ids, at, MaxKept, &sh.kept)
		r := sh.recordLocked(slot, hash, false)
		r.Whole, r.More, r.IDs = !more, more, &sh.kept
		if more {
			r.State, r.Members = State{}, r.Members[:0]
		}
		if !emit(r, sh.now) {
			return 0, false
		}
		ids += len(sh.kept.Ops)
	}
	//guard:export-bytes
	if slab := machines[sh.entryLocked(slot).kind].slab; slab != nil {
		waiting += slab.refers(sh, sh.entryLocked(slot)) / exportBytes
	}
	return exportCost + ids/exportIDs + waiting, true
}

// Barrier returns when every operation that was under way has let go of its
// shard's lock.
func (s *Store) Barrier() {
	for i := range s.shards {
		s.shards[i].mu.Lock()
		//lint:ignore SA2001 to have held it is the point
		s.shards[i].mu.Unlock()
	}
}
