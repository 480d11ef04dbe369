package epoch

import (
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// TestRoomPauses: one that is left out again stays away for twice as long, up to a bound, and
// for as long as the first time when it was active in between.
func TestRoomPauses(t *testing.T) {
	var r room
	now := int64(time.Hour)
	for i, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute} {
		if next := r.next(); next != want {
			t.Errorf("%d: it is to stay away for %s, not %s", i, next, want)
		}
		r.leftOut(now)
		if got := time.Duration(r.asksAt - now); got != want {
			t.Errorf("%d: it stays away for %s, not %s", i, got, want)
		}
		now = r.asksAt
	}
	r.active()
	if r.leftOut(now); r.asksAt != now+int64(minLeftOut) {
		t.Errorf("it was active, and stays away for %s", time.Duration(r.asksAt-now))
	}
}

// TestRoomPatience: copies that are refused for long enough, without a row more in
// between and without a time in which none is, are reason to give up; nothing else is.
func TestRoomPatience(t *testing.T) {
	type refusal struct {
		at   time.Duration
		rows int
		want bool
	}
	for name, all := range map[string][]refusal{
		"on and on":          {{0, 0, false}, {15 * time.Second, 0, false}, {29 * time.Second, 0, false}, {30 * time.Second, 0, true}},
		"a row more":         {{0, 0, false}, {20 * time.Second, 1, false}, {40 * time.Second, 1, false}, {50 * time.Second, 1, true}},
		"the same row again": {{0, 2, false}, {10 * time.Second, 1, false}, {20 * time.Second, 2, false}, {30 * time.Second, 2, true}},
		"the room came back": {{0, 0, false}, {20 * time.Second, 0, false}, {51 * time.Second, 0, false}, {80 * time.Second, 0, false}},
		"once":               {{0, 0, false}},
	} {
		var r room
		for _, f := range all {
			if got := r.refused(int64(time.Hour+f.at), f.rows); got != f.want {
				t.Errorf("%s: at %s it gives up: %v", name, f.at, got)
			}
		}
		r.leftOut(int64(2 * time.Hour))
		if r.refused(int64(2*time.Hour+time.Second), 0) {
			t.Errorf("%s: it gives up at the first refusal after it came back", name)
		}
	}
}

// TestRoomGivesUp: one that gives up when it has had no room for long enough: one that joins,
// for which all others wait, and that has nothing that nobody else has.
func TestRoomGivesUp(t *testing.T) {
	t.Parallel()
	of := func(node string) table.Holder { return table.Holder{Node: node, Incarnation: 1} }
	self := of("n3")
	must := func(tab *table.Table, c table.Command) *table.Table {
		next, err := tab.Apply(c)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	admit := func(tab *table.Table, node string) *table.Table {
		return must(tab, table.Command{Admit: &table.Admit{Member: table.Member{Node: node, Incarnation: 1, HashKey: node, Level: table.Level}}})
	}
	begin := func(tab *table.Table, nodes ...string) *table.Table {
		var want []table.Holder
		for _, n := range nodes {
			want = append(want, of(n))
		}
		return must(tab, table.Command{Begin: &table.Begin{Want: want}})
	}
	flip := func(tab *table.Table, all bool) *table.Table {
		ends := map[table.Holder][]uint64{}
		for _, v := range tab.Moves() {
			if len(ends[v.From]) == 0 || all {
				ends[v.From] = append(ends[v.From], v.End)
			}
		}
		for from, rows := range ends {
			tab = must(tab, table.Command{Flip: &table.Flip{Transition: tab.Transition.ID, WantSince: tab.WantSince, From: from, To: self, Standby: from, Ends: rows}})
		}
		return tab
	}
	end := func(tab *table.Table) *table.Table {
		return must(tab, table.Command{End: &table.End{Transition: tab.Transition.ID}})
	}
	made := must(&table.Table{}, table.Command{Init: &table.Init{Cluster: "test", Epoch: 1}})
	two := end(begin(admit(admit(made, "n1"), "n2"), "n1", "n2"))
	joins := begin(admit(two, "n3"), "n1", "n2", "n3")
	some := flip(joins, false)
	var alone table.Unsync
	for _, r := range some.Rows {
		if r.Owner == self {
			alone = table.Unsync{Owner: self, Standby: r.Standby, Ends: []uint64{r.End}}
		}
	}
	whole := flip(joins, true)
	leaves := must(end(whole), table.Command{Drain: &table.Drain{Member: of("n2")}})
	one := end(begin(admit(made, "n1"), "n1"))
	for _, c := range []struct {
		name string
		of   *table.Table
		self table.Holder
		want bool
	}{
		{"it joins", joins, self, true},
		{"it has got some rows", some, self, true},
		{"nobody else has one of its rows", must(some, table.Command{Unsync: &alone}), self, false},
		{"all rows that it is to own are there", whole, self, false},
		{"it is active", begin(leaves, "n1", "n3"), self, false},
		{"no transition runs", admit(two, "n3"), self, false},
		{"another process of the node", joins, table.Holder{Node: "n3", Incarnation: 2}, false},
		{"it is no member", two, self, false},
		{"one other member", begin(admit(one, "n3"), "n1", "n3"), self, false},
		{"one other member, and one that waits", admit(begin(admit(one, "n3"), "n1", "n3"), "n4"), self, true},
	} {
		var r room
		var got bool
		for i := range 4 { // a row that it has got starts the time anew
			got = r.givesUp(c.of, c.self, int64(time.Hour)+int64(i)*int64(roomPatience)/2)
		}
		if got != c.want {
			t.Errorf("%s: it gives up: %v", c.name, got)
		}
	}
}

// TestNoLeaseWhileItLeaves: a process that gives its lease up acts no more, whatever it
// is granted, until it is another one.
func TestNoLeaseWhileItLeaves(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	eventually(t, "it has a lease", func() bool { return g.LeaseLeft() > 0 })
	was, left := g.Self(), make(chan int64, 1)
	if err := g.post(t.Context(), func(k *keeper) {
		k.leaving = true
		k.extend() // its lease still runs
		left <- g.rule.Until()
	}); err != nil {
		t.Fatal(err)
	}
	if until := <-left; until != 0 {
		t.Errorf("it may act until %d", until)
	}
	eventually(t, "it is another process, and stays away", func() bool { return g.Self() != was && g.LeftOut() > 0 })
	if g.LeaseLeft() > 0 {
		t.Error("it has a lease")
	}
}
