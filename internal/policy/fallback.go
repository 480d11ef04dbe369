package policy

import (
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/fallback"
	"github.com/keystead/keystead/owner/limit"
)

// judgeFallback reports what is wrong with the fallback of a policy, by the field of its file.
func (p *Policy) judgeFallback() error {
	f := &p.Fallback
	switch {
	case f.Source == fallback.None && f.Budget != 0:
		return failure.Invalidf("budget", "goes with a fallback")
	case f.Source == fallback.LastKnown && p.Algorithm == limit.LeakyBucket:
		return failure.Invalidf("fallback", "is last-known, which does not go with a leaky bucket: turns that a node gives by itself would be those of others")
	}
	var bad *failure.Error
	if err := f.Validate(); errors.As(err, &bad) {
		field := "fallback"
		if bad.Field == "fallback.budget_ns" {
			field = "budget"
		}
		return failure.Invalidf(field, "%s", bad.Message)
	}
	return nil
}

// WithoutOwner is what each node admits by the fallback of a policy beside the limit, at most, in
// any time shorter than Time.
type WithoutOwner struct {
	Time   time.Duration
	AtMost uint64
}

// Of returns what so many nodes admit.
func (w *WithoutOwner) Of(nodes int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(nodes), new(big.Int).SetUint64(w.AtMost))
}

// WithoutOwner returns the bound of the fallback for each node, nil if there is none.
func (p *Policy) WithoutOwner() *WithoutOwner {
	switch f := &p.Fallback; f.Source {
	case fallback.LocalCap:
		return &WithoutOwner{f.Period, f.Cap}
	case fallback.LastKnown:
		return &WithoutOwner{f.KnownFor, p.Capacity()}
	}
	return nil
}

// FallbackName writes the fallback as a file does.
func (p *Policy) FallbackName() string {
	switch f := &p.Fallback; f.Source {
	case fallback.LocalCap:
		return fmt.Sprintf("local-cap:%d/%s", f.Cap, Span(f.Period))
	case fallback.LastKnown:
		return "last-known:" + Span(f.KnownFor)
	}
	return "none"
}

// fallbackWords says what is admitted while the owner cannot be asked.
func (p *Policy) fallbackWords() []string {
	each := p.WithoutOwner()
	if each == nil {
		return []string{"The owner cannot be asked: an error, and nothing is admitted (fallback: none)."}
	}
	first := fmt.Sprintf("The owner cannot be asked within %s: each node admits at most %d by itself in any time shorter than %s,", Span(p.Fallback.Total()), each.AtMost, Span(each.Time))
	if p.Fallback.Source == fallback.LastKnown {
		first = fmt.Sprintf("The owner cannot be asked within %s: each node admits what it heard last was left, for %s: at most %d in such a time,", Span(p.Fallback.Total()), Span(each.Time), each.AtMost)
	}
	return []string{first,
		fmt.Sprintf("  beside the bounds above: nodes × %d, so 3 nodes %s more, 5 nodes %s, 7 nodes %s. A client with the same fallback that reaches", each.AtMost, each.Of(3), each.Of(5), each.Of(7)),
		"  no node counts as one more. Answers say so (degraded).",
	}
}
