package owner

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
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
		meta, more, err := s.Objects(1, key, func(r Shown) {
			what := fmt.Sprint(r.Kind, " ", string(r.Name))
			switch r.Kind {
			case KindCounter:
				what += fmt.Sprint(" ", r.Counter().Value)
			case KindLock:
				_, _, first := r.HoldAlone(1)
				what += " " + first.Name
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
		at, done = s.List(0, at, 7, false, counters, func(_ Kind, key, _ []byte) {
			got[string(key)]++
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
	at, done := s.List(0, Place{}, 10, false, nothing, nil)
	if done || looked != maxListed || at == (Place{}) {
		t.Fatalf("looked at %d, done %v, next %+v", looked, done, at)
	}
	if _, done = s.List(0, at, 10, false, nothing, nil); !done || looked != maxListed+10 {
		t.Errorf("looked at %d, done %v", looked, done)
	}
	if _, done := s.List(0, Place{Shard: 99}, 10, false, nothing, nil); !done {
		t.Error("a place that there is not goes on")
	}
}

// A list, and what shows a key, writes out no queues: however many wait, a hold of the lock is as
// short as without them.
func TestListsWriteNoQueues(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	const locks, waiters = 20, 500
	for i := range locks {
		ref := Ref{Key: "k", Name: fmt.Sprint(i)}
		must2(s.Acquire(0, ref, noID, asks("h", 60*second, 0)))
		for j := range waiters {
			x := reqid.ID{}
			if j%2 == 0 { // those without an id wait as well
				x = reqid.ID{Client: reqid.Client{Hi: uint64(j + 1)}, Sequence: 1}
			}
			op := asks("w", 60*second, 60*second)
			op.Metadata = make([]byte, hold.MaxMetadata)
			if _, _, err := s.Acquire(0, ref, x, op); err != nil {
				t.Fatal(err)
			}
		}
	}
	allocated := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	const most = locks * waiters // bytes: a queue that is written out takes more than one for each place
	n := 0
	if b := allocated(func() {
		s.List(1, Place{}, locks, false, func(Kind, []byte, []byte) bool { return true }, func(Kind, []byte, []byte) { n++ })
	}); n != locks || b > most {
		t.Errorf("a list of %d objects made %d bytes", n, b)
	}
	n = 0
	if b := allocated(func() {
		if _, _, err := s.Objects(1, "k", func(o Shown) {
			if _, _, l := o.HoldAlone(1); l.Name != "h" || o.Waiting != waiters || len(o.Members) > 0 || o.Partial {
				t.Errorf("%s: %+v, %d wait", o.Name, l, o.Waiting)
			}
			n++
		}); err != nil {
			t.Fatal(err)
		}
	}); n != locks || b > most {
		t.Errorf("showing %d objects made %d bytes", n, b)
	}
}

// One hold of a shard's lock looks at so many cells, and shows fewer.
func TestStepsOfLists(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	for i := range 3 * exportStep {
		must(s.Add(0, Ref{Key: "k", Name: fmt.Sprint(i)}, noID, counter.AddOp{Delta: 1}))
	}
	for _, cost := range []int{listedCost, shownCost} {
		for _, all := range []bool{false, true} {
			shown := 0
			_, looked, _ := s.shards[0].look(0, 0, cost, nil, func(*entry) bool { return all }, func(uint32, *entry) bool { shown++; return true })
			if looked > exportStep || shown > exportStep/cost || all != (shown > 0) {
				t.Errorf("%d shown of %d cells, each for %d", shown, looked, cost)
			}
		}
	}
}

// Pages of a list that a caller makes up show what they show, and end.
func TestListFromAnywhere(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 4 })
	for i := range 100 {
		must(s.Add(0, Ref{Key: strings.Repeat("k", i+1), Name: "n"}, noID, counter.AddOp{Delta: 1}))
	}
	everything := func(Kind, []byte, []byte) bool { return true }
	rapid.Check(t, func(r *rapid.T) {
		at := Place{rapid.OneOf(rapid.Uint32Range(0, 5), rapid.Uint32()).Draw(r, "shard"), rapid.OneOf(rapid.Uint32Range(0, 1<<12), rapid.Uint32()).Draw(r, "slot")}
		for pages, done := 0, false; !done; pages++ {
			if at, done = s.List(0, at, 10, false, everything, func(_ Kind, key, _ []byte) {
				if strings.Trim(string(key), "k") != "" || len(key) == 0 {
					r.Fatalf("key %q", key)
				}
			}); pages > 100 {
				r.Fatal("it does not end")
			}
		}
	})
}

// ownsSome owns every other position.
type ownsSome struct{ testRule }

func (*ownsSome) Owns(hash uint64) bool { return hash%2 == 0 }
func (*ownsSome) Shared() bool          { return true }

func (r Ref) named(name string) Ref { r.Name = name; return r }
