//go:build system

package system

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
)

// TestClusterHoldTags: a request begins at one node and ends at another one, which was never told of its hold: by the
// command and by the Go client.
func TestClusterHoldTags(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false, "--max-lock-ttl", "1h")
	key := c.keys(1)[c.nodes[1].id][0]
	begin, end := c.nodes[0], c.nodes[2]
	admit := func(tag string) []string {
		return []string{"admit", key, "--slots", "running=2", "--counter", "tokens=100:40", "--hold", "10m", "--tag", tag, "--addr", begin.grpc}
	}
	settle := func(more ...string) []string {
		return append([]string{"settle", key, "--addr", end.grpc}, more...)
	}
	eventually(t, "all nodes know admissions", func() bool { return keystead(t, admit("a")...).code == 0 })
	held := strings.TrimSpace(succeeds(t, admit("b")...))
	refuses(t, exitDenied, "running has 0 of 2 left; try again", admit("b")...)
	if text := succeeds(t, settle("--tag", "a", "tokens=7")...); text != "settled  tokens: 7  running: 0\n" {
		t.Error(text)
	}
	refuses(t, exitDenied, "never was, or is forgotten", settle("--tag", "a", "--release")...)
	if text := succeeds(t, "admission", "holds", key, "--addr", end.grpc); !strings.HasPrefix(text, held+"  for ") || strings.Count(text, "\n") != 1 {
		t.Error(text)
	}
	if text := succeeds(t, settle("--tag", "b", "--release", "--json")...); !strings.Contains(text, `"back":40`) && !strings.Contains(text, `"back": 40`) {
		t.Error(text)
	}
	refuses(t, 2, "--tag goes with --hold", "admit", key, "--slots", "running=2", "--tag", "a")
	refuses(t, 2, `HOLD and --tag exclude each other: leave "`+held+`" out`, settle(held, "--tag", "a")...)
	refuses(t, 2, "KEY is missing", "settle", "--tag", "a")
	refuses(t, 2, "--tag: has 129 bytes; at most 128 are allowed", settle("--tag", strings.Repeat("t", 129))...)

	first, err := client.Dial(t.Context(), begin.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	other, err := client.Dial(t.Context(), end.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	h, err := first.Admit(t.Context(), client.Admit{Key: key, Hold: 10 * time.Minute, Tag: "go", Demands: []client.Demand{client.Slots("running", 2, 2)}})
	if err != nil || h.Hold() == "" {
		t.Fatal(h, err)
	}
	if s, err := other.Admission("").ReleaseTag(t.Context(), key, "go"); err != nil || s.Costs[0].Back != 2 {
		t.Error(s, err)
	}
	if _, err := other.Admission("").SettleTag(t.Context(), key, "go", nil); !errors.Is(err, client.ErrHoldUnknown) {
		t.Error(err)
	}
	if err := h.Release(t.Context()); err != nil && !errors.Is(err, client.ErrHoldUnknown) {
		t.Error(err)
	}
}
