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

// expireIDs forgets some request ids and reports whether there are more.
func (sh *shard) expireIDs(now int64) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	more := sh.ids.Expire(now, sweepStep, func(slot uint32) { sh.entryLocked(slot).ids = 0 })
	if !more {
		sh.accountLocked()
	}
	return more
}

// sweepStep looks at some entries and reports whether there are more.
func (sh *shard) sweepStep(now int64) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.now = max(sh.now, now)
	for range sweepStep {
		if sh.sweepAt >= sh.index.Span() {
			sh.sweepAt = 0
			sh.sampledLocked()
			sh.endAwaitsLocked()
			sh.index.Shrink()
			sh.shifts++
			sh.accountLocked()
			return false
		}
		slot := sh.index.Slot(sh.sweepAt)
		if slot != 0 && sh.store.cfg.Stale != nil && sh.staleLocked(slot) {
			sh.discardLocked(slot)
			continue
		}
		if slot == 0 || !sh.overLocked(slot, sh.now) {
			if slot != 0 {
				sh.sampleLocked(slot)
			}
			sh.sweepAt++
			if slot != 0 && (sh.endHoldersLocked(slot) || sh.endReservedLocked(slot)) {
				return true // they may be many
			}
			continue // else another entry may have moved here
		}
		sh.forgetLocked(slot)
	}
	return true
}

// copyLinger is how long after its time an object that does not fade is kept whose owner
// this process is not, or cannot show that it is, ns: what is forgotten then is
// told to nobody, so it must be long over everywhere.
const copyLinger = int64(60_000_000_000)

// overLocked reports whether an object may be forgotten. If it is its time that is
// over, and this process is the owner, it counts it, and says so to the sink: from
// now on answers show that the object is gone. One that fades needs no word.
func (sh *shard) overLocked(slot uint32, now int64) bool {
	e := sh.entryLocked(slot)
	if e.ids != 0 || !sh.absentLocked(e, now) && !sh.isCopyLocked(slot) {
		return false
	}
	if sh.isCopyLocked(slot) { // it has a queue
		over := sh.lineLocked(e).object.Over(now - copyLinger)
		if over {
			sh.dropQueueLocked(slot)
		}
		return over
	}
	states := machines[e.kind].states
	spent := states.spent(sh, e)
	if !spent && !sh.remembersLocked(e) {
		return true
	}
	//guard:override-swept states.fades() && e.rest == 0 -> states.fades()
	fades := states.fades() && e.rest == 0 // an override ends later on copies
	hash := sh.hashLocked(slot)
	permit, err := sh.store.cfg.Rule.Admit(hash, now)
	switch {
	case err == nil && permit.Lost != 0 && sh.remembersLocked(e):
		return false
	case !spent:
	case err != nil:
		return fades || states.absent(sh, e, now-copyLinger)
	case fades:
		sh.store.expired[e.kind].Add(1)
	default:
		sh.lapseLocked(slot, hash)
	}
	return true
}

// endReservedLocked ends the holds of an admission whose time is over, as a node has to that has become the owner and was
// asked for nothing since. It reports whether it had to do with some.
func (sh *shard) endReservedLocked(slot uint32) bool {
	e := sh.entryLocked(slot)
	if e.kind != KindAdmission {
		return false
	}
	if at, ok := (admissions{}).next(sh, e); !ok || at > sh.now {
		return false
	}
	t := sh.targetLocked(slot)
	var err error
	//guard:admission-sweep
	if t.permit, err = sh.store.cfg.Rule.Admit(t.hash, sh.now); err == nil {
		t.passLocked()
	}
	return err == nil
}

// endHoldersLocked ends the grants of an object whose time is over, and that nobody has asked for
// since: the object stays for others, or for its capacity, and these would take memory as long. It
// reports whether it had to do with some.
func (sh *shard) endHoldersLocked(slot uint32) bool {
	state := sh.heldLocked(slot)
	if state == nil || !state.Due(sh.now) || state.Absent(sh.now) || sh.isCopyLocked(slot) {
		return false
	}
	t := sh.targetLocked(slot)
	var err error
	if t.permit, err = sh.store.cfg.Rule.Admit(t.hash, sh.now); err == nil {
		err = t.expireHoldLocked()
	}
	return err == nil // else the next round tries again
}
