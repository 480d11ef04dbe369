package owner

// AwaitPhase returns what became of a phase. If it is under way, and the caller wants to wait for
// its end, it returns a Pending. Asked again, at whatever owner, it answers the same.
func (s *Store) AwaitPhase(now int64, ref Ref, phase uint64, wait bool) (PhaseAnswer, *Pending[PhaseAnswer], error) {
	t, err := s.enterBarrier(now, ref)
	if err != nil {
		return PhaseAnswer{}, nil, err
	}
	defer t.leave()
	a := t.phaseLocked(phase)
	if !wait || phase == 0 || phase != a.Phase {
		return a, nil, nil
	}
	t.scheduleLocked()
	if t.sh.gates == nil {
		t.sh.gates = map[uint32]*gates[PhaseAnswer]{}
	}
	p, err := pendLocked(t.sh, t.sh.gates, t.e.rest, t.hash)
	return a, p, err
}

// endPhaseLocked answers the callers that wait for the phase of a barrier, or has them ask again.
func (sh *shard) endPhaseLocked(barrier uint32, answer PhaseAnswer, again bool) {
	if of := sh.gates[barrier]; of != nil {
		delete(sh.gates, barrier)
		of.endLocked(answer, again)
	}
}
