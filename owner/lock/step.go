package lock

import (
	"fmt"

	"github.com/keystead/keystead/owner/reqid"
)

// Acquire acquires the lock, or a place in the queue for op.Wait. At most
// maxWaiters wait. `token` is the candidate for a grant in this step: to this
// caller, or to the head of the queue if the TTL of the holder has ended; the
// caller then comes after it.
func (s *State) Acquire(op Acquire, now int64, token uint64, maxWaiters int, fx *Effects) AcquireResult {
	if op.Wait < 0 || op.Wait > MaxWait {
		panic(fmt.Sprintf("lock: a wait of %d ns was not validated", op.Wait))
	}
	mustTTL(op.TTL)
	now = s.advance(now, token, false, fx)
	place := s.Queue.Len() + 1
	switch {
	case s.Token == 0 && s.Queue.Len() == 0:
		s.grant(&Request{Holder: op.Holder, TTL: op.TTL, Metadata: op.Metadata}, now, now, token, fx)
		return AcquireResult{Outcome: Granted, Token: s.Token, Expires: s.Expires}
	case op.Wait == 0:
		return AcquireResult{Outcome: Refused, Place: place}
	case place > maxWaiters:
		return AcquireResult{Outcome: QueueFull, Place: place}
	}
	w := s.Queue.Push(op.Ticket)
	w.Caller, w.Since, w.GiveUp = op.Caller, now, now+op.Wait
	w.Request = Request{Holder: op.Holder, TTL: op.TTL, Metadata: op.Metadata}
	s.changed(now, fx)
	return AcquireResult{Outcome: Queued, Place: place}
}

// Renew sets the end of the grant with this token to now + ttl. That may be
// sooner than before: the holder says how long it still needs the lock. If the
// token does not hold the lock, it is lost for good; `next` is the candidate for
// the head of the queue.
func (s *State) Renew(token uint64, ttl, now int64, next uint64, fx *Effects) RenewResult {
	mustTTL(ttl)
	held := s.holds(token, now)
	now = s.advance(now, next, false, fx)
	if !held {
		return RenewResult{}
	}
	s.Expires = now + ttl
	s.changed(now, fx)
	return RenewResult{Renewed: true, Expires: s.Expires}
}

// Release gives the grant with this token back; the head of the queue gets the
// lock, with the token `next`. It is also how a grant that could not be
// delivered is given back.
func (s *State) Release(token uint64, now int64, next uint64, fx *Effects) ReleaseResult {
	held := s.holds(token, now)
	s.advance(now, next, held, fx)
	return ReleaseResult{Released: held}
}

// Expire does what time alone does: waiters whose time is over leave, and if the
// holder's TTL has ended, the head is granted the lock with the token `next`. Calling
// it too early or twice changes nothing.
func (s *State) Expire(now int64, next uint64, fx *Effects) {
	s.advance(now, next, false, fx)
}

// Cancel removes a waiter and returns the place that it had; found is false if it
// does not wait: it was granted the lock, timed out or was superseded. Cancel grants
// nothing and removes nobody else.
func (s *State) Cancel(ticket uint64, now int64) (place int, found bool) {
	now = s.clamp(now)
	if place, found = s.Queue.Cancel(ticket, now); found {
		s.At = now
	}
	return place, found
}

// Append puts a place at the end of the queue of a copy. It came not before those ahead
// of it, and not after the last change, whatever w has.
func (s *State) Append(w Waiter) { s.Queue.Append(w, s.At) }

// Leave has a waiter give up as of the last change: the next step drops it. It is
// for a state that may not be stepped now. It reports whether it waits.
func (s *State) Leave(ticket uint64) bool { return s.Queue.Leave(ticket, s.At) }

// Detach keeps the place of a waiter whose caller is not here any more, and may
// come back, for grace at most. The lock is busy while it is held: see
// queue.Queue.Detach. It reports whether the ticket waits.
func (s *State) Detach(ticket uint64, now, grace int64) bool {
	return s.Queue.Detach(ticket, s.clamp(now), grace, s.Token != 0)
}

// Supersede hands the place of a waiter to a retry of the same request: see
// queue.Queue.Supersede. Like Cancel, it grants nothing: if the lock was kept for
// a place that was Away, the next step grants it.
func (s *State) Supersede(old, ticket uint64, id reqid.ID, wait, now int64) (place int, found bool) {
	now = s.clamp(now)
	if place, found = s.Queue.Supersede(old, ticket, id, wait, now); found {
		s.At = now
	}
	return place, found
}

// Kept reports whether the lock is free, and kept for the head of the queue.
func (s *State) Kept() bool { return s.Token == 0 && s.Queue.Len() > 0 }

// NextWake returns the next moment at which Expire has something to do for those who
// wait, and not before now; false if nobody waits.
func (s *State) NextWake(now int64) (int64, bool) {
	if s.Queue.Len() == 0 {
		return 0, false
	}
	wake := s.Queue.NextExpiry()
	if s.Token != 0 || s.Queue.Head() != nil {
		wake = min(wake, s.Expires) // 0 if the lock is free: a step grants it
	}
	return max(wake, s.clamp(now)), true
}

// advance begins every step: it removes the waiters whose time is over, ends the
// grant if it is over or given back, and grants a free lock to the head, unless
// that one is away. It returns now as it counts here.
func (s *State) advance(now int64, next uint64, giveBack bool, fx *Effects) int64 {
	now = s.clamp(now)
	fx.reset()
	if s.Queue.Len() > 0 {
		if fx.TimedOut = s.Queue.Expire(now, fx.TimedOut); len(fx.TimedOut) > 0 {
			s.changed(now, fx)
		}
	}
	if s.Token != 0 {
		if !giveBack && now < s.Expires {
			return now
		}
		fx.Lapsed = !giveBack
		s.Holder, s.Token, s.Since, s.Expires, s.Waited, s.Metadata = "", 0, 0, 0, 0, nil
		s.changed(now, fx)
	}
	head := s.Queue.Head()
	if head == nil {
		return now
	}
	s.grant(&head.Request, head.Since, now, next, fx)
	fx.Grant = Grant{Ticket: head.Ticket, Caller: head.Caller, Token: s.Token, Waited: s.Waited, Expires: s.Expires}
	s.Queue.Pop()
	return now
}

// grant makes the caller that came at since the holder of a free lock.
func (s *State) grant(r *Request, since, now int64, token uint64, fx *Effects) {
	if token <= s.LastToken || token > MaxToken {
		panic(fmt.Sprintf("lock: the fencing token of a new grant must be above %d and at most %d, is %d", s.LastToken, uint64(MaxToken), token))
	}
	s.Holder, s.Token, s.Metadata = r.Holder, token, r.Metadata
	s.Since, s.Expires, s.Waited = now, now+r.TTL, now-since
	s.LastToken = token
	s.changed(now, fx)
}

func (s *State) changed(now int64, fx *Effects) {
	s.At = now
	fx.Changed = true
}

func (s *State) clamp(now int64) int64 { return max(now, s.At) }

// holds reports whether the token holds the lock. 0 never does: what is held has a
// token.
func (s *State) holds(token uint64, now int64) bool {
	return token == s.Token && s.Held(now)
}

func mustTTL(ttl int64) {
	if ttl < MinTTL || ttl > MaxTTL {
		panic(fmt.Sprintf("lock: a TTL of %d ns was not validated", ttl))
	}
}
