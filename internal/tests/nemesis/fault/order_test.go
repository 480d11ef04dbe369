package fault

import (
	"reflect"
	"testing"
	"time"
)

// Equal seeds draw equal orders, of the kinds that were asked for, about all objects.
func TestOrders(t *testing.T) {
	objects := []Object{{"counter", "a"}, {"limit", "b"}, {"limit", "c"}}
	type drawn struct {
		Of       Object
		Order    Order
		Node     int
		Patience time.Duration
	}
	draw := func(seed uint64, kinds ...Kind) (all []drawn) {
		o := NewOrderer(OrdererConfig{Seed: seed, Kinds: kinds, Objects: objects})
		for range 300 {
			of, order, node, patience := o.next()
			all = append(all, drawn{of, order, node, patience})
		}
		return all
	}
	if a, b, c := draw(1, Split, Merge), draw(1, Split, Merge), draw(2, Split, Merge); !reflect.DeepEqual(a, b) || reflect.DeepEqual(a, c) {
		t.Error("a seed does not decide what is drawn")
	}
	for _, kinds := range [][]Kind{{Split, Merge}, {Kill, Split}, {Merge}} {
		seen, about, parts := map[Kind]int{}, map[string]int{}, map[int]int{}
		for _, d := range draw(3, kinds...) {
			seen[d.Order.Kind]++
			about[d.Order.Object]++
			if d.Order.Kind == Split {
				parts[d.Order.Parts]++
			}
			if d.Order.Object != d.Of.Key || (d.Order.Kind == Split) != (d.Order.Parts > 0) || d.Patience < leastPatience || d.Patience > mostPatience {
				t.Errorf("%+v", d)
			}
		}
		want := len(Without(kinds, []Kind{Kill}))
		if len(seen) != want || len(about) != len(objects) || seen[Split] > 0 && len(parts) != mostParts-leastParts+1 {
			t.Errorf("%v: %v about %v in %v", kinds, seen, about, parts)
		}
	}
}

func TestSplitSince(t *testing.T) {
	got := SplitSince([]Order{{Kind: Merge, Object: "a", From: 1}, {Kind: Split, Object: "a", From: 2, Error: "no answer yet"},
		{Kind: Split, Object: "b", From: 3}, {Kind: Split, Object: "a", From: 4}, {Kind: Merge, Object: "c", From: 5}})
	if want := map[string]int64{"a": 2, "b": 3}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}

func TestWithout(t *testing.T) {
	if got := Without(Kinds, Ordered); len(got) != len(Kinds)-2 || Any(got, Ordered) || !Any(Kinds, Ordered) {
		t.Errorf("%v of %v", got, Kinds)
	}
}
