package admission

import (
	"unicode/utf8"

	"github.com/keystead/keystead/owner/wire"
)

// AppendDemands writes what is demanded of one key, without a hold of it.
func AppendDemands(w *wire.Writer, demands []Demand) {
	for i := range demands {
		demands[i].appendTo(w)
	}
}

// ReadDemands reads what AppendDemands wrote. ok is false if it cannot have.
func ReadDemands(b []byte, to []Demand) (demands []Demand, ok bool) {
	r := wire.Reader{B: b}
	for demands = to; len(r.B) > 0; {
		if len(demands)-len(to) == MaxDemands {
			return nil, false
		}
		var d Demand
		d.read(&r)
		never, err := d.Fits()
		if r.Bad || err != nil || never != nil && !d.overridden() || !utf8.ValidString(d.Name) {
			return nil, false
		}
		demands = append(demands, d)
	}
	return demands, !r.Bad && len(demands) > len(to)
}
