package divide

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestKeysGoToTheirParts: an operation under an idempotency key is answered by the part of
// the key when its object is split, and by the whole again; it acts once.
func TestKeysGoToTheirParts(t *testing.T) {
	h := newHouse(t, nil)
	again := func(when string, from, n int) {
		t.Helper()
		for i := range n {
			id := reqid.KeyID(fmt.Sprint("order", i))
			a, err := h.s.Add(h.now, h.at(id), id, counter.AddOp{Delta: 10})
			if err != nil || a.Replayed != (i < from) {
				t.Fatalf("%s: order %d: %+v, %v", when, i, a, err)
			}
			if _, err := h.s.Add(h.now, h.at(id), id, counter.AddOp{Delta: 11}); reason(err) != failure.RequestIDReused {
				t.Fatalf("%s: order %d with another body: %v", when, i, err)
			}
		}
	}
	again("whole", 0, 20)
	h.begin("counter", even(4)...)
	h.open()
	again("divided", 20, 40)
	h.merge()
	again("united", 40, 60)
	if v := h.value(); v != 600 {
		t.Errorf("the value is %d", v)
	}
}

// TestForgottenKeysAreEverywhere: what was forgotten of the keys of an object is forgotten
// by each of its parts, and by the whole that is made of them, until it is too old anyway.
func TestForgottenKeysAreEverywhere(t *testing.T) {
	const window = 100 * second
	h := newHouse(t, func(c *owner.Config) { c.RequestIDs.Window = window })
	lost := h.now - 10*second
	h.since = lost // the row was lost then
	h.begin("counter", even(4)...)
	h.open()
	h.since = math.MinInt64 // rows of the parts were not
	n := 0
	unsure := func(what string, want bool) {
		t.Helper()
		for range 16 {
			n++
			id := reqid.KeyID(fmt.Sprint("order", n))
			_, err := h.s.Add(h.now, h.at(id), id, counter.AddOp{Delta: 1})
			if (reason(err) == failure.Recovering) != want || !want && err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			var e *failure.Error
			if left := lost + window - h.now; errors.As(err, &e) && (int64(e.RetryAfter) < left || int64(e.RetryAfter) > left+second) {
				t.Fatalf("%s: try again in %s, and %d ns are left", what, e.RetryAfter, left)
			}
		}
	}
	unsure("divided", true)
	h.merge()
	unsure("united", true)
	h.now = lost + window + second
	unsure("later", false)
}

// TestMadeWholeWithoutRoom: a node whose memory is used up as far as copies may use it makes
// an object whole without its ids and keys, which are in doubt then.
func TestMadeWholeWithoutRoom(t *testing.T) {
	h := newHouse(t, func(c *owner.Config) { c.MaxBytes = 1 << 20 })
	h.add(idOf(1, 1, 0), 10)
	h.begin("counter", even(2)...)
	h.open()
	h.add(idOf(1, 2, 0), 10)
	for i, err := 0, error(nil); reason(err) != failure.StoreFull; i++ {
		key := fmt.Sprint("copy", i)
		r := (&owner.Record{Hash: ring.Hash(key), Key: []byte(key), Name: []byte("n"), At: h.now, Version: 1}).SetCounter(counter.State{Value: 1, Version: 1, At: h.now})
		if err = h.s.Install(h.now, r, func(uint64) bool { return true }); err != nil && reason(err) != failure.StoreFull {
			t.Fatal(err)
		}
	}
	sp, parts := h.close()
	all := united(parts, sp, h.now)
	if _, err := h.s.Put(h.now, h.whole(owner.Join), all); reason(err) != failure.StoreFull {
		t.Errorf("with ids: %v", err)
	}
	h.join(sp, []*owner.Record{Bare(all[0], h.now)})
	if v := h.value(); v != 20 {
		t.Errorf("the value is %d", v)
	}
	if _, err := h.s.Add(h.now, h.whole(owner.Whole), idOf(1, 2, second), counter.AddOp{Delta: 10}); reason(err) != failure.RequestTooOld {
		t.Errorf("an id that was dropped: %v", err)
	}
	if _, err := h.s.Add(h.now, h.whole(owner.Whole), reqid.KeyID("order"), counter.AddOp{Delta: 10}); reason(err) != failure.Recovering {
		t.Errorf("a key: %v", err)
	}
}

// manyKeys are the records of a counter that remembers so many keys, each longer than the
// last is away.
func manyKeys(n int, now int64) []*owner.Record {
	var all []*owner.Record
	for i := range n {
		if i%(owner.MaxKept/2) == 0 {
			all = append(all, &owner.Record{Key: []byte("k"), Name: []byte("n"), Kind: owner.KindCounter, At: now, Whole: i == 0, More: i > 0, IDs: &reqid.Kept{Evicted: math.MinInt64}})
		}
		k := all[len(all)-1].IDs
		k.AddKey(reqid.KeyID(fmt.Sprint(i)).Client, now-int64(n-i), reqid.Outcome{Print: math.MaxUint32, Code: 1, A: math.MinInt64, B: math.MaxInt64})
	}
	return all
}

// TestTooManyKeys: an object that remembers more keys than travel is not divided. What its
// parts remember beyond that when they are united is marked as forgotten.
func TestTooManyKeys(t *testing.T) {
	now := 1000 * second
	sp := &table.Split{ID: 1, Kind: "counter", Key: "k", Name: "n", Parts: []table.Part{{Salt: 1, Weight: 1}, {Salt: 2, Weight: 1}}}
	if _, _, err := Divide(manyKeys(PlantKeys, now), sp, now); err != nil {
		t.Errorf("as many as travel: %v", err)
	}
	if _, _, err := Divide(manyKeys(PlantKeys+1, now), sp, now); !errors.Is(err, ErrKeys) {
		t.Errorf("more than travel in one message: %v", err)
	}
	many := manyKeys(MaxKeys+10, now)
	if _, _, err := Divide(many, sp, now); !errors.Is(err, ErrKeys) {
		t.Errorf("more than travel: %v", err)
	}
	back, err := Unite([][]*owner.Record{many, nil}, sp, now)
	if err != nil {
		t.Fatal(err)
	}
	for what, all := range map[string][]*owner.Record{"united": back, "trimmed": Trim(many)} {
		keys, mark, bytes := 0, int64(0), 0
		for _, r := range all {
			bytes += len(record.Append(nil, r, now))
			ops := r.IDs.Ops
			for _, c := range r.IDs.Clients {
				for _, o := range ops[:c.Ops] {
					if reqid.IsMark(c.Client, o.Sequence) {
						mark = o.At
					} else {
						keys++
					}
				}
				ops = ops[c.Ops:]
			}
			if size := len(r.IDs.Ops) + len(r.IDs.Clients); size > owner.MaxKept || r.Validate(now) != nil {
				t.Errorf("%s: a record of %d: %v", what, size, r.Validate(now))
			}
		}
		if want := now - int64(MaxKeys) - 1; keys != MaxKeys || mark != want || bytes > 3<<20 {
			t.Errorf("%s: %d keys are left, those of up to %d are marked, and it takes %d bytes", what, keys, mark-want, bytes)
		}
	}
	if p := ring.PartOf(1, 2, reqid.KeySequence, 2); p < 0 || p > 1 {
		t.Errorf("a key goes to part %d", p)
	}
}
