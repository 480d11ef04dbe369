package rpc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// forest is a group whose nodes look after trees of phasers.
type forest struct {
	*group
	t        *testing.T
	through  *member
	root     string
	children []string
}

func planted(t *testing.T, f func(t *testing.T, x *forest)) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		g.called("c", owner.BarrierLevel)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for _, m := range g.nodes {
			wg.Go(func() { m.server.Trees(ctx) })
		}
		f(t, &forest{g, t, g.nodes["n3"], g.keys("n1", 1, nil)[0], []string{g.keys("n1", 2, nil)[1], g.key("n2"), g.key("n3")}})
		cancel()
		wg.Wait()
	})
}

func (x *forest) register(child, party string) uint64 {
	x.t.Helper()
	r := must(x.through.barriers.Register(bound(x.t), &barrierpb.RegisterRequest{Key: child, Party: party, TtlNs: int64(time.Hour), Parent: &barrierpb.Parent{Key: x.root}}))(x.t)
	return r.Phase
}

func (x *forest) arrive(child, party string) uint64 {
	x.t.Helper()
	r := must(x.through.barriers.Arrive(bound(x.t), &barrierpb.ArriveRequest{Key: child, Party: party}))(x.t)
	if !r.Arrived || r.Last {
		x.t.Fatalf("%s at %s: %v", party, child, r)
	}
	return r.Phase
}

func (x *forest) fate(child string, phase uint64, wait time.Duration) *barrierpb.AwaitResponse {
	x.t.Helper()
	return must(x.through.barriers.Await(forLong(x.t), &barrierpb.AwaitRequest{Key: child, Phase: phase, WaitNs: int64(wait)}))(x.t)
}

// all has all parties of the children arrive, and returns the phases.
func (x *forest) all(children ...string) map[string]uint64 {
	x.t.Helper()
	phases := map[string]uint64{}
	for _, c := range children {
		for _, p := range []string{"a", "b"} {
			phases[c] = x.arrive(c, p)
		}
	}
	return phases
}

func (x *forest) expect(what string, phases map[string]uint64, want barrierpb.Verdict, cause barrierpb.Cause) {
	x.t.Helper()
	for c, phase := range phases {
		if r := x.fate(c, phase, 10*time.Second); r.Verdict != want || r.Cause != cause {
			x.t.Errorf("%s: %s: %v", what, c, r)
		}
	}
}

const (
	passedPhase  = barrierpb.Verdict_VERDICT_PASSED
	unknownPhase = barrierpb.Verdict_VERDICT_UNSPECIFIED
	noCause      = barrierpb.Cause_CAUSE_UNSPECIFIED
)

// TestTreeOfPhasers: through any node, the phases of children are passed together, when all parties of
// all of them have arrived; a break of the parent is one of theirs.
func TestTreeOfPhasers(t *testing.T) {
	planted(t, func(t *testing.T, x *forest) {
		for _, c := range x.children {
			x.register(c, "a")
			x.register(c, "b")
		}
		time.Sleep(2 * childTTL) // the children go on being parties
		for round := range 3 {
			phases := x.all(x.children[0], x.children[1])
			phases[x.children[2]] = x.arrive(x.children[2], "a")
			time.Sleep(2 * treeRest)
			for c, phase := range phases {
				if r := x.fate(c, phase, 0); r.Verdict != barrierpb.Verdict_VERDICT_UNDER_WAY {
					t.Fatalf("round %d: %s is passed early: %v", round, c, r)
				}
			}
			x.arrive(x.children[2], "b")
			began := time.Now()
			x.expect("all have arrived", phases, passedPhase, noCause)
			if took := time.Since(began); took > treeRest {
				t.Errorf("told after %s", took)
			}
		}
		v := must(x.through.barriers.Inspect(bound(t), &barrierpb.InspectRequest{Key: x.root}))(t)
		if v.Parties != 3 || v.Passed != 3 || v.Parent != nil {
			t.Errorf("the parent: %v", v)
		}
		phases := x.all(x.children[0])
		time.Sleep(treeRest)
		if v := must(x.through.barriers.Inspect(bound(t), &barrierpb.InspectRequest{Key: x.children[0]}))(t); v.Parent.GetKey() != x.root || !v.WaitsForParent {
			t.Errorf("the child: %v", v)
		}
		_, err := x.through.barriers.Break(bound(t), &barrierpb.BreakRequest{Key: x.children[0]})
		refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_CAPACITY_MISMATCH, hint: true}.check(in(t, "a break of what is the parent's"), err)
		phases[x.children[1]] = x.arrive(x.children[1], "a")
		must(x.through.barriers.Break(bound(t), &barrierpb.BreakRequest{Key: x.root}))(t)
		x.expect("the parent is broken", phases, barrierpb.Verdict_VERDICT_BROKEN, barrierpb.Cause_CAUSE_PARENT)
		x.expect("all, again", x.all(x.children...), passedPhase, noCause)
	})
}

// TestTreeWithoutAChild: the others go on without a child that has no parties any more, and wait for
// it when it has one again.
func TestTreeWithoutAChild(t *testing.T) {
	planted(t, func(t *testing.T, x *forest) {
		two, gone := x.children[:2], x.children[2]
		for _, c := range x.children {
			x.register(c, "a")
			x.register(c, "b")
		}
		time.Sleep(treeRest)
		phases := x.all(two...)
		for _, p := range []string{"a", "b"} {
			must(x.through.barriers.Leave(bound(t), &barrierpb.LeaveRequest{Key: gone, Party: p}))(t)
		}
		x.expect("one has left", phases, passedPhase, noCause)
		time.Sleep(2 * childTTL)
		first := x.register(gone, "a")
		time.Sleep(treeRest)
		phases = x.all(two...)
		time.Sleep(2 * treeRest)
		for c, phase := range phases {
			if r := x.fate(c, phase, 0); r.Verdict != barrierpb.Verdict_VERDICT_UNDER_WAY {
				t.Fatalf("%s does not wait for the one that is there again: %v", c, r)
			}
		}
		if phases[gone] = x.arrive(gone, "a"); phases[gone] != first {
			t.Errorf("it arrives for %d, not %d", phases[gone], first)
		}
		x.expect("it has arrived", phases, passedPhase, noCause)
		for what, q := range map[string]*barrierpb.RegisterRequest{
			"another parent": {Key: gone, Party: "c", TtlNs: 1e9, Parent: &barrierpb.Parent{Key: "other"}},
		} {
			_, err := x.through.barriers.Register(bound(t), q)
			refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_CAPACITY_MISMATCH, hint: true}.check(in(t, what), err)
		}
		_, err := x.through.barriers.Register(bound(t), &barrierpb.RegisterRequest{Key: "k", Party: "c", TtlNs: 1e9, Parent: &barrierpb.Parent{Key: "k"}})
		badField("parent").check(in(t, "its own parent"), err)
		_, err = x.through.barriers.Register(bound(t), &barrierpb.RegisterRequest{Key: fmt.Sprintf("%0100d", 1), Party: "c", TtlNs: 1e9, Parent: &barrierpb.Parent{Key: "k"}})
		badField("parent.party").check(in(t, "a long key and no party"), err)
	})
}

// TestTreeAfterALoss: what the parent had is lost. No phase of a child is passed by that; its
// parties hear that it is unknown, and arrive again. So it is with a child that is lost.
func TestTreeAfterALoss(t *testing.T) {
	planted(t, func(t *testing.T, x *forest) {
		x.root = x.key("n2")
		x.children = x.keys("n3", 2, nil)
		for _, c := range x.children {
			x.register(c, "a")
			x.register(c, "b")
		}
		time.Sleep(treeRest)
		phases := x.all(x.children[0])
		phases[x.children[1]] = x.arrive(x.children[1], "a")
		time.Sleep(treeRest)
		x.without("n2")
		x.called("c", owner.BarrierLevel)
		x.expect("the parent is lost", phases, unknownPhase, noCause)
		time.Sleep(treeRest)
		x.expect("all, again", x.all(x.children...), passedPhase, noCause)
	})
}

// late are copies of a row that is behind for a while.
type late struct {
	of     uint64
	behind atomic.Bool
}

func (l *late) Replicated(hash uint64) bool { return hash != l.of || !l.behind.Load() }

func (l *late) Await(hash uint64) bool {
	for !l.Replicated(hash) {
		time.Sleep(treePause)
	}
	return true
}

func (l *late) Behind(hash uint64) (of table.Behind) {
	if !l.Replicated(hash) {
		of[0] = agreed.Holder("standby")
	}
	return of
}

func (l *late) AwaitOf(_ context.Context, hash uint64, _ table.Holder) bool { return l.Await(hash) }

// TestTreeTellsWhatCopiesHave: a child arrives at its parent when its copies know that its parties
// have arrived. A next owner that did not know it would have them arrive once more, for a phase
// that the parent has passed.
func TestTreeTellsWhatCopiesHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &late{of: owner.Hash("child")}
		g := grouped(t, 1, false, func(c *Config) { c.Copies = copies })
		g.called("c", owner.BarrierLevel)
		n := g.nodes["n1"]
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go n.server.Trees(ctx)
		must(n.barriers.Register(bound(t), &barrierpb.RegisterRequest{Key: "child", Party: "a", TtlNs: int64(time.Hour), Parent: &barrierpb.Parent{Key: "root"}}))(t)
		time.Sleep(2 * treeRest)
		copies.behind.Store(true)
		arrived := make(chan error, 1)
		go func() {
			_, err := n.barriers.Arrive(forLong(t), &barrierpb.ArriveRequest{Key: "child", Party: "a"})
			arrived <- err
		}()
		time.Sleep(2 * treeRest)
		if v := must(n.barriers.Inspect(bound(t), &barrierpb.InspectRequest{Key: "root"}))(t); v.Parties != 1 || v.Passed != 0 {
			t.Errorf("the parent is told of what the copies do not have: %v", v)
		}
		copies.behind.Store(false)
		if err := <-arrived; err != nil {
			t.Error(err)
		}
		time.Sleep(treeRest)
		if v := must(n.barriers.Inspect(bound(t), &barrierpb.InspectRequest{Key: "root"}))(t); v.Passed != 1 {
			t.Errorf("and is not told when they have it: %v", v)
		}
	})
}
