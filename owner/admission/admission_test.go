package admission

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
	"github.com/keystead/keystead/owner/zone"
)

const second = int64(1_000_000_000)

func bucket(name string, cost uint64) Demand {
	return Demand{Term{Of: Limit, Name: name, Params: limit.Params{Limit: 100, Period: 60 * second}}, cost, 0}
}

func slots(name string, n uint64) Demand { return Demand{Term{Of: Slots, Name: name, Max: 8}, n, 0} }

func idOf(n uint64) ID { return ID{Client: reqid.Client{Hi: n % 7, Lo: n % 3}, Sequence: n + 1} }

// TestStateAgainstModel: holds are found by their ids and end in the order of their times, whatever is added, dropped
// and prolonged; and what was written is read again.
func TestStateAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type kept struct {
			Hold
			demands []Demand
		}
		var s State
		model := map[ID]kept{}
		ids := rapid.Custom(func(t *rapid.T) ID { return idOf(rapid.Uint64Range(0, 60).Draw(t, "id")) })
		now := int64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += rapid.Int64Range(0, 3).Draw(t, "later")
			id := ids.Draw(t, "which")
			n, ok := s.Find(id)
			if _, known := model[id]; known != ok {
				t.Fatalf("%v: found %v", id, ok)
			}
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				if ok {
					continue
				}
				h := kept{Hold: Hold{ID: id, Made: now, Until: now + rapid.Int64Range(1, 20).Draw(t, "for"), Phase: Held, Charge: rapid.Bool().Draw(t, "charge")}}
				for i := range rapid.IntRange(1, MaxDemands).Draw(t, "demands") {
					if d := bucket(fmt.Sprint("n", i*rapid.IntRange(1, 4).Draw(t, "name")), rapid.Uint64Range(1, 100).Draw(t, "cost")); i%2 == 0 {
						h.demands = append(h.demands, d)
					} else {
						h.demands = append(h.demands, slots(d.Name, 3))
					}
				}
				s.Add(h.Hold, h.demands)
				model[id] = h
			case 2:
				if ok {
					s.Drop(n)
					delete(model, id)
				}
			case 3:
				if ok {
					h := model[id]
					h.Until = now + 5
					s.Prolong(n, h.Until)
					model[id] = h
				}
			}
			s.At = now
			if s.Len() != len(model) || s.Absent() != (len(model) == 0) {
				t.Fatalf("%d holds, not %d", s.Len(), len(model))
			}
			first := int64(math.MaxInt64)
			text := 0
			for id, h := range model {
				n, ok := s.Find(id)
				if !ok || s.Hold(n) != h.Hold || !slices.Equal(s.Demands(n, nil), h.demands) {
					t.Fatalf("%v is %+v of %+v", h, s.Hold(n), s.Demands(n, nil))
				}
				first = min(first, h.Until)
				text += textOf(h.demands)
				var w wire.Writer
				if s.AppendHold(&w, n); len(w.B) > textOf(h.demands) {
					t.Fatalf("%d bytes, above %d", len(w.B), textOf(h.demands))
				}
				r := wire.Reader{B: w.B}
				if back, demands, ok := ReadHold(&r, id, now); !ok || back != h.Hold || !slices.Equal(demands, h.demands) {
					t.Fatalf("%+v was read for %+v: %v", back, h, ok)
				}
			}
			if _, at, ok := s.Next(); ok && at != first || s.text != text {
				t.Fatalf("next at %d, not %d; text %d, not %d", at, first, s.text, text)
			}
		}
	})
}

// TestExpiry: a hold ends, is remembered, and is forgotten.
func TestExpiry(t *testing.T) {
	for _, charge := range []bool{false, true} {
		var s State
		s.Add(Hold{ID: idOf(1), Made: 0, Until: second, Phase: Held, Charge: charge}, []Demand{bucket("a", 5)})
		n, _ := s.Find(idOf(1))
		want := Released
		if charge {
			want = Charged
		}
		if s.Expire(n, 2*second) || s.Hold(n).Phase != want || s.Hold(n).Until != 2*second+Remember {
			t.Errorf("%+v", s.Hold(n))
		}
		if !s.Expire(n, 3*second+Remember) || !s.Absent() {
			t.Error("it is still known")
		}
	}
}

// TestSettle: what is taken and given back, by what has become of the hold.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		of         Demand
		phase      Phase
		cost       uint64
		take, back uint64
	}{
		{bucket("a", 5), Held, 3, 0, 2}, {bucket("a", 5), Held, 9, 4, 0}, {bucket("a", 5), Held, 0, 0, 5},
		{bucket("a", 5), Charged, 3, 0, 2}, {bucket("a", 5), Charged, 9, 4, 0},
		{bucket("a", 5), Released, 3, 3, 0}, {bucket("a", 5), Released, 0, 0, 0},
		{slots("s", 2), Held, 2, 0, 2}, {slots("s", 2), Held, 1, 0, 2}, {slots("s", 2), Charged, 2, 0, 0}, {slots("s", 2), Released, 2, 0, 0},
	} {
		if take, back := c.of.Settle(c.phase, c.cost); take != c.take || back != c.back {
			t.Errorf("%+v: take %d, back %d", c, take, back)
		}
	}
}

// TestBounds: as many holds as a record has room for, and no more.
func TestBounds(t *testing.T) {
	var s State
	d := []Demand{bucket("a", 1)}
	for i := range uint64(MaxHolds) {
		if s.Room(d) != nil {
			t.Fatalf("no room for hold %d", i)
		}
		s.Add(Hold{ID: idOf(i), Until: int64(i), Phase: Held}, d)
	}
	if s.Room(d) == nil {
		t.Error("there is room for more")
	}
	var long State
	var names []Demand
	for i := range MaxDemands {
		names = append(names, bucket(fmt.Sprintf("%d-%30s", i, "n"), 1))
	}
	if !Fits(names) {
		t.Fatal("16 names of 30 bytes do not fit")
	}
	n := uint64(0)
	for ; n < MaxHolds && long.Room(names) == nil; n++ {
		long.Add(Hold{ID: idOf(n), Phase: Held}, names)
	}
	if n*uint64(textOf(names)) > MaxText || n < 500 {
		t.Errorf("%d holds", n)
	}
	names[0].Name = string(make([]byte, 3*MaxName))
	names[1].Name = names[0].Name
	if Fits(names) {
		t.Error("what is longer than a member fits")
	}
}

func fits(d *Demand) bool {
	never, err := d.Fits()
	return err == nil && (never == nil || d.overridden())
}

// TestHoldsOnTheWire: what was charged under an override, by a calendar, or in a window travels with its hold.
func TestHoldsOnTheWire(t *testing.T) {
	berlin, _ := zone.Find("Europe/Berlin")
	month, err := limit.NewCalendar(limit.Month, berlin, 0, 15)
	if err != nil {
		t.Fatal(err)
	}
	clock, _ := limit.NewAligned(3600 * second)
	of := func(name string, p limit.Params) Demand {
		return Demand{Term: Term{Of: Limit, Name: name, Params: p}, Cost: 7}
	}
	all := []Demand{
		of("leaky", limit.Params{Algorithm: limit.LeakyBucket, Limit: 10, Period: second, Burst: 20}),
		of("month", limit.Params{Algorithm: limit.CalendarWindow, Limit: 10, Period: int64(month), Burst: 15}),
		of("hour", limit.Params{Algorithm: limit.CalendarWindow, Limit: 10, Period: int64(clock)}),
		of("window", limit.Params{Algorithm: limit.FixedWindow, Limit: 10, Period: second}),
		of("over", limit.Params{Limit: 5, Period: second}), // more than it has, under an override
		slots("slots", 3),
	}
	all[1].Ends, all[2].Ends, all[3].Into, all[4].Rate = 1_700_000_000*second, 1_700_000_400*second, 4711, Rate{1000, 60 * second}
	var s State
	s.At = 5
	s.Add(Hold{ID: idOf(1), Made: 3, Until: 9, Phase: Held}, all)
	var w wire.Writer
	if s.AppendHold(&w, 0); len(w.B) > textOf(all) {
		t.Errorf("%d bytes, above %d", len(w.B), textOf(all))
	}
	r := wire.Reader{B: w.B}
	if _, demands, ok := ReadHold(&r, idOf(1), 5); !ok || !slices.Equal(demands, all) {
		t.Errorf("%+v", demands)
	}
	if got := all[4].Charged(); got.Limit != 1000 || got.Period != 60*second {
		t.Errorf("%+v", got)
	}
	for n := range w.B {
		r := wire.Reader{B: w.B[:n]}
		if _, _, ok := ReadHold(&r, idOf(1), 5); ok {
			t.Errorf("%d bytes of it are a hold", n)
		}
	}
	all[4].Rate = Rate{}
	var never State
	never.Add(Hold{ID: idOf(1), Phase: Held}, all)
	w.B = nil
	never.AppendHold(&w, 0)
	r = wire.Reader{B: w.B}
	if _, _, ok := ReadHold(&r, idOf(1), 5); ok {
		t.Error("more than there can be was reserved without an override")
	}
}

// TestTermsAreUsedAgain: what no hold demands any more takes no room beside what holds do.
func TestTermsAreUsedAgain(t *testing.T) {
	var s State
	s.Add(Hold{ID: idOf(0), Phase: Held}, []Demand{bucket("stays", 1)})
	for i := range uint64(10_000) {
		s.Add(Hold{ID: idOf(i + 1), Phase: Held}, []Demand{bucket(fmt.Sprint("user", i), 1), bucket("stays", 1)})
		n, _ := s.Find(idOf(i + 1))
		if got := s.Demands(n, nil); got[0].Name != fmt.Sprint("user", i) || got[1].Name != "stays" {
			t.Fatalf("%+v", got)
		}
		s.Drop(n)
	}
	if s.Bytes() > 2000 || s.names > 50 || len(s.numbers) != len(s.terms) {
		t.Errorf("%d bytes, %d of names; %d terms", s.Bytes(), s.names, len(s.terms))
	}
	n, _ := s.Find(idOf(0))
	s.Drop(n)
	if s.Add(Hold{ID: idOf(9), Phase: Held}, []Demand{bucket("other", 1)}); s.Len() != 1 || s.Demands(0, nil)[0].Name != "other" {
		t.Errorf("in the room that an empty state keeps: %+v", s)
	}
}

// TestReadHoldOfOthers: no bytes make a hold that cannot be, or panic.
func TestReadHoldOfOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := wire.Reader{B: rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "bytes")}
		if h, demands, ok := ReadHold(&r, idOf(1), 0); ok && (len(demands) == 0 || h.Phase == Unknown || !fits(&demands[0])) {
			t.Fatalf("%+v %+v", h, demands)
		}
	})
}

// TestBytesOfAHold: four demands under names that others share.
func TestBytesOfAHold(t *testing.T) {
	var s State
	names := []Demand{bucket("user/rpm", 1), bucket("team/tpm", 2000), bucket("org/tpm", 2000), slots("slots", 1)}
	for i := range uint64(MaxHolds - 1000) {
		s.Add(Hold{ID: idOf(i), Until: int64(i), Phase: Held}, names)
	}
	if each := s.Bytes() / s.Len(); each > 96 {
		t.Errorf("%d bytes a hold", each)
	} else {
		t.Logf("%d bytes a hold", each)
	}
}
