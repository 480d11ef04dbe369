package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// Shared acquires the lock beside all others that share it: readers, of whom none is there with a
// writer. A writer that waits lets no later reader pass. It is an option of locks. A shared grant
// never becomes an exclusive one: two holders that both want that would wait for each other for
// ever; release it, and acquire the lock anew. See HeldLock.Downgrade for the other direction.
func Shared() LockOption {
	return lockOption(func(o *lockOptions) { o.shared = true })
}

// lockNow is what may have changed of a lock since it was granted.
type lockNow struct {
	metadata atomic.Pointer[[]byte]

	mu      sync.Mutex // guards what follows
	share   bool       // others may share it, for all that is known
	pending int        // Downgrades that are under way: it may be shared by them
	claimed bool       // it was claimed as shared meanwhile, so that it may be
}

func (n *lockNow) shared() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.share || n.pending > 0
}

// reclaim completes what the holder shows to get the lock back: it as it is now.
func (n *lockNow) reclaim(c *lockpb.Reclaim) {
	n.mu.Lock()
	c.Shared = n.share || n.pending > 0
	n.claimed = n.claimed || c.Shared
	n.mu.Unlock()
	if m := n.metadata.Load(); m != nil {
		c.Metadata = *m
	}
}

// downgrade has the lock count as shared while do asks for that, and afterwards unless it is
// certain that it is not: do reports that.
func (n *lockNow) downgrade(do func() (not bool)) {
	n.mu.Lock()
	n.claimed = n.claimed && n.pending > 0
	n.pending++
	n.mu.Unlock()
	not := do()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending--
	//guard:client-downgrade-not-done !not || n.claimed -> true || not
	if !not || n.claimed {
		n.share = true
	}
}

// becomeShared notes that the lock is shared.
func (n *lockNow) becomeShared() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.share = true
}

// unheeded returns the error of a grant that its owner has made without what was asked for,
// because it is of a version that does not know that; nil if it has looked at all.
func (o *lockOptions) unheeded(r *lockpb.AcquireResponse, key string) *Error {
	if o.turn != nil || o.other != nil { // of kinds that are as new as these options
		return nil
	}
	//guard:client-unheeded false
	if o.shared && !r.Shared || o.delay != 0 && r.DelayNs == 0 || o.session != nil && r.Session == nil {
		return &Error{Op: o.what(), Key: key, Node: r.GetOwner(), Code: codes.Unavailable, Reason: ErrUnavailable,
			Message: "the node does not know shared locks, their delays and sessions yet; nothing is held", Hint: "upgrade all nodes: `keystead status` shows their versions"}
	}
	return nil
}

// Shared reports whether others may share the lock: it was acquired so, or Downgrade was called.
func (l *HeldLock) Shared() bool { return l.now.shared() }

// Downgrade has others share the lock from now on, under the same token: those that are next in
// its queue and want to share it get it as well, and nobody has it alone in between. After an error
// Shared reports whether the lock may be shared all the same; if it may, call Downgrade again. The
// error is ErrLockLost if the lock is not held any more.
func (l *HeldLock) Downgrade(ctx context.Context) (err error) {
	const what = "downgrade lock"
	if err := l.c.callable(ctx); err != nil {
		return about(err, what, l.key, "")
	}
	l.now.downgrade(func() (not bool) { // before others may: what is lost meanwhile is claimed as shared
		var r *lockpb.DowngradeResponse
		r, err = ask(ctx, l.c, toKey(l.key, false).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*lockpb.DowngradeResponse, error) {
			return lockpb.NewLockServiceClient(conn).Downgrade(ctx, &lockpb.DowngradeRequest{Key: l.key, Name: l.name, Token: l.token}, opts...)
		})
		if err == nil && !r.Downgraded {
			err = l.over(what, r.Owner)
		}
		return err != nil && !errors.Is(err, ErrOutcomeUnknown)
	})
	return err
}

// Update replaces the metadata that others see. The error is ErrLockLost if the lock is not held
// any more.
func (l *HeldLock) Update(ctx context.Context, metadata []byte) error {
	const what = "update lock"
	if err := l.c.callable(ctx); err != nil {
		return about(err, what, l.key, "")
	}
	metadata = bytes.Clone(metadata) // they are shown again if the lock is lost
	op := l.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, l.c, toKey(l.key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*lockpb.UpdateResponse, error) {
		return lockpb.NewLockServiceClient(conn).Update(ctx, &lockpb.UpdateRequest{Key: l.key, Name: l.name, Token: l.token, Metadata: metadata, RequestId: id}, opts...)
	})
	switch {
	case err != nil:
		return err
	case !r.Updated:
		return l.over(what, r.Owner)
	}
	l.now.metadata.Store(&metadata)
	return nil
}

// Verify asks the owner whether the lock is held, for a job that may have outlived its lease. It
// was so when the owner answered; what is written after that needs the token all the same.
func (l *HeldLock) Verify(ctx context.Context) (bool, error) {
	return Lock{c: l.c, name: l.name}.Verify(ctx, l.key, l.token)
}

// over ends the context of a lock that is held no more, as its owner has said, and returns the
// error.
func (l *HeldLock) over(what, node string) error {
	e := l.lost("the lock is not held any more")
	l.finish(e)
	return about(l.lost("the lock is not held any more"), what, l.key, node)
}

// Verify reports whether a token still holds the lock of a key: see HeldLock.Verify.
func (l Lock) Verify(ctx context.Context, key string, token uint64) (bool, error) {
	const what = "verify lock"
	if err := l.c.judge(ctx, key, l.name); err != nil {
		return false, about(err, what, key, "")
	}
	r, err := ask(ctx, l.c, toKey(key, true).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*lockpb.VerifyResponse, error) {
		return lockpb.NewLockServiceClient(conn).Verify(ctx, &lockpb.VerifyRequest{Key: key, Name: l.name, Token: token}, opts...)
	})
	return r.GetHeld(), err
}

// Revoke ends another's grant, and reports whether it was in force. The Delay of its holder
// runs.
func (l Lock) Revoke(ctx context.Context, key string, token uint64, opts ...CallOption) (bool, error) {
	const what = "revoke lock"
	idem, err := keyOf(opts)
	if err := cmp.Or(l.c.judge(ctx, key, l.name), err); err != nil {
		return false, about(err, what, key, "")
	}
	op := l.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, l.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*lockpb.RevokeResponse, error) {
		return lockpb.NewLockServiceClient(conn).Revoke(ctx, &lockpb.RevokeRequest{Key: key, Name: l.name, Token: token, RequestId: unlessKeyed(id, idem), IdempotencyKey: idem}, opts...)
	})
	return r.GetRevoked(), err
}
