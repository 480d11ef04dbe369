package rpc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/limit"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	sharedBurst = 2400
	sharedNanos = int64(time.Hour) // in which as much comes back: nothing, in a test
)

// shared is a demand of a limit of another key that a chunk may pay.
func shared(key string, cost uint64) *admissionpb.Demand {
	return &admissionpb.Demand{Key: key, Name: "all", Cost: cost, Anywhere: true, Limit: &admissionpb.LimitDemand{Limit: sharedBurst, PeriodNs: sharedNanos}}
}

func rises(most int64) *admissionpb.Demand {
	return &admissionpb.Demand{Name: "used", Counter: &admissionpb.CounterDemand{Max: most}}
}

// anywhere is a request of the second node's key, of which a chunk may pay what it demands of the first node's.
func (x *crossing) anywhere(cost uint64, most int64) *admissionpb.AdmitRequest {
	x.next++
	return &admissionpb.AdmitRequest{Key: x.keys[1], RequestId: x.id(x.next), Demands: []*admissionpb.Demand{rises(most), shared(x.keys[0], cost)}}
}

// left returns how much there is of the shared limit for checks anywhere at a node, and spends it.
func (x *crossing) left(node string) (sum uint64) {
	x.t.Helper()
	for {
		r := must(x.nodes[node].limits.Check(bound(x.t), &limitpb.CheckRequest{Key: x.keys[0], Name: "all", Limit: sharedBurst, PeriodNs: sharedNanos, Anywhere: true}))(x.t)
		if !r.Allowed {
			return sum
		}
		sum++
	}
}

// has checks how much is counted under the key of the second node.
func (x *crossing) has(want int64) {
	x.t.Helper()
	if r := must(x.nodes["n2"].counters.Get(bound(x.t), &counterpb.GetRequest{Key: x.keys[1], Name: "used"}))(x.t); r.Value != want {
		x.t.Errorf("%d are counted, want %d", r.Value, want)
	}
}

// TestAdmitAnywhere: the owner of the request's key pays the limit of another key out of its chunk, once for each
// request, however often it is sent and through whom, and the other key's owner hears of few.
func TestAdmitAnywhere(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		const n = 600
		for i := range n {
			q := x.anywhere(1, n)
			through := []string{"n1", "n2", "n3"}[i%3]
			a := x.admit(through, q)
			if d := a.Demands; !a.Admitted || a.Replay != nil || a.Owner != "n2" || a.Key != x.keys[1] || d[1].Capacity != sharedBurst || d[1].Reserved != 1 || d[0].Remaining != uint64(n-i-1) {
				t.Fatalf("%d: %v", i, a)
			}
			q.RequestId.AgeNs = 1
			if again := x.admit("n3", q); !again.Admitted || again.Replay == nil || again.Demands[1].Refused {
				t.Fatalf("%d: %v", i, again)
			}
			time.Sleep(time.Millisecond)
		}
		x.has(n)
		if calls := count(t, x.nodes["n1"].metrics.ops[opCheck].yes); calls > n/4 {
			t.Errorf("%v of %d were charged by calls to the owner", calls, n)
		}
		if left := x.left("n2"); left > sharedBurst*3/4-n || left < sharedBurst*3/4-n-n/4 {
			t.Errorf("%d are left after %d of %d", left, n, sharedBurst*3/4)
		}
		q := x.anywhere(1, n+5) // the shared limit refuses
		a := x.admit("n3", q)
		if a.Admitted || a.Demands[0].Refused || !a.Demands[1].Refused || a.RetryAfterNs <= 0 || a.RetryAfterNs != a.Demands[1].RetryAfterNs {
			t.Error(a)
		}
		x.has(n)
		time.Sleep(2 * time.Hour) // there is enough again, and what was refused stays so
		q.RequestId.AgeNs = int64(time.Second)
		q.RequestId.Sequence++
		x.next++
		if a := x.admit("n1", q); !a.Admitted {
			t.Error(a)
		}
	})
}

// TestAdmitAnywhereRefused: an Admit that is refused spends nothing, also when a chunk refuses, and says it again.
func TestAdmitAnywhereRefused(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		q := x.anywhere(1, 10)
		if a := x.admit("n2", q); !a.Admitted {
			t.Fatal(a)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		admitted := 1
		for range 90 { // all look before any is decided: they wait for one chunk
			q := x.anywhere(1, 10)
			wg.Go(func() {
				if x.admit("n2", q).Admitted {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		synctest.Wait() // what is not needed is given back
		if admitted != 10 {
			t.Errorf("%d are admitted of 10", admitted)
		}
		x.has(10)
		for i := range 20 { // what the rest refuses asks nobody for anything
			q := x.anywhere(1, 10)
			if i > 10 {
				q.RequestId = nil
			}
			if a := x.admit("n3", q); a.Admitted || !a.Demands[0].Refused || a.Demands[1].Refused || a.RetryAfterNs != 0 {
				t.Fatal(a)
			}
		}
		if left := x.left("n2"); left != sharedBurst*3/4-10 {
			t.Errorf("%d are left, want %d", left, sharedBurst*3/4-10)
		}
		refused := x.anywhere(1, 20)
		if a := x.admit("n3", refused); a.Admitted || !a.Demands[1].Refused {
			t.Error(a)
		}
		time.Sleep(time.Minute)
		refused.RequestId.AgeNs = int64(time.Minute)
		if a := x.admit("n1", refused); a.Admitted || a.Replay == nil {
			t.Error(a)
		}
		x.has(10)
	})
}

// TestAdmitAnywhereLooksFirst: for what the other demands refuse nothing is taken, of which a part would be lost.
func TestAdmitAnywhereLooksFirst(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		x.admit("n2", x.anywhere(1, 1))
		before := count(t, x.nodes["n1"].metrics.ops[opCheck].yes)
		for range 5 {
			if a := x.admit("n2", x.anywhere(1, 1)); a.Admitted {
				t.Error(a)
			}
			time.Sleep(2 * time.Second)
		}
		if n := count(t, x.nodes["n1"].metrics.ops[opCheck].yes); n != before {
			t.Errorf("%v chunks were taken", n-before)
		}
	})
}

// TestAdmitAnywhereAside: what no chunk can pay its owner decides, exactly; a request that was done in one way is not
// done again in the other one.
func TestAdmitAnywhereAside(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		own := &admissionpb.AdmitRequest{Demands: []*admissionpb.Demand{rises(9), shared(x.keys[0], 1)}}
		own.Key = x.group.keys("n1", 2, nil)[1]
		if a := x.admit("n3", own); !a.Admitted || a.Owner != "n1" { // its owner has a chunk of its own
			t.Error(a)
		}
		for i := range 4 { // what is kept back is for chunks
			q := x.anywhere(sharedBurst/4, 100)
			q.Demands[0].Name, q.Demands[1].Name = "others", "large"
			if a := x.admit("n3", q); a.Admitted != (i < 3) {
				t.Error(i, a)
			}
		}
		const cost = 60 // of 100 that one of three nodes may hold, and of 150 of two
		q := x.anywhere(cost, 100)
		for i := range 2 {
			q.RequestId.AgeNs = int64(i)
			if a := x.admit("n2", q); !a.Admitted || a.Owner != "n2" || i == 0 && a.Demands[1].Capacity != sharedBurst || (a.Replay != nil) != (i > 0) || a.Key == "" {
				t.Error(a)
			}
		}
		x.has(1)
		x.without("n3")
		x.called("c", owner.AdmissionLevel)
		time.Sleep(2 * time.Second)
		q.RequestId.AgeNs = int64(2 * time.Second)
		if a := x.admit("n2", q); !a.Admitted || a.Replay == nil { // its owners have voted
			t.Error(a)
		}
		x.has(1)
		q = x.anywhere(cost, 100)
		if a := x.admit("n2", q); !a.Admitted {
			t.Error(a)
		}
		x.apply(table.Command{Admit: &table.Admit{Member: table.Member{Node: "n3", Incarnation: 1, HashKey: "n3:7400", GRPCAddr: "n3:7400"}}})
		x.called("c", owner.AdmissionLevel)
		q.RequestId.AgeNs = int64(time.Second)
		if a := x.admit("n2", q); !a.Admitted || a.Replay == nil { // a chunk has paid
			t.Error(a)
		}
		x.has(2)
		must(x.nodes["n1"].limits.SetOverride(bound(t), &limitpb.SetOverrideRequest{Key: x.keys[0], Name: "all", Limit: 1, PeriodNs: sharedNanos}))(t)
		time.Sleep(2 * time.Second)
		if a := x.admit("n2", x.anywhere(1, 100)); a.Admitted || !a.Demands[1].Overridden || a.Demands[1].Capacity != 1 {
			t.Error(a)
		}
		time.Sleep(time.Second) // the other key's owner is told
		x.has(2)
		if a := x.admit("n1", &admissionpb.AdmitRequest{Key: x.keys[1], Peek: true, Demands: q.Demands}); a.Admitted || a.Demands[0].Remaining != 97 {
			t.Error(a)
		}
	})
}

// TestAdmitAnywhereAsideOpen: what the owner of the other key holds for an attempt that went no further is given back
// when a chunk pays for the next one.
func TestAdmitAnywhereAsideOpen(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		time.Sleep(2 * time.Second)
		q := x.anywhere(1, 100)
		aside := &admissionpb.AdmitRequest{RequestId: x.id(x.next), Demands: []*admissionpb.Demand{
			{Key: x.keys[0], Name: "all", Cost: 1000, Limit: q.Demands[1].Limit}, {Key: x.keys[1], Name: "used", Counter: q.Demands[0].Counter}}}
		if p := x.holds(x.coordinated(aside), 0); p[0] != across.Held {
			t.Fatal(p)
		}
		time.Sleep(time.Second / 5)
		q.RequestId.AgeNs = int64(time.Second / 5)
		if a := x.admit("n2", q); !a.Admitted || a.Replay != nil {
			t.Error(a)
		}
		time.Sleep(10 * time.Second)
		r := must(x.nodes["n1"].limits.Check(bound(t), &limitpb.CheckRequest{Key: x.keys[0], Name: "all", Limit: sharedBurst, PeriodNs: sharedNanos, Peek: true}))(t)
		if r.Remaining < sharedBurst-100 {
			t.Errorf("%d are left", r.Remaining)
		}
		x.has(1)
	})
}

// TestAdmitAnywhereOwnerGone: what cannot be taken is not refused but an error, and a repeated request is answered
// without its owner.
func TestAdmitAnywhereOwnerGone(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		q := x.anywhere(1, 10)
		x.admit("n2", q)
		x.nodes["n1"].stop()
		time.Sleep(2 * time.Second)
		if _, err := x.nodes["n2"].admissions.Admit(bound(t), x.anywhere(1, 10)); status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		x.has(1)
		q.RequestId.AgeNs = int64(2 * time.Second)
		if a := x.admit("n2", q); !a.Admitted || a.Replay == nil {
			t.Error(a)
		}
		x.has(1)
	})
}

// TestAdmitAnywhereBound: however Admits come, are refused and sent again, with checks anywhere and asides between, no
// more is admitted than an exact bucket has.
func TestAdmitAnywhereBound(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		const burst, rate, seconds = 800, 600, 3
		var mu sync.Mutex
		var exact limit.State
		var admitted uint64
		began := time.Now()
		spent := func(cost uint64) {
			next, res, _ := limit.Apply(exact, limit.Op{Params: limit.Params{Limit: rate, Period: 1e9, Burst: burst}, Cost: cost}, int64(time.Since(began)))
			if exact = next; !res.Allowed {
				t.Errorf("admitted %s after the start, and an exact bucket is empty", time.Since(began))
			}
			admitted += cost
		}
		demand := func(cost uint64) *admissionpb.Demand {
			return &admissionpb.Demand{Key: x.keys[0], Name: "all", Cost: cost, Anywhere: true, Limit: &admissionpb.LimitDemand{Limit: rate, PeriodNs: 1e9, Burst: burst}}
		}
		var wg sync.WaitGroup
		for n, name := range x.names() {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			key := x.group.keys(name, 2, nil)[1]
			wg.Go(func() {
				for i := range seconds * 300 {
					cost := uint64(1)
					if random.IntN(20) == 0 {
						cost = 40 // aside
					}
					mu.Lock()
					x.next++
					id := x.id(x.next)
					mu.Unlock()
					q := &admissionpb.AdmitRequest{Key: key, RequestId: id, Demands: []*admissionpb.Demand{rises(int64(i + 1)), demand(cost)}}
					a, err := x.nodes[x.names()[random.IntN(3)]].admissions.Admit(bound(t), q)
					mu.Lock()
					if err != nil {
						t.Error(err)
					} else if a.Admitted && a.Replay == nil {
						spent(cost)
					}
					if random.IntN(2) == 0 {
						r, err := x.nodes[name].limits.Check(bound(t), &limitpb.CheckRequest{Key: x.keys[0], Name: "all", Limit: rate, PeriodNs: 1e9, Burst: burst, Anywhere: true})
						if err == nil && r.Allowed {
							spent(1)
						}
					}
					mu.Unlock()
					time.Sleep(time.Second / 300)
				}
			})
		}
		wg.Wait()
		if admitted < (burst*3/4+rate*seconds)*3/4 {
			t.Errorf("%d are admitted", admitted)
		}
	})
}

// TestAdmitAnywhereInvalid: what chunks do not pay for is said, with the demand that it is of.
func TestAdmitAnywhereInvalid(t *testing.T) {
	crossed(t, 2, func(t *testing.T, x *crossing) {
		for name, tc := range map[string]struct {
			change func(*admissionpb.AdmitRequest)
			field  string
		}{
			"a hold":         {func(q *admissionpb.AdmitRequest) { q.HoldNs = int64(time.Second) }, "demands[1].anywhere"},
			"a tag":          {func(q *admissionpb.AdmitRequest) { q.HoldTag, q.RequestId = "t", nil }, "demands[1].anywhere"},
			"an idempotency": {func(q *admissionpb.AdmitRequest) { q.IdempotencyKey, q.RequestId = "k", nil }, "idempotency_key"},
			"a counter": {func(q *admissionpb.AdmitRequest) {
				q.Demands[1].Limit, q.Demands[1].Counter = nil, &admissionpb.CounterDemand{Max: 1}
			}, "demands[1].anywhere"},
			"slots": {func(q *admissionpb.AdmitRequest) {
				q.Demands[1].Limit, q.Demands[1].Slots = nil, &admissionpb.SlotsDemand{Max: 1}
			}, "demands[1].anywhere"},
			"a fixed window": {func(q *admissionpb.AdmitRequest) {
				q.Demands[1].Limit.Algorithm = limitpb.Algorithm_ALGORITHM_FIXED_WINDOW
			}, "demands[1].anywhere"},
			"a leaky bucket": {func(q *admissionpb.AdmitRequest) {
				q.Demands[1].Limit.Algorithm = limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET
			}, "demands[1].anywhere"},
			"a clamp":           {func(q *admissionpb.AdmitRequest) { q.Demands[1].ClampPercent = 10 }, "demands[1].clamp_percent"},
			"no key":            {func(q *admissionpb.AdmitRequest) { q.Demands[1].Key = "" }, "demands[1].anywhere"},
			"its own key":       {func(q *admissionpb.AdmitRequest) { q.Demands[1].Key = q.Key }, "demands[1].anywhere"},
			"nothing else":      {func(q *admissionpb.AdmitRequest) { q.Demands = q.Demands[1:] }, "demands[0].anywhere"},
			"other keys":        {func(q *admissionpb.AdmitRequest) { q.Demands = append(q.Demands, rises(1)); q.Demands[2].Key = "other" }, "demands[2].key"},
			"twice":             {func(q *admissionpb.AdmitRequest) { q.Demands = append(q.Demands, shared(x.keys[0], 1)) }, "demands[2].anywhere"},
			"no period":         {func(q *admissionpb.AdmitRequest) { q.Demands[1].Limit.PeriodNs = 0 }, "demands[1].limit.period_ns"},
			"more than it has":  {func(q *admissionpb.AdmitRequest) { q.Demands[1].Cost = sharedBurst + 1 }, "demands[1].cost"},
			"what is kept back": {func(q *admissionpb.AdmitRequest) { q.Demands[1].Cost = sharedBurst }, "demands[1].cost"},
			"the rest": {func(q *admissionpb.AdmitRequest) {
				q.Demands = append(q.Demands, &admissionpb.Demand{Name: "rpm", Cost: 11, Limit: &admissionpb.LimitDemand{Limit: 10, PeriodNs: 1e9}})
			}, "demands[2].cost"},
			"too many": {func(q *admissionpb.AdmitRequest) { q.Demands = slices.Repeat(q.Demands, 9) }, "demands"},
		} {
			q := x.anywhere(1, 10)
			tc.change(q)
			_, err := x.nodes["n1"].admissions.Admit(bound(t), q)
			want := badField(tc.field)
			want.hint = strings.HasSuffix(tc.field, "anywhere") || strings.HasSuffix(tc.field, "key") || slices.Contains([]string{"a clamp", "what is kept back"}, name)
			want.check(in(t, name), err)
		}
		x.has(0)
		if left := x.left("n2"); left != sharedBurst*3/4 {
			t.Errorf("%d are left", left)
		}
	})
}

// TestAdmitAnywhereAlone: a node without others has no chunks, and decides all.
func TestAdmitAnywhereAlone(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		for i := range 3 {
			q := &admissionpb.AdmitRequest{Key: "k", Demands: []*admissionpb.Demand{rises(9), shared("l", sharedBurst/2)}, RequestId: requestN(1, uint64(i+1))}
			if a := must(h.admissions.Admit(bound(t), q))(t); a.Admitted != (i < 2) || a.Demands[1].Refused != (i == 2) {
				t.Error(fmt.Sprint(i, a))
			}
		}
	})
}

// BenchmarkAdmitAnywhere is an Admit of one limit of the request's key at its owner, with and without a limit of another
// key whose owner is another node: out of a chunk, and as an admission of two keys.
func BenchmarkAdmitAnywhere(b *testing.B) {
	for _, of := range []string{"own", "anywhere", "across"} {
		b.Run(of, func(b *testing.B) {
			g := grouped(b, 3, true, nil)
			g.called("c", owner.AdmissionLevel)
			for _, m := range g.nodes {
				go m.server.Across(b.Context())
			}
			limit := &admissionpb.LimitDemand{Limit: 1e9, PeriodNs: 1e9}
			q := &admissionpb.AdmitRequest{Key: g.key("n2"), Demands: []*admissionpb.Demand{{Name: "rpm", Limit: limit}, {Key: g.key("n1"), Name: "all", Limit: limit, Anywhere: of == "anywhere"}}}
			if of == "own" {
				q.Demands = q.Demands[:1]
			}
			ctx := b.Context()
			b.ReportAllocs()
			b.SetParallelism(16)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if a, err := g.nodes["n2"].admissions.Admit(ctx, q); err != nil || !a.Admitted {
						b.Error(a, err)
						return
					}
				}
			})
		})
	}
}
