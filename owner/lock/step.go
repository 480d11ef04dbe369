package lock

import (
	"fmt"
	"math"
)

// Acquire takes the lock, or a place in the queue for op.Wait. At most
// maxWaiters wait. `token` is the candidate for a grant in this step: to this
// caller, or to the head of the queue if the TTL of the holder has ended; the
// caller then comes after it.
func (s *State) Acquire(op Acquire, now int64, token uint64, maxWaiters int, fx *Effects) AcquireResult {
	if op.Wait < 0 || op.Wait > MaxWait {
		panic(fmt.Sprintf("lock: a wait of %d ns was not validated", op.Wait))
	}
	mustTTL(op.TTL)
	now = s.settle(now, token, false, fx)
	place := len(s.Queue) + 1
	switch {
	case s.Token == 0 && len(s.Queue) == 0:
		w := Waiter{Holder: op.Holder, TTL: op.TTL, Metadata: op.Metadata, Since: now}
		s.grant(&w, now, token, fx)
		return AcquireResult{Outcome: Granted, Token: s.Token, Expires: s.Expires}
	case op.Wait == 0:
		return AcquireResult{Outcome: Refused, Place: place}
	case place > maxWaiters:
		return AcquireResult{Outcome: QueueFull, Place: place}
	}
	if s.find(op.Ticket) >= 0 {
		panic(fmt.Sprintf("lock: ticket %d is in the queue already", op.Ticket))
	}
	s.Queue = append(s.Queue, Waiter{
		Ticket: op.Ticket, Holder: op.Holder, TTL: op.TTL, Metadata: op.Metadata,
		Since: now, GiveUp: now + op.Wait,
	})
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
	now = s.settle(now, next, false, fx)
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
	s.settle(now, next, held, fx)
	return ReleaseResult{Released: held}
}

// Expire does what time alone does: waiters whose time is up leave, and if the
// holder's TTL has ended, the head gets the lock with the token `next`. Calling
// it too early or twice changes nothing.
func (s *State) Expire(now int64, next uint64, fx *Effects) {
	s.settle(now, next, false, fx)
}

// Cancel takes a waiter out of the queue and says which place it had; found is
// false if it does not wait: it was granted the lock, timed out or was
// superseded. Cancel grants nothing and drops nobody else.
func (s *State) Cancel(ticket uint64, now int64) (place int, found bool) {
	i := s.find(ticket)
	if i < 0 {
		return 0, false
	}
	now = s.clamp(now)
	place = s.place(i, now)
	copy(s.Queue[i:], s.Queue[i+1:])
	s.truncate(len(s.Queue) - 1)
	s.At = now
	return place, true
}

// Append puts a place at the end of the queue of a copy. It came not before those ahead
// of it, and not after the last change, whatever it says.
func (s *State) Append(w Waiter) {
	w.Since = min(w.Since, s.At)
	if n := len(s.Queue); n > 0 {
		w.Since = max(w.Since, s.Queue[n-1].Since)
	}
	w.GiveUp = max(w.GiveUp, w.Since)
	s.Queue = append(s.Queue, w)
}

// Leave has a waiter give up as of the last change: the next step drops it. It is
// for a state that may not be stepped now. It reports whether it waits.
func (s *State) Leave(ticket uint64) bool {
	i := s.find(ticket)
	if i >= 0 {
		s.Queue[i].GiveUp = min(s.Queue[i].GiveUp, s.At)
	}
	return i >= 0
}

// Detach keeps the place of a waiter whose caller is not here any more, and may
// come back (Supersede): it is Away from now on, for grace at most. All that are
// Away share one Grace. It is prolonged while the lock is held, when they are in
// nobody's way; a free lock that is kept for one of them is not kept longer for
// another one. It reports whether the ticket waits.
func (s *State) Detach(ticket uint64, now, grace int64) bool {
	i := s.find(ticket)
	if i < 0 {
		return false
	}
	now = s.clamp(now)
	s.Queue[i].Away = true
	if s.Token != 0 || s.Grace <= now {
		s.Grace = now + grace
	}
	return true
}

// Supersede hands the place of a waiter to a retry of the same request, which
// waits under its own ticket until now + wait (0 to MaxWait; what is outside
// counts as the nearest; 0 gives up at the next step). What counts otherwise — the order,
// when the wait began, holder, TTL and metadata — is of the first attempt. found
// is false if the old ticket does not wait, or has to give up by now; the retry
// is then a new Acquire. Like Cancel, it grants nothing: if the lock was kept for
// a place that was Away, the next step grants it.
func (s *State) Supersede(old, ticket uint64, wait, now int64) (place int, found bool) {
	now = s.clamp(now)
	i := s.find(old)
	if i < 0 || now >= s.leaves(&s.Queue[i]) {
		return 0, false
	}
	if ticket != old && s.find(ticket) >= 0 {
		panic(fmt.Sprintf("lock: ticket %d is in the queue already", ticket))
	}
	w := &s.Queue[i]
	w.Ticket, w.GiveUp, w.Away = ticket, now+min(max(wait, 0), MaxWait), false
	s.At = now
	return s.place(i, now), true
}

// NextWake is the next moment at which Expire has something to do for those who
// wait, but not before now; false if nobody waits.
func (s *State) NextWake(now int64) (int64, bool) {
	if len(s.Queue) == 0 {
		return 0, false
	}
	wake := s.Expires // 0 if the lock is free: a step grants it
	if s.Token == 0 && s.Queue[0].Away {
		wake = math.MaxInt64
	}
	for i := range s.Queue {
		wake = min(wake, s.leaves(&s.Queue[i]))
	}
	return max(wake, s.clamp(now)), true
}

// settle begins every step: it drops the waiters whose time is up, ends the
// grant if it is over or given back, and hands a free lock to the head, unless
// that one is away. It returns now as it counts here.
func (s *State) settle(now int64, next uint64, giveBack bool, fx *Effects) int64 {
	now = s.clamp(now)
	fx.reset()
	if len(s.Queue) > 0 {
		s.dropTimedOut(now, fx)
	}
	if s.Token != 0 {
		if !giveBack && now < s.Expires {
			return now
		}
		fx.Lapsed = !giveBack
		s.Holder, s.Token, s.Since, s.Expires, s.Waited, s.Metadata = "", 0, 0, 0, 0, nil
		s.changed(now, fx)
	}
	if len(s.Queue) == 0 || s.Queue[0].Away {
		return now
	}
	head := s.Queue[0]
	s.grant(&head, now, next, fx)
	fx.Grant = Grant{Ticket: head.Ticket, Token: s.Token, Waited: s.Waited, Expires: s.Expires}
	copy(s.Queue, s.Queue[1:])
	s.truncate(len(s.Queue) - 1)
	return now
}

// grant makes w the holder of a free lock.
func (s *State) grant(w *Waiter, now int64, token uint64, fx *Effects) {
	if token <= s.LastToken || token > MaxToken {
		panic(fmt.Sprintf("lock: the fencing token of a new grant must be above %d and at most %d, is %d", s.LastToken, uint64(MaxToken), token))
	}
	s.Holder, s.Token, s.Metadata = w.Holder, token, w.Metadata
	s.Since, s.Expires, s.Waited = now, now+w.TTL, now-w.Since
	s.LastToken = token
	s.changed(now, fx)
}

func (s *State) dropTimedOut(now int64, fx *Effects) {
	kept := 0
	for i := range s.Queue {
		w := &s.Queue[i]
		if now >= s.leaves(w) {
			fx.TimedOut = append(fx.TimedOut, TimedOut{Ticket: w.Ticket, Place: kept + 1, Waited: now - w.Since})
			continue
		}
		if kept < i {
			s.Queue[kept] = *w
		}
		kept++
	}
	if kept < len(s.Queue) {
		s.truncate(kept)
		s.changed(now, fx)
	}
}

// leaves is the moment from which a waiter no longer waits.
func (s *State) leaves(w *Waiter) int64 {
	if w.Away && s.Grace != 0 {
		return min(w.GiveUp, s.Grace)
	}
	return w.GiveUp
}

// truncate shortens the queue, letting go of what the rest refers to.
func (s *State) truncate(n int) {
	if n == 0 && cap(s.Queue) > keepQueue {
		s.Queue = nil
		return
	}
	clear(s.Queue[n:])
	s.Queue = s.Queue[:n]
}

func (s *State) changed(now int64, fx *Effects) {
	s.At = now
	fx.Changed = true
}

func (s *State) clamp(now int64) int64 { return max(now, s.At) }

// holds says whether the token holds the lock. 0 never does: what is held has a
// token.
func (s *State) holds(token uint64, now int64) bool {
	return token == s.Token && s.Held(now)
}

// find is the index of a waiter, or -1.
func (s *State) find(ticket uint64) int {
	for i := range s.Queue {
		if s.Queue[i].Ticket == ticket {
			return i
		}
	}
	return -1
}

// place is that of the waiter at index i among those who still wait.
func (s *State) place(i int, now int64) int {
	place := 1
	for j := range s.Queue[:i] {
		if now < s.leaves(&s.Queue[j]) {
			place++
		}
	}
	return place
}

func mustTTL(ttl int64) {
	if ttl < MinTTL || ttl > MaxTTL {
		panic(fmt.Sprintf("lock: a TTL of %d ns was not validated", ttl))
	}
}
