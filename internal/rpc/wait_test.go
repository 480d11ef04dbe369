package rpc

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

func (h *house) release(token uint64) {
	h.t.Helper()
	if r := must(h.locks.Release(bound(h.t), &lockpb.ReleaseRequest{Key: "k", Token: token}))(h.t); !r.Released {
		h.t.Fatalf("token %d was not held", token)
	}
}

// Who comes first is served first, whether locks are released or run out.
func TestWaitersAreServedInOrder(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		const n = 20
		token := must(h.locks.Acquire(bound(t), acquire("holder", time.Second, 0)))(t).Token
		var queue []*pending
		for i := range n {
			queue = append(queue, h.await(acquire(fmt.Sprint("waiter ", i), time.Second, time.Hour)))
		}
		began := time.Now()
		var want time.Duration
		for i, p := range queue {
			if i%2 == 0 {
				h.release(token)
			} else {
				want += time.Second // the TTL of the one before
			}
			r := p.granted(t)
			if r.Token <= token || r.TtlNs != int64(time.Second) || r.QueuePosition != 0 || r.Holder != nil {
				t.Errorf("waiter %d after token %d: %v", i, token, r)
			}
			if got := p.at.Sub(began); got != want || r.WaitedNs != int64(want) {
				t.Errorf("waiter %d was served after %v, says %v; want %v", i, got, time.Duration(r.WaitedNs), want)
			}
			synctest.Wait()
			for j := i + 1; j < n; j++ {
				if queue[j].over() {
					t.Fatalf("waiter %d was served with waiter %d", j, i)
				}
			}
			token = r.Token
		}
	})
}

// A newcomer does not overtake the queue, also when it does not want to wait.
func TestNobodyOvertakes(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		token := must(h.locks.Acquire(bound(t), acquire("holder", time.Second, 0)))(t).Token
		first := h.await(acquire("first", time.Second, time.Minute))
		if r := must(h.locks.Acquire(bound(t), acquire("hasty", time.Second, 0)))(t); r.Acquired || r.QueuePosition != 2 {
			t.Errorf("hasty: %v", r)
		}
		h.release(token)
		if r := must(h.locks.Acquire(bound(t), acquire("hasty", time.Second, 0)))(t); r.Acquired || r.Holder.GetId() != "first" {
			t.Errorf("hasty, after the release: %v", r)
		}
		first.granted(t)
	})
}

// A wait ends at exactly wait_ns with the place that was had.
func TestWaitTimesOut(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		holder := must(h.locks.Acquire(bound(t), acquire("holder", time.Hour, 0)))(t)
		began := time.Now()
		patient := h.await(acquire("patient", time.Second, time.Minute))
		short := h.await(acquire("short", time.Second, 1))
		hasty := h.await(acquire("hasty", time.Second, 3*time.Second))
		for _, c := range []struct {
			p     *pending
			wait  time.Duration
			place uint32
		}{{short, 1, 2}, {hasty, 3 * time.Second, 2}, {patient, time.Minute, 1}} {
			<-c.p.done
			if c.p.err != nil || c.p.at.Sub(began) != c.wait {
				t.Fatalf("after %v: %v", c.p.at.Sub(began), c.p.err)
			}
			same(t, c.p.resp, &lockpb.AcquireResponse{QueuePosition: c.place, Epoch: testEpoch, Holder: &lockpb.Holder{
				Id: "holder", Token: holder.Token, HeldNs: int64(c.wait), TtlNs: int64(time.Hour - c.wait)}})
		}
	})
}

// At the very moment at which the lock becomes free, a wait that ends is over,
// and the next one is served.
func TestWaitTimesOutWithTheHolder(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		must(h.locks.Acquire(bound(t), acquire("holder", time.Second, 0)))(t)
		began := time.Now()
		first := h.await(acquire("first", time.Second, time.Second))
		second := h.await(acquire("second", time.Second, time.Minute))
		<-first.done
		if first.err != nil || first.resp.Acquired {
			t.Errorf("first: %v, %v", first.resp, first.err)
		}
		if second.granted(t); second.at.Sub(began) != time.Second {
			t.Errorf("second was served after %v", second.at.Sub(began))
		}
	})
}

// A TTL that ends serves the head at that moment, not when somebody looks.
func TestExpiryServesTheHead(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		token := must(h.locks.Acquire(bound(t), acquire("holder", 5*time.Second, 0)))(t).Token
		began := time.Now()
		p := h.await(acquire("waiter", time.Second, time.Minute))
		time.Sleep(4 * time.Second)
		if r := must(h.locks.Renew(bound(t), &lockpb.RenewRequest{Key: "k", Token: token, TtlNs: int64(3 * time.Second)}))(t); !r.Renewed {
			t.Error(r)
		}
		time.Sleep(time.Second)
		// A renewal may shorten, too.
		if r := must(h.locks.Renew(bound(t), &lockpb.RenewRequest{Key: "k", Token: token, TtlNs: int64(time.Second)}))(t); !r.Renewed {
			t.Error(r)
		}
		r := p.granted(t)
		if got := p.at.Sub(began); got != 6*time.Second {
			t.Errorf("served after %v", got)
		}
		same(t, must(h.locks.Renew(bound(t), &lockpb.RenewRequest{Key: "k", Token: token, TtlNs: int64(time.Second)}))(t),
			&lockpb.RenewResponse{Epoch: testEpoch, Holder: &lockpb.Holder{Id: "waiter", Token: r.Token, TtlNs: int64(time.Second)}})
	})
}

// Callers that leave, by a deadline or because they cancel, leave the queue.
func TestLeaversLeaveTheQueue(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		token := must(h.locks.Acquire(bound(t), acquire("holder", time.Hour, 0)))(t).Token
		cancelled := h.await(acquire("cancelled", time.Second, time.Hour))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		late := h.awaitCtx(ctx, cancel, acquire("late", time.Second, time.Hour))
		next := h.await(acquire("next", time.Second, time.Hour))
		cancelled.cancel()
		<-cancelled.done
		<-late.done
		if status.Code(cancelled.err) != codes.Canceled || status.Code(late.err) != codes.DeadlineExceeded {
			t.Errorf("got %v and %v", cancelled.err, late.err)
		}
		synctest.Wait()
		r := must(h.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: "k"}))(t)
		if r.Waiting != 1 || r.Waiters[0].Id != "next" || h.store.Stats().Waiting != 1 {
			t.Errorf("the queue is %v", r)
		}
		before := time.Now()
		h.release(token)
		if next.granted(t); next.at != before {
			t.Errorf("the next was served after %v", next.at.Sub(before))
		}
	})
}

// A connection that breaks takes its callers out of the queue.
func TestBrokenConnectionsLeaveTheQueue(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		must(h.locks.Acquire(bound(t), acquire("holder", time.Hour, 0)))(t)
		other := h.connect()
		gone := make(chan error, 1)
		go func() {
			_, err := lockpb.NewLockServiceClient(other).Acquire(context.Background(), acquire("gone", time.Second, time.Hour))
			gone <- err
		}()
		synctest.Wait()
		if n := h.store.Stats().Waiting; n != 1 {
			t.Fatalf("%d wait", n)
		}
		_ = other.Close()
		if err := <-gone; err == nil {
			t.Error("an answer over a closed connection")
		}
		synctest.Wait()
		if n := h.store.Stats().Waiting; n != 0 {
			t.Errorf("%d wait", n)
		}
	})
}

// A caller leaves at the very instant of its grant: the lock goes on to the next
// one at once, whichever of the two the handler hears of first.
func TestLeavingAtTheGrant(t *testing.T) {
	for range 20 { // the handler's select chooses at random
		bubble(t, nil, func(t *testing.T, h *house) {
			holder := must(h.locks.Acquire(bound(t), acquire("holder", time.Hour, 0)))(t)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			req := acquire("gone", time.Hour, time.Hour)
			req.RequestId = requestN(1, 1)
			left := make(chan error, 1)
			go func() {
				_, err := lockAcquire.serve(ctx, h.server, req)
				left <- err
			}()
			synctest.Wait()
			next := h.await(acquire("next", time.Second, time.Hour))
			h.sink.on(func(r *owner.Record) {
				if l := r.Hold(); l != nil && l.First(l.At).Name == "gone" {
					cancel() // under the shard's lock, before the answer is there
				}
			})
			before := time.Now()
			h.release(holder.Token)
			refusal{code: codes.Canceled, why: commonpb.Reason_REASON_GAVE_UP}.check(t, <-left)
			if r := next.granted(t); r.Token <= holder.Token+1 || next.at != before {
				t.Errorf("next got token %d after %d, and %v after the release", r.Token, holder.Token, next.at.Sub(before))
			}
			// The request was granted once, and that is over.
			if r := must(h.locks.Acquire(bound(t), req))(t); !r.Acquired || r.TtlNs != 0 || r.Holder.GetId() != "next" || r.Replay == nil {
				t.Errorf("replay: %v", r)
			}
		})
	}
}

// A deadline passes at the very instant at which the holder's TTL ends. Either
// the grant went out, or the next one has the lock; nobody waits for nobody.
func TestDeadlineAtTheGrant(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		must(h.locks.Acquire(bound(t), acquire("holder", time.Second, 0)))(t)
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		first := h.awaitCtx(ctx, cancel, acquire("first", 3*time.Second, time.Hour))
		second := h.await(acquire("second", time.Second, time.Hour))
		<-first.done
		r := second.granted(t)
		if took := second.at.Sub(began); took != time.Second && took != 4*time.Second {
			t.Errorf("second was served after %v: %v; first: %v, %v", took, r, first.resp, first.err)
		}
	})
}

func TestStopSendsWaitersAway(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		holder := must(h.locks.Acquire(bound(t), acquire("holder", time.Hour, 0)))(t)
		began := time.Now()
		var queue []*pending
		for range 10 {
			queue = append(queue, h.await(acquire("waiter", time.Second, time.Hour)))
		}
		h.server.Stop(time.Minute)
		for _, p := range queue {
			<-p.done
			refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: 500 * time.Millisecond}.check(t, p.err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		a := must(h.store.Inspect(h.clock.Now(), owner.Ref{Key: "k", Name: "lock"}, 10))(t)
		if a.Waiting != 0 || a.Holding.Token != holder.Token || h.store.Stats().Waiting != 0 {
			t.Errorf("left in the queue: %+v", a)
		}
	})
}

// When the rule lets nobody in, waiting calls that leave still come back, and
// none of them is granted the lock later.
func TestLeavingWithoutAdmission(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		must(h.locks.Acquire(bound(t), acquire("holder", 10*time.Second, 0)))(t)
		began := time.Now()
		gone := h.await(acquire("gone", time.Hour, time.Hour))
		next := h.await(acquire("next", time.Second, time.Hour))
		h.rule.noAdmit.Store(true)
		gone.cancel()
		<-gone.done
		synctest.Wait()
		if n := h.store.Stats().Waiting; n != 1 {
			t.Errorf("%d wait", n)
		}
		h.rule.noAdmit.Store(false)
		if next.granted(t); next.at.Sub(began) != 10*time.Second {
			t.Errorf("next was served after %v", next.at.Sub(began))
		}
	})
}

// A wait that is over while the rule lets nobody in does not go on for ever.
func TestWaitEndsWithoutAdmission(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		must(h.locks.Acquire(bound(t), acquire("holder", time.Hour, 0)))(t)
		began := time.Now()
		p := h.await(acquire("waiter", time.Second, 10*time.Second))
		h.rule.noAdmit.Store(true)
		time.Sleep(time.Minute)
		h.rule.noAdmit.Store(false)
		<-p.done
		if p.err == nil && p.resp.Acquired || p.at.Sub(began) > 11*time.Second {
			t.Errorf("after %v: %v, %v", p.at.Sub(began), p.resp, p.err)
		}
	})
}

// The first attempt is granted the lock as its caller leaves; before it hears of
// that, a retry comes and is told that it holds the lock. Then it does: the
// first attempt no longer gives the grant back.
func TestRetryTakesTheGrantOver(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		holder := must(h.locks.Acquire(bound(t), acquire("holder", time.Hour, 0)))(t)
		id := reqid.ID{Client: reqid.Client{Lo: 1}, Sequence: 1}
		op := owner.AcquireLock{Holder: "a", TTL: int64(time.Minute), Wait: int64(time.Minute)}
		ref := owner.Ref{Key: "k", Name: "lock"}
		_, first, err := h.store.Acquire(h.clock.Now(), ref, id, op)
		if err != nil || first == nil {
			t.Fatal(first, err)
		}
		h.release(holder.Token)
		<-first.Done()
		again, second, err := h.store.Acquire(h.clock.Now(), ref, id, op)
		if err != nil || second != nil || !again.Replayed || again.TTL != int64(time.Minute) {
			t.Fatalf("the retry got %+v, %v, %v", again, second, err)
		}
		first.GiveUp(h.clock.Now())
		if r := must(h.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: "k"}))(t); r.Holder.GetToken() != again.Token {
			t.Errorf("one that was told that it holds the lock lost it: %v", r)
		}
	})
}
