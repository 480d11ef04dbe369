package system

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// An election as a shell script uses it, and how long nobody leads when the leader is killed: its TTL
// at most.
func TestElectionSteps(t *testing.T) {
	do := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(succeeds(t, append([]string{"election"}, args...)...))
	}
	const ttl = 2 * time.Second
	a := start(t, nil, "election", "campaign", "mains", "--value", "at a", "--holder", "a", "--ttl", ttl.String())
	leads := func(candidate string) (token string) {
		t.Helper()
		eventually(t, candidate+" leads", func() bool {
			v := object(t, succeeds(t, "election", "show", "mains", "--json"))
			l, _ := v["leader"].(map[string]any)
			if l == nil || l["candidate"] != candidate {
				return false
			}
			token = l["token"].(string)
			return true
		})
		return token
	}
	first := leads("a")
	refuses(t, 75, "a has led for", "election", "campaign", "mains", "--try")
	do("proclaim", "mains", "moved", "--token", first)
	if got := do("observe", "mains", "--once"); !strings.Contains(got, "a  token "+first+"  \"moved\"") {
		t.Error(got)
	}
	b := start(t, nil, "election", "campaign", "mains", "--holder", "b", "--ttl", ttl.String(), "--", "sleep", "600")
	began := time.Now()
	a.signal(t, syscall.SIGKILL)
	second := leads("b")
	took := time.Since(began)
	t.Logf("after the kill of a leader with a TTL of %s the next one led within %s", ttl, took)
	if took > ttl+patience/2 {
		t.Errorf("the next one led after %s", took)
	}
	refuses(t, 76, "its term is over", "election", "proclaim", "mains", "late", "--token", first)
	do("resign", "mains", "--revoke", "--token", second)
	b.ends(t, 76)
	if got := do("show", "mains"); got != "nobody leads" {
		t.Error(got)
	}
	refuses(t, 2, "KEY is missing", "election", "campaign")
}
