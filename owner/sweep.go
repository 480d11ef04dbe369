package owner

// sweepStep is how many entries the sweep looks at under one hold of a shard's
// lock: about ten microseconds.
const sweepStep = 256

// Sweep forgets what is over in one shard — objects that equal ones that never
// were, and request ids past their window — and turns to the next shard. It
// holds the shard's lock for a few microseconds at a time. Called every 50 ms
// it goes round 64 shards in 3 s.
func (s *Store) Sweep(now int64) {
	s.sweepMu.Lock()
	defer s.sweepMu.Unlock()
	sh := &s.shards[s.sweepNext]
	s.sweepNext = (s.sweepNext + 1) % len(s.shards)
	for sh.expireIDs(now) {
	}
	for sh.sweepStep(now) {
	}
}

// expireIDs forgets some request ids and says whether there are more.
func (sh *shard) expireIDs(now int64) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	more := sh.ids.Expire(now, sweepStep, func(slot uint32) { sh.entryLocked(slot).ids = 0 })
	if !more {
		sh.accountLocked()
	}
	return more
}

// sweepStep looks at some entries and says whether there are more.
func (sh *shard) sweepStep(now int64) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.now = max(sh.now, now)
	for range sweepStep {
		if sh.sweepAt >= sh.index.Span() {
			sh.sweepAt = 0
			sh.index.Shrink()
			sh.shifts++
			sh.accountLocked()
			return false
		}
		slot := sh.index.Slot(sh.sweepAt)
		if slot == 0 || !sh.overLocked(slot, sh.now) {
			sh.sweepAt++
			continue // else another entry may have moved here
		}
		sh.forgetLocked(slot)
	}
	return true
}

// overLocked says whether an object may be forgotten, and counts it if it is
// its time that is over.
func (sh *shard) overLocked(slot uint32, now int64) bool {
	e := sh.entryLocked(slot)
	if e.ids != 0 || !sh.absentLocked(e, now) {
		return false
	}
	switch e.kind {
	case KindLimit:
		if e.limit().spent != 0 {
			sh.store.expired[KindLimit].Add(1)
		}
	case KindCounter:
		if e.counter().Version != 0 {
			sh.store.expired[KindCounter].Add(1)
		}
	case KindLock:
		if e.lock != 0 && sh.locks.At(e.lock).Token != 0 {
			sh.store.expired[KindLock].Add(1)
			sh.store.lapsed.Add(1)
		}
	}
	return true
}
