package divide

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// fewIDs has a store evict ids early.
func fewIDs(c *owner.Config) {
	c.RequestIDs = reqid.Config{Window: 1_000_000 * second, ClientsPerObject: 4, IDsPerClient: 5}
}

// floors returns those of all clients that have one.
func floors(all []*owner.Record) map[reqid.Client]uint64 {
	m := map[reqid.Client]uint64{}
	for _, r := range all {
		for _, c := range r.IDs.Clients {
			if c.Floor > 0 && c.Client != (reqid.Client{}) { // that one is nobody's
				m[c.Client] = max(m[c.Client], c.Floor)
			}
		}
	}
	return m
}

// encoded returns what records are when they travel.
func encoded(all []*owner.Record, now int64) (b []byte) {
	for _, r := range all {
		b = record.Append(b, r, now)
	}
	return b
}

// TestThereAndBack: what is divided and united again is the counter as it was, and each
// id is remembered by its part and by no other.
func TestThereAndBack(t *testing.T) {
	evicted := 0
	rapid.Check(t, func(rt *rapid.T) {
		h := newHouse(t, fewIDs)
		for i := range rapid.IntRange(0, 60).Draw(rt, "adds") {
			h.now += rapid.Int64Range(0, 2*second).Draw(rt, "pause")
			id := idOf(rapid.Uint64Range(1, 6).Draw(rt, "client"), uint64(i+1), 0)
			if rapid.Bool().Draw(rt, "settles") {
				id.Settled = rapid.Uint64Range(1, id.Sequence).Draw(rt, "settled")
			}
			h.add(id, rapid.Int64Range(-1<<40, 1<<40).Draw(rt, "delta"))
		}
		sp := h.begin("counter", even(rapid.IntRange(table.MinParts, 9).Draw(rt, "parts"))...)
		whole := h.readObject(h.whole(owner.Carry), owner.KindCounter)
		before := encoded(whole, h.now)
		parts, base, err := Divide(whole, sp, h.now)
		if err != nil || base != whole[0].Counter().Value || !bytes.Equal(before, encoded(whole, h.now)) {
			rt.Fatalf("base %d of %d, %v; or the whole was changed", base, whole[0].Counter().Value, err)
		}
		known := 0
		for i, part := range parts {
			for _, r := range part {
				known += len(r.IDs.Ops)
				if !r.State.Absent() || string(r.Key) != sp.PartKey(i) || string(r.Name) != "n" || r.Kind != owner.KindCounter {
					rt.Fatalf("part %d: %+v", i, r)
				}
				ops := r.IDs.Ops
				for _, c := range r.IDs.Clients {
					for _, o := range ops[:c.Ops] {
						if ring.PartOf(c.Client.Hi, c.Client.Lo, o.Sequence, len(parts)) != i {
							rt.Fatalf("part %d has operation %d of %v", i, o.Sequence, c.Client)
						}
					}
					ops = ops[c.Ops:]
				}
			}
			if f := floors(part); !reflect.DeepEqual(f, floors(whole)) || part[0].IDs.Evicted != whole[0].IDs.Evicted {
				rt.Fatalf("part %d has the floors %v and %d, and the whole %v and %d", i, f, part[0].IDs.Evicted, floors(whole), whole[0].IDs.Evicted)
			}
		}
		open := *sp
		open.Base = base
		back := united(parts, &open, h.now)
		switch b, w := back[0], whole[0]; {
		case known != len(ids(whole)) || !reflect.DeepEqual(ids(back), ids(whole)):
			rt.Fatalf("the ids are %v and were %v", ids(back), ids(whole))
		case b.Counter().Value != w.Counter().Value || string(b.Key) != "k" || b.IDs.Evicted != w.IDs.Evicted || !reflect.DeepEqual(floors(back), floors(whole)):
			rt.Fatalf("it is %+v and was %+v", b, w)
		case w.IDs.Evicted != math.MinInt64:
			evicted++
		}
	})
	if evicted == 0 {
		t.Error("nothing was ever evicted")
	}
}

// TestBucketThereAndBack: a bucket that is divided and united has no token more than it
// had, and lacks less than one for each part.
func TestBucketThereAndBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newHouse(t, nil)
		op := bucket(rapid.Uint64Range(1, 5000).Draw(rt, "limit"), rapid.Int64Range(1e6, 3600*second).Draw(rt, "period"))
		look := func() uint64 {
			peek := op
			peek.Cost, peek.Peek = 1, true
			a, err := h.s.Check(h.now, h.whole(owner.Whole), reqid.ID{}, peek)
			if err != nil {
				rt.Fatal(err)
			}
			return a.Remaining
		}
		for range rapid.IntRange(0, 9).Draw(rt, "checks") {
			op.Cost = rapid.Uint64Range(1, op.Limit).Draw(rt, "cost")
			if _, err := h.s.Check(h.now, h.whole(owner.Whole), reqid.ID{}, op); err != nil {
				rt.Fatal(err)
			}
			h.now += rapid.Int64Range(0, op.Period/4).Draw(rt, "pause")
		}
		had := look()
		weights, left := []uint32{}, uint32(table.FullWeight)
		for n := rapid.IntRange(table.MinParts, 8).Draw(rt, "parts"); n > 1; n-- {
			w := rapid.Uint32Range(1, left-uint32(n)+1).Draw(rt, "weight")
			weights, left = append(weights, w), left-w
		}
		weights = append(weights, left)
		h.begin("limit", weights...)
		h.open()
		sum := uint64(0)
		for i := range weights {
			sum += spentIn(h, i)
		}
		h.merge()
		has := look()
		if has > had || has+uint64(len(weights)) <= had {
			rt.Fatalf("%d of %d were left, and %d are: %v", had, op.Limit, has, weights)
		}
		if n := op.Limit - had; sum < n || sum >= n+1+uint64(len(weights)) {
			rt.Fatalf("the parts have spent %d, and the whole had spent %d", sum, n)
		}
	})
}

// spentIn returns what is spent in a part of a limit.
func spentIn(h *house, i int) uint64 {
	s, _ := h.readObject(h.part(i, owner.Sample), owner.KindLimit)[0].Limit()
	return s.Spent
}

// TestLostParts: of a limit, all that a lost part had is spent, and of a counter nothing
// was added in it; what was done there before is not done again.
func TestLostParts(t *testing.T) {
	t.Run("limit", func(t *testing.T) {
		h := newHouse(t, nil)
		op := bucket(1000, 1_000_000*second)
		h.begin("limit", even(4)...)
		h.open()
		sp, parts := h.close()
		for i := range parts { // full, each
			if s, _ := parts[i][0].Limit(); s.Weight != table.FullWeight/4 || s.Spent != 0 {
				t.Fatalf("part %d is %+v", i, s)
			}
		}
		none := []*owner.Record{{Key: []byte(sp.PartKey(2)), Name: []byte("n"), Kind: owner.KindLimit, At: h.now, Whole: true, IDs: &reqid.Kept{Evicted: math.MinInt64}}}
		for name, lost := range map[string][]*owner.Record{"no record": nil, "no state": none} {
			back := united([][]*owner.Record{parts[0], parts[1], lost, parts[3]}, sp, h.now)
			if s, _ := back[0].Limit(); s.Weight != table.FullWeight/4*3 {
				t.Errorf("%s: %+v", name, s)
			}
		}
		back := united([][]*owner.Record{nil, nil, none, nil}, sp, h.now)
		if s, _ := back[0].Limit(); s.Weight != 1 || s.Spent != 0 {
			t.Errorf("of nothing: %+v", s)
		}
		h.join(sp, united([][]*owner.Record{parts[0], none, none, parts[3]}, sp, h.now))
		if a, err := h.s.Check(h.now, h.whole(owner.Whole), reqid.ID{}, op); err != nil || !a.Allowed || a.Remaining != 499 {
			t.Errorf("%+v, %v", a, err)
		}
	})
	t.Run("counter", func(t *testing.T) {
		h := newHouse(t, nil)
		h.add(idOf(1, 1, 0), 50)
		h.begin("counter", even(3)...)
		h.open()
		at := map[int]reqid.ID{}
		for seq := uint64(2); len(at) < 3; seq++ {
			id := idOf(1, seq, 0)
			if i := ring.PartOf(id.Client.Hi, id.Client.Lo, seq, 3); at[i].Sequence == 0 {
				at[i] = id
				h.now += second
				h.add(id, 10)
			}
		}
		h.now += 2 * second
		sp, parts := h.close()
		heir := newHouse(t, nil) // owns the rows of what was lost, and nothing of it
		heir.tab, heir.now, heir.since = h.tab, h.now, h.now
		parts[1] = heir.readObject(heir.part(1, owner.Reap), owner.KindCounter)
		h.now += second
		h.join(sp, united(parts, sp, h.now))
		if v := h.value(); v != 70 {
			t.Errorf("the counter is %d", v)
		}
		for i, id := range at {
			id.Age = h.now - 1000*second
			a, err := h.s.Add(h.now, h.whole(owner.Whole), id, counter.AddOp{Delta: 10})
			if i == 1 && reason(err) != failure.RequestTooOld || i != 1 && !a.Replayed {
				t.Errorf("of part %d: %+v, %v", i, a, err)
			}
		}
	})
}

// TestIndivisible tells what is not divided.
func TestIndivisible(t *testing.T) {
	sp := &table.Split{ID: 1, Kind: "counter", Key: "k", Parts: []table.Part{{Salt: 1, Weight: 1}, {Salt: 2, Weight: 1}}}
	ofLimit := *sp
	ofLimit.Kind = "limit"
	of := func(value, ttl int64) *owner.Record {
		return (&owner.Record{Whole: true, IDs: &reqid.Kept{}}).SetCounter(counter.State{Value: value, IdleTTL: ttl, Version: 1})
	}
	window := func(a limit.Algorithm) *owner.Record {
		return (&owner.Record{Whole: true, IDs: &reqid.Kept{}}).SetLimit(limit.State{Algorithm: a, Spent: 1, Limit: 5, Period: second}, nil)
	}
	for name, tc := range map[string]struct {
		sp   *table.Split
		of   *owner.Record
		want error
	}{
		"a counter":           {sp, of(5, 0), nil},
		"an idle TTL":         {sp, of(5, 1), ErrTTL},
		"the largest":         {sp, of(maxBase, 0), nil},
		"too large":           {sp, of(maxBase+1, 0), ErrLarge},
		"the smallest":        {sp, of(-maxBase, 0), nil},
		"too small":           {sp, of(-maxBase-1, 0), ErrLarge},
		"the smallest of all": {sp, of(math.MinInt64, 0), ErrLarge},
		"a bucket":            {&ofLimit, window(limit.TokenBucket), nil},
		"a sliding window":    {&ofLimit, window(limit.SlidingWindow), ErrWindow},
		"a fixed window":      {&ofLimit, window(limit.FixedWindow), ErrWindow},
		"no state of a limit": {&ofLimit, &owner.Record{Kind: owner.KindLimit, Whole: true, IDs: &reqid.Kept{}}, nil},
	} {
		parts, base, err := Divide([]*owner.Record{tc.of}, tc.sp, 0)
		if !errors.Is(err, tc.want) || (err == nil) != (len(parts) == 2) || err == nil && base != tc.of.Counter().Value {
			t.Errorf("%s: %d parts, base %d, %v", name, len(parts), base, err)
		}
	}
	ofLock := *sp
	ofLock.Kind = "lock"
	if _, _, err := Divide(nil, &ofLock, 0); !errors.Is(err, ErrKind) {
		t.Errorf("a lock is divided: %v", err)
	}
	if _, err := Unite(make([][]*owner.Record, 2), &ofLock, 0); !errors.Is(err, ErrKind) {
		t.Errorf("a lock is united: %v", err)
	}
	if parts, base, err := Divide(nil, sp, 0); err != nil || base != 0 || len(parts) != 2 {
		t.Errorf("nothing: %d parts, base %d, %v", len(parts), base, err)
	}
}

// TestLargeCounters: the sum of a base and parts that are as large as may be is no other
// number.
func TestLargeCounters(t *testing.T) {
	for _, sign := range []int64{1, -1} {
		h := newHouse(t, nil)
		h.add(reqid.ID{}, sign*maxBase)
		h.begin("counter", even(table.MaxParts)...)
		h.open()
		sum, most := sign*maxBase, sign*(1<<56)
		for i := range h.split().Parts {
			if _, err := h.s.Add(h.now, h.part(i, owner.Share), reqid.ID{}, counter.AddOp{Delta: most}); err != nil {
				t.Fatal(err)
			}
			if _, err := h.s.Add(h.now, h.part(i, owner.Share), reqid.ID{}, counter.AddOp{Delta: sign}); !errors.Is(err, owner.ErrWhole) {
				t.Fatalf("above the bound: %v", err)
			}
			if sum += most; (sum > 0) != (sign > 0) {
				t.Fatal("the test overflows")
			}
		}
		h.merge()
		if v := h.value(); v != sum {
			t.Errorf("%d, and the sum is %d", v, sum)
		}
	}
}

// TestAbsent: what never was is not there either after it was divided and united.
func TestAbsent(t *testing.T) {
	for _, kind := range []string{"counter", "limit"} {
		h := newHouse(t, nil)
		h.begin(kind, even(3)...)
		h.open()
		for i := range 3 {
			want := limit.State{}
			if kind == "limit" {
				want.Weight = table.FullWeight / 3
			}
			r := h.readObject(h.part(i, owner.Sample), kindOf(h.split()))[0]
			if s, _ := r.Limit(); r.Counter().Version != 0 || s != want {
				t.Errorf("part %d of a %s: %+v", i, kind, r)
			}
		}
		sp, parts := h.close()
		back := united(parts, sp, h.now)
		s, _ := back[0].Limit()
		if len(back) != 1 || back[0].Counter() != (counter.State{}) || s.Spent != 0 || len(back[0].IDs.Clients) != 0 {
			t.Errorf("a %s: %+v", kind, back[0])
		}
	}
}

// TestOverridesThereAndBack: an override is in all parts, which decide by it, and in the whole
// again, also when parts of it were lost.
func TestOverridesThereAndBack(t *testing.T) {
	h := newHouse(t, nil)
	o := limit.Override{Limit: 80, Period: 1000 * second, Burst: 400}
	if _, err := h.s.SetOverride(h.now, h.whole(owner.Whole), reqid.ID{}, o, 100*second); err != nil {
		t.Fatal(err)
	}
	until := h.now + 100*second
	op := bucket(8, 1000*second)
	op.Cost = 8
	if a, err := h.s.Check(h.now, h.whole(owner.Whole), reqid.ID{}, op); err != nil || a.Remaining != 392 {
		t.Fatal(a, err)
	}
	h.begin("limit", even(4)...)
	h.open()
	op.Cost = 50 // more than the caller's limit could ever have
	for i := range 4 {
		if a, err := h.s.Check(h.now, h.part(i, owner.Share), reqid.ID{}, op); err != nil || !a.Allowed || a.Capacity != 400 || a.Override != 80 || a.Remaining != 48 {
			t.Errorf("part %d: %+v, %v", i, a, err)
		}
	}
	sp, parts := h.close()
	back := united([][]*owner.Record{nil, parts[1], nil, parts[3]}, sp, h.now)
	if got, ok := back[0].Override(); !ok || got.Limit != 80 || got.Burst != 400 || got.Until != until {
		t.Errorf("with lost parts: %+v", got)
	}
	h.join(sp, united(parts, sp, h.now))
	if a, err := h.s.GetOverride(h.now, h.whole(owner.Whole)); err != nil || a.Override.Limit != 80 || a.Left != until-h.now {
		t.Errorf("%+v, %v", a, err)
	}
}
