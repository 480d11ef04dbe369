package fallback

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/rate"
	"github.com/keystead/keystead/owner/limit"
)

// Source is by what a check is decided without its owner.
type Source uint8

// The sources.
const (
	None      Source = iota // by nothing: it fails
	LocalCap                // by a cap of this process
	LastKnown               // by the last answer of the owner
)

// String returns the name of a source as people write it.
func (s Source) String() string {
	return [...]string{"none", "local-cap", "last-known"}[min(s, LastKnown)]
}

// Bounds of a Rule.
const (
	// DefaultBudget is for how long a caller waits at most. A check that is passed on takes a
	// few milliseconds, so one that has taken longer by far is not about to be answered; a
	// takeover takes seconds, which no budget is worth waiting for. And a caller that allows a
	// second for the whole request has most of it left.
	DefaultBudget = 250 * time.Millisecond
	// MinBudget is more than a call between two nodes takes.
	MinBudget = 5 * time.Millisecond
	// MaxBudget is longer than a call ever waits for its owner.
	MaxBudget = 10 * time.Second
	// MinKnown and MaxKnown bound for how long an answer of the owner is gone by.
	MinKnown, MaxKnown = 100 * time.Millisecond, 24 * time.Hour
)

// Rule says how a check is decided when its owner cannot be asked in time. The zero Rule is
// that it fails.
type Rule struct {
	Source   Source
	Cap      uint64        // of LocalCap: tokens in any time shorter than Period
	Period   time.Duration // of LocalCap
	KnownFor time.Duration // of LastKnown
	Budget   time.Duration // for how long the caller waits; 0 = DefaultBudget
}

// Validate reports what is out of range, as a *failure.Error whose field is that of the API.
func (r *Rule) Validate() error {
	switch r.Source {
	case None:
	case LocalCap:
		switch {
		case r.KnownFor != 0:
			return failure.Invalidf("fallback.known_for_ns", "goes with LAST_KNOWN only")
		case r.Cap == 0 || r.Cap > limit.MaxLimit:
			return failure.Invalidf("fallback.cap", "is %d; choose 1 to %d", r.Cap, uint64(limit.MaxLimit))
		case r.Period < limit.MinPeriod || r.Period > limit.MaxPeriod:
			return failure.Invalidf("fallback.period_ns", "is %s; choose 1us to 366d", r.Period)
		}
	case LastKnown:
		switch {
		case r.Cap != 0 || r.Period != 0:
			return failure.Invalidf("fallback.cap", "and period_ns go with LOCAL_CAP only")
		case r.KnownFor < MinKnown || r.KnownFor > MaxKnown:
			return failure.Invalidf("fallback.known_for_ns", "is %s; choose %s to %s", r.KnownFor, MinKnown, MaxKnown)
		}
	default:
		return failure.Invalidf("fallback.source", "is unknown; use LOCAL_CAP or LAST_KNOWN")
	}
	if r.Budget != 0 && (r.Budget < MinBudget || r.Budget > MaxBudget) {
		return failure.Invalidf("fallback.budget_ns", "is %s; choose %s to %s", r.Budget, MinBudget, MaxBudget)
	}
	return nil
}

// Total is for how long the caller waits.
func (r *Rule) Total() time.Duration { return cmp.Or(r.Budget, DefaultBudget) }

// Wait returns for how long the owner is asked, of a caller that has so long left; 0 = for
// ever. A quarter of the time is for the answer, which has to come back to the caller.
func (r *Rule) Wait(left time.Duration) time.Duration {
	total := r.Total()
	if left != 0 {
		//guard:fallback-leaves-room
		total = min(total, left)
	}
	return total - total/4
}

// Parse reads a rule as people write it: none, local-cap:10/1m, last-known:30s.
func Parse(text string) (Rule, error) {
	kind, numbers, _ := strings.Cut(text, ":")
	bad := fmt.Errorf("%q is no fallback: write none, local-cap:10/1m or last-known:30s", text)
	switch strings.ReplaceAll(kind, "_", "-") {
	case "none":
		if numbers != "" {
			return Rule{}, bad
		}
		return Rule{}, nil
	case "local-cap":
		n, err := rate.Parse(numbers)
		if err != nil {
			return Rule{}, bad
		}
		return Rule{Source: LocalCap, Cap: n.Limit, Period: n.Period}, nil
	case "last-known":
		d, err := rate.ParseDuration(numbers)
		if err != nil {
			return Rule{}, bad
		}
		return Rule{Source: LastKnown, KnownFor: d}, nil
	}
	return Rule{}, bad
}
