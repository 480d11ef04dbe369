//go:build system

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// The stock serf program joins the pool and sees our members with their tags. It
// becomes no member of the ring, and is there again after it was killed.
func TestClusterStockSerf(t *testing.T) {
	t.Parallel()
	serf, err := exec.LookPath("serf")
	if err != nil {
		t.Fatalf("%v: install Debian's package serf", err)
	}
	c := newCluster(t, 2, false)
	gossip, rpc := newPort(t), newPort(t)
	agent := exec.CommandContext(t.Context(), serf, "agent", "-node=stock", "-bind="+gossip, "-rpc-addr="+rpc, "-profile=local", "-join="+c.nodes[0].gossip)
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
	ask := func(args ...string) string {
		out, _ := exec.CommandContext(t.Context(), serf, append([]string{args[0], "-rpc-addr=" + rpc}, args[1:]...)...).CombinedOutput()
		return string(out)
	}
	eventually(t, "serf lists all members, with our tags", func() bool {
		out := ask("members", "-status=alive", "-detailed")
		for _, want := range []string{"n1 ", "n2 ", "stock ", c.nodes[0].gossip, "ks=", "c=c"} {
			if !strings.Contains(out, want) {
				return false
			}
		}
		return true
	})
	eventually(t, "our nodes know it in gossip, and have no row for it", func() bool {
		_, members, err := c.nodes[1].look()
		if err != nil {
			return false
		}
		for _, m := range members {
			if m.Id == "stock" {
				return m.Member == nil
			}
		}
		return false
	})
	if out := ask("event", "keystead-test", "payload"); !strings.Contains(out, "dispatched") {
		t.Errorf("serf event says %q", out)
	}
	c.ready(c.nodes...) // and the stranger is not among them
	if out := ask("leave"); !strings.Contains(out, "Graceful leave complete") {
		t.Errorf("serf leave says %q", out)
	}
	c.ready(c.nodes...)
}
