package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// splitHistory is what all tables that there were say of the objects that are split: not
// of those that somebody happened to look at, but of every one, as the log has them.
type splitHistory struct {
	whole  bool                // the log was whole: else nothing here counts
	losses map[string][]string // by key: declared losses of state that counted, for people
	// of says by key what such a loss was of. The state of a whole object counts while it
	// is not split, and until its parts are served; those of parts from then on.
	of    map[string]lossOf
	base  map[string]int64 // by counter: its value when it was divided last, 0 after a loss of the whole
	fault []string
}

// lossOf says what of an object was lost: ids, if request ids of it may be unknown
// somewhere; part, if the state of a part is gone as well; whole, if that of all is.
// unsure is of one whose parts have stood in rows of which anything was ever lost, also
// before: their owners call request ids too old that they only might have forgotten.
type lossOf struct{ ids, part, whole, unsure bool }

func newSplitHistory() *splitHistory {
	return &splitHistory{losses: map[string][]string{}, of: map[string]lossOf{}, base: map[string]int64{}}
}

// history reads the log of a process that has all of it, up to the latest table.
func (s *splitScene) history() *splitHistory {
	h := newSplitHistory()
	end := latest(s.Cluster).Epoch
	for _, host := range s.hosts {
		logs := host.storage.Logs
		first, err := logs.FirstIndex()
		last, err2 := logs.LastIndex()
		if err != nil || err2 != nil || first != 1 {
			continue
		}
		t := &table.Table{}
		for i := first; i <= last && t.Epoch < end; i++ {
			var l raft.Log
			if logs.GetLog(i, &l) != nil || l.Type != raft.LogCommand {
				continue
			}
			c, err := table.Decode(l.Data)
			if err != nil {
				h.fault = append(h.fault, fmt.Sprintf("entry %d of %s: %v", i, host.name, err))
				return h
			}
			if next, _ := t.Apply(c); next != t {
				h.learn(t, next, c)
				t = next
			}
		}
		if t.Epoch == end {
			h.whole = true
			return h
		}
		h = newSplitHistory()
	}
	return h
}

// learn takes in the table that a command has made.
func (h *splitHistory) learn(was, is *table.Table, c table.Command) {
	for i := range is.Splits {
		sp := &is.Splits[i]
		for k := range sp.Parts {
			if r := is.Find(sp.PartHash(k)); is.Rows[r].Lost != 0 {
				of := h.of[sp.Key]
				of.unsure = true
				h.of[sp.Key] = of
			}
		}
	}
	switch {
	case c.OpenSplit != nil:
		if sp, ok := is.SplitOf(c.OpenSplit.ID); ok && sp.Kind == "counter" {
			if before := h.base[sp.Key]; sp.Base < before {
				h.fault = append(h.fault, fmt.Sprintf("counter %s was divided at %d in epoch %d, and at %d before", sp.Key, sp.Base, is.Epoch, before))
			}
			h.base[sp.Key] = sp.Base
		}
	case c.Remove != nil:
		for _, key := range splitKeys() {
			h.noteLoss(was, is, key)
		}
	}
}

// noteLoss takes note of what is declared lost of an object by a table.
func (h *splitHistory) noteLoss(was, is *table.Table, key string) {
	lost := func(hash uint64) bool { i := is.Find(hash); return i >= 0 && is.Rows[i].Lost == is.Epoch }
	sp, split := was.Split(wordOf(key), key, defaultName(key))
	served := split && sp.Phase != table.Opening
	of := h.of[key]
	note := func(what string) {
		phase := "whole"
		if split {
			phase = sp.Phase.String()
		}
		h.losses[key] = append(h.losses[key], fmt.Sprintf("%s in epoch %d (%s)", what, is.Epoch, phase))
	}
	if lost(owner.Hash(key)) {
		note("home")
		if of.ids, of.unsure = true, true; !served {
			of.whole, h.base[key] = true, 0
		}
	}
	if split {
		for i := range sp.Parts {
			if lost(sp.PartHash(i)) {
				note(fmt.Sprintf("part %d of split %d", i, sp.ID))
				of.ids, of.part = true, of.part || served
			}
		}
	}
	h.of[key] = of
}

// lossOf returns what was lost of an object, as far as it is known.
func (s *splitScene) lossOf(h *splitHistory, key string) lossOf {
	if h.whole {
		return h.of[key]
	}
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	lost := s.watch.lost[key]
	return lossOf{lost, lost, lost, lost}
}

// holdings describes the parts that processes hold, and copies of what is none of theirs.
func (s *splitScene) holdings() string {
	var out []string
	for _, h := range s.hosts {
		if h.node == nil {
			continue
		}
		t, self := h.node.Group().Table(), h.node.Group().Self()
		h.node.Held(func(r *owner.Record) {
			i := t.Find(owner.Hash(string(r.Key)))
			id, part, isPart := table.OfPart(string(r.Key))
			_, lives := t.SplitOf(id)
			may := i >= 0 && t.MayHold(i, self)
			if !isPart && may {
				return
			}
			state, _ := r.Limit()
			out = append(out, fmt.Sprintf("%s epoch %d holds %s %q %s: part %d of %d (is part %v, is split %v), may hold %v, %d ids, limit %+v, row %+v", h.name, t.Epoch,
				r.Kind, r.Key, r.Name, part, id, isPart, lives, may, len(r.IDs.Ops), state, t.Rows[max(i, 0)]))
		})
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// TestSplitHistory: what a loss is of depends on the phase in which it is declared.
func TestSplitHistory(t *testing.T) {
	const key = "sum-a"
	for name, x := range map[string]struct {
		phase table.SplitPhase // 0 = it was never split
		home  bool             // it dies; else the node of part 1
		want  lossOf
	}{
		"whole":          {0, true, lossOf{ids: true, whole: true, unsure: true}},
		"of others":      {0, false, lossOf{}},
		"opening, home":  {table.Opening, true, lossOf{ids: true, whole: true, unsure: true}},
		"opening, part":  {table.Opening, false, lossOf{ids: true, unsure: true}},
		"open, home":     {table.Open, true, lossOf{ids: true, unsure: true}},
		"open, part":     {table.Open, false, lossOf{ids: true, part: true, unsure: true}},
		"closing, home":  {table.Closing, true, lossOf{ids: true, unsure: true}},
		"closing, part":  {table.Closing, false, lossOf{ids: true, part: true, unsure: true}},
		"divided before": {table.Open, false, lossOf{ids: true, part: true, unsure: true}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newSplitHistory()
			tab := &table.Table{}
			apply := func(c table.Command) {
				t.Helper()
				next, err := tab.Apply(c)
				if err != nil {
					t.Fatal(err)
				}
				h.learn(tab, next, c)
				tab = next
			}
			apply(table.Command{Init: &table.Init{Cluster: "sim", Epoch: 1, LeaseTTL: 2e9, LeaseMargin: 5e7, LockTTL: 1e9}})
			begin := &table.Begin{}
			for i := range uint64(3) {
				m := table.Member{Node: fmt.Sprintf("n%d", i+1), Incarnation: i + 1, HashKey: fmt.Sprint(i)}
				apply(table.Command{Admit: &table.Admit{Member: m}})
				begin.Want = append(begin.Want, m.Holder())
			}
			apply(table.Command{Begin: begin})
			apply(table.Command{End: &table.End{Transition: tab.Transition.ID}})
			home, _, _ := tab.Owner(owner.Hash(key))
			others := slices.DeleteFunc(slices.Clone(tab.WantedNodes()), func(n string) bool { return n == home.Node })
			split := func(base int64) uint64 {
				id := tab.Epoch + 1
				salts, ok := tab.Place(id, []string{others[1], others[0]})
				if !ok {
					t.Fatal("no places")
				}
				sp := table.Split{ID: id, Kind: "counter", Key: key, Name: "counter"}
				for _, salt := range salts {
					sp.Parts = append(sp.Parts, table.Part{Salt: salt, Weight: table.FullWeight / 2})
				}
				apply(table.Command{BeginSplit: &table.BeginSplit{Split: sp}})
				if x.phase >= table.Open {
					apply(table.Command{OpenSplit: &table.OpenSplit{ID: id, Home: home.Holder(), Base: base}})
				}
				if x.phase >= table.Closing {
					apply(table.Command{CloseSplit: &table.CloseSplit{ID: id}})
				}
				return id
			}
			if name == "divided before" {
				id := split(7)
				apply(table.Command{CloseSplit: &table.CloseSplit{ID: id}})
				apply(table.Command{EndSplit: &table.EndSplit{ID: id, Home: home.Holder(), Since: tab.Epoch}})
				split(5)
				if len(h.fault) != 1 {
					t.Errorf("a counter that went back: %q", h.fault)
				}
			} else if x.phase != 0 {
				split(7)
			}
			dies := home
			if !x.home {
				dies, _ = tab.Member(others[0])
			}
			apply(table.Command{Remove: &table.Remove{Members: []table.Holder{dies.Holder()}}})
			if got := h.of[key]; got != x.want {
				t.Errorf("%+v, want %+v: %v", got, x.want, h.losses[key])
			}
			if base := h.base[key]; x.want.whole && base != 0 || x.phase >= table.Open && base == 0 {
				t.Errorf("divided at %d", base)
			}
		})
	}
}
