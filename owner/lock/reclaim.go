package lock

import (
	"errors"
	"fmt"

	"github.com/keystead/keystead/internal/failure"
)

// Reclaim asks for a grant back that was lost with the state: its owner and all
// copies are gone, and its holder still counts on it.
type Reclaim struct {
	Token    uint64 // of the grant, 1 to MaxToken
	Holder   string // as in Acquire
	Metadata []byte // as in Acquire
	Left     int64  // ns that the holder still counts on, 1 to MaxTTL
}

// Validate reports a field that is out of range, as a *failure.Error. State.Reclaim
// expects a claim that passed it.
func (op Reclaim) Validate() error {
	switch {
	case op.Token == 0 || op.Token > MaxToken:
		return failure.Invalidf("token", "must be from 1 to %d, is %d", uint64(MaxToken), op.Token)
	case op.Left < 1 || op.Left > MaxTTL:
		return failure.Invalidf("reclaim.left_ns", "must be from 1 to %d (24 h), is %d: a lease that is over is not given back", int64(MaxTTL), op.Left)
	}
	err := Acquire{Holder: op.Holder, Metadata: op.Metadata, TTL: MinTTL}.Validate()
	if f := (*failure.Error)(nil); errors.As(err, &f) {
		return failure.Invalidf("reclaim."+f.Field, "%s", f.Message)
	}
	return err
}

// ReclaimResult answers a Reclaim.
type ReclaimResult struct {
	Reclaimed bool
	Expires   int64  // the end, else 0
	Revoked   uint64 // the token of the grant that was in force until now, 0 if there was none
}

// Reclaim gives a grant that this state does not know back to its holder, under
// its own token, for the time that the holder still counts on. It is for a state
// that was lost, while grants of before the loss may be in force elsewhere: nothing
// may be granted then, and what is reclaimed is checked against what else was.
// The highest token is that of the last grant, so it wins: it revokes a lower one
// that holds the lock here, and a token that is not above all that were seen here
// gets nothing back. That goes for the last one itself: its grant is known here, to
// be in force (then Renew prolongs it) or to be over.
//
// `next` is the candidate for the head of the queue, as in every step.
func (s *State) Reclaim(op Reclaim, now int64, next uint64, fx *Effects) ReclaimResult {
	if err := op.Validate(); err != nil {
		panic(fmt.Sprintf("lock: a claim was not validated: %v", err))
	}
	now = s.advance(now, next, false, fx)
	//guard:reclaim-highest
	if op.Token <= s.LastToken {
		return ReclaimResult{}
	}
	res := ReclaimResult{Reclaimed: true, Expires: now + op.Left, Revoked: s.Token}
	s.Holder, s.Token, s.Metadata = op.Holder, op.Token, op.Metadata
	s.Since, s.Expires, s.Waited = now, res.Expires, 0
	s.LastToken = op.Token
	s.changed(now, fx)
	return res
}
