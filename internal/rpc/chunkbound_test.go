package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/chunk"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// quickRate is one at which a bucket is full again a moment after it was empty, so that
// nothing but what nodes hold can make it too much.
const quickRate, quickBurst = 200_000, 240

// spends spends so many tokens at a node, one by one, or until it is refused.
func (g *group) spends(t *testing.T, node string, req *limitpb.CheckRequest, most uint64) (spent uint64) {
	t.Helper()
	for spent < most {
		if r := must(g.nodes[node].limits.Check(bound(t), req))(t); !r.Allowed {
			return spent
		}
		spent += max(req.Cost, 1)
	}
	return spent
}

// hoard has nodes come to hold chunks that are as large as they may be, of each of some
// limits, and then spends all that there is: at the owner and then at the nodes. It
// returns that, and what an exact bucket would allow.
func (g *group) hoard(t *testing.T, key string, nodes []string, limits []uint64) (spent, most uint64) {
	t.Helper()
	check := func(limit, cost uint64) *limitpb.CheckRequest {
		return &limitpb.CheckRequest{Key: key, Limit: limit, PeriodNs: 1e9, Burst: quickBurst, Cost: cost, Anywhere: true}
	}
	const use = 250 // in a second: an eighth is more than a node may hold
	for _, l := range limits {
		for _, n := range nodes {
			for used := uint64(0); used < use; time.Sleep(12 * time.Millisecond) {
				used += g.spends(t, n, check(l, 1), use-used)
			}
		}
	}
	time.Sleep(chunk.Lease + 50*time.Millisecond) // it is not held any more
	for _, l := range limits {
		for _, n := range nodes {
			g.spends(t, n, check(l, 1), 1)
			time.Sleep(5 * time.Millisecond)
		}
	}
	time.Sleep(20 * time.Millisecond)
	began := time.Now()
	spent = g.spends(t, "n1", check(limits[len(limits)-1], 20), 1<<40)
	for _, l := range limits {
		for _, n := range nodes {
			spent += g.spends(t, n, check(l, 1), 1<<40)
		}
	}
	return spent, quickBurst + uint64(time.Since(began).Seconds()*float64(limits[len(limits)-1])) + 1
}

// TestAnywhereManyParameters: callers that state different limits of one bucket do not
// make nodes hold more of it.
func TestAnywhereManyParameters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		var limits []uint64
		for i := range uint64(16) {
			limits = append(limits, quickRate+i)
		}
		if spent, most := g.hoard(t, g.key("n1"), []string{"n2", "n3"}, limits); spent > most || spent < quickBurst*3/4 {
			t.Errorf("%d were spent, of %d at most", spent, most)
		}
	})
}

// TestAnywhereDefaultName: a bucket is the same whether its name is said or not.
func TestAnywhereDefaultName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		key := g.key("n1")
		for i := range 400 {
			req := anywhereCheck(key, 1)
			if i%2 == 0 {
				req.Name = "limit"
			}
			if r := must(g.nodes["n2"].limits.Check(bound(t), req))(t); !r.Allowed {
				t.Fatalf("%v", r)
			}
			time.Sleep(time.Millisecond)
		}
		named := anywhereCheck(key, 1)
		named.Name = "limit"
		for _, req := range []*limitpb.CheckRequest{anywhereCheck(key, 1), named} {
			b, err := bucketOf(req, false)
			if err != nil || b.Name != "limit" {
				t.Errorf("%+v, %v", b, err)
			}
		}
	})
}

// TestAnywhereStrangers: one that is no member, or not on the ring yet, holds no chunk, and has
// the owner decide.
func TestAnywhereStrangers(t *testing.T) {
	for _, out := range []int{0, 2, 5} {
		synctest.Test(t, func(t *testing.T) {
			g := grouped(t, 6, false, nil)
			nodes := []string{"n2", "n3", "n4", "n5", "n6"}
			for _, n := range nodes[5-out:] {
				g.without(n)
			}
			if spent, most := g.hoard(t, g.key("n1"), nodes, []uint64{quickRate}); spent > most || spent < quickBurst*3/4 {
				t.Errorf("with %d strangers %d were spent, of %d at most", out, spent, most)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		key := g.key("n1")
		passed := func() float64 { return count(t, g.nodes["n1"].metrics.received) }
		check := func(what string, want float64) {
			t.Helper()
			before := passed()
			for range 50 {
				if r := must(g.nodes["n3"].limits.Check(bound(t), anywhereCheck(key, 1)))(t); !r.Allowed || r.Slack != 600 || r.Owner != "n1" {
					t.Fatalf("%s: %v", what, r)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if n := passed() - before; n > want || want == 50 && n != 50 {
				t.Errorf("%s: %v of 50 calls were passed on", what, n)
			}
		}
		check("a member", 40)
		g.without("n3")
		check("a stranger", 50)
		g.apply(table.Command{Admit: &table.Admit{Member: table.Member{Node: "n3", Incarnation: 1, HashKey: "n3:7400", GRPCAddr: "n3:7400"}}})
		check("one that joins", 50)
		g.begin("n1", "n2", "n3")
		key = g.keys("n1", 1, func(h uint64) bool { m, ok := g.board.Table().WantedOwner(h); return ok && m.Node == "n1" })[0]
		g.finish()
		check("a member again", 40)
	})
}

// TestAnywhereInBatch: a batch refuses what it would not do, of each item by itself, also
// if another node owns the key.
func TestAnywhereInBatch(t *testing.T) {
	g := grouped(t, 2, false, nil)
	at := g.nodes["n2"].limits
	for _, key := range []string{g.key("n1"), g.key("n2")} {
		plain, peek := anywhereCheck(key, 1), anywhereCheck(key, 1)
		plain.Anywhere, peek.Peek = false, true
		plain.PeriodNs, peek.PeriodNs = int64(time.Hour), int64(time.Hour) // nothing comes back meanwhile
		b := must(at.BatchCheck(bound(t), &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{plain, anywhereCheck(key, 1), peek, plain}}))(t)
		for i, r := range b.Results {
			if i == 1 {
				e := r.Error
				if r.Response != nil || e == nil || codes.Code(e.Code) != codes.InvalidArgument || e.Reason != commonpb.Reason_REASON_INVALID || e.Field != "anywhere" || e.Hint == "" {
					t.Errorf("%v", r)
				}
			} else if r.Error != nil || !r.Response.GetAllowed() || r.Response.Slack != 0 {
				t.Errorf("item %d: %v", i, r)
			}
		}
		if left := b.Results[3].Response.GetRemaining(); left != 2398 {
			t.Errorf("%d are left of 2400 after two", left)
		}
	}
	if n := count(t, g.nodes["n2"].metrics.ops[opCheck].failed[commonpb.Reason_REASON_INVALID]); n != 2 {
		t.Errorf("%v errors are counted", n)
	}
}
