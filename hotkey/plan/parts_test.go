package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParts(t *testing.T) {
	for _, c := range []struct {
		rate, perPart float64
		nodes, want   int
	}{
		{0, 1000, 5, 2},
		{2000, 1000, 5, 2},
		{2001, 1000, 5, 3},
		{12_300, 1000, 16, 13},
		{12_300, 1000, 5, 5},
		{1e9, 1000, 1000, MaxParts},
		{1e9, 1000, 1, 1},
		{1e9, 1000, 0, 1},
		{math.Inf(1), 1000, 5, 5},
		{math.NaN(), 1000, 5, 2},
		{-1, 1000, 5, 2},
	} {
		if got := Parts(c.rate, c.perPart, c.nodes); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func someNodes(n, hot int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{fmt.Sprintf("10.0.0.%d:7700", i+1), i < hot}
	}
	return nodes
}

func counts(places []string) map[string]int {
	count := map[string]int{}
	for _, name := range places {
		count[name]++
	}
	return count
}

// Whatever the nodes: parts are even over those that get some, those for hot keys come
// first, the order does not matter, and what was placed stands evenly.
func TestSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := someNodes(rapid.IntRange(1, 80).Draw(t, "nodes"), 0)
		hot := 0
		for i := range nodes {
			if nodes[i].Hot = rapid.IntRange(0, 3).Draw(t, "hot") == 0; nodes[i].Hot {
				hot++
			}
		}
		n, key := rapid.IntRange(1, MaxParts).Draw(t, "parts"), rapid.String().Draw(t, "key")
		places, err := Spread(key, n, nodes)
		if err != nil || len(places) != n {
			t.Fatal(places, err)
		}
		if again, err := Spread(key, n, rapid.Permutation(nodes).Draw(t, "order")); err != nil || !slices.Equal(again, places) {
			t.Fatalf("%v, and in another order %v, %v", places, again, err)
		}
		among := len(nodes)
		if hot >= n {
			among = hot
		}
		count := counts(places)
		least, most, leastHot, mostCool := n, 0, n, 0
		for _, node := range nodes {
			c := count[node.Name]
			if hot >= n && !node.Hot {
				if c > 0 {
					t.Fatalf("%s gets %d of %d parts beside %d for hot keys", node.Name, c, n, hot)
				}
				continue
			}
			least, most = min(least, c), max(most, c)
			if node.Hot {
				leastHot = min(leastHot, c)
			} else {
				mostCool = max(mostCool, c)
			}
		}
		if most > (n+among-1)/among || least < n/among || leastHot < mostCool {
			t.Fatalf("%d parts on %d nodes of %d: %v", n, among, len(nodes), count)
		}
		if from, to, is := uneven(places, nodes); is {
			t.Fatalf("%v: %s has a part that belongs on %s", places, from, to)
		}
	})
}

// Which nodes differs from key to key, and few parts change places when a node comes.
func TestSpreadMoves(t *testing.T) {
	moved, first := 0, map[string]int{}
	const keys, n, parts = 200, 15, 10
	for k := range keys {
		key := fmt.Sprintf("tenant-%d", k)
		before, err := Spread(key, parts, someNodes(n, 0))
		after, err2 := Spread(key, parts, someNodes(n+1, 0))
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		first[before[0]]++
		for i := range before {
			if before[i] != after[i] {
				moved++
			}
		}
	}
	if len(first) < n {
		t.Errorf("the first parts of %d keys are on %d nodes of %d", keys, len(first), n)
	}
	part := float64(moved) / (keys * parts)
	t.Logf("%.1f %% of parts move, and %.1f %% have to", 100*part, 100.0/(n+1))
	if part > 0.25 {
		t.Errorf("%.1f %% of parts move", 100*part)
	}
}

func TestSpreadRefused(t *testing.T) {
	for says, f := range map[string]func() ([]string, error){
		"0 parts; choose 1 to 64":  func() ([]string, error) { return Spread("k", 0, someNodes(3, 0)) },
		"65 parts; choose 1 to 64": func() ([]string, error) { return Spread("k", 65, someNodes(3, 0)) },
		"no nodes":                 func() ([]string, error) { return Spread("k", 2, nil) },
		"named twice":              func() ([]string, error) { return Spread("k", 2, append(someNodes(3, 0), someNodes(1, 0)...)) },
	} {
		if places, err := f(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, %v, want %q", places, err, says)
		}
	}
}

func TestUneven(t *testing.T) {
	for _, c := range []struct {
		places string
		nodes  []Node
		want   string
	}{
		{"a b", []Node{{"a", false}, {"b", false}, {"c", false}}, ""},
		{"a a", []Node{{"a", false}, {"b", false}, {"c", false}}, "a>b"},
		{"a a b", []Node{{"a", false}, {"b", false}}, ""},
		{"a a a b", []Node{{"a", false}, {"b", false}}, ""},
		{"a b", []Node{{"a", false}, {"c", true}}, "b>c"}, // b is gone
		{"a b", []Node{{"a", false}, {"b", false}, {"c", true}}, ""},
		{"a b", []Node{{"a", true}, {"b", false}, {"c", true}}, "b>c"},
		{"a b", []Node{{"a", false}}, ""},
		{"b b", []Node{{"a", false}}, "b>a"},
		{"a b", nil, ""},
	} {
		from, to, is := uneven(strings.Fields(c.places), c.nodes)
		if got := strings.Trim(from+">"+to, ">"); got != c.want || is != (c.want != "") {
			t.Errorf("%s on %v: %q, want %q", c.places, c.nodes, got, c.want)
		}
	}
}
