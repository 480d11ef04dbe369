package bootstrap

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/cespare/xxhash/v2"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keystead/keystead/ring"
)

// point is one of a ring, and the hash key that it belongs to.
type point struct {
	at  uint64
	key string
}

// envoyRing returns the ring that Envoy makes of a cluster, written from its sources and
// without package ring: thread_aware_lb_impl.cc for the weights, ring_hash_lb.cc for
// the points. It is an error if the cluster has anything in it by which Envoy would
// use another ring, or go past it.
func envoyRing(c *clusterv3.Cluster) ([]point, error) {
	switch common := c.CommonLbConfig; {
	case c.LbPolicy != clusterv3.Cluster_RING_HASH || c.LoadBalancingPolicy != nil:
		return nil, fmt.Errorf("balanced by %s, %v", c.LbPolicy, c.LoadBalancingPolicy)
	case c.GetRingHashLbConfig().GetHashFunction() != clusterv3.Cluster_RingHashLbConfig_XX_HASH:
		return nil, fmt.Errorf("hash function %s", c.GetRingHashLbConfig().GetHashFunction())
	case c.OutlierDetection != nil || len(c.HealthChecks) > 0 || c.LbSubsetConfig != nil:
		return nil, fmt.Errorf("hosts may be left out: %v %v %v", c.OutlierDetection, c.HealthChecks, c.LbSubsetConfig)
	case common.GetHealthyPanicThreshold() == nil || common.HealthyPanicThreshold.Value != 0:
		return nil, fmt.Errorf("panic threshold %v", common.GetHealthyPanicThreshold())
	case common.ConsistentHashingLbConfig != nil || common.LocalityConfigSpecifier != nil:
		return nil, fmt.Errorf("common settings %v", common)
	case len(c.GetLoadAssignment().GetEndpoints()) != 1 || c.LoadAssignment.Policy != nil:
		return nil, fmt.Errorf("not one locality: %v", c.LoadAssignment)
	}
	locality := c.LoadAssignment.Endpoints[0]
	if locality.Priority != 0 || locality.LoadBalancingWeight != nil {
		return nil, fmt.Errorf("locality %v", locality)
	}
	lo, hi := uint64(1024), uint64(8<<20)
	if s := c.GetRingHashLbConfig().MinimumRingSize; s != nil {
		lo = s.Value
	}
	if s := c.GetRingHashLbConfig().MaximumRingSize; s != nil {
		hi = s.Value
	}
	if lo > hi {
		return nil, fmt.Errorf("ring hash: minimum_ring_size (%d) > maximum_ring_size (%d)", lo, hi)
	}
	return points(locality.LbEndpoints, lo, hi), nil
}

func points(hosts []*endpointv3.LbEndpoint, lo, hi uint64) []point {
	var sum uint32
	for _, h := range hosts {
		sum += max(1, h.GetLoadBalancingWeight().GetValue())
	}
	least := 1.0
	weights := make([]float64, len(hosts))
	for i, h := range hosts {
		weights[i] = float64(max(1, h.GetLoadBalancingWeight().GetValue())) / float64(sum)
		least = min(least, weights[i])
	}
	scale := min(math.Ceil(float64(least*float64(lo)))/least, float64(hi))
	var all []point
	have, want := 0.0, 0.0
	for i, h := range hosts {
		want += float64(scale * weights[i])
		for n := 0; have < want; n, have = n+1, have+1 {
			key := hashKey(h)
			all = append(all, point{xxhash.Sum64String(key + "_" + strconv.Itoa(n)), key})
		}
	}
	slices.SortStableFunc(all, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	return all
}

// hashKey returns the metadata if it is a string that is not empty, and the address
// otherwise.
func hashKey(h *endpointv3.LbEndpoint) string {
	if v, ok := h.GetMetadata().GetFilterMetadata()["envoy.lb"].GetFields()["hash_key"].GetKind().(*structpb.Value_StringValue); ok && v.StringValue != "" {
		return v.StringValue
	}
	a := h.GetEndpoint().GetAddress().GetSocketAddress()
	return net.JoinHostPort(a.GetAddress(), strconv.Itoa(int(a.GetPortValue())))
}

// ours returns the ring of package ring.
func ours(t *testing.T, keys []string) []point {
	t.Helper()
	r, err := ring.New(keys)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]point, r.Size())
	for i := range all {
		all[i].at, all[i].key = r.At(i)
	}
	return all
}

// ringCluster is a cluster of hosts with these hash keys.
func ringCluster(keys []string, lo, hi uint64, weights ...uint32) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		LbPolicy: clusterv3.Cluster_RING_HASH,
		LbConfig: &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
			MinimumRingSize: wrapperspb.UInt64(lo), MaximumRingSize: wrapperspb.UInt64(hi)}},
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{Endpoints: []*endpointv3.LocalityLbEndpoints{{}}},
	}
	c.CommonLbConfig.HealthyPanicThreshold = percent(0)
	locality := c.LoadAssignment.Endpoints[0]
	for i, key := range keys {
		h := &endpointv3.LbEndpoint{Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"envoy.lb": {Fields: map[string]*structpb.Value{"hash_key": structpb.NewStringValue(key)}}}}}
		if i < len(weights) {
			h.LoadBalancingWeight = wrapperspb.UInt32(weights[i])
		}
		locality.LbEndpoints = append(locality.LbEndpoints, h)
	}
	return c
}

// number is one that stands as a string in the vectors.
type number uint64

// UnmarshalJSON makes number a json.Unmarshaler.
func (n *number) UnmarshalJSON(b []byte) error {
	text, err := strconv.Unquote(string(b))
	if err == nil {
		var v uint64
		v, err = strconv.ParseUint(text, 10, 64)
		*n = number(v)
	}
	return err
}

// The ring of these tests is Envoy's: it has the points of Envoy's own tests.
func TestVectors(t *testing.T) {
	type vector struct {
		Hosts        []string    `json:"hosts"`
		HostHashKeys []string    `json:"host_hash_keys"`
		MinRingSize  uint64      `json:"min_ring_size"`
		MaxRingSize  uint64      `json:"max_ring_size"`
		RingSize     int         `json:"ring_size"`
		PerHost      []int       `json:"per_host"`
		Ring         [][2]string `json:"ring"`
		Picks        []struct {
			H    number `json:"h"`
			Host string `json:"host"`
		} `json:"picks"`
	}
	var v struct {
		Envoy struct {
			Basic      vector
			Hostnames  vector   `json:"BasicWithHostname_and_BasicWithMetadataHashKey"`
			Uneven     []vector `json:"UnevenHosts"`
			Fractional vector   `json:"LargeFractionalScale"`
		} `json:"envoy"`
	}
	text, err := os.ReadFile("../../ring/testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for i, x := range append([]vector{v.Envoy.Basic, v.Envoy.Hostnames, v.Envoy.Fractional}, v.Envoy.Uneven...) {
		keys := x.HostHashKeys
		if keys == nil {
			keys = x.Hosts
		}
		got, err := envoyRing(ringCluster(keys, x.MinRingSize, cmp.Or(x.MaxRingSize, ring.MaxPoints)))
		if err != nil {
			t.Fatal(err)
		}
		if x.RingSize != 0 && len(got) != x.RingSize {
			t.Errorf("vector %d: %d points, want %d", i, len(got), x.RingSize)
		}
		for j, want := range x.Ring {
			if checked++; got[j].key != want[0] || strconv.FormatUint(got[j].at, 10) != want[1] {
				t.Errorf("vector %d: point %d is %v, want %v", i, j, got[j], want)
			}
		}
		for _, p := range x.Picks {
			if checked++; owner(got, uint64(p.H)) != p.Host {
				t.Errorf("vector %d: %d belongs to %s, want %s", i, p.H, owner(got, uint64(p.H)), p.Host)
			}
		}
	}
	if checked < 24 {
		t.Errorf("only %d points and picks were checked", checked)
	}
}

// owner returns who owns a position.
func owner(ring []point, h uint64) string {
	i, _ := slices.BinarySearchFunc(ring, h, func(p point, h uint64) int { return cmp.Compare(p.at, h) })
	return ring[i%len(ring)].key
}

// moved returns the share of the hash space that belongs to another node on b than on
// a.
func moved(a, b []point) float64 {
	cuts := make([]uint64, 0, len(a)+len(b))
	for _, p := range slices.Concat(a, b) {
		cuts = append(cuts, p.at)
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	differ := 0.0
	for i, at := range cuts {
		before := cuts[(i+len(cuts)-1)%len(cuts)]
		if owner(a, at) != owner(b, at) {
			differ += float64(at - before) // wraps around as the ring does
		}
	}
	return differ / (1 << 64)
}
