package owner

import (
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// SemaphoreLevel is the level of the cluster from which on there are semaphores.
const SemaphoreLevel = 6

// semaphoreMachine is the kind of semaphores: a capacity that those say who acquire, or that was
// set, and holders with as many permits as their weight.
var semaphoreMachine = kindOfHold("semaphore", SemaphoreLevel, &family{
	acquire: opAcquirePermits, release: opReleasePermits, revoke: opRevokePermits, setCapacity: opSetCapacity, update: opUpdatePermits,
	queue: MaxPart - hold.MaxHolders, // a record of the whole has its holders as well
	lost:  "what is kept of the key was lost, and its permits may still be held: none is granted until the longest lease of before is over; nothing happened",
	never: "is %d: no permits were ever granted under it",
})

// AcquirePermits acquires permits of a semaphore, or a place in its queue. If it returns a
// Wait, the Wait gets the answer.
func (s *Store) AcquirePermits(now int64, ref Ref, id reqid.ID, op hold.Acquire) (GrantAnswer, *Wait[GrantAnswer], error) {
	return s.acquireHold(now, KindSemaphore, ref, id, op)
}

// RenewPermits prolongs a grant. While the row is in grace and nothing is known of the grant,
// the error is Recovering; see ReclaimPermits.
func (s *Store) RenewPermits(now int64, ref Ref, token uint64, ttl int64) (HeldAnswer, error) {
	return s.renewHold(now, KindSemaphore, ref, token, ttl, nil)
}

// ReclaimPermits is a RenewPermits by a holder that shows its claim, in case that the permits
// were lost: see Store.reclaimHold.
func (s *Store) ReclaimPermits(now int64, ref Ref, token uint64, ttl int64, c HoldClaim) (HeldAnswer, error) {
	return s.reclaimHold(now, KindSemaphore, ref, token, ttl, c)
}

// VerifyPermits reports whether a token holds something now, and what.
func (s *Store) VerifyPermits(now int64, ref Ref, token uint64) (HeldAnswer, error) {
	return s.verifyHold(now, KindSemaphore, ref, token)
}

// UpdatePermits replaces the metadata of a grant. They must not change afterwards.
func (s *Store) UpdatePermits(now int64, ref Ref, id reqid.ID, token uint64, metadata []byte) (HeldAnswer, error) {
	return s.updateHold(now, KindSemaphore, ref, id, token, metadata)
}

// DowngradePermits gives some of the permits of a grant back, so that so many are left. More
// than it has changes nothing: OK is false then, and Holding says what it has.
func (s *Store) DowngradePermits(now int64, ref Ref, token uint64, permits uint32) (HeldAnswer, error) {
	if permits < 1 || permits > hold.MaxCapacity {
		return HeldAnswer{}, invalid("permits", "are %d; choose 1 to %d", permits, hold.MaxCapacity)
	}
	return s.downgradeHold(now, KindSemaphore, ref, token, permits)
}

// ReleasePermits ends a grant. While the row is in grace and nothing is known of it, the error
// is Recovering.
func (s *Store) ReleasePermits(now int64, ref Ref, id reqid.ID, token uint64) (ReleaseAnswer, error) {
	return s.endHold(now, KindSemaphore, ref, id, token, false)
}

// RevokePermits ends a grant that is another's. Its delay runs.
func (s *Store) RevokePermits(now int64, ref Ref, id reqid.ID, token uint64) (ReleaseAnswer, error) {
	return s.endHold(now, KindSemaphore, ref, id, token, true)
}

// SetCapacity makes the capacity of a semaphore what it says, until another SetCapacity; 0
// leaves it to the next acquire.
func (s *Store) SetCapacity(now int64, ref Ref, id reqid.ID, capacity uint32) (HoldAnswer, error) {
	return s.setCapacity(now, KindSemaphore, ref, id, capacity)
}

// InspectSemaphore returns a semaphore, with the first of its holders and of its waiters, at
// most limit each.
func (s *Store) InspectSemaphore(now int64, ref Ref, limit int) (HoldAnswer, error) {
	return s.inspectHold(now, KindSemaphore, ref, limit)
}

// AwaitSemaphore reads who holds permits: see Store.awaitHold.
func (s *Store) AwaitSemaphore(now int64, ref Ref, seen Seen) (a HoldSight, changed <-chan struct{}, err error) {
	return s.awaitHold(now, KindSemaphore, ref, seen, MaxSighted)
}
