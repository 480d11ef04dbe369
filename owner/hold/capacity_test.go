package hold

import "testing"

// TestCapacityGoesWithTheLastHolder: the capacity belongs to those who hold and wait. When the
// lease of the last of them is over, the next caller says it anew, whether or not anybody has
// asked since.
func TestCapacityGoesWithTheLastHolder(t *testing.T) {
	var fx Effects
	op := Acquire{Name: "a", Weight: 1, Capacity: 3, TTL: unit}
	over := func() *State {
		s := &State{}
		s.Acquire(op, 0, Tokens{1, 1}, 10, &fx)
		return s
	}
	other := op
	other.Capacity = 5
	if res := over().Acquire(other, unit, Tokens{2, 1}, 10, &fx); res.Outcome != Granted || res.Capacity != 5 {
		t.Errorf("another capacity: %+v", res)
	}
	none := op
	none.Capacity = 0
	if res := over().Acquire(none, unit, Tokens{2, 1}, 10, &fx); res.Outcome != NoCapacity {
		t.Errorf("no capacity: %+v", res)
	}
	large := op
	large.Weight, large.Capacity = 4, 4
	if res := over().Acquire(large, unit, Tokens{2, 1}, 10, &fx); res.Outcome != Granted {
		t.Errorf("more than there were: %+v", res)
	}
	kept := over()
	if res := kept.Acquire(other, unit-1, Tokens{2, 1}, 10, &fx); res.Outcome != CapacityDiffers {
		t.Errorf("while it is held: %+v", res)
	}
	kept.SetCapacity(3, 0, Tokens{2, 1}, &fx)
	if res := kept.Acquire(other, unit, Tokens{2, 1}, 10, &fx); res.Outcome != CapacityDiffers {
		t.Errorf("one that was set: %+v", res)
	}
}

// TestClaimsUnderALowerCapacity: who holds permits keeps them when the capacity is set below what
// is held, also if that is done before the claims have come.
func TestClaimsUnderALowerCapacity(t *testing.T) {
	for _, first := range []int{0, 1, 3} {
		var s State
		var fx Effects
		claim := func(token uint64) bool {
			return s.Reclaim(Reclaim{Token: token, Name: "h", Weight: 2, Capacity: 6, Left: unit}, 0, &fx).Reclaimed
		}
		for i := range 3 {
			if i == first {
				s.SetCapacity(3, 0, Tokens{100, 1}, &fx)
			}
			if !claim(uint64(7 - i)) {
				t.Errorf("set after %d claims: token %d is not given back", first, 7-i)
			}
		}
		if first == 3 {
			s.SetCapacity(3, 0, Tokens{100, 1}, &fx)
		}
		if s.Capacity != 3 || !s.Fixed || s.used != 6 || s.Valid() != nil {
			t.Errorf("set after %d claims: %s\n%v", first, s.Describe(0), s.Valid())
		}
		if claim(3) {
			t.Errorf("set after %d claims: more are held than ever could be", first)
		}
	}
}

// TestAwayHeadDoesNotBlockForEver: a head that is away, and wants more than is free, keeps those
// behind it waiting no longer than its own grace, however often others leave.
func TestAwayHeadDoesNotBlockForEver(t *testing.T) {
	var s State
	var fx Effects
	acquire := func(ticket uint64, weight uint32, wait int64) AcquireResult {
		return s.Acquire(Acquire{Name: "a", Weight: weight, Capacity: 4, TTL: MaxTTL, Wait: wait, Ticket: ticket}, s.At, Tokens{s.LastToken + 1, MaxGrants}, 100, &fx)
	}
	acquire(1, 2, 0)
	acquire(2, 4, MaxWait) // the head
	acquire(3, 1, MaxWait)
	const grace = int64(1_000_000_000)
	s.Detach(2, 0, grace)
	for i := range int64(5) {
		now := (i + 1) * grace / 2
		s.Expire(now, Tokens{s.LastToken + 1, MaxGrants}, &fx)
		acquire(10+uint64(i), 4, MaxWait)
		s.Detach(10+uint64(i), now, grace)
	}
	if s.Queue.Find(2) != nil || s.Queue.Find(3) != nil {
		t.Errorf("it blocks still\n%s", s.Describe(5*grace/2))
	}
}

// TestCalledAfterManyGrants: the turn of a place whose caller is away begins with the step that brings
// it to the head, though that has granted as much as a step may, or had no tokens left.
func TestCalledAfterManyGrants(t *testing.T) {
	const second = 1_000_000_000
	for _, tokens := range []int{MaxGrants, 5} {
		s, fx := State{}, Effects{}
		next := func(n int) Tokens { return Tokens{First: s.LastToken + 1, Count: n} }
		const all = MaxGrants + 1
		ask := func(ticket uint64, n uint32, wait, keep int64) AcquireResult {
			return s.Acquire(Acquire{Name: "a", Weight: n, Capacity: all, TTL: 60 * second, Wait: wait, Keep: keep, Ticket: ticket}, 0, next(2), all, &fx)
		}
		first := ask(1, all, 0, 0)
		for i := range uint64(tokens) {
			ask(i+2, 1, 3600*second, 0)
		}
		const away = 1000
		ask(away, 1, 0, 7200*second)
		s.Detach(away, 0, second)
		s.Release(first.Token, second, next(tokens), &fx)
		if len(fx.Grants) != tokens || fx.Called != away || s.Queue.Places[0].GiveUp != 61*second {
			t.Errorf("%d tokens: %d grants, called %d: %+v", tokens, len(fx.Grants), fx.Called, s.Queue.Places[0])
		}
	}
}

// TestCalledAfterCancel: when the one ahead of a place whose caller is away leaves, its turn begins at
// once, if what it asks for is free.
func TestCalledAfterCancel(t *testing.T) {
	const second = 1_000_000_000
	s, fx := State{}, Effects{}
	next := func() Tokens { return Tokens{First: s.LastToken + 1, Count: 2} }
	for ticket, op := range []Acquire{{Weight: 2}, {Weight: 2, Wait: 3600 * second}, {Weight: 1, Keep: 7200 * second}, {Weight: 1, Wait: 3600 * second}} {
		op.Name, op.Capacity, op.TTL, op.Ticket = "a", 3, 7200*second, uint64(ticket)
		if ticket == 2 {
			op.TTL = 60 * second
		}
		s.Acquire(op, 0, next(), 10, &fx)
	}
	s.Detach(2, 0, second)
	s.Cancel(1, second)
	if at, ok := s.NextWake(second); !ok || at != second {
		t.Errorf("the next wake is at %d %v", at, ok)
	}
	if s.Expire(second, next(), &fx); fx.Called != 2 {
		t.Errorf("called %d", fx.Called)
	}
	if at, ok := s.NextWake(second); !ok || at != 61*second {
		t.Errorf("the next wake is at %d %v", at, ok)
	}
	if s.Expire(61*second, next(), &fx); len(fx.Grants) != 1 {
		t.Errorf("granted %+v", fx.Grants)
	}
}
