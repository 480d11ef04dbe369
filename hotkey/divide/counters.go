package divide

import (
	"errors"
	"math"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Why a counter is not divided. They are for people.
var (
	ErrTTL   = errors.New("counters with an idle TTL are not split")
	ErrLarge = errors.New("the counter is too large to be split")
)

// maxBase bounds the value of a counter that is divided, in either direction: the sum of
// it and table.MaxParts parts, which package owner bounds by 2^56 each, does not overflow.
const maxBase = 1 << 61

// Marks in the version that a counter answered with. Versions are below both.
const (
	OfWhole = 1 << 62       // while it is remembered by a part: the whole answered
	ofPart  = math.MinInt64 // while it is remembered by the whole: a part answered
)

// counters keep their value in the table while they are split: parts begin at 0.
var counters = divider{kind: owner.KindCounter, divide: divideCounter, unite: uniteCounter, divided: answeredByWhole, united: answeredByPart}

// answeredByWhole takes the base out, and marks what the whole has answered.
func answeredByWhole(o *reqid.Outcome, base int64) {
	//guard:split-ids-answers o.A-base -> o.A
	o.A, o.B = o.A-base, o.B|OfWhole
}

// answeredByPart puts the base back, and marks what a part has answered.
func answeredByPart(o *reqid.Outcome, base int64) {
	//guard:split-ids-united base -> 0
	if o.A += base; o.B&OfWhole != 0 {
		o.B &^= OfWhole
	} else {
		o.B |= ofPart
	}
}

func divideCounter(whole *owner.Record, _ *table.Split, _ []*owner.Record) (base int64, err error) {
	switch c := whole.Counter(); {
	//guard:split-ttl
	case c.IdleTTL != 0:
		return 0, ErrTTL
	case c.Value > maxBase ||
		c.Value < -maxBase: //guard:split-large
		return 0, ErrLarge
	default:
		return c.Value, nil
	}
}

func uniteCounter(parts []*owner.Record, sp *table.Split, whole *owner.Record) {
	//guard:split-base -> value, exists := int64(0), sp.Base != 0
	value, exists := sp.Base, sp.Base != 0
	for _, part := range parts {
		if part != nil {
			c := part.Counter()
			value, exists = value+c.Value, exists || c.Version != 0
		}
	}
	if exists {
		whole.SetCounter(counter.State{Value: value, Version: 1, At: whole.At})
	}
}
