package epoch

import (
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/table"
)

// TestRoll: one that is waited for, and until when.
func TestRoll(t *testing.T) {
	t.Parallel()
	one, two, three := table.Holder{Node: "n1", Incarnation: 1}, table.Holder{Node: "n2", Incarnation: 1}, table.Holder{Node: "n3", Incarnation: 1}
	of := func(returned ...bool) *table.Table {
		tab := &table.Table{Cluster: "test", Epoch: 1}
		for i, h := range []table.Holder{one, two, three} {
			tab.Members = append(tab.Members, table.Member{Node: h.Node, Incarnation: h.Incarnation, Returned: returned[i]})
		}
		return tab
	}
	const since, wait = int64(time.Hour), 30 * time.Second
	for _, c := range []struct {
		name   string
		table  *table.Table
		events func(*roll)
		after  time.Duration
		awaits []table.Holder
	}{
		{"nobody is heard of", of(false, false, false), func(*roll) {}, 29 * time.Second, []table.Holder{one, two, three}},
		{"the wait is over", of(false, false, false), func(*roll) {}, wait, nil},
		{"one of before lives", of(false, false, false), func(r *roll) { r.heard(two) }, 0, nil},
		{"another process of its node lives", of(false, false, false), func(r *roll) { r.heard(table.Holder{Node: "n2", Incarnation: 2}) }, 0, []table.Holder{one, two, three}},
		{"two have returned under another leader", of(true, true, false), func(r *roll) { r.heard(one); r.heard(two) }, time.Second, []table.Holder{three}},
		{"and the third one never stopped", of(true, true, false), func(r *roll) { r.heard(three) }, 0, nil},
		{"all are back", of(true, true, false), func(r *roll) {
			r.learned(&table.Table{Members: []table.Member{{Node: "n3", Incarnation: 2}}})
		}, 0, nil},
		{"a new cluster", &table.Table{}, func(*roll) {}, 0, nil},
	} {
		r := callRoll(c.table, since, wait)
		c.events(&r)
		now := since + int64(c.after)
		if r.waits(now) != (len(c.awaits) > 0) {
			t.Errorf("%s: waits is %v", c.name, r.waits(now))
		}
		n := 0
		for _, h := range []table.Holder{one, two, three} {
			if r.awaits(h, now) {
				n++
			}
		}
		for _, h := range c.awaits {
			if !r.awaits(h, now) {
				t.Errorf("%s: %v is not waited for", c.name, h)
			}
		}
		if n != len(c.awaits) {
			t.Errorf("%s: %d are waited for", c.name, n)
		}
	}
}
