//go:build points

package system

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// renew renews a lock by one call.
func (n *testNode) renew(key string, token uint64, ttl, within time.Duration) (*lockpb.RenewResponse, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), within)
	defer cancel()
	return lockpb.NewLockServiceClient(n.conn).Renew(ctx, &lockpb.RenewRequest{Key: key, Token: token, TtlNs: int64(ttl)})
}

// inspect shows a lock, as its owner knows it.
func (n *testNode) inspect(key string) *lockpb.InspectResponse {
	n.t.Helper()
	return answered(n, "the lock of "+key, func(ctx context.Context) (*lockpb.InspectResponse, error) {
		return lockpb.NewLockServiceClient(n.conn).Inspect(ctx, &lockpb.InspectRequest{Key: key})
	})
}

// freezes waits until calls for a key that nobody changes wait.
func (n *testNode) freezes(key string) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("%s has frozen the row of %s", n.id, key), func() bool {
		ctx, cancel := context.WithTimeout(n.t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := counterpb.NewCounterServiceClient(n.conn).Get(ctx, &counterpb.GetRequest{Key: key})
		return status.Code(err) == codes.DeadlineExceeded
	})
}

// acquire asks for a lock by one call.
func (o *once) acquire(ctx context.Context, n *testNode, key, holder string, wait time.Duration) (*lockpb.AcquireResponse, error) {
	return lockpb.NewLockServiceClient(n.conn).Acquire(ctx, &lockpb.AcquireRequest{
		Key: key, Holder: holder, TtlNs: int64(20 * time.Second), WaitNs: int64(wait), RequestId: o.id(),
	})
}

// Renewals of a lock are in flight when its row moves (trap 34):
//
//	C  renews at S for an hour what it holds for 4 s: S decides; the record is at T,
//	   which does not take it in yet; the answer is held up
//	S  freezes the row, for a second; a second renewal comes to S, and waits
//	S  flushes: T has the first renewal; Flip(S → T)
//	T  gets the second renewal from S, and answers: the lock was never lost
//	S  has no right to the first answer any more: it does not know the outcome
func TestPointsRenewalInFlight(t *testing.T) {
	t.Parallel()
	c := pointedCluster(t, false)
	leads, s, other := c.roles()
	keys := c.keysAt(s, other, 2) // drained, S gives them to their standby
	key := keys[0]
	const ttl = 4 * time.Second
	h := answered(s, "the lock", func(ctx context.Context) (*lockpb.AcquireResponse, error) {
		return lockpb.NewLockServiceClient(s.conn).Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: "h", TtlNs: int64(ttl)})
	})
	acquired := time.Now()
	s.arm("handoffUnsyncPropose", `sleep("3s")`)
	other.arm("handoffTargetInstall", `1*sleep("700ms")`)
	s.arm("rpcDecided", `1*sleep("3s")`)
	first := make(chan error, 1)
	go func() {
		_, err := s.renew(key, h.Token, time.Hour, patience)
		first <- err
	}()
	s.reached("rpcDecided")
	s.disarm("rpcDecided")
	s.arm("handoffFlipFrozen", `1*sleep("1s")`)
	s.drain(leads)
	s.reached("handoffFlipFrozen")
	s.freezes(keys[1]) // rows for the third node may have been first
	r, err := s.renew(key, h.Token, ttl, patience)
	if err != nil || !r.Renewed || r.Owner != other.id {
		t.Errorf("the renewal that came while the row was frozen: %v %v", r, err)
	}
	if s.hit("handoffFlipFrozen") == 0 || time.Since(acquired) > 20*time.Second {
		t.Error("the row did not move in time")
	}
	if i := leads.inspect(key); i.Holder.GetToken() != h.Token {
		t.Errorf("the lock is %v's", i.Holder)
	}
	if why, _ := reason(<-first); why != "OUTCOME_UNKNOWN" {
		t.Errorf("the renewal of which S does not know the outcome: %q", why)
	}
	s.drained(leads)
	if r, err := leads.renew(key, h.Token, ttl, callTime); err != nil || !r.Renewed {
		t.Errorf("later: %v %v", r, err)
	}
}

// A renewal that was decided, and nothing but that, moves with the row:
//
//	C  renews at S for an hour what it holds for 4 s: S decides; T does not take the
//	   record in yet
//	S  freezes the row, and flushes it: that takes until T has the record
//	S  hands the row over: T has the lock for an hour
func TestPointsRenewalMoves(t *testing.T) {
	t.Parallel()
	c := pointedCluster(t, false)
	leads, s, other := c.roles()
	key := c.keysAt(s, other, 1)[0]
	h := answered(s, "the lock", func(ctx context.Context) (*lockpb.AcquireResponse, error) {
		return lockpb.NewLockServiceClient(s.conn).Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: "h", TtlNs: int64(4 * time.Second)})
	})
	s.arm("handoffUnsyncPropose", `sleep("3s")`)
	s.arm("rpcDecided", `1*sleep("3s")`)
	other.arm("handoffTargetInstall", `1*sleep("1.5s")`)
	first := make(chan error, 1)
	go func() {
		_, err := s.renew(key, h.Token, time.Hour, patience)
		first <- err
	}()
	s.reached("rpcDecided")
	s.disarm("rpcDecided")
	other.reached("handoffTargetInstall")
	s.drain(leads)
	var i *lockpb.InspectResponse
	eventually(t, "the row has moved", func() bool { i = leads.inspect(key); return i.Owner == other.id })
	if i.Holder.GetToken() != h.Token || i.Holder.TtlNs < int64(time.Minute) {
		t.Errorf("after a renewal for an hour the lock is %v's", i.Holder)
	}
	if why, _ := reason(<-first); why != "OUTCOME_UNKNOWN" {
		t.Errorf("S has answered for a row that is not its own: %q", why)
	}
}

// Waiters of a lock move with their places, and their clients leave (trap 34):
//
//	C0 holds the lock at S; C1 to C8 wait, then C9
//	S  freezes the row, flushes it: their places are at T
//	   C1 to C8 leave: S cannot tell T any more
//	S  hands the row over; C9 comes to T again, with its id, and keeps its place
//	C0 releases at T: the lock is kept for those that may come yet, for one grace, a
//	   second, for all of them; then it is C9's. Nobody who has left got it
func TestPointsWaitersLeave(t *testing.T) {
	t.Parallel()
	const gone = 8
	c := pointedCluster(t, false)
	leads, s, other := c.roles()
	key := c.keysAt(s, other, 1)[0]
	holder := newOnce()
	h := answered(s, "the lock", func(ctx context.Context) (*lockpb.AcquireResponse, error) {
		return holder.acquire(ctx, s, key, "C0", 0)
	})
	leave, left := context.WithCancel(t.Context())
	defer left()
	type end struct {
		r   *lockpb.AcquireResponse
		err error
	}
	ends := make(chan end, gone)
	for i := range gone {
		go func() {
			r, err := newOnce().acquire(leave, s, key, fmt.Sprintf("C%d", i+1), time.Minute)
			ends <- end{r, err}
		}()
		eventually(t, "it waits", func() bool { return s.inspect(key).Waiting == uint32(i+1) })
	}
	stays := newOnce()
	granted := make(chan *lockpb.AcquireResponse, 1)
	go func() {
		granted <- answered(other, "a wait", func(context.Context) (*lockpb.AcquireResponse, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return stays.acquire(ctx, other, key, "C9", time.Minute)
		})
	}()
	eventually(t, "C9 waits", func() bool { return s.inspect(key).Waiting == gone+1 })

	s.arm("handoffFlipFlushed", `1*sleep("1s")`)
	s.drain(leads)
	s.reached("handoffFlipFlushed")
	left()
	for range gone {
		if e := <-ends; e.err == nil {
			t.Errorf("a client that has left got %v", e.r)
		}
	}
	s.drained(leads)
	released := answered(leads, "the release", func(ctx context.Context) (*lockpb.ReleaseResponse, error) {
		return lockpb.NewLockServiceClient(leads.conn).Release(ctx, &lockpb.ReleaseRequest{Key: key, Token: h.Token})
	})
	at := time.Now()
	if !released.Released {
		t.Error("the lock was lost on the way")
	}
	select {
	case g := <-granted:
		took := time.Since(at)
		t.Logf("the one that stayed got the lock %s after its release", took)
		if !g.Acquired || g.Token <= h.Token || g.Owner != other.id {
			t.Errorf("it got %v after token %d", g, h.Token)
		}
		if took > 4*time.Second {
			t.Errorf("%d waiters that had left held the lock up for %s", gone, took)
		}
	case <-time.After(patience):
		t.Fatal("the lock was granted to nobody who is there")
	}
	if i := leads.inspect(key); i.Holder.GetId() != "C9" || i.Waiting != 0 {
		t.Errorf("in the end it is %v's, and %d wait", i.Holder, i.Waiting)
	}
}
