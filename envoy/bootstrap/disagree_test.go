package bootstrap

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/keystead/keystead/ring"
)

// hosts are hash keys of n nodes.
func hosts(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("10.0.0.%d:7400", i+1)
	}
	slices.Sort(keys)
	return keys
}

// What docs/envoy.md says of rings that differ, computed: the share of the keys that
// go to another node than their owner first.
func TestDisagreement(t *testing.T) {
	plain := func(n int, lo, hi uint64, weights ...uint32) []point {
		all, err := envoyRing(ringCluster(hosts(n), lo, hi, weights...))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	names := func(n int) []point {
		keys := make([]string, n)
		for i := range keys {
			keys[i] = fmt.Sprintf("n%d.internal:7400", i+1)
		}
		all, err := envoyRing(ringCluster(keys, uint64(256*n), ring.MaxPoints))
		if err != nil {
			t.Fatal(err)
		}
		// A name stands for the node with its number.
		numbers := map[string]string{}
		for i, key := range keys {
			numbers[key] = fmt.Sprintf("10.0.0.%d:7400", i+1)
		}
		for i := range all {
			all[i].key = numbers[all[i].key]
		}
		return all
	}
	without := func(n int) []point {
		all, err := envoyRing(ringCluster(hosts(n)[1:], uint64(256*n), ring.MaxPoints))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	const most = ring.MaxPoints
	page, err := os.ReadFile("../../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what  string
		nodes int
		other []point
		want  float64 // percent
	}{
		{"as it is written", 3, plain(3, 768, most), 0},
		{"as it is written", 16, plain(16, 4096, most), 0},
		{"weights that are equal, but not 1", 3, plain(3, 768, most, 7, 7, 7), 0},
		{"`minimum_ring_size` left at its default, 1024", 3, plain(3, 1024, most), 16.3},
		{"`minimum_ring_size` left at its default, 1024", 16, plain(16, 1024, most), 70.4},
		{"`minimum_ring_size` of one node fewer", 3, plain(3, 512, most), 23.7},
		{"a ring cap of 4096", 16, plain(16, 4096, 4096), 0},
		{"a ring cap of 4096", 17, plain(17, 4096, 4096), 5.7},
		{"a ring cap of 4096", 32, plain(32, 4096, 4096), 48.2},
		{"a ring cap of 4096", 64, plain(64, 4096, 4096), 74.2},
		{"a weight of 2 among 1s", 3, plain(3, 768, most, 2, 1, 1), 21.1},
		{"hash keys by name instead of address", 3, names(3), 67.4},
		{"a host left out", 3, without(3), 40.5},
	} {
		got := 100 * moved(ours(t, hosts(c.nodes)), c.other)
		if math.Abs(got-c.want) > 0.05 {
			t.Errorf("%s, %d nodes: %.1f%% go elsewhere, want %.1f%%", c.what, c.nodes, got, c.want)
		}
		if row := fmt.Sprintf("| %s | %d | %.1f %% |", c.what, c.nodes, c.want); c.want > 0 && !strings.Contains(string(page), row) {
			t.Errorf("docs/envoy.md has no row %q", row)
		}
	}
}

// What makes another ring of a cluster is told from what does not.
func TestForeignSettings(t *testing.T) {
	for name, change := range map[string]func(*clusterv3.Cluster){
		"panic threshold":     func(c *clusterv3.Cluster) { c.CommonLbConfig = nil },
		"outlier detection":   func(c *clusterv3.Cluster) { c.OutlierDetection = &clusterv3.OutlierDetection{} },
		"another policy":      func(c *clusterv3.Cluster) { c.LbPolicy = clusterv3.Cluster_MAGLEV },
		"another function":    func(c *clusterv3.Cluster) { c.GetRingHashLbConfig().HashFunction = 1 },
		"several localities":  func(c *clusterv3.Cluster) { c.LoadAssignment.Endpoints = append(c.LoadAssignment.Endpoints, nil) },
		"hash balance factor": func(c *clusterv3.Cluster) { c.CommonLbConfig.ConsistentHashingLbConfig = bounded() },
	} {
		c := ringCluster(hosts(3), 768, ring.MaxPoints)
		if _, err := envoyRing(c); err != nil {
			t.Fatal(err)
		}
		if change(c); func() bool { _, err := envoyRing(c); return err == nil }() {
			t.Errorf("%s: not noticed", name)
		}
	}
	// A hash key that is no string is none: YAML makes numbers of digits without quotes.
	c := ringCluster(hosts(1), 256, ring.MaxPoints)
	h := c.LoadAssignment.Endpoints[0].LbEndpoints[0]
	h.Metadata.FilterMetadata["envoy.lb"].Fields["hash_key"] = structpb.NewNumberValue(7)
	if got := hashKey(h); got == "7" {
		t.Error("a number is taken for a hash key")
	}
}

func bounded() *clusterv3.Cluster_CommonLbConfig_ConsistentHashingLbConfig {
	return &clusterv3.Cluster_CommonLbConfig_ConsistentHashingLbConfig{UseHostnameForHashing: true}
}
