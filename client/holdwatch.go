package client

import (
	"bytes"
	"context"
	"iter"
	"slices"

	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// WatchedLock is a lock as a watch sees it.
type WatchedLock struct {
	Holders []Holder // the first of them, the oldest first; how long they have and had it is unset
	Holding int      // how many there are in all
	Version uint64   // of a state to go on from; see Lock.Watch
	// Stale reports that the state may not be the latest any more: nothing was heard for a
	// lease.
	Stale bool
	Meta
}

// Unknown reports whether others may hold the lock, whose grants were lost with all nodes that kept
// them: "nobody holds it" is no answer then.
func (w *WatchedLock) Unknown() bool {
	return w.LostEpoch != 0 && (len(w.Holders) == 0 || w.Holders[0].Shared)
}

// Watch follows who holds the lock of a key until ctx ends or the caller stops: the state as it is,
// and each later one, the latest if several have come; that nobody holds it is one of them. after is
// the Version of the last state that the caller has from an earlier Watch, so that what is not newer
// is left out; 0 = it has none. Versions never fall, whatever becomes of nodes and connections.
//
// A state comes again with Stale set when no node says that it is the latest, and without when one
// does again; and when it is not Unknown any more. The holder by the latest state may have been
// replaced since: what the holder alone may do needs its token. The queue is not watched.
//
// It goes on by itself at other nodes. An error that this does not cure comes last, such as
// ErrInvalid or ErrKindMismatch; that ctx has ended is none.
func (l Lock) Watch(ctx context.Context, key string, after uint64) iter.Seq2[WatchedLock, error] {
	return func(yield func(WatchedLock, error) bool) {
		w := watching[*lockpb.WatchResponse]{c: l.c, key: key, after: after, parts: true,
			exists: func(r *lockpb.WatchResponse) bool { return r.GetHolding() != 0 },
			same: func(a, b *lockpb.WatchResponse) bool {
				return a.Holding == b.Holding && slices.EqualFunc(a.Holders, b.Holders, func(a, b *lockpb.Holder) bool {
					return a.Token == b.Token && a.Shared == b.Shared && bytes.Equal(a.Metadata, b.Metadata)
				})
			},
			open: func(ctx context.Context, at *node, after uint64) (stream[*lockpb.WatchResponse], error) {
				return lockpb.NewLockServiceClient(at.conn()).Watch(ctx, &lockpb.WatchRequest{Key: key, Name: l.name, AfterVersion: after})
			},
			yield: func(r, last *lockpb.WatchResponse, stale bool) bool {
				s := WatchedLock{Holding: int(r.Holding), Version: r.Version, Stale: stale, Meta: metaOf(last, nil)}
				for _, h := range r.Holders {
					s.Holders = append(s.Holders, *holderOf(h))
				}
				return yield(s, nil)
			},
		}
		if err := w.watch(ctx, l.name, "watch lock"); err != nil {
			yield(WatchedLock{}, err)
		}
	}
}

// WatchedSemaphore is a semaphore as a watch sees it.
type WatchedSemaphore struct {
	Capacity int            // 0 = nobody holds permits, and none was set
	Set      bool           // SetCapacity said so
	Held     int            // permits that are held
	Holders  []PermitHolder // the first of them, the oldest first; how long they have and had them is unset
	Holding  int            // how many there are in all
	Version  uint64         // of a state to go on from; see Semaphore.Watch
	// Stale reports that the state may not be the latest any more: nothing was heard for a
	// lease.
	Stale bool
	Meta
}

// Unknown reports whether others may hold permits, whose grants were lost with all nodes that kept
// them: Held is the least that is held then.
func (w *WatchedSemaphore) Unknown() bool { return w.LostEpoch != 0 }

// Watch follows who holds permits of a key, and a capacity that is set. All else is as with
// Lock.Watch.
func (s Semaphore) Watch(ctx context.Context, key string, after uint64) iter.Seq2[WatchedSemaphore, error] {
	return func(yield func(WatchedSemaphore, error) bool) {
		w := watching[*semaphorepb.WatchResponse]{c: s.c, key: key, after: after, parts: true,
			exists: func(r *semaphorepb.WatchResponse) bool { return r.GetCapacity() != 0 },
			same: func(a, b *semaphorepb.WatchResponse) bool {
				return a.Capacity == b.Capacity && a.CapacitySet == b.CapacitySet && a.Held == b.Held && a.Holding == b.Holding &&
					slices.EqualFunc(a.Holders, b.Holders, func(a, b *semaphorepb.Holder) bool {
						return a.Token == b.Token && a.Permits == b.Permits && bytes.Equal(a.Metadata, b.Metadata)
					})
			},
			open: func(ctx context.Context, at *node, after uint64) (stream[*semaphorepb.WatchResponse], error) {
				return semaphorepb.NewSemaphoreServiceClient(at.conn()).Watch(ctx, &semaphorepb.WatchRequest{Key: key, Name: s.name, AfterVersion: after})
			},
			yield: func(r, last *semaphorepb.WatchResponse, stale bool) bool {
				return yield(watchedPermits(r, last, stale), nil)
			},
		}
		if err := w.watch(ctx, s.name, "watch semaphore"); err != nil {
			yield(WatchedSemaphore{}, err)
		}
	}
}

func watchedPermits(r, last *semaphorepb.WatchResponse, stale bool) WatchedSemaphore {
	w := WatchedSemaphore{Capacity: int(r.Capacity), Set: r.CapacitySet, Held: int(r.Held), Holding: int(r.Holding), Version: r.Version, Stale: stale, Meta: metaOf(last, nil)}
	for _, h := range r.Holders {
		w.Holders = append(w.Holders, permitHolderOf(h))
	}
	return w
}
