package system

import (
	"os"
	"path/filepath"
	"testing"
)

// Every command takes several addresses, and asks the first node that answers.
func TestSeveralAddresses(t *testing.T) {
	t.Parallel()
	const gone = "127.0.0.1:1"
	n := startNode(t, nil, "dev")
	list := gone + "," + n.grpc
	for _, args := range [][]string{
		{"counter", "add", "addrs"}, {"limit", "check", "addrs", "--limit", "5/1m"}, {"lock", "addrs", "--inspect"}, {"id"},
		{"status"}, {"members"}, {"ring"}, {"owner", "addrs"}, {"hot"},
	} {
		succeeds(t, append(args, "--addr", list)...)
	}
	succeeds(t, "lock", "addrs", "--addr", list, "--", "true")
	if got := succeeds(t, "counter", "get", "addrs", "--addr", n.grpc); got != "1\n" {
		t.Errorf("the counter is %q after one add", got)
	}
	for _, args := range [][]string{{"counter", "add", "addrs"}, {"status"}, {"lock", "addrs", "--", "true"}} {
		list := gone + ",127.0.0.1:2"
		if args[0] == "lock" {
			args = []string{"lock", "addrs", "--addr", list, "--", "true"}
		} else {
			args = append(args, "--addr", list)
		}
		refuses(t, exitError, "cannot reach a node: "+gone+": dial tcp "+gone+": connect: connection refused; 127.0.0.1:2: ", args...)
	}
}

// A command outlives the node that it began with.
func TestCommandOutlivesItsNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false, "--max-lock-ttl", "10s")
	first, second := c.nodes[0], c.nodes[1]
	key := c.keys(1)[second.id][0]
	list := first.grpc + "," + second.grpc
	file := filepath.Join(t.TempDir(), "go-on")
	p := start(t, nil, append([]string{"lock", key, "--ttl", "6s", "--addr", list, "--"}, untilGone(file)...)...)
	begins(t, p)
	watch := start(t, nil, "ring", "--watch", "--addr", list)
	eventually(t, "the watch shows the ring", func() bool { return watch.out() != "" })
	before := len(watch.out())
	first.kill()
	if got := succeeds(t, "counter", "add", key, "--timeout", "20s", "--addr", list); got != "1\n" {
		t.Errorf("the counter is %q", got)
	}
	eventually(t, "the watch goes on", func() bool { return len(watch.out()) > before })
	eventually(t, "the lock is renewed by another node", func() bool {
		v := object(t, succeeds(t, "lock", key, "--inspect", "--json", "--addr", second.grpc))
		h, _ := v["holder"].(map[string]any)
		return h != nil && number(t, h["held"]) > 7
	})
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.ends(t, 0)
}
