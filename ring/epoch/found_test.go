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

// still returns that of a caller who knows that there is no other cluster.
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

// TestFoundAfterACrash: the number of a cluster that was drawn before the crash is that of
// no cluster, and does not stand in the way.
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
	tab := until(t, g, "it is made", func(tab *table.Table) bool { return tab.Cluster != "" })
	if uid, err := disk.UID(); err != nil || uid == "" || uid != tab.UID {
		t.Errorf("it is %q, and belongs to %q, %v", tab.UID, uid, err)
	}
}

// TestDrawnAndCrashed: a node drew the number of a cluster and died before it made it. It
// belongs to none then, and can join the one that somebody else has made meanwhile.
func TestDrawnAndCrashed(t *testing.T) {
	t.Parallel()
	p := newPool()
	form(t, p, 1, nil)
	s := MemoryStorage()
	if err := s.setUID("of no cluster"); err != nil {
		t.Fatal(err)
	}
	g := join(t, p, "n2", func(c *Config) { c.Storage = s })
	flips(t, g)
	until(t, g, "it is a member", stableWith(2))
	if uid, err := s.UID(); err != nil || uid != g.Table().UID {
		t.Errorf("%q, %v", uid, err)
	}
}
