package rpc

import (
	"context"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/fallback"
	"github.com/keystead/keystead/internal/policy"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// admitOr has the owner of the key decide what a policy demands, or the fallbacks of all demands if it cannot be asked in
// time.
func (s *Server) admitOr(ctx context.Context, o *admitOp, q *admissionpb.AdmitRequest, x *policy.Selected) (*admissionpb.AdmitResponse, error) {
	asked := s.cfg.Clock.Now()
	rules := make([]*fallback.Rule, len(x.Demands))
	for i := range x.Demands {
		rules[i] = &x.Demands[i].Limit.Fallback
	}
	//guard:admission-fallback-budget s.pressed(ctx, rules...) -> context.WithCancel(ctx)
	within, cancel := s.pressed(ctx, rules...)
	defer cancel()
	r, err := o.atOwner(within, s, q)
	switch {
	case err == nil:
		s.learnDemands(q, x, r, asked)
		return r, nil
	case ctx.Err() != nil:
		return nil, err // the caller has left, or has no time for any answer
	}
	a, instead := s.admitAlone(o, q, x, reasonOf(err))
	if instead != nil {
		return nil, s.refuse(instead)
	}
	if a == nil {
		return nil, err
	}
	return a, nil
}

// learnDemands notes what the owner said of what is left. It may have gone by later policies, which demand something else.
func (s *Server) learnDemands(q *admissionpb.AdmitRequest, x *policy.Selected, r *admissionpb.AdmitResponse, asked int64) {
	now := s.cfg.Clock.Now()
	for i := range x.Demands {
		d := &x.Demands[i]
		if d.Limit.Fallback.Source != fallback.LastKnown {
			continue
		}
		for _, y := range r.Demands {
			if y.Name == d.Name {
				s.without.Learn(q.Key, d.Name, fallback.Known{At: asked, Remaining: y.Remaining, Capacity: y.Capacity, Epoch: r.Epoch}, now)
			}
		}
	}
}

// admitAlone decides an admission that has ended for a reason, by the fallbacks of its demands. It returns nil if the
// reason is none of those, and the error is for the caller, or instead another error.
func (s *Server) admitAlone(o *admitOp, q *admissionpb.AdmitRequest, x *policy.Selected, reason commonpb.Reason) (a *admissionpb.AdmitResponse, instead error) {
	//guard:admission-fallback-reasons degrades[reason] -> "unavailable"
	why := degrades[reason]
	if why == "" || s.stopped.Load() {
		return nil, nil
	}
	parts, err := s.judgeAdmit(o, q, x)
	if err != nil {
		return nil, err
	}
	answers, not := s.without.DecideAll(q.Key, parts, q.Peek, s.cfg.Clock.Now())
	counts := &s.cfg.Metrics.degraded
	if not != fallback.Decided {
		counts.by(fallback.None, why)
		if reason != commonpb.Reason_REASON_GAVE_UP {
			return nil, nil
		}
		return nil, errAdmitNotInBudget // which says that the caller's deadline passed
	}
	a = &admissionpb.AdmitResponse{Admitted: true, Key: q.Key, PolicyVersion: q.PolicyVersion, Owner: s.cfg.Node, Epoch: answers[0].Epoch, Degraded: true}
	for i := range answers {
		d, rule := &answers[i], parts[i].Rule
		counts.by(rule.Source, why)
		a.Admitted = a.Admitted && d.Allowed
		a.RetryAfterNs, a.Epoch = max(a.RetryAfterNs, d.RetryAfter), min(a.Epoch, d.Epoch)
		a.Demands = append(a.Demands, &admissionpb.DemandResult{Name: parts[i].Name, Refused: !d.Allowed, Reserved: parts[i].Cost, Capacity: d.Capacity, Remaining: d.Remaining,
			RetryAfterNs: d.RetryAfter, ResetAfterNs: d.ResetAfter, DegradedSource: limitpb.FallbackSource(rule.Source)})
	}
	return a, nil
}

// judgeAdmit reports what an owner would have refused, and returns what has to be decided.
func (s *Server) judgeAdmit(o *admitOp, q *admissionpb.AdmitRequest, x *policy.Selected) ([]fallback.Part, error) {
	ref := o.place(q, 0)
	if err := owner.CheckAddress(q.Key, q.Name); err != nil {
		return nil, err
	}
	op, err := admitOf(q)
	if err != nil {
		return nil, err
	}
	for i := range x.Demands {
		op.Demands = append(op.Demands, demandBy(&x.Demands[i]))
	}
	f, err := o.frame(context.Background(), q, 0, 0)
	if err != nil {
		return nil, err
	}
	if err := op.Judge(ref, f.id); err != nil {
		return nil, err
	}
	parts := make([]fallback.Part, len(x.Demands))
	for i := range parts {
		d, rule := &op.Demands[i], x.Demands[i].Limit.Fallback
		parts[i] = fallback.Part{Name: d.Name, Rule: &rule, Cost: d.Cost}
		if d.Clamp != 0 {
			parts[i].Cost = d.Clamped(most(&d.Params))
		}
	}
	return parts, nil
}

// most returns the most that there is of a limit at some time in any case.
func most(p *limit.Params) uint64 {
	if p.Algorithm == limit.CalendarWindow { // not what may be carried over
		return p.Limit
	}
	return p.Capacity()
}

var errAdmitNotInBudget = &failure.Error{Reason: failure.Unavailable, RetryAfter: 200 * time.Millisecond,
	Message: "the owner of the key could not be asked within the budget, and the fallbacks of what is demanded cannot decide it; nothing happened",
	Hint:    "try again: this node has to have had an answer of the owner lately (last-known) about each of these demands, and room for them"}
