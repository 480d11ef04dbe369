package rpc

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/forward"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// An error of another node is one, whatever it lacks.
func TestStatusOfBareErrors(t *testing.T) {
	for _, w := range []*commonpb.Error{{}, {Message: "something"}, {Reason: 99}, {Reason: commonpb.Reason_REASON_UNAVAILABLE}} {
		if st := status.Convert(Status(&forward.Remote{Wire: w})); st.Code() != codes.Unknown || st.Message() == "" || w.Message != "" && st.Message() != w.Message {
			t.Errorf("%v: %v", w, st)
		}
	}
}

// A node answers with an error that has no code: the caller gets one, alone and in a batch, and
// this node goes on. (It fails by ending the process of the test.)
func TestErrorWithoutACode(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		key := g.key("n2")
		bare := *g.nodes["n2"].server.sent[opAdd]
		bare.decide = func(context.Context, *Server, *forward.Call, *unconfirmed) (forward.Message, error) {
			return nil, &forward.Remote{Wire: &commonpb.Error{}}
		}
		g.nodes["n2"].server.sent[opAdd] = &bare
		if r, err := g.nodes["n1"].counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1}); status.Code(err) != codes.Unknown {
			t.Errorf("%v, %v", r, err)
		}
		r := must(g.nodes["n1"].counters.BatchAdd(bound(t), &counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{{Key: key, Delta: 1}}}))(t)
		if e := r.Results[0].Error; e.GetCode() != int32(codes.Unknown) || e.GetMessage() == "" || r.Results[0].Response != nil {
			t.Errorf("in a batch: %v", r)
		}
	})
}
