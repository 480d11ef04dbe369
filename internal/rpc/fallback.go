package rpc

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/fallback"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// hasty is the context of a check that has a fallback: it also ends a wait for copies.
type hasty struct{ context.Context }

// pressed returns a context for as long as the owner is asked before a rule goes, at least one of
// rules.
func (s *Server) pressed(ctx context.Context, rules ...*fallback.Rule) (context.Context, context.CancelFunc) {
	left := time.Duration(0)
	if end, has := ctx.Deadline(); has {
		left = max(time.Until(end), 1)
	}
	wait := rules[0].Wait(left)
	for _, r := range rules[1:] {
		wait = min(wait, r.Wait(left))
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	return hasty{ctx}, cancel
}

var fallbackSources = map[limitpb.FallbackSource]fallback.Source{
	limitpb.FallbackSource_FALLBACK_SOURCE_LOCAL_CAP:  fallback.LocalCap,
	limitpb.FallbackSource_FALLBACK_SOURCE_LAST_KNOWN: fallback.LastKnown,
}

var errFallback = failure.Invalidf("fallback.source", "is missing or unknown to this node: use LOCAL_CAP or LAST_KNOWN, or leave fallback out")

// ruleOf returns by what a check goes if its owner cannot be asked; nil = it fails.
func (s *Server) ruleOf(req *limitpb.CheckRequest) (*fallback.Rule, error) {
	f := req.Fallback
	switch {
	case f == nil && req.Policy != "":
		return s.ruleOfPolicy(req), nil
	case f == nil:
		return nil, nil
	case req.Policy != "":
		return nil, failure.Invalidf("fallback", "does not go with a policy, which says it itself: leave one of them out")
	case req.Anywhere && !req.Peek:
		return nil, failure.Invalidf("fallback", "does not go with anywhere: leave one of them out")
	}
	source, ok := fallbackSources[f.Source]
	if !ok {
		return nil, errFallback
	}
	r := &fallback.Rule{Source: source, Cap: f.Cap, Period: time.Duration(f.PeriodNs), KnownFor: time.Duration(f.KnownForNs), Budget: time.Duration(f.BudgetNs)}
	if source == fallback.LocalCap {
		r.Period = cmp.Or(r.Period, time.Duration(req.PeriodNs))
	} else if req.Algorithm == limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET {
		return nil, failure.Invalidf("fallback.source", "is LAST_KNOWN, which does not go with a leaky bucket: turns that a node gives by itself would be those of others")
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if forOwner(req) {
		return nil, nil
	}
	return r, nil
}

// forOwner reports whether only the owner can do what a check says: nothing is lost in an answer that is made up.
func forOwner(req *limitpb.CheckRequest) bool {
	//guard:overdraft-no-fallback req.Overdraft -> false
	return req.Refund != 0 || req.Overdraft
}

// ruleOfPolicy is ruleOf of a check that names a policy: that of the one which this node has. There
// is none of one that it does not know, or cannot read.
func (s *Server) ruleOfPolicy(req *limitpb.CheckRequest) *fallback.Rule {
	p := s.inForce().Load().Lookup(req.Policy)
	if p == nil || p.Fallback.Source == fallback.None || forOwner(req) {
		return nil
	}
	return &p.Fallback
}

// checkOr has the owner of the key decide, or a rule if it cannot be asked in time.
func (s *Server) checkOr(ctx context.Context, o *checkOp, req *limitpb.CheckRequest, rule *fallback.Rule) (*limitpb.CheckResponse, error) {
	asked := s.cfg.Clock.Now()
	//guard:fallback-budget s.pressed(ctx, rule) -> context.WithCancel(ctx)
	within, cancel := s.pressed(ctx, rule)
	defer cancel()
	r, err := s.checkAtOwner(within, o, req)
	if err == nil {
		s.learn(req, rule, r, asked)
		return r, nil
	}
	if ctx.Err() != nil {
		return nil, err // the caller has left, or has no time for any answer
	}
	a, instead := s.standIn(o, req, rule, reasonOf(err))
	if instead != nil {
		return nil, s.refuse(instead)
	}
	if a == nil {
		return nil, err
	}
	return a, nil
}

// reasonOf returns the reason in the status of an error.
func reasonOf(err error) commonpb.Reason {
	return commonpb.Reason(commonpb.Reason_value["REASON_"+reasonIn(err)])
}

// falls reports whether a check has a fallback.
func (s *Server) falls(req *limitpb.CheckRequest) bool {
	return req.Fallback != nil || req.Policy != "" && s.ruleOfPolicy(req) != nil
}

// checksOr is a batch of which some checks have a fallback: of these the one with the shortest
// budget says when all of them go by theirs. The others have as long as ever.
func (l *limits) checksOr(ctx context.Context, reqs []*limitpb.CheckRequest, put func(*limitpb.CheckResult, *limitpb.CheckResponse, *commonpb.Error)) ([]*limitpb.CheckResult, error) {
	s, asked := l.s, l.s.cfg.Clock.Now()
	if err := checkItems(len(reqs)); err != nil {
		return nil, s.refuse(err)
	}
	rules, some := make([]*fallback.Rule, len(reqs)), []*fallback.Rule(nil)
	for i, req := range reqs {
		if rules[i], _ = s.ruleOf(req); rules[i] != nil { // what is wrong is told of the check
			some = append(some, rules[i])
		}
	}
	if len(some) == 0 {
		return batch(ctx, s, limitCheck, reqs, l.bad, put)
	}
	within, cancel := s.pressed(ctx, some...)
	defer cancel()
	results := batchWithin(ctx, s, limitCheck, reqs, l.bad, func(i int) context.Context {
		if rules[i] == nil {
			return nil
		}
		return within
	}, put)
	for i, r := range results {
		switch {
		case rules[i] == nil || ctx.Err() != nil:
		case r.Error == nil:
			s.learn(reqs[i], rules[i], r.Response, asked)
		default:
			if a, instead := s.standIn(limitCheck, reqs[i], rules[i], r.Error.Reason); instead != nil {
				put(r, nil, wire(instead))
			} else if a != nil {
				put(r, a, nil)
			}
		}
	}
	return results, nil
}

// learn notes what the owner said, for when it does not.
func (s *Server) learn(req *limitpb.CheckRequest, rule *fallback.Rule, r *limitpb.CheckResponse, asked int64) {
	if rule.Source != fallback.LastKnown {
		return
	}
	s.without.Learn(req.Key, cmp.Or(req.Name, limitKind), fallback.Known{At: asked, Remaining: r.Remaining, Capacity: r.Capacity, Epoch: r.Epoch}, s.cfg.Clock.Now())
}

// degrades are the reasons for which a check goes by its fallback, and what metrics call them.
// With all others the owner has decided that it cannot be done, or somebody has to mend something.
var degrades = map[commonpb.Reason]string{
	commonpb.Reason_REASON_UNAVAILABLE:     "unavailable",
	commonpb.Reason_REASON_OUTCOME_UNKNOWN: "outcome_unknown",
	commonpb.Reason_REASON_RECOVERING:      "recovering",
	commonpb.Reason_REASON_OVERLOADED:      "overloaded",
	commonpb.Reason_REASON_GAVE_UP:         "budget",
}

// standIn decides a check that has ended for a reason, by its rule. It returns nil if the reason
// is none of those, and the error is for the caller, or instead another error.
func (s *Server) standIn(o *checkOp, req *limitpb.CheckRequest, rule *fallback.Rule, reason commonpb.Reason) (a *limitpb.CheckResponse, instead error) {
	//guard:fallback-reasons degrades[reason] -> "unavailable"
	why := degrades[reason]
	if why == "" || s.stopped.Load() || s.cfg.Cluster != nil && !s.cfg.Cluster.Table().Uses(checkLevel(req)) {
		return nil, nil
	}
	params, version, err := s.judge(o, req)
	if err != nil {
		return nil, err
	}
	d, not := s.without.Decide(req.Key, cmp.Or(req.Name, limitKind), rule, max(req.Cost, 1), req.Peek, s.cfg.Clock.Now())
	counts := &s.cfg.Metrics.degraded
	if not != fallback.Decided {
		counts.by(fallback.None, why)
		if reason != commonpb.Reason_REASON_GAVE_UP {
			return nil, nil
		}
		return nil, errNotInBudget // which says that the caller's deadline passed
	}
	counts.by(rule.Source, why)
	return &limitpb.CheckResponse{Allowed: d.Allowed, Capacity: d.Capacity, Limit: params.Limit, Remaining: d.Remaining, RetryAfterNs: d.RetryAfter, ResetAfterNs: d.ResetAfter,
		Epoch: d.Epoch, Owner: s.cfg.Node, PolicyVersion: version, Degraded: true, DegradedSource: limitpb.FallbackSource(rule.Source)}, nil
}

var errNotInBudget = &failure.Error{Reason: failure.Unavailable, RetryAfter: 200 * time.Millisecond,
	Message: "the owner of the key could not be asked within the budget, and the fallback of the check cannot decide it; nothing happened",
	Hint:    "try again: this node has to have had an answer of the owner lately (LAST_KNOWN), and room for the key"}

// judge reports what an owner would have refused, and returns the parameters of a check.
func (s *Server) judge(o *checkOp, req *limitpb.CheckRequest) (limit.Params, uint64, error) {
	op := limit.Op{Params: limit.Params{Limit: req.Limit, Period: req.PeriodNs, Burst: req.Burst}, Cost: max(req.Cost, 1), Peek: req.Peek, MaxDelay: req.MaxDelayNs}
	if err := owner.CheckAddress(req.Key, req.Name); err != nil {
		return op.Params, 0, err
	}
	if !req.Peek {
		if _, err := o.idOf(req, req.RequestId); err != nil {
			return op.Params, 0, err
		}
	}
	if req.Policy == "" {
		if err := refills(req, &op); err != nil {
			return op.Params, 0, err
		}
		return op.Params, 0, op.Validate()
	}
	now := s.inForce().Load()
	p := now.Lookup(req.Policy)
	if p == nil { // since it was looked up first
		return op.Params, 0, errNoPolicyNow
	}
	op.Params = p.Params
	return op.Params, now.Version, op.Validate()
}

var errNoPolicyNow = &failure.Error{Reason: failure.PolicyUnknown, Message: "the policy has been removed; nothing happened"}

// awaitWithin is awaitCopies that gives up when the context of a hasty check ends.
func (s *Server) awaitWithin(ctx hasty, hash uint64, read bool) error {
	c := s.cfg.Copies
	if c == nil || c.Replicated(hash) {
		return nil
	}
	for _, of := range c.Behind(hash) {
		if of != (table.Holder{}) && !c.AwaitOf(ctx, hash, of) {
			return s.untold(read)
		}
	}
	return nil
}

// degradedMetrics count checks that were to go by their fallbacks.
type degradedMetrics struct {
	of [fallback.LastKnown + 1]map[string]prometheus.Counter // by source, and reason
}

func newDegradedMetrics(reg prometheus.Registerer) (m degradedMetrics) {
	counts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keystead_degraded_checks_total",
		Help: "Checks of limits, and demands of admissions, whose owner could not be asked in time, by what decided instead (none: they failed) and why.",
	}, []string{"source", "reason"})
	reg.MustRegister(counts)
	for source, name := range []string{"none", "local_cap", "last_known"} {
		m.of[source] = map[string]prometheus.Counter{}
		for _, why := range degrades {
			m.of[source][why] = counts.WithLabelValues(name, why)
		}
	}
	return m
}

func (m *degradedMetrics) by(source fallback.Source, why string) { m.of[source][why].Inc() }
