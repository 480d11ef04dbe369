package fault

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestParseKinds(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []Kind
		bad  bool
	}{
		{text: "kill", want: []Kind{Kill}},
		{text: "kill, pause,oneway", want: []Kind{Kill, Pause, Oneway}},
		{text: "none"},
		{text: "", bad: true},
		{text: "kill,", bad: true},
		{text: "earthquake", bad: true},
		{text: "kill,none", bad: true},
	} {
		got, err := ParseKinds(tc.text)
		if (err != nil) != tc.bad || !slices.Equal(got, tc.want) {
			t.Errorf("%q: %v, %v", tc.text, got, err)
		}
	}
	for _, k := range Kinds {
		if got, err := ParseKinds(string(k)); err != nil || !slices.Equal(got, []Kind{k}) {
			t.Errorf("%s: %v, %v", k, got, err)
		}
	}
}

// Equal seeds draw equal faults, all kinds come, and no fault harms more than a
// minority, but for a pause.
func TestDrawer(t *testing.T) {
	const lease = 2 * time.Second
	draw := func(seed uint64, nodes int) (all []Fault) {
		d := NewDrawer(seed, Kinds, nodes, lease)
		for range 3000 {
			all = append(all, d.Next())
		}
		return all
	}
	if a, b, c := draw(1, 3), draw(1, 3), draw(2, 3); !reflect.DeepEqual(a, b) || reflect.DeepEqual(a, c) {
		t.Error("a seed does not decide what is drawn")
	}
	for _, nodes := range []int{1, 2, 3, 5, 7} {
		seen := map[Kind]int{}
		most := map[Kind]int{}
		shorter, longer := false, false
		for _, f := range draw(9, nodes) {
			seen[f.Kind]++
			most[f.Kind] = max(most[f.Kind], f.Victims)
			if f.Victims < 1 || f.Victims > nodes || f.For <= 0 || f.For > 5*lease/2 || f.Late < 0 || f.Late > time.Second {
				t.Errorf("%d nodes: %+v", nodes, f)
			}
			if f.Kind == Pause {
				shorter, longer = shorter || f.For < lease, longer || f.For > lease
			}
			if (f.Kind == KillLeader || f.Kind == HungKill) && f.Role != Leader {
				t.Errorf("%+v", f)
			}
			if f.Gentle() != (f.Victims == 1 && f.Kind != HungKill && f.Kind != KillAll || f.Kind == Pause) || f.LeavesDisks() != (f.Kind != Wipe) {
				t.Errorf("%+v: gentle is %t", f, f.Gentle())
			}
		}
		if !shorter || !longer {
			t.Error("no pause is shorter than the lease, or none longer")
		}
		for _, k := range Kinds {
			switch minority := max(1, (nodes-1)/2); {
			case seen[k] == 0:
				t.Errorf("%d nodes: no %s", nodes, k)
			case k == Pause && most[k] != nodes:
				t.Errorf("%d nodes: at most %d are paused", nodes, most[k])
			case (k == Kill || k == Wipe) && most[k] != minority:
				t.Errorf("%d nodes: at most %d suffer %s, not %d", nodes, most[k], k, minority)
			case k != Pause && most[k] > minority:
				t.Errorf("%d nodes: %d suffer %s", nodes, most[k], k)
			}
		}
	}
}
