package owner

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
)

// tally counts touches.
type tally map[uint32]int

func (h tally) Touch(tag uint32, _ int64) { h[tag]++ }

// Every operation that is let in is counted once, whatever comes of it, under a tag by
// which the object is found as long as it is held.
func TestHeat(t *testing.T) {
	rule := &testRule{epoch: 100}
	s := newStore(t, func(c *Config) { c.Rule, c.Heat = rule, func() Heat { return tally{} } })
	counted := func() (seen []string) {
		s.EachHeat(func(h Heat, named func(uint32) []Object) {
			for tag, n := range h.(tally) {
				for _, o := range named(tag) {
					seen = append(seen, fmt.Sprintf("%s/%s %v %d, %d wait", o.Key, o.Name, o.Kind, n, o.Waiting))
				}
			}
		})
		slices.Sort(seen)
		return seen
	}
	for i := range 3 {
		must(s.Check(0, Ref{Key: "a", Name: "x"}, noID, perSecond(1)))
		must(s.Add(0, Ref{Key: "b", Name: ""}, noID, counter.AddOp{Delta: 1}))
		if _, _, err := s.Acquire(0, Ref{Key: "a", Name: "door"}, noID, asks(fmt.Sprint("holder", i), second, second)); err != nil {
			t.Fatal(err)
		}
	}
	must(s.Get(0, Ref{Key: "b", Name: ""}))
	must(s.Get(0, Ref{Key: "absent", Name: ""})) // counted, and has no name
	rule.admit = errors.New("not now")
	if _, err := s.Get(0, Ref{Key: "b", Name: ""}); err == nil {
		t.Fatal("admitted")
	}
	want := []string{"a/door lock 3, 2 wait", "a/x limit 3, 0 wait", "b/ counter 4, 0 wait"}
	if got := counted(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for range 2 {
		s.Sweep(10 * second)
	}
	if got := counted(); slices.Contains(got, want[1]) || !slices.Contains(got, want[2]) {
		t.Errorf("%q: the limit is over, the counter is not", got)
	}
}

// A store that nobody asks counts nothing.
func TestNoHeat(t *testing.T) {
	s := newStore(t, nil)
	must(s.Check(0, Ref{Key: "a", Name: "x"}, noID, perSecond(1)))
	s.EachHeat(func(Heat, func(uint32) []Object) { t.Error("something was counted") })
}

// What nodes do with parts by themselves is not counted: a split object that nobody calls
// is not busy.
func TestHeatOfParts(t *testing.T) {
	rule := &splitRule{home: "home"}
	rule.epoch, rule.since = 100, math.MinInt64
	s := newStore(t, func(c *Config) { c.Rule, c.Heat = rule, func() Heat { return tally{} } })
	rule.split(t, s, 0, "n", KindLimit, limit.FullWeight/2, limit.FullWeight/2)
	counted := func() (sum int) {
		s.EachHeat(func(h Heat, _ func(uint32) []Object) {
			for _, n := range h.(tally) {
				sum += n
			}
		})
		return sum
	}
	readAll(t, s, second, Ref{Key: partKey(0), Name: "n", Role: Sample}, KindLimit)
	if n := counted(); n != 0 {
		t.Errorf("%d operations, and nobody has called it", n)
	}
	must(s.Check(second, Ref{Key: partKey(0), Name: "n", Role: Share}, noID, perSecond(10)))
	if n := counted(); n != 1 {
		t.Errorf("%d operations after one call", n)
	}
}
