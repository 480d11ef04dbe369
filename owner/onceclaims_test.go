package owner

import (
	"fmt"
	"math"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/once"
)

// Claims take no more memory than there is, whatever they show.
func TestClaimsOfTurnsAreBounded(t *testing.T) {
	s, _ := lost(t, func(c *Config) { c.MaxBytes = 1 << 20 })
	now, refused := cameAt+second, 0
	for i := range 40_000 {
		ref := Ref{Key: fmt.Sprint(i), Name: "once"}
		_, err := s.RenewOnce(now, ref, granted(2, 1), second, TurnClaim{Left: second})
		if reason(err) == failure.StoreFull {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if all := s.Stats(); refused == 0 || s.bytes.Load() > 1<<20*5/4 {
		t.Errorf("%d of 40,000 were refused; %d bytes, %+v", refused, s.bytes.Load(), all)
	}
}

// A claim that says that it has for ever is one of a holder like others.
func TestCompleteWithALongClaim(t *testing.T) {
	s, _ := lost(t, nil)
	a := must(s.CompleteOnce(cameAt+second, order, noID, granted(2, 1), []byte("r"), once.DefaultKeep, TurnClaim{Left: math.MaxInt64}))
	if !a.OK {
		t.Errorf("%+v", a)
	}
}
