package owner

import (
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
)

// Role is the capacity in which an operation acts on an object. An object that is hot
// may be split: its parts are objects under keys of their own, which begin with a
// NUL byte, as no user's key does. The serving rule decides which operations may act
// on an object and on its parts, and when (Splits).
type Role uint8

const (
	Whole  Role = iota // a user's operation on an object as a whole, as all are that are not split
	Share              // a user's operation on a part
	Carry              // reads an object that is to be split: Read
	Plant              // makes a part: Put
	Reap               // reads a part that is to be united with others: Read
	Join               // makes an object of its parts: Put
	Sample             // reads a part that users are served from: Read and Get
)

// reserved is the first byte of the keys of parts.
const reserved = 0

// onPart reports whether operations of this role are on parts.
func (r Role) onPart() bool {
	return r == Share || r == Plant || r == Reap || r == Sample
}

// roles are several of them, as bits. The zero roles are those of a user: Whole,
// and of kinds that have parts, Share.
type roles uint8

// rolesOf is a set of roles.
func rolesOf(some ...Role) (set roles) {
	for _, r := range some {
		set |= 1 << r
	}
	return set
}

// allows reports whether an operation may come in a role.
func (set roles) allows(r Role, k Kind) bool {
	if set == 0 {
		return r == Whole || r == Share && k.Parts()
	}
	return set&(1<<r) != 0 && r <= Sample
}

// Splits is what a Rule implements, too, if objects may be split. One that does not,
// lets in no roles but Whole.
type Splits interface {
	// Split reports whether May is to be asked about keys of this hash: whether one of
	// them may be that of an object that is split, or of a part of one. It is called
	// for every operation that Admit lets in, under the shard lock, and must be quick.
	Split(hash uint64) bool
	// May reports whether an operation in the role of ref may be done now on the object
	// of this kind, or why not. weight is that of the part, from 1 to limit.FullWeight, if
	// the role is Share or Sample and it is one of a limit; otherwise it means nothing.
	// It is called under the shard lock and must be quick.
	May(ref Ref, kind Kind) (weight uint32, err error)
}

// maxShare bounds the value of a part of a counter, in either direction: 64 of them,
// and 2^61 that no part has, do not overflow in the sum.
const maxShare = 1 << 56

// splitLocked asks the rule about an object that may be split or a part.
func (t *target) splitLocked(splits Splits) (err error) {
	if splits == nil || !splits.Split(t.hash) {
		//guard:split-role
		if t.ref.Role != Whole {
			return errNotSplit
		}
		return nil
	}
	t.weight, err = splits.May(t.ref, t.kind)
	if t.ref.Role != Share && t.ref.Role != Sample {
		t.weight = 0
	}
	return err
}

// weighLocked converts a limit's state and a check to what limit.Apply expects: in the
// role Share, those of a part under its current weight; otherwise those of a whole limit.
// again reports whether the state differs from the one in the store. The error is
// ErrWhole if a part cannot decide the check.
func (t *target) weighLocked(state *limit.State, op *limit.Op) (again bool, err error) {
	capacity := op.Capacity()
	if t.ref.Role != Share {
		*state = state.Reweigh(limit.FullWeight, capacity, t.now)
		return true, nil
	}
	part, ok := op.Part(t.weight)
	if !ok {
		return false, ErrWhole
	}
	switch state.Weight {
	case t.weight:
	case 0: // it was lost
		//guard:split-lost-part part.Emptied(t.now) -> limit.State{}
		*state = part.Emptied(t.now)
		again = true
	default:
		*state = state.Reweigh(t.weight, capacity, t.now)
		again = true
	}
	state.Weight = 0 // until it is stored
	t.slack = capacity - part.Capacity()
	*op = part
	return again, nil
}

// partible reports whether a part can decide an add by itself, before it is tried.
func partible(op counter.AddOp) bool {
	return op.IdleTTL == 0 &&
		!op.HasMin && //guard:split-partible
		!op.HasMax //guard:split-partible
}

// fitsShare reports whether a part of a counter can have become that: what would
// overflow in it might not, in the whole.
func fitsShare(next counter.State, res counter.AddResult) bool {
	return res.Applied &&
		next.Value <= maxShare && //guard:split-part-large
		next.Value >= -maxShare
}

// staleLocked reports whether an object is a part of something that is not split any
// more.
func (sh *shard) staleLocked(slot uint32) bool {
	key := sh.entryLocked(slot).text()
	if key = key[:sh.entryLocked(slot).keyLen()]; len(key) == 0 || key[0] != reserved {
		return false
	}
	return sh.store.cfg.Stale(sh.hashLocked(slot), key)
}
