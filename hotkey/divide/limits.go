package divide

import (
	"errors"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/ring/epoch/table"
)

// ErrWindow is why some limits are not divided. It is for people.
var ErrWindow = errors.New("only limits that are token buckets are split")

// limits are divided by weight: each part has its share of the bucket, and of what is spent.
var limits = divider{kind: owner.KindLimit, weighed: true, divide: divideLimit, unite: uniteLimit}

func divideLimit(whole *owner.Record, sp *table.Split, parts []*owner.Record) (base int64, err error) {
	s, _, o := whole.LimitAt(parts[0].At)
	//guard:split-window
	if s.Algorithm != limit.TokenBucket {
		return 0, ErrWindow
	}
	weights := make([]uint32, len(parts))
	for i, p := range sp.Parts {
		weights[i] = p.Weight
	}
	for i, state := range s.Divide(weights, parts[0].At) {
		parts[i].SetLimit(state, nil)
		//guard:override-divided
		if o != nil {
			parts[i].SetOverride(*o, max(parts[i].At, state.At))
		}
	}
	return 0, nil
}

// uniteLimit takes all that a lost part had as spent.
func uniteLimit(parts []*owner.Record, sp *table.Split, whole *owner.Record) {
	var states []limit.State
	for _, part := range parts {
		if part == nil {
			continue
		}
		//guard:split-lost-empty true
		if s, _, _ := part.LimitAt(whole.At); s.Weight != 0 {
			//guard:split-lost-empty insert s.Weight = max(s.Weight, sp.Parts[0].Weight)
			states = append(states, s)
		}
	}
	state := limit.State{Weight: 1} // if nothing is left of it
	if len(states) > 0 {
		state = limit.Unite(states, whole.At)
	}
	whole.SetLimit(state, nil)
	//guard:override-united
	if o, ok := overrideOf(parts, whole.At); ok {
		whole.SetOverride(o, max(whole.At, state.At))
	}
}

// overrideOf returns the override of a limit that is in parts: all have the same one, but for its
// time, of which the longest counts.
func overrideOf(parts []*owner.Record, at int64) (o limit.Override, ok bool) {
	for _, part := range parts {
		if part == nil {
			continue
		}
		if _, _, x := part.LimitAt(at); x != nil && (!ok || x.Until > o.Until) {
			o, ok = *x, true
		}
	}
	return o, ok
}
