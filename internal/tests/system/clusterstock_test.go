//go:build system

package system

import (
	"encoding/json"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
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
		_, members, err := c.nodes[1].status()
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

// Agents of the stock serf program tell of our members at addresses where nobody is, under
// names before theirs, and of nodes that there are none of. No call fails for it, no leader
// is lost, and nothing is left of it when they have gone.
func TestClusterForgedTags(t *testing.T) {
	t.Parallel()
	serf, err := exec.LookPath("serf")
	if err != nil {
		t.Fatalf("%v: install Debian's package serf", err)
	}
	c := newCluster(t, 3, false)
	ids := map[string]string{} // of raft, by node
	var agents []*exec.Cmd
	join := func(name string, tags map[string]string) (rpc string) {
		rpc = newPort(t)
		args := []string{"agent", "-node=" + name, "-bind=" + newPort(t), "-rpc-addr=" + rpc, "-profile=local", "-join=" + c.nodes[0].gossip}
		for k, v := range tags {
			args = append(args, "-tag", k+"="+v)
		}
		agent := exec.CommandContext(t.Context(), serf, args...)
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		agents = append(agents, agent)
		t.Cleanup(func() { _ = agent.Process.Kill(); _ = agent.Wait() })
		return rpc
	}
	rpc := join("watcher", nil)
	eventually(t, "the identities of all nodes are known", func() bool {
		out, _ := exec.CommandContext(t.Context(), serf, "members", "-rpc-addr="+rpc, "-format=json").Output()
		var list struct {
			Members []struct {
				Name string            `json:"name"`
				Tags map[string]string `json:"tags"`
			} `json:"members"`
		}
		_ = json.Unmarshal(out, &list)
		for _, m := range list.Members {
			if id := m.Tags["i"]; id != "" {
				ids[m.Name] = id
			}
		}
		return len(ids) == len(c.nodes)
	})
	for i, n := range c.nodes {
		for name, id := range map[string]string{"aa" + n.id: ids[n.id], "bb" + strconv.Itoa(i): "bb" + strconv.Itoa(i) + "/1"} {
			join(name, map[string]string{"ks": "1", "n": "1", "c": "c", "h": name, "g": "127.0.0.1:1", "r": "127.0.0.1:9", "i": id})
		}
	}
	eventually(t, "gossip has them all", func() bool {
		_, members, err := c.nodes[1].status()
		return err == nil && len(members) == len(c.nodes)+len(agents)
	})
	adds := func(what string) {
		failed := 0
		for i := range 60 {
			if _, err := c.nodes[i%3].add("key-"+strconv.Itoa(i), 1); err != nil {
				failed++
				t.Logf("%s: %v", what, err)
			}
			<-time.After(100 * time.Millisecond)
		}
		if failed > 0 {
			t.Errorf("%s: %d of 60 adds failed", what, failed)
		}
	}
	adds("agents are there")
	// Connections that were there go on for a while. New ones have to be made, too.
	leads, others := c.leader()
	leads.kill()
	calm := func() bool {
		for _, n := range others {
			if st, _, err := n.status(); err != nil || !st.Serving || st.Members != 2 || st.Changing || st.RowsUnprotected > 0 {
				return false
			}
		}
		return true
	}
	eventually(t, "the others have a leader and all rows", calm)
	for _, agent := range agents {
		_ = agent.Process.Kill()
	}
	adds = func(what string) {
		for i := range 20 {
			if _, err := others[i%2].add("key-"+strconv.Itoa(i), 1); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	adds("the leader has died, and the agents have")
	if !calm() {
		t.Error("the cluster is not calm when the agents have gone")
	}
}
