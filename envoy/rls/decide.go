package rls

import (
	"context"
	"iter"
	"math"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	pb "github.com/keystead/keystead/proto/keystead/v1"
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
}

// item is one descriptor of a call.
type item struct {
	limit     *Limit // nil = none, or replaced
	series    *series
	key       string
	hits      uint64
	negative  bool // the hits are given back
	unlimited bool

	asked  bool            // the owner was, the last time
	result *pb.CheckResult // what it said then; nil = nothing
	err    error           // of all that was asked with it
	failed bool            // the owner did not answer
	denied bool
	known  bool // remaining and reset are
	left   uint64
	reset  time.Duration
	spent  uint64 // by this call
}

// maxDrains bounds how often what is left of a limit is asked for. Others may
// spend in between, so that it is less than was said; whoever loses that often
// leaves the rest to them.
const maxDrains = 3

// decide asks the owners, all at once, and does what follows from the answers.
func (c *call) decide() (err error) {
	ctx, cancel := c.timely()
	defer cancel()
	if c.hurried {
		c.decided = make(chan struct{})
		defer func() {
			c.vain = err != nil || c.over && !c.s.cfg.Shadow
			close(c.decided)
		}()
	}
	c.ask(ctx, begin)
	if err := c.settle(); err != nil {
		c.giveBack()
		return err
	}
	denied := false
	for i := range c.items {
		it := &c.items[i]
		denied = denied || it.denied
		c.over = c.over || it.counts()
	}
	for i := 0; denied && i < maxDrains; i++ {
		denied = c.drain(ctx)
	}
	if c.over && !c.s.cfg.Shadow {
		c.giveBack()
	}
	return nil
}

// answerBy is the part of the time that a caller leaves after which a policy of a
// limit takes effect: before the caller gives up, and decides by itself.
const answerBy = 0.75

// timely is the context of the call; it ends early if a limit has a policy for
// owners that do not answer.
func (c *call) timely() (context.Context, context.CancelFunc) {
	until, bounded := c.ctx.Deadline()
	early := false
	for i := range c.items {
		if l := c.items[i].limit; l != nil {
			early = early || bounded && l.OnFailure != FailError
			c.hurried = c.hurried || early || l.AllOrNothing
		}
	}
	if !early {
		return c.ctx, func() {}
	}
	return context.WithTimeout(c.ctx, time.Duration(float64(time.Until(until))*answerBy))
}

// ask asks for all items for which fill completes a check, and leaves with each
// what became of it.
func (c *call) ask(ctx context.Context, fill func(it *item, check *pb.CheckRequest) bool) {
	checks := make([]pb.CheckRequest, len(c.items))
	batch := make([]*pb.CheckRequest, 0, len(c.items))
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
	resp, err := c.s.checker.BatchCheck(ctx, &pb.BatchCheckRequest{Checks: batch})
	results := resp.GetResults()
	n := 0
	for it := range c.asked() {
		it.answered(results, n, err)
		n++
	}
}

// address says whose object a check is about, and by which limit.
func (it *item) address(check *pb.CheckRequest) {
	check.Key, check.Name, check.Algorithm = it.key, it.limit.object, algorithms[it.limit.Algorithm].wire
	check.Limit, check.PeriodNs, check.Burst = uint64(it.limit.RequestsPerUnit), int64(it.limit.period), it.limit.Burst
}

// asked are the items that were asked for, in order.
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
func (it *item) answered(results []*pb.CheckResult, n int, err error) {
	it.err = err
	if n < len(results) {
		it.result = results[n]
	}
}

// begin is the first check of an item.
func begin(it *item, check *pb.CheckRequest) bool {
	l := it.limit
	switch {
	case it.negative && it.hits > 0:
		if l.RequestsPerUnit == 0 {
			return false
		}
		check.Refund = int64(min(it.hits, maxBurst))
		return true
	case l.RequestsPerUnit == 0:
		it.denied, it.known, it.reset = true, true, l.period
		return false
	case it.hits == 0 || it.hits > l.capacity():
		check.Peek = true // the answer to more than there can be is known, but not what is left
		return true
	}
	check.Cost = it.hits
	return true
}

// settle takes the answers to the first checks. The error is that of an item
// whose limit has no policy for it.
func (c *call) settle() error {
	var failure error
	for it := range c.asked() {
		a := it.result.GetResponse()
		if a == nil {
			it.failed = true
			if err := c.fail(it, it.result.GetError(), it.err); err != nil && failure == nil {
				failure = err
			}
			continue
		}
		it.take(a)
		it.denied = !a.Allowed || !it.negative && it.hits > it.limit.capacity()
		if !it.denied && !it.negative {
			it.spent = it.hits
		}
	}
	for i := range c.items {
		c.items[i].count()
	}
	return failure
}

// counts says whether the request is over the limit because of this item.
func (it *item) counts() bool { return it.denied && !it.limit.Shadow && !it.limit.Quota }

// take takes what an answer says of the limit.
func (it *item) take(a *pb.CheckResponse) {
	it.known, it.left, it.reset = true, a.Remaining, time.Duration(a.ResetAfterNs)
}

// fail does what the limit says of owners that do not answer. The error is for
// the caller.
func (c *call) fail(it *item, e *pb.Error, whole error) error {
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
	if it.limit == nil || it.negative || it.hits == 0 {
		return
	}
	it.series.hits.Add(float64(it.hits))
	if it.unlimited {
		it.series.within.Add(float64(it.hits))
		return
	}
	capacity := it.limit.capacity()
	before := capacity
	switch {
	case it.failed:
		if it.denied {
			it.series.count(it.hits, capacity, capacity, true, it.limit.Shadow)
		}
		return
	case it.denied && it.limit.SpendRest:
		before -= min(it.left, capacity)
	case it.denied: // nothing was spent: all hits are over
	default:
		before -= min(it.left+it.hits, capacity)
	}
	it.series.count(it.hits, before, capacity, it.denied, it.limit.Shadow)
}

// drain spends what is left of limits that hits were over, where they say so. It
// says whether that is to be tried again.
func (c *call) drain(ctx context.Context) (again bool) {
	c.ask(ctx, func(it *item, check *pb.CheckRequest) bool {
		if !it.limit.SpendRest || !it.denied || it.failed || it.left == 0 || it.hits == 0 {
			return false
		}
		check.Cost = it.left
		return true
	})
	for it := range c.asked() {
		if a := it.result.GetResponse(); a != nil {
			it.take(a)
			again = again || !a.Allowed
		}
	}
	return again
}

// status is what is answered to a descriptor.
func (it *item) status() status {
	switch {
	case it.unlimited:
		return status{code: codeOK, remaining: math.MaxUint32}
	case it.limit == nil:
		return status{code: codeOK}
	}
	st := status{code: codeOK, current: it.limit.current, remaining: small(it.left), reset: it.reset, hasReset: it.known}
	if it.counts() {
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
	nearest, least := -1, uint64(math.MaxUint64)
	for i := range c.items {
		it := &c.items[i]
		st := it.status()
		b = st.append(b)
		left := uint64(st.remaining)
		if it.limit == nil || it.unlimited || !it.known {
			continue
		}
		if st.code == codeOver {
			left = 0
		}
		if left < least || st.code == codeOver {
			nearest, least = i, left
		}
	}
	if prefix := prefixes[c.s.cfg.Headers]; prefix != "" && nearest >= 0 {
		it := &c.items[nearest]
		b = appendHeader(b, prefix+"Limit", uint64(it.limit.RequestsPerUnit))
		b = appendHeader(b, prefix+"Remaining", uint64(small(it.left)))
		b = appendHeader(b, prefix+"Reset", wholeSeconds(it.reset))
	}
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
