package owner

// locks is the kind of locks. Their states point to memory of their own, so they are in a
// slab.
type locks struct{}

var lockMachine = machine{name: "lock", states: locks{}, slab: locks{}, grants: locks{}}

func (locks) room(sh *shard) bool { return sh.locks.Room() }

func (locks) absent(sh *shard, e *entry, now int64) bool {
	return e.lock == 0 || sh.locks.At(e.lock).Absent(now)
}

func (locks) spent(sh *shard, e *entry) bool { return e.lock != 0 && sh.locks.At(e.lock).Token != 0 }

func (locks) fades() bool { return false }

func (locks) clear(sh *shard, e *entry) {
	if e.lock == 0 {
		return
	}
	sh.lockText -= int(e.counted)
	sh.locks.Free(e.lock)
	e.lock, e.counted = 0, 0
}

func (locks) record(sh *shard, e *entry, r *Record, changes bool) {
	if r.ByPlace = changes; e.lock == 0 {
		return
	}
	switch r.Lock = sh.locks.At(e.lock); {
	case !changes:
	case r.Lock.Token == 0 && r.Lock.Queue.Len() == 0:
		r.Lock = nil
	default:
		r.Moves = sh.moves
	}
}

func (locks) remembers(sh *shard, e *entry) bool {
	return e.lock != 0 && sh.locks.At(e.lock).LastToken != 0
}

func (locks) waiting(sh *shard, e *entry) int {
	if e.lock == 0 {
		return 0
	}
	return sh.locks.At(e.lock).Queue.Len()
}

func (locks) over(sh *shard, slot uint32, at int64) bool {
	return sh.locks.At(sh.entryLocked(slot).lock).Over(at) && sh.dropQueueLocked(slot)
}

func (locks) dismiss(sh *shard, slot uint32) {
	e := sh.entryLocked(slot)
	if e.lock == 0 {
		return
	}
	for _, place := range sh.locks.At(e.lock).Queue.Places {
		sh.moveLocked(slot, place.Ticket)
	}
}
