//go:build points

package system

import (
	"context"
	"strings"
	"testing"
	"time"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// retried are the operations of a client that hears nothing of their first
// attempt: an add, a check, an acquire and a release, one key each.
type retried struct {
	keys                        []string
	add, check, acquire, unlock *once
	token                       uint64 // that is released
	got                         struct {
		add     *counterpb.AddResponse
		check   *limitpb.CheckResponse
		acquire *lockpb.AcquireResponse
		release *lockpb.ReleaseResponse
	}
}

// newRetried prepares the keys: a counter is 5, one check was done, a lock is held. The
// operations go under idempotency keys, or request ids.
func newRetried(n *testNode, keys []string, keyed bool) *retried {
	n.t.Helper()
	r := &retried{keys: keys, add: newOnceBy(keyed), check: newOnceBy(keyed), acquire: newOnceBy(keyed), unlock: newOnceBy(keyed)}
	newOnceBy(keyed).added(n, keys[0], 5) // until the cluster uses keys
	first := &retried{keys: keys, check: newOnce()}
	first.askCheck(n)
	h := answered(n, "a lock", func(ctx context.Context) (*lockpb.AcquireResponse, error) {
		return lockpb.NewLockServiceClient(n.conn).Acquire(ctx, &lockpb.AcquireRequest{Key: keys[3], Holder: "h", TtlNs: int64(time.Hour)})
	})
	r.token = h.Token
	return r
}

func (r *retried) askCheck(n *testNode) {
	n.t.Helper()
	r.got.check = answered(n, "a check", func(ctx context.Context) (*limitpb.CheckResponse, error) {
		return limitpb.NewLimitServiceClient(n.conn).Check(ctx, &limitpb.CheckRequest{Key: r.keys[1], Limit: 5, Cost: 1, PeriodNs: int64(time.Hour), RequestId: r.check.id(), IdempotencyKey: r.check.key()})
	})
}

// ask sends all of them to a node, each until it is answered.
func (r *retried) ask(n *testNode) {
	n.t.Helper()
	r.got.add = r.add.added(n, r.keys[0], 1)
	r.askCheck(n)
	locks := lockpb.NewLockServiceClient(n.conn)
	r.got.acquire = answered(n, "an acquire", func(ctx context.Context) (*lockpb.AcquireResponse, error) {
		return locks.Acquire(ctx, &lockpb.AcquireRequest{Key: r.keys[2], Holder: "h", TtlNs: int64(time.Hour), RequestId: r.acquire.id(), IdempotencyKey: r.acquire.key()})
	})
	r.got.release = answered(n, "a release", func(ctx context.Context) (*lockpb.ReleaseResponse, error) {
		return locks.Release(ctx, &lockpb.ReleaseRequest{Key: r.keys[3], Token: r.token, RequestId: r.unlock.id(), IdempotencyKey: r.unlock.key()})
	})
}

// send sends all of them at once, and does not wait for answers.
func (r *retried) send(n *testNode) {
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	n.t.Cleanup(cancel)
	locks := lockpb.NewLockServiceClient(n.conn)
	go func() {
		_, _ = counterpb.NewCounterServiceClient(n.conn).Add(ctx, &counterpb.AddRequest{Key: r.keys[0], Name: "n", Delta: 1, RequestId: r.add.id(), IdempotencyKey: r.add.key()})
	}()
	go func() {
		_, _ = limitpb.NewLimitServiceClient(n.conn).Check(ctx, &limitpb.CheckRequest{Key: r.keys[1], Limit: 5, Cost: 1, PeriodNs: int64(time.Hour), RequestId: r.check.id(), IdempotencyKey: r.check.key()})
	}()
	go func() {
		_, _ = locks.Acquire(ctx, &lockpb.AcquireRequest{Key: r.keys[2], Holder: "h", TtlNs: int64(time.Hour), RequestId: r.acquire.id(), IdempotencyKey: r.acquire.key()})
	}()
	go func() {
		_, _ = locks.Release(ctx, &lockpb.ReleaseRequest{Key: r.keys[3], Token: r.token, RequestId: r.unlock.id(), IdempotencyKey: r.unlock.key()})
	}()
}

// decided waits until a node has counted each of them as decided and told: one
// more than what prepared them.
func (r *retried) decided(n *testNode) {
	n.t.Helper()
	eventually(n.t, n.id+" has decided", func() bool {
		_, text, err := n.get("/metrics")
		for _, line := range []string{
			`keystead_operations_total{op="add",outcome="applied"} 2`, `keystead_operations_total{op="check",outcome="allowed"} 2`,
			`keystead_operations_total{op="acquire",outcome="acquired"} 2`, `keystead_operations_total{op="release",outcome="released"} 1`,
		} {
			if !strings.Contains(text, line+"\n") {
				return false
			}
		}
		return err == nil
	})
}

// doneOnce checks that the answers are those of the first attempt, so old, and that
// nothing was done twice.
func (r *retried) doneOnce(n *testNode, age time.Duration) {
	n.t.Helper()
	t, got := n.t, r.got
	for what, replay := range map[string]*commonpb.Replay{"add": got.add.Replay, "check": got.check.Replay, "acquire": got.acquire.Replay, "release": got.release.Replay} {
		if replay == nil || replay.AgeNs < int64(age) {
			t.Errorf("%s: %v, not a replay that is %s old", what, replay, age)
		}
	}
	if got.add.Value != 6 || n.value(r.keys[0]) != 6 {
		t.Errorf("5 and 1 is %v, and then %d", got.add, n.value(r.keys[0]))
	}
	if !got.check.Allowed || got.check.Remaining != 3 {
		t.Errorf("the second check of 5: %v", got.check)
	}
	next := &retried{keys: r.keys, check: newOnce()}
	if next.askCheck(n); !next.got.check.Allowed || next.got.check.Remaining != 2 {
		t.Errorf("the third check of 5: %v", next.got.check)
	}
	if !got.acquire.Acquired || got.acquire.Token == 0 || !got.release.Released {
		t.Errorf("%v, %v", got.acquire, got.release)
	}
	locks := lockpb.NewLockServiceClient(n.conn)
	inspect := func(key string) *lockpb.Holder {
		return answered(n, "an inspect", func(ctx context.Context) (*lockpb.InspectResponse, error) {
			return locks.Inspect(ctx, &lockpb.InspectRequest{Key: key})
		}).Holder
	}
	if h := inspect(r.keys[2]); h.GetToken() != got.acquire.Token {
		t.Errorf("the lock that was acquired, by %v: %v", got.acquire, h)
	}
	if h := inspect(r.keys[3]); h != nil {
		t.Errorf("the lock that was released: %v", h)
	}
	if g := n.mustAcquire(r.keys[3]); g.token <= r.token {
		t.Errorf("token %d after %d", g.token, r.token)
	}
}

// The owner dies with answers that may leave (trap 30, with another process that
// repeats the grant):
//
//	A  decides an add, a check, an acquire and a release; B has their records
//	A  dies before an answer leaves; L removes it: B owns the rows
//	C  repeats all four with their ids at B: it gets the first answers, with their
//	   age, and nothing is done twice
func TestPointsRetryAtTheNewOwner(t *testing.T) {
	for name, keyed := range namings {
		t.Run(name, func(t *testing.T) { pointsRetryAtTheNewOwner(t, keyed) })
	}
}

func pointsRetryAtTheNewOwner(t *testing.T, keyed bool) {
	t.Parallel()
	c := pointedCluster(t, false, shortLease...)
	leads, a, b := c.roles()
	r := newRetried(a, c.keysAt(a, b, 4), keyed)
	a.arm("rpcConfirmed", held)
	r.send(a)
	r.decided(a)
	decided := time.Now()
	a.kill()
	leads.mustAcquire(r.keys[0])
	age := time.Since(decided)
	r.ask(leads)
	r.doneOnce(b, age)
}

// The same with a node between, which repeats the calls itself:
//
//	C  asks L, which forwards to A
//	A  decides; B has the records; A dies before its answers leave
//	L  hears nothing, and sends the calls again, to B when that owns the rows
//	C  hears of it only if that takes L too long, and repeats them then
func TestPointsForwarderRetries(t *testing.T) {
	for name, keyed := range namings {
		t.Run(name, func(t *testing.T) { pointsForwarderRetries(t, keyed) })
	}
}

func pointsForwarderRetries(t *testing.T, keyed bool) {
	t.Parallel()
	c := pointedCluster(t, false, shortLease...)
	leads, a, b := c.roles()
	r := newRetried(a, c.keysAt(a, b, 4), keyed)
	a.arm("forwardManyConfirmed", held)
	leads.arm("forwardSend", `1*sleep("1s")`) // all in one message: answers to others would wait behind the first
	r.send(leads)
	r.decided(a)
	decided := time.Now()
	a.kill()
	leads.mustAcquire(r.keys[0])
	age := time.Since(decided)
	r.ask(leads)
	r.doneOnce(leads, age)
}

// The owner dies with decisions of which no standby may know:
//
//	A  decides an add with an id; before it looks for copies, it dies
//	C  repeats it at B: it is done once, whether or not B had the record
func TestPointsRetryOfTheUndecided(t *testing.T) {
	for name, keyed := range namings {
		t.Run(name, func(t *testing.T) { pointsRetryOfTheUndecided(t, keyed) })
	}
}

func pointsRetryOfTheUndecided(t *testing.T, keyed bool) {
	t.Parallel()
	c := pointedCluster(t, false, shortLease...)
	leads, a, b := c.roles()
	key := c.keysAt(a, b, 1)[0]
	newOnceBy(keyed).added(a, key, 5) // until the cluster uses keys
	a.arm("rpcDecided", held)
	first := newOnceBy(keyed)
	answer := make(chan error, 1)
	go func() {
		_, err := first.add(a, key, 1, patience)
		answer <- err
	}()
	a.reached("rpcDecided")
	a.kill()
	if err := <-answer; err == nil {
		t.Error("it has answered")
	}
	if r := first.added(leads, key, 1); r.Value != 6 {
		t.Errorf("repeated: %v", r)
	}
	if r := first.added(b, key, 1); r.Value != 6 || r.Replay == nil {
		t.Errorf("repeated again: %v", r)
	}
	if got := b.value(key); got != 6 {
		t.Errorf("it is %d, want 6", got)
	}
}
