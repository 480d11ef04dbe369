package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// ticketed is a lock or a semaphore of one permit, asked through one node.
type ticketed func(ctx context.Context, holder string, wait, ticket time.Duration) (token uint64, waiting bool, place uint32, err error)

func ticketsOf(t *testing.T, m *member, key string) map[string]ticketed {
	id := func(holder string) *commonpb.RequestId {
		if holder == "a" {
			return nil
		}
		return requestN(uint64(holder[0]), 1)
	}
	semaphores := semaphorepb.NewSemaphoreServiceClient(m.conn)
	return map[string]ticketed{
		"lock": func(ctx context.Context, holder string, wait, ticket time.Duration) (uint64, bool, uint32, error) {
			r, err := m.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: holder, TtlNs: int64(time.Minute), WaitNs: int64(wait), TicketTtlNs: int64(ticket), RequestId: id(holder)})
			return r.GetToken(), r.GetWaiting(), r.GetQueuePosition(), err
		},
		"semaphore": func(ctx context.Context, holder string, wait, ticket time.Duration) (uint64, bool, uint32, error) {
			r, err := semaphores.Acquire(ctx, &semaphorepb.AcquireRequest{Key: key, Holder: holder, Capacity: 1, TtlNs: int64(time.Minute), WaitNs: int64(wait), TicketTtlNs: int64(ticket), RequestId: id(holder)})
			return r.GetToken(), r.GetWaiting(), r.GetQueuePosition(), err
		},
	}
}

func (f ticketed) ask(t *testing.T, holder string, wait, ticket time.Duration) (uint64, bool, uint32) {
	t.Helper()
	token, waiting, place, err := f(bound(t), holder, wait, ticket)
	if err != nil {
		t.Fatal(err)
	}
	return token, waiting, place
}

// TestTickets: through any node, a place stands when its wait is over and when its caller is gone,
// and is told of at once or after the wait.
func TestTickets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.TicketLevel)
		for _, n := range []string{"n1", "n2"} {
			for what, ask := range ticketsOf(t, g.nodes[n], "of "+n) {
				held, _, _ := ask.ask(t, "a", 0, 0)
				if token, waiting, place := ask.ask(t, "b", 0, time.Hour); token != 0 || !waiting || place != 1 {
					t.Errorf("%s through %s: %d %v %d", what, n, token, waiting, place)
				}
				began := time.Now()
				if token, waiting, place := ask.ask(t, "c", 5*time.Second, time.Hour); token != 0 || !waiting || place != 2 || time.Since(began) < 5*time.Second {
					t.Errorf("%s through %s: %d %v %d after %v", what, n, token, waiting, place, time.Since(began))
				}
				gone, leave := context.WithTimeout(context.Background(), time.Second)
				if _, _, _, err := ask(gone, "b", 10*time.Second, time.Hour); err == nil {
					t.Error("it was answered")
				}
				leave()
				synctest.Wait()
				if token, waiting, place := ask.ask(t, "b", 0, time.Hour); token != 0 || !waiting || place != 1 {
					t.Errorf("%s through %s, gone before: %d %v %d", what, n, token, waiting, place)
				}
				time.Sleep(time.Minute) // its lease is over
				token, waiting, _ := ask.ask(t, "b", 0, time.Hour)
				if token <= held || waiting {
					t.Errorf("%s through %s: %d after %d, %v", what, n, token, held, waiting)
				}
				if again, _, _ := ask.ask(t, "b", 0, time.Hour); again != token {
					t.Errorf("%s through %s: %d, and then %d", what, n, token, again)
				}
			}
		}
	})
}

// TestTicketsNeedTheirLevel: a node of before does not know that a place is to stand, and is sent no
// such request.
func TestTicketsNeedTheirLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.TicketLevel-1)
		next := *g.nodes["n2"].Table() // it has heard of the level already
		next.Level = owner.TicketLevel
		g.nodes["n2"].Set(&next)
		for _, at := range []string{"n1", "n2"} {
			for what, ask := range ticketsOf(t, g.nodes["n1"], g.key(at)) {
				_, _, _, err := ask(bound(t), "b", 0, time.Minute)
				refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(in(t, what+" of "+at), err)
			}
		}
	})
}
