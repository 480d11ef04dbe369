package system

import (
	"strings"
	"syscall"
	"testing"
)

// TestIdempotencyKeysOverStarts: a lone node that was stopped in order, or started for the
// first time in an empty directory, knows which keys were used. One that was killed, or
// keeps nothing, does nothing under a key that it does not know until that can be no retry.
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
	n := lone("--data-dir", dir)
	kept(t, n, "order-1", "-1")
	refuses(t, 2, "used for another request", "counter", "add", "stock", "--addr", n.grpc, "--idempotency-key", "order-1", "--", "-2")
	n.stop(t)
	n = lone("--data-dir", dir)
	kept(t, n, "order-1", "-1")
	kept(t, n, "order-2", "-2")
	n.signal(t, syscall.SIGKILL)
	n.ends(t, -1)
	for what, args := range map[string][]string{"after a kill": {"--data-dir", dir}, "without a directory": nil} {
		n := lone(args...)
		refuses(t, 1, "whether this idempotency key was used before is not known", buy(n, "order-2")...)
		if r := keystead(t, "counter", "get", "stock", "--addr", n.grpc); r.out != "0\n" { // it may say that it was lost
			t.Errorf("%s: the counter is %s", what, r.out)
		}
		n.stop(t)
	}
	n = lone("--data-dir", dir, "--request-id-window", "1s") // what is not known is over soon
	eventually(t, "the key to be used", func() bool {
		r := keystead(t, buy(n, "order-3")...)
		return r.code == 0 && strings.TrimSpace(r.out) == "-1"
	})
}
