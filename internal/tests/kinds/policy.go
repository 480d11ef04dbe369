package kinds

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Policy is a limit of a policy, of which the version is looked at and not the tokens. Workers
// apply new policies meanwhile.
var Policy = Kind{
	Name:  "policy",
	Of:    owner.KindLimit,
	Share: 1,
	Work:  policy,
	Probe: Probe{In: history.PolicyInput{}, Ask: func(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error) {
		req := &limitpb.CheckRequest{Key: key, Policy: policyName, Peek: true}
		r, err := limitpb.NewLimitServiceClient(conn).Check(ctx, req)
		if err != nil && reasonOf(err) == "POLICY_UNKNOWN" || len(status.Convert(err).Details()) > 0 && reasonOf(err) == "UNAVAILABLE" {
			// There are none yet, or not all nodes know them. What is asked for is whether the key is served.
			req.Policy, req.Name, req.Limit, req.PeriodNs = "", policyName, 1, int64(time.Second)
			r, err = limitpb.NewLimitServiceClient(conn).Check(ctx, req)
		}
		return Answer{policyOutput(r), r.GetOwner(), r.GetEpoch()}, err
	}},
	Model:    func(int64) history.Model { return history.Policy() },
	Workload: "check",
}

const (
	policyName = "p"
	// leastBurst is what a policy has at least: a check is never more than there can be.
	leastBurst = 1_000_000
	// applied is where a worker notes the latest version that it was told of.
	applied = "policies: applied"
)

func policyOutput(r *limitpb.CheckResponse) any {
	out := history.PolicyOutput{Version: r.GetPolicyVersion(), Replay: replayed(r.GetReplay())}
	if out.Version != 0 {
		out.Capacity = r.GetCapacity()
	}
	return out
}

// reasonOf returns what the error of a node says, "" if it is not a node's.
func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == "keystead" {
			return info.Reason
		}
	}
	return ""
}

// policy applies other policies, or checks a limit by those that there are: by none that are older
// than what the worker was told.
func policy(ctx context.Context, w *Worker, o Object) {
	if w.seen[applied] == 0 || w.rng.IntN(4) == 0 {
		w.apply(ctx)
	}
	if w.seen[applied] == 0 {
		return
	}
	out, _, ok := do(ctx, w, operation[*limitpb.CheckResponse]{object: o, in: history.PolicyInput{}, bare: true, late: true,
		call: func(ctx context.Context, conn *grpc.ClientConn, _ name, opt grpc.CallOption) (*limitpb.CheckResponse, error) {
			return limitpb.NewLimitServiceClient(conn).Check(ctx, &limitpb.CheckRequest{Key: o.Key, Policy: policyName, PolicyVersion: w.seen[applied]}, opt)
		},
		output: policyOutput,
	})
	if !ok {
		return
	}
	w.seen[applied] = max(w.seen[applied], out.GetPolicyVersion())
	if was := w.cfg.Recording.shown(policyName, out.GetPolicyVersion(), fmt.Sprint(out.GetCapacity())); was != "" {
		w.cfg.Log.Unexpected(fmt.Sprintf("version %d of the policies has the burst %d, and had %s", out.GetPolicyVersion(), out.GetCapacity(), was))
	}
}

// apply replaces the policies, if nobody else does meanwhile.
func (w *Worker) apply(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Attempt)
	defer cancel()
	c := adminpb.NewAdminServiceClient(w.conns[w.at])
	now, err := c.GetPolicies(ctx, &adminpb.GetPoliciesRequest{})
	if err != nil {
		w.moveOn()
		return
	}
	text := fmt.Sprintf("policies: {%s: {limit: 1000000/1h, burst: %d}}", policyName, leastBurst+w.rng.IntN(1000))
	r, err := c.ApplyPolicies(ctx, &adminpb.ApplyPoliciesRequest{Text: text, ExpectVersion: now.GetVersion()})
	switch {
	case err == nil:
		w.seen[applied] = max(w.seen[applied], r.GetVersion())
	case reasonOf(err) == "INVALID":
		w.cfg.Log.Unexpected(err.Error())
	default:
		w.moveOn()
	}
}
