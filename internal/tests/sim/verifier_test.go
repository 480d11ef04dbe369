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
					v.Look([]Asked{{Name: "n1", Actor: &c.steps[i].a}, {Name: "n2", Actor: &c.steps[i].b}})
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

// TestLedgerSees: answers made by hand.
func TestLedgerSees(t *testing.T) {
	t.Parallel()
	start := time.Now()
	keep := func(l *Ledger) { // what is told of a key is judged when it is known
		l.losses["k"] = []uint64{0}
	}
	for name, c := range map[string]struct {
		tell func(l *Ledger)
		want string
	}{
		"tokens rise":     {tell: func(l *Ledger) { l.Granted("k", time.Now(), 0, 5, 1, "a"); l.Granted("k", time.Now(), 0, 6, 1, "a") }},
		"overlap":         {tell: func(l *Ledger) { l.Granted("k", start, 0, 6, 1, "a"); l.Granted("k", start, 0, 5, 1, "a") }},
		"tokens fall":     {tell: func(l *Ledger) { l.Granted("k", start, 0, 6, 1, "a"); l.Granted("k", after(), 0, 5, 1, "a") }, want: "token 5"},
		"one token twice": {tell: func(l *Ledger) { l.Granted("k", start, 0, 6, 1, "a"); l.Granted("k", after(), 0, 6, 1, "b") }, want: "token 6"},
		"adds add up":     {tell: func(l *Ledger) { l.Added("k", start, 1, 1, "a"); l.Added("k", after(), 2, 1, "a") }},
		"a loss declared": {tell: func(l *Ledger) {
			l.losses["k"] = []uint64{0, 2}
			l.Added("k", start, 9, 1, "a")
			l.Added("k", after(), 1, 2, "b")
		}},
		"two holders, and a loss between them": {tell: func(l *Ledger) {
			l.losses["k"] = []uint64{0, 2}
			l.Granted("k", start, time.Hour, 5, 1, "a")
			l.Granted("k", after(), time.Hour, 6, 2, "b")
		}, want: "which held until"},
		"a loss not declared": {tell: func(l *Ledger) { l.Added("k", start, 9, 1, "a"); l.Added("k", after(), 1, 2, "b") }, want: "answered 1"},
		"a lock given back": {tell: func(l *Ledger) {
			l.Granted("k", start, time.Hour, 5, 1, "a")
			l.Returning("k", 5)
			l.Granted("k", after(), time.Hour, 6, 1, "b")
		}},
		"two holders": {tell: func(l *Ledger) {
			l.Granted("k", start, time.Hour, 5, 1, "a")
			l.Granted("k", after(), time.Hour, 6, 1, "b")
		}, want: "which held until"},
		"an add is lost": {tell: func(l *Ledger) { l.Added("k", start, 2, 1, "a"); l.Added("k", after(), 2, 1, "a") }, want: "answered 2"},
		"counted twice":  {tell: func(l *Ledger) { l.Added("k", start, 2, 1, "a"); l.Added("k", start, 2, 1, "a") }, want: "two adds led to 2"},
		"epochs fall":    {tell: func(l *Ledger) { l.Added("k", start, 1, 2, "a"); l.Added("k", after(), 9, 1, "b") }, want: "under the epoch 1"},
	} {
		l := NewLedger()
		keep(l)
		c.tell(l)
		got := strings.Join(l.Faults(), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: found %q, want %q", name, got, c.want)
		}
	}
}

// after is a moment later than all answers before it.
func after() time.Time { return time.Now().Add(time.Nanosecond) }
