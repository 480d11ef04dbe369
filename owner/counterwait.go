package owner

// Cond is what a counter is awaited to be.
type Cond struct {
	Least bool // at least the value; else at most
	Value int64
}

// Met reports whether a counter of this value and version is so. One that does not exist is not:
// what was lost must not be taken for one that has come down to 0.
func (c Cond) Met(value int64, version uint64) bool {
	//guard:await-exists version == 0 -> false
	if version == 0 {
		return false
	}
	if c.Least {
		return value >= c.Value
	}
	return value <= c.Value
}

// maxConds bounds the conditions for which one counter is awaited at a time: each change looks at
// all of them.
const maxConds = 64

// AwaitCounter reads a counter. If that is not as it is awaited, and the caller wants to wait for
// it, it returns a Pending.
func (s *Store) AwaitCounter(now int64, ref Ref, cond Cond, wait bool) (GetAnswer, *Pending[GetAnswer], error) {
	if err := s.uses(BarrierLevel); err != nil {
		return GetAnswer{}, nil, err
	}
	t := target{ref: ref, kind: KindCounter, now: now}
	if err := t.enter(s); err != nil {
		return GetAnswer{}, nil, err
	}
	defer t.leave()
	t.lapseLocked()
	state := t.counterLocked()
	a := GetAnswer{state.Value, state.Version, Meta{Permit: t.permit}}
	//guard:await-lost
	if !wait || cond.Met(a.Value, a.Version) || a.Version == 0 && t.permit.Lost != 0 {
		return a, nil, nil
	}
	at := address{ref.Key, ref.Name}
	sums := t.sh.sums[at]
	switch {
	case sums == nil:
		if t.sh.sums == nil {
			t.sh.sums = map[address]map[Cond]*gates[GetAnswer]{}
		}
		sums = map[Cond]*gates[GetAnswer]{}
		t.sh.sums[at] = sums
	case sums[cond] == nil && len(sums) >= maxConds:
		t.sh.dropLeftLocked(sums)
		if len(sums) >= maxConds {
			return a, nil, errWaiters
		}
	}
	p, err := pendLocked(t.sh, sums, cond, t.hash)
	return a, p, err
}

// dropLeftLocked forgets conditions of a counter that nobody awaits any more.
func (sh *shard) dropLeftLocked(sums map[Cond]*gates[GetAnswer]) {
	for cond, of := range sums {
		if of.n == 0 {
			delete(sums, cond)
		}
	}
}

// counterChangedLocked answers the calls that await the counter of the target as it is now.
func (t *target) counterChangedLocked() {
	if len(t.sh.sums) == 0 {
		return
	}
	c := t.e.counter()
	a := GetAnswer{c.Value, c.Version, Meta{Permit: t.permit}}
	t.sh.answerSumsLocked(t.e, func(cond Cond) (bool, bool) { return cond.Met(a.Value, a.Version), false }, a)
}

// counterMovedLocked has calls that await the counter of an entry ask again.
func (sh *shard) counterMovedLocked(e *entry) {
	if len(sh.sums) > 0 {
		sh.answerSumsLocked(e, func(Cond) (bool, bool) { return true, true }, GetAnswer{})
	}
}

// answerSumsLocked ends the waits for the conditions of a counter that ends reports, with the
// answer, or again.
func (sh *shard) answerSumsLocked(e *entry, ends func(Cond) (end, again bool), a GetAnswer) {
	text := e.text()
	at := address{view(text[:e.keyLen()]), view(text[e.keyLen():])}
	sums := sh.sums[at]
	for cond, of := range sums {
		if end, again := ends(cond); end || of.n == 0 {
			delete(sums, cond)
			of.endLocked(a, again)
		}
	}
	if sums != nil && len(sums) == 0 {
		delete(sh.sums, at)
	}
}
