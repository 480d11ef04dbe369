package sim

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// actor is a process of a history made by hand.
type actor struct {
	self  table.Holder
	table *table.Table
	since uint64
	may   bool
	still bool
}

func (a *actor) May(uint64, int64) (since, seen uint64, v serving.Verdict) {
	if a.may {
		return a.since, a.table.Epoch, serving.Yes
	}
	return 0, 0, serving.NoLease
}
func (a *actor) Still(uint64, uint64, int64) bool { return a.still }
func (a *actor) Self() table.Holder               { return a.self }
func (a *actor) Table() *table.Table              { return a.table }

// TestVerifierSees: histories made by hand, right ones and wrong ones.
func TestVerifierSees(t *testing.T) {
	t.Parallel()
	at := func(epoch uint64, name string) *table.Table {
		return &table.Table{Cluster: name, Epoch: epoch}
	}
	// step is what two processes say at an instant.
	type step struct{ a, b actor }
	one, two := table.Holder{Node: "n1", Incarnation: 1}, table.Holder{Node: "n2", Incarnation: 2}
	owns := func(h table.Holder, since uint64) actor {
		return actor{self: h, table: at(since, "c"), since: since, may: true, still: true}
	}
	idle := func(h table.Holder, epoch uint64) actor { return actor{self: h, table: at(epoch, "c")} }
	for name, c := range map[string]struct {
		steps []step
		want  string // part of the fault; "" = all is well
	}{
		"one owner":           {steps: []step{{owns(one, 5), idle(two, 5)}, {owns(one, 5), idle(two, 5)}}},
		"one after the other": {steps: []step{{owns(one, 5), idle(two, 5)}, {idle(one, 5), idle(two, 6)}, {idle(one, 6), owns(two, 6)}}},
		"back again":          {steps: []step{{owns(one, 5), idle(two, 5)}, {idle(one, 6), owns(two, 6)}, {actor{self: one, table: at(7, "c"), since: 7, may: true}, idle(two, 7)}}},
		"two owners":          {steps: []step{{owns(one, 5), owns(two, 6)}}, want: "both n1 and n2"},
		"a late answer": {
			steps: []step{{owns(one, 5), idle(two, 5)}, {idle(one, 5), owns(two, 6)}, {actor{self: one, table: at(5, "c"), still: true}, idle(two, 6)}},
			want:  "n1 confirms",
		},
		"an answer beside the next owner": {
			steps: []step{{owns(one, 5), idle(two, 5)}, {actor{self: one, table: at(5, "c"), still: true}, owns(two, 6)}},
			want:  "n1 confirms",
		},
		"tokens go back":        {steps: []step{{owns(one, 5), idle(two, 5)}, {idle(one, 5), owns(two, 4)}}, want: "under the epoch 4"},
		"two under one epoch":   {steps: []step{{owns(one, 5), idle(two, 5)}, {idle(one, 5), owns(two, 5)}}, want: "under the epoch 5"},
		"two tables, one epoch": {steps: []step{{idle(one, 5), actor{self: two, table: at(5, "other")}}}, want: "has another table"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := NewVerifier(1, 1)
				for i := range c.steps {
					v.Inspect([]Asked{{Name: "n1", Actor: &c.steps[i].a}, {Name: "n2", Actor: &c.steps[i].b}})
					time.Sleep(time.Millisecond)
				}
				got := strings.Join(v.Faults(), "\n")
				if c.want == "" && got != "" || !strings.Contains(got, c.want) {
					t.Errorf("found %q, want %q", got, c.want)
				}
			})
		})
	}
}
