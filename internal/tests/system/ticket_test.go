//go:build system

package system

import (
	"strings"
	"testing"
)

// TestTicketsOfPermits: a script that asks for permits now and then keeps its place between two runs:
// nobody passes it, and it may leave.
func TestTicketsOfPermits(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "server", "--id", "a", "--data-dir", t.TempDir())
	args := func(verb string, more ...string) []string {
		return append([]string{"semaphore", verb, "db", "--addr", n.grpc}, more...)
	}
	run := func(args []string) string {
		t.Helper()
		return strings.TrimSpace(succeeds(t, args...))
	}
	job := func(key string, more ...string) []string {
		return args("acquire", append([]string{"--capacity", "2", "--ttl", "1m", "--idempotency-key", key}, more...)...)
	}
	const stands = "and your place stands for 10m: run the same command again"
	all := run(args("acquire", "-n", "2", "--capacity", "2", "--ttl", "1m"))
	for range 2 {
		refuses(t, 77, "0 in the queue before you, "+stands, job("job-7", "--ticket", "10m")...)
		refuses(t, 77, "1 in the queue before you, "+stands, job("job-8", "-n", "2", "--ticket", "10m", "--wait", "10ms")...)
	}
	run(args("release", "--token", all))
	refuses(t, 77, "1 in the queue before you, "+stands, job("job-8", "-n", "2", "--ticket", "10m")...)
	refuses(t, 75, "", args("acquire", "--try")...)
	one := run(job("job-7", "--ticket", "10m"))
	if again := run(job("job-7", "--ticket", "10m")); again != one || one == all {
		t.Errorf("token %s after %s, and %s before", again, one, all)
	}
	refuses(t, 77, "0 in the queue before you, "+stands, job("job-8", "-n", "2", "--ticket", "10m")...)
	refuses(t, 75, "", args("acquire", "--try")...)
	refuses(t, 75, "", job("job-8", "-n", "2", "--try")...)
	if other := run(args("acquire", "--try", "--ttl", "1m")); other == one {
		t.Errorf("token %s again", other)
	}
	for _, bad := range [][]string{{"--ticket", "10m"}, {"--ticket", "1ms", "--idempotency-key", "job-9"}, {"--ticket", "24h", "--wait", "1m", "--idempotency-key", "job-9"}} {
		refuses(t, exitUsage, "--ticket", args("acquire", bad...)...)
	}
}
