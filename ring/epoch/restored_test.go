package epoch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

// raiseEpoch raises the epoch as a node does for its ids, and returns the epoch that is its
// own from now on.
func raiseEpoch(t *testing.T, g *Group) (epoch uint64) {
	t.Helper()
	eventually(t, "an epoch of its own", func() bool {
		above := g.Table().Epoch
		e, err := g.Propose(t.Context(), table.Command{Raise: &table.Raise{Above: above}})
		epoch = e
		return err == nil && e == above+1
	})
	return epoch
}

// TestRestoredDisks: when the disks of all nodes are set back to an earlier state, no
// epoch is given a second time, and no row is owned since an earlier one.
func TestRestoredDisks(t *testing.T) {
	t.Parallel()
	dirs, addrs := map[string]string{}, map[string]string{}
	change := func(c *Config) {
		if dirs[c.Node] == "" {
			dirs[c.Node] = t.TempDir()
		}
		s, err := OpenStorage(dirs[c.Node])
		if err != nil {
			t.Fatal(err)
		}
		c.Storage = s
		if addr := addrs[c.Node]; addr != "" {
			c.listenAt(addr)
		}
		addrs[c.Node] = c.RaftAddr
	}
	start := func() []*Group {
		p := newPool()
		groups := make([]*Group, 0, 3)
		for _, n := range []string{"n1", "n2", "n3"} {
			g := join(t, p, n, change)
			flips(t, g)
			groups = append(groups, g)
		}
		for _, g := range groups {
			until(t, g, "all are members", func(tab *table.Table) bool { return stableWith(3)(tab) && tab.Holds(g.Self()) })
		}
		voters(t, 3, groups...)
		return groups
	}
	stop := func(groups []*Group) {
		for _, g := range groups {
			g.Kill()
		}
	}
	stop(start())
	backup := t.TempDir()
	for n, dir := range dirs {
		if err := os.CopyFS(filepath.Join(backup, n), os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	groups := start()
	last, highest := uint64(0), uint64(0)
	for range 20 {
		last = max(last, raiseEpoch(t, groups[0]))
	}
	for _, r := range groups[0].Table().Rows {
		highest = max(highest, r.Since)
	}
	stop(groups)
	for n := range dirs {
		dirs[n] = filepath.Join(backup, n)
	}
	groups = start()
	for _, r := range groups[0].Table().Rows {
		if r.Held <= highest {
			t.Fatalf("a row is owned since the epoch %d, as one was before that had seen %d", r.Held, highest)
		}
	}
	if got := raiseEpoch(t, groups[0]); got <= last {
		t.Errorf("the epoch %d was given after %d", got, last)
	}
}
