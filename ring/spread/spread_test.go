package spread

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/ring"
)

var nodeSets = rapid.Custom(func(t *rapid.T) []string {
	return rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9.:]{1,12}`), 1, 20, rapid.ID[string]).Draw(t, "nodes")
})

func TestLoadsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := nodeSets.Draw(t, "nodes")
		n := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, MaxSubKeys)).Draw(t, "n")
		key := rapid.String().Draw(t, "key")
		places, err := Place(key, n, nodes)
		if err != nil {
			t.Fatal(err)
		}
		count := map[string]int{}
		for _, p := range places {
			if count[p]++; count[p] > Most(n, len(nodes)) {
				t.Fatalf("%s has %d of %d sub-keys on %d nodes; at most %d", p, count[p], n, len(nodes), Most(n, len(nodes)))
			}
			if !slices.Contains(nodes, p) {
				t.Fatalf("%q is no node", p)
			}
		}
		again, err := Place(key, n, rapid.Permutation(nodes).Draw(t, "order"))
		if err != nil || !slices.Equal(places, again) {
			t.Fatalf("another order, other places: %v", err)
		}
	})
}

func TestBadInput(t *testing.T) {
	for name, f := range map[string]func() ([]string, error){
		"no nodes":  func() ([]string, error) { return Place("k", 1, nil) },
		"twice":     func() ([]string, error) { return Place("k", 1, []string{"a", "b", "a"}) },
		"none":      func() ([]string, error) { return Place("k", 0, []string{"a"}) },
		"too many":  func() ([]string, error) { return Place("k", MaxSubKeys+1, []string{"a"}) },
		"less than": func() ([]string, error) { return Place("k", -1, []string{"a"}) },
	} {
		if places, err := f(); err == nil {
			t.Errorf("%s: %v", name, places)
		}
	}
}

// Keys differ in their places, and the points are those of package ring.
func TestPlacesComeFromTheRing(t *testing.T) {
	nodes := []string{"a:1", "b:1", "c:1", "d:1"}
	one, err := Place("one", 64, nodes)
	if err != nil {
		t.Fatal(err)
	}
	other, err := Place("other", 64, nodes)
	if err != nil || slices.Equal(one, other) {
		t.Errorf("two keys have the same places: %v", err)
	}
	r, err := ring.New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	// With room for everything, the first sub-key goes where the ring says.
	first, err := Place("one", 1, nodes)
	if err != nil {
		t.Fatal(err)
	}
	h := hasher{seed: ring.Hash("one")}.Sum64(make([]byte, 8))
	if want := r.Owner(h); first[0] != want {
		t.Errorf("placed at %s, the ring says %s", first[0], want)
	}
}

// A node that leaves moves its own sub-keys and few others.
func TestFewMove(t *testing.T) {
	var nodes []string
	for i := range 16 {
		nodes = append(nodes, fmt.Sprintf("10.0.0.%d:7400", i+1))
	}
	const n = 512
	before, err := Place("hot", n, nodes)
	if err != nil {
		t.Fatal(err)
	}
	after, err := Place("hot", n, nodes[:15])
	if err != nil {
		t.Fatal(err)
	}
	moved, had := 0, 0
	for i := range before {
		if before[i] == nodes[15] {
			had++
		} else if before[i] != after[i] {
			moved++
		}
	}
	if moved > n/5 {
		t.Errorf("%d of %d sub-keys moved beside the %d that had to", moved, n, had)
	}
	t.Logf("%d moved beside the %d that had to", moved, had)
}
