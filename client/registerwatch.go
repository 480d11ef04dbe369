package client

import (
	"context"
	"iter"

	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// Watched is a register as a watch sees it.
type Watched struct {
	// RegisterState is the latest state. Its Version is that of a state to go on from, also if
	// the register does not exist; see Register.Watch.
	RegisterState
	// Stale reports that the state may not be the latest any more: nothing was heard for a
	// lease.
	Stale bool
}

// Watch follows the key's register until ctx ends or the caller stops: the state as it is, and
// each later one, the latest if several have come. after is the Version of the last state that
// the caller has from an earlier watch, so that what is not newer is left out; 0 = it has
// none. Versions never fall, whatever becomes of nodes and connections.
//
// A state comes again with Stale set when no node says that it is the latest, and without when
// one does again. After a loss of the key's state, a state that does not exist is
// Unknown until the grace period is over.
//
// It goes on by itself at other nodes. An error that this does not cure comes last, such as
// ErrInvalid or ErrKindMismatch; that ctx has ended is none.
func (n Register) Watch(ctx context.Context, key string, after uint64) iter.Seq2[Watched, error] {
	return func(yield func(Watched, error) bool) {
		w := watching[*registerpb.WatchResponse]{c: n.c, key: key, after: after, exists: (*registerpb.WatchResponse).GetExists,
			open: func(ctx context.Context, at *node, after uint64) (stream[*registerpb.WatchResponse], error) {
				return registerpb.NewRegisterServiceClient(at.conn()).Watch(ctx, &registerpb.WatchRequest{Key: key, Name: n.name, AfterVersion: after})
			},
			yield: func(r, last *registerpb.WatchResponse, stale bool) bool {
				return yield(Watched{RegisterState{Stored{r.Exists, r.Value, r.Version}, r.Fence, metaOf(last, nil)}, stale}, nil)
			},
		}
		if err := w.watch(ctx, n.name, "watch register"); err != nil {
			yield(Watched{}, err)
		}
	}
}
