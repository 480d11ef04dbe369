package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	sessionpb "github.com/keystead/keystead/proto/keystead/session/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// What is asked of a session is asked of a node, not of a key: it does it to all that the
// session holds of the keys that it owns. The answer waits for the copies of each, and leaves
// when the node has shown once more that it owned them all the time.

// maxUnnamed bounds the grants that an answer names because its client did not.
const maxUnnamed = 64

// sessionOf returns the session of a request, the zero one if there is none.
func sessionOf(w *commonpb.Session) (of hold.Session, err error) {
	if w == nil {
		return of, nil
	}
	if len(w.Client) != 16 {
		return of, failure.Invalidf("session.client", "has %d bytes, not the 16 of request ids", len(w.Client))
	}
	of = hold.Session{Client: reqid.Client{Hi: binary.BigEndian.Uint64(w.Client), Lo: binary.BigEndian.Uint64(w.Client[8:])}, Generation: w.Generation}
	return of, of.Validate()
}

// wireSession returns a session as it is told, nil if there is none.
func wireSession(of hold.Session) *commonpb.Session {
	if !of.Given() {
		return nil
	}
	client := binary.BigEndian.AppendUint64(make([]byte, 0, 16), of.Client.Hi)
	return &commonpb.Session{Client: binary.BigEndian.AppendUint64(client, of.Client.Lo), Generation: of.Generation}
}

// ofSession returns an operation on what a session holds at a node. It is the same when it is
// done twice.
func ofSession[Q, A any, PQ interface {
	*Q
	forward.Message
}, PA response[A]](number uint32, name, yes, no string, do func(*Server, *opMetrics, *Q, *A) (bool, error)) *operation {
	x := &operation{verb: canHold, cost: costsMany, durable: asDone, level: owner.SessionLevel, yes: yes, no: no}
	x.Operation = forward.Operation{
		Number: number, Name: name, Beside: true, // it waits for copies
		Request:  func() forward.Message { return PQ(new(Q)) },
		Response: func() forward.Message { return PA(new(A)) },
		Call: func(m forward.Message) forward.Call {
			return forward.Call{Op: &x.Operation, Request: m, Harmless: true}
		},
	}
	x.decide = func(_ context.Context, s *Server, c *forward.Call, _ *unconfirmed) (forward.Message, error) {
		a, row := new(A), s.row(x)
		yes, err := do(s, row, any(c.Request).(*Q), a)
		if err != nil {
			row.errored.Inc()
			row.failed[wire(err).Reason].Inc()
			return nil, err
		}
		var t tally
		t.decided(yes, false)
		row.add(t)
		return PA(a), nil
	}
	return x
}

// sessions is the SessionService.
type sessions struct {
	sessionpb.UnimplementedSessionServiceServer
	s *Server
}

// keepers are the Keepers that nobody uses.
type keepers struct{ pool sync.Pool }

func (k *keepers) get(s *owner.Store) *owner.Keeper {
	if keeper, ok := k.pool.Get().(*owner.Keeper); ok {
		return keeper
	}
	return s.NewKeeper()
}

// KeepAlive implements the service.
func (x *sessions) KeepAlive(ctx context.Context, q *sessionpb.KeepAliveRequest) (*sessionpb.KeepAliveResponse, error) {
	if err := x.s.levelOf(sessionKeepAlive); err != nil {
		return nil, x.s.refuse(err)
	}
	if !q.Everywhere {
		return toSession[sessionpb.KeepAliveResponse](ctx, x.s, sessionKeepAlive, q)
	}
	if q.Digest != 0 {
		return nil, x.s.refuse(failure.Invalidf("digest", "goes to one node, which knows its own set: send the hashes everywhere"))
	}
	here := &sessionpb.KeepAliveRequest{Session: q.Session, TtlNs: q.TtlNs, Holds: q.Holds}
	a := &sessionpb.KeepAliveResponse{Node: x.s.cfg.Node}
	unanswered, err := x.everywhere(ctx, sessionKeepAlive, here, func(m forward.Message) {
		of := m.(*sessionpb.KeepAliveResponse)
		a.Covered = append(a.Covered, of.Covered...)
		if of.All {
			a.Covered = append(a.Covered, q.Holds...)
		}
		a.Unnamed = append(a.Unnamed, of.Unnamed...)
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(a.Covered)
	a.Covered, a.Unanswered = slices.Compact(a.Covered), unanswered
	a.Unnamed = a.Unnamed[:min(len(a.Unnamed), maxUnnamed)]
	if a.All = len(a.Covered) == len(distinct(q.Holds)); a.All {
		a.Covered = nil
	}
	return a, nil
}

// End implements the service.
func (x *sessions) End(ctx context.Context, q *sessionpb.EndRequest) (*sessionpb.EndResponse, error) {
	if err := x.s.levelOf(sessionEnd); err != nil {
		return nil, x.s.refuse(err)
	}
	if !q.Everywhere {
		return toSession[sessionpb.EndResponse](ctx, x.s, sessionEnd, q)
	}
	a := &sessionpb.EndResponse{Node: x.s.cfg.Node}
	unanswered, err := x.everywhere(ctx, sessionEnd, &sessionpb.EndRequest{Session: q.Session}, func(m forward.Message) {
		a.Released += m.(*sessionpb.EndResponse).Released
	})
	a.Unanswered = unanswered
	if err != nil {
		return nil, err
	}
	return a, nil
}

// toSession asks this node.
func toSession[A any, PA response[A]](ctx context.Context, s *Server, o *operation, q forward.Message) (*A, error) {
	c := o.Call(q)
	m, err := s.decide(ctx, &c, nil)
	if err != nil {
		return nil, Status(err)
	}
	return any(m).(*A), nil
}

// everywhere asks all members, and hands over what they answer, one at a time. A request that
// this node refuses is refused by all.
func (x *sessions) everywhere(ctx context.Context, o *operation, q forward.Message, join func(forward.Message)) (unanswered []string, err error) {
	s := x.s
	c := o.Call(q)
	m, err := s.decide(ctx, &c, nil)
	if err != nil {
		return nil, Status(err)
	}
	if join(m); s.cfg.Cluster == nil {
		return nil, nil
	}
	var wg sync.WaitGroup
	var mu sync.Mutex // guards join and unanswered
	for _, to := range s.cfg.Cluster.Table().Members {
		if to.Node == s.cfg.Node {
			continue
		}
		wg.Go(func() {
			c := o.Call(q)
			m, err := s.passTo(ctx, &c, to)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				unanswered = append(unanswered, to.Node)
				return
			}
			join(m)
		})
	}
	wg.Wait()
	slices.Sort(unanswered)
	return unanswered, nil
}

// passTo gets a call answered by a member, and counts how it ended.
func (s *Server) passTo(ctx context.Context, c *forward.Call, to table.Member) (forward.Message, error) {
	m, err := s.router.PassTo(ctx, c, to)
	if s.cfg.Metrics.forwarded(err); err != nil {
		s.cfg.Metrics.failed[wire(err).Reason].Inc()
	}
	return m, err
}

// StreamKeepAlive implements the service.
func (x *sessions) StreamKeepAlive(stream grpc.BidiStreamingServer[sessionpb.StreamKeepAliveRequest, sessionpb.StreamKeepAliveResponse]) error {
	s := x.s
	for {
		q, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if s.stopped.Load() {
			return s.refuse(errStopping)
		}
		if err := checkSize(q, MaxRequest); err != nil {
			return s.refuse(err)
		}
		if err := x.answer(stream, q); err != nil {
			return err
		}
	}
}

// answer answers one message of a stream. While it does, a stop waits for it.
func (x *sessions) answer(stream grpc.BidiStreamingServer[sessionpb.StreamKeepAliveRequest, sessionpb.StreamKeepAliveResponse], q *sessionpb.StreamKeepAliveRequest) error {
	s := x.s
	s.busy.Add(1)
	defer s.busy.Add(-1)
	a := &sessionpb.StreamKeepAliveResponse{Tag: q.Tag}
	err := s.levelOf(sessionKeepAlive)
	switch {
	case err != nil:
	case q.KeepAlive == nil:
		err = failure.Invalidf("keep_alive", "is missing")
	case q.KeepAlive.Everywhere:
		err = failure.Invalidf("keep_alive.everywhere", "goes with a KeepAlive by itself, not in a stream, which is to one node")
	default:
		c := sessionKeepAlive.Call(q.KeepAlive)
		var m forward.Message
		if m, err = s.decide(stream.Context(), &c, nil); err == nil {
			a.Kept = m.(*sessionpb.KeepAliveResponse)
		}
	}
	if err != nil {
		a.Error = wire(err)
	}
	return stream.Send(a)
}

// distinct returns hashes in order, each once.
func distinct(hashes []uint64) []uint64 {
	return slices.Compact(slices.Sorted(slices.Values(hashes)))
}

// keepAlive renews what a session holds here, as far as the request names it. yes is false if
// that is another set than here.
func (s *Server) keepAlive(row *opMetrics, q *sessionpb.KeepAliveRequest, a *sessionpb.KeepAliveResponse) (yes bool, err error) {
	of, err := sessionOf(q.Session)
	switch {
	case err != nil:
		return false, err
	case q.Session == nil:
		return false, failure.Invalidf("session", "is missing")
	case len(q.Holds) > owner.MaxSessionHolds:
		return false, failure.Invalidf("holds", "are %d; at most %d are allowed: send some at a time", len(q.Holds), owner.MaxSessionHolds)
	case q.Digest != 0 && len(q.Holds) > 0:
		return false, failure.Invalidf("digest", "goes in place of holds")
	}
	k := s.keepers.get(s.cfg.Store)
	defer s.keepers.pool.Put(k)
	a.Node = s.cfg.Node
	now := s.cfg.Clock.Now()
	digest, err := k.Find(now, of)
	if err != nil {
		return false, err
	}
	holds := distinct(q.Holds)
	named := func(hash uint64) bool { _, ok := slices.BinarySearch(holds, hash); return ok }
	//guard:session-digest
	if a.Differs = q.Digest != 0 && q.Digest != digest; a.Differs {
		return false, k.Check(q.TtlNs)
	}
	if q.Digest != 0 {
		named = func(uint64) bool { return true }
	}
	kept, all, err := k.Extend(now, q.TtlNs, named, nil)
	if err != nil {
		return false, err
	}
	a.Covered = s.toldOf(row, kept)
	if q.Digest == 0 {
		all = len(a.Covered) == len(holds)
		a.Unnamed = unnamed(k.Unnamed(now, named, maxUnnamed))
	}
	if a.All = all && len(a.Covered) == len(kept); a.All {
		a.Covered = nil
	}
	return true, nil
}

// toldOf returns the hashes of what may be told: what the copies have, of keys that this node
// has owned all the time.
func (s *Server) toldOf(row *opMetrics, kept []owner.Kept) (told []uint64) {
	for i := range kept {
		//guard:session-answer-waits
		if s.await(context.Background(), row, kept[i].Permit) != nil {
			kept[i].Hash = 0
		}
	}
	now := s.cfg.Clock.Now()
	for i := range kept {
		//guard:session-answer-confirmed true
		if kept[i].Hash != 0 && s.cfg.Store.Confirm(kept[i].Permit, now) == nil {
			told = append(told, kept[i].Hash)
		}
	}
	return told
}

func unnamed(all []owner.SessionHold) (told []*sessionpb.Unnamed) {
	for _, h := range all {
		told = append(told, &sessionpb.Unnamed{Key: h.Key, Name: h.Name, Kind: wireKind(h.Kind.String()), Token: h.Token})
	}
	return told
}

// endSession releases what a session holds here.
func (s *Server) endSession(row *opMetrics, q *sessionpb.EndRequest, a *sessionpb.EndResponse) (yes bool, err error) {
	of, err := sessionOf(q.Session)
	if err != nil {
		return false, err
	}
	if q.Session == nil {
		return false, failure.Invalidf("session", "is missing")
	}
	k := s.keepers.get(s.cfg.Store)
	defer s.keepers.pool.Put(k)
	now := s.cfg.Clock.Now()
	if _, err := k.Find(now, of); err != nil {
		return false, err
	}
	released := s.toldOf(row, k.End(now, nil))
	a.Released, a.Node = uint32(len(released)), s.cfg.Node
	return a.Released > 0, nil
}
