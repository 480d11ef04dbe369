//go:build system

package system

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
)

const admitAlone = `admissions:
  chat:
    key: "{org}"
    fields: [org, model]
    demands:
    - {name: rpm, limit: 100/24h, fallback: "local-cap:3/24h", budget: 300ms}
    - {name: tpm, limit: 1000/24h, cost: tokens, fallback: "last-known:5m"}
    - {name: running, when: {model: small}, slots: 2}
`

// TestClusterAdmitsAlone: the owner of a key is killed, and one more node, so that nobody may take over. What a policy demands
// with fallbacks is decided by the node that is left, and its callers see that: with the command, in words and with
// --json, and in Go. What has no fallback fails.
func TestClusterAdmitsAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false, "--max-lock-ttl", "1h")
	c.protected(c.nodes...)
	left := c.nodes[0]
	org := c.keys(1)[c.nodes[1].id][0]
	file := filepath.Join(t.TempDir(), "p.yaml")
	write(t, file, admitAlone)
	eventually(t, "all nodes know policies", func() bool {
		return keystead(t, "policy", "apply", file, "--addr", left.grpc).code == 0
	})
	admit := func(more ...string) []string {
		return append([]string{"admit", "--policy", "chat", "--field", "org=" + org, "--amount", "tokens=10", "--addr", left.grpc}, more...)
	}
	var held []string
	eventually(t, "the owner admits", func() bool {
		r := keystead(t, admit("--hold", "1h")...)
		held = strings.Fields(r.out)
		return r.code == 0 && r.err == ""
	})
	if len(held) != 2 || held[0] != org || held[1] == "-" {
		t.Fatal(held)
	}
	node, err := client.Dial(t.Context(), left.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()

	c.nodes[2].kill()
	c.nodes[1].kill()
	by := " (degraded: by " + left.id + " alone)\n"
	eventually(t, "the node that is left decides", func() bool {
		return keystead(t, admit("--peek")...).out == "would be admitted"+by
	})
	if r := keystead(t, admit("--hold", "1m")...); r.code != 0 || r.out != org+" -\n" || r.err != "keystead: admitted without a hold"+by {
		t.Errorf("%+v", r)
	}
	if text := succeeds(t, "settle", org, "-", "tpm=3", "--addr", left.grpc); text != "nothing to settle: a fallback admitted it\n" {
		t.Error(text)
	}
	h, err := node.Admit(t.Context(), client.Admit{Policy: "chat", Fields: map[string]string{"org": org}, Amounts: map[string]uint64{"tokens": 10}, Hold: time.Minute, Keep: true})
	if err != nil || !h.OK || !h.Degraded || h.Owner != left.id || h.Hold() != "" || h.Key() != org ||
		h.Demands[0].Degraded != client.ByLocalCap || h.Demands[0].Remaining != 1 || h.Demands[1].Degraded != client.ByLastKnown {
		t.Fatalf("%+v %v", h, err)
	}
	if s, err := h.Settle(t.Context(), client.Cost{Name: "tpm", Cost: 3}); err != nil || len(s.Costs) != 0 {
		t.Errorf("%+v %v", s, err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	a := object(t, succeeds(t, admit("--json")...))
	hasFields(t, a, "admitted", "key", "retry_after", "demands", "epoch", "policy_version", "degraded")
	demands := a["demands"].([]any)
	hasFields(t, demands[0], "name", "refused", "reserved", "capacity", "remaining", "debt", "retry_after", "degraded")
	if one, two := demands[0].(map[string]any), demands[1].(map[string]any); a["admitted"] != true || a["degraded"] != true ||
		one["degraded"] != "local-cap" || two["degraded"] != "last-known" || number(t, one["remaining"]) != 0 {
		t.Errorf("%v", a)
	}
	refuses(t, exitDenied, "refused  rpm has 0 of 3 left; try again in 1s"+by, admit()...)
	if r := keystead(t, admit("--json")...); r.code != exitDenied || object(t, r.out)["degraded"] != true || object(t, r.out)["admitted"] != false {
		t.Errorf("%+v", r)
	}
	h, err = node.Admit(t.Context(), client.Admit{Policy: "chat", Fields: map[string]string{"org": org}, Amounts: map[string]uint64{"tokens": 10}})
	if !errors.Is(err, client.ErrNotAdmitted) || !h.Degraded || !h.Demands[0].Refused || h.RetryAfter != time.Second {
		t.Errorf("%+v %v", h, err)
	}
	if r := keystead(t, admit("--field", "model=small", "--hold", "1m", "--timeout", "2s")...); r.code != 1 || r.out != "" {
		t.Errorf("slots have no fallback: %+v", r)
	}
}
