package rpc

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/chunk"
	"github.com/keystead/keystead/owner/limit"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

func anywhereCheck(key string, cost uint64) *limitpb.CheckRequest {
	return &limitpb.CheckRequest{Key: key, Limit: 1000, PeriodNs: 1e9, Burst: 2400, Cost: cost, Anywhere: true}
}

// TestAnywhere: a node that does not own the key answers by itself, most of the
// time, and no more is allowed than an exact bucket allows. What is refused early
// is within the bound.
func TestAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		key := g.key("n1")
		var mu sync.Mutex
		var exact limit.State
		var allowed, denied int
		began := time.Now()
		call := func(name string) {
			r, err := g.nodes[name].limits.Check(bound(t), &limitpb.CheckRequest{Key: key, Limit: 600, PeriodNs: 1e9, Burst: 800, Anywhere: true})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Error(err)
			case r.Slack != 200 || r.Capacity != 800 || r.Owner != "n1" || r.Epoch == 0:
				t.Errorf("%v", r)
			case !r.Allowed:
				if denied++; r.RetryAfterNs <= 0 {
					t.Errorf("%v", r)
				}
			default:
				allowed++
				next, res, _ := limit.Apply(exact, limit.Op{Params: limit.Params{Limit: 600, Period: 1e9, Burst: 800}, Cost: 1}, int64(time.Since(began)))
				if exact = next; !res.Allowed {
					t.Errorf("allowed %s after the start, and an exact bucket is empty", time.Since(began))
				}
			}
		}
		const seconds = 2
		var wg sync.WaitGroup
		for name := range g.nodes {
			wg.Go(func() {
				for range seconds * 450 { // 1,350 a second in all
					call(name)
					time.Sleep(time.Second / 450)
				}
			})
		}
		wg.Wait()
		most := 800 + 600*seconds
		if least := 800 - 200 + 600*seconds*4/5; allowed > most || allowed < least || allowed+denied != 3*seconds*450 {
			t.Errorf("%d allowed and %d denied, of %d to %d", allowed, denied, least, most)
		}
		calls := count(t, g.nodes["n1"].metrics.received)
		t.Logf("%d allowed, %d denied, %.0f calls of %d passed on", allowed, denied, calls, 2*seconds*450)
		if calls > 2*seconds*450*3/4 { // at its limit a bucket has tokens for one call at a time
			t.Errorf("%.0f calls of %d were passed on", calls, 2*seconds*450)
		}
	})
}

// TestAnywhereFewCalls: below the limit, almost all are decided where they come.
func TestAnywhereFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		key := g.key("n1")
		for range 1000 { // 400 a second
			if r := must(g.nodes["n2"].limits.Check(bound(t), anywhereCheck(key, 1)))(t); !r.Allowed {
				t.Fatalf("%v", r)
			}
			time.Sleep(2500 * time.Microsecond)
		}
		if calls := count(t, g.nodes["n1"].metrics.received); calls > 100 {
			t.Errorf("%v of 1,000 calls were passed on", calls)
		}
		m := g.nodes["n2"].metrics
		if yes := count(t, m.ops[opSpend].yes); yes != 1000 {
			t.Errorf("%v are counted", yes)
		}
	})
}

// TestAnywhereKeepsBack: what nodes hold and the whole bucket, which has come back
// since, are no more than the burst.
func TestAnywhereKeepsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		key := g.key("n1")
		spend := func(name string, cost uint64) (spent uint64) {
			for {
				r := must(g.nodes[name].limits.Check(bound(t), anywhereCheck(key, cost)))(t)
				if !r.Allowed {
					return spent
				}
				spent += cost
			}
		}
		for range 300 {
			for _, name := range []string{"n2", "n3"} {
				must(g.nodes[name].limits.Check(bound(t), anywhereCheck(key, 1)))(t)
			}
		}
		time.Sleep(chunk.Lease - 10*time.Millisecond) // 1,000 tokens come back
		at := spend("n1", 100)
		var held uint64
		for _, name := range []string{"n2", "n3"} {
			held += spend(name, 1)
		}
		if held == 0 || at < 1700 || at+held > 2400 {
			t.Errorf("%d were spent at the owner and %d were held, of 2400", at, held)
		}
	})
}

// TestAnywhereNodeDies: what a dead node held is spent for the others, and comes
// back as everything does; it is never spent twice.
func TestAnywhereNodeDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		key := g.key("n1")
		spent := uint64(0)
		for range 500 { // n2 comes to hold a chunk
			if r := must(g.nodes["n2"].limits.Check(bound(t), anywhereCheck(key, 1)))(t); r.Allowed {
				spent++
			}
			time.Sleep(time.Millisecond)
		}
		g.nodes["n2"].stop()
		left := must(g.nodes["n1"].limits.Check(bound(t), &limitpb.CheckRequest{Key: key, Limit: 1000, PeriodNs: 1e9, Burst: 2400, Peek: true}))(t).Remaining
		if held := 2400 - left; held > 100+100 {
			t.Errorf("%d are missing in the bucket with %d spent in half a second", held, spent)
		}
		time.Sleep(3 * time.Second)
		if r := must(g.nodes["n3"].limits.Check(bound(t), anywhereCheck(key, 1)))(t); !r.Allowed || r.Remaining < 1700 {
			t.Errorf("%v", r)
		}
	})
}

// TestAnywhereOwnerDies: a node goes on with what it holds for a lease, and then
// says that it cannot decide; with the next owner it can.
func TestAnywhereOwnerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		key := g.key("n1")
		at := g.nodes["n2"].limits
		for range 300 {
			must(at.Check(bound(t), anywhereCheck(key, 1)))(t)
			time.Sleep(time.Millisecond)
		}
		g.nodes["n1"].stop()
		began, answered := time.Now(), 0
		for {
			_, err := at.Check(bound(t), anywhereCheck(key, 1))
			if err != nil {
				if in := time.Since(began); in > 2*chunk.Lease {
					t.Errorf("it failed after %s", in)
				}
				break
			}
			answered++
			time.Sleep(10 * time.Millisecond)
		}
		if answered > 98 {
			t.Errorf("%d answers without an owner", answered)
		}
		g.without("n1")
		if r := must(at.Check(bound(t), anywhereCheck(key, 1)))(t); r.Owner == "n1" {
			t.Errorf("%v", r)
		}
	})
}

// TestAnywhereWhoAnswers: what no chunk is for goes to the owner, and says so in slack.
func TestAnywhereWhoAnswers(t *testing.T) {
	g := grouped(t, 2, false, nil)
	key, at := g.key("n1"), g.nodes["n2"].limits
	tests := map[string]struct {
		change func(*limitpb.CheckRequest)
		slack  uint64
		field  string
	}{
		"a bucket":         {func(*limitpb.CheckRequest) {}, 600, ""},
		"no burst":         {func(r *limitpb.CheckRequest) { r.Burst = 0 }, 250, ""},
		"a small one":      {func(r *limitpb.CheckRequest) { r.Burst = 12 }, 0, ""},
		"a peek":           {func(r *limitpb.CheckRequest) { r.Peek = true }, 0, ""},
		"a large cost":     {func(r *limitpb.CheckRequest) { r.Cost = 1700 }, 600, ""},
		"a larger cost":    {func(r *limitpb.CheckRequest) { r.Cost = 1801 }, 0, "cost"},
		"the largest cost": {func(r *limitpb.CheckRequest) { r.Cost = 2401 }, 0, "cost"},
		"a window":         {func(r *limitpb.CheckRequest) { r.Algorithm, r.Burst = limitpb.Algorithm_ALGORITHM_FIXED_WINDOW, 0 }, 0, "anywhere"},
		"an id":            {func(r *limitpb.CheckRequest) { r.RequestId = requestN(1, 1) }, 0, "request_id"},
		"a refund":         {func(r *limitpb.CheckRequest) { r.Cost, r.Refund = 0, 1 }, 0, "refund"},
		"no limit":         {func(r *limitpb.CheckRequest) { r.Limit = 0 }, 0, "limit"},
		"no key":           {func(r *limitpb.CheckRequest) { r.Key = "" }, 0, "key"},
		"a long key":       {func(r *limitpb.CheckRequest) { r.Key = string(make([]byte, 513)) }, 0, "key"},
		"too great":        {func(r *limitpb.CheckRequest) { r.Burst = math.MaxUint64 }, 0, "burst"},
	}
	n := 0
	for name, tc := range tests {
		n++
		req := anywhereCheck(key, 1)
		req.Name = fmt.Sprint("l", n)
		tc.change(req)
		r, err := at.Check(bound(t), req)
		if tc.field != "" {
			if err == nil {
				t.Errorf("%s: %v", name, r)
				continue
			}
			f := refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: tc.field}
			f.hint = tc.field == "anywhere" || tc.field == "request_id" || tc.field == "refund" || name == "a larger cost"
			f.check(in(t, name), err)
			continue
		}
		if err != nil || !r.Allowed || r.Slack != tc.slack {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	alone := build(t, nil).limits
	if r := must(alone.Check(bound(t), anywhereCheck(key, 2400)))(t); !r.Allowed || r.Slack != 0 {
		t.Errorf("a node that is alone: %v", r)
	}
	_, err := alone.Check(bound(t), &limitpb.CheckRequest{Key: key, Limit: 10, PeriodNs: 1e9, Algorithm: limitpb.Algorithm_ALGORITHM_FIXED_WINDOW, Anywhere: true})
	refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "anywhere", hint: true}.check(t, err)
}
