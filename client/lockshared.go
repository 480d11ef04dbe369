package client

import (
	"bytes"
	"cmp"
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

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
	shared   atomic.Bool
	metadata atomic.Pointer[[]byte]
}

// reclaim completes what the holder shows to get the lock back: it as it is now.
func (n *lockNow) reclaim(c *lockpb.Reclaim) {
	c.Shared = n.shared.Load()
	if m := n.metadata.Load(); m != nil {
		c.Metadata = *m
	}
}

// Shared reports whether others may share the lock: it was acquired so, or Downgrade was called.
func (l *HeldLock) Shared() bool { return l.now.shared.Load() }

// Downgrade has others share the lock from now on, under the same token: those that are next in
// its queue and want to share it get it as well, and nobody has it alone in between. If the error
// says that the outcome is unknown, take the lock to be shared, and call it again. The error is
// ErrLockLost if the lock is not held any more.
func (l *HeldLock) Downgrade(ctx context.Context) error {
	const what = "downgrade lock"
	if err := l.c.callable(ctx); err != nil {
		return about(err, what, l.key, "")
	}
	l.now.shared.Store(true) // before others may: what was lost is claimed as shared
	r, err := ask(ctx, l.c, toKey(l.key, false).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*lockpb.DowngradeResponse, error) {
		return lockpb.NewLockServiceClient(conn).Downgrade(ctx, &lockpb.DowngradeRequest{Key: l.key, Name: l.name, Token: l.token}, opts...)
	})
	if err == nil && !r.Downgraded {
		return l.over(what, r.Owner)
	}
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
	r, err := ask(ctx, l.c, toKey(l.key, false).of(what), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*lockpb.UpdateResponse, error) {
		return lockpb.NewLockServiceClient(conn).Update(ctx, &lockpb.UpdateRequest{Key: l.key, Name: l.name, Token: l.token, Metadata: metadata}, opts...)
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
