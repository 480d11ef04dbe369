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
