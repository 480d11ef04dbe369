package system

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A group as a shell script uses it, and how long a member is listed that is killed: its TTL at most.
func TestGroupSteps(t *testing.T) {
	do := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(succeeds(t, append([]string{"group"}, args...)...))
	}
	const ttl = 2 * time.Second
	is := func(want string) {
		t.Helper()
		eventually(t, want, func() bool { return do("list", "web", "--metadata") == want })
	}
	a := start(t, nil, "group", "join", "web", "--metadata", "at a", "--id", "a", "--ttl", ttl.String())
	is("at a")
	b := start(t, nil, "group", "join", "web", "--metadata", "at b", "--id", "b", "--ttl", ttl.String(), "--", "sleep", "600")
	is("at a\nat b")
	v := object(t, succeeds(t, "group", "list", "web", "--json"))
	token := v["members"].([]any)[0].(map[string]any)["token"].(string)
	do("update", "web", "moved", "--token", token)
	if got := do("watch", "web", "--once"); !strings.Contains(got, `  2  a="moved"  b="at b"`) {
		t.Error(got)
	}
	do("verify", "web", "--token", token)
	began := time.Now()
	a.signal(t, syscall.SIGKILL)
	is("at b")
	took := time.Since(began)
	t.Logf("a member with a TTL of %s was listed for %s after its kill", ttl, took)
	if took > ttl+patience/2 {
		t.Error("for too long")
	}
	refuses(t, 76, "its membership is over", "group", "leave", "web", "--token", token)
	again := start(t, nil, "group", "join", "web", "--metadata", "later", "--id", "b", "--ttl", ttl.String())
	b.ends(t, 76)
	is("later")
	v = object(t, succeeds(t, "group", "list", "web", "--json"))
	do("leave", "web", "--token", fmt.Sprint(v["members"].([]any)[0].(map[string]any)["token"]))
	is("later") // it joins again
	again.signal(t, syscall.SIGTERM)
	is("")
	refuses(t, 2, "KEY is missing", "group", "join")
}
