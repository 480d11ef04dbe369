package cli

import (
	"slices"
	"testing"

	"github.com/keystead/keystead/internal/cli/bench"
)

// What is to be measured on a disk is checked before anything is started.
func TestDurabilityOfBench(t *testing.T) {
	for name, tc := range map[string]struct {
		flags benchFlags
		ok    bool
	}{
		"none":             {benchFlags{}, true},
		"both":             {benchFlags{durability: bench.Durabilities, dataDir: "/var/tmp"}, true},
		"unknown":          {benchFlags{durability: []string{"none"}}, false},
		"cluster":          {benchFlags{durability: []string{bench.Always}, nodes: 3}, true},
		"cluster of one":   {benchFlags{durability: []string{bench.Always}, nodes: 1}, false},
		"cluster and acks": {benchFlags{durability: []string{bench.Always}, nodes: 3, acks: true}, false},
		"running":          {benchFlags{durability: []string{bench.Always}, addr: "127.0.0.1:7400"}, false},
		"nothing to write": {benchFlags{dataDir: "/var/tmp"}, false},
	} {
		if err := tc.flags.validateDurability(); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTargetsOfBench(t *testing.T) {
	f := benchFlags{echo: true, http: true, durability: []string{bench.Always, bench.Interval, bench.Always}}
	if got, want := f.targets(), []string{bench.Keystead, bench.Echo, bench.TunedEcho, bench.HTTP, bench.Interval, bench.Always}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
