package table

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/keystead/keystead/ring"
)

// TestBeginSplitRefuses tells what is not split.
func TestBeginSplitRefuses(t *testing.T) {
	tab := cluster(t, 2)
	parts := func(n int, weight uint32) []Part {
		all := make([]Part, n)
		for i := range all {
			all[i] = Part{Salt: uint32(i), Weight: weight}
		}
		return all
	}
	for name, change := range map[string]func(s *Split){
		"an earlier epoch":        func(s *Split) { s.ID-- },
		"a later epoch":           func(s *Split) { s.ID++ },
		"a lock":                  func(s *Split) { s.Kind = "lock" },
		"no key":                  func(s *Split) { s.Key = "" },
		"a part":                  func(s *Split) { s.Key = PartKey(1, 2, 3) },
		"a key that is not UTF-8": func(s *Split) { s.Key = "k\xff" },
		"a name that is not":      func(s *Split) { s.Name = "\xc3" },
		"a reason that is not":    func(s *Split) { s.Reason = "\xc3" },
		"a long key":              func(s *Split) { s.Key = strings.Repeat("k", maxSplitText) },
		"a long reason":           func(s *Split) { s.Reason = strings.Repeat("r", MaxReason+1) },
		"no parts":                func(s *Split) { s.Parts = nil },
		"one part":                func(s *Split) { s.Parts = parts(MinParts-1, 1) },
		"too many parts":          func(s *Split) { s.Parts = parts(MaxParts+1, 1) },
		"a part without weight":   func(s *Split) { s.Parts[1].Weight = 0 },
		"more than the whole":     func(s *Split) { s.Parts = parts(2, FullWeight/2+1) },
		"a sum that overflows":    func(s *Split) { s.Parts = parts(2, 1<<31) },
	} {
		c := beginning(tab, "k")
		c.BeginSplit.Split.Parts = parts(2, 1)
		change(&c.BeginSplit.Split)
		if next, err := tab.Apply(c); err == nil || next != tab {
			t.Errorf("%s: %v", name, err)
		}
	}
	turned(t, made(), beginning(made(), "k")) // there are no rows
	most := beginning(tab, "k")
	most.BeginSplit.Split.Parts = parts(MaxParts, FullWeight/MaxParts)
	tab = grow(t, tab, most)
	turned(t, tab, beginning(tab, "k"))
	other := beginning(tab, "k") // the same address, but another object
	other.BeginSplit.Split.Kind = "limit"
	tab = grow(t, tab, other, beginning(&Table{Epoch: tab.Epoch + 1}, "other"))
	for i := len(tab.Splits); i < MaxSplits; i++ {
		tab = grow(t, tab, beginning(tab, fmt.Sprint("k", i)))
	}
	turned(t, tab, beginning(tab, "one more"))
	if read, err := Restore(tab.Encode()); err != nil || !equal(read, tab) {
		t.Errorf("with all the splits there may be: %v", err)
	}
}

// TestSplitPhases tries every command in every phase, by the home and by others.
func TestSplitPhases(t *testing.T) {
	const opens, weighs, closes, ends = "open_split", "weigh", "close_split", "end_split"
	apt := map[SplitPhase]string{Opening: opens + ends, Open: weighs + closes, Closing: ends}
	start := cluster(t, 3)
	for phase := Opening; phase <= Closing; phase++ {
		tab, s := splitTo(t, start, phase)
		home := homeOf(tab, s.Key)
		for _, by := range []Holder{home, {}, {home.Node, home.Incarnation + 1}, holder("n9", 1), holder("n1", 1), holder("n2", 1), holder("n3", 1)} {
			for _, id := range []uint64{s.ID, s.ID - 1, s.ID + 1, 0} {
				for _, c := range []Command{
					{OpenSplit: &OpenSplit{ID: id, Home: by, Base: 3}},
					{Weigh: &Weigh{ID: id, Home: by, Expect: s.Weighed, Weights: []uint32{1, 1}}},
					{CloseSplit: &CloseSplit{ID: id}},
					{EndSplit: &EndSplit{ID: id, Home: by, Since: s.Since}},
				} {
					if strings.Contains(apt[phase], c.Kind()) && id == s.ID && (by == home || c.CloseSplit != nil) {
						next := grow(t, tab, c)
						if err := compare(c, tab, next); err != nil {
							t.Errorf("%s: %s: %v", phase, c.Kind(), err)
						}
						continue
					}
					turned(t, tab, c)
				}
			}
		}
	}
}

// TestWeigh: a commit lowers weights, or it raises them, as its home saw them last.
func TestWeigh(t *testing.T) {
	tab, s := splitTo(t, cluster(t, 2), Open)
	home := homeOf(tab, "k")
	weigh := func(expect uint64, weights ...uint32) Command {
		return Command{Weigh: &Weigh{ID: s.ID, Home: home, Expect: expect, Weights: weights}}
	}
	const half = FullWeight / 2
	for name, weights := range map[string][]uint32{
		"the same": {half, half}, "one up and one down": {half - 1, half + 1}, "more than the whole": {half, half + 1}, "nothing": {0, half},
		"too few": {half - 1}, "too many": {half - 1, half - 1, 1}, "none": nil, "a sum that overflows": {half, 1<<32 - half},
	} {
		t.Run(name, func(t *testing.T) { turned(t, tab, weigh(s.Weighed, weights...)) })
	}
	turned(t, tab, weigh(s.Weighed+1, half, half-1))
	turned(t, tab, weigh(s.Since, half, half-1)) // the weights are older than the phase
	cut := grow(t, tab, weigh(s.Weighed, half, 1))
	turned(t, cut, weigh(s.Weighed, half-1, 1)) // late
	turned(t, cut, weigh(s.Weighed, half, half))
	turned(t, cut, weigh(cut.Epoch, half+1, half)) // one more than the whole
	raised := grow(t, cut, weigh(cut.Epoch, FullWeight-1, 1))
	if now, _ := raised.SplitOf(s.ID); now.Weight() != FullWeight || now.Weighed != raised.Epoch || now.Since != s.Since {
		t.Errorf("%+v", now)
	}
	if was, _ := cut.SplitOf(s.ID); was.Parts[0].Weight != half {
		t.Errorf("the table before has other weights now: %+v", was)
	}
	if first, _ := tab.SplitOf(s.ID); first.Parts[1].Weight != half {
		t.Errorf("the first table has other weights now: %+v", first)
	}
}

// TestSplitHomes: the home of a split is who owns the row of its key now, whatever
// happened to those before.
func TestSplitHomes(t *testing.T) {
	tab, s := splitTo(t, cluster(t, 2), Opening)
	first := homeOf(tab, "k")
	open := func(by Holder) Command { return Command{OpenSplit: &OpenSplit{ID: s.ID, Home: by}} }
	back := grow(t, tab, Command{Resume: &Resume{Member: current(member(first.Node, first.Incarnation+1)), Old: first.Incarnation}})
	turned(t, back, open(first))
	grow(t, back, open(holder(first.Node, first.Incarnation+1)))
	tab = grow(t, tab, Command{Remove: &Remove{Members: []Holder{first}}})
	turned(t, tab, open(first))
	second := homeOf(tab, "k")
	opened := grow(t, tab, open(second))
	alone := grow(t, opened, Command{Remove: &Remove{Members: []Holder{second}}})
	if !homeOf(alone, "k").None() {
		t.Fatal("somebody owns the key")
	}
	// The row has no owner: nobody is the home, least of all nobody.
	for _, by := range []Holder{{}, first, second} {
		turned(t, alone, Command{Weigh: &Weigh{ID: s.ID, Home: by, Expect: s.Weighed, Weights: []uint32{1, 1}}})
	}
	closed := grow(t, alone, Command{CloseSplit: &CloseSplit{ID: s.ID}})
	turned(t, closed, Command{EndSplit: &EndSplit{ID: s.ID, Since: closed.Epoch}})
	later := grow(t, closed, Command{Admit: &Admit{Member: current(member("n7", 1))}})
	later = grow(t, later, towards(later))
	later = grow(t, later, Command{EndSplit: &EndSplit{ID: s.ID, Home: holder("n7", 1), Since: closed.Epoch}})
	if len(later.Splits) != 0 {
		t.Errorf("%+v", later.Splits)
	}
}

// TestLateEndSplit: a home that gives up opening does not end what was opened meanwhile
// and is to be united.
func TestLateEndSplit(t *testing.T) {
	tab, s := splitTo(t, cluster(t, 2), Opening)
	home := homeOf(tab, "k")
	late := Command{EndSplit: &EndSplit{ID: s.ID, Home: home, Since: s.Since}}
	tab = grow(t, tab, Command{OpenSplit: &OpenSplit{ID: s.ID, Home: home, Base: 9}})
	turned(t, tab, late)
	tab = grow(t, tab, Command{CloseSplit: &CloseSplit{ID: s.ID}})
	turned(t, tab, late)
	grow(t, tab, Command{EndSplit: &EndSplit{ID: s.ID, Home: home, Since: tab.Epoch}})
}

// TestHomeAroundTheEnd: a key behind the last row's end is of the first row.
func TestHomeAroundTheEnd(t *testing.T) {
	tab := cluster(t, 3)
	last := tab.Rows[len(tab.Rows)-1]
	key := ""
	for i := 0; ; i++ {
		if key = fmt.Sprint("key ", i); ring.Hash(key) > last.End {
			break
		}
	}
	tab = grow(t, tab, beginning(tab, key))
	id := tab.Epoch
	for _, m := range tab.Members {
		if m.Holder() != tab.Rows[0].Owner {
			turned(t, tab, Command{OpenSplit: &OpenSplit{ID: id, Home: m.Holder()}})
		}
	}
	grow(t, tab, Command{OpenSplit: &OpenSplit{ID: id, Home: tab.Rows[0].Owner}})
}

// TestTablesShareNoSplits: two tables that are made of one have each its own, and
// nothing of the commands.
func TestTablesShareNoSplits(t *testing.T) {
	tab, s := splitTo(t, cluster(t, 2), Open)
	was := deep(tab)
	one, two := beginning(tab, "one"), beginning(tab, "two")
	a, b := grow(t, tab, one), grow(t, tab, two)
	one.BeginSplit.Split.Parts[0] = Part{Salt: 99, Weight: 99}
	if got, ok := a.SplitOf(a.Epoch); !ok || got.Key != "one" || got.Parts[0].Weight != FullWeight/2 {
		t.Errorf("%+v", got)
	}
	if got, ok := b.SplitOf(b.Epoch); !ok || got.Key != "two" {
		t.Errorf("%+v", got)
	}
	if _, ok := a.Split("counter", "two", "n"); ok {
		t.Error("a split is found in the table of another command")
	}
	weights := []uint32{1, 1}
	c := grow(t, tab, Command{Weigh: &Weigh{ID: s.ID, Home: homeOf(tab, "k"), Expect: s.Weighed, Weights: weights}})
	weights[0] = 77
	if got, _ := c.SplitOf(s.ID); got.Parts[0].Weight != 1 {
		t.Errorf("%+v", got)
	}
	grow(t, tab, Command{CloseSplit: &CloseSplit{ID: s.ID}})
	ended := grow(t, a, Command{CloseSplit: &CloseSplit{ID: s.ID}})
	ended = grow(t, ended, Command{EndSplit: &EndSplit{ID: s.ID, Home: homeOf(tab, "k"), Since: ended.Epoch}})
	if got, ok := ended.Split("counter", "one", "n"); !ok || got.ID != a.Epoch {
		t.Errorf("the split behind the one that ended is %+v", got)
	}
	if len(a.Splits) != 2 || a.Splits[0].Phase != Open || !equal(was, tab) {
		t.Error("a table was changed by a command that was applied to it")
	}
}

// TestRestoreRefusesSplits: a snapshot with splits that no command makes is damaged.
func TestRestoreRefusesSplits(t *testing.T) {
	for name, change := range map[string]func(tab *Table){
		"no id":                     func(tab *Table) { tab.Splits[0].ID = 0 },
		"not in order":              func(tab *Table) { tab.Splits[0], tab.Splits[1] = tab.Splits[1], tab.Splits[0] },
		"one id twice":              func(tab *Table) { tab.Splits[1].ID = tab.Splits[0].ID },
		"one object twice":          func(tab *Table) { tab.Splits[1].Kind = tab.Splits[0].Kind },
		"of a later epoch":          func(tab *Table) { tab.Splits[1].ID, tab.Splits[1].Since, tab.Splits[1].Weighed = 99, 99, 99 },
		"a phase of a later epoch":  func(tab *Table) { tab.Splits[0].Since = tab.Epoch + 1 },
		"a phase from before it":    func(tab *Table) { tab.Splits[0].Since = tab.Splits[0].ID - 1 },
		"weights of a later epoch":  func(tab *Table) { tab.Splits[0].Weighed = tab.Epoch + 1 },
		"weights from before it":    func(tab *Table) { tab.Splits[0].Weighed = tab.Splits[0].ID - 1 },
		"no phase":                  func(tab *Table) { tab.Splits[0].Phase = 0 },
		"an unknown phase":          func(tab *Table) { tab.Splits[0].Phase = Closing + 1 },
		"another kind":              func(tab *Table) { tab.Splits[0].Kind = "lock" },
		"more than the whole":       func(tab *Table) { tab.Splits[0].Parts[0].Weight++ },
		"a part without weight":     func(tab *Table) { tab.Splits[0].Parts[0].Weight = 0 },
		"a key of a part":           func(tab *Table) { tab.Splits[0].Key = "\x00" },
		"more than there may be":    func(tab *Table) { tab.Splits = many(MaxSplits + 1) },
		"one part, and no other":    func(tab *Table) { tab.Splits[0].Parts = tab.Splits[0].Parts[:1] },
		"a reason that is too long": func(tab *Table) { tab.Splits[0].Reason = strings.Repeat("r", MaxReason+1) },
	} {
		tab := smallSplit()
		tab.Epoch = 200
		change(tab)
		if tab.Splits[len(tab.Splits)-1].ID == 99 {
			tab.Epoch = 9
		}
		if _, err := Restore(tab.Encode()); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
	tab := smallSplit()
	tab.Epoch, tab.Splits = 200, many(MaxSplits)
	if _, err := Restore(tab.Encode()); err != nil {
		t.Errorf("as many as there may be: %v", err)
	}
}

// many are so many splits.
func many(n int) []Split {
	all := make([]Split, n)
	for i := range all {
		id := uint64(i + 1)
		all[i] = Split{ID: id, Kind: "limit", Key: fmt.Sprint("k", i), Phase: Open, Since: id, Weighed: id, Parts: []Part{{1, 1}, {2, 1}}}
	}
	return all
}

// TestPlace: the salts put each part on the node that was asked for, by the wanted ring
// and by the table that has moved to it.
func TestPlace(t *testing.T) {
	tab := made()
	for n := 1; n <= 16; n++ {
		tab = joined(t, tab, fmt.Sprint("n", n), 1)
		if n == 1 {
			continue
		}
		nodes := make([]string, MaxParts)
		for i := range nodes {
			nodes[i] = fmt.Sprint("n", 1+i*7%n)
		}
		id := tab.Epoch + 1
		salts, ok := tab.Place(id, nodes)
		if !ok || len(salts) != len(nodes) {
			t.Fatalf("%d nodes: %v, %v", n, salts, ok)
		}
		for i, salt := range salts {
			h := ring.Hash(PartKey(id, i, salt))
			wanted, _ := tab.WantedOwner(h)
			owner, _, _ := tab.Owner(h)
			if wanted.Node != nodes[i] || owner.Node != nodes[i] {
				t.Fatalf("%d nodes: part %d is at %s and should be at %s", n, i, wanted.Node, nodes[i])
			}
		}
		if _, ok := tab.Place(id, []string{"n1", "n17"}); ok {
			t.Errorf("%d nodes: there is a place on a node that is not on the ring", n)
		}
	}
	// Who joins is on the wanted ring only when a transition leads there.
	tab = grow(t, tab, admit("n17", 1))
	if _, ok := tab.Place(tab.Epoch+1, []string{"n17", "n1"}); ok {
		t.Error("there is a place on a node that is joining")
	}
	tab = grow(t, tab, towards(tab))
	if _, ok := tab.Place(tab.Epoch+1, []string{"n17", "n1"}); !ok {
		t.Error("there is no place on a node of the wanted ring")
	}
	if _, ok := made().Place(1, []string{"n1", "n2"}); ok {
		t.Error("there is a place on a ring of nobody")
	}
}

// TestMaySplit is never false for what is split or a part, and is quick for nearly
// everything else.
func TestMaySplit(t *testing.T) {
	tab := cluster(t, 2)
	if tab.MaySplit(ring.Hash("k")) {
		t.Error("nothing is split")
	}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 30 {
		c := beginning(tab, fmt.Sprint("key ", r.Uint64()))
		for p := range c.BeginSplit.Split.Parts {
			c.BeginSplit.Split.Parts[p].Salt = r.Uint32()
		}
		tab = grow(t, tab, c)
		for _, s := range tab.Splits {
			for p := range s.Parts {
				if !tab.MaySplit(ring.Hash(s.Key)) || !tab.MaySplit(ring.Hash(s.PartKey(p))) {
					t.Fatalf("%d splits: %q or a part of it is said to be whole", i+1, s.Key)
				}
			}
		}
		maybe := 0
		for range 1000 {
			if tab.MaySplit(r.Uint64()) {
				maybe++
			}
		}
		if most := 10 * (i + 1); maybe > most { // each split has three positions of 1,024
			t.Errorf("%d splits: of 1000 positions %d may be split", i+1, maybe)
		}
	}
	id := tab.Splits[0].ID
	gone := grow(t, tab, Command{EndSplit: &EndSplit{ID: id, Home: homeOf(tab, tab.Splits[0].Key), Since: id}})
	if _, ok := gone.SplitOf(id); ok || gone.MaySplit(ring.Hash(tab.Splits[0].Key)) != otherwise(gone, ring.Hash(tab.Splits[0].Key)) {
		t.Error("what is whole again is said to be split")
	}
}

// otherwise reports whether a position shares its place in the filter with something split.
func otherwise(t *Table, h uint64) bool {
	for _, s := range t.Splits {
		for p := range s.Parts {
			if ring.Hash(s.PartKey(p))>>54 == h>>54 {
				return true
			}
		}
		if ring.Hash(s.Key)>>54 == h>>54 {
			return true
		}
	}
	return false
}

// FuzzPartKey: what a part's key says is read from it again, and different parts have
// different keys, none of which a user can have.
func FuzzPartKey(f *testing.F) {
	f.Add(uint64(1), uint16(0), uint32(0), uint64(1), uint16(0), uint32(1))
	f.Add(uint64(1<<64-1), uint16(MaxParts-1), uint32(1<<32-1), uint64(36), uint16(36), uint32(36))
	f.Fuzz(func(t *testing.T, id uint64, part uint16, salt uint32, id2 uint64, part2 uint16, salt2 uint32) {
		key, other := PartKey(id, int(part), salt), PartKey(id2, int(part2), salt2)
		if gotID, got, ok := OfPart(key); !ok || gotID != id || got != int(part) {
			t.Errorf("%q is part %d of %d: %v", key, got, gotID, ok)
		}
		same := id == id2 && part == part2 && salt == salt2
		if key[0] != 0 || len(key) > 32 || (key == other) != same {
			t.Errorf("%q, %q", key, other)
		}
	})
}

// FuzzOfPart feeds garbage to OfPart. What it takes has the form of a part's key.
func FuzzOfPart(f *testing.F) {
	for _, key := range []string{"", "\x00", "k", "1.2.3", "\x001.2", "\x001.2.3.4", "\x00..", "\x00-1.2.3", "\x001.-2.3", "\x00+1.2.3", "\x001.2.3 ", "\x00z.z.z", "\x00001.2.3", "\x001.2.1z141z4", "\x003w5e11264sgsg.0.0", "\x001.1ekg.0"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		id, part, ok := OfPart(key)
		if !ok {
			return
		}
		if key[0] != 0 || strings.Count(key, ".") != 2 || part < 0 || part > 1<<16-1 || !strings.HasPrefix(PartKey(id, part, 0), "\x00") {
			t.Errorf("%q is part %d of %d", key, part, id)
		}
	})
}

// TestOfPartRefuses tells what is no key of a part.
func TestOfPartRefuses(t *testing.T) {
	for _, key := range []string{"", "k", "1.2.3", "\x00", "\x001.2", "\x001.2.3.4", "\x00.2.3", "\x001..3", "\x001.2.", "\x00-1.2.3", "\x001.+2.3", "\x001_0.2.3", "\x001.2.1z141z4", "\x003w5e11264sgsg.0.0", "\x001.1ekg.0"} {
		if id, part, ok := OfPart(key); ok {
			t.Errorf("%q is part %d of %d", key, part, id)
		}
	}
}
