package system

import (
	"fmt"
	"strings"
	"testing"
)

// Who holds a lock, or permits, is printed as it is and when it has changed.
func TestHoldsAreWatched(t *testing.T) {
	if got := succeeds(t, "lock", "watch", "w", "--once"); !strings.HasSuffix(got, "  free\n") {
		t.Error(got)
	}
	token := strings.TrimSpace(succeeds(t, "lock", "acquire", "w", "--holder", "me", "--metadata", "m", "--ttl", "1m"))
	line := succeeds(t, "lock", "watch", "w", "--once")
	if !strings.HasSuffix(line, "  me token "+token+"\n") {
		t.Error(line)
	}
	v := object(t, succeeds(t, "lock", "watch", "w", "--once", "--json"))
	hasFields(t, v, "holders", "holding", "version", "epoch")
	version := strings.Fields(line)[0]
	if v["version"] != version || fmt.Sprint(v["holding"]) != "1" || fmt.Sprint(v["holders"]) != "[map[holder:me metadata:m token:"+token+"]]" {
		t.Error(v)
	}
	refuses(t, 3, "", "lock", "watch", "w", "--once", "--after", version, "--timeout", "300ms")
	refuses(t, 2, "INVALID", "lock", "watch", "w", "--once", "--after", "9223372036854775807")
	succeeds(t, "lock", "release", "w", "--token", token)
	if got := succeeds(t, "lock", "watch", "w", "--once", "--after", version); !strings.HasSuffix(got, "  free\n") {
		t.Error(got)
	}

	token = strings.TrimSpace(succeeds(t, "semaphore", "acquire", "w", "--capacity", "4", "-n", "3", "--holder", "me", "--ttl", "1m"))
	if got := succeeds(t, "semaphore", "watch", "w", "--once"); !strings.HasSuffix(got, "  3 of 4  me token "+token+" permits 3\n") {
		t.Error(got)
	}
	v = object(t, succeeds(t, "semaphore", "watch", "w", "--once", "--json"))
	hasFields(t, v, "capacity", "capacity_set", "held", "holders", "holding", "version", "epoch")
	if fmt.Sprint(v["held"], " of ", v["capacity"]) != "3 of 4" {
		t.Error(v)
	}
}
