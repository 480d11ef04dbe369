package owner

import (
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/lock"
)

// What a limit starts with that is absent from a row in grace: see
// Config.LostLimits.
const (
	LostFull  = "full"
	LostEmpty = "empty"
)

// Claim is what a holder shows to get a lock back that was lost: see
// Store.Reclaim.
type Claim struct {
	Holder   string // as in AcquireLock, and what follows
	Shared   bool
	Delay    int64
	Metadata []byte
	Session  hold.Session
	Left     int64 // ns that the holder still counts on, by its own count
}

// maxLockTTL returns the longest TTL of a lock. It is asked for when an operation was
// let in, for then the terms are known.
func (s *Store) maxLockTTL() int64 {
	if agreed := s.cfg.Rule.Terms().LockTTL; agreed != 0 {
		return agreed
	}
	return s.cfg.MaxLockTTL
}

// GraceLeft returns how long what was lost may still be held, ns, at most: 0 if the row of an
// operation that was let in is not in grace.
func (s *Store) GraceLeft(p Permit, now int64) int64 {
	if p.Lost == 0 {
		return 0
	}
	return max(p.LostAt+s.cfg.Rule.Terms().Grace-now, 0)
}

// recovering returns the error of what cannot be decided while the row is in grace.
func (t *target) recovering(message string) *failure.Error {
	left := t.sh.store.GraceLeft(t.permit, t.now)
	return &failure.Error{Reason: failure.Recovering, Message: message, RetryAfter: max(time.Duration(left), retrySoon),
		Hint: "holders get their locks back by renewing with a reclaim; everybody else tries again when the grace period is over"}
}

const (
	acquireRecovering = "what is kept of the key was lost, and its locks may still be held: none is granted until the longest lease of before is over; nothing happened"
	unknownRecovering = "what is kept of the key was lost, and this lock with it, whether or not the token holds it; nothing happened"
)

func beforeLoss(token, lost uint64) bool {
	return token>>SeqBits < lost && token&(1<<SeqBits-1) != 0
}

// Reclaim is a Renew by a holder that shows its claim, in case that the lock was
// lost with its owner and all copies. While the row is in grace, and the grant is not known
// here, the holder gets it back: under its token, for the time that it still counts on, at
// most the longest TTL. Among several that held it alone the one with the highest token is the
// true one; it takes the lock from the others. Those that shared it get it back beside one
// another. At all other times the claim changes nothing. It is judged all the same.
//
// This process remembers the highest token until the grace is over; its standby
// does so only while that token holds the lock.
func (s *Store) Reclaim(now int64, ref Ref, token uint64, ttl int64, c Claim) (RenewAnswer, error) {
	//guard:claim-level c.Shared || c.Delay != 0 -> c.Shared
	if c.Shared || c.Delay != 0 {
		if err := s.uses(LockLevel); err != nil {
			return RenewAnswer{}, err
		}
	}
	return renewed(s.reclaimHold(now, KindLock, ref, token, ttl, HoldClaim{
		Holder: c.Holder, Weight: lock.Weight(c.Shared), Capacity: lock.All, Delay: c.Delay, Metadata: c.Metadata, Session: c.Session, Left: c.Left,
	}))
}

// remembersLocked reports whether an object that is absent knows a token that was used. In
// grace it is kept: no token that is lower gets the object back.
func (sh *shard) remembersLocked(e *entry) bool {
	g := machines[e.kind].grants
	return g != nil && g.remembers(sh, e)
}

// remembersLocked reports whether the target is kept, though it is absent: the row is in grace,
// and claims have ended.
func (t *target) remembersLocked() bool { return t.permit.Lost != 0 && t.sh.remembersLocked(t.e) }

// startsEmpty reports whether a limit that is absent stands for one that was lost, and
// that is taken to have been used up when the row came here.
func (t *target) startsEmpty() bool {
	return t.permit.Lost != 0 && t.sh.store.cfg.LostLimits == LostEmpty
}
