// Package counter is an exact signed 64-bit counter with optional bounds,
// compare-and-set and idle expiry. It is a pure state machine: state, operation
// and time in, state and result out.
//
// # Guarantee
//
// An operation that is refused changes nothing, and a sum that does not fit in
// 64 bits is refused before it is made. Every change gives the counter a new
// version, higher than all before it; a counter that does not exist has value 0
// and version 0. No operation allocates, or panics for any State and any op.
//
// A bound refuses only what moves the counter further beyond it, so that a
// counter that is outside, because the bounds changed, can come back.
//
// A counter with an idle TTL is forgotten at the moment at which it was not
// changed for so long: from then on operations see one that does not exist.
//
// # Time
//
// Time is an argument: nanoseconds of a monotonic clock. Callers race for the
// state, so `now` may lie a little behind the last change (State.At); it then
// counts as the moment of that change, and no TTL gets shorter by it. What a read
// shows as expired is not remembered: the caller stores the zero State if a
// later call with an earlier `now` must not see the counter again.
//
// # Non-guarantee
//
// Versions are not consecutive. Whether those of a counter that was deleted or forgotten
// rise above its former ones is the caller's: it says what the next version is.
package counter

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/keystead/keystead/internal/failure"
)

// Bounds of an idle TTL, with their reasons.
const (
	MinIdleTTL = 1_000_000                    // ns, 1 ms: below, a counter ends while the answer travels
	MaxIdleTTL = 366 * 24 * 3_600_000_000_000 // ns, 366 days: a leap year; longer is 0, never
)

// State is a counter. The zero State is one that does not exist.
type State struct {
	Value   int64
	Version uint64 // Invariant: 0 only in the zero State; rises with every change
	At      int64  // when it was last changed. Invariant: never falls
	IdleTTL int64  // ns after At when it is forgotten; 0 = never
}

// Expired reports whether the counter's time is over.
func (s State) Expired(now int64) bool {
	return s.IdleTTL != 0 && now > s.At && uint64(now)-uint64(s.At) >= uint64(s.IdleTTL)
}

// Live returns the state as operations see it: one that has expired does not exist.
func (s State) Live(now int64) State {
	if s.Expired(now) {
		return State{}
	}
	return s
}

// changed returns the state after a change at a moment.
func (s State) changed(value int64, version uint64, ttl, now int64) State {
	if s.Version != 0 {
		now = max(now, s.At)
	}
	return State{Value: value, Version: version, At: now, IdleTTL: ttl}
}

func validateTTL(ttl int64) error {
	if ttl != 0 && (ttl < MinIdleTTL || ttl > MaxIdleTTL) {
		return failure.Invalidf("idle_ttl_ns", "is %s; choose 1ms to 366d, or 0 for never", time.Duration(ttl))
	}
	return nil
}

// AddOp adds Delta if the sum stays within the bounds.
type AddOp struct {
	Delta          int64
	Min, Max       int64
	HasMin, HasMax bool
	IdleTTL        int64 // ns; 0 = the counter never expires
}

// Validate reports a parameter that is out of range, as a *failure.Error.
func (op AddOp) Validate() error {
	if op.HasMin && op.HasMax && op.Min > op.Max {
		return failure.Invalidf("min", "is %d, above max %d", op.Min, op.Max)
	}
	return validateTTL(op.IdleTTL)
}

// Refusal is why an add was refused.
type Refusal uint8

const (
	None     Refusal = iota
	BelowMin         // the sum would be below Min
	AboveMax         // the sum would be above Max
	Overflow         // the sum would not fit in 64 bits
)

// AddResult is the outcome of an add: the value and version after it.
type AddResult struct {
	Applied bool
	Value   int64
	Version uint64
	Refusal Refusal
}

// Add adds to a counter. version is what a change is stamped with: higher than
// s.Version. An add of 0 is never refused; to a counter that exists it sets the
// idle TTL anew, which is a change if the counter has or gets one, and to one
// that does not exist it does nothing. If nothing changed, next is s.Live(now).
func Add(s State, op AddOp, version uint64, now int64) (next State, res AddResult, changed bool) {
	s = s.Live(now)
	refuse := func(why Refusal) (State, AddResult, bool) {
		return s, AddResult{Value: s.Value, Version: s.Version, Refusal: why}, false
	}
	switch d := op.Delta; {
	case d > 0:
		over := s.Value > math.MaxInt64-d
		if op.HasMax && (over || s.Value+d > op.Max) {
			return refuse(AboveMax)
		}
		if over {
			return refuse(Overflow)
		}
	case d < 0:
		under := s.Value < math.MinInt64-d
		if op.HasMin && (under || s.Value+d < op.Min) {
			return refuse(BelowMin)
		}
		if under {
			return refuse(Overflow)
		}
	case s.Version == 0 || s.IdleTTL == op.IdleTTL && (s.IdleTTL == 0 || now <= s.At):
		return s, AddResult{Applied: true, Value: s.Value, Version: s.Version}, false
	}
	next = s.changed(s.Value+op.Delta, version, op.IdleTTL, now)
	return next, AddResult{Applied: true, Value: next.Value, Version: version}, true
}

// CompareAndSetOp sets the value of a counter whose version is known.
type CompareAndSetOp struct {
	Value   int64
	Version uint64 // that the counter must have; 0 = it must not exist
	IdleTTL int64  // ns; 0 = the counter never expires
}

// Validate reports a parameter that is out of range, as a *failure.Error.
func (op CompareAndSetOp) Validate() error { return validateTTL(op.IdleTTL) }

// CompareAndSetResult is the outcome of a CompareAndSet: the value and version after it.
type CompareAndSetResult struct {
	Applied bool
	Value   int64
	Version uint64
}

// CompareAndSet sets a counter if its version is the expected one. version and next are
// as for Add.
func CompareAndSet(s State, op CompareAndSetOp, version uint64, now int64) (next State, res CompareAndSetResult, changed bool) {
	s = s.Live(now)
	if s.Version != op.Version {
		return s, CompareAndSetResult{Value: s.Value, Version: s.Version}, false
	}
	next = s.changed(op.Value, version, op.IdleTTL, now)
	return next, CompareAndSetResult{true, next.Value, version}, true
}

// ResetResult is the outcome of a Reset.
type ResetResult struct {
	Previous int64
	Version  uint64 // after it; 0 if the counter does not exist
}

// Reset sets a counter back to 0. It keeps its idle TTL, whose time starts anew.
// version and next are as for Add.
func Reset(s State, version uint64, now int64) (next State, res ResetResult, changed bool) {
	s = s.Live(now)
	if s.Version == 0 {
		return s, ResetResult{}, false
	}
	next = s.changed(0, version, s.IdleTTL, now)
	return next, ResetResult{s.Value, version}, true
}

// DeleteResult is the outcome of a Delete.
type DeleteResult struct {
	Deleted  bool   // there was a counter
	Previous int64  // its value
	Version  uint64 // of the deletion, above all that the counter had; 0 if there was none
}

// Delete makes a counter one that does not exist. version is as for Add; next is always
// the zero State.
func Delete(s State, version uint64, now int64) (next State, res DeleteResult, changed bool) {
	s = s.Live(now)
	if s.Version == 0 {
		return State{}, DeleteResult{}, false
	}
	return State{}, DeleteResult{true, s.Value, version}, true
}

// Get reads a counter: 0 at version 0 if it does not exist.
func Get(s State, now int64) (value int64, version uint64) {
	s = s.Live(now)
	return s.Value, s.Version
}

// Valid reports why a state that came from elsewhere cannot be one of this
// package.
func (s State) Valid() error {
	if s.Version == 0 && s != (State{}) {
		return errors.New("counter: it has no version, but a value or a time")
	}
	if validateTTL(s.IdleTTL) != nil {
		return fmt.Errorf("counter: idle TTL %d is out of range", s.IdleTTL)
	}
	return nil
}
