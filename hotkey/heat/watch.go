package heat

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Policy decides which keys are hot.
type Policy struct {
	// Floor is the least rate of a hot key, in operations a second. Default 1,000: a
	// node does many times that of a single key.
	Floor float64
	// Factor is how many times the average of the node's other keys a hot one has.
	// Default 10.
	Factor float64
	// Stay is how long a key is hot at least, and how long it has to be below half of
	// what makes it hot before it no longer is, in nanoseconds. Default 10 s, for which
	// counts speak.
	Stay int64
	// Max bounds the keys that are hot at a time. Default 100.
	Max int
}

// Bounds of a policy, and what it is by default.
const (
	DefaultFloor  = 1000
	DefaultFactor = 10
	DefaultStay   = int64(10 * time.Second)
	DefaultMax    = 100
	MaxHot        = 1000
	MaxStay       = int64(time.Hour)
)

// WithDefaults fills in what is 0.
func (p Policy) WithDefaults() Policy {
	return Policy{
		Floor: cmp.Or(p.Floor, DefaultFloor), Factor: cmp.Or(p.Factor, DefaultFactor),
		Stay: cmp.Or(p.Stay, DefaultStay), Max: cmp.Or(p.Max, DefaultMax),
	}
}

// Validate reports what is wrong with a policy.
func (p Policy) Validate() error {
	switch {
	case !(p.Floor >= 1 && p.Floor <= 1e9):
		return fmt.Errorf("floor %g: choose 1 to 1,000,000,000 operations a second", p.Floor)
	case !(p.Factor >= 1 && p.Factor <= 1e6):
		return fmt.Errorf("factor %g: choose 1 to 1,000,000", p.Factor)
	case p.Stay < int64(time.Second) || p.Stay > MaxStay:
		return fmt.Errorf("stay %v: choose 1s to %v", time.Duration(p.Stay), time.Duration(MaxStay))
	case p.Max < 1 || p.Max > MaxHot:
		return fmt.Errorf("max %d: choose 1 to %d", p.Max, MaxHot)
	}
	return nil
}

// Seen is a key that a poll has found, with its rates as in [Count].
type Seen[K comparable] struct {
	Key              K
	RateMax, RateMin float64
}

// Load is what a node does at a poll.
type Load struct {
	Rate float64 // operations a second, over the time for which counts speak
	Keys int64   // keys that it holds
}

// Hot is a key that is hot.
type Hot[K comparable] struct {
	Key   K
	Rate  float64 // at the last poll
	Since int64   // when it got so
	above int64   // when it was last at half of the threshold or more; not before Since
}

// Change is a key that has become hot, or no longer is.
type Change[K comparable] struct {
	Key K
	Hot bool
}

// Watch remembers which keys are hot. It belongs to one goroutine.
type Watch[K comparable] struct {
	policy Policy
	hot    map[K]*Hot[K] // len <= policy.Max
	left   int64         // keys that were hot enough, and for which there was no room
}

// NewWatch returns a watch by a policy, whose zero fields mean the defaults.
func NewWatch[K comparable](p Policy) (*Watch[K], error) {
	p = p.WithDefaults()
	if err := p.Validate(); err != nil {
		return nil, errors.Join(errPolicy, err)
	}
	return &Watch[K]{policy: p, hot: map[K]*Hot[K]{}}, nil
}

var errPolicy = errors.New("heat: the policy makes no sense")

// Threshold returns the rate from which a key with this rate is hot: the others are what it is
// compared with, so it depends on its own.
func (p Policy) Threshold(load Load, rate float64) float64 {
	//guard:hot-others load.Rate-rate -> load.Rate
	others := max(load.Rate-rate, 0) / float64(max(load.Keys-1, 1))
	return max(p.Floor, p.Factor*others)
}

// Update applies what a poll of the sketches has found, and returns what has changed. Keys
// that it has not found have no rate.
func (w *Watch[K]) Update(now int64, load Load, seen []Seen[K]) []Change[K] {
	var changes []Change[K]
	for _, h := range w.hot {
		h.Rate = 0
	}
	slices.SortFunc(seen, func(a, b Seen[K]) int { return cmp.Compare(b.RateMin, a.RateMin) }) // the hottest first, in case of no room
	for _, s := range seen {
		threshold := w.policy.Threshold(load, s.RateMax)
		h := w.hot[s.Key]
		switch {
		case h == nil && s.RateMin < threshold:
		case h == nil && len(w.hot) >= w.policy.Max:
			w.left++
		case h == nil:
			w.hot[s.Key] = &Hot[K]{Key: s.Key, Rate: s.RateMax, Since: now, above: now}
			changes = append(changes, Change[K]{s.Key, true})
		default:
			h.Rate = max(h.Rate, s.RateMax)
			//guard:hot-half threshold/2 -> threshold
			if s.RateMax >= threshold/2 {
				h.above = now
			}
		}
	}
	for k, h := range w.hot {
		if now-h.above >= w.policy.Stay {
			delete(w.hot, k)
			changes = append(changes, Change[K]{k, false})
		}
	}
	return changes
}

// Hot returns the keys that are hot, the hottest first.
func (w *Watch[K]) Hot() []Hot[K] {
	hot := make([]Hot[K], 0, len(w.hot))
	for _, h := range w.hot {
		hot = append(hot, *h)
	}
	slices.SortFunc(hot, func(a, b Hot[K]) int { return cmp.Compare(b.Rate, a.Rate) })
	return hot
}

// LeftOut returns how often a key was hot at a poll and there was no room for it.
func (w *Watch[K]) LeftOut() int64 { return w.left }
