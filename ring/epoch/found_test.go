package epoch

import (
	"errors"
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

// TestFound: a node that runs makes the cluster once, others join it, and neither it
// nor they make another one.
func TestFound(t *testing.T) {
	t.Parallel()
	p, disk := newPool(), MemoryStorage()
	later := func(c *Config) { c.Bootstrap = false }
	first := join(t, p, "n1", func(c *Config) { c.Bootstrap, c.Storage = false, disk })
	second := join(t, p, "n2", later)
	for _, g := range []*Group{first, second} {
		if uid := *g.uid.Load(); uid != "" || g.Table().Cluster != "" || g.Leader() != "" {
			t.Fatalf("before anybody makes it: cluster %q, table %v", uid, g.Table())
		}
	}
	if err := first.Found(still); err != nil {
		t.Fatal(err)
	}
	t1 := until(t, first, "both are members", func(tab *table.Table) bool { return len(tab.Members) == 2 })
	t2 := until(t, second, "both are members", func(tab *table.Table) bool { return len(tab.Members) == 2 })
	if t1.UID == "" || t1.UID != t2.UID {
		t.Errorf("clusters %q and %q", t1.UID, t2.UID)
	}
	for _, g := range []*Group{first, second} {
		if err := g.Found(still); !errors.Is(err, ErrBelongs) {
			t.Errorf("again: %v", err)
		}
		if uid := *g.uid.Load(); uid != t1.UID {
			t.Errorf("the cluster is %q, then %q", t1.UID, uid)
		}
	}
	if uid, err := disk.UID(); err != nil || uid != t1.UID {
		t.Errorf("kept %q, %v", uid, err)
	}
}

// still is that of a caller who knows that there is no other cluster.
func still() error { return nil }

// TestFoundTooLate: what the caller knew does not hold any more when the log is to be
// written, and nothing is left of the try.
func TestFoundTooLate(t *testing.T) {
	t.Parallel()
	disk, late := MemoryStorage(), errors.New("too late")
	g := join(t, newPool(), "n1", func(c *Config) { c.Bootstrap, c.Storage = false, disk })
	if err := g.Found(func() error { return late }); !errors.Is(err, late) {
		t.Fatal(err)
	}
	uid, err := disk.UID()
	if empty, _ := disk.Empty(); err != nil || !empty || uid != "" || *g.uid.Load() != "" || g.Table().Cluster != "" {
		t.Errorf("an empty log: %v; kept %q, %v; it is of %q", empty, uid, err, *g.uid.Load())
	}
	if err := g.Found(still); err != nil {
		t.Fatal(err)
	}
	until(t, g, "it is made", func(tab *table.Table) bool { return tab.Cluster != "" })
}

// TestFoundAfterACrash: the number of a cluster that was drawn before the crash counts.
func TestFoundAfterACrash(t *testing.T) {
	t.Parallel()
	disk := MemoryStorage()
	if err := disk.setUID("drawn"); err != nil {
		t.Fatal(err)
	}
	g := join(t, newPool(), "n1", func(c *Config) { c.Bootstrap, c.Storage = false, disk })
	if err := g.Found(still); err != nil {
		t.Fatal(err)
	}
	if tab := until(t, g, "it is made", func(tab *table.Table) bool { return tab.Cluster != "" }); tab.UID != "drawn" {
		t.Errorf("it is %q", tab.UID)
	}
}
