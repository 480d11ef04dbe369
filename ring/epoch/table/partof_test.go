package table

import (
	"testing"

	"github.com/keystead/keystead/ring"
)

// Clients in other languages compute the part of a request id, too: it is what it is.
func TestPartOf(t *testing.T) {
	for _, tc := range []struct {
		hi, lo, sequence uint64
		want             [3]int // of 2, of 3, of 64
	}{
		{0, 0, 0, [3]int{0, 2, 40}},
		{0, 0, 1, [3]int{1, 2, 37}},
		{0x0001020304050607, 0x08090a0b0c0d0e0f, 1, [3]int{1, 2, 61}},
		{1<<64 - 1, 1<<64 - 1, 1<<64 - 1, [3]int{0, 2, 54}},
	} {
		got := [3]int{PartOf(tc.hi, tc.lo, tc.sequence, 2), PartOf(tc.hi, tc.lo, tc.sequence, 3), PartOf(tc.hi, tc.lo, tc.sequence, 64)}
		if got != tc.want {
			t.Errorf("%x %x %d: %v, want %v", tc.hi, tc.lo, tc.sequence, got, tc.want)
		}
	}
}

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
