package client

import (
	"cmp"
	"context"
	"iter"
	"time"

	"google.golang.org/grpc"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	grouppb "github.com/keystead/keystead/proto/keystead/group/v1"
)

// MaxMembers is the most members that a group has, and MaxMetadata the most bytes that each says of
// itself.
const (
	MaxMembers  = 500
	MaxMetadata = 1024
)

// Group is a named group that many keys have, each its own: its members, and how to reach them.
// It is a small value: making one costs nothing, and it may be copied and kept.
type Group struct {
	c       *Client
	name    string
	session *Session // that keeps memberships alive; nil = they are kept alive by themselves
}

// Group names a group, with at most 128 bytes. name "" = "group".
func (c *Client) Group(name string) Group { return Group{c: c, name: name} }

// Group is Client.Group for what this session keeps alive: Join takes no TTL and no Margin, which
// are the session's. A membership that is lost ends the session, and is not joined anew.
func (s *Session) Group(name string) Group { return Group{c: s.c, name: name, session: s} }

// GroupMember is a membership of a group.
type GroupMember struct {
	ID       string // as it named itself: see HeldBy
	Token    uint64 // fencing token of the membership: greater than those of all memberships before
	Metadata []byte // what it says of itself
	// Since it joined, and until it is gone without a renewal. Both are 0 in what Watch tells.
	Joined, TTL time.Duration
}

func wireMembers(all []*grouppb.Member) []GroupMember {
	members := make([]GroupMember, len(all))
	for i, m := range all {
		members[i] = GroupMember{m.Id, m.Token, m.Metadata, time.Duration(m.JoinedNs), time.Duration(m.TtlNs)}
	}
	return members
}

// Update replaces what others are told of the member under a token, such as another process of the
// same program is, and reports whether there is such a member. See Membership.Update.
func (g Group) Update(ctx context.Context, key string, token uint64, metadata []byte, opts ...CallOption) (bool, error) {
	idem, err := keyOf(opts)
	if err := cmp.Or(g.c.judge(ctx, key, g.name), err); err != nil {
		return false, about(err, updateGroup, key, "")
	}
	r, err := g.update(ctx, key, token, metadata, idem)
	return r.GetUpdated(), err
}

const updateGroup = "update group"

func (g Group) update(ctx context.Context, key string, token uint64, metadata []byte, idem string) (*grouppb.UpdateResponse, error) {
	op := g.c.ops.begin()
	defer op.finish()
	return ask(ctx, g.c, toKey(key, false).of(updateGroup), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*grouppb.UpdateResponse, error) {
		return grouppb.NewGroupServiceClient(conn).Update(ctx, &grouppb.UpdateRequest{Key: key, Name: g.name, Token: token, Metadata: metadata,
			RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
}

// Verify reports whether a token is that of a member: what a job asks that may have outlived its
// lease. It was so when the owner answered.
func (g Group) Verify(ctx context.Context, key string, token uint64) (bool, error) {
	const what = "verify group"
	if err := g.c.judge(ctx, key, g.name); err != nil {
		return false, about(err, what, key, "")
	}
	r, err := ask(ctx, g.c, toKey(key, true).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*grouppb.VerifyResponse, error) {
		return grouppb.NewGroupServiceClient(conn).Verify(ctx, &grouppb.VerifyRequest{Key: key, Name: g.name, Token: token}, opts...)
	})
	return r.GetMember(), err
}

// Remove ends the membership of a token, and reports whether it was in force. A member that lives
// learns of it at its next renewal, and joins again.
func (g Group) Remove(ctx context.Context, key string, token uint64, opts ...CallOption) (bool, error) {
	const what = "remove from group"
	idem, err := keyOf(opts)
	if err := cmp.Or(g.c.judge(ctx, key, g.name), err); err != nil {
		return false, about(err, what, key, "")
	}
	op := g.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, g.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*grouppb.LeaveResponse, error) {
		return grouppb.NewGroupServiceClient(conn).Leave(ctx, &grouppb.LeaveRequest{Key: key, Name: g.name, Token: token, RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
	return r.GetLeft(), err
}

// GroupState is a group as it is.
type GroupState struct {
	Members []GroupMember // in the order in which they have joined
	// Version rises whenever the members or their metadata change.
	Version uint64
	Meta
}

// Partial reports whether there may be more members: all nodes that kept the group were lost, and
// members may not have come back yet.
func (s *GroupState) Partial() bool { return s.LostEpoch != 0 }

// Members returns the members of the group of a key.
func (g Group) Members(ctx context.Context, key string) (GroupState, error) {
	const what = "list group"
	if err := g.c.judge(ctx, key, g.name); err != nil {
		return GroupState{}, about(err, what, key, "")
	}
	r, err := ask(ctx, g.c, toKey(key, true).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*grouppb.ListResponse, error) {
		return grouppb.NewGroupServiceClient(conn).List(ctx, &grouppb.ListRequest{Key: key, Name: g.name}, opts...)
	})
	if err != nil {
		return GroupState{}, err
	}
	return GroupState{wireMembers(r.Members), r.Version, metaOf(r, nil)}, nil
}

// WatchedGroup is a group as a watch sees it.
type WatchedGroup struct {
	GroupState
	// Stale reports that the state may not be the latest any more: nothing was heard for a
	// lease.
	Stale bool
}

// Watch follows the members of the group of a key until ctx ends or the caller stops: all members, and
// again whenever that or their metadata have changed. after, Stale, errors and what happens when
// nodes fail are as with Election.Observe. A state comes again, too, when it is not Partial any
// more.
func (g Group) Watch(ctx context.Context, key string, after uint64) iter.Seq2[WatchedGroup, error] {
	return func(yield func(WatchedGroup, error) bool) {
		w := watching[*grouppb.WatchResponse]{c: g.c, key: key, after: after, parts: true,
			exists: func(r *grouppb.WatchResponse) bool { return len(r.GetMembers()) > 0 },
			open: func(ctx context.Context, at *node, after uint64) (stream[*grouppb.WatchResponse], error) {
				return grouppb.NewGroupServiceClient(at.conn()).Watch(ctx, &grouppb.WatchRequest{Key: key, Name: g.name, AfterVersion: after})
			},
			yield: func(r, last *grouppb.WatchResponse, stale bool) bool {
				return yield(WatchedGroup{GroupState{wireMembers(r.Members), r.Version, metaOf(last, nil)}, stale}, nil)
			},
		}
		if err := w.watch(ctx, g.name, "watch group"); err != nil {
			yield(WatchedGroup{}, err)
		}
	}
}
