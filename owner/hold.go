package owner

import (
	"cmp"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// GrantAnswer is the answer of an acquire of what is held under a lease. In a replay, Acquired, Token and Waited are
// those of the first answer and the rest is as it is now: a grant whose TTL is 0 is over.
type GrantAnswer struct {
	Acquired bool
	Waiting  bool         // not acquired, and the place stands: see hold.Acquire.Keep
	Token    uint64       // of the grant; 0 if there is none
	TTL      int64        // ns left of it
	Waited   int64        // ns in the queue before it
	Capacity uint32       // of the object
	Held     uint64       // weight that is held, or kept after an unclean end, if not acquired
	Place    int          // in the queue, had or missed, if not acquired; 1 is next
	Weight   uint32       // in a replay, of a grant that is in force: as it is now
	Holder   hold.Holding // who holds it, when the caller does not; of several, the first
	later    uint64       // see hold.AcquireResult.Later
	Meta
}

// ReleaseAnswer reports whether the token held something until now.
type ReleaseAnswer struct {
	Released bool
	Meta
}

// HeldAnswer reports whether a token holds something, and what.
type HeldAnswer struct {
	OK        bool         // it was done: renewed, updated, downgraded, held
	Reclaimed bool         // it was lost, and given back
	Holding   hold.Holding // as it is, if the token holds it
	Holder    hold.Holding // else who does; of several, the first
	Capacity  uint32
	Meta
}

// HoldAnswer is an object that is held, as it is.
type HoldAnswer struct {
	hold.View
	Holding hold.Holding // the first of the grants in force
	Meta
}

// HoldClaim is what a holder shows to get back what was lost: see Store.reclaimHold.
type HoldClaim struct {
	Holder   string // as in hold.Acquire, and what follows
	Weight   uint32
	Capacity uint32
	Delay    int64
	Metadata []byte
	Session  hold.Session
	Left     int64 // ns that the holder still counts on
	unique   bool
}

// acquireHold acquires an object of a kind that is held, or a place in its queue. If it returns a
// Wait, the Wait gets the answer.
func (s *Store) acquireHold(now int64, kind Kind, ref Ref, id reqid.ID, op hold.Acquire) (GrantAnswer, *Wait[GrantAnswer], error) {
	if err := op.Validate(); err != nil {
		return GrantAnswer{}, nil, err
	}
	t, f := target{ref: ref, kind: kind, now: now}, kind.family()
	if id.Given() && id.Client == f.holders {
		return GrantAnswer{}, nil, invalid("request_id.client", "is the same in all bits: draw one when a process starts")
	}
	if err := s.mayKeep(&op, &id); err != nil {
		return GrantAnswer{}, nil, err
	}
	if err := t.enter(s); err != nil {
		return GrantAnswer{}, nil, err
	}
	defer t.leave()
	if err := cmp.Or(s.checkTTL(op.TTL), t.sessionLocked(op.Session, op.TTL, &id)); err != nil {
		return GrantAnswer{}, nil, err
	}
	print := f.printOfAcquire(&id, &op)
	if w, err := supersedeLocked[GrantAnswer](&t, &queue.Caller{ID: id, Print: print}, op.Wait, op.Keep); w != nil || err != nil {
		return t.queuedLocked(&op, w, err)
	}
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return GrantAnswer{}, nil, err
	}
	if replay {
		a, err := t.replayHoldLocked(out, age)
		return a, nil, err
	}
	//guard:grace-grants-nothing
	if op.Amid = t.permit.Lost != 0; op.Amid && !f.open {
		return GrantAnswer{}, nil, t.recovering(f.lost)
	}
	if err := t.roomLocked(&id); err != nil {
		return GrantAnswer{}, nil, err
	}
	if err := s.sessionRoom(op.Session); err != nil {
		return GrantAnswer{}, nil, err
	}
	return t.acquireHoldLocked(&id, print, op)
}

// acquireHoldLocked returns an acquire that was not done before.
func (t *target) acquireHoldLocked(id *reqid.ID, print uint32, op hold.Acquire) (GrantAnswer, *Wait[GrantAnswer], error) {
	s, sh := t.sh.store, t.sh
	tokens, err := sh.nextTokensLocked(s.cfg.Rule, t.permit)
	if err != nil {
		return GrantAnswer{}, nil, err
	}
	if err := t.memberRoomLocked(op.Name, op.Metadata); err != nil {
		return GrantAnswer{}, nil, err
	}
	state := t.holdLocked()
	op.Ticket, op.Caller = s.tickets.Add(1), queue.Caller{ID: *id, Print: print}
	most := s.cfg.MaxWaitersPerLock
	//guard:long-queue-level
	if s.uses(QueueLevel) != nil {
		most = min(most, t.kind.family().queue, MaxPart+1-len(state.Holders)) // for the record of the whole
	}
	if s.waiting.Load() >= s.mostWaiting(&op) {
		most = 0
	}
	res := state.Acquire(op, t.now, tokens, most, &sh.holdFx)
	out := reqid.Outcome{Print: print, Code: refused}
	answer := GrantAnswer{Capacity: res.Capacity, Place: res.Place, Meta: Meta{Permit: t.permit}}
	switch res.Outcome {
	case hold.Granted:
		out = reqid.Outcome{Print: print, Code: done, A: int64(res.Token)}
		answer.Acquired, answer.Token, answer.TTL = true, res.Token, res.Expires-state.At
	case hold.Refused:
		held, blocked := state.Held(t.now)
		answer.Held, answer.Holder, answer.later = held+blocked, state.First(t.now), res.Later
		out.A = int64(res.Later)
	case hold.Queued:
		w := addWaitLocked[GrantAnswer](t, op.Ticket, id, len(op.Name)+len(op.Metadata))
		holds{}.changed(sh, t.e, op.Ticket)
		w.kept = op.Keep > 0
		t.holdSteppedLocked(&reqid.ID{}, reqid.Outcome{}, 0)
		return t.queuedLocked(&op, w, nil)
	default:
		t.holdSteppedLocked(&reqid.ID{}, reqid.Outcome{}, 0)
		t.forgetBareLocked() // it may have been made for this call
		return GrantAnswer{}, nil, s.holdRefused(&op, &res, most)
	}
	t.holdSteppedLocked(id, out, res.Token)
	return answer, nil, nil
}

// holdRefused returns the error of an Acquire that could not be decided.
func (s *Store) holdRefused(op *hold.Acquire, res *hold.AcquireResult, most int) error {
	switch {
	case res.Outcome == hold.CapacityDiffers:
		return capacityDiffers(res.Capacity, op.Capacity)
	case res.Outcome == hold.NoCapacity:
		return invalid("capacity", "is missing: nobody holds permits of this semaphore, and no capacity is set")
	case res.Outcome == hold.TooLarge:
		return tooManyPermits(op.Weight, res.Capacity)
	case most > 0:
		return errQueue
	case op.Keep > 0 && s.waiting.Load() < s.cfg.MaxWaiters:
		return errTickets
	}
	return errWaiters
}

func tooManyPermits(n, capacity uint32) error {
	return invalid("permits", "are %d, more than the capacity, %d: they would never be granted", n, capacity)
}

// replayHoldLocked repeats the first answer with the state as it is now.
func (t *target) replayHoldLocked(out reqid.Outcome, age int64) (GrantAnswer, error) {
	a := GrantAnswer{Place: 1, Meta: Meta{t.permit, true, age}}
	var state *hold.State
	if t.e.rest != 0 {
		if err := t.expireHoldLocked(); err != nil {
			return a, err
		}
		state = t.sh.holds.At(t.e.rest)
		held, blocked := state.Held(t.now)
		a.Capacity, a.Held, a.Place, a.Holder = state.Capacity, held+blocked, state.Queue.Len()+1, state.First(t.now)
	}
	if out.Code != done {
		a.later = uint64(out.A)
		return a, nil
	}
	a.Acquired, a.Token, a.Waited, a.Place, a.Held = true, uint64(out.A), out.B, 0, 0
	if state == nil {
		return a, nil
	}
	if v := state.Find(a.Token, t.now); v.Token != 0 {
		a.TTL, a.Weight, a.Holder = v.Left, v.Weight, hold.Holding{}
		state.Holder(a.Token).Told = true
	}
	return a, nil
}

// given reports whether it was granted.
func (a GrantAnswer) given() bool { return a.Acquired }

// giveBack releases the grant, unless a retry was told of the grant.
func (a GrantAnswer) giveBack(t target) {
	if t.e == nil || t.e.rest == 0 {
		return
	}
	//guard:hold-retold
	if h := t.sh.holds.At(t.e.rest).Holder(a.Token); h == nil || h.Told {
		return
	}
	_, _ = t.endHoldLocked(a.Token, &reqid.ID{}, 0, false) // its TTL ends it otherwise
}

// reclaimHold is a renewHold by a holder that shows its claim, in case that what it holds was
// lost with its owner and all copies. While the row is in grace, and the grant is not known here,
// the holder gets it back, under its token and for the time that it still counts on: see
// hold.State.Reclaim. At all other times the claim changes nothing. It is judged all the same.
func (s *Store) reclaimHold(now int64, kind Kind, ref Ref, token uint64, ttl int64, c HoldClaim) (HeldAnswer, error) {
	op := hold.Reclaim{Token: token, Name: c.Holder, Weight: c.Weight, Capacity: c.Capacity, Delay: c.Delay, Metadata: c.Metadata, Session: c.Session, Left: min(c.Left, hold.MaxTTL), Unique: c.unique}
	//guard:election-alone kind.family().single && c.Weight == c.Capacity -> kind == KindLock && c.Weight == c.Capacity
	op.Alone = kind.family().single && c.Weight == c.Capacity
	err := op.Validate()
	if err == nil && c.Session.Given() {
		err = s.uses(SessionLevel)
	}
	if err != nil {
		return HeldAnswer{}, err
	}
	return s.renewHold(now, kind, ref, token, ttl, &op)
}

// renewHold prolongs a grant; claim is nil if the holder shows none. While the row is in grace
// and nothing is known of the grant, the error is Recovering then.
func (s *Store) renewHold(now int64, kind Kind, ref Ref, token uint64, ttl int64, claim *hold.Reclaim) (HeldAnswer, error) {
	if err := hold.ValidateTTL(ttl); err != nil {
		return HeldAnswer{}, err
	}
	t := target{ref: ref, kind: kind, now: now}
	a, state, tokens, err := t.underToken(s, token, ttl, claim)
	if state == nil {
		return a, err
	}
	defer t.leave()
	ok := state.Renew(token, ttl, t.now, tokens, &t.sh.holdFx).Renewed
	return t.toldUnderLocked(a, token, ok), nil
}

// underToken enters the object of an operation on a grant. If the state is nil there is
// nothing to do: the answer is that of the operation, and the shard is not locked.
func (t *target) underToken(s *Store, token uint64, ttl int64, claim *hold.Reclaim) (a HeldAnswer, state *hold.State, tokens hold.Tokens, err error) {
	if err = t.enter(s); err != nil {
		return a, nil, tokens, err
	}
	a.Permit = t.permit
	switch err = s.checkTTL(ttl); {
	case err != nil:
	//guard:reclaim-before-loss
	case claim != nil && t.permit.Lost != 0 && !beforeLoss(token, t.permit.Lost):
		err = invalid("token", t.kind.family().never, token)
	case t.missesHoldLocked(token) && claim == nil:
		err = t.recovering(unknownRecovering)
	case t.missesHoldLocked(token):
		a, err = t.reclaimHoldLocked(*claim)
	case t.e == nil || t.e.rest == 0:
	default:
		if tokens, err = t.sh.nextTokensLocked(s.cfg.Rule, t.permit); err == nil {
			return a, t.sh.holds.At(t.e.rest), tokens, nil
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
	state := t.sh.holds.At(t.e.rest)
	if a.OK, a.Holding, a.Capacity = ok, state.Find(token, t.now), state.Capacity; a.Holding.Token == 0 {
		a.Holder = state.First(t.now)
	}
	t.holdSteppedLocked(&reqid.ID{}, reqid.Outcome{}, 0)
	return a
}

// missesHoldLocked reports whether the row is in grace and the token may be that of a grant of
// before the loss, of which nothing is known here. Those of before have an epoch before the loss:
// each of its commits raised the epoch.
func (t *target) missesHoldLocked(token uint64) bool {
	if t.permit.Lost == 0 || !beforeLoss(token, t.permit.Lost) {
		return false
	}
	if t.e == nil || t.e.rest == 0 {
		return true
	}
	state := t.sh.holds.At(t.e.rest)
	return !state.Knows(token) && !(t.kind.family().single && state.Outlived(token))
}

// reclaimHoldLocked gives a grant of which nothing is known here back to its holder.
func (t *target) reclaimHoldLocked(op hold.Reclaim) (HeldAnswer, error) {
	if err := t.roomLocked(&reqid.ID{}); err != nil {
		return HeldAnswer{}, err
	}
	if err := t.memberRoomLocked(op.Name, op.Metadata); err != nil {
		return HeldAnswer{}, err
	}
	state := t.holdLocked()
	op.Left = min(op.Left, t.sh.store.maxLockTTL())
	res := state.Reclaim(op, t.now, &t.sh.holdFx)
	a := HeldAnswer{OK: res.Reclaimed, Reclaimed: res.Reclaimed, Holding: state.Find(op.Token, t.now), Capacity: state.Capacity, Meta: Meta{Permit: t.permit}}
	if !a.OK {
		a.Holder = state.First(t.now)
	}
	t.holdSteppedLocked(&reqid.ID{}, reqid.Outcome{}, 0)
	return a, nil
}

// verifyHold reports whether a token holds something now, and what.
func (s *Store) verifyHold(now int64, kind Kind, ref Ref, token uint64) (HeldAnswer, error) {
	t := target{ref: ref, kind: kind, now: now}
	a, state, tokens, err := t.underToken(s, token, 0, nil)
	if state == nil {
		return a, err
	}
	defer t.leave()
	state.Expire(t.now, tokens, &t.sh.holdFx) // what is shown to be over must be over
	return t.toldUnderLocked(a, token, state.Find(token, t.now).Token != 0), nil
}

// updateHold replaces the metadata of a grant. They must not change afterwards. Under a request id,
// a retry that was held up does not bring back what was replaced since.
func (s *Store) updateHold(now int64, kind Kind, ref Ref, id reqid.ID, token uint64, metadata []byte) (HeldAnswer, error) {
	if err := hold.ValidateMetadata(metadata); err != nil {
		return HeldAnswer{}, err
	}
	t := target{ref: ref, kind: kind, now: now}
	if err := t.enter(s); err != nil {
		return HeldAnswer{}, err
	}
	defer t.leave()
	print := kind.family().printOfUpdate(&id, token, metadata)
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return HeldAnswer{}, err
	}
	if replay {
		return HeldAnswer{OK: out.Code == done, Meta: Meta{t.permit, true, age}}, nil
	}
	if t.missesHoldLocked(token) {
		return HeldAnswer{}, t.recovering(unknownRecovering)
	}
	if err := t.roomLocked(&id); err != nil && id.Given() {
		return HeldAnswer{}, err
	}
	a := HeldAnswer{Meta: Meta{Permit: t.permit}}
	t.sh.holdFx.Reset()
	if t.e != nil && t.e.rest != 0 {
		tokens, err := t.sh.nextTokensLocked(s.cfg.Rule, t.permit)
		if err != nil {
			return HeldAnswer{}, err
		}
		state := t.sh.holds.At(t.e.rest)
		if h := state.Holder(token); h != nil {
			if err := t.growHoldLocked(cap(metadata) - cap(h.Metadata)); err != nil {
				return HeldAnswer{}, err
			}
		}
		a.OK = state.Update(token, metadata, t.now, tokens, &t.sh.holdFx)
		if a.Holding, a.Capacity = state.Find(token, t.now), state.Capacity; !a.OK {
			a.Holder = state.First(t.now)
		}
	}
	t.holdSteppedLocked(&id, reqid.Outcome{Print: print, Code: decision(a.OK)}, 0)
	return a, nil
}

// downgradeHold lowers the weight of a grant. More than it has changes nothing: OK is false then,
// and Holding says what it has.
func (s *Store) downgradeHold(now int64, kind Kind, ref Ref, token uint64, weight uint32) (HeldAnswer, error) {
	t := target{ref: ref, kind: kind, now: now}
	a, state, tokens, err := t.underToken(s, token, 0, nil)
	if state == nil {
		return a, err
	}
	defer t.leave()
	res := state.Downgrade(token, weight, t.now, tokens, &t.sh.holdFx)
	return t.toldUnderLocked(a, token, res.Held && res.Weight == weight), nil
}

// endHold ends a grant: a release by its holder or, if revoked, by others, after which its delay
// runs. While the row is in grace and nothing is known of it, the error is Recovering.
func (s *Store) endHold(now int64, kind Kind, ref Ref, id reqid.ID, token uint64, revoked bool) (ReleaseAnswer, error) {
	t := target{ref: ref, kind: kind, now: now}
	if err := t.enter(s); err != nil {
		return ReleaseAnswer{}, err
	}
	defer t.leave()
	op := kind.family().release
	if revoked {
		op = kind.family().revoke
	}
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
	ended, err := t.endHoldLocked(token, &id, print, revoked)
	if err != nil {
		return ReleaseAnswer{}, err
	}
	return ReleaseAnswer{ended, Meta{Permit: t.permit}}, nil
}

func (t *target) endHoldLocked(token uint64, id *reqid.ID, print uint32, revoked bool) (bool, error) {
	sh, ended := t.sh, false
	sh.holdFx.Reset()
	if t.e != nil && t.e.rest != 0 {
		tokens, err := sh.nextTokensLocked(sh.store.cfg.Rule, t.permit)
		if err != nil {
			return false, err
		}
		if state := sh.holds.At(t.e.rest); revoked {
			ended = state.Revoke(token, t.now, tokens, &sh.holdFx)
		} else {
			ended = state.Release(token, t.now, tokens, &sh.holdFx)
		}
	}
	t.holdSteppedLocked(id, reqid.Outcome{Print: print, Code: decision(ended)}, 0)
	return ended, nil
}

// setCapacity makes the capacity of an object what it says, until another setCapacity; 0 leaves
// it to the next acquire.
func (s *Store) setCapacity(now int64, kind Kind, ref Ref, id reqid.ID, capacity uint32) (HoldAnswer, error) {
	if err := hold.ValidateCapacity(capacity); err != nil {
		return HoldAnswer{}, err
	}
	t := target{ref: ref, kind: kind, now: now}
	if err := t.enter(s); err != nil {
		return HoldAnswer{}, err
	}
	defer t.leave()
	print := fingerprint(kind.family().setCapacity, uint64(capacity))
	replay, _, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return HoldAnswer{}, err
	}
	a := HoldAnswer{Meta: Meta{t.permit, replay, age}}
	if !replay {
		if err := t.roomLocked(&id); err != nil {
			return HoldAnswer{}, err
		}
		tokens, err := t.sh.nextTokensLocked(s.cfg.Rule, t.permit)
		if err != nil {
			return HoldAnswer{}, err
		}
		t.holdLocked().SetCapacity(capacity, t.now, tokens, &t.sh.holdFx)
		t.holdSteppedLocked(&id, reqid.Outcome{Print: print, Code: done}, 0)
	}
	if t.e != nil && t.e.rest != 0 {
		a.View = t.sh.holds.At(t.e.rest).Inspect(t.now, 0)
	}
	t.forgetBareLocked()
	return a, nil
}

// inspectHold returns an object that is held, with the first of its holders and of its waiters, at
// most limit each.
func (s *Store) inspectHold(now int64, kind Kind, ref Ref, limit int) (HoldAnswer, error) {
	t := target{ref: ref, kind: kind, now: now}
	if err := t.enter(s); err != nil {
		return HoldAnswer{}, err
	}
	defer t.leave()
	a := HoldAnswer{Meta: Meta{Permit: t.permit}}
	if t.e == nil || t.e.rest == 0 {
		return a, nil
	}
	// What is shown to be over must be over: the expiry is a change of its own.
	if err := t.expireHoldLocked(); err != nil {
		return HoldAnswer{}, err
	}
	state := t.sh.holds.At(t.e.rest)
	a.View, a.Holding = state.Inspect(t.now, limit), state.First(t.now)
	return a, nil
}
