package rls

import (
	"context"
	"errors"
	"sync"
	"time"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// A hurried call asks about each key by itself, so that an owner that is silent
// keeps nobody from hearing the others. When its time is over it goes by what has
// come. A question that is still open then goes on by itself if its hits may have
// to be given back: a call that learns late that they were spent looks at what became
// of the call.

// Bounds of questions that are still open when their calls are decided.
const (
	// maxDeferred bounds the questions of hurried calls: each is a goroutine that goes on
	// for as long as its owner takes, a lease at most. Where answers come in time,
	// thousands of calls a second need a few. When there is no room, what a limit says
	// of owners that do not answer takes effect at once.
	maxDeferred = 4096
	// deferredTime is how long an answer is waited for after the end of the call: longer
	// than a lease of 2 s, after which an owner whose standby is gone answers.
	deferredTime = 5 * time.Second
)

// question is what is asked about one key, in order.
type question struct {
	parts []part
	slot  *slot // it is about slots instead
	// spends: some of it is to be given back if the call was in vain.
	spends bool
	// owes: some of it was used already, and is asked for whether or not the call still waits.
	owes bool

	// Guarded by inquiry.mu until that is over.
	done bool
	resp *limitpb.BatchCheckResponse
	err  error
}

// part is one check of a question.
type part struct {
	it     *item // only for the call itself
	check  *limitpb.CheckRequest
	spends bool
}

// inquiry is what a call asks at a time.
type inquiry struct {
	mu   sync.Mutex // guards what follows, and the answers
	open int        // questions that are not answered
	over bool       // the call goes by what has come
	all  chan struct{}
}

// askEach asks about each key by itself, and takes what comes before the end of
// ctx.
func (c *call) askEach(ctx context.Context, batch []*limitpb.CheckRequest) {
	questions := c.questions(batch)
	c.await(ctx, questions)
	for _, q := range questions {
		for n, p := range q.parts {
			p.it.answered(q.resp.GetResults(), n, q.err)
		}
	}
}

// await asks questions, all at once, and returns when they are answered, or at the end of ctx.
func (c *call) await(ctx context.Context, questions []*question) {
	in := &inquiry{all: make(chan struct{})}
	var asked []*question
	for _, q := range questions {
		switch {
		case ctx.Err() != nil:
			q.err = c.lateness()
		case !c.s.room(c.s.deferred):
			q.err = errCrowded
			c.s.metrics.unasked.Add(float64(max(len(q.parts), 1)))
		default:
			asked = append(asked, q)
		}
	}
	if in.open = len(asked); in.open > 0 {
		for _, q := range asked {
			go c.put(ctx, in, q)
		}
		select {
		case <-in.all:
		case <-ctx.Done():
		}
		in.mu.Lock()
		in.over = true
		in.mu.Unlock()
	}
	for _, q := range questions {
		if !q.done && q.err == nil {
			q.err = c.lateness()
		}
	}
}

// room takes one of the places, if there is any.
func (s *Service) room(places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
		return false
	}
}

// questions returns the checks of a batch by key.
func (c *call) questions(batch []*limitpb.CheckRequest) []*question {
	byKey := make(map[string]*question, len(batch))
	questions := make([]*question, 0, len(batch))
	n := 0
	for it := range c.asked() {
		p := part{it: it, check: batch[n], spends: it.limit.AllOrNothing && batch[n].Cost > 0}
		n++
		q := byKey[it.key]
		if q == nil {
			q = &question{}
			byKey[it.key], questions = q, append(questions, q)
		}
		q.parts, q.spends, q.owes = append(q.parts, p), q.spends || p.spends, q.owes || p.check.Overdraft
	}
	return questions
}

// lateness returns the error of a question whose answer did not come in time.
func (c *call) lateness() error {
	if errors.Is(c.ctx.Err(), context.Canceled) {
		return errLeft
	}
	return errLate
}

// put asks one question, and gives back what its call did not hear of in time.
func (c *call) put(ctx context.Context, in *inquiry, q *question) {
	defer func() { <-c.s.deferred }()
	if q.slot != nil {
		c.putSlot(ctx, in, q)
		return
	}
	//guard:rls-overdraft-late q.spends || q.owes -> q.spends
	if q.spends || q.owes {
		var cancel context.CancelFunc
		ctx, cancel = c.s.beyond(ctx)
		defer cancel()
	}
	req := &limitpb.BatchCheckRequest{Checks: make([]*limitpb.CheckRequest, len(q.parts))}
	for i, p := range q.parts {
		req.Checks[i] = p.check
	}
	resp, err := c.s.checker.BatchCheck(ctx, req)
	if in.deliver(q, resp, err) || !q.spends {
		return
	}
	if <-c.decided; c.vain {
		c.s.refundLate(ctx, q.parts, resp.GetResults())
	}
}

// deliver hands an answer over to the call, if that still waits.
func (in *inquiry) deliver(q *question, resp *limitpb.BatchCheckResponse, err error) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.over {
		return false
	}
	q.done, q.resp, q.err = true, resp, err
	if in.open--; in.open == 0 {
		close(in.all)
	}
	return true
}

// beyond is a context that ends lateTime after ctx, or with the service.
func (s *Service) beyond(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		wait, end := context.WithTimeout(s.ctx, deferredTime)
		defer end()
		select {
		case <-wait.Done():
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() {
		forget()
		cancel()
	}
}

// Bounds of what is given back.
const (
	// maxRefundTime is how long it may take, whatever the caller does meanwhile: the
	// hits were spent, and nobody got anything for them.
	maxRefundTime = time.Second
	// maxRefunds bounds the calls whose hits are being given back, each by a
	// goroutine. One takes a millisecond where owners answer. When there is no room,
	// hits stay spent, and count as a refund that failed.
	maxRefunds = 4096
)

// giveBack gives back what was spent on limits that say so; the call does not wait
// for it. What is left of them is said as if it were done.
func (c *call) giveBack() {
	c.giveSlotsBack()
	var refunds []*limitpb.CheckRequest
	for i := range c.items {
		it := &c.items[i]
		if it.spent == 0 || !it.limit.AllOrNothing {
			continue
		}
		check := &limitpb.CheckRequest{Refund: it.spent}
		it.address(check)
		refunds = append(refunds, check)
		it.left, it.spent = min(it.left+it.spent, it.capacity()), 0
	}
	switch {
	case len(refunds) == 0:
	case c.s.room(c.s.refunds):
		go func() {
			defer func() { <-c.s.refunds }()
			c.s.refund(c.ctx, refunds)
		}()
	default:
		c.s.metrics.refunds[false].Add(float64(len(refunds)))
	}
}

// refundLate gives back what parts of a question turn out to have spent.
func (s *Service) refundLate(ctx context.Context, parts []part, results []*limitpb.CheckResult) {
	var refunds []*limitpb.CheckRequest
	for n, p := range parts {
		if !p.spends {
			continue
		}
		var r *limitpb.CheckResult
		if n < len(results) {
			r = results[n]
		}
		switch {
		case r.GetResponse().GetAllowed():
			refunds = append(refunds, &limitpb.CheckRequest{Key: p.check.Key, Name: p.check.Name, Policy: p.check.Policy, Algorithm: p.check.Algorithm,
				Limit: p.check.Limit, PeriodNs: p.check.PeriodNs, Burst: p.check.Burst, Refund: p.check.Cost})
		case r.GetResponse() == nil && (r.GetError() == nil || r.Error.Reason == commonpb.Reason_REASON_OUTCOME_UNKNOWN):
			s.metrics.refunds[false].Inc() // whether there is anything to give back is not known
		}
	}
	if len(refunds) > 0 {
		s.refund(ctx, refunds)
	}
}

// refund gives hits back, and counts how that went. ctx may have ended.
func (s *Service) refund(ctx context.Context, refunds []*limitpb.CheckRequest) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxRefundTime)
	defer cancel()
	resp, _ := s.checker.BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: refunds}) // without results, all have failed
	results := resp.GetResults()
	for n := range refunds {
		s.metrics.refunds[n < len(results) && results[n].GetResponse() != nil].Inc()
	}
}
