package owner

import (
	"github.com/keystead/keystead/owner/gather"
	"github.com/keystead/keystead/owner/reqid"
)

// childLocked remembers that a barrier has a parent, and says so if something is to be done there.
func (sh *shard) childLocked(s *gather.State, barrier, slot uint32) {
	if !s.Parent.Given() {
		delete(sh.children, barrier)
		return
	}
	if sh.children == nil {
		sh.children = map[uint32]uint32{}
	}
	sh.children[barrier] = slot
	if c := s.Child(); c.Owes() && (c.Sent || c.Empty || c.Above == 0) {
		select {
		case sh.store.treeSignal <- struct{}{}:
		default:
		}
	}
}

// ChildrenChanged receives when a child may have something to do at its parent.
func (s *Store) ChildrenChanged() <-chan struct{} { return s.treeSignal }

// AppendChildren appends the phasers that are here and have a parent, copies of those of other
// owners among them.
func (s *Store) AppendChildren(to []Ref) []Ref {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, slot := range sh.children {
			e := sh.entryLocked(slot)
			text := e.text()
			to = append(to, Ref{Key: string(text[:e.keyLen()]), Name: string(text[e.keyLen():])})
		}
		sh.mu.Unlock()
	}
	return to
}

// ChildOf returns what a phaser owes its parent. Before anything of it is told there, the copies
// must have it, and the permit must be confirmed, as with every answer.
func (s *Store) ChildOf(now int64, ref Ref) (c gather.Child, m Meta, err error) {
	t, err := s.enterBarrier(now, ref)
	if err != nil {
		return c, m, err
	}
	defer t.leave()
	if t.hasBarrier() {
		c = t.sh.gathers.At(t.e.rest).Child()
	}
	return c, Meta{Permit: t.permit}, nil
}

// BindChild says for which phase of its parent that of a child is: see gather.State.Bind.
func (s *Store) BindChild(now int64, ref Ref, phase, above uint64) error {
	return s.childStep(now, ref, func(state *gather.State, t *target, _ uint64) bool {
		return state.Bind(phase, above, t.now, &t.sh.gatherFx)
	})
}

// ConcludeChild ends the phase of a child as that of its parent ended: see gather.State.Conclude.
func (s *Store) ConcludeChild(now int64, ref Ref, phase, above uint64, v gather.Verdict) error {
	return s.childStep(now, ref, func(state *gather.State, t *target, next uint64) bool {
		return state.Conclude(phase, above, v, t.now, next, &t.sh.gatherFx)
	})
}

// ChildLeft says that a child that is empty is no party of its parent: see gather.State.Leaves.
func (s *Store) ChildLeft(now int64, ref Ref, phase uint64) error {
	return s.childStep(now, ref, func(state *gather.State, t *target, _ uint64) bool {
		return state.Leaves(phase, t.now, &t.sh.gatherFx)
	})
}

// MaxTTL returns the longest lease.
func (s *Store) MaxTTL() int64 { return s.maxLockTTL() }

// childStep does a step of a child, by what has become of it at its parent.
func (s *Store) childStep(now int64, ref Ref, do func(state *gather.State, t *target, next uint64) bool) error {
	t, err := s.enterBarrier(now, ref)
	if err != nil {
		return err
	}
	defer t.leave()
	if !t.hasBarrier() {
		return nil
	}
	next, err := t.nextPhaseLocked()
	if err == nil && do(t.sh.gathers.At(t.e.rest), &t, next) {
		t.gatheredLocked(&reqid.ID{}, reqid.Outcome{})
	}
	return err
}
