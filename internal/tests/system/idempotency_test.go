package system

import (
	"strings"
	"syscall"
	"testing"
)

// TestIdempotencyKeysOverStarts: a lone node that was stopped in order, or started for the
// first time in an empty directory, knows which keys were used. One that was killed, or
// keeps nothing, does nothing under a key that it does not know until that can be no retry. With a
// store on disk, one that was killed knows them, too.
func TestIdempotencyKeysOverStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	buy := func(n *served, order string) []string {
		return []string{"counter", "add", "stock", "--addr", n.grpc, "--idempotency-key", order, "--", "-1"}
	}
	lone := func(args ...string) *served {
		return startNode(t, nil, "server", append([]string{"--id", "a"}, args...)...)
	}
	kept := func(t *testing.T, n *served, order, want string) {
		t.Helper()
		for range 2 {
			if got := strings.TrimSpace(succeeds(t, buy(n, order)...)); got != want {
				t.Errorf("%s: %s, want %s", order, got, want)
			}
		}
	}
	stored := []string{"--data-dir", t.TempDir(), "--durability", "always"}
	n := lone(stored...)
	kept(t, n, "order-1", "-1")
	n.signal(t, syscall.SIGKILL)
	n.ends(t, -1)
	n = lone(stored...)
	kept(t, n, "order-1", "-1")
	kept(t, n, "order-2", "-2")
	n.stop(t)
	n = lone("--data-dir", dir, "--durability", "none")
	kept(t, n, "order-1", "-1")
	refuses(t, 2, "used for another request", "counter", "add", "stock", "--addr", n.grpc, "--idempotency-key", "order-1", "--", "-2")
	n.stop(t)
	n = lone("--data-dir", dir, "--durability", "none")
	kept(t, n, "order-1", "-1")
	kept(t, n, "order-2", "-2")
	n.signal(t, syscall.SIGKILL)
	n.ends(t, -1)
	for what, args := range map[string][]string{"after a kill": {"--data-dir", dir, "--durability", "none"}, "without a directory": nil} {
		n := lone(args...)
		refuses(t, 1, "whether this idempotency key was used before is not known", buy(n, "order-2")...)
		if r := keystead(t, "counter", "get", "stock", "--addr", n.grpc); r.out != "0\n" { // it may say that it was lost
			t.Errorf("%s: the counter is %s", what, r.out)
		}
		n.stop(t)
	}
	n = lone("--data-dir", dir, "--durability", "none", "--request-id-window", "1s") // what is not known is over soon
	eventually(t, "the key to be used", func() bool {
		r := keystead(t, buy(n, "order-3")...)
		return r.code == 0 && strings.TrimSpace(r.out) == "-1"
	})
}

// TestIdempotencyKeyOfEachCommand: the same command under the same key acts once.
func TestIdempotencyKeyOfEachCommand(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "server", "--id", "a", "--data-dir", t.TempDir())
	run := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(succeeds(t, append(args, "--addr", n.grpc)...))
	}
	limit := func(verb string, more ...string) []string {
		return append([]string{"limit", verb, "k", "--limit", "10/24h", "--algorithm", "fixed-window"}, more...)
	}
	left := func() float64 {
		return number(t, object(t, run(limit("peek", "--json")...)+"\n")["remaining"])
	}
	key := func(of string) []string { return []string{"--idempotency-key", of} }
	for _, tc := range []struct {
		key  string
		args []string
		left float64
	}{
		{"check", limit("check", "--cost", "4"), 6},
		{"give back", limit("check", "--refund", "1"), 7},
		{"refund", []string{"limit", "refund", "k", "2", "--limit", "10/24h", "--algorithm", "fixed-window"}, 9},
		{"reset", []string{"limit", "reset", "k"}, 10},
	} {
		for range 2 {
			run(append(tc.args, key(tc.key)...)...)
		}
		if got := left(); got != tc.left {
			t.Errorf("%q twice: %v left, want %v", tc.args, got, tc.left)
		}
	}
	run(limit("check")...)
	run(append([]string{"limit", "reset", "k"}, key("reset")...)...)
	if got := left(); got != 9 {
		t.Errorf("a reset of before: %v left", got)
	}
	refuses(t, exitUsage, "exclude each other", append(limit("check", "--anywhere"), key("x")...)...)
	for _, verb := range []string{"reset", "delete"} {
		run("counter", "add", "k", "5")
		first := run(append([]string{"counter", verb, "k"}, key(verb)...)...)
		run("counter", "add", "k", "3")
		if again := run(append([]string{"counter", verb, "k"}, key(verb)...)...); again != first || first == "0" {
			t.Errorf("%s prints %s, and then %s", verb, first, again)
		}
		if got := run("counter", "get", "k"); got != "3" {
			t.Errorf("after a second %s: %s", verb, got)
		}
		run("counter", "delete", "k")
	}
	acquire := append([]string{"lock", "acquire", "k", "--ttl", "1m"}, key("run-7")...)
	token := run(acquire...)
	if again := run(acquire...); again != token {
		t.Errorf("token %s after %s", again, token)
	}
	for range 2 {
		if got := run(append([]string{"lock", "release", "k", "--token", token}, key("end-7")...)...); got != "released" {
			t.Errorf("release: %s", got)
		}
	}
	refuses(t, 76, "the grant under this IdempotencyKey is over", append(acquire, "--addr", n.grpc)...)
	token = run("lock", "acquire", "k", "--ttl", "1m")
	ticket := append([]string{"lock", "acquire", "k", "--ttl", "1m", "--ticket", "10m"}, key("job-8")...)
	for range 2 {
		refuses(t, 77, "0 in the queue before you, and your place stands for 10m: run the same command again", append(ticket, "--addr", n.grpc)...)
	}
	run("lock", "release", "k", "--token", token)
	refuses(t, 75, "", "lock", "acquire", "k", "--try", "--addr", n.grpc)
	if next := run(ticket...); next == token {
		t.Errorf("token %s again", next)
	}
	refuses(t, exitUsage, "--ticket needs --idempotency-key", "lock", "acquire", "k", "--ticket", "10m")
}
