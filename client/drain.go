package client

import (
	"context"

	"google.golang.org/grpc"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
)

// DrainOptions say how to drain a node.
type DrainOptions struct {
	// Force drains it although fewer than a majority of the voters would be left
	// that are not drained.
	Force bool
}

// DrainState is what a node has left to give away.
type DrainState struct {
	Node    string
	Phase   string // "leaving", "drained"; after Undrain "joining" or "active"
	Rows    int    // that it owns
	Standby int    // rows that it stands by for
	Already bool   // the call changed nothing
	Epoch   uint64 // of the table that says so
}

// Drain has a node give away all that it owns and stands by for, and be given
// nothing more until Undrain or its restart. It returns when that is agreed on; see
// Members for how far it is. It may be called again. Errors: ErrUnknownNode,
// ErrLastNode, ErrTooFewLeft, ErrUnavailable without a leader, ErrOutcomeUnknown.
func (c *Client) Drain(ctx context.Context, node string, o DrainOptions) (DrainState, error) {
	var r *adminpb.DrainResponse
	err := c.keyless(ctx, route{what: "drain of " + node}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) (err error) {
		r, err = adminpb.NewAdminServiceClient(conn).Drain(ctx, &adminpb.DrainRequest{Node: node, Force: o.Force}, opts...)
		return err
	})
	return drainState(r.GetState()), err
}

// Undrain takes a drain back: the node is given again what the ring gives it.
// Errors: as those of Drain that apply.
func (c *Client) Undrain(ctx context.Context, node string) (DrainState, error) {
	var r *adminpb.UndrainResponse
	err := c.keyless(ctx, route{what: "undrain of " + node}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) (err error) {
		r, err = adminpb.NewAdminServiceClient(conn).Undrain(ctx, &adminpb.UndrainRequest{Node: node}, opts...)
		return err
	})
	return drainState(r.GetState()), err
}

func drainState(s *adminpb.DrainState) DrainState {
	return DrainState{Node: s.GetNode(), Phase: phases[s.GetPhase()], Rows: int(s.GetRowsOwned()), Standby: int(s.GetRowsStandby()),
		Already: s.GetAlready(), Epoch: s.GetEpoch()}
}
