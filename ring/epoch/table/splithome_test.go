package table

import (
	"testing"

	"github.com/keystead/keystead/ring"
)

// Only the owner of its key opens a split, weighs its parts and ends it.
func TestSplitByItsHome(t *testing.T) {
	tab := cluster(t, 3)
	nodes := tab.WantedNodes()
	salts, ok := tab.Place(tab.Epoch+1, nodes)
	if !ok {
		t.Fatal("no salts")
	}
	s := Split{ID: tab.Epoch + 1, Kind: "counter", Key: "k", Name: "counter"}
	for _, salt := range salts {
		s.Parts = append(s.Parts, Part{Salt: salt, Weight: 100})
	}
	tab = grow(t, tab, Command{BeginSplit: &BeginSplit{Split: s}})
	home := tab.Rows[tab.Find(ring.Hash("k"))].Owner
	opened, _ := tab.SplitOf(s.ID)
	for i, node := range nodes {
		if m, _, ok := tab.Owner(opened.PartHash(i)); !ok || m.Node != node {
			t.Errorf("part %d is on %s, want %s", i, m.Node, node)
		}
	}
	only := func(c func(by Holder) Command) {
		t.Helper()
		for _, m := range tab.Members {
			if h := m.Holder(); h != home {
				turned(t, tab, c(h))
			}
		}
		turned(t, tab, c(Holder{home.Node, home.Incarnation + 1}))
		tab = grow(t, tab, c(home))
	}
	only(func(by Holder) Command { return Command{OpenSplit: &OpenSplit{ID: s.ID, Home: by, Base: 7}} })
	only(func(by Holder) Command {
		return Command{Weigh: &Weigh{ID: s.ID, Home: by, Expect: s.ID, Weights: []uint32{9, 8, 7}}}
	})
	now, _ := tab.Split("counter", "k", "counter")
	if now == nil || now.Phase != Open || now.Base != 7 || now.Weight() != 24 || now.Weighed != tab.Epoch {
		t.Fatalf("%+v", now)
	}
	turned(t, tab, Command{EndSplit: &EndSplit{ID: s.ID, Home: home}})
	tab = grow(t, tab, Command{CloseSplit: &CloseSplit{ID: s.ID, Reason: "cold"}})
	only(func(by Holder) Command { return Command{EndSplit: &EndSplit{ID: s.ID, Home: by, Since: tab.Epoch}} })
	if _, ok := tab.Split("counter", "k", "counter"); ok {
		t.Error("it is split still")
	}
}
