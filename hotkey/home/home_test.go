package home

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestSplitAndMerge: an order has an object split and made whole; what was added before,
// while it was split, and after is in it once, and retries find their answers.
func TestSplitAndMerge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waited := map[table.SplitPhase]int{}
		e := newEstate(t, func(c *Config) { c.Paused = func(p table.SplitPhase, _ time.Duration) { waited[p]++ } }, "n1", "n2", "n3")
		e.copying = 10 * time.Millisecond
		e.run()
		key := e.own()
		whole := owner.Ref{Key: key, Name: "counter"}
		id := func(seq uint64) reqid.ID { return reqid.ID{Client: reqid.Client{Hi: 7}, Sequence: seq} }
		for seq := range uint64(5) {
			e.add(whole, id(1+seq))
		}
		o := Order{Kind: owner.KindCounter, Key: key, Name: "counter", Parts: 3, Manual: true, Reason: byHand}
		tab, sp, err := e.home.Split(t.Context(), o)
		if err != nil || sp.Phase != table.Open || len(sp.Parts) != 3 || sp.Base != 5 || tab.Epoch < sp.Since {
			t.Fatalf("%+v, %v", sp, err)
		}
		for seq := uint64(3); seq < 9; seq++ { // three of them again
			part := ring.PartOf(7, 0, seq, 3)
			if a := e.add(e.part(sp, part, owner.Share), id(seq)); a.Replayed != (seq <= 5) {
				t.Errorf("%d: replayed %v", seq, a.Replayed)
			}
		}
		if err := e.home.Merge(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if a := e.add(whole, id(8)); !a.Replayed {
			t.Error("what a part has done is done again")
		}
		if a := e.add(whole, id(9)); a.Value != 9 {
			t.Errorf("the value is %d after 9 adds", a.Value)
		}
		synctest.Wait()
		if c := e.home.Counts(); c.Merges != 1 || waited[table.Opening] != 1 || waited[table.Closing] != 1 {
			t.Errorf("%+v, %v", c, waited)
		}
		if err := e.home.Merge(t.Context(), o); failure.ReasonOf(err) != failure.Invalid {
			t.Errorf("what is not split is merged: %v", err)
		}
	})
}

// TestMadeWhole: an object is made whole for an operation that no part can do, and its
// home does not split it at once.
func TestMadeWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEstate(t, nil, "n1", "n2")
		e.run()
		key := e.own()
		_, sp, err := e.home.Split(t.Context(), Order{Kind: owner.KindCounter, Key: key, Name: "counter"})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			e.home.MakeWhole(sp.ID, "a test")
		}
		for range 20 { // five seconds in which it is hot
			e.hot.Store(&HotKeys{Keys: []HotKey{{Object: owner.Object{Ref: owner.Ref{Key: key, Name: "counter"}, Kind: owner.KindCounter}, RateMax: 9e4, RateMin: 9e4, Hot: true}}})
			time.Sleep(pollEvery)
		}
		if n, c := len(e.Table().Splits), e.home.Counts(); n != 0 || c.Merges != 1 || c.Splits != 0 {
			t.Errorf("%d splits, %+v", n, c)
		}
		time.Sleep(time.Minute)
		if c := e.home.Counts(); c.Splits == 0 {
			t.Errorf("%+v when a minute is over", c)
		}
	})
}

// TestTakenAsItWas: what a home reads is what the store had, to the nanosecond, whatever
// becomes of the object and however long the copies take.
func TestTakenAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEstate(t, nil, "n1", "n2")
		key, name := e.own(), "limit"
		op := limit.Op{Params: limit.Params{Limit: 10, Period: int64(time.Minute)}, Cost: 3}
		at := e.now()
		id := reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: 1}
		if _, err := e.store.Check(at, owner.Ref{Key: key, Name: name}, id, op); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second + 1)
		var splits []table.Split
		for _, of := range []string{name, "another"} {
			sp, err := divided(e.Table(), Order{Kind: owner.KindLimit, Key: key, Name: of, Parts: 2}, e.home.nodes(e.Table()))
			if err != nil {
				t.Fatal(err)
			}
			e.Must(table.Command{BeginSplit: &table.BeginSplit{Split: sp}})
			splits = append(splits, sp)
		}
		e.copying = 3 * time.Second
		// Meanwhile another object of the shard is read, whose record is made in the same place.
		go func() {
			time.Sleep(time.Second)
			if all, _, err := e.home.readWhole(&splits[1]); err != nil || string(all[0].Name) != "another" {
				t.Errorf("%+v, %v", all, err)
			}
		}()
		all, now, err := e.home.readWhole(&splits[0])
		if err != nil || len(all) != 1 || now != e.now() {
			t.Fatalf("%d records at %d, %v", len(all), now, err)
		}
		r := all[0]
		if state, _ := r.Limit(); string(r.Key) != key || string(r.Name) != name || state.Spent == 0 || state.At != at {
			t.Errorf("%s %s: %+v, not of %d", r.Key, r.Name, state, at)
		}
		if len(r.IDs.Clients) != 1 || len(r.IDs.Ops) != 1 || r.IDs.Ops[0].At != at || r.IDs.Clients[0].Client.Hi != 1 {
			t.Errorf("%+v", r.IDs)
		}
		time.Sleep(time.Minute)
	})
}

// TestTakeWholeOfMany: an object is split however many ids are remembered of it, for it
// is the busy ones that have many.
func TestTakeWholeOfMany(t *testing.T) {
	e := newEstate(t, nil, "n1", "n2")
	key := e.own()
	const more = 64*owner.MaxKept + 1
	for i := range uint64(more) {
		e.add(owner.Ref{Key: key, Name: "counter"}, reqid.ID{Client: reqid.Client{Hi: i % 300}, Sequence: 1 + i/300})
	}
	sp := e.divide(key)
	all, now, err := e.home.readWhole(sp)
	if err != nil || len(all) <= 64 || all[0].Counter().Value != more {
		t.Fatalf("%d records, %v", len(all), err)
	}
	ids := 0
	for _, r := range all {
		ids += len(r.IDs.Ops)
	}
	if ids < divide.MaxIDs {
		t.Errorf("%d ids", ids)
	}
	parts, base, err := divide.Divide(all, sp, now)
	if err != nil || base != more {
		t.Fatal(base, err)
	}
	for i := range parts {
		if err := e.Plant(t.Context(), sp, i, parts[i], now); err != nil {
			t.Errorf("part %d: %v", i, err)
		}
	}
}

// reap closes a split and puts together what its parts have.
func (e *estate) reap(sp *table.Split) (*table.Split, []*owner.Record) {
	e.t.Helper()
	closing := e.Reach(sp.ID, table.Closing)
	var parts [][]*owner.Record
	for i := range closing.Parts {
		all, err := e.Reap(context.Background(), closing, i)
		if err != nil {
			e.t.Fatal(err)
		}
		parts = append(parts, all)
	}
	whole, err := divide.Unite(parts, closing, e.now())
	if err != nil {
		e.t.Fatal(err)
	}
	return closing, whole
}

// TestWholeOfAnEarlierSplit: a home that was held up between reading the parts of a split
// and writing the whole, and comes to that when the object has been split anew and is put
// together again, must not write: the adds of the later split were lost, if what the later
// one is made of had been written before.
func TestWholeOfAnEarlierSplit(t *testing.T) {
	e := newEstate(t, nil, "n1", "n2")
	key := e.own()
	add := func(sp *table.Split, n int) {
		t.Helper()
		for range n {
			e.add(e.part(sp, 1, owner.Share), reqid.ID{})
		}
	}
	end := func(sp *table.Split) {
		t.Helper()
		e.Must(table.Command{EndSplit: &table.EndSplit{ID: sp.ID, Home: e.Self(), Since: sp.Since}})
	}
	first := e.Reach(e.divide(key).ID, table.Open)
	add(first, 3)
	closing, late := e.reap(first)
	if err := e.home.putWhole(closing, late); err != nil { // another home, or the same one at its second attempt
		t.Fatal(err)
	}
	end(closing)
	opening := e.divide(key)
	if _, _, err := e.home.readWhole(closing); failure.ReasonOf(err) != failure.NotOwner {
		t.Errorf("the whole is read for a split that is over: %v", err)
	}
	second := e.Reach(opening.ID, table.Open)
	add(second, 40)
	closing2, all := e.reap(second)
	if err := e.home.putWhole(closing2, all); err != nil {
		t.Fatal(err)
	}
	if err := e.home.putWhole(closing, late); failure.ReasonOf(err) != failure.NotOwner {
		t.Errorf("the whole is written for a split that is over: %v", err)
	}
	end(closing2)
	got, err := e.store.Get(e.now(), owner.Ref{Key: key, Name: "counter"})
	if want := closing2.Base + 40; err != nil || got.Value != want {
		t.Errorf("%d, %v; %d were added", got.Value, err, want)
	}
}

// TestNotDivided: a home does not go on from what its standby may not have, nor from what
// is absent because it was lost.
func TestNotDivided(t *testing.T) {
	e := newEstate(t, nil, "n1", "n2")
	key := e.own()
	e.add(owner.Ref{Key: key, Name: "counter"}, reqid.ID{})
	sp := e.divide(key)
	e.leaseless = true
	if _, _, err := e.home.readWhole(sp); !errors.Is(err, errNotReplicated) || indivisible(err) {
		t.Errorf("without a lease: %v", err)
	}
	if err := e.home.putWhole(sp, nil); err == nil {
		t.Error("nothing is put")
	}
	e.leaseless, e.lost = false, 7
	if _, _, err := e.home.readWhole(sp); !errors.Is(err, errInGrace) || indivisible(err) {
		t.Errorf("in grace: %v", err)
	}
	e.lost = 0
	if _, _, err := e.home.readWhole(&table.Split{ID: sp.ID, Kind: "lock", Key: key, Name: "counter"}); !errors.Is(err, divide.ErrKind) || !indivisible(err) {
		t.Errorf("a lock: %v", err)
	}
	if _, _, err := e.home.readWhole(sp); err != nil {
		t.Error(err)
	}
}

// TestKindsWithoutParts: a hot object of a kind that has no parts, or that this program
// does not know, is no candidate, and an order to split it proposes nothing.
func TestKindsWithoutParts(t *testing.T) {
	e := newEstate(t, nil, "n1", "n2")
	key := e.own()
	for kind := range owner.Kind(32) {
		e.hot.Store(&HotKeys{Keys: []HotKey{{Object: owner.Object{Ref: owner.Ref{Key: key, Name: "n"}, Kind: kind}, RateMax: 9e4, RateMin: 9e4, Hot: true}}})
		has := kind == owner.KindLimit || kind == owner.KindCounter
		if got := len(e.home.scene(e.Table()).Hot); (got == 1) != has || kind.Parts() != has {
			t.Errorf("%d, a %s: %d candidates", kind, kind, got)
		}
		if has {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // there is nothing to wait for
		_, _, err := e.home.Split(ctx, Order{Kind: kind, Key: key, Name: "n"})
		cancel()
		if failure.ReasonOf(err) != failure.Invalid {
			t.Errorf("%d, a %s: %v", kind, kind, err)
		}
	}
	if e.proposed != 0 || len(e.Table().Splits) != 0 {
		t.Errorf("%d proposals", e.proposed)
	}
}

// TestMayBegin tells why an object is not split.
func TestMayBegin(t *testing.T) {
	e := newEstate(t, nil, "n1", "n2")
	tab, key := e.Table(), e.own()
	o := Order{Kind: owner.KindCounter, Key: key, Name: "n"}
	with := func(change func(*table.Table)) *table.Table {
		next := *tab
		change(&next)
		return &next
	}
	full := e.fill()
	for name, tc := range map[string]struct {
		t    *table.Table
		o    Order
		want error
		says string
	}{
		"it may":              {tab, o, nil, ""},
		"a lock":              {tab, Order{Kind: owner.KindLock, Key: key}, nil, `is "lock"`},
		"lost, and in grace":  {with(func(t *table.Table) { t.Rows = inGrace(t.Rows) }), o, errRecovering, ""},
		"too many":            {full, o, errSplitsFull, ""},
		"in place of another": {full, Order{Kind: owner.KindCounter, Key: "k0", Name: "n"}, nil, ""},
		"one node":            {newEstate(t, nil, "n1").Table(), o, errOneNode, ""},
	} {
		err := mayBegin(tc.t, tc.o)
		if tc.says == "" && err != tc.want || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := divided(tab, o, nil); failure.ReasonOf(err) != failure.Invalid {
		t.Errorf("on no nodes: %v", err)
	}
	if _, err := divided(&table.Table{}, Order{Key: key, Parts: 2}, e.home.nodes(tab)); err != errNoPlaces {
		t.Errorf("without a ring: %v", err)
	}
}

// fill returns the table with as many splits as there may be.
func (e *estate) fill() *table.Table {
	e.t.Helper()
	t := e.Table()
	for i := range table.MaxSplits {
		sp, err := divided(t, Order{Kind: owner.KindCounter, Key: fmt.Sprint("k", i), Name: "n", Parts: 2}, e.home.nodes(t))
		if err != nil {
			e.t.Fatal(err)
		}
		if t, err = t.Apply(table.Command{BeginSplit: &table.BeginSplit{Split: sp}}); err != nil {
			e.t.Fatal(err)
		}
	}
	return t
}

func inGrace(rows []table.Row) []table.Row {
	rows = append([]table.Row(nil), rows...)
	for i := range rows {
		rows[i].Grace = true
	}
	return rows
}

// TestProposals: what nobody was asked is proposed again, and said to have changed
// nothing; of what a leader was asked the outcome may be unknown.
func TestProposals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEstate(t, nil, "n1", "n2")
		e.run()
		o := Order{Kind: owner.KindCounter, Key: e.own(), Name: "n"}
		began := time.Now()
		e.refuse = table.ErrNotProposed
		if _, _, err := e.home.Split(t.Context(), o); failure.ReasonOf(err) != failure.Unavailable || e.proposed < 10 || time.Since(began) < orderPatience {
			t.Errorf("without a leader, %d proposals in %v: %v", e.proposed, time.Since(began), err)
		}
		e.refuse, e.proposed = context.DeadlineExceeded, 0
		if _, _, err := e.home.Split(t.Context(), o); failure.ReasonOf(err) != failure.OutcomeUnknown || e.proposed != 1 {
			t.Errorf("a leader that does not answer, %d proposals: %v", e.proposed, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := e.home.Split(ctx, o); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that has left: %v", err)
		}
	})
}

// TestOthersHome: a home does nothing about objects of another.
func TestOthersHome(t *testing.T) {
	e := newEstate(t, nil, "n1", "n2")
	key := e.own()
	for i := 0; ; i++ {
		if other := fmt.Sprint("other-", i); !e.home.Of(e.Table(), &table.Split{Key: other}) {
			e.hot.Store(&HotKeys{Keys: []HotKey{
				{Object: owner.Object{Ref: owner.Ref{Key: other, Name: "n"}, Kind: owner.KindCounter}, RateMax: 9e4, Hot: true},
				{Object: owner.Object{Ref: owner.Ref{Key: key, Name: "calm"}, Kind: owner.KindCounter}, RateMax: 9e4},
				{Object: owner.Object{Ref: owner.Ref{Key: "\x00part", Name: "n"}, Kind: owner.KindCounter}, RateMax: 9e4, Hot: true},
				{Object: owner.Object{Ref: owner.Ref{Key: key, Name: "n"}, Kind: owner.KindCounter}, RateMax: 9e4, Hot: true},
			}})
			break
		}
	}
	some := e.home.scene(e.Table()).Hot
	if len(some) != 1 || some[0].Key != (object{owner.KindCounter, key, "n"}) {
		t.Errorf("%+v", some)
	}
}
