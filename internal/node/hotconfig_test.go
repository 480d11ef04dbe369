package node

import (
	"strings"
	"testing"

	"github.com/keystead/keystead/hotkey/heat"
	"github.com/keystead/keystead/ring/member"
)

func TestKeepsWhole(t *testing.T) {
	c := HotConfig{Whole: []string{"api", "batch-*", "limit:web", "counter:x*", "limit:limits:odd", "*e*"}}
	if err := c.WithDefaults().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		kind, name string
		want       bool
	}{
		{"limit", "api", true}, {"counter", "api", true}, {"limit", "api2", false}, {"limit", "ap", false},
		{"limit", "batch-", true}, {"counter", "batch-7", true}, {"limit", "batch", false},
		{"limit", "web", true}, {"counter", "web", false}, {"limit", "limit:web", false},
		{"counter", "xy", true}, {"counter", "x", true}, {"limit", "xy", false},
		{"limit", "limits:odd", true}, {"counter", "limits:odd", false},
		{"limit", "*e", true}, {"limit", "*every", true}, {"limit", "every", false},
	} {
		if got := c.KeepsWhole(tc.kind, tc.name); got != tc.want {
			t.Errorf("%s %q: %v", tc.kind, tc.name, got)
		}
	}
	if !(HotConfig{Whole: []string{"limit:*"}}).KeepsWhole("limit", "") || (HotConfig{}).KeepsWhole("limit", "limit") {
		t.Error("all limits, or none")
	}
}

func TestHotConfigRefuses(t *testing.T) {
	long := strings.Repeat("x", 129)
	for _, tc := range []struct {
		says string
		with HotConfig
	}{
		{"max 101: choose 1 to 100", HotConfig{Policy: heat.Policy{Max: 101}}},
		{"floor 0.5:", HotConfig{Policy: heat.Policy{Floor: 0.5}}},
		{"per-part -1:", HotConfig{PerPart: -1}},
		{`whole "": a name is missing`, HotConfig{Whole: []string{"api", ""}}},
		{`whole "counter:": a name is missing`, HotConfig{Whole: []string{"counter:"}}},
		{"more than 128 bytes", HotConfig{Whole: []string{"limit:" + long + "*"}}},
		{`"lock" is not a kind that can be split`, HotConfig{Whole: []string{"lock:door"}}},
		{"whole: 1001 names", HotConfig{Whole: make([]string, MaxHotWhole+1)}},
	} {
		if err := tc.with.WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%v, want %q", err, tc.says)
		}
		if err := (Config{ID: "n", Hot: tc.with}).Validate(); err == nil {
			t.Errorf("a node takes %q", tc.says)
		}
	}
	fits := HotConfig{Whole: []string{"limit:" + long[:128] + "*", "*", "limit:lock:door"}}.WithDefaults()
	if err := fits.Validate(); err != nil || fits.PerPart != 1000 || fits.Max != 100 || fits.Split {
		t.Errorf("%+v, %v", fits, err)
	}
}

// A node says in gossip that parts are to come to it first.
func TestHotNodeInGossip(t *testing.T) {
	for _, hot := range []bool{true, false} {
		c := start(t, func(c *Config) {
			c.Cluster = ClusterConfig{ID: "c", Bootstrap: true, RaftAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", Profile: "local", HotNode: hot}
		})
		var facts []member.Fact
		eventually(t, "it gossips", func() bool { facts = c.cluster.pool.Facts(); return len(facts) == 1 && facts[0].Ours })
		if facts[0].Self.Hot != hot {
			t.Errorf("%v: %+v", hot, facts[0].Self)
		}
	}
}
