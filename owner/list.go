package owner

// Bounds of reading what objects there are.
const (
	// MaxOfKey is how many objects of one key are shown.
	MaxOfKey = 1_000
	// maxListed is how many cells one call of List looks at: some milliseconds.
	maxListed = 1 << 16
)

// Objects shows the objects of a key that are there, at most MaxOfKey: emit gets a record of
// each with its whole state, valid until it returns, under the lock of the shard, and the moment
// by which the record's times are. more reports whether there are others. Objects are not
// found by their key alone: the key's shard is looked through, some cells under one hold of its
// lock. So they are not all of one moment; one that is there all the time is shown once.
//
// The key is this process's to act for when it begins. Confirm reports whether it still was.
func (s *Store) Objects(now int64, key string, emit func(r *Record, now int64)) (meta Meta, more bool, err error) {
	ref := Ref{Key: key}
	if err := ref.validate(); err != nil {
		return Meta{}, false, err
	}
	hash, shown := ref.hash(), 0
	sh := s.shard(hash)
	for slot, begun := uint32(0), false; !begun || slot != 0 && !more; begun = true {
		if slot, err = sh.look(slot, now, exportStep, func() (err error) {
			if !begun {
				meta.Permit, err = s.cfg.Rule.Admit(hash, sh.now)
			}
			return err
		}, func(slot uint32, e *entry) bool {
			if text := e.text(); string(text[:e.keyLen]) != key {
				return true
			}
			if more = shown == MaxOfKey; !more {
				shown++
				emit(sh.recordLocked(slot, hash, false), sh.now)
			}
			return !more
		}); err != nil {
			return Meta{}, false, err
		}
	}
	return meta, more, nil
}

// Place is where a list goes on in one store, in this process. The zero Place is its beginning.
type Place struct {
	Shard, Slot uint32
}

// List shows objects of this process's own from a place on, at most so many that match: emit
// is as for Objects. It returns where to go on; done reports that there are no others. It
// looks at a bounded number of cells, so that it may show nothing although there is more.
// Parts of split objects are left out.
//
// An object that is there, and the process's own, all the time is shown once.
func (s *Store) List(now int64, from Place, most int, match func(kind Kind, key, name []byte) bool, emit func(r *Record, now int64)) (next Place, done bool) {
	shown := 0
	for budget := maxListed; int(from.Shard) < len(s.shards); {
		if budget <= 0 || shown >= most {
			return from, false
		}
		sh := &s.shards[from.Shard]
		slot, _ := sh.look(from.Slot, now, exportStep, func() error { return nil }, func(slot uint32, e *entry) bool {
			text := e.text()
			if text[0] == reserved || !match(e.kind, text[:e.keyLen], text[e.keyLen:]) {
				return true
			}
			hash := sh.hashLocked(slot)
			if s.owners == nil || s.owners.Owns(hash) {
				shown++
				emit(sh.recordLocked(slot, hash, false), sh.now)
			}
			return shown < most
		})
		budget -= exportStep
		if from.Slot = slot; slot == 0 {
			from.Shard++
		}
	}
	return Place{}, true
}

// look looks at some cells after one, and shows those of objects that are there until show
// returns false. It returns the last one that it has looked at, 0 at the end.
func (sh *shard) look(slot uint32, now int64, cells int, begin func() error, show func(slot uint32, e *entry) bool) (next uint32, err error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.now = max(sh.now, now)
	if err := begin(); err != nil {
		return 0, err
	}
	for range cells {
		if slot = sh.cells.Next(slot); slot == 0 {
			return 0, nil
		}
		if e := sh.entryLocked(slot); e.kind != 0 && !sh.absentLocked(e, sh.now) && !show(slot, e) {
			break
		}
	}
	return slot, nil
}
