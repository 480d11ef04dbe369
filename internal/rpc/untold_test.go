package rpc

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestUntoldParts: so is what the home of a split object and its parts tell each other.
func TestUntoldParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &lapsing{}
		g := grouped(t, 1, false, func(c *Config) { c.Copies = copies })
		n := g.nodes["n1"]
		a := must(n.store.Add(n.clock.Now(), owner.Ref{Key: "k", Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 1}))(t)
		for read, want := range map[bool]error{false: errUntold, true: errUntoldRead} {
			if err := n.server.replicated(a.Meta, read); err != want {
				t.Errorf("read %v: %v", read, err)
			}
		}
		copies.had.Store(true)
		if err := n.server.replicated(a.Meta, false); err != nil {
			t.Error(err)
		}
	})
}

// lapsing are copies for which every wait gives up, as it does when the lease ends; the
// rule confirms all the same, as it does when the lease is back.
type lapsing struct{ had atomic.Bool }

func (l *lapsing) Replicated(uint64) bool { return l.had.Load() }

func (l *lapsing) Await(uint64) bool { return false }

func (l *lapsing) Behind(uint64) table.Behind { return table.Behind{agreed.Holder("copy")} }

func (l *lapsing) AwaitOf(context.Context, uint64, table.Holder) bool { return false }

// TestUntoldIsUnknown: an operation whose wait for the standby was given up is not
// acknowledged, although the node may answer again by then. A read did nothing.
func TestUntoldIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, func(c *Config) { c.Copies = &lapsing{} })
		unknown := refusal{code: codes.Unknown, why: commonpb.Reason_REASON_OUTCOME_UNKNOWN, hint: true, retry: 200 * time.Millisecond}
		ctx := bound(t)
		for where, node := range map[string]string{"at the owner": "n1", "passed on": "n2"} {
			n, key := g.nodes[node], g.key("n1")
			check := &limitpb.CheckRequest{Key: key, Limit: 10, PeriodNs: int64(time.Hour)}
			add := &counterpb.AddRequest{Key: key, Delta: 1}
			changes := map[string]func() error{
				"check": func() error { _, err := n.limits.Check(ctx, check); return err },
				"add":   func() error { _, err := n.counters.Add(ctx, add); return err },
				"set": func() error {
					_, err := n.counters.CompareAndSet(ctx, &counterpb.CompareAndSetRequest{Key: key, Value: 1})
					return err
				},
				"reset": func() error { _, err := n.counters.Reset(ctx, &counterpb.ResetRequest{Key: key}); return err },
				"acquire": func() error {
					_, err := n.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: "h", TtlNs: int64(time.Minute)})
					return err
				},
				"renew": func() error {
					_, err := n.locks.Renew(ctx, &lockpb.RenewRequest{Key: key, Token: 1, TtlNs: int64(time.Minute)})
					return err
				},
				"release": func() error { _, err := n.locks.Release(ctx, &lockpb.ReleaseRequest{Key: key, Token: 1}); return err },
			}
			reads := map[string]func() error{
				"get":     func() error { _, err := n.counters.Get(ctx, &counterpb.GetRequest{Key: key}); return err },
				"inspect": func() error { _, err := n.locks.Inspect(ctx, &lockpb.InspectRequest{Key: key}); return err },
				"peek": func() error {
					_, err := n.limits.Check(ctx, &limitpb.CheckRequest{Key: key, Limit: 10, PeriodNs: int64(time.Hour), Peek: true})
					return err
				},
			}
			for what, call := range changes {
				t.Log(where, what)
				unknown.check(t, call())
			}
			for what, call := range reads {
				t.Log(where, what)
				unavailable.check(t, call())
			}
			batch := must(n.limits.BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{check, check}}))(t)
			for i, r := range batch.Results {
				if r.GetError().GetReason() != commonpb.Reason_REASON_OUTCOME_UNKNOWN {
					t.Errorf("%s, item %d of a batch: %v", where, i, r)
				}
			}
		}
	})
}
