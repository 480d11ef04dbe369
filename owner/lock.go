package owner

import (
	"math"
	"time"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/reqid"
)

// LockLevel is the level of the cluster from which on locks are shared and have delays, and
// their records have the form of holds.
const LockLevel = 7

// lockMachine is the kind of locks: see package lock.
var lockMachine = func() machine {
	m := kindOfHold("lock", 0, &family{
		acquire: opAcquire, release: opRelease, revoke: opRevokeLock, update: opUpdateLock,
		queue: MaxPart, single: true, holders: reqid.Client{Hi: math.MaxUint64, Lo: math.MaxUint64}, // zero has always been a client
		lost: acquireRecovering, never: "is %d: no lock was ever granted under it",
	})
	m.old = oldLocks{}
	return m
}()

// AcquireLock asks for a lock.
type AcquireLock struct {
	Holder   string // as in hold.Acquire, and what follows
	Shared   bool   // others may share it
	TTL      int64
	Wait     int64
	Delay    int64
	Metadata []byte
	Session  hold.Session
	Keep     int64
	Token    uint64 // of a shared grant of the caller, which asks for the lock alone: it is refused
}

// RenewAnswer reports whether the token still holds the lock.
type RenewAnswer struct {
	Renewed   bool
	Reclaimed bool         // it was lost, and given back: TTL is what its holder had left
	TTL       int64        // ns left
	Holder    hold.Holding // who holds the lock, when the token does not; of several, the first
	Meta
}

// Acquire acquires a lock, or a place in its queue. If it returns a Wait, the Wait
// gets the answer.
func (s *Store) Acquire(now int64, ref Ref, id reqid.ID, op AcquireLock) (GrantAnswer, *Wait[GrantAnswer], error) {
	if op.Token != 0 {
		return GrantAnswer{}, nil, errUpgrade
	}
	//guard:lock-level
	if op.Shared || op.Delay != 0 {
		if err := s.uses(LockLevel); err != nil {
			return GrantAnswer{}, nil, err
		}
	}
	return s.acquireHold(now, KindLock, ref, id, hold.Acquire{
		Name: op.Holder, Weight: lock.Weight(op.Shared), Capacity: lock.All, TTL: op.TTL, Wait: op.Wait, Delay: op.Delay, Metadata: op.Metadata, Session: op.Session, Keep: op.Keep,
	})
}

// Renew prolongs a grant. While the row is in grace and nothing is known of the
// grant, the error is Recovering; see Reclaim.
func (s *Store) Renew(now int64, ref Ref, token uint64, ttl int64) (RenewAnswer, error) {
	return renewed(s.renewHold(now, KindLock, ref, token, ttl, nil))
}

// renewed returns a renewal in the words of locks.
func renewed(a HeldAnswer, err error) (RenewAnswer, error) {
	return RenewAnswer{Renewed: a.OK, Reclaimed: a.Reclaimed, TTL: a.Holding.Left, Holder: a.Holder, Meta: a.Meta}, err
}

// Release ends a grant. While the row is in grace and nothing is known of the
// grant, the error is Recovering, for "not held" would mean that it had been lost
// before; see Reclaim.
func (s *Store) Release(now int64, ref Ref, id reqid.ID, token uint64) (ReleaseAnswer, error) {
	return s.endHold(now, KindLock, ref, id, token, false)
}

// RevokeLock ends a grant that is another's. Its delay runs.
func (s *Store) RevokeLock(now int64, ref Ref, id reqid.ID, token uint64) (ReleaseAnswer, error) {
	return s.endHold(now, KindLock, ref, id, token, true)
}

// VerifyLock reports whether a token holds a lock now, and how.
func (s *Store) VerifyLock(now int64, ref Ref, token uint64) (HeldAnswer, error) {
	return s.verifyHold(now, KindLock, ref, token)
}

// UpdateLock replaces the metadata of a grant. They must not change afterwards.
func (s *Store) UpdateLock(now int64, ref Ref, id reqid.ID, token uint64, metadata []byte) (HeldAnswer, error) {
	return s.updateHold(now, KindLock, ref, id, token, metadata)
}

// DowngradeLock makes an exclusive grant a shared one, in place: nobody else holds the lock
// exclusively in between.
func (s *Store) DowngradeLock(now int64, ref Ref, token uint64) (HeldAnswer, error) {
	if err := s.uses(LockLevel); err != nil {
		return HeldAnswer{}, err
	}
	return s.downgradeHold(now, KindLock, ref, token, lock.One)
}

// Inspect returns a lock with the first of its holders and of its waiters, at most limit each.
func (s *Store) Inspect(now int64, ref Ref, limit int) (HoldAnswer, error) {
	return s.inspectHold(now, KindLock, ref, limit)
}

func (s *Store) checkTTL(ttl int64) error {
	if most := s.maxLockTTL(); ttl > most {
		return invalid("ttl_ns", "is %s; this node allows at most %s", time.Duration(ttl), time.Duration(most))
	}
	return nil
}

// writesPlain reports whether records have a lock in the old form: not all members of the
// cluster read the other one yet.
func (s *Store) writesPlain(state *hold.State) bool {
	//guard:lock-form s.uses(LockLevel) != nil -> false
	return s.uses(LockLevel) != nil && lock.Plain(state)
}

// AwaitLock reads who holds a lock: see Store.awaitHold.
func (s *Store) AwaitLock(now int64, ref Ref, seen Seen) (a HoldSight, changed <-chan struct{}, err error) {
	return s.awaitHold(now, KindLock, ref, seen, MaxSighted)
}
