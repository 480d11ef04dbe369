package rls

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"math"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/keystead/keystead/internal/limitfield"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// call is a request under way.
type call struct {
	s     *Service
	req   *request
	ctx   context.Context
	items []item // one for each descriptor
	over  bool   // the request is over a limit
	// hurried: answers are not waited for after the end of the time, because a limit
	// has a policy for that, or because hits may have to be given back.
	hurried bool
	decided chan struct{} // closed when vain is known; nil if not hurried
	vain    bool          // nobody got anything for the hits
	// slotless: the request has no slot, and spends nothing of limits.
	slotless bool
}

// item is one descriptor of a call.
type item struct {
	limit     *Limit // nil = none, or replaced
	series    *series
	key       string
	tag       string // the last entry, which is the request's own if the limit has slots
	hits      uint64
	negative  bool // the hits are given back
	stated    bool // the request says how many they are
	unlimited bool

	asked  bool                 // the owner was, the last time
	result *limitpb.CheckResult // what it said then; nil = nothing
	err    error                // of all that was asked with it
	failed bool                 // the owner did not answer
	denied bool
	known  bool // left and reset are
	left   uint64
	debt   uint64        // beyond the limit
	reset  time.Duration // until everything is back; of what is denied, until the hits fit
	more   time.Duration // until a bucket has another token; 0 = not known
	spent  uint64        // by this call
	slid   bool          // the rest of a sliding window was spent
	all    uint64        // of a policy, the most that can be available at once; 0 = not known
	rate   uint64        // of a policy, what comes back in a period
	looked bool          // nothing was spent, because the request gets no slot
	took   *slot         // what this call has taken
}

// maxDrains bounds how often what is left of a limit is asked for. Others may
// spend in between, so that it is less than was said; a call that loses that often
// leaves the rest to them.
const maxDrains = 3

// decide asks the owners, all at once, and does what follows from the answers.
func (c *call) decide() (err error) {
	ctx, cancel := c.timely()
	defer cancel()
	if c.hurried {
		c.decided = make(chan struct{})
		defer func() {
			c.vain = err != nil || c.inVain()
			close(c.decided)
		}()
	}
	err = c.slots(ctx)
	//guard:rls-slots-first c.refuses() && !c.s.cfg.Shadow -> false
	c.slotless = err != nil || c.refuses() && !c.s.cfg.Shadow
	c.ask(ctx, c.begin)
	//guard:rls-slots-failed cmp.Or(err, c.conclude()) -> cmp.Or(nil, c.conclude())
	if err := cmp.Or(err, c.conclude()); err != nil {
		c.giveBack()
		return err
	}
	c.over = c.refuses()
	denied := false
	for i := range c.items {
		denied = denied || c.items[i].denied
	}
	for i := 0; denied && i < maxDrains; i++ {
		denied = c.drain(ctx)
	}
	c.askAgain(ctx)
	if c.inVain() {
		c.giveBack()
	}
	return nil
}

// inVain reports whether nobody gets anything for the hits, of a call without an error: it is over a limit, or its caller
// has left. Where owners that do not answer are passed over, that is none.
func (c *call) inVain() bool {
	//guard:rls-left-in-vain
	if errors.Is(c.ctx.Err(), context.Canceled) {
		return true
	}
	return c.over && !c.s.cfg.Shadow
}

// answerBy is the part of the time that a caller leaves after which a policy of a
// limit takes effect: before the caller gives up, and decides by itself.
const answerBy = 0.75

// timely returns the context of the call; it ends early if a limit has a policy for
// owners that do not answer.
func (c *call) timely() (context.Context, context.CancelFunc) {
	until, bounded := c.ctx.Deadline()
	early := false
	for i := range c.items {
		if l := c.items[i].limit; l != nil {
			early = early || bounded && l.OnFailure != FailError
			c.hurried = c.hurried || early || l.AllOrNothing || l.Hold != 0 || c.items[i].owes()
		}
	}
	if !early {
		return c.ctx, func() {}
	}
	return context.WithTimeout(c.ctx, time.Duration(float64(time.Until(until))*answerBy))
}

// ask asks for all items for which fill completes a check, and leaves with each
// what became of it.
func (c *call) ask(ctx context.Context, fill func(it *item, check *limitpb.CheckRequest) bool) {
	checks := make([]limitpb.CheckRequest, len(c.items))
	batch := make([]*limitpb.CheckRequest, 0, len(c.items))
	for i := range c.items {
		it, check := &c.items[i], &checks[i]
		it.result, it.err = nil, nil
		if it.asked = it.limit != nil && !it.unlimited && fill(it, check); !it.asked {
			continue
		}
		it.address(check)
		batch = append(batch, check)
	}
	switch {
	case len(batch) == 0:
		return
	case c.hurried:
		c.askEach(ctx, batch)
		return
	}
	resp, err := c.s.checker.BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: batch})
	results := resp.GetResults()
	n := 0
	for it := range c.asked() {
		it.answered(results, n, err)
		n++
	}
}

// address says whose object a check is about, and by which limit.
func (it *item) address(check *limitpb.CheckRequest) {
	if it.limit.Policy != "" {
		check.Key, check.Policy = it.key, it.limit.Policy
		return
	}
	check.Key, check.Name, check.Algorithm = it.key, it.limit.object, it.limit.algorithm()
	check.Limit, check.PeriodNs, check.Burst = uint64(it.limit.RequestsPerUnit), int64(it.limit.period), it.limit.Burst
}

// asked returns the items that were asked for, in order.
func (c *call) asked() iter.Seq[*item] {
	return func(yield func(*item) bool) {
		for i := range c.items {
			if it := &c.items[i]; it.asked && !yield(it) {
				return
			}
		}
	}
}

// answered takes the n-th result of a batch, or why there is none.
func (it *item) answered(results []*limitpb.CheckResult, n int, err error) {
	it.err = err
	if n < len(results) {
		it.result = results[n]
	}
}

// begin is the first check of an item.
func (c *call) begin(it *item, check *limitpb.CheckRequest) bool {
	l := it.limit
	switch {
	case l.Hold != 0:
		return false // that is done
	case l.closed(): // hits that are negative are never over a limit
		it.denied, it.known, it.reset = !it.negative, true, l.period
		return false
	case it.negative && it.hits > 0:
		check.Refund = min(it.hits, maxBurst)
		return true
	}
	//guard:rls-overdraft
	if it.owes() {
		check.Cost, check.Overdraft = min(it.hits, maxBurst), true
		return true
	}
	check.Cost = it.needs()
	// The answer to more than there can be is known, but not what is left.
	check.Peek = it.hits == 0 || it.hits > it.capacity() || c.slotless
	it.looked = c.slotless && it.hits > 0
	return true
}

// owes reports whether the hits are spent whether or not they are there.
func (it *item) owes() bool {
	return it.limit != nil && it.limit.Overdraft && it.stated && it.hits > 0 && !it.negative && !it.unlimited && !it.limit.closed()
}

// capacity returns the most that can be available at once. What a policy has is not known before an owner has said it.
func (it *item) capacity() uint64 {
	switch {
	case it.limit.Policy == "":
		return it.limit.capacity()
	case it.all == 0:
		return maxBurst
	}
	return it.all
}

// needs returns how many hits have to fit: as many as were asked for, or all that can.
func (it *item) needs() uint64 { return min(max(it.hits, 1), it.capacity()) }

// conclude applies the answers to the first checks. The error is that of an item
// whose limit has no policy for it.
func (c *call) conclude() error {
	var failure error
	for it := range c.asked() {
		a := it.result.GetResponse()
		if a == nil && refusedForever(it.limit, it.result.GetError()) {
			it.denied = true
			continue
		}
		if a == nil {
			it.failed = true
			if err := c.fail(it, it.result.GetError(), it.err); err != nil && failure == nil {
				failure = err
			}
			continue
		}
		it.denied = !it.negative && //guard:rls-negative
			(!a.Allowed || it.hits > it.capacity())
		if it.owes() {
			it.denied = a.Debt > 0
		}
		it.debt = a.Debt
		it.note(a)
		if !it.denied && !it.negative && !it.looked {
			it.spent = it.hits
		}
	}
	for i := range c.items {
		c.items[i].count()
	}
	return failure
}

// refused reports whether the status of the item is that it is over its limit.
func (it *item) refused() bool { return it.denied && !it.limit.Shadow }

// refuses reports whether the items put the call over the limit: one of those that
// are no quotas does, or all that are.
func (c *call) refuses() bool {
	quotas, over := 0, 0
	for i := range c.items {
		it := &c.items[i]
		switch quota := it.limit != nil && !it.unlimited && it.limit.Quota; {
		case !quota && it.refused():
			return true
		case quota:
			quotas++
			if it.refused() {
				over++
			}
		}
	}
	//guard:rls-quotas false
	//guard:rls-quota-room over == quotas -> over > 0
	return quotas > 0 && over == quotas
}

// note keeps what an answer says of the limit.
func (it *item) note(a *limitpb.CheckResponse) {
	it.known, it.left, it.reset = true, a.Remaining, time.Duration(a.ResetAfterNs)
	it.all, it.rate = a.Capacity, a.Limit
	//guard:rls-retry
	if it.refused() && (it.limit.Algorithm != FixedWindow || it.limit.Policy != "") {
		it.reset = time.Duration(a.RetryAfterNs)
	}
	if l := it.limit; l.Algorithm == TokenBucket && a.Remaining < a.Capacity && !a.Overridden {
		it.more = limitfield.NextToken(time.Duration(a.ResetAfterNs), a.Capacity-a.Remaining, uint64(l.RequestsPerUnit), l.period)
	}
}

// fail does what the limit says of owners that do not answer. The error is for
// the caller.
func (c *call) fail(it *item, e *commonpb.Error, whole error) error {
	policy := it.limit.OnFailure
	if isInvalid(e, whole) {
		policy = FailError // nobody will ever answer that
	}
	c.s.metrics.failures[policy].Inc()
	it.denied = policy == FailDeny
	if policy == FailError {
		return failure(e, whole)
	}
	return nil
}

// count counts the hits of an item. A limit under which others spend meanwhile is
// counted by what is left after them.
func (it *item) count() {
	if it.limit == nil || it.negative || it.hits == 0 || it.looked && !it.failed && !it.denied {
		return
	}
	it.series.hits.Add(float64(it.hits))
	if it.unlimited {
		it.series.within.Add(float64(it.hits))
		return
	}
	capacity := it.capacity()
	before := capacity
	switch {
	case it.failed:
		if it.denied {
			it.series.count(it.hits, capacity, capacity, true, it.limit.Shadow)
		}
		return
	case it.owes():
		before = capacity - min(it.left, capacity) + it.debt
		before -= min(it.hits, before)
	case it.denied && it.limit.SpendRest:
		before -= min(it.left, capacity)
	case it.denied: // nothing was spent: all hits are over
	default:
		before -= min(it.left+it.hits, capacity)
	}
	it.series.count(it.hits, before, capacity, it.denied, it.limit.Shadow)
}

// drain spends what is left of limits that hits were over, where they say so. It
// reports whether that is to be tried again.
func (c *call) drain(ctx context.Context) (again bool) {
	c.ask(ctx, func(it *item, check *limitpb.CheckRequest) bool {
		if !it.limit.SpendRest || !it.denied || it.owes() || it.failed || it.left == 0 || it.hits == 0 {
			return false
		}
		check.Cost = it.left
		return true
	})
	for it := range c.asked() {
		if a := it.result.GetResponse(); a != nil {
			it.drained(a)
			again = again || !a.Allowed
		}
	}
	return again
}

// drained takes what an answer says of the limit whose rest was spent. It is about
// that rest, and not about the hits that did not fit.
func (it *item) drained(a *limitpb.CheckResponse) {
	it.left, it.reset = a.Remaining, time.Duration(a.ResetAfterNs)
	switch l := it.limit; {
	case !it.refused():
	case l.Algorithm == TokenBucket: // all but what the hits need has longer
		longer := float64(l.capacity()-it.needs()) * float64(l.period) / float64(l.RequestsPerUnit)
		it.reset = max(it.reset-time.Duration(longer), 0)
	case l.Algorithm == SlidingWindow:
		it.slid = true
	}
}

// askAgain asks when hits will fit into sliding windows whose rest was spent: it
// depends on when the others were.
func (c *call) askAgain(ctx context.Context) {
	slid := false
	for i := range c.items {
		slid = slid || c.items[i].slid
	}
	if !slid {
		return
	}
	c.ask(ctx, func(it *item, check *limitpb.CheckRequest) bool {
		check.Cost, check.Peek = it.needs(), true
		return it.slid
	})
	for it := range c.asked() {
		if a := it.result.GetResponse(); a != nil {
			it.reset = time.Duration(a.RetryAfterNs)
		}
	}
}

// current returns the limit as an answer has it. That of a policy has no unit: its periods may be of any length.
func (it *item) current() []byte {
	switch {
	case it.limit.Policy == "":
		return it.limit.current
	case it.rate == 0: // no owner has said it
		return nil
	}
	return append(appendVarint(nil, 1, uint64(small(it.rate))), it.limit.current...)
}

// status returns what is answered to a descriptor.
func (it *item) status() status {
	switch {
	case it.unlimited:
		return status{code: codeOK, remaining: math.MaxUint32}
	case it.limit == nil:
		return status{code: codeOK}
	}
	st := status{code: codeOK, current: it.current(), remaining: small(it.left), reset: it.reset, hasReset: it.known && it.limit.Hold == 0}
	if it.refused() {
		st.code = codeOver
	}
	return st
}

// write makes the answer of the call.
func (c *call) write() (*answer, error) {
	code := codeOK
	if c.over && c.s.cfg.Shadow {
		c.s.metrics.shadowed.Inc()
	} else if c.over {
		code = codeOver
	}
	b := make([]byte, 0, 48*(1+len(c.items)))
	b = appendVarint(b, 1, uint64(code))
	for i := range c.items {
		st := c.items[i].status()
		b = st.append(b)
	}
	b = c.appendHeaders(b)
	if c.s.cfg.Metadata {
		// The rest of the message: messages may be written one after the other.
		rest, err := proto.Marshal(&rlspb.RateLimitResponse{DynamicMetadata: c.metadata()})
		if err != nil {
			return nil, err
		}
		b = append(b, rest...)
	}
	return &answer{b}, nil
}
