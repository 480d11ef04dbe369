package client

import (
	"context"

	"google.golang.org/grpc"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
)

// Policy names a limit whose rate is that of a policy, which the cluster has agreed on: see
// Admin.ApplyPolicies. Its name is that of the policy. A check of one that is not there is
// ErrPolicyUnknown. It needs level 8 of the cluster. Anywhere does not go with it.
func (c *Client) Policy(policy string, opts ...LimitOption) Limit {
	l := c.Limit(policy, Rate{}, opts...)
	l.policy = policy
	return l
}

// Policies are what a node goes by.
type Policies struct {
	Text    string // YAML, as it was applied
	Version uint64 // 0 = there are none
	// Problem is why the node cannot go by them, "" if it can: a later program wrote them.
	Problem string
}

// Policies returns the policies in force.
func (a Admin) Policies(ctx context.Context) (Policies, error) {
	var r *adminpb.GetPoliciesResponse
	err := a.c.keyless(ctx, route{what: "policies"}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) (err error) {
		r, err = adminpb.NewAdminServiceClient(conn).GetPolicies(ctx, &adminpb.GetPoliciesRequest{}, opts...)
		return err
	})
	return Policies{Text: r.GetText(), Version: r.GetVersion(), Problem: r.GetProblem()}, err
}

// PolicyChange is what new policies change.
type PolicyChange struct {
	Version uint64   // of the new ones; that of before if nothing was applied
	Added   []string // names that were not there
	Changed []string // … whose limits are others
	Removed []string // … that are not there any more: their checks are ErrPolicyUnknown
}

// ApplyPolicies replaces the policies, all of them, by those of a YAML text, if they have
// the version expect, 0 = there are none. The same text again changes nothing. With dryRun it
// only says what would change. Errors: ErrInvalid, with all that is wrong and where,
// ErrPolicyConflict, ErrUnavailable, ErrOutcomeUnknown.
func (a Admin) ApplyPolicies(ctx context.Context, text string, expect uint64, dryRun bool) (PolicyChange, error) {
	var r *adminpb.ApplyPoliciesResponse
	err := a.c.keyless(ctx, route{what: "apply policies"}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) (err error) {
		r, err = adminpb.NewAdminServiceClient(conn).ApplyPolicies(ctx, &adminpb.ApplyPoliciesRequest{Text: text, ExpectVersion: expect, DryRun: dryRun}, opts...)
		return err
	})
	return PolicyChange{Version: r.GetVersion(), Added: r.GetAdded(), Changed: r.GetChanged(), Removed: r.GetRemoved()}, err
}
