package gather

import "fmt"

// begin is the first thing that each step does. Leases that have ended are Expire's.
func (s *State) begin(now int64, fx *Effects) {
	fx.Reset()
	s.At = max(s.At, now)
}

// open makes a state that has none the first phase.
func (s *State) open(phase uint64) {
	if s.Phase == 0 {
		s.check(phase)
		s.Phase, s.Since = phase, phase
	}
}

func (s *State) check(next uint64) {
	if next <= s.Phase || next > MaxPhase {
		panic(fmt.Sprintf("gather: the next phase must be above %d and at most %d, is %d", s.Phase, uint64(MaxPhase), next))
	}
}

// end ends the phase.
func (s *State) end(next uint64, why Cause, who string, fx *Effects) {
	s.check(next)
	fx.Ended, fx.Changed = s.Phase, true
	if why == None {
		s.Passes++
	} else {
		if s.Broken != 0 {
			s.Since = s.After
		}
		s.Broken, s.After, s.Cause, s.Who = s.Phase, next, why, who
	}
	s.Turn(next)
}

// complete ends the phase if all have arrived. A child arrives at its parent instead.
func (s *State) complete(next uint64, fx *Effects) {
	//guard:phase-all s.Arrived >= s.Quorum() -> s.Arrived+1 >= s.Quorum()
	if s.Arrived > 0 && s.Arrived >= s.Quorum() {
		//guard:child-waits-for-parent
		if s.Parent.Given() {
			s.Sent, fx.Changed = true, true
			return
		}
		s.end(next, None, "", fx)
	}
}

// changed adds a party to the effects.
func (fx *Effects) changed(number uint64) {
	fx.Changed = true
	fx.Parties = append(fx.Parties, number)
}

// Arrive has a party arrive. next is the number of the next phase: of the first one, if there is
// none. The phase is the one for which the party has arrived, with Done, or the one that is
// under way.
func (s *State) Arrive(op Arrive, now int64, next uint64, fx *Effects) (out Outcome, phase uint64) {
	s.begin(now, fx)
	if out = s.admits(&op); out != Done {
		return out, s.Phase
	}
	if s.Phase == 0 {
		s.open(next)
		next++
		fx.Changed = true
	}
	if op.Need != 0 {
		s.Need = op.Need
	}
	phase = s.Phase
	p := s.Find(op.Party)
	//guard:party-once
	if p != nil && p.Phase == phase {
		return Done, phase
	}
	if p == nil {
		s.Put(Party{Name: op.Party, Number: s.Next + 1, Phase: phase})
		p = s.Find(op.Party)
	} else {
		p.Phase = phase
		s.Arrived++
	}
	if s.Need != 0 {
		s.Deadline = earlier(s.Deadline, s.At+within(op.Within))
	}
	fx.changed(p.Number)
	s.complete(next, fx)
	return Done, phase
}

// admits returns why a party may not arrive, Done if it may.
func (s *State) admits(op *Arrive) Outcome {
	registered := s.Need == 0 && len(s.Parties) > 0 || s.Parent.Given()
	p := s.Find(op.Party)
	switch {
	//guard:phase-late
	case op.Phase != 0 && op.Phase != s.Phase:
		return Over
	case registered && op.Need != 0, s.Need != 0 && op.Need != 0 && op.Need != s.Need && s.Arrived > 0:
		return Differs
	case op.Need == 0 && s.Need == 0 && p == nil:
		return NotThere
	//guard:child-fence
	case op.Child != 0 && (p == nil || p.Child != op.Child):
		return NotThere
	}
	return Done
}

func within(d int64) int64 {
	if d == 0 {
		return MaxWithin
	}
	return d
}

// earlier returns the earlier of two moments, of which 0 is none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Register makes a party one of a phaser, for so long, or prolongs its lease. It takes part
// from the phase on that is under way; from the next one on, if all have arrived for this. next is
// the number of the next phase: of the first one, if there is none.
func (s *State) Register(op Register, now int64, next uint64, fx *Effects) (out Outcome, phase uint64) {
	s.begin(now, fx)
	p := s.Find(op.Party)
	switch {
	case s.Need != 0 && s.Arrived > 0:
		return Differs, s.Phase
	case p == nil && len(s.Parties) >= MaxParties:
		return TooMany, s.Phase
	case s.Phase != 0 && op.Parent.Given() && op.Parent != s.Parent:
		return OtherParent, s.Phase
	//guard:child-stale
	case p != nil && op.Child < p.Child:
		return Stale, s.Phase
	}
	s.adopt(op.Parent)
	s.open(next)
	s.rejoin(next, fx)
	s.Need, s.Deadline = 0, 0
	q := Party{Name: op.Party, Number: s.Next + 1}
	if p != nil {
		q = *p
	} else if s.Sent {
		q.Phase = s.Phase
	}
	//guard:child-lost-arrival
	if op.Child > q.Child && p != nil {
		q.Phase = 0 // the child was lost: those that arrive there by now have not arrived here
	}
	q.Expires, q.Breaks, q.Child = s.At+op.TTL, op.Breaks, op.Child
	s.Put(q)
	fx.changed(q.Number)
	return Done, s.Phase
}

// Renew prolongs the lease of a party, and reports whether it is registered.
func (s *State) Renew(name string, ttl, now int64, fx *Effects) bool {
	s.begin(now, fx)
	p := s.Find(name)
	if p == nil || p.Expires == 0 {
		return false
	}
	p.Expires = s.At + ttl
	s.soon = earlier(s.soon, p.Expires)
	fx.changed(p.Number)
	return true
}

// Leave takes a party away, and reports whether it was there: one of a phaser is not registered
// any more, and the phase goes on without it. One of a barrier has not arrived any more. A phase
// that is given and is not under way is left as it is.
func (s *State) Leave(op Leave, now int64, next uint64, fx *Effects) bool {
	s.begin(now, fx)
	p := s.Find(op.Party)
	//guard:leave-late
	if p == nil || s.Need != 0 && op.Phase != 0 && op.Phase != s.Phase {
		return false
	}
	//guard:child-leaves-late
	if op.Child != 0 && op.Child != p.Child {
		return false
	}
	number := p.Number
	s.Drop(number)
	fx.changed(number)
	if s.Need == 0 {
		s.complete(next, fx)
	} else if s.Arrived == 0 {
		s.Deadline = 0
	}
	return true
}

// Break ends the phase for callers that wait for it, and returns its number, 0 if there is none. That
// of a child whose parties have all arrived is the parent's to break.
func (s *State) Break(now int64, next uint64, fx *Effects) (broken uint64) {
	s.begin(now, fx)
	//guard:child-not-broken
	if s.Sent {
		return 0
	}
	if broken = s.Phase; broken != 0 {
		s.end(next, Reset, "", fx)
	}
	return broken
}

// NextWake returns when Expire has something to do, if it has.
func (s *State) NextWake() (at int64, ok bool) {
	at = earlier(s.soon, s.Deadline)
	return at, at != 0
}

// Expire drops the parties whose leases have ended, and breaks the phase if one of them says so, or
// if it is past its deadline. It may end the phase for those that are left. While NextWake is
// not after now there is more to do.
//
// All of them go in one step: left for another one, those that break would break the next phase,
// too, and of the first it would not be known any more that it was broken.
func (s *State) Expire(now int64, next uint64, fx *Effects) {
	s.begin(now, fx)
	//guard:phase-deadline
	if s.Deadline != 0 && s.Deadline <= s.At {
		s.end(next, Late, "", fx)
		return
	}
	if s.soon == 0 || s.soon > s.At {
		return
	}
	who, soon := "", int64(0)
	for i := 0; i < len(s.Parties); {
		p := &s.Parties[i]
		if p.Expires == 0 || p.Expires > s.At {
			soon = earlier(soon, p.Expires)
			i++
			continue
		}
		if p.Breaks && who == "" {
			who = p.Name
		}
		fx.Lapsed++
		fx.changed(p.Number)
		s.Drop(p.Number) // another one stands here now
	}
	s.soon = soon
	//guard:party-breaks who != "" -> false
	if who != "" && !s.Sent {
		s.end(next, Lost, who, fx)
	} else if fx.Lapsed > 0 {
		s.complete(next, fx)
	}
}
