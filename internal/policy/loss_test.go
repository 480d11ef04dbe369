package policy_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/policy"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// serving is the rule of an owner, which may have got its rows after a loss.
type serving struct{ lost, lostAt int64 }

func (r serving) Admit(uint64, int64) (owner.Permit, error) {
	return owner.Permit{Epoch: 100, Since: math.MinInt64, Lost: uint64(r.lost), LostAt: r.lostAt}, nil
}
func (serving) Confirm(owner.Permit, int64) error      { return nil }
func (serving) Exhausted(epoch uint64) (uint64, error) { return epoch + 1, nil }
func (serving) Terms() owner.Terms                     { return owner.Terms{Grace: int64(time.Hour)} }
func (serving) Wall(now int64) (int64, bool)           { return now, true }

// hits are the moments of what was admitted.
type hits []int64

func (h hits) most(t int64) *big.Int {
	most, from := 0, 0
	for i := range h {
		for h[i]-h[from] >= t {
			from++
		}
		most = max(most, i-from+1)
	}
	return big.NewInt(int64(most))
}

type owners struct {
	t     *testing.T
	set   *policy.InForce
	store *owner.Store
	hits  hits
}

// begin begins a store that has lost what was kept, with lost-limits, unless that is "".
func (o *owners) begin(lostLimits string, now int64) {
	c := owner.Config{Rule: serving{}, Policies: o.set, Shards: 1}
	if lostLimits != "" {
		c.Rule, c.LostLimits = serving{7, now}, lostLimits
	}
	s, err := owner.New(c, now)
	if err != nil {
		o.t.Fatal(err)
	}
	o.store = s
}

// rush makes n checks at a moment.
func (o *owners) rush(now int64, n uint64) (admitted uint64) {
	op := limit.Op{Cost: 1}
	if o.set.Load().Lookup("p").Algorithm == limit.LeakyBucket {
		op.MaxDelay = math.MaxInt64
	}
	for range n {
		a, _, err := o.store.CheckPolicy(now, owner.Ref{Key: "k", Name: "p"}, reqid.ID{}, "p", op)
		if err != nil {
			o.t.Fatal(err)
		}
		if a.Allowed {
			o.hits = append(o.hits, now)
			admitted++
		}
	}
	return admitted
}

var lossy = []string{
	"limit: 3/2s, burst: 5", "limit: 4/2s", "limit: 3/2s, burst: 5, algorithm: leaky-bucket", "limit: 3/2s, algorithm: fixed-window",
	"limit: 3/2s, algorithm: sliding-window", "limit: 3/2s, algorithm: calendar-window", "limit: 3/2s, algorithm: calendar-window, carry_over: 2",
}

// What is told of a loss is never exceeded, and with the worst loss it is reached: with limits that
// start full as many more as is said, and with those that start empty not one.
func TestNoMoreThanIsToldOfALoss(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	const period = int64(2 * time.Second)
	for _, text := range lossy {
		a := policy.NewAgreed(1, "", []byte("policies: {p: {"+text+"}}"), nil)
		p := a.Lookup("p")
		set := &policy.InForce{}
		set.Put(a)
		for _, start := range []string{owner.LostFull, owner.LostEmpty} {
			reached := false
			for run := range 150 {
				o := &owners{t: t, set: set}
				o.begin("", 0)
				loss := 4*period + rnd.Int64N(4*period)
				lost := false
				for now := int64(1); now < 12*period; now += 1 + rnd.Int64N(period/2) {
					if now >= loss && !lost {
						lost = true
						if run%2 == 0 { // a caller who knows
							o.rush(now, p.Capacity()+1)
						}
						o.begin(start, now)
						if n := o.rush(now, 2*p.Capacity()); start == owner.LostFull && n > p.AfterLoss() || start == owner.LostEmpty && n != 0 {
							t.Fatalf("%s: %d after a loss, and limits start %s", text, n, start)
						} else if n == p.AfterLoss() {
							reached = true
						}
					}
					o.rush(now, rnd.Uint64N(4))
				}
				for _, b := range spans(p, period) {
					told := b.AtMost
					if start == owner.LostFull {
						told = b.WithLoss
					}
					if got := o.hits.most(int64(b.Time)); got.Cmp(told) > 0 {
						t.Fatalf("%s: %s in less than %s with a loss, limits start %s, and %s were told", text, got, b.Time, start, told)
					}
				}
			}
			if reached != (start == owner.LostFull) {
				t.Errorf("%s: the limit starts %s, and is full: %v", text, start, reached)
			}
		}
	}
}

func spans(p *policy.Policy, period int64) []policy.Bound {
	var bounds []policy.Bound
	for _, x := range []int64{2, period / 3, period, period + 1, 2 * period, 5*period + 3} {
		n := p.AtMost(time.Duration(x))
		bounds = append(bounds, policy.Bound{Time: time.Duration(x), AtMost: n, WithLoss: new(big.Int).Add(n, new(big.Int).SetUint64(p.AfterLoss()))})
	}
	return bounds
}

// What is told with a loss is the sum that is printed.
func TestBoundsWithLoss(t *testing.T) {
	for _, text := range lossy {
		p := policy.NewAgreed(1, "", []byte("policies: {p: {"+text+"}}"), nil).Lookup("p")
		for _, b := range p.Bounds() {
			if d := new(big.Int).Sub(b.WithLoss, b.AtMost); d.Uint64() != p.AfterLoss() {
				t.Errorf("%s: %s more", text, d)
			}
		}
		var w strings.Builder
		if err := p.Explain(&w); err != nil || !strings.Contains(w.String(), " more.\n") {
			t.Error(w.String(), err)
		}
	}
}
