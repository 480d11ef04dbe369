package client

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
)

// KeyState is what there is of a key.
type KeyState struct {
	Owner     string // node that owns the key
	OwnerAddr string // where that listens; "" = it does not say
	Standby   string // node that owns it next
	Epoch     uint64 // ownership epoch under which the answer was given
	LostEpoch uint64 // see Meta
	// LostInPart says that what there was went on from a disk that may have lacked the last moments; else all of it was lost.
	LostInPart bool
	// Recovering is how long the grace period of that loss still lasts at most; 0 = it is over.
	Recovering time.Duration
	Objects    []ObjectState
	Truncated  bool // there are more
}

// ObjectState is an object with its state: one of Limit, Counter, Lock, Register, Semaphore, Once,
// Election, Barrier, Group and Admission is set, without the waiters, the value of a register and the result
// of Once.
type ObjectState struct {
	Object
	Idle     time.Duration // since its last change
	Limit    *LimitState
	Counter  *CounterState
	Lock     *LockState
	Register *RegisterObject
	// Semaphore is without its holders; what it calls Held includes what is delayed.
	Semaphore *SemaphoreState
	// Barrier is without its parties.
	Barrier   *BarrierState
	Once      *OnceObject
	Election  *ElectionState
	Group     *GroupObject
	Admission *AdmissionObject
	// Split is set if the object is split. The state is then that of before: see
	// Counter.Get and Limit.Peek.
	Split *Split
}

// LimitState is what is kept of a limit.
type LimitState struct {
	Rate       Rate          // as it was asked for last, without a burst or a calendar
	Calendar   string        // of a CalendarWindow, for people: its periods, such as "month Europe/Berlin from 1"
	Spent      uint64        // tokens that have not come back
	ResetAfter time.Duration // until they have
	Override   *Override     // nil = it has none
}

// AdmissionObject is what is kept of an admission, without its holds.
type AdmissionObject struct {
	Holds int // those that are over and remembered included
}

// GroupObject is what is kept of a group, without its members.
type GroupObject struct {
	Members int
}

// CounterState is what is kept of a counter.
type CounterState struct {
	Value   int64
	Version uint64
	IdleTTL time.Duration // 0 = it is never forgotten
}

// RegisterObject is what is kept of a register, without its value.
type RegisterObject struct {
	Exists  bool // if not, its fence is kept
	Size    int  // bytes of its value
	Version uint64
	Fence   uint64 // see RegisterState
}

// OnceObject is what is kept of work that is done once, without its result.
type OnceObject struct {
	Done    bool
	Size    int // bytes of its result
	Token   uint64
	Attempt int
	Holder  string        // whose turn it is
	TTL     time.Duration // of the lease, or until the result is forgotten
}

// InspectKey returns all objects of a key, at most 1,000. It changes nothing.
func (a Admin) InspectKey(ctx context.Context, key string) (KeyState, error) {
	if err := address(key, ""); err != nil {
		return KeyState{}, about(err, "inspect key", key, "")
	}
	var r *adminpb.InspectKeyResponse
	err := a.c.keyless(ctx, route{what: "inspect key", key: key, reads: true}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) (err error) {
		r, err = adminpb.NewAdminServiceClient(conn).InspectKey(ctx, &adminpb.InspectKeyRequest{Key: key}, opts...)
		return err
	})
	if err != nil {
		return KeyState{}, err
	}
	k := KeyState{Owner: r.GetOwner().GetOwner(), OwnerAddr: r.GetOwner().GetOwnerAddr(), Standby: r.GetOwner().GetStandby(),
		Epoch: r.Epoch, LostEpoch: r.LostEpoch, LostInPart: r.LostInPart, Recovering: time.Duration(r.RecoveringNs), Truncated: r.Truncated}
	for _, o := range r.Objects {
		k.Objects = append(k.Objects, objectState(key, o))
	}
	return k, nil
}

func objectState(key string, o *adminpb.ObjectState) ObjectState {
	s := ObjectState{Object: Object{Kind: Kind(o.Kind), Key: key, Name: o.Name}, Idle: time.Duration(o.IdleNs)}
	if x := o.Limit; x != nil {
		s.Limit = &LimitState{Rate: Per(x.Limit, time.Duration(x.PeriodNs)), Calendar: x.Calendar, Spent: x.Spent, ResetAfter: time.Duration(x.ResetAfterNs)}
		s.Limit.Rate.Algorithm = Algorithm(len(algorithms)) // unknown, unless it is one of these
		for a, as := range algorithms {
			if as.wire == x.Algorithm {
				s.Limit.Rate.Algorithm = Algorithm(a)
			}
		}
		s.Limit.Override = overrideOf(x.Override)
	}
	if x := o.Counter; x != nil {
		s.Counter = &CounterState{Value: x.Value, Version: x.Version, IdleTTL: time.Duration(x.IdleTtlNs)}
	}
	if x := o.Lock; x != nil {
		s.Lock = &LockState{Holder: holderOf(x.Holder), Waiting: int(x.Waiting)}
	}
	if x := o.Register; x != nil {
		s.Register = &RegisterObject{Exists: x.Exists, Size: int(x.Size), Version: x.Version, Fence: x.Fence}
	}
	if x := o.Semaphore; x != nil {
		s.Semaphore = &SemaphoreState{Capacity: int(x.Capacity), Set: x.CapacitySet, Held: int(x.Held), Waiting: int(x.Waiting)}
	}
	if x := o.Once; x != nil {
		s.Once = &OnceObject{Done: x.Phase == oncepb.Phase_PHASE_DONE, Size: int(x.Size), Token: x.Token, Attempt: int(x.Attempt), Holder: x.Holder, TTL: time.Duration(x.TtlNs)}
	}
	if x := o.Election; x != nil {
		s.Election = &ElectionState{Leader: wireLeader(x.Leader), Waiting: int(x.Waiting)}
	}
	if x := o.Barrier; x != nil {
		s.Barrier = &BarrierState{Phase: x.Phase, Arrived: int(x.Arrived), Parties: int(x.Parties), Phaser: x.Phaser}
	}
	if x := o.Group; x != nil {
		s.Group = &GroupObject{Members: int(x.Members)}
	}
	if x := o.Admission; x != nil {
		s.Admission = &AdmissionObject{Holds: int(x.Holds)}
	}
	if x := o.Split; x != nil {
		s.Split = &Split{Manual: x.GetManual()}
		for _, p := range x.GetParts() {
			s.Split.Owners = append(s.Split.Owners, p.GetOwner())
		}
	}
	return s
}

// Filter says which objects to list. The zero Filter is for all.
type Filter struct {
	Node   string // of which node; "" = of all members
	Kind   Kind   // 0 = of all kinds
	Name   string // "" = of all names
	Prefix string // of keys that begin so
	// Overridden is for limits that have an override alone.
	Overridden bool
}

// listPage is how many objects are asked for at a time.
const listPage = 1000

// ListObjects tells each of the objects that match, with the node that owns it, until each
// returns false. One that is there all the time is told once, but for those whose keys go
// from one node to another meanwhile: moved reports that some did, so that objects may be
// missing, or have been told twice.
func (a Admin) ListObjects(ctx context.Context, f Filter, each func(node string, o Object) bool) (moved bool, err error) {
	nodes, since := []string{f.Node}, uint64(0)
	if f.Node == "" {
		r, err := a.c.Cluster().members(ctx)
		if err != nil {
			return false, err
		}
		nodes, since = nodes[:0], r.Epoch
		for _, m := range r.Members {
			if m.GetMember().GetPhase() != 0 { // else it only gossips
				nodes = append(nodes, m.Id)
			}
		}
	}
	for _, node := range nodes {
		// All nodes tell of moves since the members were listed: what a node that was listed
		// has got from one that was not is missing.
		//guard:list-of-all since -> since&0
		req := &adminpb.ListObjectsRequest{Node: node, Kind: commonpb.Kind(f.Kind), Name: f.Name, KeyPrefix: f.Prefix, PageSize: listPage, SinceEpoch: since, Overridden: f.Overridden}
		for more := true; more; more = req.PageToken != "" {
			r, err := a.page(ctx, req)
			if err != nil {
				return moved, err
			}
			moved = moved || r.Moved
			for _, o := range r.Objects {
				if !each(r.Node, Object{Kind: Kind(o.Kind), Key: o.Key, Name: o.Name}) {
					return moved, nil
				}
			}
			req.PageToken = r.NextPageToken
		}
	}
	return moved, nil
}

func (a Admin) page(ctx context.Context, req *adminpb.ListObjectsRequest) (r *adminpb.ListObjectsResponse, err error) {
	err = a.c.keyless(ctx, route{what: "list objects of " + req.Node, reads: true}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) (err error) {
		r, err = adminpb.NewAdminServiceClient(conn).ListObjects(ctx, req, opts...)
		return err
	})
	return r, err
}

// ResetObject sets back a limit or a counter of anybody: nothing of the limit is spent, the
// counter is 0. It reports whether there was something to set back.
func (a Admin) ResetObject(ctx context.Context, o Object, opts ...CallOption) (existed bool, err error) {
	idem, err := keyOf(opts)
	if err := cmp.Or(a.c.callable(ctx), o.validate(), err); err != nil {
		return false, about(err, "reset object", o.Key, "")
	}
	op := a.c.ops.begin().under(idem)
	defer op.finish()
	err = a.c.keyless(ctx, route{what: "reset object", key: o.Key, op: op}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) error {
		r, err := adminpb.NewAdminServiceClient(conn).ResetObject(ctx, &adminpb.ResetObjectRequest{Kind: commonpb.Kind(o.Kind), Key: o.Key, Name: o.Name,
			RequestId: unlessKeyed(op.stamp(), idem), IdempotencyKey: idem}, opts...)
		existed = r.GetExisted()
		return err
	})
	return existed, err
}
