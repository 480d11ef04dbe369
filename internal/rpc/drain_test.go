package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

func TestDrainCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t, "n1", "n2", "n3")
		h, cluster := clusterOf(t, Config{Cluster: b})
		c := adminpb.NewAdminServiceClient(h.conn)
		ctx := bound(t)
		epoch := b.Table().Epoch
		state := &adminpb.DrainState{Node: "n2", Incarnation: 1, Phase: clusterpb.Phase_PHASE_LEAVING, RowsOwned: 256, Epoch: epoch + 1}
		same(t, must(c.Drain(ctx, &adminpb.DrainRequest{Node: "n2"}))(t), &adminpb.DrainResponse{State: state})
		state.Already = true
		same(t, must(c.Drain(ctx, &adminpb.DrainRequest{Node: "n2"}))(t), &adminpb.DrainResponse{State: state})

		for _, x := range []struct {
			what string
			req  *adminpb.DrainRequest
			want refusal
		}{
			{what: "nobody", req: &adminpb.DrainRequest{}, want: badField("node")},
			{what: "unknown", req: &adminpb.DrainRequest{Node: "n9"}, want: refusal{code: codes.NotFound, why: commonpb.Reason_REASON_UNKNOWN_NODE, hint: true}},
			{what: "too few", req: &adminpb.DrainRequest{Node: "n3"}, want: refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_TOO_FEW_LEFT, hint: true}},
			{what: "forced", req: &adminpb.DrainRequest{Node: "n3", Force: true}},
			{what: "the last", req: &adminpb.DrainRequest{Node: "n1", Force: true}, want: refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_LAST_NODE, hint: true}},
		} {
			_, err := c.Drain(ctx, x.req)
			if x.want == (refusal{}) && err == nil {
				continue
			}
			x.want.check(in(t, x.what), err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Drain(short, &adminpb.DrainRequest{Node: "slow"})
		if err == nil {
			t.Error("a call that was given up has an answer")
		}

		state = &adminpb.DrainState{Node: "n2", Incarnation: 1, Phase: clusterpb.Phase_PHASE_ACTIVE, RowsOwned: 256, Epoch: b.Table().Epoch + 1}
		same(t, must(c.Undrain(ctx, &adminpb.UndrainRequest{Node: "n2"}))(t), &adminpb.UndrainResponse{State: state})
		state.Already = true
		same(t, must(c.Undrain(ctx, &adminpb.UndrainRequest{Node: "n2"}))(t), &adminpb.UndrainResponse{State: state})
		_, err = c.Undrain(ctx, &adminpb.UndrainRequest{})
		badField("node").check(in(t, "undrain nobody"), err)
		for _, m := range must(cluster.ListMembers(ctx, &clusterpb.ListMembersRequest{}))(t).Members {
			if m.RowsOwned != 256 {
				t.Errorf("%v", m)
			}
		}
	})
}

// A node that runs alone has nobody to give anything to.
func TestDrainOfALoneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := clusterOf(t, Config{Node: "n1"})
		c := adminpb.NewAdminServiceClient(h.conn)
		_, err := c.Drain(bound(t), &adminpb.DrainRequest{Node: "n1", Force: true})
		refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_LAST_NODE, hint: true}.check(t, err)
		_, err = c.Undrain(bound(t), &adminpb.UndrainRequest{Node: "n2"})
		refusal{code: codes.NotFound, why: commonpb.Reason_REASON_UNKNOWN_NODE, hint: true}.check(t, err)
		if s := must(c.Undrain(bound(t), &adminpb.UndrainRequest{Node: "n1"}))(t).State; !s.Already || s.Phase != clusterpb.Phase_PHASE_ACTIVE {
			t.Errorf("%v", s)
		}
	})
}
