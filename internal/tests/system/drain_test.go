package system

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/admin"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// stands returns how a node stands as another one sees it.
func (n *testNode) stands(as *testNode) *clusterpb.MemberStatus {
	n.t.Helper()
	_, members, err := as.status()
	if err != nil {
		return nil
	}
	for _, m := range members {
		if m.Id == n.id {
			return m
		}
	}
	return nil
}

// drained waits until a node is drained, as another one sees it.
func (n *testNode) drained(as *testNode) {
	n.t.Helper()
	eventually(n.t, n.id+" is drained", func() bool {
		m := n.stands(as)
		return m.GetMember().GetPhase() == clusterpb.Phase_PHASE_DRAINED && m.RowsOwned+m.RowsStandby == 0
	})
}

// counts adds 1 to some keys at a node; keeps checks that the counts are all
// there, and that nothing was lost on the way.
func (c *testCluster) counts(at *testNode, keys []string) {
	c.t.Helper()
	for _, k := range keys {
		var err error
		if !poll(func() bool { _, err = at.add(k, 1); return err == nil }) {
			c.t.Fatalf("%s: %v", k, err)
		}
	}
}

func (c *testCluster) keeps(at *testNode, keys []string, want int64) {
	c.t.Helper()
	for _, k := range keys {
		ctx, cancel := context.WithTimeout(c.t.Context(), callTime)
		r, err := counterpb.NewCounterServiceClient(at.conn).Get(ctx, &counterpb.GetRequest{Key: k, Name: "n"})
		cancel()
		if err != nil || r.Value != want {
			c.t.Errorf("%s at %s is %d, want %d (%v)", k, at.id, r.GetValue(), want, err)
			return
		}
	}
}

// readyz returns what a node's /readyz says, "" if it does not answer.
func (n *testNode) readyz() string {
	_, body, _ := n.get("/readyz")
	return body
}

// TestDrainCommand drains nodes of three until the last one is left, and takes it
// back.
func TestDrainCommand(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false)
	n1, n2, n3 := c.nodes[0], c.nodes[1], c.nodes[2]
	addr := []string{"--addr", n1.grpc}
	with := func(args ...string) []string { return append(args, addr...) }
	keys := c.keys(10)["n2"]
	c.counts(n2, keys)

	refuses(t, exitError, `"n9" is no member of the cluster (UNKNOWN_NODE)`, with("drain", "n9")...)
	r := keystead(t, with("drain", "n2", "--wait", "--timeout", "30s")...)
	if r.code != 0 || r.out != "n2 is drained: it owns nothing and stands by for nothing\n" || !strings.Contains(r.err, "n2 is leaving: ") {
		t.Fatalf("%d %s%s", r.code, r.out, r.err)
	}
	d := object(t, succeeds(t, with("drain", "n2", "--json")...))
	hasFields(t, d, "node", "phase", "rows_owned", "rows_standby", "already", "incarnation", "epoch")
	if d["phase"] != "drained" || d["already"] != true || fmt.Sprint(d["rows_owned"], d["rows_standby"]) != "00" {
		t.Errorf("again: %v", d)
	}
	eventually(t, "n2 is not ready", func() bool { return strings.Contains(n2.readyz(), "draining") })
	c.keeps(n2, keys, 1) // it forwards
	if text := succeeds(t, with("status")...); !strings.Contains(text, "n2 is drained, and is given nothing; stop it, or take that back with `keystead undrain n2`") {
		t.Error(text)
	}
	if text := succeeds(t, with("ring")...); !strings.Contains(text, "n2 is drained.") {
		t.Error(text)
	}

	refuses(t, exitError, "with n3 drained, 1 of 3 voters would be left that are not, and a majority is 2", with("drain", "n3")...)
	if r := keystead(t, with("drain", "n3", "--wait", "--force")...); r.code != 0 {
		t.Fatalf("%d %s", r.code, r.err)
	}
	refuses(t, exitError, "nobody would be left to take what n1 owns (LAST_NODE)", with("drain", "n1", "--force")...)
	c.keeps(n3, keys, 1)

	if text := succeeds(t, with("undrain", "n2")...); !strings.Contains(text, "n2 is joining, and is given again what the ring gives it\n") {
		t.Error(text)
	}
	if text := succeeds(t, "undrain", "n3", "--addr", n3.grpc); !strings.Contains(text, "n3 is joining, ") {
		t.Error(text)
	}
	c.ready(n1, n2, n3)
	if text := succeeds(t, with("undrain", "n2")...); text != "n2 is active: it was not being drained\n" {
		t.Error(text)
	}
	c.keeps(n1, keys, 1)
}

// TestDrainAlone has a node that runs alone refuse.
func TestDrainAlone(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "server", "--id", "solo")
	refuses(t, exitError, "nobody would be left to take what solo owns (LAST_NODE)", "drain", "solo", "--addr", n.grpc)
	refuses(t, exitError, "UNKNOWN_NODE", "drain", "other", "--addr", n.grpc)
	if text := succeeds(t, "undrain", "solo", "--addr", n.grpc); text != "solo is active: it was not being drained\n" {
		t.Error(text)
	}
	n.stop(t)
}

// TestDrainGivesUp has a wait for a drain end that does not come to its end: the
// one that shall take the rows is stopped.
func TestDrainGivesUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false, "--lease-ttl", "20s")
	_, others := c.leader()
	mute, node := others[0], others[1]
	mute.signal(t, syscall.SIGSTOP)
	defer mute.signal(t, syscall.SIGCONT)
	r := keystead(t, "drain", node.id, "--wait", "--timeout", "2s", "--addr", node.grpc)
	if r.code != exitError || !strings.Contains(r.err, "not drained after 2s: "+node.id+" is leaving: ") || !strings.Contains(r.err, "take it back with `keystead undrain "+node.id) {
		t.Errorf("%d %s%s", r.code, r.out, r.err)
	}
}

// TestDrainAtSIGTERM stops a node that has state: it is drained first, and another
// has all of it.
func TestDrainAtSIGTERM(t *testing.T) {
	for _, who := range []string{"the leader", "a follower"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, false)
			leads, others := c.leader()
			victim, left := leads, others
			if who == "a follower" {
				victim, left = others[0], []*testNode{leads, others[1]}
			}
			keys := c.keys(20)[victim.id]
			c.counts(victim, keys)
			victim.signal(t, syscall.SIGTERM)
			victim.ends(t, 0)
			said := victim.err()
			for _, want := range []string{"draining: others take over", "drained: this node owns nothing"} {
				if !strings.Contains(said, want) {
					t.Errorf("it did not say %q", want)
				}
			}
			for _, n := range left {
				c.keeps(n, keys, 1)
			}
			// Nothing of the drain sticks to it.
			victim.flags = append(victim.flags[:2:2], "--join", c.addrs(victim))
			victim.run()
			c.ready(c.nodes...)
		})
	}
}

// TestDrainIsCutShort has a second signal, --drain-timeout and --drain-timeout 0
// end a drain that nobody takes part in.
func TestDrainIsCutShort(t *testing.T) {
	for _, tc := range []struct {
		name, timeout, says string
		signals             int
	}{
		{name: "second signal", timeout: "10m", says: "leaves before it was drained: it was told to", signals: 2},
		{name: "time", timeout: "1s", says: "leaves before it was drained: --drain-timeout is over", signals: 1},
		{name: "none", timeout: "0s", says: "stopping", signals: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, false, "--drain-timeout", tc.timeout, "--lease-ttl", "20s")
			_, others := c.leader()
			mute, node := others[0], others[1]
			mute.signal(t, syscall.SIGSTOP)
			defer mute.signal(t, syscall.SIGCONT)
			node.signal(t, syscall.SIGTERM)
			if tc.signals > 1 {
				node.said("draining: others take over")
				eventually(t, "it takes a second order", func() bool { // what comes within a second repeats the first
					node.signal(t, syscall.SIGTERM)
					return strings.Contains(node.err(), "another signal to stop")
				})
			}
			node.ends(t, 0)
			if said := node.err(); !strings.Contains(said, tc.says) || strings.Contains(said, "drained: this node owns nothing") || tc.timeout == "0s" && strings.Contains(said, "draining") {
				t.Errorf("it says %s", said)
			}
		})
	}
}

// TestDrainOfTheLast stops both nodes of a cluster at once, and then one that was
// left alone: none of them waits for nobody.
func TestDrainOfTheLast(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, false, "--drain-timeout", "10m")
	c.nodes[0].signal(t, syscall.SIGTERM)
	c.nodes[1].signal(t, syscall.SIGTERM)
	for _, n := range c.nodes {
		n.ends(t, 0)
	}
	if a, b := c.nodes[0].err(), c.nodes[1].err(); !strings.Contains(a+b, "leaves without a drain") {
		t.Errorf("they say %s\n%s", a, b)
	}
}

// TestDrainWithoutLeader drains a node that has lost the majority: the order is
// refused, and a stop waits for nobody.
func TestDrainWithoutLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false, "--drain-timeout", "10m", "--lease-ttl", "20s")
	left := c.nodes[2]
	c.nodes[0].kill()
	c.nodes[1].kill()
	eventually(t, "it knows no leader", func() bool { st, _, err := left.status(); return err == nil && st.Leader == "" })
	refuses(t, exitError, "the cluster has no leader that could be asked; nothing happened (UNAVAILABLE)", "drain", "n3", "--addr", left.grpc)
	left.signal(t, syscall.SIGTERM)
	left.ends(t, 0)
	left.said("leaves without a drain: the cluster has no leader")
}

// post asks a node to drain itself.
func (n *testNode) post(query string) (int, admin.Drain) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.admin+"/drain"+query, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	var d admin.Drain
	if resp.StatusCode != http.StatusBadRequest && json.Unmarshal(b, &d) != nil {
		n.t.Fatalf("%d %s", resp.StatusCode, b)
	}
	return resp.StatusCode, d
}

// TestDrainHook drains nodes by HTTP, as a preStop hook does.
func TestDrainHook(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, false)
	n1, n2 := c.nodes[0], c.nodes[1]
	if code, body, err := n2.get("/drain"); err != nil || code != 200 || !strings.Contains(body, `"phase": "active"`) || !strings.Contains(body, `"drained": false`) {
		t.Errorf("GET: %d %s %v", code, body, err)
	}
	for _, q := range []string{"?timeout=x", "?timeout=-1s", "?timeout=1h"} {
		if code, _ := n2.post(q); code != http.StatusBadRequest {
			t.Errorf("%s: %d", q, code)
		}
	}
	if code, d := n2.post("?timeout=1ns"); code != http.StatusGatewayTimeout || d.Drained || d.Problem == "" {
		t.Errorf("no time: %d %+v", code, d)
	}
	if code, d := n2.post(""); code != 200 || !d.Drained || d.RowsOwned+d.RowsStandby != 0 {
		t.Errorf("POST: %d %+v", code, d)
	}
	n2.drained(n1)
	if code, d := n2.post("?timeout=25s"); code != 200 || !d.Drained || !d.Already || d.Phase != "drained" {
		t.Errorf("again: %d %+v", code, d)
	}
	if code, d := n1.post(""); code != http.StatusConflict || d.Drained || !strings.Contains(d.Problem, "nobody would be left") || d.RowsOwned == 0 {
		t.Errorf("the last one: %d %+v", code, d)
	}
	began := time.Now()
	n2.signal(t, syscall.SIGTERM) // at once: it is drained
	n2.ends(t, 0)
	if took := time.Since(began); took > patience/2 {
		t.Errorf("stopping what is drained took %v", took)
	}
}
