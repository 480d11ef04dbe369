package owner

import (
	"github.com/cespare/xxhash/v2"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// PermitsAnswer is the answer of an AcquirePermits. In a replay, Acquired, Token and Waited are
// those of the first answer and the rest is as it is now: a grant whose TTL is 0 is over.
type PermitsAnswer struct {
	Acquired bool
	Token    uint64 // of the grant; 0 if there is none
	TTL      int64  // ns left of it
	Waited   int64  // ns in the queue before it
	Capacity uint32 // of the semaphore
	Held     uint64 // permits that are held, or kept after an unclean end, if not acquired
	Place    int    // in the queue, had or missed, if not acquired; 1 is next
	Meta
}

// HeldAnswer reports whether a token holds something, and what.
type HeldAnswer struct {
	OK        bool         // it was done: renewed, updated, downgraded, held
	Reclaimed bool         // it was lost, and given back
	Holding   hold.Holding // as it is, if the token holds it
	Capacity  uint32
	Meta
}

// SemaphoreAnswer is a semaphore as it is.
type SemaphoreAnswer struct {
	hold.View
	Meta
}

// PermitsClaim is what a holder shows to get permits back that were lost: see
// Store.ReclaimPermits.
type PermitsClaim struct {
	Holder   string // as in hold.Acquire, and what follows
	Permits  uint32
	Capacity uint32
	Delay    int64
	Metadata []byte
	Left     int64 // ns that the holder still counts on
}

// AcquirePermits acquires permits of a semaphore, or a place in its queue. If it returns a
// Wait, the Wait gets the answer.
func (s *Store) AcquirePermits(now int64, ref Ref, id reqid.ID, op hold.Acquire) (PermitsAnswer, *Wait[PermitsAnswer], error) {
	if err := op.Validate(); err != nil {
		return PermitsAnswer{}, nil, err
	}
	if id.Given() && id.Client == holdersClient {
		return PermitsAnswer{}, nil, invalid("request_id.client", "is all zero: draw one when a process starts")
	}
	t := target{ref: ref, kind: KindSemaphore, now: now}
	if err := t.enter(s); err != nil {
		return PermitsAnswer{}, nil, err
	}
	defer t.leave()
	if err := s.checkTTL(op.TTL); err != nil {
		return PermitsAnswer{}, nil, err
	}
	print := printOfPermits(&id, &op)
	if w, err := supersedeLocked[PermitsAnswer](&t, &queue.Caller{ID: id, Print: print}, op.Wait); w != nil || err != nil {
		return PermitsAnswer{}, w, err
	}
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return PermitsAnswer{}, nil, err
	}
	if replay {
		a, err := t.replayPermitsLocked(out, age)
		return a, nil, err
	}
	//guard:grace-grants-no-permits
	if t.permit.Lost != 0 {
		return PermitsAnswer{}, nil, t.recovering(permitsRecovering)
	}
	if err := t.roomLocked(&id); err != nil {
		return PermitsAnswer{}, nil, err
	}
	return t.acquirePermitsLocked(&id, print, op)
}

const permitsRecovering = "what is kept of the key was lost, and its permits may still be held: none is granted until the longest lease of before is over; nothing happened"

func printOfPermits(id *reqid.ID, op *hold.Acquire) uint32 {
	if !id.Given() {
		return 0 // nobody comes back to it
	}
	d := digestOf(opAcquirePermits).with(xxhash.Sum64String(op.Name)).with(uint64(op.Weight))
	if id.Keyed() {
		d = d.with(uint64(op.Capacity)).with(uint64(op.TTL)).with(uint64(op.Delay)).with(xxhash.Sum64(op.Metadata))
	}
	return d.print()
}

// acquirePermitsLocked returns an AcquirePermits that was not done before.
func (t *target) acquirePermitsLocked(id *reqid.ID, print uint32, op hold.Acquire) (PermitsAnswer, *Wait[PermitsAnswer], error) {
	s, sh := t.sh.store, t.sh
	tokens, err := sh.nextTokensLocked(s.cfg.Rule, t.permit)
	if err != nil {
		return PermitsAnswer{}, nil, err
	}
	state := t.holdLocked()
	op.Ticket, op.Caller = s.tickets.Add(1), queue.Caller{ID: *id, Print: print}
	most := min(s.cfg.MaxWaitersPerLock, maxEntrants)
	if s.waiting.Load() >= s.cfg.MaxWaiters {
		most = 0
	}
	res := state.Acquire(op, t.now, tokens, most, &sh.holdFx)
	out := reqid.Outcome{Print: print, Code: refused}
	answer := PermitsAnswer{Capacity: res.Capacity, Place: res.Place, Meta: Meta{Permit: t.permit}}
	switch res.Outcome {
	case hold.Granted:
		out = reqid.Outcome{Print: print, Code: done, A: int64(res.Token)}
		answer.Acquired, answer.Token, answer.TTL = true, res.Token, res.Expires-state.At
	case hold.Refused:
		held, blocked := state.Held(t.now)
		answer.Held = held + blocked
	case hold.Queued:
		w := addWaitLocked[PermitsAnswer](t, op.Ticket, id, len(op.Name)+len(op.Metadata))
		semaphores{}.changed(sh, t.e, op.Ticket)
		t.holdSteppedLocked(&reqid.ID{}, reqid.Outcome{}, 0)
		return PermitsAnswer{}, w, nil
	default:
		t.holdSteppedLocked(&reqid.ID{}, reqid.Outcome{}, 0)
		t.forgetBareLocked() // it may have been made for this call
		return PermitsAnswer{}, nil, permitsRefused(&op, &res, most)
	}
	t.holdSteppedLocked(id, out, res.Token)
	return answer, nil, nil
}

// permitsRefused returns the error of an Acquire that could not be decided.
func permitsRefused(op *hold.Acquire, res *hold.AcquireResult, most int) error {
	switch {
	case res.Outcome == hold.CapacityDiffers:
		return capacityDiffers(res.Capacity, op.Capacity)
	case res.Outcome == hold.NoCapacity:
		return invalid("capacity", "is missing: nobody holds permits of this semaphore, and no capacity is set")
	case res.Outcome == hold.TooLarge:
		return tooManyPermits(op.Weight, res.Capacity)
	case most == 0:
		return errWaiters
	}
	return errQueue
}

func tooManyPermits(n, capacity uint32) error {
	return invalid("permits", "are %d, more than the capacity, %d: they would never be granted", n, capacity)
}

// replayPermitsLocked repeats the first answer with the state as it is now.
func (t *target) replayPermitsLocked(out reqid.Outcome, age int64) (PermitsAnswer, error) {
	a := PermitsAnswer{Place: 1, Meta: Meta{t.permit, true, age}}
	var state *hold.State
	if t.e.lock != 0 {
		if err := t.expireHoldLocked(); err != nil {
			return a, err
		}
		state = t.sh.holds.At(t.e.lock)
		held, blocked := state.Held(t.now)
		a.Capacity, a.Held, a.Place = state.Capacity, held+blocked, state.Queue.Len()+1
	}
	if out.Code != done {
		return a, nil
	}
	a.Acquired, a.Token, a.Waited, a.Place, a.Held = true, uint64(out.A), out.B, 0, 0
	if state == nil {
		return a, nil
	}
	if v := state.Find(a.Token, t.now); v.Token != 0 {
		a.TTL = v.Left
		state.Holder(a.Token).Told = true
	}
	return a, nil
}

// given reports whether permits were granted.
func (a PermitsAnswer) given() bool { return a.Acquired }

// giveBack releases the permits, unless a retry was told of the grant.
func (a PermitsAnswer) giveBack(t target) {
	if t.e == nil || t.e.lock == 0 {
		return
	}
	//guard:permits-retold
	if h := t.sh.holds.At(t.e.lock).Holder(a.Token); h == nil || h.Told {
		return
	}
	_, _ = t.endPermitsLocked(a.Token, &reqid.ID{}, 0, false) // its TTL ends it otherwise
}

// RenewPermits prolongs a grant. While the row is in grace and nothing is known of the grant,
// the error is Recovering; see ReclaimPermits.
func (s *Store) RenewPermits(now int64, ref Ref, token uint64, ttl int64) (HeldAnswer, error) {
	return s.renewPermits(now, ref, token, ttl, nil)
}

// ReclaimPermits is a RenewPermits by a holder that shows its claim, in case that the permits
// were lost with their owner and all copies. While the row is in grace, and the grant is not
// known here, the holder gets them back, under its token and for the time that it still counts
// on: see hold.State.Reclaim. At all other times the claim changes nothing. It is judged all
// the same.
func (s *Store) ReclaimPermits(now int64, ref Ref, token uint64, ttl int64, c PermitsClaim) (HeldAnswer, error) {
	op := hold.Reclaim{Token: token, Name: c.Holder, Weight: c.Permits, Capacity: c.Capacity, Delay: c.Delay, Metadata: c.Metadata, Left: min(c.Left, hold.MaxTTL)}
	if err := op.Validate(); err != nil {
		return HeldAnswer{}, err
	}
	return s.renewPermits(now, ref, token, ttl, &op)
}

func (s *Store) renewPermits(now int64, ref Ref, token uint64, ttl int64, claim *hold.Reclaim) (HeldAnswer, error) {
	if err := s.checkRenewal(ttl); err != nil {
		return HeldAnswer{}, err
	}
	t := target{ref: ref, kind: KindSemaphore, now: now}
	a, state, tokens, err := t.underToken(s, token, claim)
	if state == nil {
		return a, err
	}
	defer t.leave()
	ok := state.Renew(token, ttl, t.now, tokens, &t.sh.holdFx).Renewed
	return t.toldUnderLocked(a, token, ok), nil
}

// underToken enters the object of an operation on a grant. If the state is nil there is
// nothing to do: the answer is that of the operation, and the shard is not locked.
func (t *target) underToken(s *Store, token uint64, claim *hold.Reclaim) (a HeldAnswer, state *hold.State, tokens hold.Tokens, err error) {
	if err = t.enter(s); err != nil {
		return a, nil, tokens, err
	}
	a.Permit = t.permit
	switch {
	//guard:claim-before-loss
	case claim != nil && t.permit.Lost != 0 && !beforeLoss(token, t.permit.Lost):
		err = invalid("token", "is %d: no permits were ever granted under it", token)
	case t.missesHoldLocked(token) && claim == nil:
		err = t.recovering(unknownRecovering)
	case t.missesHoldLocked(token):
		a, err = t.reclaimPermitsLocked(*claim)
	case t.e == nil || t.e.lock == 0:
	default:
		if tokens, err = t.sh.nextTokensLocked(s.cfg.Rule, t.permit); err == nil {
			return a, t.sh.holds.At(t.e.lock), tokens, nil
		}
	}
	t.leave()
	if err != nil {
		return HeldAnswer{}, nil, tokens, err
	}
	return a, nil, tokens, nil
}

// toldUnderLocked concludes an operation on a grant, and completes its answer.
func (t *target) toldUnderLocked(a HeldAnswer, token uint64, ok bool) HeldAnswer {
	state := t.sh.holds.At(t.e.lock)
	a.OK, a.Holding, a.Capacity = ok, state.Find(token, t.now), state.Capacity
	t.holdSteppedLocked(&reqid.ID{}, reqid.Outcome{}, 0)
	return a
}

// missesHoldLocked is missesLocked for permits.
func (t *target) missesHoldLocked(token uint64) bool {
	if t.permit.Lost == 0 || !beforeLoss(token, t.permit.Lost) {
		return false
	}
	return t.e == nil || t.e.lock == 0 || !t.sh.holds.At(t.e.lock).Knows(token)
}

// reclaimPermitsLocked gives permits of which nothing is known here back to their holder.
func (t *target) reclaimPermitsLocked(op hold.Reclaim) (HeldAnswer, error) {
	if err := t.roomLocked(&reqid.ID{}); err != nil {
		return HeldAnswer{}, err
	}
	state := t.holdLocked()
	op.Left = min(op.Left, t.sh.store.maxLockTTL())
	res := state.Reclaim(op, t.now, &t.sh.holdFx)
	a := HeldAnswer{OK: res.Reclaimed, Reclaimed: res.Reclaimed, Holding: state.Find(op.Token, t.now), Capacity: state.Capacity, Meta: Meta{Permit: t.permit}}
	t.holdSteppedLocked(&reqid.ID{}, reqid.Outcome{}, 0)
	return a, nil
}

// VerifyPermits reports whether a token holds something now, and what.
func (s *Store) VerifyPermits(now int64, ref Ref, token uint64) (HeldAnswer, error) {
	t := target{ref: ref, kind: KindSemaphore, now: now}
	a, state, tokens, err := t.underToken(s, token, nil)
	if state == nil {
		return a, err
	}
	defer t.leave()
	state.Expire(t.now, tokens, &t.sh.holdFx) // what is shown to be over must be over
	return t.toldUnderLocked(a, token, state.Find(token, t.now).Token != 0), nil
}

// UpdatePermits replaces the metadata of a grant. They must not change afterwards.
func (s *Store) UpdatePermits(now int64, ref Ref, token uint64, metadata []byte) (HeldAnswer, error) {
	if err := hold.ValidateMetadata(metadata); err != nil {
		return HeldAnswer{}, err
	}
	t := target{ref: ref, kind: KindSemaphore, now: now}
	a, state, tokens, err := t.underToken(s, token, nil)
	if state == nil {
		return a, err
	}
	defer t.leave()
	return t.toldUnderLocked(a, token, state.Update(token, metadata, t.now, tokens, &t.sh.holdFx)), nil
}

// DowngradePermits gives some of the permits of a grant back, so that so many are left. More
// than it has changes nothing: OK is false then, and Holding says what it has.
func (s *Store) DowngradePermits(now int64, ref Ref, token uint64, permits uint32) (HeldAnswer, error) {
	if permits < 1 || permits > hold.MaxCapacity {
		return HeldAnswer{}, invalid("permits", "are %d; choose 1 to %d", permits, hold.MaxCapacity)
	}
	t := target{ref: ref, kind: KindSemaphore, now: now}
	a, state, tokens, err := t.underToken(s, token, nil)
	if state == nil {
		return a, err
	}
	defer t.leave()
	res := state.Downgrade(token, permits, t.now, tokens, &t.sh.holdFx)
	return t.toldUnderLocked(a, token, res.Held && res.Weight == permits), nil
}

// ReleasePermits ends a grant. While the row is in grace and nothing is known of it, the error
// is Recovering.
func (s *Store) ReleasePermits(now int64, ref Ref, id reqid.ID, token uint64) (ReleaseAnswer, error) {
	return s.endPermits(now, ref, id, token, opReleasePermits)
}

// RevokePermits ends a grant that is another's. Its delay runs.
func (s *Store) RevokePermits(now int64, ref Ref, id reqid.ID, token uint64) (ReleaseAnswer, error) {
	return s.endPermits(now, ref, id, token, opRevokePermits)
}

func (s *Store) endPermits(now int64, ref Ref, id reqid.ID, token, op uint64) (ReleaseAnswer, error) {
	t := target{ref: ref, kind: KindSemaphore, now: now}
	if err := t.enter(s); err != nil {
		return ReleaseAnswer{}, err
	}
	defer t.leave()
	print := fingerprint(op, token)
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return ReleaseAnswer{}, err
	}
	if replay {
		return ReleaseAnswer{out.Code == done, Meta{t.permit, true, age}}, nil
	}
	if t.missesHoldLocked(token) {
		return ReleaseAnswer{}, t.recovering(unknownRecovering)
	}
	if err := t.roomLocked(&id); err != nil && id.Given() {
		id = reqid.ID{} // a release makes room; better done without memory than not at all
	}
	ended, err := t.endPermitsLocked(token, &id, print, op == opRevokePermits)
	if err != nil {
		return ReleaseAnswer{}, err
	}
	return ReleaseAnswer{ended, Meta{Permit: t.permit}}, nil
}

func (t *target) endPermitsLocked(token uint64, id *reqid.ID, print uint32, revoked bool) (bool, error) {
	sh, ended := t.sh, false
	sh.holdFx.Reset()
	if t.e != nil && t.e.lock != 0 {
		tokens, err := sh.nextTokensLocked(sh.store.cfg.Rule, t.permit)
		if err != nil {
			return false, err
		}
		if state := sh.holds.At(t.e.lock); revoked {
			ended = state.Revoke(token, t.now, tokens, &sh.holdFx)
		} else {
			ended = state.Release(token, t.now, tokens, &sh.holdFx)
		}
	}
	t.holdSteppedLocked(id, reqid.Outcome{Print: print, Code: decision(ended)}, 0)
	return ended, nil
}

// SetCapacity makes the capacity of a semaphore what it says, until another SetCapacity; 0
// leaves it to those who acquire again.
func (s *Store) SetCapacity(now int64, ref Ref, id reqid.ID, capacity uint32) (SemaphoreAnswer, error) {
	if err := hold.ValidateCapacity(capacity); err != nil {
		return SemaphoreAnswer{}, err
	}
	t := target{ref: ref, kind: KindSemaphore, now: now}
	if err := t.enter(s); err != nil {
		return SemaphoreAnswer{}, err
	}
	defer t.leave()
	print := fingerprint(opSetCapacity, uint64(capacity))
	replay, _, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return SemaphoreAnswer{}, err
	}
	a := SemaphoreAnswer{Meta: Meta{t.permit, replay, age}}
	if !replay {
		if err := t.roomLocked(&id); err != nil {
			return SemaphoreAnswer{}, err
		}
		tokens, err := t.sh.nextTokensLocked(s.cfg.Rule, t.permit)
		if err != nil {
			return SemaphoreAnswer{}, err
		}
		t.holdLocked().SetCapacity(capacity, t.now, tokens, &t.sh.holdFx)
		t.holdSteppedLocked(&id, reqid.Outcome{Print: print, Code: done}, 0)
	}
	if t.e != nil && t.e.lock != 0 {
		a.View = t.sh.holds.At(t.e.lock).Inspect(t.now, 0)
	}
	t.forgetBareLocked()
	return a, nil
}

// InspectSemaphore returns a semaphore, with the first of its holders and of its waiters, at
// most limit each.
func (s *Store) InspectSemaphore(now int64, ref Ref, limit int) (SemaphoreAnswer, error) {
	t := target{ref: ref, kind: KindSemaphore, now: now}
	if err := t.enter(s); err != nil {
		return SemaphoreAnswer{}, err
	}
	defer t.leave()
	a := SemaphoreAnswer{Meta: Meta{Permit: t.permit}}
	if t.e == nil || t.e.lock == 0 {
		return a, nil
	}
	// What is shown to be over must be over: the expiry is a change of its own.
	if err := t.expireHoldLocked(); err != nil {
		return SemaphoreAnswer{}, err
	}
	a.View = t.sh.holds.At(t.e.lock).Inspect(t.now, limit)
	return a, nil
}
