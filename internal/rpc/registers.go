package rpc

import (
	"cmp"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/value"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// Bounds of values on their way to the standby, in bytes.
const (
	// valueWindow is how many bytes the standby may not have acknowledged when a long value is
	// written: half of what ends the stream to it (feed.DefaultMaxUnacked).
	valueWindow = 8 << 20
	// longValue is one that is held back. Shorter ones are no more than what other operations
	// write, which nothing holds back.
	longValue = 1 << 10
)

// stocks are Copies that say how far they are behind.
type stocks interface {
	// Unacked returns how many bytes those that answers about keys at a position wait for
	// have not acknowledged, at most.
	Unacked(hash uint64) int
}

var errValues = &failure.Error{Reason: failure.Overloaded, RetryAfter: 50 * time.Millisecond,
	Message: "values are written faster than the standby of this node keeps up with; nothing happened",
	Hint:    "try again later, or write shorter values; `keystead status` shows whether the standby is well"}

// admitValue counts a value in that a change is about to send to the copies; done is called when
// it has. size is that of what is to be written. A change that is refused writes nothing, but if
// it has an id, that goes to the copies with the value that is there. The error is that of a
// value that the copies have no room for now. Nothing waits: other calls of another node are
// behind this one.
func (s *Server) admitValue(f frame, size int) (done func(), err error) {
	copies, ok := s.cfg.Copies.(stocks)
	if !ok {
		return func() {}, nil
	}
	//guard:value-of-refused
	if f.id.Given() {
		size = max(size, s.cfg.Store.ValueSize(f.at))
	}
	if size < longValue {
		return func() {}, nil
	}
	hash := f.at.Hash
	if hash == 0 {
		hash = owner.Hash(f.at.Key)
	}
	done = func() { s.values.Add(int64(-size)) }
	//guard:value-window
	if s.values.Add(int64(size))+int64(copies.Unacked(hash)) > valueWindow {
		done()
		return nil, errValues
	}
	return done, nil
}

var registerRefusals = map[value.Refusal]registerpb.Refusal{
	value.None:         registerpb.Refusal_REFUSAL_UNSPECIFIED,
	value.OtherVersion: registerpb.Refusal_REFUSAL_OTHER_VERSION,
	value.OldFence:     registerpb.Refusal_REFUSAL_OLD_FENCE,
	value.HoldOver:     registerpb.Refusal_REFUSAL_HOLD_OVER,
}

// holdOf returns the hold that a request names, the zero Hold if it names none.
func holdOf(h *registerpb.Hold) (owner.Hold, error) {
	switch {
	case h == nil:
		return owner.Hold{}, nil
	case h.Token == 0:
		return owner.Hold{}, &failure.Error{Reason: failure.Invalid, Field: "hold.token", Message: "is 0, which no lock is held under",
			Hint: "send the token that Acquire has returned, or no hold"}
	}
	return owner.Hold{Name: cmp.Or(h.Name, lockKind), Token: h.Token}, nil
}

// seen returns the version of a register as callers see it.
func seen(s *value.State) uint64 {
	if !s.Exists {
		return 0
	}
	return s.Version
}

// present returns what a change says of the register as it is now: nothing, if the caller
// knows it.
func present(a *owner.RegisterChange) *registerpb.Register {
	if a.Refusal == value.None && !a.Replayed {
		return nil
	}
	c := &a.Current
	return &registerpb.Register{Exists: c.Exists, Value: c.Value, Version: seen(c), Fence: c.Fence}
}

func (s *Server) getRegister(f frame, _ *registerpb.GetRequest, r *registerpb.GetResponse) (verdict, error) {
	a, err := s.cfg.Store.GetRegister(f.now, f.at)
	if err != nil {
		return verdict{}, err
	}
	r.Exists, r.Value, r.Version, r.Fence = a.Exists, a.Value, seen(&a.State), a.Fence
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Exists}, nil
}

// setRegister sets a register under the conditions of a request.
func (s *Server) setRegister(f frame, op owner.SetRegister, hold *registerpb.Hold) (a owner.RegisterChange, err error) {
	if op.Hold, err = holdOf(hold); err != nil {
		return a, err
	}
	done, err := s.admitValue(f, len(op.Value))
	if err != nil {
		return a, err
	}
	defer done()
	return s.cfg.Store.SetRegister(f.now, f.at, f.id, op)
}

func (s *Server) putRegister(f frame, q *registerpb.PutRequest, r *registerpb.PutResponse) (verdict, error) {
	a, err := s.setRegister(f, owner.SetRegister{Set: value.Set{Value: q.Value, Conditions: value.Conditions{Fence: q.Fence}}}, q.Hold)
	if err != nil {
		return verdict{}, err
	}
	r.Applied, r.Refusal, r.Version, r.Current = a.Applied, registerRefusals[a.Refusal], a.Version, present(&a)
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Applied}, nil
}

func (s *Server) compareAndSetRegister(f frame, q *registerpb.CompareAndSetRequest, r *registerpb.CompareAndSetResponse) (verdict, error) {
	a, err := s.setRegister(f, owner.SetRegister{Set: value.Set{Value: q.Value, Conditions: value.Conditions{Versioned: true, Version: q.Version, Fence: q.Fence}}}, q.Hold)
	if err != nil {
		return verdict{}, err
	}
	r.Applied, r.Refusal, r.Version, r.Current = a.Applied, registerRefusals[a.Refusal], a.Version, present(&a)
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Applied}, nil
}

func (s *Server) deleteRegister(f frame, q *registerpb.DeleteRequest, r *registerpb.DeleteResponse) (verdict, error) {
	hold, err := holdOf(q.Hold)
	if err != nil {
		return verdict{}, err
	}
	done, err := s.admitValue(f, 0)
	if err != nil {
		return verdict{}, err
	}
	defer done()
	a, err := s.cfg.Store.DeleteRegister(f.now, f.at, f.id, owner.DeleteRegister{Hold: hold, Delete: value.Delete{Forget: q.ForgetFence,
		Conditions: value.Conditions{Versioned: q.Version != 0, Version: q.Version, Fence: q.Fence}}})
	if err != nil {
		return verdict{}, err
	}
	r.Deleted, r.Refusal, r.Version, r.Current = a.Applied, registerRefusals[a.Refusal], a.Version, present(&a)
	r.Epoch, r.Replay, r.Owner, r.LostEpoch = a.Permit.Epoch, replayOf(a.Meta), s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, a.Applied}, nil
}
