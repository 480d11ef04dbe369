package rpc

import (
	"google.golang.org/grpc"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// Watches of what is held: of semaphores and locks. What their owner answers an await is what a
// stream sends, so that both have one form.

// timeless returns a grant without what is true of one moment only.
func timeless(h hold.Holding) hold.Holding {
	h.Age, h.Left, h.Blocked = 0, 0, 0
	return h
}

// awaitHeld answers when what is held is news to a node, or its wait is over.
func (s *Server) awaitHeld(f frame, q *peerv1.AwaitRequest, look func(now int64, ref owner.Ref, seen owner.Seen) (owner.HoldSight, <-chan struct{}, error)) (a owner.HoldSight, news bool, err error) {
	news, err = s.awaitNews(f, func(now int64) (changed <-chan struct{}, due int64, err error) {
		a, changed, err = look(now, f.at, seenOf(q.Seen))
		return changed, a.Due, err
	})
	return a, news, err
}

// semaphores is what the SemaphoreService has beside the table of operations: batches and watches.
type semaphores struct {
	semaphorepb.UnimplementedSemaphoreServiceServer
	watches[semaphorepb.WatchResponse, *semaphorepb.WatchResponse]
}

func newSemaphores(s *Server) *semaphores {
	w := &semaphores{}
	w.s, w.await, w.sight, w.whole = s, semaphoreAwait, sightOfSemaphore, wholeSemaphore
	return w
}

// sightOfSemaphore returns what an answer shows.
func sightOfSemaphore(a *semaphorepb.WatchResponse) owner.Seen {
	return owner.Seen{Position: a.Version, Exists: a.Capacity != 0, Unknown: a.Capacity == 0 && a.LostEpoch != 0}
}

// wholeSemaphore returns an answer with the grants, which are those of the one before it if it says
// that nothing is new.
func wholeSemaphore(before, a *semaphorepb.WatchResponse) *semaphorepb.WatchResponse {
	if a.Heartbeat {
		a.Heartbeat, a.Version, a.Capacity, a.CapacitySet, a.Held = false, before.Version, before.Capacity, before.CapacitySet, before.Held
		a.Holders, a.Holding = before.Holders, before.Holding
	}
	return a
}

func (s *Server) awaitPermits(f frame, q *peerv1.AwaitRequest, r *semaphorepb.WatchResponse) (verdict, error) {
	a, news, err := s.awaitHeld(f, q, s.cfg.Store.AwaitSemaphore)
	if err != nil {
		return verdict{}, err
	}
	r.Heartbeat, r.Version, r.StaleAfterNs = !news, a.Seen.Position, int64(watchStale)
	r.Capacity, r.CapacitySet, r.Held, r.Holding = a.Capacity, a.Fixed, uint32(a.Held), uint32(a.Holding)
	for _, h := range a.Holders {
		r.Holders = append(r.Holders, permitsHolder(timeless(h)))
	}
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, news}, nil
}

// Watch implements the service.
func (w *semaphores) Watch(q *semaphorepb.WatchRequest, stream grpc.ServerStreamingServer[semaphorepb.WatchResponse]) error {
	return w.follow(stream.Context(), q.Key, q.Name, q.AfterVersion, func(a *semaphorepb.WatchResponse, news bool) error {
		if news {
			return stream.Send(a)
		}
		return stream.Send(&semaphorepb.WatchResponse{Heartbeat: true, Epoch: a.Epoch, Owner: a.Owner, LostEpoch: a.LostEpoch, StaleAfterNs: a.StaleAfterNs})
	})
}

// locks is what the LockService has beside the table of operations: batches and watches.
type locks struct {
	lockpb.UnimplementedLockServiceServer
	watches[lockpb.WatchResponse, *lockpb.WatchResponse]
}

func newLocks(s *Server) *locks {
	w := &locks{}
	w.s, w.await, w.sight, w.whole = s, lockAwait, sightOfLock, wholeLock
	return w
}

// sightOfLock returns what an answer shows.
func sightOfLock(a *lockpb.WatchResponse) owner.Seen {
	return owner.Seen{Position: a.Version, Exists: a.Holding != 0, Unknown: a.Holding == 0 && a.LostEpoch != 0}
}

// wholeLock returns an answer with the grants, which are those of the one before it if it says that
// nothing is new.
func wholeLock(before, a *lockpb.WatchResponse) *lockpb.WatchResponse {
	if a.Heartbeat {
		a.Heartbeat, a.Version, a.Holders, a.Holding = false, before.Version, before.Holders, before.Holding
	}
	return a
}

func (s *Server) awaitLock(f frame, q *peerv1.AwaitRequest, r *lockpb.WatchResponse) (verdict, error) {
	a, news, err := s.awaitHeld(f, q, s.cfg.Store.AwaitLock)
	if err != nil {
		return verdict{}, err
	}
	r.Heartbeat, r.Version, r.StaleAfterNs, r.Holding = !news, a.Seen.Position, int64(watchStale), uint32(a.Holding)
	for _, h := range a.Holders {
		r.Holders = append(r.Holders, holderOf(timeless(h)))
	}
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, news}, nil
}

// Watch implements the service.
func (w *locks) Watch(q *lockpb.WatchRequest, stream grpc.ServerStreamingServer[lockpb.WatchResponse]) error {
	return w.follow(stream.Context(), q.Key, q.Name, q.AfterVersion, func(a *lockpb.WatchResponse, news bool) error {
		if news {
			return stream.Send(a)
		}
		return stream.Send(&lockpb.WatchResponse{Heartbeat: true, Epoch: a.Epoch, Owner: a.Owner, LostEpoch: a.LostEpoch, StaleAfterNs: a.StaleAfterNs})
	})
}
