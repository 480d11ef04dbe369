package value

import (
	"errors"
	"fmt"
	"math"

	"github.com/keystead/keystead/internal/failure"
)

const (
	// MaxValue is the most bytes of a value: with its key, name and conditions it fits
	// a message.
	MaxValue = 60 << 10
	// MaxToken is the greatest version and the greatest fencing token: below 2^63, so that
	// languages without unsigned numbers can hold it.
	MaxToken = math.MaxInt64
)

// State is a register. The zero State is one that never was.
type State struct {
	// Value is shared: nobody changes its bytes. Invariant: nil unless Exists.
	Value   []byte
	Exists  bool
	Version uint64 // of the last change. Invariant: rises with every change; 0 only in the zero State
	Fence   uint64 // greatest token under which it was changed. Invariant: never falls
	At      int64  // when it was last changed. Invariant: never falls
}

// Absent reports whether the register equals one that never was: nothing of it need be kept.
func (s *State) Absent() bool { return !s.Exists && s.Fence == 0 }

// Conditions are what has to be true for a change. The zero Conditions hold always.
type Conditions struct {
	Versioned bool   // the register must have the version, …
	Version   uint64 // … 0: it must not exist
	Fence     uint64 // fencing token of elsewhere; 0 = none
	Over      bool   // the hold that the change names is over
}

// Set sets the value.
type Set struct {
	Value []byte
	Conditions
}

// Delete makes the register one that does not exist.
type Delete struct {
	// Forget drops the fence, too.
	Forget bool
	Conditions
}

// Validate reports a parameter that is out of range, as a *failure.Error.
func (op *Set) Validate() error {
	if len(op.Value) > MaxValue {
		return failure.Invalidf("value", "has %d bytes; at most %d are allowed", len(op.Value), MaxValue)
	}
	return op.Conditions.validate()
}

// Validate reports a parameter that is out of range, as a *failure.Error.
func (op *Delete) Validate() error {
	if op.Versioned && op.Version == 0 {
		return failure.Invalidf("version", "is 0: what does not exist need not be deleted")
	}
	return op.Conditions.validate()
}

func (c *Conditions) validate() error {
	if c.Fence > MaxToken {
		return failure.Invalidf("fence", "is %d; at most %d is allowed", c.Fence, uint64(MaxToken))
	}
	return nil
}

// Refusal is why a change was refused.
type Refusal uint8

const (
	None         Refusal = iota
	OtherVersion         // the register has another version
	OldFence             // something was changed under a greater fencing token
	HoldOver             // the hold that the change names is over
)

func (r Refusal) String() string {
	if int(r) < len(refusals) {
		return refusals[r]
	}
	return "unknown refusal"
}

var refusals = [...]string{"none", "other version", "old fence", "hold over"}

// Result is the outcome of a change.
type Result struct {
	// Applied reports whether the value was set, or the register deleted. One that does not
	// exist is not deleted, which is no refusal.
	Applied bool
	Refusal Refusal
	// Version is that of the change, or that of the register if nothing was applied; 0 if it
	// does not exist.
	Version uint64
}

// current returns the version as callers see it: 0 for a register that does not exist.
func (s *State) current() uint64 {
	if !s.Exists {
		return 0
	}
	return s.Version
}

// refuses returns why a change is refused. A hold comes first: a holder whose time is over
// is told that, whatever it expects.
func (s *State) refuses(c *Conditions) Refusal {
	switch {
	case c.Over:
		return HoldOver
	//guard:value-fence
	case c.Fence != 0 && c.Fence < s.Fence:
		return OldFence
	case c.Versioned && c.Version != s.current():
		return OtherVersion
	}
	return None
}

// Set sets the value. version is what the change is stamped with: above s.Version. The value
// is kept. If nothing changed, next is s.
func (s State) Set(op Set, version uint64, now int64) (next State, res Result, changed bool) {
	if why := s.refuses(&op.Conditions); why != None {
		return s, Result{Refusal: why, Version: s.current()}, false
	}
	next = s.changed(op.Fence, version, now)
	next.Exists, next.Value = true, op.Value
	return next, Result{Applied: true, Version: version}, true
}

// Delete deletes the register. version and next are as for Set; if nothing is left of the
// register, next is the zero State. Where there is none, a greater fencing token is kept all
// the same: what comes late under a lower one is refused.
func (s State) Delete(op Delete, version uint64, now int64) (next State, res Result, changed bool) {
	if why := s.refuses(&op.Conditions); why != None {
		return s, Result{Refusal: why, Version: s.current()}, false
	}
	forgets := op.Forget && s.Fence != 0
	if !s.Exists && !forgets && (op.Forget || op.Fence <= s.Fence) {
		return s, Result{}, false
	}
	if res.Applied = s.Exists; s.Exists {
		res.Version = version
	}
	next = s.changed(op.Fence, version, now)
	//guard:value-delete-fence op.Forget || next.Fence == 0 -> true
	if next.Exists, next.Value = false, nil; op.Forget || next.Fence == 0 {
		next = State{}
	}
	return next, res, true
}

// changed returns the state after a change under a token, at a moment.
func (s State) changed(fence, version uint64, now int64) State {
	if version <= s.Version || version > MaxToken {
		panic(fmt.Sprintf("value: the version of a change must be above %d and at most %d, is %d", s.Version, uint64(MaxToken), version))
	}
	if s.Version != 0 {
		now = max(now, s.At)
	}
	s.Version, s.Fence, s.At = version, max(s.Fence, fence), now
	return s
}

// Valid reports why a state that came from elsewhere cannot be one of this package.
func (s *State) Valid() error {
	switch {
	case s.Version == 0:
		return errors.New("value: it has no version")
	case s.Absent():
		return errors.New("value: nothing is left of it, and it is there all the same")
	case !s.Exists && len(s.Value) > 0:
		return errors.New("value: it does not exist, and has a value")
	case len(s.Value) > MaxValue:
		return fmt.Errorf("value: it has %d bytes", len(s.Value))
	case s.Version > MaxToken || s.Fence > MaxToken:
		return errors.New("value: its version or its fence is out of range")
	}
	return nil
}
