package ring

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"
)

func hashKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("10.0.%d.%d:7400", i/250, i%250+1)
	}
	return keys
}

func mustNew(t testing.TB, keys []string) *Ring {
	t.Helper()
	r, err := New(keys)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var nodes = rapid.Custom(func(t *rapid.T) []string {
	return rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9.:]{1,12}`), 1, 12, rapid.ID[string]).Draw(t, "nodes")
})

// slow finds owner and standby by walking the points.
func slow(r *Ring, h uint64) (owner, standby string) {
	n := r.Size()
	i := sort.Search(n, func(i int) bool { at, _ := r.At(i); return at >= h }) % n
	_, owner = r.At(i)
	for k := range n {
		if _, node := r.At((i + k) % n); node != owner {
			return owner, node
		}
	}
	return owner, ""
}

// edge draws positions where look-ups go wrong if they do: at points, beside
// them, and at the ends.
func edge(t *rapid.T, r *Ring) uint64 {
	at, _ := r.At(rapid.IntRange(0, r.Size()-1).Draw(t, "point"))
	return rapid.SampledFrom([]uint64{at, at - 1, at + 1, 0, math.MaxUint64, rapid.Uint64().Draw(t, "any")}).Draw(t, "position")
}

func TestLookUpAgainstWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, err := NewSized(nodes.Draw(t, "nodes"), rapid.Uint64Range(1, 3000).Draw(t, "size"), MaxPoints)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			h := edge(t, r)
			owner, standby := slow(r, h)
			got, ok := r.Standby(h)
			if r.Owner(h) != owner || got != standby || ok != (standby != "") {
				t.Fatalf("%d: %s then %s, want %s then %s", h, r.Owner(h), got, owner, standby)
			}
		}
	})
}

// Adding or removing a node moves only that node's share; what a dead node had
// goes exactly to its standby.
func TestOneNodeMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := nodes.Draw(t, "nodes")
		extra := "extra:1"
		with, err := New(append(slices.Clone(keys), extra))
		if err != nil {
			t.Fatal(err)
		}
		without, err := New(keys)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			h := edge(t, with)
			heir, _ := with.Standby(h)
			switch owner := with.Owner(h); {
			case owner != extra && owner != without.Owner(h):
				t.Fatalf("%d moved from %s to %s", h, without.Owner(h), owner)
			case owner == extra && without.Owner(h) != heir:
				t.Fatalf("%d of the dead node went to %s, not to its standby %s", h, without.Owner(h), heir)
			}
		}
	})
}

func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := nodes.Draw(t, "nodes")
		a, err := New(keys)
		if err != nil {
			t.Fatal(err)
		}
		b, err := New(rapid.Permutation(keys).Draw(t, "order"))
		if err != nil {
			t.Fatal(err)
		}
		if a.Digest() != b.Digest() || !slices.Equal(a.points, b.points) || !slices.Equal(a.owner, b.owner) {
			t.Fatal("another order, another ring")
		}
	})
}

func TestDigestTellsRingsApart(t *testing.T) {
	seen := map[uint64]string{}
	for name, r := range map[string]func() (*Ring, error){
		"two":     func() (*Ring, error) { return New([]string{"a", "b"}) },
		"three":   func() (*Ring, error) { return New([]string{"a", "b", "c"}) },
		"joined":  func() (*Ring, error) { return New([]string{"a b"}) },
		"smaller": func() (*Ring, error) { return NewSized([]string{"a", "b"}, 256, MaxPoints) },
		"one":     func() (*Ring, error) { return New([]string{"a"}) },
	} {
		ring, err := r()
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[ring.Digest()]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[ring.Digest()] = name
	}
}

// Every node has exactly PointsPerNode points, for numbers of nodes all over what
// a ring of equal counts is promised for.
func TestCountsAreEqual(t *testing.T) {
	for n := 1; n <= 256; n += 1 + n/16 {
		for _, s := range mustNew(t, hashKeys(n)).Balance().Nodes {
			if s.Points != PointsPerNode {
				t.Fatalf("%d nodes: %s has %d points", n, s.Node, s.Points)
			}
		}
	}
}

func TestDiffIsWhatChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, err := New(nodes.Draw(t, "from"))
		if err != nil {
			t.Fatal(err)
		}
		to, err := New(nodes.Draw(t, "to"))
		if err != nil {
			t.Fatal(err)
		}
		moves := Diff(from, to)
		within := func(m Move, h uint64) bool { return m.After == m.UpTo || h-m.After-1 < m.UpTo-m.After }
		for range 100 {
			h := edge(t, rapid.SampledFrom([]*Ring{from, to}).Draw(t, "ring"))
			want := Move{}
			want.OldOwner, want.OldBackup = from.at(h)
			want.NewOwner, want.NewBackup = to.at(h)
			i := slices.IndexFunc(moves, func(m Move) bool { return within(m, h) })
			if i < 0 {
				if want.OldOwner != want.NewOwner || want.OldBackup != want.NewBackup {
					t.Fatalf("%d: %+v is in no move", h, want)
				}
				continue
			}
			if !moves[i].alike(want) {
				t.Fatalf("%d: %+v, want %+v", h, moves[i], want)
			}
		}
	})
}

func TestBalance(t *testing.T) {
	for _, n := range []int{1, 2, 3, 16} {
		b := mustNew(t, hashKeys(n)).Balance()
		var owned, standby float64
		for _, s := range b.Nodes {
			owned += s.Owned
			standby += s.Standby
		}
		wantStandby := min(1, float64(n-1))
		if math.Abs(owned-1) > 1e-9 || math.Abs(standby-wantStandby) > 1e-9 || b.Most > 1.35 || b.Least < 0.7 {
			t.Errorf("%d nodes: owned %v, standby %v\n%v", n, owned, standby, b)
		}
	}
	// A join 3 → 4 moves the new node's quarter, and nothing else.
	moved := Moved(Diff(mustNew(t, hashKeys(3)), mustNew(t, hashKeys(4))))
	share := mustNew(t, hashKeys(4)).Balance().Nodes[3].Owned
	if math.Abs(moved.Owner-share) > 1e-9 || moved.Standby < moved.Owner {
		t.Errorf("%+v moved, the new node owns %v", moved, share)
	}
}

func TestBadRings(t *testing.T) {
	for name, keys := range map[string][]string{
		"none":      {},
		"empty":     {"a", ""},
		"duplicate": {"a", "b", "a"},
		"long":      {string(make([]byte, MaxHashKey+1))},
		"too many":  make([]string, MaxNodes+1),
	} {
		if _, err := New(keys); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewSized([]string{"a"}, 0, 10); err == nil {
		t.Error("no points: no error")
	}
	if _, err := NewSized([]string{"a"}, 1, MaxPoints+1); err == nil {
		t.Error("too many points: no error")
	}
}

func BenchmarkLookUp(b *testing.B) {
	r := mustNew(b, hashKeys(16)) // 4,096 points
	h := uint64(1)
	var sum int
	b.ReportAllocs()
	for b.Loop() {
		h = h*6364136223846793005 + 1442695040888963407
		sum += r.Point(h)
	}
	_ = sum
}

func BenchmarkNew16(b *testing.B) {
	keys := hashKeys(16)
	b.ReportAllocs()
	for b.Loop() {
		mustNew(b, keys)
	}
}

// TestThird: the third node of a position is its standby on a ring without its standby.
func TestThird(t *testing.T) {
	keys := []string{"a", "b", "c", "d", "e"}
	whole, err := New(keys)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(50) {
		h := i * 0x9e3779b97f4a7c15
		standby, _ := whole.Standby(h)
		less, err := New(slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == standby }))
		if err != nil {
			t.Fatal(err)
		}
		third, ok := whole.Third(h)
		if want, _ := less.Standby(h); !ok || third != want {
			t.Fatalf("%x: %q, not %q", h, third, want)
		}
	}
	two, err := New(keys[:2])
	if err != nil {
		t.Fatal(err)
	}
	if third, ok := two.Third(7); ok {
		t.Errorf("of two nodes %q is the third", third)
	}
}
