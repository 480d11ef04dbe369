package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/heldset"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	electionpb "github.com/keystead/keystead/proto/keystead/election/v1"
	grouppb "github.com/keystead/keystead/proto/keystead/group/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
	sessionpb "github.com/keystead/keystead/proto/keystead/session/v1"
	"github.com/keystead/keystead/ring"
)

const (
	// maxNamed is how many grants a message names at most.
	maxNamed = 4096
	// maxByKey is how many grants that no answer covers are renewed by key at once.
	maxByKey = 64
	// byKeyPart of the TTL is for how long at most, before the node is asked again.
	byKeyPart = 6
)

// keeper keeps alive what a session holds at one node. A round is one message to the node, and
// then one for each grant that the answer does not cover.
type keeper struct {
	s    *Session
	addr string // "" = the table does not say

	busy  bool  // guarded by Session.mu: a round is under way
	after int64 // guarded by Session.mu: no round before

	// Of the round.

	node   *node
	stream grpc.BidiStreamingClient[sessionpb.StreamKeepAliveRequest, sessionpb.StreamKeepAliveResponse]
	cancel context.CancelFunc
	tag    uint64
	told   uint64 // digest of the set that the node has renewed as a whole; 0 = there is none
}

// kept is a lease, and the hash that names it.
type kept struct {
	*lease
	hash uint64
}

// run renews what the session holds until it is over.
func (s *Session) run() {
	defer close(s.ran)
	var rounds sync.WaitGroup
	for s.ctx.Err() == nil {
		next := s.round(&rounds)
		timer := time.NewTimer(time.Duration(max(next-s.c.clock.Now(), 0)))
		select {
		case <-timer.C:
		case <-s.nudge:
		case <-s.ctx.Done():
		case <-s.c.ctx.Done():
			s.over(errClosed())
		}
		timer.Stop()
	}
	rounds.Wait() // soon: their contexts have ended
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keepers {
		k.drop()
	}
}

// round begins a round with each node for which one is due, and returns when to look again:
// soon enough to see that this process stood still, as for any lease.
func (s *Session) round(rounds *sync.WaitGroup) (next int64) {
	now := s.c.clock.Now()
	next = now + int64(s.ttl/watchPart)
	for _, l := range s.leases() {
		if l.held() { // if not, the session is over by now
			next = min(next, now+int64(l.left()))
		}
	}
	v := s.c.view.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return now
	}
	at, due := map[string][]kept{}, map[string]bool{}
	for l, hash := range s.held {
		addr := ""
		if m := v.owner(ring.Hash(l.key)); m != nil {
			addr = m.addr
		}
		at[addr] = append(at[addr], kept{l, hash})
		if l.due() <= now {
			due[addr] = true
		} else {
			next = min(next, l.due())
		}
	}
	for addr, k := range s.keepers {
		if len(at[addr]) == 0 && !k.busy {
			k.drop()
			delete(s.keepers, addr)
		}
	}
	for addr := range due {
		k := s.keepers[addr]
		if k == nil {
			k = &keeper{s: s, addr: addr}
			s.keepers[addr] = k
		}
		if k.busy {
			continue // it wakes run
		}
		if k.after > now {
			next = min(next, k.after)
			continue
		}
		k.busy = true
		rounds.Go(func() { k.round(at[addr]) })
	}
	return next
}

// round renews grants. What it could not is tried again after a pause; another round does not
// follow at once in any case.
func (k *keeper) round(all []kept) {
	s, pause := k.s, all[0].pause()
	covered, answered := k.ask(all)
	left := slices.DeleteFunc(all, func(l kept) bool { return covered[l.hash] || l.inner.Err() != nil })
	if k.byKey(left, answered) {
		pause = int64(minTry)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k.busy, k.after = false, s.c.clock.Now()+pause
	s.wake()
}

// ask sends the node what the session holds there, and returns what the answer covers. answered
// is false if there was none.
func (k *keeper) ask(all []kept) (covered map[uint64]bool, answered bool) {
	if k.addr == "" {
		return nil, false
	}
	covered = map[uint64]bool{}
	for some := range slices.Chunk(all, maxNamed) {
		hashes := make([]uint64, len(some))
		for i, l := range some {
			hashes[i] = l.hash
		}
		digest := heldset.Digest(hashes)
		whole := len(some) == len(all)
		q := &sessionpb.KeepAliveRequest{Session: k.s.wire, TtlNs: int64(k.s.ttl)}
		if q.Digest = digest; !whole || k.told != digest {
			q.Digest, q.Holds = 0, hashes
		}
		r, sent, err := k.exchange(q, some)
		if err == nil && r.Differs {
			q.Digest, q.Holds = 0, hashes
			r, sent, err = k.exchange(q, some)
		}
		if k.told = 0; err != nil {
			k.s.c.cfg.Log.Warn("a node did not keep a session alive; what it owns of it is renewed by key", "node", k.addr, "err", err)
			return covered, answered
		}
		if answered = true; whole && r.All && len(r.Unnamed) == 0 {
			k.told = digest
		}
		k.cover(some, r, sent, covered)
		k.s.unnamed(r.Unnamed)
	}
	return covered, answered
}

// cover counts what an answer covers from the sending of the request.
func (k *keeper) cover(asked []kept, r *sessionpb.KeepAliveResponse, sent int64, covered map[uint64]bool) {
	named := map[uint64]bool{}
	for _, hash := range r.Covered {
		named[hash] = true
	}
	for _, l := range asked {
		if r.All || named[l.hash] {
			covered[l.hash] = true
			//guard:client-session-counts
			l.prolong(sent + int64(k.s.ttl))
		}
	}
}

// exchange sends a message and waits for its answer, as long as the least of the leases leaves
// time for another.
func (k *keeper) exchange(q *sessionpb.KeepAliveRequest, all []kept) (_ *sessionpb.KeepAliveResponse, sent int64, err error) {
	if k.stream == nil {
		if err := k.connect(); err != nil {
			return nil, 0, err
		}
	}
	within := k.s.c.cfg.AttemptTimeout
	for _, l := range all {
		within = min(within, l.tryTime())
	}
	timer := time.AfterFunc(within, k.cancel)
	defer timer.Stop()
	k.tag++
	sent = k.s.c.clock.Now()
	err = k.stream.Send(&sessionpb.StreamKeepAliveRequest{Tag: k.tag, KeepAlive: q})
	var r *sessionpb.StreamKeepAliveResponse
	if err == nil {
		r, err = k.stream.Recv()
	}
	switch {
	case err == nil && r.Error != nil:
		return nil, 0, fromItem(r.Error)
	case err == nil && (r.Tag != k.tag || r.Kept == nil):
		err = errors.New("the answer is not to what was asked")
	case err == nil:
		return r.Kept, sent, nil
	}
	k.drop()
	return nil, 0, err
}

// connect opens the stream to the node.
func (k *keeper) connect() error {
	n, err := k.s.c.pool.acquire(k.addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(k.s.ctx)
	stream, err := sessionpb.NewSessionServiceClient(n.conn()).StreamKeepAlive(ctx)
	if err != nil {
		cancel()
		k.s.c.pool.release(n)
		return err
	}
	k.node, k.stream, k.cancel = n, stream, cancel
	return nil
}

// drop closes the stream.
func (k *keeper) drop() {
	if k.stream == nil {
		return
	}
	k.cancel()
	for err := error(nil); err == nil; { // it has ended, and then its goroutines have
		_, err = k.stream.Recv()
	}
	k.s.c.pool.release(k.node)
	k.node, k.stream, k.cancel, k.told = nil, nil, nil, 0
}

// byKey renews, one by one, the grants that are due and that no answer covers: they may have
// moved, be lost or over, or their node is out of this client's reach and not of others'. It
// reports whether all were answered.
func (k *keeper) byKey(left []kept, answered bool) (ok bool) {
	now := k.s.c.clock.Now()
	over := now + int64(k.s.ttl/byKeyPart)
	var calls sync.WaitGroup
	var mu sync.Mutex // guards ok
	slots := make(chan struct{}, maxByKey)
	ok = true
	for _, l := range left {
		if l.due() > now {
			continue
		}
		slots <- struct{}{}
		if k.s.ctx.Err() != nil || k.s.c.clock.Now() > over {
			ok = false
			break
		}
		calls.Go(func() {
			defer func() { <-slots }()
			r := toKey(l.key, true).of("renew")
			if !answered {
				r.avoid = k.addr
			}
			done := l.attempt(&r)
			mu.Lock()
			defer mu.Unlock()
			ok = ok && done
		})
	}
	calls.Wait()
	return ok
}

// unnamed releases what the session holds and does not know: grants to Acquires whose answers
// were lost. What a call that is under way may be told yet, or is releasing, is left alone.
func (s *Session) unnamed(all []*sessionpb.Unnamed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hashes := slices.Collect(maps.Values(s.held))
	for _, u := range all {
		hash := heldset.Hash(u.Key, u.Name, u.Token)
		//guard:client-session-unnamed
		if s.calls[object{kindName(u.Kind), u.Key, u.Name}] > 0 || slices.Contains(hashes, hash) {
			continue
		}
		//guard:client-session-leaving
		if s.leaving[hash] > 0 {
			continue
		}
		s.c.start(func() { s.release(u) })
	}
}

// kindName returns the name of a kind.
func kindName(k commonpb.Kind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "KIND_"))
}

// release releases a grant that the session does not know. If it cannot, that ends with its TTL.
func (s *Session) release(u *sessionpb.Unnamed) {
	op := s.c.ops.begin()
	defer op.finish()
	to := toKey(u.Key, false).of("release")
	to.quiet = true
	ctx, cancel := s.c.bounded(s.c.ctx, s.c.cfg.Timeout)
	defer cancel()
	_, _ = ask(ctx, s.c, to, op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (answered, error) {
		switch u.Kind {
		case commonpb.Kind_KIND_LOCK:
			return lockpb.NewLockServiceClient(conn).Release(ctx, &lockpb.ReleaseRequest{Key: u.Key, Name: u.Name, Token: u.Token, RequestId: id}, opts...)
		case commonpb.Kind_KIND_GROUP:
			return grouppb.NewGroupServiceClient(conn).Leave(ctx, &grouppb.LeaveRequest{Key: u.Key, Name: u.Name, Token: u.Token, RequestId: id}, opts...)
		case commonpb.Kind_KIND_SEMAPHORE:
			return semaphorepb.NewSemaphoreServiceClient(conn).Release(ctx, &semaphorepb.ReleaseRequest{Key: u.Key, Name: u.Name, Token: u.Token, RequestId: id}, opts...)
		case commonpb.Kind_KIND_ELECTION:
			return electionpb.NewElectionServiceClient(conn).Resign(ctx, &electionpb.ResignRequest{Key: u.Key, Name: u.Name, Token: u.Token, RequestId: id}, opts...)
		}
		return ended{}, nil // of a kind that this client does not know
	})
}

// answered is the answer of an owner.
type answered interface {
	GetOwner() string
	GetEpoch() uint64
}
