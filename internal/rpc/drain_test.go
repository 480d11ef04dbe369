package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/keystead/keystead/proto/keystead/v1"
)

func TestDrainCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t, "n1", "n2", "n3")
		_, c := clusterOf(t, Config{Cluster: b})
		ctx := bound(t)
		epoch := b.Table().Epoch
		state := &pb.DrainState{Node: "n2", Incarnation: 1, Phase: pb.Phase_PHASE_LEAVING, RowsOwned: 256, Epoch: epoch + 1}
		same(t, must(c.Drain(ctx, &pb.DrainRequest{Node: "n2"}))(t), &pb.DrainResponse{State: state})
		state.Already = true
		same(t, must(c.Drain(ctx, &pb.DrainRequest{Node: "n2"}))(t), &pb.DrainResponse{State: state})

		for _, x := range []struct {
			what string
			req  *pb.DrainRequest
			want refusal
		}{
			{what: "nobody", req: &pb.DrainRequest{}, want: badField("node")},
			{what: "unknown", req: &pb.DrainRequest{Node: "n9"}, want: refusal{code: codes.NotFound, why: pb.Reason_REASON_UNKNOWN_NODE, hint: true}},
			{what: "too few", req: &pb.DrainRequest{Node: "n3"}, want: refusal{code: codes.FailedPrecondition, why: pb.Reason_REASON_TOO_FEW_LEFT, hint: true}},
			{what: "forced", req: &pb.DrainRequest{Node: "n3", Force: true}},
			{what: "the last", req: &pb.DrainRequest{Node: "n1", Force: true}, want: refusal{code: codes.FailedPrecondition, why: pb.Reason_REASON_LAST_NODE, hint: true}},
		} {
			_, err := c.Drain(ctx, x.req)
			if x.want == (refusal{}) && err == nil {
				continue
			}
			x.want.check(in(t, x.what), err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Drain(short, &pb.DrainRequest{Node: "slow"})
		if err == nil {
			t.Error("a call that was given up has an answer")
		}

		state = &pb.DrainState{Node: "n2", Incarnation: 1, Phase: pb.Phase_PHASE_ACTIVE, RowsOwned: 256, Epoch: b.Table().Epoch + 1}
		same(t, must(c.Undrain(ctx, &pb.UndrainRequest{Node: "n2"}))(t), &pb.UndrainResponse{State: state})
		state.Already = true
		same(t, must(c.Undrain(ctx, &pb.UndrainRequest{Node: "n2"}))(t), &pb.UndrainResponse{State: state})
		_, err = c.Undrain(ctx, &pb.UndrainRequest{})
		badField("node").check(in(t, "undrain nobody"), err)
		for _, m := range must(c.ListMembers(ctx, &pb.ListMembersRequest{}))(t).Members {
			if m.RowsOwned != 256 {
				t.Errorf("%v", m)
			}
		}
	})
}

// A node that runs alone has nobody to give anything to.
func TestDrainOfALoneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := clusterOf(t, Config{Node: "n1"})
		_, err := c.Drain(bound(t), &pb.DrainRequest{Node: "n1", Force: true})
		refusal{code: codes.FailedPrecondition, why: pb.Reason_REASON_LAST_NODE, hint: true}.check(t, err)
		_, err = c.Undrain(bound(t), &pb.UndrainRequest{Node: "n2"})
		refusal{code: codes.NotFound, why: pb.Reason_REASON_UNKNOWN_NODE, hint: true}.check(t, err)
		if s := must(c.Undrain(bound(t), &pb.UndrainRequest{Node: "n1"}))(t).State; !s.Already || s.Phase != pb.Phase_PHASE_ACTIVE {
			t.Errorf("%v", s)
		}
	})
}
