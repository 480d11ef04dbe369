package owner

import (
	"math"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// A kind without all of its machine is found when a store is made, not when the first
// object of it comes.
func TestEveryKindHasAMachine(t *testing.T) {
	if err := check(&machines); err != nil {
		t.Fatal(err)
	}
	for name, lacks := range map[string]func(m *machine){
		"everything":   func(m *machine) { *m = machine{} },
		"a name":       func(m *machine) { m.name = "" },
		"its own name": func(m *machine) { m.name = machines[(m.number()+1)%(kinds-1)+1].name },
		"states":       func(m *machine) { m.states = nil },
		"a place":      func(m *machine) { m.cell, m.slab = 0, nil },
	} {
		for _, k := range Kinds() {
			was := machines[k]
			lacks(&machines[k])
			_, err := New(Config{Rule: &testRule{epoch: 1}}, 0)
			machines[k] = was
			if err == nil {
				t.Errorf("a store is made although kind %d lacks %s", k, name)
			}
		}
	}
}

func (m *machine) number() Kind {
	for k := range machines {
		if &machines[k] == m {
			return Kind(k)
		}
	}
	panic("no machine of the list")
}

func TestKindsByName(t *testing.T) {
	for _, k := range Kinds() {
		if got, ok := ParseKind(k.String()); got != k || !ok || !k.Known() {
			t.Errorf("%d is read as %d, %v", k, got, ok)
		}
	}
	for _, name := range []string{"", "object of an unknown kind", "Limit"} {
		if k, ok := ParseKind(name); ok {
			t.Errorf("%q is kind %d", name, k)
		}
	}
	if len(Kinds()) != 10 || Kind(0).Known() || kinds.Known() || Kind(255).Parts() || Kind(255).Level() != 0 {
		t.Error("kinds that there are not")
	}
}

// levelRule is a rule of a cluster that has committed a level.
type levelRule struct {
	testRule
	level uint32
}

func (r *levelRule) Uses(level uint32) bool { return r.level >= level }

// Nobody creates an object of which other members of the cluster may not know the kind.
func TestLevelOfKind(t *testing.T) {
	was := machines[KindCounter].level
	defer func() { machines[KindCounter].level = was }()
	machines[KindCounter].level = 9
	rule := &levelRule{testRule: testRule{epoch: 1}, level: 8}
	told := 0
	s := newStore(t, func(c *Config) { c.Rule, c.Sink = rule, sinkFunc(func(*Record) { told++ }) })
	ref := Ref{Key: "k", Name: "n"}
	for name, call := range map[string]func() error{
		"Add": func() error { _, err := s.Add(0, ref, id(1), counter.AddOp{Delta: 1}); return err },
		"Get": func() error { _, err := s.Get(0, ref); return err },
		"Put": func() error {
			_, err := s.Put(0, Ref{Key: "k", Role: Join}, []*Record{{Kind: KindCounter, Whole: true, IDs: &reqid.Kept{Evicted: math.MinInt64}}})
			return err
		},
	} {
		if err := call(); reason(err) != failure.Unavailable {
			t.Errorf("%s before the level of the kind: %v", name, err)
		}
	}
	if told != 0 || s.Stats().Objects[KindCounter] != 0 {
		t.Errorf("%d records and %d objects before the level of their kind", told, s.Stats().Objects[KindCounter])
	}
	if _, err := s.Check(0, ref, noID, limit.Op{Params: limit.Params{Limit: 1, Period: second}, Cost: 1}); err != nil {
		t.Errorf("a kind of before: %v", err)
	}
	rule.level = 9
	if a, err := s.Add(0, Ref{Key: "k", Name: "c"}, id(1), counter.AddOp{Delta: 1}); err != nil || !a.Applied {
		t.Errorf("Add from the level on: %+v %v", a, err)
	}
}

type sinkFunc func(*Record)

func (f sinkFunc) Changed(r *Record) { f(r) }
