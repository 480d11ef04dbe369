package handoff

import (
	"context"
	"testing"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestLeaseComesBack: an owner is cut off from its standby and from the leader, its
// lease ends, and the same process gets it back before the answers leave that waited
// for the standby. None of them is acknowledged: when the owner dies, the standby acts
// without what it never had.
func TestLeaseComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		w.set("unsync", held)
		keys := w.keys(3, ownedBy(n[0], n[1]))
		n[0].add(keys[0]).checkAnswered(t, "the standby is there")
		n[0].to(n[1].self).stall()
		acknowledged := map[string]int64{keys[0]: 1}
		for _, key := range keys {
			a, err := n[0].store.Add(w.now(), ref(key), reqid.ID{}, counter.AddOp{Delta: 1})
			if err != nil {
				t.Fatal(err)
			}
			n[0].rule.Extend(0)
			told := n[0].source.Replicated(owner.Hash(key)) || n[0].source.Await(owner.Hash(key))
			n[0].rule.Extend(w.now() + int64(time.Hour))
			if err := n[0].store.Confirm(a.Meta.Permit, w.now()); err != nil {
				t.Fatalf("the lease is back, and the check before the answer does not see it: %v", err)
			}
			if told {
				acknowledged[key]++
			}
		}
		w.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{n[0].self}, Reason: "died"}})
		n[0].to(n[1].self).flow() // what is late is not taken in
		for _, key := range keys {
			a, err := n[1].store.Get(w.now(), ref(key))
			if err != nil {
				t.Fatal(err)
			}
			if a.Permit.Lost != 0 || a.Value != acknowledged[key] {
				t.Errorf("%s is %d at the next owner, and %d were acknowledged; declared loss: %d", key, a.Value, acknowledged[key], a.Permit.Lost)
			}
		}
	})
}

// TestManyWaitWithoutALease: those that wait for the standby one after the other, as the
// items of a batch do, do not each wait for a look at the lease when it is over.
func TestManyWaitWithoutALease(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		w.set("unsync", held)
		keys := w.keys(100, ownedBy(n[0], n[1]))
		n[0].to(n[1].self).stall()
		n[0].put(keys, 1)
		n[0].rule.Extend(0)
		began := time.Now()
		for _, key := range keys {
			if n[0].source.Replicated(owner.Hash(key)) || n[0].source.Await(owner.Hash(key)) {
				t.Fatal("the standby has it, or need not")
			}
		}
		if took := time.Since(began); took > pollEvery {
			t.Errorf("%d of them gave up after %s", len(keys), took)
		}
	})
}

// TestBehind: one that has not acknowledged is named, and can be waited for alone.
func TestBehind(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		w.set("unsync", held)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		hash, none := owner.Hash(key), table.Behind{}
		n[0].add(key).checkAnswered(t, "the standby is there")
		if got := n[0].source.Behind(hash); got != none {
			t.Errorf("%v are behind", got)
		}
		n[0].to(n[1].self).stall()
		n[0].put([]string{key}, 1)
		if got := n[0].source.Behind(hash); got != (table.Behind{n[1].self}) {
			t.Errorf("%v are behind", got)
		}
		if !n[0].source.AwaitOf(t.Context(), hash, n[0].self) {
			t.Error("nothing is to be had of a process that is no standby, and it was waited for")
		}
		short, cancel := context.WithTimeout(t.Context(), pollEvery/2)
		defer cancel()
		if n[0].source.AwaitOf(short, hash, n[1].self) {
			t.Error("the standby has it")
		}
		n[0].to(n[1].self).flow()
		if !n[0].source.AwaitOf(t.Context(), hash, n[1].self) || n[0].source.Behind(hash) != none {
			t.Error("the standby has it not")
		}
	})
}
