package rpc

import (
	"context"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
)

// maxRoomWait is how long a caller that may be queued waits until the copies have room
// for it. A standby that needs longer is taken out meanwhile.
const maxRoomWait = time.Second

// rooms are Copies that hold back callers whose answers wait for nothing.
type rooms interface {
	// Room returns nil when they have room for one more caller in the queue of a lock at
	// this position. The error is the context's.
	Room(ctx context.Context, hash uint64) error
}

var errNoRoom = &failure.Error{Reason: failure.Overloaded, RetryAfter: 100 * time.Millisecond,
	Message: "more callers queue for locks than the standby of this node keeps up with; nothing happened",
	Hint:    "try again, with less metadata; `keystead status` shows whether the standby is well"}

// room waits until the copies have room for a caller that may be queued.
func (s *Server) room(ctx context.Context, key string) error {
	copies, ok := s.cfg.Copies.(rooms)
	if !ok {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, maxRoomWait)
	defer cancel()
	switch err := copies.Room(bounded, owner.Hash(key)); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return gaveUp(ctx)
	}
	return errNoRoom
}
