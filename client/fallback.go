package client

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/fallback"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// LocalCap has checks and peeks of a limit decided without the owner of their key, if that cannot
// be asked within the Budget: each node admits at most n tokens of a key by itself in any time
// shorter than period, beside what the limit allows; and so does this client, if it reaches no
// node either. So at most (nodes + clients) × n in such a time are admitted beyond the limit.
//
// A Refund or an Overdraw is an error then, as everything is without a fallback. Of a Policy, which has its
// own, it says what this client does alone. In a batch nodes go by it, and this client does not.
func LocalCap(n uint64, period time.Duration) LimitOption {
	return LimitOption{fallback: fallback.Rule{Source: fallback.LocalCap, Cap: n, Period: period}}
}

// LastKnown is LocalCap with another bound: each node, and this client, admits what the owner
// last told it was left of the key, if that is less than lasts ago, and less what it admitted
// by itself since. Without such an answer it fails. So at most (nodes + clients) × the capacity
// of the limit in any time shorter than lasts are admitted beyond it. Not of a limit that is Spaced.
func LastKnown(lasts time.Duration) LimitOption {
	return LimitOption{fallback: fallback.Rule{Source: fallback.LastKnown, KnownFor: lasts}}
}

// Budget is how long a check waits for its decision before LocalCap or LastKnown decides: 250 ms
// unless it is said, or until shortly before the deadline of its context. It goes with one of them.
func Budget(d time.Duration) LimitOption { return LimitOption{budget: d} }

// Degraded is by what a check was decided whose owner could not be asked in time.
type Degraded string

// What decides without the owner.
const (
	ByLocalCap  Degraded = "local-cap"
	ByLastKnown Degraded = "last-known"
)

var degradedBy = map[limitpb.FallbackSource]Degraded{
	limitpb.FallbackSource_FALLBACK_SOURCE_LOCAL_CAP:  ByLocalCap,
	limitpb.FallbackSource_FALLBACK_SOURCE_LAST_KNOWN: ByLastKnown,
}

// rule returns the fallback of a check, nil if it has none.
func (q *Check) rule() *fallback.Rule {
	if q.Limit.fallback.Source == fallback.None || q.Refund != 0 || q.Overdraft {
		return nil
	}
	r := q.Limit.fallback
	r.Budget = q.Limit.budget
	return &r
}

// judgeRule judges the fallback of a check.
func (q *Check) judgeRule(r *fallback.Rule) error {
	switch {
	case q.Limit.twoFallbacks:
		return invalid("LocalCap", "and LastKnown exclude each other: one of them decides without the owner")
	case q.Limit.budget != 0 && q.Limit.fallback.Source == fallback.None:
		return invalid("Budget", "goes with LocalCap or LastKnown; the deadline of the context is how long a check may take")
	case r == nil:
		return nil
	}
	var e *failure.Error
	switch err := r.Validate(); {
	case errors.As(err, &e):
		return invalid(e.Field, "%s", e.Message)
	case q.anywhere():
		return invalid("fallback", "does not go with Anywhere")
	case r.Source == fallback.LastKnown && q.Limit.rate.Algorithm == LeakyBucket:
		return invalid("fallback.known_for_ns", "does not go with a leaky bucket: turns that a node gives by itself would be those of others")
	}
	return nil
}

// onto puts a fallback into a request. A policy has its own.
func fallbackOnto(req *limitpb.CheckRequest, r *fallback.Rule) {
	if r == nil || req.Policy != "" {
		return
	}
	req.Fallback = &limitpb.Fallback{Source: limitpb.FallbackSource(r.Source), Cap: r.Cap, PeriodNs: int64(r.Period),
		KnownForNs: int64(r.KnownFor), BudgetNs: int64(r.Budget)}
}

// pressed is a check with a fallback on its way. A node that is asked decides after three
// quarters of the budget, or of the time to its deadline. The owner, which is asked first, may be
// silent: then another node has to have that time still, and this client a moment after it.
type pressed struct {
	until time.Time     // for the answer of a node
	first time.Duration // for that of the first node
	tried bool
}

// press starts the time of a check.
func press(ctx context.Context, r *fallback.Rule) *pressed {
	left := time.Duration(0)
	if end, has := ctx.Deadline(); has {
		left = max(time.Until(end), 1)
	}
	total := r.Wait(left) / 3 * 4
	return &pressed{until: time.Now().Add(total - total/8), first: total * 3 / 8}
}

// attempt returns the context of one attempt.
func (p *pressed) attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.tried {
		return ctx, func() {}
	}
	p.tried = true
	return context.WithTimeout(ctx, p.first)
}

// checkOr has a node decide, or its fallback, or the client's own.
func (c *Client) checkOr(ctx context.Context, q *Check, op *operation, rule *fallback.Rule) (Decision, error) {
	asked, p := c.clock.Now(), press(ctx, rule)
	within, cancel := context.WithDeadline(ctx, p.until)
	defer cancel()
	var r *limitpb.CheckResponse
	err := c.do(within, toObject(q.object(), op).of(q.what()), func(ctx context.Context, n *node, v *view) (sent bool, err error) {
		ctx, cancel := p.attempt(ctx)
		defer cancel()
		// By itself: others of a batch may have to be waited for.
		sent, err = c.unary(ctx, n, 0, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
			req := q.wire() // that of an attempt before may still be sent
			if q.wait != nil {
				req.MaxDelayNs = q.wait.left()
			}
			if op != nil {
				checkKind.stamp(req, op.stamp())
			}
			r, err = limitpb.NewLimitServiceClient(n.conn()).Check(ctx, req, opts...)
			return err
		})
		op.says(r.GetAllowed())
		c.answered(v, n, r.GetOwner(), r.GetEpoch())
		return sent, err
	})
	if err == nil {
		if rule.Source == fallback.LastKnown && !r.Degraded {
			c.without().Learn(q.Key, q.localName(), fallback.Known{At: asked, Remaining: r.Remaining, Capacity: r.Capacity, Epoch: r.Epoch}, c.clock.Now())
		}
		return decision(r), nil
	}
	//guard:client-fallback-silent
	if ctx.Err() != nil || !unreached(err, within) || c.ctx.Err() != nil {
		return Decision{}, err
	}
	cost := max(q.Cost, 1)
	a, why := c.without().Decide(q.Key, q.localName(), rule, cost, q.Peek, c.clock.Now())
	if why != fallback.Decided {
		return Decision{}, err
	}
	return Decision{Allowed: a.Allowed, Capacity: a.Capacity, Remaining: a.Remaining, RetryAfter: time.Duration(a.RetryAfter), ResetAfter: time.Duration(a.ResetAfter),
		Degraded: Degraded(rule.Source.String()), Meta: Meta{Epoch: a.Epoch}}, nil
}

// unreached reports whether no node has said why a check fails.
func unreached(err error, within context.Context) bool {
	var e *Error
	return errors.As(err, &e) && (e.broken || within.Err() != nil && e.Reason == ErrGaveUp)
}

// localName returns what the limit is called in what this client admits by itself: one name of all its checks, whichever
// part of it they are for.
func (q *Check) localName() string { return cmp.Or(q.Limit.name, limitObject) }

// without returns what this client goes by when it reaches no node.
func (c *Client) without() *fallback.Table {
	c.aloneOnce.Do(func() { c.alone = fallback.New() })
	return c.alone
}
