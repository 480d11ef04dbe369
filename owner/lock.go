package owner

import (
	"time"
	"unsafe"

	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// AcquireAnswer is the answer of an Acquire. In a replay, Acquired, Token and Waited
// are those of the first answer and the rest is as it is now: a grant whose TTL is
// 0 is over.
type AcquireAnswer struct {
	Acquired bool
	Token    uint64       // of the grant; 0 if there is none
	TTL      int64        // ns left of it
	Waited   int64        // ns in the queue before it
	Holder   lock.Holding // who holds the lock, when it is not the caller
	Place    int          // in the queue, had or missed, if not acquired; 1 is next
	Meta
}

// RenewAnswer reports whether the token still holds the lock.
type RenewAnswer struct {
	Renewed   bool
	Reclaimed bool         // it was lost, and given back: TTL is what its holder had left
	TTL       int64        // ns left
	Holder    lock.Holding // who holds the lock, when the token does not
	Meta
}

// ReleaseAnswer reports whether the token held the lock until now.
type ReleaseAnswer struct {
	Released bool
	Meta
}

// InspectAnswer is a lock as it is.
type InspectAnswer struct {
	lock.View
	Meta
}

// Acquire acquires a lock, or a place in its queue. If it returns a Wait, the Wait
// gets the answer.
func (s *Store) Acquire(now int64, ref Ref, id reqid.ID, op lock.Acquire) (AcquireAnswer, *Wait[AcquireAnswer], error) {
	if err := op.Validate(); err != nil {
		return AcquireAnswer{}, nil, err
	}
	t := target{ref: ref, kind: KindLock, now: now}
	if err := t.enter(s); err != nil {
		return AcquireAnswer{}, nil, err
	}
	defer t.leave()
	if err := s.checkTTL(op.TTL); err != nil {
		return AcquireAnswer{}, nil, err
	}
	print := printOfAcquire(&id, &op)
	if w, err := supersedeLocked[AcquireAnswer](&t, &queue.Caller{ID: id, Print: print}, op.Wait); w != nil || err != nil {
		return AcquireAnswer{}, w, err
	}
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return AcquireAnswer{}, nil, err
	}
	if replay {
		a, err := t.replayAcquireLocked(out, age)
		return a, nil, err
	}
	//guard:grace-grants-nothing
	if t.permit.Lost != 0 {
		return AcquireAnswer{}, nil, t.recovering(acquireRecovering)
	}
	if err := t.roomLocked(&id); err != nil {
		return AcquireAnswer{}, nil, err
	}
	return t.acquireLocked(&id, print, op)
}

// acquireLocked returns an Acquire that was not done before.
func (t *target) acquireLocked(id *reqid.ID, print uint32, op lock.Acquire) (AcquireAnswer, *Wait[AcquireAnswer], error) {
	s, sh := t.sh.store, t.sh
	token, err := sh.nextTokenLocked(s.cfg.Rule, t.permit)
	if err != nil {
		return AcquireAnswer{}, nil, err
	}
	state := t.lockLocked()
	op.Ticket, op.Caller = s.tickets.Add(1), queue.Caller{ID: *id, Print: print}
	most := s.cfg.MaxWaitersPerLock
	if s.waiting.Load() >= s.cfg.MaxWaiters {
		most = 0
	}
	res := state.Acquire(op, t.now, token, most, &sh.fx)
	out := reqid.Outcome{Print: print, Code: refused}
	answer := AcquireAnswer{Place: res.Place, Meta: Meta{Permit: t.permit}}
	switch res.Outcome {
	case lock.Granted:
		sh.tokenUsedLocked(res.Token)
		out = reqid.Outcome{Print: print, Code: done, A: int64(res.Token)}
		answer.Acquired, answer.Token, answer.TTL = true, res.Token, res.Expires-state.At
	case lock.Refused:
		answer.Holder = state.Holding(t.now)
	case lock.QueueFull:
		t.steppedLocked(&reqid.ID{}, reqid.Outcome{})
		if most == 0 {
			return AcquireAnswer{}, nil, errWaiters
		}
		return AcquireAnswer{}, nil, errQueue
	case lock.Queued:
		w := addWaitLocked[AcquireAnswer](t, op.Ticket, id, len(op.Holder)+len(op.Metadata))
		locks{}.changed(sh, t.e, op.Ticket)
		t.steppedLocked(&reqid.ID{}, reqid.Outcome{})
		return AcquireAnswer{}, w, nil
	}
	t.steppedLocked(id, out)
	return answer, nil, nil
}

// steppedLocked concludes a step of a lock: it records what changed, answers the
// callers that it concerned, and schedules the next wake.
func (t *target) steppedLocked(id *reqid.ID, out reqid.Outcome) {
	sh := t.sh
	if sh.fx.Lapsed {
		sh.store.lapsed.Add(1)
	}
	if sh.fx.Changed {
		sh.advanceLocked()
		sh.countTextLocked(t.e)
	}
	if id.Given() {
		t.noteLocked(id, out)
	}
	t.noteAnswersLocked()
	if sh.fx.Changed || len(sh.done) > 0 {
		sh.notifySinkLocked(t.slot, t.hash)
	}
	t.answerLocked()
	t.scheduleLocked()
}

// noteAnswersLocked remembers the answers that answerLocked gives, under the request
// ids of the callers that the last step of a lock concerned. One record has all of
// them: a copy must not know of a grant and not for whom it is.
func (t *target) noteAnswersLocked() {
	sh := t.sh
	for i := range sh.fx.TimedOut {
		over := &sh.fx.TimedOut[i]
		w := sh.waits[over.Ticket]
		if w == nil {
			continue // it left, and had no request id
		}
		//guard:place-gone
		sh.goneLocked(&over.Caller)
		if !w.away() && w.named {
			t.noteLocked(&over.Caller.ID, reqid.Outcome{Print: over.Caller.Print, Code: refused})
		}
	}
	if g := &sh.fx.Grant; g.Token != 0 && g.Caller.ID.Given() {
		sh.goneLocked(&g.Caller)
		t.noteLocked(&g.Caller.ID, reqid.Outcome{Print: g.Caller.Print, Code: done, A: int64(g.Token), B: g.Waited})
	}
}

// answerLocked answers the callers that the last step of a lock concerned: the one
// that was granted it, and those whose wait was over. A place whose caller is not
// here, and whose time is over, was nobody's: should its caller come back all the
// same, it begins anew.
func (t *target) answerLocked() {
	sh := t.sh
	for i := range sh.fx.TimedOut {
		over := &sh.fx.TimedOut[i]
		w := sh.waits[over.Ticket]
		if w == nil {
			continue // it left, and had no request id
		}
		answerLocked(w, t.slot, &over.Caller, AcquireAnswer{
			Holder: sh.locks.At(t.e.lock).Holding(t.now), Place: over.Position, Meta: Meta{Permit: t.permit},
		})
	}
	g := &sh.fx.Grant
	if g.Token == 0 {
		return
	}
	sh.tokenUsedLocked(g.Token)
	w := sh.waits[g.Ticket]
	if w == nil || w.away() {
		panic("owner: a lock was granted to nobody")
	}
	answerLocked(w, t.slot, &g.Caller, AcquireAnswer{
		Acquired: true, Token: g.Token, TTL: g.Expires - sh.locks.At(t.e.lock).At, Waited: g.Waited, Meta: Meta{Permit: t.permit},
	})
}

// given reports whether the lock was granted.
func (a AcquireAnswer) given() bool { return a.Acquired }

// giveBack releases the lock, unless a retry was told of the grant.
func (a AcquireAnswer) giveBack(t target) {
	if t.sh.retold[t.slot] != a.Token {
		_, _ = t.releaseLocked(a.Token, &reqid.ID{}, 0) // its TTL ends it otherwise
	}
}

// countTextLocked counts what the state of a lock refers to, after a change.
func (sh *shard) countTextLocked(e *entry) {
	n := grantText(sh.locks.At(e.lock))
	sh.text += n - int(e.counted)
	e.counted = uint32(n)
}

// replayAcquireLocked repeats the first answer with the state as it is now.
func (t *target) replayAcquireLocked(out reqid.Outcome, age int64) (AcquireAnswer, error) {
	a := AcquireAnswer{Place: 1, Meta: Meta{t.permit, true, age}}
	var holding lock.Holding
	if t.e.lock != 0 {
		if err := t.expireLocked(); err != nil {
			return a, err
		}
		state := t.sh.locks.At(t.e.lock)
		holding = state.Holding(t.now)
		a.Place = state.Queue.Len() + 1
	}
	if out.Code == done {
		a.Acquired, a.Token, a.Waited, a.Place = true, uint64(out.A), out.B, 0
		if holding.Token == a.Token {
			a.TTL = holding.Left
			if t.sh.retold == nil {
				t.sh.retold = map[uint32]uint64{}
			}
			t.sh.retold[t.slot] = a.Token
			return a, nil
		}
	}
	a.Holder = holding
	return a, nil
}

// Renew prolongs a grant. While the row is in grace and nothing is known of the
// grant, the error is Recovering; see Reclaim.
func (s *Store) Renew(now int64, ref Ref, token uint64, ttl int64) (RenewAnswer, error) {
	return s.renew(now, ref, token, ttl, nil)
}

func (s *Store) renew(now int64, ref Ref, token uint64, ttl int64, claim *lock.Reclaim) (RenewAnswer, error) {
	if err := lock.ValidateTTL(ttl); err != nil {
		return RenewAnswer{}, err
	}
	t := target{ref: ref, kind: KindLock, now: now}
	if err := t.enter(s); err != nil {
		return RenewAnswer{}, err
	}
	defer t.leave()
	if err := s.checkTTL(ttl); err != nil {
		return RenewAnswer{}, err
	}
	//guard:reclaim-before-loss
	if claim != nil && t.permit.Lost != 0 && !beforeLoss(token, t.permit.Lost) {
		return RenewAnswer{}, invalid("token", "is %d: no lock was ever granted under it", token)
	}
	if t.missesLocked(token) {
		if claim == nil {
			return RenewAnswer{}, t.recovering(unknownRecovering)
		}
		return t.reclaimLocked(*claim)
	}
	a := RenewAnswer{Meta: Meta{Permit: t.permit}}
	if t.e == nil || t.e.lock == 0 {
		return a, nil
	}
	next, err := t.sh.nextTokenLocked(s.cfg.Rule, t.permit)
	if err != nil {
		return RenewAnswer{}, err
	}
	state := t.sh.locks.At(t.e.lock)
	res := state.Renew(token, ttl, t.now, next, &t.sh.fx)
	if a.Renewed = res.Renewed; a.Renewed {
		a.TTL = ttl
	} else {
		a.Holder = state.Holding(t.now)
	}
	t.steppedLocked(&reqid.ID{}, reqid.Outcome{})
	return a, nil
}

// Release ends a grant. While the row is in grace and nothing is known of the
// grant, the error is Recovering, for "not held" would mean that it had been lost
// before; see Reclaim.
func (s *Store) Release(now int64, ref Ref, id reqid.ID, token uint64) (ReleaseAnswer, error) {
	t := target{ref: ref, kind: KindLock, now: now}
	if err := t.enter(s); err != nil {
		return ReleaseAnswer{}, err
	}
	defer t.leave()
	print := fingerprint(opRelease, token)
	replay, out, age, err := t.judgeLocked(&id, print)
	if err != nil {
		return ReleaseAnswer{}, err
	}
	if replay {
		return ReleaseAnswer{out.Code == done, Meta{t.permit, true, age}}, nil
	}
	if t.missesLocked(token) {
		return ReleaseAnswer{}, t.recovering(unknownRecovering)
	}
	if err := t.roomLocked(&id); err != nil && id.Given() {
		id = reqid.ID{} // a release makes room; better done without memory than not at all
	}
	released, err := t.releaseLocked(token, &id, print)
	if err != nil {
		return ReleaseAnswer{}, err
	}
	return ReleaseAnswer{released, Meta{Permit: t.permit}}, nil
}

func (t *target) releaseLocked(token uint64, id *reqid.ID, print uint32) (bool, error) {
	sh := t.sh
	released := false
	sh.fx = lock.Effects{TimedOut: sh.fx.TimedOut[:0]}
	if t.e != nil && t.e.lock != 0 {
		next, err := sh.nextTokenLocked(sh.store.cfg.Rule, t.permit)
		if err != nil {
			return false, err
		}
		released = sh.locks.At(t.e.lock).Release(token, t.now, next, &sh.fx).Released
	}
	t.steppedLocked(id, reqid.Outcome{Print: print, Code: decision(released)})
	return released, nil
}

// Inspect returns a lock and the first of its waiters, at most limit.
func (s *Store) Inspect(now int64, ref Ref, limit int) (InspectAnswer, error) {
	t := target{ref: ref, kind: KindLock, now: now}
	if err := t.enter(s); err != nil {
		return InspectAnswer{}, err
	}
	defer t.leave()
	a := InspectAnswer{Meta: Meta{Permit: t.permit}}
	if t.e == nil || t.e.lock == 0 {
		return a, nil
	}
	// What is shown to be over must be over: the expiry is a change of its own.
	if err := t.expireLocked(); err != nil {
		return InspectAnswer{}, err
	}
	a.View = t.sh.locks.At(t.e.lock).Inspect(t.now, limit)
	return a, nil
}

// expireLocked lets time pass for a lock that has a state.
func (t *target) expireLocked() error {
	sh := t.sh
	next, err := sh.nextTokenLocked(sh.store.cfg.Rule, t.permit)
	if err != nil {
		return err
	}
	sh.locks.At(t.e.lock).Expire(t.now, next, &sh.fx)
	t.steppedLocked(&reqid.ID{}, reqid.Outcome{})
	return nil
}

func (s *Store) checkTTL(ttl int64) error {
	if most := s.maxLockTTL(); ttl > most {
		return invalid("ttl_ns", "is %s; this node allows at most %s", time.Duration(ttl), time.Duration(most))
	}
	return nil
}

// waiterSize is what a place in a queue takes, without the text that it refers to.
const waiterSize = int(unsafe.Sizeof(lock.Waiter{}))

// grantText returns the memory that a lock refers to, beside its cell and the text of
// its places, which is counted with them.
func grantText(s *lock.State) int {
	return len(s.Holder) + cap(s.Metadata) + s.Queue.Room()*waiterSize
}

// textOf returns the memory that a place refers to.
func textOf(w *lock.Waiter) int { return len(w.Request.Holder) + len(w.Request.Metadata) }
