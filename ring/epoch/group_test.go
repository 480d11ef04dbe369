package epoch

import (
	"testing"
	"time"
)

func TestForms(t *testing.T) {
	p := &pool{peers: map[string]Peer{}}
	began := time.Now()
	var groups []*Group
	for _, n := range []string{"n1", "n2", "n3"} {
		g := join(t, p, n, nil)
		flips(t, g)
		groups = append(groups, g)
	}
	for _, g := range groups {
		tab := until(t, g, "three members", settled(3))
		if err := tab.Check(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("formed in %s", time.Since(began))
	for _, g := range groups {
		if g.LeaseLeft() <= 0 {
			t.Errorf("%v has no lease", g.Self())
		}
	}
}
