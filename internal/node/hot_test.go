package node

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/hotkey/heat"
	"github.com/keystead/keystead/hotkey/home"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/member"
)

// A node shows the rates of calls that it gets, soon, and who is hot among them; its
// metrics have neither keys nor names.
func TestListHot(t *testing.T) {
	n := start(t, nil)
	conn, ctx := dial(t, n), bounded(t)
	checks := limitpb.NewLimitServiceClient(conn)
	batch := &limitpb.BatchCheckRequest{}
	for range 500 {
		batch.Checks = append(batch.Checks, &limitpb.CheckRequest{Key: "secret-key", Name: "secret-name", Limit: 1000, PeriodNs: 1e9})
	}
	load, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	began := time.Now()
	wg.Go(func() {
		for load.Err() == nil {
			_, _ = checks.BatchCheck(load, batch)
		}
	})
	var r *clusterpb.ListHotResponse
	eventually(t, "the key is hot", func() bool {
		var err error
		if r, err = clusterpb.NewClusterServiceClient(conn).ListHot(ctx, &clusterpb.ListHotRequest{}); err != nil {
			t.Fatal(err)
		}
		return r.Hot > 0
	})
	t.Logf("hot after %s, at %.0f a second", time.Since(began).Round(time.Millisecond), r.Rate)
	if k := r.Keys[0]; r.Id != "n1" || len(r.Keys) != 1 || k.Key != "secret-key" || k.Name != "secret-name" || k.Kind != commonpb.Kind_KIND_LIMIT || !k.Hot || k.RateMin < 1000 || k.RateMax < k.RateMin ||
		k.SinceNs < 0 || k.SinceNs > int64(time.Since(began)) || r.Objects != 1 || r.Policy.Floor != heat.DefaultFloor || r.Policy.Factor != heat.DefaultFactor {
		t.Errorf("%v", r)
	}
	_, text := get(t, n, "/metrics")
	for _, want := range []string{`keystead_hot_keys{kind="limit"} 1`, `keystead_hot_keys{kind="lock"} 0`, `keystead_hot_rate{rank="10"} 0`, "keystead_hot_left_out_total 0"} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("%s is not there", want)
		}
	}
	if strings.Contains(text, "secret") || strings.Contains(text, `keystead_hot_rate{rank="1"} 0`+"\n") || strings.Count(text, "\nkeystead_hot_rate{") != rankedKeys {
		t.Errorf("metrics: %s", text)
	}
}

func TestHotRefused(t *testing.T) {
	for says, policy := range map[string]heat.Policy{
		"hot keys: floor 0.5: choose": {Floor: 0.5},
		"hot keys: factor -1: choose": {Factor: -1},
	} {
		if _, err := Start(Config{ID: "n1", Hot: home.Settings{Policy: policy}}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", policy, err, says)
		}
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
