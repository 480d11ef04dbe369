package hold

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// Acquire acquires op.Weight, or a place in the queue for op.Wait. At most maxWaiters wait.
// tokens are the candidates for grants in this step: to the head of the queue, and then to
// this caller.
func (s *State) Acquire(op Acquire, now int64, tokens Tokens, maxWaiters int, fx *Effects) AcquireResult {
	if op.Wait < 0 || op.Wait > MaxWait {
		panic(fmt.Sprintf("hold: a wait of %d ns was not validated", op.Wait))
	}
	mustTTL(op.TTL)
	now = s.begin(now, fx)
	// One is left for this caller: what is free must not be refused to it.
	s.serve(now, &Tokens{tokens.First, tokens.Count - 1}, fx)
	tokens.First += uint64(len(fx.Grants))
	//guard:capacity-goes-with-holders
	s.settle() // the last holder's time may just have been over
	defer s.settle()
	capacity := s.Capacity
	if capacity == 0 {
		capacity = op.Capacity
	}
	res := AcquireResult{Capacity: capacity, Place: s.Queue.Len() + 1}
	same := -1
	if op.Unique {
		same = s.named(op.Name)
	}
	switch {
	case capacity == 0:
		return AcquireResult{Outcome: NoCapacity}
	//guard:capacity-of-the-object
	case op.Capacity != 0 && op.Capacity != capacity:
		return AcquireResult{Outcome: CapacityDiffers, Capacity: capacity}
	case op.Weight > capacity:
		return AcquireResult{Outcome: TooLarge, Capacity: capacity}
	//guard:later-of-the-name
	case same >= 0 && op.After != 0 && s.Holders[same].Token > op.After:
		res.Later = s.Holders[same].Token
		return res
	//guard:no-overtaking s.Queue.Len() == 0 && s.room(capacity, op.Weight) -> s.room(capacity, op.Weight)
	case same >= 0 || s.Queue.Len() == 0 && s.room(capacity, op.Weight):
		s.Capacity = capacity
		known := s.over
		//guard:one-of-a-name
		if same >= 0 {
			s.remove(same, now, fx)
		}
		h := s.grant(&Request{op.Name, op.Weight, op.TTL, op.Delay, op.Metadata, op.Session}, now, now, tokens.First, fx)
		//guard:ended-amid-claims
		if op.Amid {
			s.over = known
		}
		return AcquireResult{Outcome: Granted, Capacity: capacity, Token: h.Token, Expires: h.Expires}
	case op.Wait == 0 && op.Keep == 0:
		res.Outcome = Refused
		return res
	case res.Place > maxWaiters:
		res.Outcome = QueueFull
		return res
	}
	s.Queue.Enter(Waiter{
		Ticket: op.Ticket, Caller: op.Caller, Since: now, GiveUp: now + op.Wait + op.Keep, Kept: op.Keep > 0,
		Request: Request{op.Name, op.Weight, op.TTL, op.Delay, op.Metadata, op.Session},
	})
	s.changed(now, fx)
	res.Outcome = Queued
	return res
}

// Renew sets the end of the grant with this token to now + ttl. That may be sooner than
// before, unless a session keeps it alive: the holder says how long it still needs it. If
// the token holds nothing, it is lost for good.
func (s *State) Renew(token uint64, ttl, now int64, tokens Tokens, fx *Effects) (res RenewResult) {
	mustTTL(ttl)
	now = s.begin(now, fx)
	if h := s.holds(token, now); h != nil {
		s.extend(h, now+ttl, now, fx)
		res = RenewResult{Renewed: true, Expires: h.Expires}
	}
	s.end(now, tokens, fx)
	return res
}

// Release gives the grant with this token back, and reports whether it was held until now.
// One that is over and whose delay runs is freed all the same: its holder says that it has
// stopped.
func (s *State) Release(token uint64, now int64, tokens Tokens, fx *Effects) (released bool) {
	now = s.begin(now, fx)
	if i := s.index(token); i >= 0 {
		released = s.holds(token, now) != nil
		s.remove(i, now, fx)
	}
	s.end(now, tokens, fx)
	return released
}

// Revoke ends the grant with this token for its holder, and reports whether it was held
// until now. The end is unclean: the delay of the grant runs.
func (s *State) Revoke(token uint64, now int64, tokens Tokens, fx *Effects) (revoked bool) {
	now = s.begin(now, fx)
	if h := s.holds(token, now); h != nil {
		revoked, fx.News = true, true
		h.Ended, h.Expires = true, now
		fx.tell(token)
		s.changed(now, fx)
		if h.Delay == 0 {
			s.remove(s.index(token), now, fx)
		} else {
			s.due = min(s.due, h.frees())
		}
	}
	s.end(now, tokens, fx)
	return revoked
}

// Downgrade lowers the weight of the grant with this token in place: nobody else is granted
// what stays. A weight above that of the grant changes nothing: see the package doc.
func (s *State) Downgrade(token uint64, weight uint32, now int64, tokens Tokens, fx *Effects) (res DowngradeResult) {
	if weight < 1 {
		panic("hold: a weight of 0 was not validated")
	}
	now = s.begin(now, fx)
	if h := s.holds(token, now); h != nil {
		//guard:no-upgrade
		if weight < h.Weight {
			s.used -= uint64(h.Weight - weight)
			h.Weight, fx.News = weight, true
			fx.Holders = append(fx.Holders, token)
			s.changed(now, fx)
		}
		res = DowngradeResult{Held: true, Weight: h.Weight}
	}
	s.end(now, tokens, fx)
	return res
}

// Update replaces the metadata of the grant with this token, and reports whether it is held.
func (s *State) Update(token uint64, metadata []byte, now int64, tokens Tokens, fx *Effects) (updated bool) {
	now = s.begin(now, fx)
	if h := s.holds(token, now); h != nil {
		s.text += cap(metadata) - cap(h.Metadata)
		updated, h.Metadata, fx.News = true, metadata, true
		fx.Holders = append(fx.Holders, token)
		s.changed(now, fx)
	}
	s.end(now, tokens, fx)
	return updated
}

// SetCapacity makes the capacity what it says, from now on and also when nobody holds or
// waits; 0 leaves it to the next acquire, once nobody holds or waits. A higher one is
// granted to the queue. Under a lower one nothing is granted until what is held is below
// it, and waiters for more than it go: they would wait for ever, and keep all behind
// them waiting.
func (s *State) SetCapacity(capacity uint32, now int64, tokens Tokens, fx *Effects) {
	now = s.begin(now, fx)
	switch {
	case capacity == 0 && s.Fixed:
		s.Fixed, fx.News = false, true
		s.changed(now, fx)
	case capacity != 0 && (capacity != s.Capacity || !s.Fixed):
		s.Capacity, s.Fixed, fx.News = capacity, true, true
		s.changed(now, fx)
		//guard:capacity-drops-larger
		fx.TooLarge = s.Queue.Drop(now, func(w *Waiter) bool { return w.Request.Weight > capacity }, fx.TooLarge)
	}
	s.end(now, tokens, fx)
}

// Expire does what time alone does: waiters whose time is over leave, grants whose TTL is
// over end, and what is free goes to the queue. Calling it too early or twice changes
// nothing.
func (s *State) Expire(now int64, tokens Tokens, fx *Effects) {
	s.end(s.begin(now, fx), tokens, fx)
}

// Cancel removes a waiter and returns the place that it had; found is false if it does not
// wait. It grants nothing: if others fit by now, NextWake is now.
func (s *State) Cancel(ticket uint64, now int64) (place int, found bool) {
	now = s.clamp(now)
	if place, found = s.Queue.Cancel(ticket, now); found {
		s.At = now
		s.settle()
	}
	return place, found
}

// End removes a waiter whose time is over, and that a step has left because there were too many.
func (s *State) End(ticket uint64, now int64, fx *Effects) {
	now = s.clamp(now)
	fx.Reset()
	p := s.Queue.Find(ticket)
	if p == nil || !s.Queue.OverAt(p, now) {
		return
	}
	over := queue.Left{Ticket: ticket, Caller: p.Caller, Waited: now - p.Since}
	over.Position, _ = s.Queue.Cancel(ticket, now)
	fx.TimedOut = append(fx.TimedOut, over)
	s.changed(now, fx)
	s.settle()
}

// Append puts a place at the end of the queue of a copy. It came not before those ahead
// of it, and not after the last change, whatever w has.
func (s *State) Append(w Waiter) { s.Queue.Append(w, s.At) }

// ToEnd moves a place of a copy to the end: see queue.Queue.ToEnd.
func (s *State) ToEnd(w Waiter) { s.Queue.ToEnd(w.Ticket, w.Caller.ID, w.GiveUp, s.At) }

// Leave has a waiter give up as of the last change: the next step drops it. It is for a
// state that may not be stepped now. It reports whether it waits.
func (s *State) Leave(ticket uint64) bool { return s.Queue.Leave(ticket, s.At) }

// Detach keeps the place of a waiter whose caller is not here any more, and may come back,
// for grace at most: see queue.Queue.Detach. It reports whether the ticket waits. A head that
// is away already is in the way of those that would fit in what is free, though it does not.
func (s *State) Detach(ticket uint64, now, grace int64) bool {
	//guard:away-head-blocks !s.Kept() && !s.blocked() -> !s.Kept()
	return s.Queue.Detach(ticket, s.clamp(now), grace, !s.Kept() && !s.blocked())
}

// blocked reports whether something is free, and those behind a head that is away wait for it.
func (s *State) blocked() bool {
	return s.Queue.Len() > 0 && s.Queue.Places[0].Away && s.fits(1)
}

// Supersede hands the place of a waiter to a retry of the same request: see
// queue.Queue.Supersede. Like Cancel, it grants nothing.
func (s *State) Supersede(old, ticket uint64, id reqid.ID, wait, now int64) (place int, found bool) {
	now = s.clamp(now)
	if place, found = s.Queue.Supersede(old, ticket, id, wait, now); found {
		s.At = now
	}
	return place, found
}

// Keep sets whether a place stands when its caller is away: see queue.Place.Kept.
func (s *State) Keep(ticket uint64, kept bool) { s.Queue.Keep(ticket, kept) }

// Kept reports whether what the head of the queue asks for is free, and kept for it.
func (s *State) Kept() bool {
	return s.Queue.Len() > 0 && s.fits(s.Queue.Places[0].Request.Weight)
}

// NextWake returns the next moment at which Expire may have something to do for the
// waiters, and not before now; false if there are none. After a step it is later than now, unless
// that had no tokens left.
func (s *State) NextWake(now int64) (int64, bool) {
	if s.Queue.Len() == 0 {
		return 0, false
	}
	wake := s.Queue.NextExpiry()
	if len(s.Holders) > 0 {
		wake = min(wake, s.due)
	}
	now = s.clamp(now)
	switch head := s.Queue.Head(); {
	case head != nil && s.fits(head.Request.Weight):
		wake = 0
	//guard:ticket-turn-wakes
	case s.calls(now):
		wake = 0
	}
	return max(wake, now), true
}

// begin begins every step: it removes the waiters whose time is over and ends the grants
// whose time is over. It returns now as it counts here.
func (s *State) begin(now int64, fx *Effects) int64 {
	now = s.clamp(now)
	fx.Reset()
	if s.Queue.Len() > 0 {
		if fx.TimedOut = s.Queue.Expire(now, fx.TimedOut); len(fx.TimedOut) > 0 {
			s.changed(now, fx)
		}
	}
	if len(s.Holders) > 0 && now >= s.due {
		s.free(now, fx)
	}
	return now
}

// end ends every step but Acquire: what is free goes to the queue.
func (s *State) end(now int64, tokens Tokens, fx *Effects) {
	s.serve(now, &tokens, fx)
	s.settle()
}

// free ends the grants whose time is over, and frees the room of those whose delay is.
func (s *State) free(now int64, fx *Effects) {
	kept := 0
	s.due = math.MaxInt64
	for i := range s.Holders {
		h := &s.Holders[i]
		told := false
		if !h.Ended && now >= h.Expires {
			h.Ended, told = true, true
			fx.Lapsed++
			//guard:lapse-is-news
			fx.News = true
			fx.Holders = append(fx.Holders, h.Token)
			s.changed(now, fx)
		}
		//guard:delay-keeps-room h.Ended && now >= h.frees() -> h.Ended
		if h.Ended && now >= h.frees() {
			s.used -= uint64(h.Weight)
			s.text -= h.size()
			s.over.add(h.Token)
			if !told {
				fx.Holders = append(fx.Holders, h.Token)
			}
			s.changed(now, fx)
			continue
		}
		s.due = min(s.due, h.frees())
		if kept < i {
			s.Holders[kept] = *h
		}
		kept++
	}
	clear(s.Holders[kept:])
	s.Holders = s.Holders[:kept]
}

// remove frees the room of a holder.
func (s *State) remove(i int, now int64, fx *Effects) {
	token := s.Holders[i].Token
	if !s.Holders[i].Ended {
		fx.News = true
	}
	s.drop(i)
	s.over.add(token)
	fx.tell(token)
	s.changed(now, fx)
}

// drop takes a holder out.
func (s *State) drop(i int) {
	h, last := &s.Holders[i], len(s.Holders)-1
	s.used -= uint64(h.Weight)
	s.text -= h.size()
	copy(s.Holders[i:], s.Holders[i+1:])
	s.Holders[last] = Holder{}
	s.Holders = s.Holders[:last]
	if last == 1 {
		s.due = s.Holders[0].frees()
	}
}

// serve grants what is free to the queue, as long as there are tokens.
func (s *State) serve(now int64, tokens *Tokens, fx *Effects) {
	for n := min(tokens.Count, MaxGrants); ; n-- {
		head := s.Queue.Head()
		if head == nil {
			s.call(now, fx)
			return
		}
		if n <= 0 || !s.fits(head.Request.Weight) {
			return
		}
		//guard:over-in-line
		if s.Queue.Over(now) {
			return // a step removes no more of them: the next one goes on
		}
		h := s.grant(&head.Request, head.Since, now, tokens.First, fx)
		fx.Grants = append(fx.Grants, Grant{Ticket: head.Ticket, Caller: head.Caller, Token: h.Token, Waited: h.Waited, Expires: h.Expires})
		s.Queue.Pop()
		tokens.First++
	}
}

// call bounds how long what is free is kept for the head of the queue, if its place is Kept and its
// caller away: for the lease that it asked for, which is how long a holder that does not come back
// would have kept it.
func (s *State) call(now int64, fx *Effects) {
	if s.calls(now) {
		head := &s.Queue.Places[0]
		s.Queue.Hasten(now + head.Request.TTL)
		fx.Called = head.Ticket
		s.changed(now, fx)
	}
}

// calls reports whether call has something to do.
func (s *State) calls(now int64) bool {
	if s.Queue.Len() == 0 {
		return false
	}
	head := &s.Queue.Places[0]
	//guard:ticket-turn head.GiveUp > now+head.Request.TTL -> false
	return head.Away && head.Kept && head.GiveUp > now+head.Request.TTL && s.fits(head.Request.Weight)
}

// grant makes the caller that came at since a holder. It is valid until the next change.
func (s *State) grant(r *Request, since, now int64, token uint64, fx *Effects) *Holder {
	if token <= s.LastToken || token > MaxToken {
		panic(fmt.Sprintf("hold: the fencing token of a new grant must be above %d and at most %d, is %d", s.LastToken, uint64(MaxToken), token))
	}
	s.LastToken, fx.News = token, true
	s.over = nil
	h := Holder{
		Name: r.Name, Token: token, Weight: r.Weight, Since: now, Expires: now + r.TTL,
		Waited: now - since, Delay: r.Delay, Metadata: r.Metadata, Session: r.Session,
	}
	s.add(len(s.Holders), h)
	fx.Holders = append(fx.Holders, token)
	s.changed(now, fx)
	return &s.Holders[len(s.Holders)-1]
}

// add puts a holder where it stands by its token.
func (s *State) add(i int, h Holder) {
	if len(s.Holders) == 0 {
		s.due = math.MaxInt64
	}
	s.due = min(s.due, h.frees())
	s.used += uint64(h.Weight)
	s.text += h.size()
	if i == len(s.Holders) {
		s.Holders = append(s.Holders, h)
		return
	}
	s.Holders = slices.Insert(s.Holders, i, h)
}

// keepRoom is the room, in holders, that an object keeps that nobody holds.
const keepRoom = 8

// settle leaves the capacity to the next caller when nobody holds or waits.
func (s *State) settle() {
	if len(s.Holders) > 0 || s.Queue.Len() > 0 {
		return
	}
	if !s.Fixed {
		s.Capacity = 0
	}
	if cap(s.Holders) > keepRoom {
		s.Holders = nil
	}
}

func (s *State) changed(now int64, fx *Effects) {
	s.At = now
	fx.Changed = true
}

func (s *State) clamp(now int64) int64 { return max(now, s.At) }

// fits reports whether a weight can be granted now.
func (s *State) fits(weight uint32) bool { return s.room(s.Capacity, weight) }

// room reports whether a weight can be granted now under a capacity.
func (s *State) room(capacity, weight uint32) bool {
	//guard:capacity-bounds s.used+uint64(weight) <= uint64(capacity) -> true
	return s.used+uint64(weight) <= uint64(capacity) && len(s.Holders) < MaxHolders
}

// named returns the index of the last grant of a name, or -1.
func (s *State) named(name string) int {
	for i := len(s.Holders) - 1; i >= 0; i-- {
		if s.Holders[i].Name == name {
			return i
		}
	}
	return -1
}

// index returns that of a holder, or -1.
func (s *State) index(token uint64) int {
	i := s.search(token)
	if i < len(s.Holders) && s.Holders[i].Token == token {
		return i
	}
	return -1
}

// search returns where a token stands, or would stand.
func (s *State) search(token uint64) int {
	return sort.Search(len(s.Holders), func(i int) bool { return s.Holders[i].Token >= token })
}

// holds returns the grant with this token if it is in force, else nil.
func (s *State) holds(token uint64, now int64) *Holder {
	i := s.index(token)
	if i < 0 {
		return nil
	}
	//guard:over-at-its-end !h.Ended && s.clamp(now) < h.Expires -> !h.Ended
	if h := &s.Holders[i]; !h.Ended && s.clamp(now) < h.Expires {
		return h
	}
	return nil
}

func mustTTL(ttl int64) {
	if ttl < MinTTL || ttl > MaxTTL {
		panic(fmt.Sprintf("hold: a TTL of %d ns was not validated", ttl))
	}
}
