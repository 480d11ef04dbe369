//go:build system

package system

import (
	"strings"
	"testing"
)

// What a cluster of three says of itself is what one writes down by hand, and all of
// its nodes say the same.
func TestEnvoyStaticFromCluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false)
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.grpc)
	}
	plain := func(text string) string {
		before, rest, _ := strings.Cut(text, "# Made by: ")
		_, after, _ := strings.Cut(rest, "\n")
		return before + after
	}
	want := plain(succeeds(t, "envoy", "static", "--nodes", strings.Join(addrs, ",")))
	for _, n := range c.nodes {
		if got := plain(succeeds(t, "envoy", "static", "--from", n.grpc)); got != want {
			t.Errorf("%s says\n%swant\n%s", n.id, got, want)
		}
	}
}
