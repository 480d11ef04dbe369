package rpc

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// Answers about what was lost say so, and locks are taken from who claims them,
// through whatever node.
func TestLostAndForwarded(t *testing.T) {
	for _, at := range []string{"n1", "n2"} {
		t.Run(at, func(t *testing.T) {
			inGroup(t, func(t *testing.T, g *group) {
				key, m := g.key("n2"), g.nodes[at]
				_, since, _ := m.Table().Owner(owner.Hash(key))
				lost := since + 5
				g.nodes["n2"].lost.Store(lost)
				for what, mark := range map[string]interface{ GetLostEpoch() uint64 }{
					"check":         must(m.limits.Check(bound(t), &limitpb.CheckRequest{Key: key, Limit: 1, PeriodNs: 1e9}))(t),
					"batch check":   must(m.limits.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{{Key: key, Limit: 1, PeriodNs: 1e9}}}))(t).Results[0].Response,
					"add":           must(m.counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1}))(t),
					"batch add":     must(m.counters.BatchAdd(bound(t), &counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{{Key: key, Delta: 1}}}))(t).Results[0].Response,
					"get":           must(m.counters.Get(bound(t), &counterpb.GetRequest{Key: key}))(t),
					"batch get":     must(m.counters.BatchGet(bound(t), &counterpb.BatchGetRequest{Gets: []*counterpb.GetRequest{{Key: key}}}))(t).Results[0].Response,
					"set if":        must(m.counters.CompareAndSet(bound(t), &counterpb.CompareAndSetRequest{Key: key, Version: 99}))(t),
					"reset":         must(m.counters.Reset(bound(t), &counterpb.ResetRequest{Key: key}))(t),
					"inspect":       must(m.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: key}))(t),
					"renew":         must(m.locks.Renew(bound(t), &lockpb.RenewRequest{Key: key, Token: 1, TtlNs: 1e9, Reclaim: &lockpb.Reclaim{LeftNs: 1, Holder: "h"}}))(t),
					"renew, passed": must(m.locks.Renew(bound(t), &lockpb.RenewRequest{Key: key, Token: lost << owner.SeqBits, TtlNs: 1e9}))(t),
					"release":       must(m.locks.Release(bound(t), &lockpb.ReleaseRequest{Key: key, Token: lost << owner.SeqBits}))(t),
				} {
					if mark.GetLostEpoch() != lost {
						t.Errorf("%s: lost in %d, not in %d", what, mark.GetLostEpoch(), lost)
					}
				}
				token := (lost-1)<<owner.SeqBits | 7
				r := must(m.locks.Renew(bound(t), &lockpb.RenewRequest{Key: key, Token: token, TtlNs: 1e9, Reclaim: &lockpb.Reclaim{LeftNs: 5e9, Holder: "h", Metadata: []byte("m")}}))(t)
				if !r.Renewed || !r.Reclaimed || r.TtlNs != 5e9 {
					t.Errorf("%v", r)
				}
				if h := must(m.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: key}))(t).Holder; h.GetToken() != token || h.Id != "h" || string(h.Metadata) != "m" {
					t.Errorf("%v", h)
				}
				want := refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_RECOVERING, hint: true, retry: 24*time.Hour - time.Duration(g.nodes["n2"].clock.Now())}
				_, err := m.locks.Acquire(bound(t), wants(key, "x", time.Second))
				want.check(in(t, "acquire"), err)
				_, err = m.locks.Renew(bound(t), &lockpb.RenewRequest{Key: key, Name: "other", Token: token, TtlNs: 1e9})
				want.check(in(t, "renew"), err)
				_, err = m.locks.Release(bound(t), &lockpb.ReleaseRequest{Key: key, Name: "other", Token: token})
				want.check(in(t, "release"), err)
				g.nodes["n2"].lost.Store(0)
				if a := must(m.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: key}))(t); a.LostEpoch != 0 || a.Holder.GetToken() != token {
					t.Errorf("when it is over: %v", a)
				}
			})
		})
	}
}
