package table

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/keystead/keystead/ring"
)

// sameSplit reports whether two splits are the same to everybody.
func sameSplit(a, b Split) bool {
	return a.ID == b.ID && a.Kind == b.Kind && a.Key == b.Key && a.Name == b.Name && a.Phase == b.Phase && a.Since == b.Since && a.Weighed == b.Weighed &&
		a.Base == b.Base && a.Manual == b.Manual && a.Reason == b.Reason && slices.Equal(a.Parts, b.Parts) && slices.Equal(a.hashes, b.hashes)
}

// beginning divides the counter of a key into two halves.
func beginning(t *Table, key string) Command {
	return Command{BeginSplit: &BeginSplit{Split{ID: t.Epoch + 1, Kind: "counter", Key: key, Name: "n", Parts: []Part{{Salt: 1, Weight: FullWeight / 2}, {Salt: 2, Weight: FullWeight / 2}}}}}
}

// current is a process of a program that knows all commands.
func current(m Member) Member {
	m.Level = max(Level, DiskLevel)
	return m
}

// homeOf returns who owns a key, by looking at all rows.
func homeOf(t *Table, key string) Holder {
	r, _ := at(t, ring.Hash(key))
	return r.Owner
}

// splitTo divides the counter of the key "k" and brings the split as far as a phase.
func splitTo(t testing.TB, tab *Table, phase SplitPhase) (*Table, Split) {
	t.Helper()
	tab = grow(t, tab, beginning(tab, "k"))
	id, home := tab.Epoch, homeOf(tab, "k")
	if phase > Opening {
		tab = grow(t, tab, Command{OpenSplit: &OpenSplit{ID: id, Home: home, Base: 7}})
	}
	if phase > Open {
		tab = grow(t, tab, Command{CloseSplit: &CloseSplit{ID: id, Reason: "enough"}})
	}
	s, ok := tab.SplitOf(id)
	if !ok || s.Phase != phase {
		t.Fatalf("split %d is not %s: %+v", id, phase, s)
	}
	return tab, *s
}

// drawLevel returns that of a process that wants to be a member: it is seldom too old.
func drawLevel(t *rapid.T) uint32 {
	return rapid.SampledFrom([]uint32{DiskLevel, DiskLevel, DiskLevel, Level, 0, 1}).Draw(t, "level")
}

// drawSplit draws a command about splits, apt or not.
func drawSplit(t *rapid.T, tab *Table, pick func(string) Holder) Command {
	if len(tab.Splits) == 0 || rapid.IntRange(0, 3).Draw(t, "new") == 3 {
		return drawBeginSplit(t, tab)
	}
	s := rapid.SampledFrom(tab.Splits).Draw(t, "split")
	id, home := s.ID, homeOf(tab, s.Key)
	switch rapid.IntRange(0, 11).Draw(t, "wrong") {
	case 11:
		home = pick("home")
	case 10:
		home = Holder{}
	case 9:
		id = rapid.Uint64Range(0, tab.Epoch).Draw(t, "id")
	}
	// Most draw what its phase allows.
	kind := map[SplitPhase][]int{Opening: {0, 0, 0, 3, 1}, Open: {1, 1, 1, 1, 2, 2, 0, 3}, Closing: {3, 3, 3, 0, 1, 2}}[s.Phase]
	switch rapid.SampledFrom(kind).Draw(t, "step") {
	case 0:
		return Command{OpenSplit: &OpenSplit{ID: id, Home: home, Base: rapid.Int64().Draw(t, "base")}}
	case 1:
		c := &Weigh{ID: id, Home: home, Expect: s.Weighed - uint64(rapid.IntRange(0, 9).Draw(t, "late")/9), Weights: drawWeights(t, s)}
		return Command{Weigh: c}
	case 2:
		return Command{CloseSplit: &CloseSplit{ID: id, Reason: strings.Repeat("r", rapid.SampledFrom([]int{0, 5, MaxReason, MaxReason + 1}).Draw(t, "reason"))}}
	}
	return Command{EndSplit: &EndSplit{ID: id, Home: home, Since: s.Since - uint64(rapid.IntRange(0, 9).Draw(t, "an earlier phase")/9)}}
}

// drawBeginSplit divides one of few objects.
func drawBeginSplit(t *rapid.T, tab *Table) Command {
	n := rapid.IntRange(MinParts, 5).Draw(t, "parts")
	s := Split{ID: tab.Epoch + 1, Kind: rapid.SampledFrom([]string{"limit", "counter", "counter", "lock"}).Draw(t, "kind of object"),
		Key: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"), Name: rapid.SampledFrom([]string{"", "n"}).Draw(t, "name"),
		Phase: SplitPhase(rapid.IntRange(0, 4).Draw(t, "phase")), Base: 9, Since: 1, Weighed: 2, Parts: make([]Part, n)}
	for i := range s.Parts {
		s.Parts[i] = Part{Salt: rapid.Uint32().Draw(t, "salt"), Weight: uint32(FullWeight / n)}
	}
	switch rapid.IntRange(0, 11).Draw(t, "odd") {
	case 11:
		s.ID--
	case 10:
		s.Parts[0].Weight = FullWeight
	case 9:
		s.Parts[0].Weight = 0
	case 8:
		s.Parts = s.Parts[:1]
	}
	return Command{BeginSplit: &BeginSplit{s}}
}

// drawWeights changes the weights of a split in one direction, or in any.
func drawWeights(t *rapid.T, s Split) []uint32 {
	room := FullWeight - s.Weight()
	how := rapid.SampledFrom([]string{"lower", "lower", "raise", "raise", "any", "same", "fewer"}).Draw(t, "how")
	weights := make([]uint32, len(s.Parts))
	for i, p := range s.Parts {
		weights[i] = p.Weight
		switch how {
		case "lower":
			weights[i] = rapid.Uint32Range(1, p.Weight).Draw(t, "weight")
		case "raise":
			more := rapid.Uint32Range(0, room).Draw(t, "more")
			weights[i], room = p.Weight+more, room-more
		case "any":
			weights[i] = rapid.Uint32Range(0, 1<<32-1).Draw(t, "weight")
		}
	}
	if how == "fewer" {
		weights = weights[1:]
	}
	return weights
}

// TestSplitsInAnyOrder applies commands about splits, apt or not, in between those by
// which homes change, and checks after each what the package promises.
func TestSplitsInAnyOrder(t *testing.T) {
	starts := []*Table{cluster(t, 3), cluster(t, 1), made(), durable(t, clusterOf(t, locking(), 2), Interval)}
	reached := map[SplitPhase]int{}
	rapid.Check(t, func(t *rapid.T) {
		tab := rapid.SampledFrom(starts).Draw(t, "start")
		for range rapid.IntRange(20, 50).Draw(t, "commands") {
			c := Command{}
			if rapid.IntRange(0, 5).Draw(t, "other") == 5 {
				c = drawCommand(t, tab, nil)
			} else {
				c = drawSplit(t, tab, func(label string) Holder {
					if len(tab.Members) == 0 {
						return holder("n1", 1)
					}
					return rapid.SampledFrom(tab.Members).Draw(t, label).Holder()
				})
			}
			before := deep(tab)
			next, err := tab.Apply(c)
			if !equal(before, tab) {
				t.Fatalf("%s changed the table that it was applied to", c.Kind())
			}
			if err != nil {
				if !errors.As(err, new(*Refused)) || next != tab {
					t.Fatalf("%s was refused (%v) and changed something", c.Kind(), err)
				}
				continue
			}
			if err := compare(c, tab, next); err != nil {
				t.Fatalf("%s: %v", c.Kind(), err)
			}
			if again, err := next.Apply(c); c.OfSplits() && (err == nil || again != next) {
				t.Fatalf("%s took effect twice", c.Kind())
			}
			tab = next
			for _, s := range tab.Splits {
				reached[s.Phase]++
			}
		}
		restored, err := Restore(tab.Encode())
		if err != nil || !equal(restored, tab) {
			t.Fatalf("the table that was written down is not the one that was read: %v", err)
		}
	})
	for phase := Opening; phase <= Closing; phase++ {
		if reached[phase] == 0 {
			t.Errorf("no split was ever %s", phase)
		}
	}
}

// compareSplits checks what became of the splits, and what is derived from them.
func compareSplits(c Command, was, is *Table) error {
	last, objects := uint64(0), map[object]bool{}
	for i := range is.Splits {
		s := &is.Splits[i]
		o := object{s.Kind, s.Key, s.Name}
		if s.ID <= last || objects[o] || s.ID > is.Epoch {
			return fmt.Errorf("split %d does not stand behind split %d, or its object is split twice", s.ID, last)
		}
		last, objects[o] = s.ID, true
		sum := 0
		for p, part := range s.Parts {
			if sum += int(part.Weight); part.Weight == 0 || s.PartHash(p) != ring.Hash(PartKey(s.ID, p, part.Salt)) || !is.MaySplit(s.PartHash(p)) {
				return fmt.Errorf("part %d of split %d is not whole", p, s.ID)
			}
		}
		if sum > FullWeight || sum != int(s.Weight()) {
			return fmt.Errorf("split %d has the weight %d", s.ID, sum)
		}
		found, ok := is.Split(s.Kind, s.Key, s.Name)
		byID, okID := is.SplitOf(s.ID)
		if !ok || !okID || found != s || byID != s || !is.MaySplit(ring.Hash(s.Key)) {
			return fmt.Errorf("split %d is not found", s.ID)
		}
	}
	if len(is.Splits) == 0 && is.divided != nil {
		return errors.New("something of the splits is left")
	}
	if err := compareLevel(c, was, is); err != nil {
		return err
	}
	return compareChanged(c, was, is)
}

// compareLevel checks that the level is raised by what needs it and by nothing else,
// and that all members know it.
func compareLevel(c Command, was, is *Table) error {
	want := was.Level
	switch {
	case c.OfSplits():
		want = max(want, 2)
	case c.Raise != nil && c.Raise.To != 0, c.Drain != nil && c.Drain.Stop:
		want = max(want, 3)
	case c.Adopt != nil:
		want = c.Adopt.Level
	case c.Recover != nil, c.Forgo != nil, c.Sync != nil && c.Sync.Kept, c.Flip != nil && c.Flip.Kept:
		want = max(want, DiskLevel)
	}
	if is.Durable != was.Durable && (c.Adopt == nil || is.Durable != c.Adopt.Durable || is.Durable == Undurable || is.Level < DiskLevel) {
		return fmt.Errorf("disks promise %d after %d", is.Durable, was.Durable)
	}
	if is.Durable < min(was.Durable, Always) && len(was.ColdRows()) > 0 {
		return fmt.Errorf("disks promise %d after %d while rows wait for them", is.Durable, was.Durable)
	}
	if is.IDWindow != was.IDWindow && (c.Adopt == nil || was.IDWindow != 0 || is.IDWindow != c.Adopt.IDWindow || is.Level < WindowLevel) {
		return fmt.Errorf("ids are kept for %d ns after %d", is.IDWindow, was.IDWindow)
	}
	newer := want > max(1, was.Level) || want == was.Level && is.Durable != was.Durable
	if is.Level != want || c.Adopt != nil && (!newer || slices.ContainsFunc(is.Members, func(m Member) bool { return max(1, m.Level) < want })) {
		return fmt.Errorf("the level is %d after %d", is.Level, was.Level)
	}
	return nil
}

// compareChanged checks that a command changed the split that it names, as it says, and
// none else.
func compareChanged(c Command, was, is *Table) error {
	id, by, home := uint64(0), Holder{}, Holder{}
	switch {
	case c.BeginSplit != nil:
		id = is.Epoch
	case c.OpenSplit != nil:
		id, by = c.OpenSplit.ID, c.OpenSplit.Home
	case c.Weigh != nil:
		id, by = c.Weigh.ID, c.Weigh.Home
	case c.CloseSplit != nil:
		id = c.CloseSplit.ID
	case c.EndSplit != nil:
		id, by = c.EndSplit.ID, c.EndSplit.Home
	}
	var old, now Split
	without := func(t *Table, one *Split) (others []Split) {
		for _, s := range t.Splits {
			if s.ID == id {
				*one = s
				continue
			}
			others = append(others, s)
		}
		return others
	}
	if !slices.EqualFunc(without(was, &old), without(is, &now), sameSplit) {
		return fmt.Errorf("%s changed a split that it does not name", c.Kind())
	}
	if !c.OfSplits() {
		return nil
	}
	if c.BeginSplit == nil && c.CloseSplit == nil {
		if home = homeOf(was, old.Key); home.None() || by != home || !was.Holds(by) {
			return fmt.Errorf("%s of %v, and the home is %v", c.Kind(), by, home)
		}
	}
	return compareSplit(c, is.Epoch, old, now)
}

// compareSplit checks what a command made of its split.
func compareSplit(c Command, epoch uint64, old, now Split) error {
	phases, want := [2]SplitPhase{old.Phase, now.Phase}, old
	switch {
	case c.BeginSplit != nil:
		want = c.BeginSplit.Split
		want.Phase, want.Since, want.Weighed, want.Base, want.hashes = Opening, epoch, epoch, 0, now.hashes
		if old.ID != 0 || want.ID != epoch {
			return fmt.Errorf("split %d began in epoch %d", want.ID, epoch)
		}
	case c.OpenSplit != nil:
		want.Phase, want.Since, want.Base = Open, epoch, c.OpenSplit.Base
		if phases != [2]SplitPhase{Opening, Open} {
			return fmt.Errorf("it went from %s to %s", old.Phase, now.Phase)
		}
	case c.Weigh != nil:
		want.Parts, want.Weighed = now.Parts, epoch
		if err := compareWeights(c.Weigh, old, now); err != nil {
			return err
		}
	case c.CloseSplit != nil:
		want.Phase, want.Since, want.Reason = Closing, epoch, c.CloseSplit.Reason
		if phases != [2]SplitPhase{Open, Closing} {
			return fmt.Errorf("it went from %s to %s", old.Phase, now.Phase)
		}
	case c.EndSplit != nil:
		if want = (Split{}); old.Phase != Opening && old.Phase != Closing || old.Since != c.EndSplit.Since {
			return fmt.Errorf("it was %s since %d when it ended", old.Phase, old.Since)
		}
	}
	if !sameSplit(want, now) {
		return fmt.Errorf("it is %+v and should be %+v", now, want)
	}
	return nil
}

// compareWeights checks that weights were lowered, or raised, as the home saw them.
func compareWeights(c *Weigh, old, now Split) error {
	if old.Phase != Open || old.Weighed != c.Expect || len(now.Parts) != len(old.Parts) {
		return fmt.Errorf("the weights of epoch %d were changed, expected were those of %d", old.Weighed, c.Expect)
	}
	ways := map[int]bool{}
	for i, p := range now.Parts {
		if p.Salt != old.Parts[i].Salt || p.Weight != c.Weights[i] {
			return fmt.Errorf("part %d is %+v", i, p)
		}
		if way := cmp.Compare(p.Weight, old.Parts[i].Weight); way != 0 {
			ways[way] = true
		}
	}
	if len(ways) != 1 {
		return errors.New("weights were lowered and raised by one commit, or not changed at all")
	}
	return nil
}

// ofSplit is a command of a story about the split that began last.
func (s *story) ofSplit(t *testing.T, d *datadriven.TestData, named []Holder) Command {
	sp, _ := s.tab.SplitOf(s.split)
	switch d.Cmd {
	case "split":
		c := &BeginSplit{Split{ID: s.tab.Epoch + 1, Kind: "counter", Key: d.CmdArgs[0].Key, Name: "hits", Parts: make([]Part, len(named))}}
		var nodes []string
		for _, h := range named {
			nodes = append(nodes, h.Node)
		}
		salts, ok := s.tab.Place(c.Split.ID, nodes)
		if !ok {
			d.Fatalf(t, "there is no place on %v", nodes)
		}
		for i, salt := range salts {
			c.Split.Parts[i] = Part{Salt: salt, Weight: uint32(FullWeight / len(named))}
		}
		return Command{BeginSplit: c}
	case "open":
		c := &OpenSplit{ID: s.split, Home: named[0]}
		if d.HasArg("base") {
			d.ScanArgs(t, "base", &c.Base)
		}
		return Command{OpenSplit: c}
	case "weigh":
		c := &Weigh{ID: s.split, Home: named[0]}
		if sp != nil {
			c.Expect = sp.Weighed
		}
		for i, a := range d.CmdArgs {
			for k := 0; a.Key == "weights" && k < len(a.Vals); k++ {
				var w uint32
				d.CmdArgs[i].Scan(t, k, &w)
				c.Weights = append(c.Weights, w)
			}
		}
		return Command{Weigh: c}
	case "close":
		return Command{CloseSplit: &CloseSplit{ID: s.split}}
	}
	c := &EndSplit{ID: s.split, Home: named[0]}
	if sp != nil {
		c.Since = sp.Since
	}
	return Command{EndSplit: c}
}

// describeSplits tells what is split, and where its home and its parts are.
func describeSplits(b *strings.Builder, t *Table) {
	for i := range t.Splits {
		s := &t.Splits[i]
		home, _, _ := t.Owner(ring.Hash(s.Key))
		fmt.Fprintf(b, "  split %d: %s %s of %s is %s since %d, home %s, base %d, weights of %d:", s.ID, s.Kind, s.Name, s.Key, s.Phase, s.Since, cmp.Or(home.Node, "nobody"), s.Base, s.Weighed)
		for p := range s.Parts {
			m, _, _ := t.Owner(s.PartHash(p))
			fmt.Fprintf(b, " %d at %s", s.Parts[p].Weight, cmp.Or(m.Node, "nobody"))
		}
		b.WriteString("\n")
	}
}
