package workload

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/keystead/keystead/internal/tests/kinds"
)

// Span is a call that was answered.
type Span struct{ Start, End int64 }

// Record is what the clients of a history were told.
type Record struct {
	kinds.Record
	// Served are the calls on each object that were answered, by their end.
	Served map[string][]Span
	// From and Until are when the clients began, and when they began to stop.
	From, Until int64
	// Operations were answered; Lost attempts were not; Open operations never.
	Operations, Lost, Open int
	// Unexpected are answers that nobody should get, as "REASON: message".
	Unexpected []string
}

// maxUnexpected is how many unexpected answers are kept.
const maxUnexpected = 20

// Pause is the longest time within which no call on an object was answered.
type Pause struct {
	Key  string        `json:"key"`
	From int64         `json:"from"`
	For  time.Duration `json:"for"`
}

// Pauses returns the longest pause of each object between two moments, the
// longest first. Calls that began before the first moment do not count as an
// answer in it.
func (r *Record) Pauses(from, until int64) []Pause {
	var all []Pause
	for _, key := range slices.Sorted(maps.Keys(r.Served)) {
		longest, last := Pause{Key: key, From: from}, from
		to := func(at int64) {
			if d := time.Duration(at - last); d > longest.For {
				longest.From, longest.For = last, d
			}
			last = max(last, at)
		}
		for _, s := range r.Served[key] {
			if s.Start >= from && s.End <= until {
				to(s.End)
			}
		}
		to(until)
		all = append(all, longest)
	}
	slices.SortStableFunc(all, func(a, b Pause) int { return cmp.Compare(b.For, a.For) })
	return all
}

// After returns for each object how long after a moment a call on it was first
// answered; if none was, how long that was looked for.
func (r *Record) After(from int64) map[string]time.Duration {
	after := map[string]time.Duration{}
	for key, spans := range r.Served {
		after[key] = time.Duration(max(0, r.Until-from))
		if i := slices.IndexFunc(spans, func(s Span) bool { return s.End >= from }); i >= 0 {
			after[key] = time.Duration(spans[i].End - from)
		}
	}
	return after
}
