package owner

import "runtime"

// Bounds of reading what objects there are.
const (
	// MaxOfKey is how many objects of one key are shown.
	MaxOfKey = 1_000
	// maxListed is how many cells one call of List looks at: some milliseconds.
	maxListed = 1 << 16
	// shownCost is what showing an object with its state counts for in cells, of which one hold
	// of a shard's lock looks at exportStep, and listedCost what showing its address does.
	shownCost  = 31
	listedCost = 3
)

// Shown is an object as Objects shows it.
type Shown struct {
	*Record       // with the state of the object, and without its members
	Waiting int   // how many wait for it
	Now     int64 // the moment by which its times are
	Wall    int64 // that moment by the time that calendars go by, ns since 1970; 0 = it is not known
}

// Objects shows the objects of a key that are there, at most MaxOfKey: emit gets each with its
// state, valid until it returns, under the lock of the shard. more reports whether there are
// others. Objects are not found by their key alone: the key's shard is looked through, some
// cells under one hold of its lock. So they are not all of one moment; one that is there all
// the time is shown once.
//
// The key is this process's to act for when it begins. Confirm reports whether it still was.
func (s *Store) Objects(now int64, key string, emit func(o Shown)) (meta Meta, more bool, err error) {
	ref := Ref{Key: key}
	if err := ref.validate(); err != nil {
		return Meta{}, false, err
	}
	hash, shown := ref.hash(), 0
	sh := s.shard(hash)
	admit := func() (err error) {
		meta.Permit, err = s.cfg.Rule.Admit(hash, sh.now)
		return err
	}
	match := func(e *entry) bool { return e.keyLen() == len(key) && string(e.text()[:e.keyLen()]) == key }
	for slot, begun := uint32(0), false; !begun || slot != 0 && !more; begun = true {
		slot, _, err = sh.look(slot, now, shownCost, admit, match, func(slot uint32, e *entry) bool {
			if more = shown == MaxOfKey; !more {
				shown++
				wall, _ := s.wallAt(sh.now)
				emit(Shown{sh.headLocked(slot, hash), sh.waitingLocked(e), sh.now, wall})
			}
			return !more
		})
		if err != nil {
			return Meta{}, false, err
		}
		admit = nil
	}
	return meta, more, nil
}

// Place is where a list goes on in one store, in this process. The zero Place is its beginning.
type Place struct {
	Shard, Slot uint32
}

// List shows objects of this process's own from a place on, at most so many that match: emit
// gets the address of each, valid until it returns, under the lock of its shard. It returns
// where to go on; done reports that there are no others. It looks at a bounded number of
// cells, so that it may show nothing although there is more. Parts of split objects are left
// out. With overridden, only limits that have an override are shown.
//
// An object that is there, and the process's own, all the time is shown once.
func (s *Store) List(now int64, from Place, most int, overridden bool, match func(kind Kind, key, name []byte) bool, emit func(kind Kind, key, name []byte)) (next Place, done bool) {
	shown := 0
	matches := func(e *entry) bool {
		text := e.text()
		return text[0] != reserved && (!overridden || e.kind == KindLimit && e.rest != 0) && match(e.kind, text[:e.keyLen()], text[e.keyLen():])
	}
	for budget := maxListed; int(from.Shard) < len(s.shards); {
		if budget <= 0 || shown >= most {
			return from, false
		}
		sh := &s.shards[from.Shard]
		slot, looked, _ := sh.look(from.Slot, now, listedCost, nil, matches, func(slot uint32, e *entry) bool {
			if overridden && sh.overs.At(e.rest).Over(sh.now) {
				return true
			}
			if s.owners == nil || s.owners.Owns(sh.hashLocked(slot)) {
				shown++
				text := e.text()
				emit(e.kind, text[:e.keyLen()], text[e.keyLen():])
			}
			return shown < most
		})
		budget -= looked
		if from.Slot = slot; slot == 0 {
			from.Shard++
		}
	}
	return Place{}, true
}

// look looks at some cells after one, and shows those of objects that match and are there, until
// show returns false; each that is shown counts for cost more. It returns the last one that it
// has looked at, 0 at the end, and how many they were. admit, if there is one, is asked first.
func (sh *shard) look(slot uint32, now int64, cost int, admit func() error, match func(e *entry) bool, show func(slot uint32, e *entry) bool) (next uint32, looked int, err error) {
	defer runtime.Gosched() // else it has the lock again before those that wait for it run
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.now = max(sh.now, now)
	if admit != nil {
		if err := admit(); err != nil {
			return 0, 0, err
		}
	}
	//guard:list-step exportStep -> 1<<30
	for budget := exportStep; budget > 0; budget-- {
		if slot = sh.cells.Next(slot); slot == 0 {
			return 0, looked, nil
		}
		looked++
		e := sh.entryLocked(slot)
		if e.kind == 0 || !match(e) || sh.absentLocked(e, sh.now) {
			continue
		}
		if budget -= cost; !show(slot, e) {
			break
		}
	}
	return slot, looked, nil
}

// headLocked is recordLocked without the members, of which there may be many: they are not
// written.
func (sh *shard) headLocked(slot uint32, hash uint64) *Record {
	//guard:list-no-members true -> false
	r := sh.recordLocked(slot, hash, true)
	r.Partial, r.Members = false, r.Members[:0]
	return r
}
