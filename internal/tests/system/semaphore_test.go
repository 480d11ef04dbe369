package system

import (
	"fmt"
	"strings"
	"testing"
)

// A semaphore as a shell script uses it: the token and nothing else on standard output, and exit
// codes to branch on.
func TestSemaphoreSteps(t *testing.T) {
	do := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(succeeds(t, append([]string{"semaphore"}, args...)...))
	}
	first := do("acquire", "sem", "--capacity", "3", "-n", "2", "--ttl", "1m", "--holder", "a")
	refuses(t, 75, "no 2 permits free", "semaphore", "acquire", "sem", "-n", "2", "--try")
	refuses(t, 1, "the capacity is 3, not 4", "semaphore", "acquire", "sem", "--capacity", "4", "--try")
	second := do("acquire", "sem", "--try", "--holder", "b")
	if first >= second && len(first) == len(second) {
		t.Errorf("token %s after %s", second, first)
	}
	if got := do("inspect", "sem"); !strings.Contains(got, "3 of 3 permits held") || !strings.Contains(got, "2 by a for") {
		t.Error(got)
	}
	do("renew", "sem", "--token", first, "--ttl", "2m")
	do("verify", "sem", "--token", first)
	do("set-capacity", "sem", "5")
	if got := do("sem", "--try", "-n", "2", "--", "sh", "-c", "echo $KEYSTEAD_FENCING_TOKEN"); got <= second {
		t.Errorf("the command had token %s after %s", got, second)
	}
	do("revoke", "sem", "--token", second)
	refuses(t, 76, "", "semaphore", "verify", "sem", "--token", second)
	do("release", "sem", "--token", first)
	refuses(t, 76, "", "semaphore", "release", "sem", "--token", first)
	v := object(t, succeeds(t, "semaphore", "inspect", "sem", "--json"))
	hasFields(t, v, "capacity", "capacity_set", "held", "delayed", "holders", "holding", "waiters", "waiting", "epoch")
	if fmt.Sprint(v["capacity"]) != "5" || v["capacity_set"] != true || fmt.Sprint(v["held"]) != "0" {
		t.Errorf("%v", v)
	}
	if got := succeeds(t, "key", "sem"); !strings.Contains(got, "0 of 5 permits held") {
		t.Error(got)
	}
	refuses(t, 2, "--permits 4", "semaphore", "sem", "--capacity", "3", "-n", "4", "--", "true")
	refuses(t, 2, "COMMAND is missing", "semaphore", "sem")
}
