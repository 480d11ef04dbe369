package owner

import (
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
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
