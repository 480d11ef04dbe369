package owner

import (
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// TestEndedClaimsAreNotForgotten: in the grace period, what ended is remembered, whatever is done to
// the object that is left of it.
func TestEndedClaimsAreNotForgotten(t *testing.T) {
	for what, between := range map[string]func(s *Store) error{
		"set capacity": func(s *Store) error { _, err := s.SetCapacity(cameAt+2*second, pool, noID, 0); return err },
		"another kind": func(s *Store) error {
			_, err := s.Add(cameAt+2*second, pool, noID, counter.AddOp{Delta: 1})
			if reason(err) == failure.KindMismatch {
				return nil
			}
			return err
		},
	} {
		s, _ := lost(t, nil)
		token := granted(3, 1)
		claim := func() HeldAnswer {
			return must(s.ReclaimPermits(cameAt+second, pool, token, 10*second, HoldClaim{Holder: "a", Weight: 1, Capacity: 3, Left: 5 * second}))
		}
		if a := claim(); !a.Reclaimed {
			t.Fatalf("%+v", a)
		}
		if r := must(s.ReleasePermits(cameAt+second, pool, noID, token)); !r.Released {
			t.Fatal("not released")
		}
		if err := between(s); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if a := claim(); a.OK {
			t.Errorf("%s: one that was released came back: %+v", what, a)
		}
	}
}

// TestUpdateThatWasHeldUp: an attempt of an Update that comes after a later Update brings nothing
// back, whether or not the first one was answered.
func TestUpdateThatWasHeldUp(t *testing.T) {
	s := newStore(t, nil)
	a, _ := permitsOf(t, s, 0, noID, wants("a", 1, 1, 0))
	updateHeldUp(t, func(id reqid.ID, to string) (HeldAnswer, error) {
		return s.UpdatePermits(second, pool, id, a.Token, []byte(to))
	}, func() HeldAnswer { return must(s.VerifyPermits(1, pool, a.Token)) })
	l, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
	updateHeldUp(t, func(id reqid.ID, to string) (HeldAnswer, error) {
		return s.UpdateLock(second, door, id, l.Token, []byte(to))
	}, func() HeldAnswer { return must(s.VerifyLock(1, door, l.Token)) })
}

func updateHeldUp(t *testing.T, update func(id reqid.ID, to string) (HeldAnswer, error), verify func() HeldAnswer) {
	t.Helper()
	first, second := retry(1, 0), retry(2, 0)
	if v, err := update(first, "one"); err != nil || !v.OK || v.Replayed || string(v.Holding.Metadata) != "one" {
		t.Fatalf("%+v %v", v, err)
	}
	if v, err := update(second, "two"); err != nil || !v.OK {
		t.Fatalf("%+v %v", v, err)
	}
	if v, err := update(first, "one"); err != nil || !v.OK || !v.Replayed {
		t.Errorf("one that was answered: %+v %v", v, err)
	}
	if _, err := update(first, "other"); reason(err) != failure.RequestIDReused {
		t.Errorf("another under its id: %v", err)
	}
	third := retry(4, 0)
	third.Settled = 4
	if v, err := update(third, "three"); err != nil || !v.OK {
		t.Fatalf("%+v %v", v, err)
	}
	if _, err := update(retry(3, 0), "late"); reason(err) != failure.RequestTooOld {
		t.Errorf("one of which its caller wants to know nothing any more: %v", err)
	}
	if v := verify(); string(v.Holding.Metadata) != "three" {
		t.Errorf("%q", v.Holding.Metadata)
	}
}
