package system

import (
	"fmt"
	"strings"
	"testing"
)

// Barriers, phasers, latches and counters that are awaited, as a shell script uses them.
func TestBarrierSteps(t *testing.T) {
	do := func(args ...string) string { t.Helper(); return strings.TrimSpace(succeeds(t, args...)) }
	passed := make(chan string, 1)
	first := do("barrier", "arrive", "bar", "-n", "2", "--party", "a")
	go func() { passed <- do("barrier", "await", "bar", first) }()
	if again := do("barrier", "arrive", "bar", "-n", "2", "--party", "a"); again != first {
		t.Errorf("phase %s, then %s", first, again)
	}
	if got := do("barrier", "inspect", "bar"); !strings.Contains(got, "1 of 2 parties have arrived") || !strings.Contains(got, "a has arrived") {
		t.Error(got)
	}
	refuses(t, 75, "it was not so within 200ms", "barrier", "await", "bar", first, "--wait", "200ms")
	if got := do("barrier", "wait", "bar", "-n", "2"); got != first {
		t.Errorf("phase %s, then %s", first, got)
	}
	<-passed
	second := do("barrier", "arrive", "bar", "-n", "2")
	do("barrier", "break", "bar")
	refuses(t, 76, "BROKEN", "barrier", "await", "bar", second)
	refuses(t, 76, "LOST", "barrier", "await", "another-bar", second)
	refuses(t, 2, "--parties 0", "barrier", "wait", "bar")
	if got := do("key", "bar"); !strings.Contains(got, "0 of 2 parties have arrived") {
		t.Error(got)
	}

	do("phaser", "register", "pha", "--party", "a", "--ttl", "1m")
	do("phaser", "register", "pha", "--party", "b", "--ttl", "1m", "--drop")
	refuses(t, 75, "", "phaser", "wait", "pha", "--party", "a", "--wait", "200ms")
	do("phaser", "leave", "pha", "--party", "b")
	do("phaser", "wait", "pha", "--party", "a")
	refuses(t, 76, "NOT_REGISTERED", "phaser", "wait", "pha", "--party", "b")
	v := object(t, succeeds(t, "phaser", "inspect", "pha", "--json"))
	hasFields(t, v, "phase", "arrived", "parties", "phaser", "passed", "listed", "epoch")
	if fmt.Sprint(v["parties"]) != "1" || v["phaser"] != true {
		t.Errorf("%v", v)
	}

	for _, at := range []string{"eu", "us"} {
		do("phaser", "register", "tree-"+at, "--party", "a", "--ttl", "1m", "--parent", "tree")
	}
	go func() { passed <- do("phaser", "wait", "tree-eu", "--party", "a", "--wait", "1m") }()
	refuses(t, 76, "NOT_REGISTERED", "phaser", "wait", "tree-us", "--party", "b")
	do("phaser", "wait", "tree-us", "--party", "a", "--wait", "1m")
	<-passed
	if got := do("phaser", "inspect", "tree"); !strings.Contains(got, "0 of 2 parties have arrived") || !strings.Contains(got, "tree-eu is missing") {
		t.Error(got)
	}
	if got := do("phaser", "inspect", "tree-us"); !strings.Contains(got, "party of the phaser of tree\n") {
		t.Error(got)
	}
	for _, at := range []string{"eu", "us"} {
		do("phaser", "leave", "tree-"+at, "--party", "a")
	}

	if got := do("latch", "arrive", "lat", "-n", "2"); got != "shut" {
		t.Error(got)
	}
	refuses(t, 75, "", "latch", "await", "lat", "-n", "2", "--wait", "200ms")
	if got := do("latch", "arrive", "lat", "-n", "2"); got != "open" {
		t.Error(got)
	}
	do("latch", "await", "lat", "-n", "2")
	do("counter", "add", "wg", "1")
	refuses(t, 75, "", "counter", "await", "wg", "--at-most", "0", "--wait", "200ms")
	do("counter", "add", "wg", "--", "-1")
	if got := do("counter", "await", "wg", "--at-most", "0"); got != "0" {
		t.Error(got)
	}
}
