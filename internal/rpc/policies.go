package rpc

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/internal/policy"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Policies are limits with names.
type Policies interface {
	// InForce are those that this node goes by.
	InForce() *policy.InForce
	// Set replaces those of a version, and returns when this node goes by the new ones, with
	// their version. Its errors are *failure.Error, of the reasons Invalid, PolicyConflict,
	// Unavailable and OutcomeUnknown.
	Set(ctx context.Context, text []byte, expect uint64) (*policy.Agreed, error)
}

// inForce returns the policies that this node goes by.
func (s *Server) inForce() *policy.InForce {
	if s.cfg.Policies == nil {
		return new(policy.InForce)
	}
	return s.cfg.Policies.InForce()
}

// byPolicy prepares a user's check of a limit that a policy has: the owner is to go by
// policies that are not older than this node's, so that a caller that was told by this node of
// new ones is not judged by those of before.
func (s *Server) byPolicy(req *limitpb.CheckRequest) error {
	if req.Policy == "" {
		if req.PolicyVersion != 0 {
			return failure.Invalidf("policy_version", "goes with a policy only")
		}
		return nil
	}
	bad := func(format string, args ...any) error { return failure.Invalidf("policy", format, args...) }
	switch {
	case !policy.ValidName(req.Policy):
		return bad("is %q; the name of a policy has 1 to %d letters, digits, '.', '_', '-' and '/'", req.Policy[:min(len(req.Policy), policy.MaxName)], policy.MaxName)
	case req.Limit != 0 || req.PeriodNs != 0 || req.Burst != 0 || req.Algorithm != limitpb.Algorithm_ALGORITHM_UNSPECIFIED:
		return bad("says limit, period_ns, burst and algorithm: leave them out, or leave it out")
	case req.Anywhere:
		return bad("does not go with anywhere: the owner decides")
	}
	if err := s.heardOf(req.PolicyVersion); err != nil {
		return err
	}
	req.PolicyVersion = s.inForce().Load().Version
	req.Name = cmp.Or(req.Name, req.Policy)
	return nil
}

// heardOf returns the error of a request that wants a version of the policies which this node does not
// know yet.
func (s *Server) heardOf(version uint64) error {
	if version <= s.inForce().Load().Version {
		return nil
	}
	return &failure.Error{Reason: failure.Unavailable, RetryAfter: policyLag,
		Message: "this node has not heard of that version of the policies yet; nothing happened", Hint: "try again; nodes hear of it within some 50 ms"}
}

// policyLag is about how much later than others a node hears of new policies.
const policyLag = 50 * time.Millisecond

// behind returns the error of a request for whose policies this node has to wait: as one that
// does not know yet that it owns the key, it is asked again in a moment.
func (s *Server) behind(version uint64) error {
	//guard:policy-behind
	if version > s.inForce().Load().Version {
		return forward.ErrNotOwner
	}
	return nil
}

// ApplyPolicies implements the AdminService.
func (a *admin) ApplyPolicies(ctx context.Context, req *adminpb.ApplyPoliciesRequest) (*adminpb.ApplyPoliciesResponse, error) {
	r, err := a.s.applyPolicies(ctx, req)
	if err != nil {
		return nil, a.s.refuse(err)
	}
	return r, nil
}

func (s *Server) applyPolicies(ctx context.Context, req *adminpb.ApplyPoliciesRequest) (*adminpb.ApplyPoliciesResponse, error) {
	set, err := policy.Parse("", []byte(req.Text))
	var problems policy.Problems
	switch {
	case errors.As(err, &problems):
		return nil, &failure.Error{Reason: failure.Invalid, Field: "text", Message: problems.Error()}
	case err != nil:
		return nil, err
	case s.cfg.Policies == nil:
		return nil, errNoPolicies
	}
	was := s.inForce().Load()
	c := was.Changes(set)
	r := &adminpb.ApplyPoliciesResponse{Version: was.Version, Added: c.Added, Changed: c.Changed, Removed: c.Removed}
	if req.DryRun {
		return r, nil
	}
	next, err := s.cfg.Policies.Set(ctx, []byte(req.Text), req.ExpectVersion)
	if err != nil {
		return nil, err
	}
	r.Version = next.Version
	return r, nil
}

var errNoPolicies = &failure.Error{Reason: failure.Unavailable, Message: "this node keeps no policies"}

// GetPolicies implements the AdminService.
func (a *admin) GetPolicies(context.Context, *adminpb.GetPoliciesRequest) (*adminpb.GetPoliciesResponse, error) {
	p := a.s.inForce().Load()
	r := &adminpb.GetPoliciesResponse{Text: string(p.Text), Version: p.Version}
	if p.Err != nil {
		r.Problem = p.Err.Error()
	}
	return r, nil
}
