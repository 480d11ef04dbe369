package client

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/ring"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// Member is what a node knows of another.
type Member struct {
	ID      string  // of the node
	Addr    string  // of its API, host:port; "" = not known
	HashKey string  // of its points on the ring
	Phase   string  // "joining", "active", "leaving", "drained", or "" if it is not in the table
	Gossip  string  // "alive", "failed", "leaving", "left", or "" if nothing is heard
	Raft    string  // "leader", "voter", "nonvoter", or "" if none
	Share   float64 // of the hash space that it owns, from 0 to 1
	Rows    int     // of the table that it owns
	Standby int     // rows that it stands by for
	Version string  // of its program
}

// Cluster reads what the nodes know of each other, and of who owns what.
type Cluster struct{ c *Client }

// Cluster returns what reads the state of the cluster.
func (c *Client) Cluster() Cluster { return Cluster{c} }

// Members lists the nodes as one of them knows them.
func (u Cluster) Members(ctx context.Context) ([]Member, error) {
	r, err := u.members(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Member, len(r.Members))
	for i, m := range r.Members {
		t := m.GetMember()
		out[i] = Member{ID: m.Id, Addr: t.GetGrpcAddr(), HashKey: t.GetHashKey(), Phase: word(t.GetPhase(), "PHASE_"),
			Gossip: word(m.Gossip, "GOSSIP_"), Raft: word(m.Raft, "RAFT_"), Share: m.OwnedShare, Rows: int(m.RowsOwned), Standby: int(m.RowsStandby), Version: t.GetVersion()}
	}
	return out, nil
}

func (u Cluster) members(ctx context.Context) (*clusterpb.ListMembersResponse, error) {
	return anywhere(ctx, u.c, "members", func(ctx context.Context, cs clusterpb.ClusterServiceClient, opts ...grpc.CallOption) (*clusterpb.ListMembersResponse, error) {
		return cs.ListMembers(ctx, &clusterpb.ListMembersRequest{}, opts...)
	})
}

// Status is what one node reports of itself and the cluster.
type Status struct {
	ID       string
	Cluster  string // "" for a node that runs alone
	Epoch    uint64
	Version  string
	Leader   string // raft leader's node; "" = it knows none
	Serving  bool   // it may act
	Changing bool   // a change of the ring runs
	Lease    time.Duration
	Uptime   time.Duration
	// Recovering is until when the node grants no locks of rows whose state was lost; 0 = it
	// has none.
	Recovering time.Duration
}

// Status asks some node.
func (u Cluster) Status(ctx context.Context) (Status, error) {
	r, err := anywhere(ctx, u.c, "status", func(ctx context.Context, cs clusterpb.ClusterServiceClient, opts ...grpc.CallOption) (*clusterpb.GetStatusResponse, error) {
		return cs.GetStatus(ctx, &clusterpb.GetStatusRequest{}, opts...)
	})
	if err != nil {
		return Status{}, err
	}
	return Status{ID: r.Id, Cluster: r.Cluster, Epoch: r.Epoch, Version: r.Version, Leader: r.Leader, Serving: r.Serving,
		Changing: r.Changing, Lease: time.Duration(r.LeaseLeftNs), Uptime: time.Duration(r.UptimeNs), Recovering: time.Duration(r.RecoveringNs)}, nil
}

// anywhere is a call without a key: of two nodes the less busy one gets it.
func anywhere[R any](ctx context.Context, c *Client, what string, f func(ctx context.Context, cs clusterpb.ClusterServiceClient, opts ...grpc.CallOption) (R, error)) (r R, err error) {
	err = c.keyless(ctx, route{reads: true, what: what}, func(ctx context.Context, conn grpc.ClientConnInterface, opts ...grpc.CallOption) (err error) {
		r, err = f(ctx, clusterpb.NewClusterServiceClient(conn), opts...)
		return err
	})
	return r, err
}

// Owner is the owner of a key by the client's table.
type Owner struct {
	Hash    uint64 // position of the key
	Node    string // "" = none
	Addr    string // of its API, host:port
	Standby string // node that has a copy; "" = none
	Epoch   uint64 // of the table
}

// Owner returns the owner of a key by the client's table, without a call. Parts of a
// split object have owners of their own.
func (u Cluster) Owner(key string) Owner {
	v, h := u.c.view.Load(), ring.Hash(key)
	o := Owner{Hash: h, Epoch: v.epoch}
	if m := v.owner(h); m != nil {
		o.Node, o.Addr = m.id, m.addr
	}
	if m := v.standby(h); m != nil {
		o.Standby = m.id
	}
	return o
}

// Share is a node's part of the hash space.
type Share struct {
	Node, Addr string
	Owned      float64 // from 0 to 1
}

// Ring returns each node's part of the hash space by the client's table, without a
// call.
func (u Cluster) Ring() []Share {
	v := u.c.view.Load()
	out := make([]Share, len(v.members))
	for i, m := range v.members {
		out[i] = Share{Node: m.id, Addr: m.addr}
	}
	n := len(v.rows)
	for i, r := range v.rows {
		width := 1.0
		if n > 1 {
			width = float64(v.ends[i]-v.ends[(i+n-1)%n]) / math.Exp2(64)
		}
		if r.owner != 0 {
			out[r.owner-1].Owned += width
		}
	}
	return out
}

// word returns what people call a value of an enum: without its prefix, in lower case; ""
// for the unspecified one.
func word(e fmt.Stringer, prefix string) string {
	w := strings.ToLower(strings.TrimPrefix(e.String(), prefix))
	if w == "unspecified" {
		return ""
	}
	return w
}
