package system

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// inPool returns the flags of a node of a cluster on free ports.
func inPool(id, cluster string, more ...string) []string {
	return append([]string{"--id", id, "--cluster-id", cluster, "--raft-addr", "127.0.0.1:0", "--gossip-addr", "127.0.0.1:0", "--gossip-profile", "local"}, more...)
}

// gossipAddr returns where a node gossips.
func (n *served) gossipAddr(t *testing.T) string {
	t.Helper()
	return object(t, succeeds(t, "status", "--json", "--addr", n.grpc))["gossip_addr"].(string)
}

// A node that waits for its cluster says so, and why: in its status and its log, when it
// is asked whether it is ready, and to its callers, at once.
func TestWaitingForTheCluster(t *testing.T) {
	t.Parallel()
	prod := startNode(t, nil, "server", inPool("n1", "prod", "--bootstrap")...)
	succeeds(t, "status", "--wait", "20s", "--addr", prod.grpc)
	for name, tc := range map[string]struct {
		args []string
		why  string
	}{
		"founders":      {inPool("n1", "new", "--founders", "n1,n2,n3"), "waiting for founders n2, n3"},
		"other cluster": {inPool("x", "other", "--join", prod.gossipAddr(t)), `n1 is of cluster "prod", this node is of "other"`},
		"nobody there":  {inPool("n1", "new", "--join", "127.0.0.1:1"), "nobody at --join 127.0.0.1:1 answers"},
		"not told":      {inPool("n1", "new"), "it was told neither to make one (--bootstrap, --founders) nor whom to --join"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, nil, "server", tc.args...)
			var st result
			eventually(t, "its status has the reason", func() bool {
				st = keystead(t, "status", "--exit-code", "--addr", n.grpc)
				return strings.Contains(st.out, "yet: "+tc.why)
			})
			cluster := tc.args[slices.Index(tc.args, "--cluster-id")+1]
			if st.code != exitUnhealthy || strings.Contains(st.out, "alone") || !strings.Contains(st.out, `is no member of the cluster "`+cluster+`"`) {
				t.Errorf("the status: %d %s", st.code, st.out)
			}
			eventually(t, "its log has it", func() bool {
				return strings.Contains(strings.ReplaceAll(n.err(), `\"`, `"`), `"msg":"this node waits for its cluster","node":"`+n.id+`","cluster":"`+cluster+`","why":"`+tc.why)
			})
			if code, text := n.get(t, "/readyz"); code != 503 || !strings.Contains(text, tc.why) {
				t.Errorf("/readyz: %d %s", code, text)
			}
			began := time.Now()
			refuses(t, 1, tc.why, "counter", "add", "k", "--addr", n.grpc)
			if took := time.Since(began); took > patience {
				t.Errorf("the call took %s", took)
			}
			if strings.Contains(n.err(), `"error":null`) || strings.Contains(n.err(), "<nil>") {
				t.Errorf("its log has an error that is none: %s", n.err())
			}
			n.stop(t)
		})
	}
}

// In a grace period `lock` says that it waits, and for how long, and keeps to --wait.
func TestLockInGrace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := inPool("n1", "c", "--bootstrap", "--data-dir", dir, "--max-lock-ttl", "12s")
	n := startNode(t, nil, "server", args...)
	succeeds(t, "status", "--wait", "20s", "--addr", n.grpc)
	n.signal(t, syscall.SIGKILL)
	n.ends(t, -1)
	n = startNode(t, nil, "server", args...)
	succeeds(t, "status", "--wait", "20s", "--addr", n.grpc)
	for _, wait := range []string{"0", "1s"} {
		r := keystead(t, "lock", "job", "--wait", wait, "--addr", n.grpc, "--", "true")
		if r.code != exitNotAcquired || !strings.Contains(r.err, `keystead: what was kept of "job" was lost, and the lock may still be held: it is granted to nobody for another `) {
			t.Errorf("--wait %s: %d %s", wait, r.code, r.err)
		}
	}
	r := keystead(t, "counter", "get", "k", "--addr", n.grpc)
	if r.out != "0\n" || !strings.HasPrefix(r.err, "keystead: what was kept of the key was lost in epoch ") {
		t.Errorf("a counter: %+v", r)
	}
	waits := start(t, nil, "lock", "job", "--addr", n.grpc, "--", "echo", "granted")
	eventually(t, "it says that it waits", func() bool { return strings.Contains(waits.err(), "; waiting\n") })
	select {
	case <-waits.done:
	case <-time.After(2 * patience):
	}
	waits.ends(t, 0)
	if waits.out() != "granted\n" || strings.Count(waits.err(), "waiting") != 1 {
		t.Errorf("it prints %q and says %q", waits.out(), waits.err())
	}
	n.stop(t)
}
