package ring

import (
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// u64 is a number that stands as a string in the vectors.
type u64 uint64

func (u *u64) UnmarshalJSON(b []byte) error {
	text, err := strconv.Unquote(string(b))
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	*u = u64(n)
	return err
}

type placed struct {
	host string
	at   uint64
}

func (p *placed) UnmarshalJSON(b []byte) error {
	var pair [2]string
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	at, err := strconv.ParseUint(pair[1], 10, 64)
	*p = placed{pair[0], at}
	return err
}

type ringVector struct {
	Hosts        []string `json:"hosts"`
	HostHashKeys []string `json:"host_hash_keys"`
	MinRingSize  uint64   `json:"min_ring_size"`
	MaxRingSize  uint64   `json:"max_ring_size"`
	MinPerHost   int      `json:"min_per_host"`
	MaxPerHost   int      `json:"max_per_host"`
	PerHost      []int    `json:"per_host"`
	RingSize     int      `json:"ring_size"`
	Ring         []placed `json:"ring"`
	Picks        []struct {
		H    u64    `json:"h"`
		Host string `json:"host"`
	} `json:"picks"`
}

type vectors struct {
	XXHash struct {
		Vectors []struct {
			In  string
			Out u64
		}
	} `json:"xxhash64"`
	Chained struct {
		Computed u64 `json:"computed_sorted_bar_foo"`
		Vectors  []struct {
			In     []string
			Out    u64
			Concat u64 `json:"concatenation_would_be"`
		}
	} `json:"xxhash64_list_chained_seed"`
	Envoy struct {
		Basic     ringVector
		Hostnames ringVector   `json:"BasicWithHostname_and_BasicWithMetadataHashKey"`
		Uneven    []ringVector `json:"UnevenHosts"`
		BadBounds struct {
			Min, Max uint64
			Error    string
		} `json:"BadRingSizeBounds"`
		Fractional ringVector `json:"LargeFractionalScale"`
	} `json:"envoy"`
}

func load(t *testing.T) (v vectors) {
	t.Helper()
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestHashVectors(t *testing.T) {
	v := load(t)
	if len(v.XXHash.Vectors) != 5 || len(v.Chained.Vectors) != 1 {
		t.Fatalf("%d and %d vectors", len(v.XXHash.Vectors), len(v.Chained.Vectors))
	}
	for _, x := range v.XXHash.Vectors {
		if got := Hash(x.In); got != uint64(x.Out) {
			t.Errorf("hash of %q: %d, want %d", x.In, got, x.Out)
		}
		if got := HashValues([]string{x.In}); got != uint64(x.Out) {
			t.Errorf("hash of the one value %q: %d, want %d", x.In, got, x.Out)
		}
	}
	for _, x := range v.Chained.Vectors {
		// Envoy's own vector hashes the list as it is; its header policy sorts first.
		var h uint64
		for _, s := range x.In {
			d := xxhash.NewWithSeed(h)
			_, _ = d.WriteString(s)
			h = d.Sum64()
		}
		if h != uint64(x.Out) || h == uint64(x.Concat) {
			t.Errorf("chained %q: %d, want %d", x.In, h, x.Out)
		}
		if got := HashValues(x.In); got != uint64(v.Chained.Computed) {
			t.Errorf("values %q: %d, want %d", x.In, got, v.Chained.Computed)
		}
	}
}

func TestEnvoyVectors(t *testing.T) {
	v := load(t).Envoy
	if len(v.Basic.Ring) != 12 || len(v.Hostnames.Ring) != 12 || len(v.Uneven) != 2 {
		t.Fatal("vectors are missing")
	}
	checkRing(t, "Basic", v.Basic)
	checkRing(t, "Hostnames", v.Hostnames)
	for _, u := range v.Uneven {
		checkRing(t, "Uneven", u)
	}
	checkRing(t, "LargeFractionalScale", v.Fractional)
	if _, err := NewSized([]string{"a"}, v.BadBounds.Min, v.BadBounds.Max); err == nil || err.Error() != v.BadBounds.Error {
		t.Errorf("bad bounds: %v, want %s", err, v.BadBounds.Error)
	}
}

func checkRing(t *testing.T, name string, v ringVector) {
	t.Helper()
	keys := v.HostHashKeys
	if keys == nil {
		keys = v.Hosts
	}
	if v.MaxRingSize == 0 {
		v.MaxRingSize = MaxPoints
	}
	r, err := NewSized(keys, v.MinRingSize, v.MaxRingSize)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if v.RingSize != 0 && r.Size() != v.RingSize {
		t.Errorf("%s: %d points, want %d", name, r.Size(), v.RingSize)
	}
	perHost := map[string]int{}
	for i := range r.Size() {
		at, host := r.At(i)
		perHost[host]++
		if v.Ring != nil && (v.Ring[i] != placed{host, at}) {
			t.Errorf("%s: point %d is %s at %d, want %+v", name, i, host, at, v.Ring[i])
		}
	}
	for i, host := range r.Nodes() {
		n := perHost[host]
		if v.PerHost != nil && n != v.PerHost[i] || v.MaxPerHost != 0 && (n < v.MinPerHost || n > v.MaxPerHost) {
			t.Errorf("%s: %s has %d points", name, host, n)
		}
	}
	for _, p := range v.Picks {
		if got := r.Owner(uint64(p.H)); got != p.Host {
			t.Errorf("%s: %d belongs to %s, want %s", name, p.H, got, p.Host)
		}
	}
}
