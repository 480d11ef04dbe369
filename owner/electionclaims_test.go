package owner

import "testing"

// A leader whose term was over before the next one began does not lead again after a loss: not
// beside the later leader, and not when that has resigned.
func TestOutlivedLeaderStaysOver(t *testing.T) {
	s, _ := lost(t, nil)
	now := cameAt + second
	claims := func(token uint64) HeldAnswer {
		return must(s.ReclaimLeader(now, chair, token, 10*second, LeaderClaim{Candidate: "a", Left: 5 * second}))
	}
	older, later := granted(4, 9), granted(3, 1)
	if !claims(later).Reclaimed || !must(s.Resign(now, chair, noID, later)).Released {
		t.Fatal("the later one")
	}
	if a := claims(older); a.OK {
		t.Errorf("the older one leads again: %+v", a)
	}
	if must(s.VerifyLeader(now, chair, older)).OK {
		t.Error("it leads")
	}
}
