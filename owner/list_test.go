package owner

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
)

func TestObjectsOfKey(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	for i := range 3 * exportStep { // more than are looked at under one hold of the lock
		must(s.Add(0, Ref{Key: fmt.Sprint("other", i), Name: "n"}, noID, counter.AddOp{Delta: 1}))
	}
	must(s.Add(0, Ref{Key: "k", Name: "a"}, noID, counter.AddOp{Delta: 7}))
	must(s.Check(0, Ref{Key: "k", Name: "b"}, noID, perSecond(10)))
	must2(s.Acquire(0, Ref{Key: "k", Name: "c"}, id(1), asks("h", 60*second, 0)))
	must(s.Add(0, Ref{Key: "k", Name: "gone"}, id(2), counter.AddOp{Delta: 7}))
	must(s.Delete(0, Ref{Key: "k", Name: "gone"}, id(3)))
	must(s.Add(0, Ref{Key: "k2", Name: "a"}, noID, counter.AddOp{Delta: 7}))
	shown := func(key string) (all []string, more bool) {
		meta, more, err := s.Objects(1, key, func(r *Record, now int64) {
			what := fmt.Sprint(r.Kind, " ", string(r.Name))
			switch r.Kind {
			case KindCounter:
				what += fmt.Sprint(" ", r.Counter().Value)
			case KindLock:
				what += " " + r.Lock().Holder
			}
			all = append(all, what)
		})
		if err != nil || meta.Permit.Epoch != 100 {
			t.Fatal(meta, err)
		}
		slices.Sort(all)
		return all, more
	}
	if got, more := shown("k"); more || !slices.Equal(got, []string{"counter a 7", "limit b", "lock c h"}) {
		t.Errorf("%q %v", got, more)
	}
	if got, _ := shown("nothing"); len(got) != 0 {
		t.Errorf("%q", got)
	}
	for i := range MaxOfKey {
		must(s.Add(0, Ref{Key: "k", Name: fmt.Sprint("many", i)}, noID, counter.AddOp{Delta: 1}))
	}
	if got, more := shown("k"); !more || len(got) != MaxOfKey {
		t.Errorf("%d %v", len(got), more)
	}
	for _, key := range []string{"", "\x00part", strings.Repeat("k", MaxKey+1)} {
		if _, _, err := s.Objects(1, key, nil); reason(err) != failure.Invalid {
			t.Errorf("key %q: %v", key, err)
		}
	}
	s.cfg.Rule = ownsNothing
	if _, _, err := s.Objects(1, "k", nil); reason(err) != failure.NotOwner {
		t.Errorf("another's key: %v", err)
	}
}

// A list shows what is there all the time once, whatever comes and goes between its pages.
func TestList(t *testing.T) {
	rule := &ownsSome{testRule: testRule{epoch: 1}}
	s := newStore(t, func(c *Config) { c.Rule, c.Shards = rule, 4 })
	want := map[string]int{}
	for i := range 500 {
		ref := Ref{Key: fmt.Sprint("stays", i), Name: "n"}
		must(s.Add(0, ref, noID, counter.AddOp{Delta: 1}))
		must(s.Add(0, Ref{Key: fmt.Sprint("goes", i), Name: "n"}, noID, counter.AddOp{Delta: 1}))
		must(s.Check(0, ref.named("limit"), noID, perSecond(10)))
		if rule.Owns(Hash(ref.Key)) {
			want[ref.Key] = 1
		}
	}
	counters := func(kind Kind, key, name []byte) bool {
		return kind == KindCounter && strings.HasPrefix(string(key), "stays")
	}
	got := map[string]int{}
	for at, done, page := (Place{}), false, 0; !done; page++ {
		n := 0
		at, done = s.List(0, at, 7, counters, func(r *Record, _ int64) {
			got[string(r.Key)]++
			n++
		})
		if n > 7 {
			t.Fatalf("a page of %d", n)
		}
		must(s.Delete(0, Ref{Key: fmt.Sprint("goes", page), Name: "n"}, noID))
		must(s.Add(0, Ref{Key: fmt.Sprint("comes", page), Name: "n"}, noID, counter.AddOp{Delta: 1}))
	}
	if len(want) < 100 || len(got) != len(want) {
		t.Errorf("%d objects of %d", len(got), len(want))
	}
	for key, n := range got {
		if n != want[key] {
			t.Errorf("%s is shown %d times", key, n)
		}
	}
}

// One page looks at so many cells and no more, whether they match or not.
func TestListIsBounded(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	for i := range maxListed + 10 {
		must(s.Add(0, Ref{Key: fmt.Sprint(i), Name: "n"}, noID, counter.AddOp{Delta: 1}))
	}
	looked := 0
	nothing := func(Kind, []byte, []byte) bool { looked++; return false }
	at, done := s.List(0, Place{}, 10, nothing, nil)
	if done || looked != maxListed || at == (Place{}) {
		t.Fatalf("looked at %d, done %v, next %+v", looked, done, at)
	}
	if _, done = s.List(0, at, 10, nothing, nil); !done || looked != maxListed+10 {
		t.Errorf("looked at %d, done %v", looked, done)
	}
	if _, done := s.List(0, Place{Shard: 99}, 10, nothing, nil); !done {
		t.Error("a place that there is not goes on")
	}
}

// ownsSome owns every other position.
type ownsSome struct{ testRule }

func (*ownsSome) Owns(hash uint64) bool { return hash%2 == 0 }
func (*ownsSome) Shared() bool          { return true }

func (r Ref) named(name string) Ref { r.Name = name; return r }
