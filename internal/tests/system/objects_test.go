package system

import (
	"regexp"
	"strings"
	"testing"
)

// What there is under a key, and in a cluster, is shown by any node; limits are made full and
// counters deleted, split ones too.
func TestObjects(t *testing.T) {
	t.Parallel()
	dev := start(t, nil, "dev", "--nodes", "2", "--grpc-addr", "127.0.0.1:0", "--admin-addr", "", "--hot-split", "off")
	eventually(t, "the cluster is ready", func() bool {
		select {
		case <-dev.done:
			t.Fatalf("it ended: %s%s", dev.out(), dev.err())
		default:
		}
		return strings.Contains(dev.out(), "Ctrl-C")
	})
	addr := regexp.MustCompile(`(?m)^  n1 +(\S+) `).FindStringSubmatch(dev.out())
	if addr == nil {
		t.Fatal(dev.out())
	}
	with := func(args ...string) string {
		t.Helper()
		return succeeds(t, append(args, "--addr", addr[1])...)
	}
	with("counter", "add", "alice", "6")
	with("limit", "check", "alice", "--limit", "20/1h", "--cost", "5")
	if got := with("limit", "refund", "alice", "2", "--limit", "20/1h"); !strings.HasPrefix(got, "refunded 17 of 20 left") {
		t.Error(got)
	}
	if got := with("limit", "check", "bob", "--limit", "20/1h", "--cost", "30", "--overdraft"); !strings.HasPrefix(got, "allowed  0 of 20 left, full in 1h30m") || !strings.HasSuffix(got, " (10 owed)\n") {
		t.Error(got)
	}
	with("limit", "reset", "bob")
	eventually(t, "all nodes know what there is of late", func() bool {
		return keystead(t, "key", "alice", "--addr", addr[1]).code == 0
	})
	got := with("key", "alice")
	for _, want := range []string{`owner +n[12]\n`, `standby +n[12]\n`, `counter +counter +\S+ +6 at version \d+\n`, `limit +limit +\S+ +3 spent at 20/1h0m0s, full in `} {
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if got := with("limit", "reset", "alice"); got != "full     3 had been spent\n" {
		t.Error(got)
	}
	for _, key := range []string{"bob", "carol", "dave"} {
		with("counter", "add", key)
	}
	if got := with("objects", "--kind", "counter"); strings.Count(got, "\n") != 4 || !strings.Contains(got, " alice ") {
		t.Error(got)
	}
	if got := with("objects", "--prefix", "bo", "--json"); strings.Count(got, "\n") != 1 || object(t, got)["key"] != "bob" {
		t.Error(got)
	}
	with("hot", "split", "bob", "--kind", "counter")
	if got := with("key", "bob"); !strings.Contains(got, "split into 2 parts") {
		t.Error(got)
	}
	for _, key := range []string{"alice", "bob"} {
		with("counter", "delete", key)
		if got := with("key", key); !strings.Contains(got, "objects  none") {
			t.Error(got)
		}
	}
	if v := object(t, with("counter", "delete", "alice", "--json")); v["applied"] != false {
		t.Error(v)
	}
	refuses(t, exitUsage, `--kind "x": choose limit, counter, lock, register, semaphore, once, election, barrier, group or admission`, "objects", "--kind", "x", "--addr", addr[1])
}
