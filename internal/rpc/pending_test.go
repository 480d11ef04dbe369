package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/tests/agreed"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// slow are copies that have what was decided a second later.
type slow struct{ awaited int }

func (s *slow) Replicated(uint64) bool { return false }

func (s *slow) Await(uint64) bool {
	s.awaited++
	time.Sleep(time.Second)
	return true
}

func (s *slow) Behind(uint64) table.Behind { return table.Behind{agreed.Holder("copy")} }

func (s *slow) AwaitOf(_ context.Context, hash uint64, _ table.Holder) bool { return s.Await(hash) }

// TestAnswersWaitForCopies: each answer does, one by one and in batches, but for
// those of kinds that are told not to.
func TestAnswersWaitForCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &slow{}
		h, _ := clusterOf(t, Config{Node: "n1", Copies: copies, AckOwner: []string{"counters"}})
		limits, counters, locks := limitpb.NewLimitServiceClient(h.conn), counterpb.NewCounterServiceClient(h.conn), lockpb.NewLockServiceClient(h.conn)
		ctx := bound(t)
		took := func(what string, want time.Duration, call func() error) {
			t.Helper()
			began := time.Now()
			if err := call(); err != nil {
				t.Fatal(what, err)
			}
			if got := time.Since(began).Truncate(time.Second); got != want {
				t.Errorf("%s took %s, want %s", what, got, want)
			}
		}
		check := &limitpb.CheckRequest{Key: "k", Limit: 10, PeriodNs: int64(time.Hour)}
		took("a check", time.Second, func() error { _, err := limits.Check(ctx, check); return err })
		took("a batch of checks", 2*time.Second, func() error {
			_, err := limits.BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{check, check}})
			return err
		})
		took("an add", 0, func() error { _, err := counters.Add(ctx, &counterpb.AddRequest{Key: "k", Delta: 1}); return err })
		took("a read of a lock", time.Second, func() error { _, err := locks.Inspect(ctx, &lockpb.InspectRequest{Key: "k"}); return err })
		if copies.awaited != 4 {
			t.Errorf("%d answers waited", copies.awaited)
		}
	})
}

// TestForwardedAnswersWaitForCopies: so do answers to what another node has passed
// on; and each is confirmed by the owner when it leaves.
func TestForwardedAnswersWaitForCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var copies []*slow
		g := grouped(t, 2, false, func(c *Config) {
			copies = append(copies, &slow{})
			c.Copies = copies[len(copies)-1]
		})
		began := time.Now()
		must(g.nodes["n1"].counters.Add(bound(t), &counterpb.AddRequest{Key: g.key("n2"), Delta: 1}))(t)
		if took := time.Since(began).Truncate(time.Second); took != time.Second || copies[0].awaited+copies[1].awaited != 1 {
			t.Errorf("it took %s, and %d and %d answers waited", took, copies[0].awaited, copies[1].awaited)
		}
	})
}

// TestBatchDoesNotHoldUpOthers: what belongs to other nodes is on its way while this
// one waits for the copies of its own; one whose standby hangs keeps nothing back.
func TestBatchDoesNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, func(c *Config) { c.Copies = &slow{} })
		check := func(node string) *limitpb.CheckRequest {
			return &limitpb.CheckRequest{Key: g.key(node), Limit: 10, PeriodNs: int64(time.Hour)}
		}
		began := time.Now()
		r := must(g.nodes["n1"].limits.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{check("n1"), check("n2"), check("n3"), check("n1")}}))(t)
		if took := time.Since(began).Truncate(time.Second); took != 2*time.Second { // two at n1, one after the other
			t.Errorf("it took %s", took)
		}
		for i, left := range []uint64{9, 9, 9, 8} {
			if a := r.Results[i].Response; a.GetRemaining() != left || !a.Allowed {
				t.Errorf("item %d: %v", i, r.Results[i])
			}
		}
	})
}

// TestForwardedAnswersAreConfirmed: what another node has passed on is not answered
// when the row has left the owner meanwhile.
func TestForwardedAnswersAreConfirmed(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		key := g.key("n2")
		leave := func() { g.without("n2") }
		g.nodes["n2"].confirm.Store(&leave)
		_, err := g.nodes["n1"].counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1})
		refusal{code: codes.Unknown, why: commonpb.Reason_REASON_OUTCOME_UNKNOWN}.check(t, err)
	})
}
