package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// turnOf asks for a turn of a queue of five places, ten a second.
func turnOf(key string, most time.Duration) *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: key, Limit: 10, PeriodNs: int64(time.Second), Burst: 5, Algorithm: limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET, MaxDelayNs: int64(most)}
}

// TestTurns: through any node, one by one and in a batch, requests are told when they may run.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.LeakyLevel)
		for _, n := range []string{"n1", "n2"} {
			key := g.key(n)
			check := func(q *limitpb.CheckRequest) *limitpb.CheckResponse {
				t.Helper()
				return must(g.nodes["n1"].limits.Check(bound(t), q))(t)
			}
			first := turnOf(key, 0)
			if r := check(first); !r.Allowed || r.DelayNs != 0 || r.Capacity != 5 || r.Remaining != 4 || r.Limit != 10 {
				t.Errorf("at %s: %v", n, r)
			}
			second := turnOf(key, time.Second)
			second.RequestId = requestN(7, 1)
			if r := check(second); !r.Allowed || r.DelayNs != int64(100*time.Millisecond) || r.Remaining != 3 {
				t.Errorf("at %s: %v", n, r)
			}
			b := must(g.nodes["n1"].limits.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{turnOf(key, 150*time.Millisecond), turnOf(key, time.Second), turnOf(key, 300*time.Millisecond)}}))(t)
			if r := b.Results[0].Response; r.GetAllowed() || r.GetDelayNs() != 0 || r.GetRetryAfterNs() != int64(50*time.Millisecond) {
				t.Errorf("at %s, in a batch: %v", n, b.Results[0])
			}
			for i, delay := range []time.Duration{200 * time.Millisecond, 300 * time.Millisecond} {
				if r := b.Results[i+1].Response; !r.GetAllowed() || r.GetDelayNs() != int64(delay) {
					t.Errorf("at %s, in a batch: %v", n, b.Results[i+1])
				}
			}
			time.Sleep(40 * time.Millisecond)
			if r := check(second); !r.Allowed || r.DelayNs != int64(60*time.Millisecond) || r.Replay.GetAgeNs() != int64(40*time.Millisecond) {
				t.Errorf("at %s, again: %v", n, r)
			}
			look := turnOf(key, time.Second)
			look.Peek = true
			if r := check(look); !r.Allowed || r.DelayNs != int64(360*time.Millisecond) {
				t.Errorf("at %s, a peek: %v", n, r)
			}
			back := turnOf(key, 0)
			back.Refund = 9
			if r := check(back); !r.Allowed || r.Remaining != 5 || r.DelayNs != 0 {
				t.Errorf("at %s, a refund: %v", n, r)
			}
		}
	})
}

// TestTurnsNeedTheirLevel: a node of before does not know leaky buckets, and is not asked for a
// turn, alone or in a batch.
func TestTurnsNeedTheirLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.LeakyLevel-1)
		next := *g.nodes["n2"].Table() // it has heard of the level already
		next.Level = owner.LeakyLevel
		g.nodes["n2"].Set(&next)
		for _, at := range []string{"n1", "n2"} {
			_, err := g.nodes["n1"].limits.Check(bound(t), turnOf(g.key(at), 0))
			refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(in(t, "of "+at), err)
			b := must(g.nodes["n1"].limits.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{turnOf(g.key(at), 0)}}))(t)
			if e := b.Results[0].Error; e.GetReason() != commonpb.Reason_REASON_UNAVAILABLE {
				t.Errorf("of %s, in a batch: %v", at, b.Results[0])
			}
		}
	})
}

// TestTurnsAreMisused: what no leaky bucket can do is refused before anything happens.
func TestTurnsAreMisused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 1, false, nil)
		g.called("c", owner.LeakyLevel)
		for field, change := range map[string]func(*limitpb.CheckRequest){
			"max_delay_ns": func(q *limitpb.CheckRequest) { q.Algorithm = limitpb.Algorithm_ALGORITHM_FIXED_WINDOW; q.Burst = 0 },
			"anywhere":     func(q *limitpb.CheckRequest) { q.Anywhere = true },
			"refund":       func(q *limitpb.CheckRequest) { q.Refund = 1 },
			"cost":         func(q *limitpb.CheckRequest) { q.Cost = 6 },
		} {
			q := turnOf("k", time.Second)
			change(q)
			_, err := g.nodes["n1"].limits.Check(bound(t), q)
			refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: field, hint: field == "anywhere"}.check(in(t, field), err)
		}
	})
}
