package policy

import (
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/keystead/keystead/owner/limit"
)

// AtMost returns the most that is admitted in any time shorter than t, which is at least
// 2 ns, as long as no state is lost and nothing is given back or reset.
func (p *Policy) AtMost(t time.Duration) *big.Int {
	if c, ok := p.Calendar(); ok {
		return p.atMostDated(c, t)
	}
	n, period := big.NewInt(int64(t)), big.NewInt(p.Period)
	capacity := new(big.Int).SetUint64(p.Capacity())
	switch p.Algorithm {
	case limit.TokenBucket, limit.LeakyBucket:
		// Shorter is by a nanosecond at least; what comes back in that is no whole token.
		n.Sub(n, big.NewInt(1))
		n.Mul(n, new(big.Int).SetUint64(p.Limit))
		return n.Add(n.Quo(n, period), capacity)
	case limit.FixedWindow:
		// From the hit that opens a window: each that opens in the time. Or from just after
		// that hit: as many, and what is left of the first one as it ends.
		opened := func(less int64) *big.Int {
			k := new(big.Int).Sub(n, big.NewInt(less))
			k.Add(k.Quo(k, period), big.NewInt(1))
			return k.Mul(k, capacity)
		}
		first, second := opened(1), opened(2)
		second.Add(second, capacity).Sub(second, big.NewInt(1))
		if first.Cmp(second) > 0 {
			return first
		}
		return second
	default:
		n.Sub(n, big.NewInt(1))
		n.Add(n.Quo(n, period), big.NewInt(1))
		return n.Mul(n, capacity)
	}
}

// AfterLoss returns how many more are admitted than AtMost says, once, if the state of a key is
// lost and the limit starts full.
func (p *Policy) AfterLoss() uint64 { return p.Capacity() - p.CarryOver() }

// Bound is what is admitted at most in any time shorter than Time.
type Bound struct {
	Time     time.Duration
	AtMost   *big.Int
	WithLoss *big.Int // … in which what is kept of the key is lost once, and starts full
}

// maxBounds is how many bounds are told of a policy.
const maxBounds = 4

// Bounds returns the bounds of a policy: for its period, and for spans that people think in.
func (p *Policy) Bounds() []Bound {
	spans := []time.Duration{p.Length()}
	for _, t := range []time.Duration{time.Second, time.Minute, time.Hour, aDay, 30 * aDay, 365 * aDay} {
		if t > p.Length() {
			spans = append(spans, t)
		}
	}
	spans = spans[:min(len(spans), maxBounds)]
	bounds := make([]Bound, len(spans))
	for i, t := range spans {
		n := p.AtMost(t)
		bounds[i] = Bound{t, n, new(big.Int).Add(n, new(big.Int).SetUint64(p.AfterLoss()))}
	}
	return bounds
}

// Span writes a time without the units that are 0: 15m, 1h30m, 7d.
func Span(t time.Duration) string {
	if t >= 2*aDay && t%aDay == 0 {
		return fmt.Sprintf("%dd", t/aDay)
	}
	text := t.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Explain says what a policy admits at most, in words and numbers: normally, and while
// nodes are gone.
func (p *Policy) Explain(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", p.Name, p.Short())
	if p.About != "" {
		fmt.Fprintf(&b, "  %s\n", strings.Join(strings.Fields(p.About), " "))
	}
	b.WriteString("  Of each key,\n")
	bounds := p.Bounds()
	width := len(Span(slices.MaxFunc(bounds, func(a, b Bound) int { return len(Span(a.Time)) - len(Span(b.Time)) }).Time))
	for _, x := range bounds {
		fmt.Fprintf(&b, "    in any time shorter than %-*s  at most %s\n", width, Span(x.Time), x.AtMost)
	}
	for _, text := range slices.Concat(p.words(), p.losses(), p.fallbackWords()) {
		fmt.Fprintf(&b, "  %s\n", text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Short is the policy in a line: what it says, defaults included.
func (p *Policy) Short() string {
	if _, ok := p.Calendar(); ok {
		text := fmt.Sprintf("%s, %d in each %s", p.AlgorithmName(), p.Limit, p.period())
		if n := p.CarryOver(); n > 0 {
			text += fmt.Sprintf(", up to %d carried over", n)
		}
		return text
	}
	text := fmt.Sprintf("%s, %d in %s", p.AlgorithmName(), p.Limit, p.period())
	if p.Capacity() != p.Limit {
		text += fmt.Sprintf(", burst %d", p.Capacity())
	}
	if p.MaxDelay != 0 {
		text += ", delay up to " + Span(time.Duration(p.MaxDelay))
	}
	return text
}

// words says what the algorithm means with these numbers.
func (p *Policy) words() []string {
	period := p.period()
	switch p.Algorithm {
	case limit.CalendarWindow:
		return p.datedWords()
	case limit.TokenBucket:
		return []string{fmt.Sprintf("%d at once, and %d more for each %s: never above %d + %d · t / %s in any time t.", p.Capacity(), p.Limit, period, p.Capacity(), p.Limit, period),
			"Nothing is refused that this bound allows."}
	case limit.LeakyBucket:
		return []string{fmt.Sprintf("That many are given a turn. Turns are at least %s apart, and up to %d are in the queue, the one that runs included.", Span(time.Duration(p.Period/int64(min(p.Limit, uint64(p.Period))))), p.Capacity()),
			"A request that is not ready to wait for its turn (max_delay_ns) is refused." + p.delayWords()}
	case limit.FixedWindow:
		return []string{fmt.Sprintf("A window opens with its first hit, lasts %s and holds %d. Across the edge of two, up to %d pass in a short time.", period, p.Limit, 2*p.Limit-1)}
	default:
		return []string{fmt.Sprintf("Each hit counts for %s at least, and for less than 9/8 of that.", period),
			"So a refusal may come early by up to an eighth; up to 17 hits at a time are exact."}
	}
}

// delayWords says what a bound of the delay means.
func (p *Policy) delayWords() string {
	if p.MaxDelay == 0 {
		return ""
	}
	n := p.InQueue()
	if n.Cmp(new(big.Int).SetUint64(p.Capacity())) == 0 {
		return fmt.Sprintf(" The %s places of the queue are full before anybody waits %s (max_delay): a greater burst has more wait.", n, Span(time.Duration(p.MaxDelay)))
	}
	return fmt.Sprintf(" None waits longer than %s, so of requests of 1 at most %s are in the queue.", Span(time.Duration(p.MaxDelay)), n)
}

// InQueue returns how many requests of 1 are in the queue of a leaky bucket at most, the one that
// runs included.
func (p *Policy) InQueue() *big.Int {
	n := new(big.Int).SetUint64(p.Capacity())
	if p.MaxDelay == 0 {
		return n
	}
	q := new(big.Int).Mul(big.NewInt(p.MaxDelay), new(big.Int).SetUint64(p.Limit))
	q.Quo(q, big.NewInt(p.Period)).Add(q, big.NewInt(1))
	if q.Cmp(n) < 0 {
		return q
	}
	return n
}

// datedWords is words of a calendar window.
func (p *Policy) datedWords() []string {
	text := fmt.Sprintf("At most %d in each %s, whenever in it they come.", p.Limit, p.period())
	if n := p.CarryOver(); n > 0 {
		text += fmt.Sprintf(" What is left of one adds to the next, up to %d, if anything was spent in it.", n)
	}
	return []string{text,
		fmt.Sprintf("Across the edge of two, up to %s pass in a short time.", p.AtMost(2)),
		"Periods end by the time that most nodes agree on: one wrong clock changes nothing, and a clock that is set back gives",
		"  nothing twice. If most clocks jump ahead, the next period comes as much earlier."}
}

// losses says what becomes of it while nodes are gone: what docs/guarantees.md says.
func (p *Policy) losses() []string {
	until := "  until then the key is UNAVAILABLE, and nothing is admitted."
	if p.WithoutOwner() != nil {
		until = "  until then its fallback decides, see below."
	}
	return []string{
		"A node joins, is drained or restarted: the same. Nothing is lost.",
		"The owner dies: the same. Its standby knows all that was answered, and goes on when the owner's lease is over;",
		until,
		fmt.Sprintf("Owner and standby die together, or the owner while it has none: the limit starts full, so once up to %d more.", p.AfterLoss()),
		"  Answers say so (lost_epoch). With --lost-limits=empty it starts used up: not one more, unless it takes longer to",
		"  fill than the grace period (--max-lock-ttl) and is first asked after that.",
		"With --ack-owner=limits: what the owner decided in its last milliseconds before it died may be admitted again.",
	}
}
