package owner

import (
	"math"

	"github.com/keystead/keystead/owner/reqid"
)

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
	// MaxPart is how many members a record of an object has that many wait for. Those behind
	// them go into records of their own, each under its own hold of the lock, that are More and
	// Partial: half a millisecond, and the longest of them fit a message.
	MaxPart = 1500
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
		for at := (exportAt{}); ; {
			if ok := sh.export(&at, clock, hold, emit); !ok || !pause() {
				return false
			}
			if at.slot == 0 {
				break
			}
		}
	}
	return true
}

// exportAt is how far an export has come in a shard.
type exportAt struct {
	slot uint32 // the last cell that was looked at; 0 = none
	// If part is not 0, not all places of the object there, which has this address, were
	// emitted: the last one has this number.
	part uint64
	ref  Ref
}

// export looks at some cells after one, or emits a part of the object in it. Cells stay where
// they are, so none is missed. at.slot is 0 at the end.
func (sh *shard) export(at *exportAt, clock func() int64, hold func(uint64) bool, emit func(*Record, int64) bool) (ok bool) {
	now := clock()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.now = max(sh.now, now)
	if at.part != 0 {
		return sh.exportPartLocked(at, emit)
	}
	for budget := exportStep; budget > 0; budget-- {
		slot := sh.cells.Next(at.slot)
		if at.slot = slot; slot == 0 {
			return true
		}
		e := sh.entryLocked(slot)
		if e.kind == 0 || e.ids == 0 && sh.absentLocked(e, sh.now) {
			continue
		}
		hash := sh.hashLocked(slot)
		if !hold(hash) {
			continue
		}
		cost, part, ok := sh.exportOneLocked(slot, hash, emit)
		if !ok {
			return false
		}
		if part != 0 {
			at.part, at.ref = part, sh.targetLocked(slot).ref
			return true
		}
		budget -= cost
	}
	return true
}

// exportOneLocked emits an object, and says what that counts for in cells. Of one that many wait
// for, it emits the first part, and returns the number of the last place in it.
func (sh *shard) exportOneLocked(slot uint32, hash uint64, emit func(*Record, int64) bool) (cost int, part uint64, ok bool) {
	var at reqid.Cursor
	e := sh.entryLocked(slot)
	ids, waiting := 0, min(sh.waitingLocked(e), MaxPart)
	for done, more := false, false; !done; more = true {
		at, done = sh.ids.Save(e.ids, at, MaxKept, &sh.kept)
		var r *Record
		if of := machines[e.kind].waits; of == nil {
			r = sh.recordLocked(slot, hash, false)
		} else if r = sh.headLocked(slot, hash); !more {
			part = of.part(sh, e, r, 0)
		}
		r.Whole, r.More, r.IDs = !more, more, &sh.kept
		if more {
			r.State, r.Members = State{}, r.Members[:0]
		}
		if !emit(r, sh.now) {
			return 0, 0, false
		}
		ids += len(sh.kept.Ops)
	}
	//guard:export-bytes
	if slab := machines[e.kind].slab; slab != nil {
		waiting += slab.refers(sh, e) / exportBytes
	}
	return exportCost + ids/exportIDs + waiting, part, true
}

// exportPartLocked emits the next part of an object that many wait for. It stands behind what was
// emitted, whatever has changed since: a change may tell of a place before its part does. If the
// object has gone, the Sink was told of all that came after it.
func (sh *shard) exportPartLocked(at *exportAt, emit func(*Record, int64) bool) (ok bool) {
	after := at.part
	at.part = 0
	if sh.findLocked(sh.store.addressTag(at.ref), at.ref) != at.slot {
		return true
	}
	e := sh.entryLocked(at.slot)
	of := machines[e.kind].waits
	if of == nil || sh.waitingLocked(e) == 0 {
		return true
	}
	r := sh.headLocked(at.slot, at.ref.hash())
	at.part = of.part(sh, e, r, after)
	if len(r.Members) == 0 {
		return true
	}
	sh.kept = reqid.Kept{Evicted: math.MinInt64, Clients: sh.kept.Clients[:0], Ops: sh.kept.Ops[:0]}
	r.More, r.Partial, r.IDs = true, true, &sh.kept
	return emit(r, sh.now)
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
