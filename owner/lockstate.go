package owner

// locks is the kind of locks. Their states point to memory of their own, so they are in a
// slab.
type locks struct{}

var lockMachine = machine{name: "lock", states: locks{}, slab: locks{}, grants: locks{}, waits: locks{}}

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

func (locks) line(sh *shard, e *entry) line {
	if e.lock == 0 {
		return line{}
	}
	state := sh.locks.At(e.lock)
	return line{&state.Queue, state}
}

func (locks) step(t target) error { return t.expireLocked() }

func (locks) changed(sh *shard, e *entry, ticket uint64) {
	if place := sh.locks.At(e.lock).Queue.Find(ticket); sh.store.places != nil && place.Caller.ID.Given() {
		sh.moves = append(sh.moves, Move{Waiter: *place})
	}
}

func (locks) account(sh *shard, e *entry) { sh.countTextLocked(e) }
