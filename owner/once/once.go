package once

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
)

// Bounds, with their reasons. Times are in nanoseconds.
const (
	MaxPrint  = 64           // bytes of a fingerprint: a SHA-256 in hexadecimal
	MaxHolder = hold.MaxName // bytes: a host name, a process, a thread
	// MaxResult is the most bytes of a result: with its key and name it fits a message. What
	// is longer belongs where documents are kept, and its address here.
	MaxResult = 60 << 10

	MinTTL = hold.MinTTL
	MaxTTL = hold.MaxTTL

	// DefaultKeep is how long a result is kept if nobody says: retries that come a day later
	// are rare, and so it is that services promise.
	DefaultKeep = 24 * 3_600_000_000_000
	MinKeep     = 1_000_000_000 // 1 s: below, it is gone before a retry comes
	// MaxKeep is 7 days: results are in the memory of two nodes. What must be known for longer
	// is a row in a database.
	MaxKeep = 7 * DefaultKeep
	// Linger is how long a turn is remembered that nobody concluded, from the end of its lease
	// on: its work may have been done, so that the key stands for its fingerprint still.
	Linger = DefaultKeep

	// MaxToken is the greatest fencing token, so that it fits signed 64 bits.
	MaxToken = math.MaxInt64
	// maxAttempt is where attempts are not counted any more.
	maxAttempt = math.MaxUint16
)

// Phase is how far the work is.
type Phase uint8

const (
	Absent   Phase = iota // nobody has begun, or nothing is known of it any more
	UnderWay              // somebody has begun, and has not concluded it; perhaps its lease is over
	Finished              // it is done, and its result is kept
)

// State is what is known of the work under one key. The zero State is that of a key that nobody
// has used.
//
// Print, Holder and Result are shared: nobody changes their bytes.
type State struct {
	Phase   Phase
	Token   uint64 // of the last turn. Invariant: never falls; 0 only in the zero State
	Attempt uint32 // which turn that is, from 1 on. Invariant: 0 if Absent
	Print   []byte // fingerprint of the work. Invariant: nil if Absent
	Holder  []byte // whose turn it is. Invariant: nil unless UnderWay
	Result  []byte // Invariant: nil unless Finished
	Since   int64  // when the turn began, or the work was completed
	Until   int64  // end of the lease, or of the retention. Invariant: above Since
}

// Begin asks for the turn.
type Begin struct {
	Print  []byte // at most MaxPrint bytes
	Holder []byte // at most MaxHolder bytes of UTF-8
	TTL    int64  // ns, MinTTL to MaxTTL
}

// Validate reports a field that is out of range, as a *failure.Error.
func (op *Begin) Validate() error {
	if err := validateText(op.Print, op.Holder); err != nil {
		return err
	}
	return ValidateTTL(op.TTL)
}

func validateText(print, holder []byte) error {
	switch {
	case len(print) > MaxPrint:
		e := failure.Invalidf("fingerprint", "has %d bytes; at most %d are allowed", len(print), MaxPrint)
		e.Hint = "send a hash of the request, such as its SHA-256"
		return e
	case len(holder) > MaxHolder:
		return failure.Invalidf("holder", "has %d bytes; at most %d are allowed", len(holder), MaxHolder)
	case !utf8.Valid(holder):
		return failure.Invalidf("holder", "is not valid UTF-8")
	}
	return nil
}

// ValidateTTL reports a TTL that is out of range, as a *failure.Error.
func ValidateTTL(ttl int64) error { return hold.ValidateTTL(ttl) }

// ValidateResult reports a result, or how long it is to be kept, that is out of range, as a
// *failure.Error.
func ValidateResult(result []byte, keep int64) error {
	switch {
	case len(result) > MaxResult:
		e := failure.Invalidf("result", "has %d bytes; at most %d are allowed", len(result), MaxResult)
		e.Hint = "store it elsewhere, and complete with where it is"
		return e
	case keep < MinKeep || keep > MaxKeep:
		return failure.Invalidf("keep_ns", "is %s; choose 1s to 168h", time.Duration(keep))
	}
	return nil
}

// Outcome is how a Begin went.
type Outcome uint8

const (
	First Outcome = iota + 1 // it is the caller's turn
	Busy                     // it is another's
	Done                     // it is done
	Other                    // the key stands for other work
)

func (o Outcome) String() string {
	if int(o) < len(outcomes) {
		return outcomes[o]
	}
	return "unknown outcome"
}

var outcomes = [...]string{"none", "first", "busy", "done", "other"}

// Forgotten reports whether the time is over for which the state is kept.
func (s *State) Forgotten(now int64) bool {
	switch s.Phase {
	case UnderWay:
		return now >= s.Until+Linger
	case Finished:
		return now >= s.Until
	}
	return true
}

// leased reports whether a turn is under way that no other Begin ends.
func (s *State) leased(now int64) bool { return s.Phase == UnderWay && now < s.Until }

// InForce reports whether a token is that of the turn: nobody has begun since, and it was not
// concluded.
func (s *State) InForce(token uint64, now int64) bool {
	return s.Phase == UnderWay && token == s.Token && !s.Forgotten(now)
}

// Begin begins a turn under a token above s.Token, unless it is another's, or the work is done.
// If the Outcome is not First, next is s.
func (s State) Begin(op Begin, token uint64, now int64) (next State, o Outcome) {
	fresh := s.Forgotten(now)
	switch {
	case fresh:
		s.Attempt = 0
	//guard:once-fingerprint
	case !bytes.Equal(op.Print, s.Print):
		return s, Other
	case s.Phase == Finished:
		return s, Done
	//guard:once-leased
	case s.leased(now):
		return s, Busy
	}
	if token <= s.Token || token > MaxToken {
		panic(fmt.Sprintf("once: the token of a turn must be above %d and at most %d, is %d", s.Token, uint64(MaxToken), token))
	}
	return State{Phase: UnderWay, Token: token, Attempt: min(s.Attempt+1, maxAttempt),
		Print: some(op.Print), Holder: some(op.Holder), Since: now, Until: now + op.TTL}, First
}

// some is nil for no bytes.
func some(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// Renew has the lease of a turn last for so long from now on, and not less than it did.
func (s State) Renew(token uint64, ttl, now int64) (next State, held bool) {
	if !s.InForce(token, now) {
		return s, false
	}
	s.Until = max(s.Until, now+ttl)
	return s, true
}

// Concluded is how a Complete went.
type Concluded uint8

const (
	Completed  Concluded = iota + 1 // the result is kept
	Repeated                        // this token has completed it before; the result is that of then
	NotInForce                      // another has begun or completed it, or nothing is known of it
)

// Complete ends a turn with a result, to be kept for so long.
func (s State) Complete(token uint64, result []byte, keep, now int64) (next State, c Concluded) {
	switch {
	case s.Phase == Finished && token == s.Token && !s.Forgotten(now):
		return s, Repeated
	//guard:once-late-complete
	case !s.InForce(token, now):
		return s, NotInForce
	}
	s.Phase, s.Holder, s.Result, s.Since, s.Until = Finished, nil, some(result), now, now+keep
	return s, Completed
}

// Abandon ends a turn as if it had never begun. Of the key, only the token is left.
func (s State) Abandon(token uint64, now int64) (next State, ended bool) {
	if !s.InForce(token, now) {
		return s, false
	}
	return State{Token: s.Token}, true
}

// Forget has nothing be known of the work any more. A turn that is under way it ends only if
// that is asked for: another may begin beside its holder then.
func (s State) Forget(underWay bool, now int64) (next State, was Phase, forgotten bool) {
	switch {
	case s.Forgotten(now):
		return s, Absent, false
	case s.leased(now) && !underWay:
		return s, s.Phase, false
	}
	return State{Token: s.Token}, s.Phase, true
}

// Reclaim makes a turn what it was before a loss, unless it is known here that a later one began,
// or that it was concluded. left is what its holder counts on still.
func (s State) Reclaim(op Begin, token uint64, left, now int64) (next State, reclaimed bool) {
	//guard:once-reclaim-highest
	if token <= s.Token || s.Phase == Finished {
		return s, false
	}
	return State{Phase: UnderWay, Token: token, Attempt: 1, Print: some(op.Print), Holder: some(op.Holder), Since: now, Until: now + max(left, 1)}, true
}

// Valid reports why a state that came from elsewhere cannot be one of this package.
func (s *State) Valid() error {
	switch {
	case s.Phase != UnderWay && s.Phase != Finished:
		return errors.New("once: it is neither under way nor done")
	case s.Token == 0 || s.Token > MaxToken:
		return errors.New("once: its token is out of range")
	case s.Attempt == 0 || s.Attempt > maxAttempt:
		return errors.New("once: the number of its attempts is out of range")
	case s.Until <= s.Since:
		return errors.New("once: it ends before it begins")
	case s.Until-s.Since > math.MaxInt64/4:
		return errors.New("once: it ends too late")
	case len(s.Print) > MaxPrint || len(s.Holder) > MaxHolder || len(s.Result) > MaxResult:
		return errors.New("once: it is too long")
	case s.Phase == Finished && len(s.Holder) > 0, s.Phase == UnderWay && len(s.Result) > 0:
		return errors.New("once: it has what only another phase has")
	case !utf8.Valid(s.Holder):
		return errors.New("once: its holder is not valid UTF-8")
	}
	return nil
}

// Describe returns the state as people read it.
func (s *State) Describe(now int64) string {
	switch {
	case s.Forgotten(now):
		return "absent"
	case s.Phase == Finished:
		return fmt.Sprintf("done under token %d: %q, kept for %s", s.Token, s.Result, time.Duration(s.Until-now))
	case s.leased(now):
		return fmt.Sprintf("under way by %q under token %d, attempt %d, for %s unless renewed", s.Holder, s.Token, s.Attempt, time.Duration(s.Until-now))
	}
	return fmt.Sprintf("nobody concluded attempt %d under token %d; its lease is over since %s", s.Attempt, s.Token, time.Duration(now-s.Until))
}
