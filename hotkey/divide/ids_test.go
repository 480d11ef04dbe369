package divide

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// answered is an add and its first answer.
type answered struct {
	id    reqid.ID
	delta int64
	value int64
	at    int64
	whole bool
	first owner.AddAnswer
}

// again asks once more, and says what came back; New must not.
func (h *house) again(a *answered) (owner.AddAnswer, error) {
	id := a.id
	id.Age = h.now - a.at
	return h.s.Add(h.now, h.at(id), id, counter.AddOp{Delta: a.delta})
}

// TestLife splits and unites a counter again and again, and asks for each answer once
// more, wherever the id lives then.
func TestLife(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newHouse(t, func(c *owner.Config) { c.RequestIDs.Window = 1_000_000 * second })
		var done []answered
		sum := int64(0)
		retry := func(a *answered) {
			r, err := h.again(a)
			split := len(h.tab.Splits) > 0
			switch {
			case err != nil || !r.Replayed || !r.Applied || r.Age != h.now-a.at:
				rt.Fatalf("%+v again: %+v, %v", *a, r, err)
			case split && a.whole && r.Value+h.split().Base != a.value, !split && r.Value != a.value && a.whole:
				rt.Fatalf("%+v again: the value is %d", *a, r.Value)
			case !split && a.whole && r.Version != a.first.Version:
				rt.Fatalf("%+v again: the version is %x and was %x", *a, r.Version, a.first.Version)
			case !split && !a.whole && (r.Value != a.value || r.Version>>63 == 0):
				rt.Fatalf("%+v, answered by a part: %+v", *a, r)
			}
		}
		for range rapid.IntRange(5, 40).Draw(rt, "steps") {
			h.now += rapid.Int64Range(1, second).Draw(rt, "pause")
			switch split := len(h.tab.Splits) > 0; rapid.IntRange(0, 7).Draw(rt, "step") {
			case 7:
				if split {
					h.merge()
				} else {
					h.begin("counter", even(rapid.IntRange(table.MinParts, 6).Draw(rt, "parts"))...)
					h.open()
				}
			case 5, 6:
				if len(done) > 0 {
					retry(&done[rapid.IntRange(0, len(done)-1).Draw(rt, "which")])
				}
			default:
				a := answered{id: idOf(rapid.Uint64Range(1, 3).Draw(rt, "client"), uint64(len(done)+1), 0), delta: rapid.Int64Range(-9, 9).Draw(rt, "delta"), at: h.now, whole: !split}
				a.first = h.add(a.id, a.delta)
				sum += a.delta
				if a.value = a.first.Value; split {
					a.value += h.split().Base
				}
				done = append(done, a)
			}
			if v := h.value(); v != sum {
				rt.Fatalf("the counter is %d, and %d were added", v, sum)
			}
		}
		for _, back := range []bool{false, true} {
			if back && len(h.tab.Splits) > 0 {
				h.merge()
			}
			for i := range done {
				retry(&done[i])
			}
		}
	})
}

// fill adds 1 under so many ids, of some clients in turn, a millisecond apart.
func (h *house) fill(n int, clients uint64) (done []answered) {
	for i := range uint64(n) {
		a := answered{id: idOf(1+i%clients, 1+i/clients, 0), delta: 1, at: h.now}
		h.add(a.id, 1)
		done = append(done, a)
		h.now += second / 1000
	}
	return done
}

// TestTooManyIDs: when more ids are remembered than travel, the oldest go, and who asks
// for them again is told that it was too long ago; he is never done again.
func TestTooManyIDs(t *testing.T) {
	h := newHouse(t, nil)
	done := h.fill(MaxIDs+2000, 12)
	check := func(what string, most int) {
		t.Helper()
		old, value := 0, h.value()
		for i := range done {
			a, err := h.again(&done[i])
			switch {
			case err == nil && a.Replayed:
			case reason(err) != failure.RequestTooOld || i >= most:
				t.Fatalf("%s: id %d of %d: %+v, %v", what, i, len(done), a, err)
			default:
				old++
			}
		}
		if v := h.value(); v != value || old == 0 {
			t.Errorf("%s: the counter is %d and was %d; %d ids were too old", what, v, value, old)
		}
	}
	h.begin("counter", even(3)...)
	h.open()
	h.now += 5 * second // of two that are a second apart, nobody knows which was sent first
	check("divided", 2000)
	more := h.fill2(3000)
	done = append(done, more...)
	h.merge()
	h.now += 5 * second
	check("united", 5000)
	if v := h.value(); v != int64(MaxIDs+2000+3000) {
		t.Errorf("the counter is %d", v)
	}
}

// fill2 is fill with sequences that were not used yet.
func (h *house) fill2(n int) (done []answered) {
	for i := range uint64(n) {
		a := answered{id: idOf(100+i%12, 1+i/12, 0), delta: 1, at: h.now}
		h.add(a.id, 1)
		done = append(done, a)
		h.now += second / 1000
	}
	return done
}

// TestEvictedIsEverywhere: a part that remembers no client knows as well as the others
// since when ids are remembered, and so does the whole that is made of it, until ids of
// that time are too old anyway.
func TestEvictedIsEverywhere(t *testing.T) {
	h := newHouse(t, func(c *owner.Config) { c.RequestIDs.Window = 100 * second })
	h.since = h.now - 10*second // the row was lost then
	h.begin("counter", even(4)...)
	h.open()
	h.since = math.MinInt64 // rows of the parts were not
	tooOld := func(what string, want bool) {
		t.Helper()
		for seq := uint64(1); seq <= 16; seq++ {
			id := idOf(5, seq, h.now-(1000*second-12*second))
			if _, err := h.s.Add(h.now, h.at(id), id, counter.AddOp{Delta: 1}); (reason(err) == failure.RequestTooOld) != want {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	tooOld("divided", true)
	h.merge()
	tooOld("united", true)
	h.now += 150 * second
	for range 64 {
		h.s.Sweep(h.now)
	}
	if n := h.s.Stats().Objects[owner.KindCounter]; n != 0 {
		t.Errorf("%d objects are held for nothing", n)
	}
}

// TestRoomIsOverEverywhere: a part to which no id of the object goes knows as well as the
// others which ids were dropped for want of room.
func TestRoomIsOverEverywhere(t *testing.T) {
	h := newHouse(t, fewIDs)
	done := h.fill(64, 1) // which settles nothing: no part has a floor of it
	h.now += 5 * second
	h.begin("counter", even(16)...)
	h.open()
	old := 0
	for i := range done {
		switch a, err := h.again(&done[i]); {
		case reason(err) == failure.RequestTooOld:
			old++
		case err != nil || !a.Replayed:
			t.Fatalf("id %d of %d: %+v, %v", i, len(done), a, err)
		}
	}
	if old < len(done)/2 {
		t.Errorf("%d ids of %d were dropped", old, len(done))
	}
}

// TestJoinReplaces: what is put together of the parts is all that the whole has then, and
// is there once.
func TestJoinReplaces(t *testing.T) {
	h := newHouse(t, nil)
	for seq := range uint64(3) {
		h.add(idOf(1, seq+1, 0), 10)
	}
	known := func(want int, value int64) {
		t.Helper()
		h.begin("counter", even(2)...)
		n := 0
		for _, r := range h.readObject(h.whole(owner.Carry), owner.KindCounter) {
			n += len(r.IDs.Ops) - r.IDs.Keyed()
		}
		h.open()
		if n != want || h.value() != value {
			t.Errorf("%d ids are known, and the value is %d", n, h.value())
		}
	}
	known(3, 30)
	sp, parts := h.close()
	all := united(parts, sp, h.now)
	h.put(h.whole(owner.Join), all) // and another home does it again
	h.join(sp, all)
	known(3, 30)
	sp, parts = h.close()
	h.join(sp, []*owner.Record{Bare(united(parts, sp, h.now)[0], h.now)})
	known(0, 30)
	h.merge()
	h.now += second
	if _, err := h.s.Add(h.now, h.whole(owner.Whole), idOf(1, 2, 2*second), counter.AddOp{Delta: 10}); reason(err) != failure.RequestTooOld {
		t.Errorf("an id that was dropped: %v", err)
	}
}

// TestLargest: the records of a part, and those of the whole, stay within their bounds
// with as many ids, clients and bytes as there may be.
func TestLargest(t *testing.T) {
	const clients, most = owner.MaxKept / 4, 600 << 10
	now := int64(1) << 60
	key, name := make([]byte, owner.MaxKey), make([]byte, owner.MaxName)
	for i := range key {
		key[i] = 'k'
	}
	for i := range name {
		name[i] = 'n'
	}
	sp := &table.Split{ID: 1<<39 - 1, Kind: "counter", Key: string(key), Name: string(name), Parts: make([]table.Part, table.MaxParts)}
	for i := range sp.Parts {
		sp.Parts[i] = table.Part{Salt: 1<<32 - 1, Weight: 1}
	}
	// Each client has 20 ids, all of one part, with the longest numbers that there are.
	k := &reqid.Kept{Evicted: 5}
	for c := range uint64(clients) {
		kc := reqid.KeptClient{Client: reqid.Client{Hi: math.MaxUint64, Lo: c}, Floor: math.MaxUint64 - 1, Seen: 1, Linked: 1, Ops: 20}
		seq := uint64(reqid.KeySequence - 1)
		for n := 0; n < kc.Ops; n, seq = n+1, seq-1 {
			for ring.PartOf(kc.Client.Hi, c, seq, len(sp.Parts)) != 7 {
				seq--
			}
			k.Ops = append(k.Ops, reqid.KeptOp{Sequence: seq, At: int64(len(k.Ops) + 1), Outcome: reqid.Outcome{Print: 1, Code: 1, A: math.MinInt64, B: math.MaxInt64}})
		}
		k.Clients = append(k.Clients, kc)
	}
	whole := []*owner.Record{(&owner.Record{Key: key, Name: name, At: now, Whole: true, IDs: k}).SetCounter(counter.State{Value: 1, Version: 1, At: now})}
	parts, base, err := Divide(whole, sp, now)
	if err != nil {
		t.Fatal(err)
	}
	open := *sp
	open.Base = base
	back := united(parts, &open, now)
	if n := len(ids(back)); n != MaxIDs {
		t.Errorf("%d ids are left", n)
	}
	for i, all := range append(parts, back, Trim(whole)) {
		n, known := 0, 0
		for j, r := range all {
			n += len(record.Append(nil, r, now))
			known += len(r.IDs.Ops)
			if size := len(r.IDs.Ops) + len(r.IDs.Clients); size > owner.MaxKept || r.Whole != (j == 0) || r.More == r.Whole || r.Validate(now) != nil {
				t.Errorf("record %d of part %d has %d ids: %v", j, i, size, r.Validate(now))
			}
		}
		if n > most || known > MaxIDs || (i == 7 || i >= len(parts)) && known != MaxIDs {
			t.Errorf("part %d has %d bytes and %d ids", i, n, known)
		}
	}
}

// TestTrim leaves what is small as it is, and takes the oldest ids of what is not.
func TestTrim(t *testing.T) {
	h := newHouse(t, nil)
	done := h.fill(MaxIDs+100, 9)
	h.begin("counter", even(2)...)
	all := h.readObject(h.whole(owner.Carry), owner.KindCounter)
	if len(all) < 2 {
		t.Fatalf("%d records", len(all))
	}
	before := encoded(all, h.now)
	few := Trim(all)
	if string(before) != string(encoded(all, h.now)) {
		t.Error("the records were changed")
	}
	known := ids(few)
	if c := few[0].Counter(); c != all[0].Counter() || len(known) != MaxIDs || few[0].IDs.Evicted < done[99].at || few[0].IDs.Evicted >= done[100].at {
		t.Errorf("%+v; %d ids, evicted %d", c, len(known), few[0].IDs.Evicted)
	}
	if again := Trim(few); &again[0] != &few[0] || len(again) != len(few) {
		t.Error("what is small is made anew")
	}
}

// TestTogether: ids of one client that lived in several parts are in the order in which
// they took effect again, and the client that was idle longest is the first.
func TestTogether(t *testing.T) {
	at := func(client uint64, linked int64, floor uint64, ops ...int64) []*owner.Record {
		r := &owner.Record{Whole: true, IDs: &reqid.Kept{Evicted: linked - 1}}
		for _, o := range ops {
			r.IDs.Ops = append(r.IDs.Ops, reqid.KeptOp{Sequence: uint64(100 + o), At: o})
		}
		r.IDs.Clients = []reqid.KeptClient{{Client: reqid.Client{Hi: client}, Floor: floor, Seen: linked + 1, Linked: linked, Ops: len(ops)}}
		return []*owner.Record{r}
	}
	sp := &table.Split{Kind: "counter", Key: "k", Parts: make([]table.Part, 4)}
	all := united([][]*owner.Record{at(1, 50, 3, 10, 40), at(2, 30, 0, 5), at(1, 20, 9, 1, 30, 45), at(3, 10, 0)}, sp, 60)
	k := all[0].IDs
	if len(all) != 1 || len(k.Clients) != 2 || k.Evicted != 49 {
		t.Fatalf("%+v", k)
	}
	if c := k.Clients[0]; c.Client.Hi != 2 || c.Ops != 1 {
		t.Errorf("the first client is %+v", c)
	}
	if c := k.Clients[1]; c.Floor != 9 || c.Seen != 51 || c.Linked != 50 || c.Ops != 5 {
		t.Errorf("the second client is %+v", c)
	}
	for i, want := range []int64{5, 1, 10, 30, 40, 45} {
		if k.Ops[i].At != want {
			t.Errorf("operation %d is of %d", i, k.Ops[i].At)
		}
	}
}

// TestBucketLife splits and unites a bucket again and again: no more is let through than
// it may, and every answer is given again.
func TestBucketLife(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newHouse(t, func(c *owner.Config) { c.RequestIDs.Window = 1_000_000 * second })
		op := bucket(60, 60*second)
		start, let, allowed := h.now, uint64(0), map[reqid.ID]bool{}
		var done []reqid.ID
		check := func(id reqid.ID) owner.CheckAnswer {
			a, err := h.s.Check(h.now, h.at(id), id, op)
			if err != nil {
				rt.Fatal(err)
			}
			return a
		}
		for range rapid.IntRange(10, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 9:
				if len(h.tab.Splits) > 0 {
					h.merge()
				} else {
					h.begin("limit", even(rapid.IntRange(table.MinParts, 5).Draw(rt, "parts"))...)
					h.open()
				}
			case 8:
				h.now += rapid.Int64Range(1, 5*second).Draw(rt, "pause")
			case 7:
				if len(done) > 0 {
					id := rapid.SampledFrom(done).Draw(rt, "which")
					again := id
					again.Age = 1
					if a := check(again); !a.Replayed || a.Allowed != allowed[id] {
						rt.Fatalf("%+v again: %+v, it was %v", id, a, allowed[id])
					}
				}
			default:
				for range rapid.IntRange(1, 20).Draw(rt, "checks") {
					id := idOf(rapid.Uint64Range(1, 3).Draw(rt, "client"), uint64(len(done)+1), 0)
					a := check(id)
					done, allowed[id] = append(done, id), a.Allowed
					if a.Allowed {
						let++
					}
				}
			}
			if most := op.Limit + op.Limit*uint64(h.now-start)/uint64(op.Period); let > most {
				rt.Fatalf("%d were let through, and %d may be", let, most)
			}
		}
	})
}
