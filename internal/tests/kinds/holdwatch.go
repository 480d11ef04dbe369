package kinds

import (
	"context"
	"fmt"

	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// watchesOf is which part of the turns of a worker of locks and semaphores is a watch.
const watchesOf = 8

// heldMessage is what a watch of a lock or a semaphore is told.
type heldMessage interface {
	GetHeartbeat() bool
	GetVersion() uint64
	GetHolding() uint32
}

// watchHeld watches what is held for a while. What it is told goes forward: versions never fall, and
// a version shows the same to all. look returns what a state shows, and why it cannot be.
func watchHeld[R heldMessage](w *Worker, o Object, stream interface{ Recv() (R, error) }, err error, look func(R) (shows, wrong string)) {
	last := uint64(0)
	for n := 0; err == nil && n < mostStates; {
		var r R
		if r, err = stream.Recv(); err != nil || r.GetHeartbeat() {
			continue
		}
		n++
		shows, wrong := look(r)
		switch {
		case wrong != "":
			w.cfg.Log.Unexpected(fmt.Sprintf("a watch of %s was told %s at version %d: %s", o.Key, shows, r.GetVersion(), wrong))
		case r.GetVersion() < last:
			w.cfg.Log.Unexpected(fmt.Sprintf("a watch of %s was told version %d after %d", o.Key, r.GetVersion(), last))
		case r.GetHolding() > 0:
			if was := w.cfg.Recording.shown(o.Key, r.GetVersion(), shows); was != "" {
				w.cfg.Log.Unexpected(fmt.Sprintf("version %d of %s shows %s, and has shown %s", r.GetVersion(), o.Key, shows, was))
			}
		}
		last = r.GetVersion()
	}
}

func watchPermits(ctx context.Context, w *Worker, o Object) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mostObserved)
	defer cancel()
	stream, err := semaphorepb.NewSemaphoreServiceClient(w.conns[w.at]).Watch(ctx, &semaphorepb.WatchRequest{Key: o.Key})
	watchHeld(w, o, stream, err, func(r *semaphorepb.WatchResponse) (shows, wrong string) {
		held, token := uint32(0), uint64(0)
		for _, h := range r.Holders {
			if h.Token <= token || h.Token > r.Version {
				wrong = fmt.Sprint("token ", h.Token, " after ", token)
			}
			held, token = held+h.Permits, h.Token
			shows += fmt.Sprintf("%d:%d ", h.Token, h.Permits)
		}
		if r.Held > r.Capacity || held > r.Held {
			wrong = fmt.Sprintf("%d permits of %d", max(held, r.Held), r.Capacity)
		}
		return fmt.Sprintf("%s of %d", shows, r.Capacity), wrong
	})
}

func watchLock(ctx context.Context, w *Worker, o Object) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mostObserved)
	defer cancel()
	stream, err := lockpb.NewLockServiceClient(w.conns[w.at]).Watch(ctx, &lockpb.WatchRequest{Key: o.Key})
	watchHeld(w, o, stream, err, func(r *lockpb.WatchResponse) (shows, wrong string) {
		token := uint64(0)
		for _, h := range r.Holders {
			switch {
			case h.Token <= token || h.Token > r.Version:
				wrong = fmt.Sprint("token ", h.Token, " after ", token)
			case r.Holding > 1 && !h.Shared:
				wrong = "one that holds it alone is not alone"
			}
			token = h.Token
			shows += fmt.Sprint(h.Token, h.Shared, " ")
		}
		return shows, wrong
	})
}
