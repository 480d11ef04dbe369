package client

import (
	"context"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/ring"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// Admin gives orders to the cluster.
type Admin struct{ c *Client }

// Admin returns what gives orders to the cluster.
func (c *Client) Admin() Admin { return Admin{c} }

// DrainOption says how to drain a node.
type DrainOption struct{ force bool }

// Force drains a node although fewer than a majority of the voters would be left that
// are not drained.
func Force() DrainOption { return DrainOption{force: true} }

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
// Cluster.Members for how far it is. It may be called again. Errors: ErrUnknownNode,
// ErrLastNode, ErrTooFewLeft, ErrUnavailable without a leader, ErrOutcomeUnknown.
func (a Admin) Drain(ctx context.Context, node string, opts ...DrainOption) (DrainState, error) {
	req := &adminpb.DrainRequest{Node: node}
	for _, o := range opts {
		req.Force = req.Force || o.force
	}
	var r *adminpb.DrainResponse
	err := a.c.keyless(ctx, route{what: "drain", key: node}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) (err error) {
		r, err = adminpb.NewAdminServiceClient(conn).Drain(ctx, req, opts...)
		return err
	})
	return drainState(r.GetState()), err
}

// Undrain takes a drain back: the node is given again what the ring gives it.
// Errors: as those of Drain that apply.
func (a Admin) Undrain(ctx context.Context, node string) (DrainState, error) {
	var r *adminpb.UndrainResponse
	err := a.c.keyless(ctx, route{what: "undrain", key: node}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) (err error) {
		r, err = adminpb.NewAdminServiceClient(conn).Undrain(ctx, &adminpb.UndrainRequest{Node: node}, opts...)
		return err
	})
	return drainState(r.GetState()), err
}

func drainState(s *adminpb.DrainState) DrainState {
	return DrainState{Node: s.GetNode(), Phase: word(s.GetPhase(), "PHASE_"), Rows: int(s.GetRowsOwned()), Standby: int(s.GetRowsStandby()),
		Already: s.GetAlready(), Epoch: s.GetEpoch()}
}

// Kind is what kind of object a key and a name hold.
type Kind uint8

// The kinds, in the numbers of the API.
const (
	KindLimit Kind = iota + 1
	KindCounter
	KindLock
	KindRegister
	KindSemaphore
	KindOnce
	KindElection
	KindBarrier
	KindGroup
	KindAdmission
)

var kinds = [...]string{KindLimit: limitObject, KindCounter: counterObject, KindLock: "lock", KindRegister: "register", KindSemaphore: "semaphore", KindOnce: "once", KindElection: "election", KindBarrier: "barrier", KindGroup: "group", KindAdmission: "admission"}

// String returns the kind as the commands write it: "limit", "counter", "lock",
// "register", "semaphore", "once", "election", "barrier", "group" or
// "admission".
func (k Kind) String() string {
	if k > 0 && int(k) < len(kinds) {
		return kinds[k]
	}
	return "unknown"
}

// Object names an object. Name "" is that of the kind.
type Object struct {
	Kind      Kind
	Key, Name string
}

// Split is how an object is split.
type Split struct {
	Owners []string // of the parts, in order; "" = none
	// Manual means that somebody asked for it, and that it stays until Merge. Else it is
	// merged when it is not hot any more.
	Manual bool
}

// Split divides a limit or a counter into parts, which several nodes serve, until Merge.
// It returns when the parts are served. parts is 2 to 64; 0 = one for each node on the
// ring. Errors: ErrInvalid for what cannot be split, ErrUnavailable, ErrOutcomeUnknown.
func (a Admin) Split(ctx context.Context, o Object, parts int) (Split, error) {
	if err := o.validate(); err != nil {
		return Split{}, about(err, "split", o.Key, "")
	}
	if parts != 0 && (parts < 2 || parts > ring.MaxParts) {
		return Split{}, about(invalid("parts", "are %d; choose 2 to %d, or 0 for one on each node", parts, ring.MaxParts), "split", o.Key, "")
	}
	var r *adminpb.SplitObjectResponse
	err := a.c.keyless(ctx, route{what: "split", key: o.Key}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) (err error) {
		r, err = adminpb.NewAdminServiceClient(conn).SplitObject(ctx, &adminpb.SplitObjectRequest{Kind: commonpb.Kind(o.Kind), Key: o.Key, Name: o.Name, Parts: uint32(parts)}, opts...)
		return err
	})
	s := Split{Manual: r.GetSplit().GetManual()}
	for _, p := range r.GetSplit().GetParts() {
		s.Owners = append(s.Owners, p.GetOwner())
	}
	return s, err
}

// Merge makes an object whole that is split. It returns when the whole object is served.
// Errors: ErrInvalid if it is not split, ErrUnavailable, ErrOutcomeUnknown.
func (a Admin) Merge(ctx context.Context, o Object) error {
	if err := o.validate(); err != nil {
		return about(err, "merge", o.Key, "")
	}
	return a.c.keyless(ctx, route{what: "merge", key: o.Key}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) error {
		_, err := adminpb.NewAdminServiceClient(conn).MergeObject(ctx, &adminpb.MergeObjectRequest{Kind: commonpb.Kind(o.Kind), Key: o.Key, Name: o.Name}, opts...)
		return err
	})
}

func (o *Object) validate() error {
	if o.Kind != KindLimit && o.Kind != KindCounter {
		return invalid("kind", "is %s; limits and counters can be split", o.Kind)
	}
	return address(o.Key, o.Name)
}
