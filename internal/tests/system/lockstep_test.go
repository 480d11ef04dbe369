package system

import (
	"strconv"
	"strings"
	"testing"
)

// A script holds a lock over several commands: the token that it was given renews and
// releases it, and nobody else gets it meanwhile.
func TestLockBySteps(t *testing.T) {
	t.Parallel()
	token := strings.TrimSpace(succeeds(t, "lock", "acquire", "steps", "--ttl", "30s", "--holder", "script"))
	first, err := strconv.ParseUint(token, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if h, _ := inspect(t, "steps")["holder"].(map[string]any); h["token"] != token || h["holder"] != "script" {
		t.Errorf("after acquire: %v", h)
	}
	if got := succeeds(t, "lock", "inspect", "steps"); !strings.HasPrefix(got, "held by script for ") {
		t.Errorf("inspect shows %q", got)
	}
	refuses(t, 75, `"steps" has been held by script for `, "lock", "acquire", "steps", "--try")
	refuses(t, 75, `"steps" has been held by script for `, "lock", "steps", "--try", "--wait", "1h", "--", "true")
	if got := succeeds(t, "lock", "renew", "steps", "--token", token, "--ttl", "9m"); !strings.HasPrefix(got, "renewed, free in ") {
		t.Errorf("renew prints %q", got)
	}
	if h, _ := inspect(t, "steps")["holder"].(map[string]any); number(t, h["ttl"]) < 60 {
		t.Errorf("after renew: %v", h)
	}
	if got := succeeds(t, "lock", "release", "steps", "--token", token); got != "released\n" {
		t.Errorf("release prints %q", got)
	}
	const lost = "does not hold the lock on \"steps\": it was lost, or released before"
	refuses(t, 76, "token "+token+" "+lost, "lock", "renew", "steps", "--token", token)
	refuses(t, 76, lost, "lock", "release", "steps", "--token", token)

	v := object(t, succeeds(t, "lock", "acquire", "steps", "--json", "--try"))
	hasFields(t, v, "token", "ttl", "holder")
	second, err := strconv.ParseUint(v["token"].(string), 10, 64)
	if err != nil || second <= first {
		t.Errorf("token %v after %d", v["token"], first)
	}
	refuses(t, 76, "has held it for ", "lock", "renew", "steps", "--token", token)
	next := v["token"].(string)
	if v := object(t, succeeds(t, "lock", "renew", "steps", "--token", next, "--json")); v["renewed"] != true || number(t, v["ttl"]) < 30 {
		t.Errorf("renew: %v", v)
	}
	if v := object(t, succeeds(t, "lock", "release", "steps", "--token", next, "--json")); v["released"] != true {
		t.Errorf("release: %v", v)
	}
	if r := keystead(t, "lock", "release", "steps", "--token", next, "--json"); r.code != 76 || r.out != "{\"released\":false}\n" {
		t.Errorf("a second release: %+v", r)
	}
}

func TestLockStepsMisuse(t *testing.T) {
	t.Parallel()
	refuses(t, exitUsage, "takes KEY", "lock", "acquire")
	refuses(t, exitUsage, "--token is missing", "lock", "renew", "k")
	refuses(t, exitUsage, "--token is missing", "lock", "release", "k")
	refuses(t, exitUsage, `--token "x": write the number`, "lock", "release", "k", "--token", "x")
	refuses(t, exitUsage, "--ttl 1ms: choose 300ms to 24h", "lock", "acquire", "k", "--ttl", "1ms")
	// A key that is called like a step is not taken for one by mistake.
	refuses(t, exitUsage, "write `keystead lock -- release COMMAND`", "lock", "release", "--", "true")
	if got := succeeds(t, "lock", "--", "release", "sh", "-c", "echo $KEYSTEAD_LOCK_KEY"); got != "release\n" {
		t.Errorf("the key is %q", got)
	}
}
