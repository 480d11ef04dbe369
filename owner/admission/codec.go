package admission

import (
	"math"
	"unicode/utf8"

	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/wire"
)

// A hold travels by itself, with what it demands in full: it is written as of the moment of the
// last change of its object (State.At).
//
//	phase, and what its expiry does | age | until | number of demands
//	| resource, and whether it was overridden | name | cost
//	| algorithm, limit, period or calendar, burst, or the greatest value
//	| of a fixed window, where in it the demand was charged; of a calendar window, when that ends
//	| if it was overridden, the limit and the period of that

const (
	chargeBit = 1 << 4
	rateBit   = 1 << 4
)

// AppendHold writes a hold but for its id.
func (s *State) AppendHold(w *wire.Writer, n uint32) {
	k := &s.holds[n]
	first := byte(k.phase)
	if k.charge {
		first |= chargeBit
	}
	w.Byte(first)
	w.Uint(wire.Age(s.At, k.made))
	w.Int(k.until - s.At)
	var room [MaxDemands]Demand
	demands := s.Demands(n, room[:0])
	w.Uint(uint64(len(demands)))
	for i := range demands {
		demands[i].appendTo(w)
	}
}

func (d *Demand) appendTo(w *wire.Writer) {
	of := byte(d.Of)
	if d.Rate.Limit != 0 {
		of |= rateBit
	}
	w.Byte(of)
	w.Text(d.Name)
	w.Uint(d.Cost)
	if d.Of != Limit {
		w.Uint(uint64(d.Max))
		return
	}
	w.Byte(byte(d.Params.Algorithm))
	w.Uint(d.Params.Limit)
	if d.Params.Algorithm == limit.CalendarWindow {
		limit.Calendar(d.Params.Period).AppendTo(w)
	} else {
		w.Uint(uint64(d.Params.Period))
	}
	w.Uint(d.Params.Burst)
	switch d.Params.Algorithm {
	case limit.FixedWindow:
		w.Uint(uint64(d.Into))
	case limit.CalendarWindow:
		w.Uint(uint64(d.Ends / 1_000_000_000))
	}
	if d.Rate.Limit != 0 {
		w.Uint(d.Rate.Limit)
		w.Uint(uint64(d.Rate.Period))
	}
}

// overridden reports whether the demand may have been charged under an override.
func (d *Demand) overridden() bool {
	return d.Rate.Limit != 0 || d.Of == Limit && d.Params.Algorithm == limit.CalendarWindow
}

// read reads what appendTo wrote.
func (d *Demand) read(r *wire.Reader) {
	of := r.Byte()
	*d = Demand{Term: Term{Of: Resource(of &^ rateBit), Name: string(r.Bytes(MaxName))}, Cost: r.Uint(MaxCost)}
	if d.Of != Limit {
		if d.Max = int64(r.Uint(MaxCost)); of&rateBit != 0 {
			r.Fail()
		}
		return
	}
	d.Params = limit.Params{Algorithm: limit.Algorithm(r.Byte()), Limit: r.Uint(math.MaxInt64)}
	if d.Params.Algorithm == limit.CalendarWindow {
		d.Params.Period = int64(limit.ReadCalendar(r))
	} else {
		d.Params.Period = int64(r.Uint(math.MaxInt64))
	}
	d.Params.Burst = r.Uint(math.MaxInt64)
	switch d.Params.Algorithm {
	case limit.FixedWindow:
		d.Into = limit.Into(r.Uint(math.MaxUint16))
	case limit.CalendarWindow:
		d.Ends = limit.ReadEnd(r)
	}
	if of&rateBit != 0 {
		d.Rate = Rate{r.Uint(limit.MaxLimit), int64(r.Uint(limit.MaxPeriod))}
		if d.Rate.Limit == 0 || d.Rate.Period < limit.MinPeriod {
			r.Fail()
		}
	}
}

// ReadHold reads what AppendHold wrote, as of a moment. ok is false if it cannot have.
func ReadHold(r *wire.Reader, id ID, at int64) (h Hold, demands []Demand, ok bool) {
	first := r.Byte()
	h = Hold{ID: id, Phase: Phase(first &^ chargeBit), Charge: first&chargeBit != 0}
	h.Made = at - int64(r.Uint(wire.MaxAge))
	left := r.Int()
	count := r.Count(4)
	if r.Bad || h.Phase < Held || h.Phase > Released || h.Phase == Charged != h.Charge && h.Phase != Held ||
		count < 1 || count > MaxDemands || left > MaxHold+Remember || left < -wire.MaxAge {
		return h, nil, false
	}
	h.Until = at + left
	demands = make([]Demand, 0, count)
	for range count {
		var d Demand
		d.read(r)
		never, err := d.Fits()
		if r.Bad || err != nil || never != nil && !d.overridden() || !utf8.ValidString(d.Name) {
			return h, nil, false
		}
		demands = append(demands, d)
	}
	return h, demands, r.Ends() && Fits(demands) && id.Sequence != 0
}
