package rpc

import (
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// registers is what the RegisterService has beside the table of operations: watches.
type registers struct {
	registerpb.UnimplementedRegisterServiceServer
	watches[peerv1.AwaitRegisterResponse, *peerv1.AwaitRegisterResponse]
	// told is the long value that was told last, as it goes over the wire: all streams of its
	// topic tell it at once, and share its bytes.
	told atomic.Pointer[written]
}

// written is what an answer is told as.
type written struct {
	answer *peerv1.AwaitRegisterResponse
	bytes  *grpc.PreparedMsg
}

func newRegisters(s *Server) *registers {
	r := &registers{}
	r.s, r.await, r.sight, r.whole = s, registerAwait, sightOfRegister, wholeRegister
	return r
}

// wholeRegister returns an answer with the value that it has if there is nothing new.
func wholeRegister(before, a *peerv1.AwaitRegisterResponse) *peerv1.AwaitRegisterResponse {
	if sightOfRegister(before) == sightOfRegister(a) {
		a.Value = before.Value
	}
	return a
}

// briefLevel is the level of the cluster from which on nodes have the value from before, if the
// owner has nothing new.
const briefLevel = 7

// sightOfRegister returns what an answer shows.
func sightOfRegister(a *peerv1.AwaitRegisterResponse) owner.Seen {
	return owner.Seen{Position: a.Position, Exists: a.Exists, Unknown: !a.Exists && a.LostEpoch != 0}
}

// awaitRegister answers when a register is news to a node, or its wait is over.
func (s *Server) awaitRegister(f frame, q *peerv1.AwaitRequest, r *peerv1.AwaitRegisterResponse) (verdict, error) {
	var a owner.Sight
	news, err := s.awaitNews(f, func(now int64) (changed <-chan struct{}, _ int64, err error) {
		a, changed, err = s.cfg.Store.AwaitRegister(now, f.at, seenOf(q.Seen))
		return changed, 0, err
	})
	if err != nil {
		return verdict{}, err
	}
	r.Exists, r.Value, r.Position, r.Fence = a.Exists, a.Value, a.Seen.Position, a.Fence
	//guard:watch-beat-brief
	if !news && s.tableOr(&table.Table{Level: briefLevel}).Uses(briefLevel) {
		r.Value = nil
	}
	r.Epoch, r.Owner, r.LostEpoch = a.Permit.Epoch, s.cfg.Node, a.Permit.LostEpoch()
	return verdict{a.Meta, news}, nil
}

// Watch implements the service.
func (r *registers) Watch(q *registerpb.WatchRequest, stream grpc.ServerStreamingServer[registerpb.WatchResponse]) error {
	return r.follow(stream.Context(), q.Key, q.Name, q.AfterVersion, func(a *peerv1.AwaitRegisterResponse, news bool) error {
		m := &registerpb.WatchResponse{Heartbeat: !news, Epoch: a.Epoch, Owner: a.Owner, LostEpoch: a.LostEpoch, StaleAfterNs: int64(watchStale)}
		if !news {
			return stream.Send(m)
		}
		m.Exists, m.Value, m.Version, m.Fence = a.Exists, a.Value, a.Position, a.Fence
		if len(a.Value) < longValue {
			return stream.Send(m)
		}
		return r.share(stream, a, m)
	})
}

// share sends a message with a long value. Nothing is compressed here, so all streams send the same
// bytes. Of two that write them at once, one is too many.
func (r *registers) share(stream grpc.ServerStream, a *peerv1.AwaitRegisterResponse, m *registerpb.WatchResponse) error {
	w := r.told.Load()
	if w == nil || w.answer != a {
		w = &written{a, &grpc.PreparedMsg{}}
		if err := w.bytes.Encode(stream, m); err != nil {
			return err
		}
		r.told.Store(w)
	}
	return stream.SendMsg(w.bytes)
}
