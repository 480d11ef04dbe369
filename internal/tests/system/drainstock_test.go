//go:build system

package system

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// stockSerf joins the stock serf program to a pool, and returns what asks it to do
// something.
func stockSerf(t *testing.T, join *testNode) (ask func(args ...string) string) {
	t.Helper()
	serf, err := exec.LookPath("serf")
	if err != nil {
		t.Fatalf("%v: install Debian's package serf", err)
	}
	gossip, rpc := newPort(t), newPort(t)
	agent := exec.CommandContext(t.Context(), serf, "agent", "-node=stock", "-bind="+gossip, "-rpc-addr="+rpc, "-profile=local", "-join="+join.gossip)
	var said strings.Builder
	agent.Stdout, agent.Stderr = &said, &said
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
		if t.Failed() {
			t.Logf("serf said:\n%s", said.String())
		}
	})
	return func(args ...string) string {
		out, _ := exec.CommandContext(t.Context(), serf, append([]string{args[0], "-rpc-addr=" + rpc}, args[1:]...)...).CombinedOutput()
		return string(out)
	}
}

// TestDrainStockSerf drains a node by an event of the stock serf program, takes
// that back, and has events that are old or for nobody do nothing. A query of the
// program is answered by every node.
func TestDrainStockSerf(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false)
	n1, n2 := c.nodes[0], c.nodes[1]
	ask := stockSerf(t, n1)
	eventually(t, "serf lists all members", func() bool { return strings.Count(ask("members", "-status=alive"), "\n") == 4 })
	// event says something again when nothing comes of it: gossip may lose it, hand
	// it to a node so late that it counts as old, or find no leader.
	event := func(name, payload, until string, ok func() bool) {
		t.Helper()
		var said time.Time
		eventually(t, until, func() bool {
			if time.Since(said) > 7*time.Second {
				said = time.Now()
				if out := ask("event", name, payload); !strings.Contains(out, "dispatched") {
					t.Fatalf("serf event says %q", out)
				}
			}
			return ok()
		})
	}
	phase := func(n *testNode, want clusterpb.Phase) func() bool {
		return func() bool {
			m := n.stands(n1)
			return m.GetMember().GetPhase() == want && (want != clusterpb.Phase_PHASE_DRAINED || m.RowsOwned+m.RowsStandby == 0)
		}
	}
	active, drained := phase(n2, clusterpb.Phase_PHASE_ACTIVE), phase(n2, clusterpb.Phase_PHASE_DRAINED)

	eventually(t, "a query is answered by every node", func() bool {
		out := ask("query", "keystead-status")
		got := map[string]hintJSON{}
		for line := range strings.Lines(out) {
			var h hintJSON
			if _, text, ok := strings.Cut(line, "Response from '"); ok {
				if _, text, ok = strings.Cut(text, "': "); ok && json.Unmarshal([]byte(text), &h) == nil {
					got[h.Node] = h
				}
			}
		}
		for _, n := range c.nodes {
			h := got[n.id]
			if h.Phase != "active" || !h.Ready || h.Epoch == 0 || h.LeaseLeftMS <= 0 || h.RowsOwned != 256 || h.Leader == "" {
				t.Logf("%+v in %q", h, out)
				return false
			}
		}
		return len(got) == 3
	})

	event("keystead-drain", "n2", "n2 is drained", drained)
	event("keystead-undrain", "n2", "n2 is active", active)
	event("keystead-drain", "n2", "n2 is drained again", drained)

	// The events are in everybody's memory, and are handed to who joins.
	n2.kill()
	n2.flags = append(n2.flags[:2:2], "--join", n1.gossip)
	n2.run()
	c.ready(c.nodes...)

	lines := func() (warned int) {
		for _, n := range c.nodes {
			warned += strings.Count(n.err(), "an event names no member of the cluster")
		}
		return warned
	}
	for i, payload := range []string{"nobody", "", strings.Repeat("x", 300)} {
		event("keystead-drain", payload, "a node tells of an event for nobody", func() bool { return lines() > i })
	}
	event("keystead-drain", "n2", "n2 is drained once more", drained)
	if !strings.Contains(n2.err(), "applied an event") {
		t.Error("n2 says nothing of the event")
	}
}

// hintJSON is what a node answers to the query.
type hintJSON struct {
	Node        string `json:"node"`
	Phase       string `json:"phase"`
	Ready       bool   `json:"ready"`
	Epoch       uint64 `json:"epoch"`
	LeaseLeftMS int64  `json:"lease_left_ms"`
	RowsOwned   int    `json:"rows_owned"`
	RowsStandby int    `json:"rows_standby"`
	Leader      string `json:"leader"`
}
