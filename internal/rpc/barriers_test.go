package rpc

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// envelopedBarriers are those of enveloped that are of barriers, and the await of counters.
func envelopedBarriers() []envelopedCall {
	id := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 7, Settled: 5, AgeNs: 9}
	zero := int64(0)
	return []envelopedCall{
		{barrierArrive.operation, &barrierpb.ArriveRequest{Key: "k", Party: "p", Parties: 3, Phase: 8, WithinNs: 1e9, RequestId: id}, "",
			"0801100218038001468a012a0a016b1a017020032808308094ebdc033a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009", &barrierpb.ArriveResponse{Arrived: true, Phase: 8, Verdict: barrierpb.Verdict_VERDICT_UNDER_WAY}, "", "080170467a06080118082801", false},
		{barrierAwait.operation, &barrierpb.AwaitRequest{Key: "k", Phase: 8, WaitNs: 2e9}, "",
			"0801100218038001478a010b0a016b18082080a8d6b9079201016ba00180a8d6b907", &barrierpb.AwaitResponse{Verdict: barrierpb.Verdict_VERDICT_PASSED, Current: 9}, "", "080170477a0408022009", false},
		{barrierRegister.operation, &barrierpb.RegisterRequest{Key: "k", Party: "p", TtlNs: 1e9, Loss: barrierpb.Loss_LOSS_DROP, RequestId: id}, "",
			"0801100218038001488a01280a016b1a0170208094ebdc03280232180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009", &barrierpb.RegisterResponse{Registered: true, Phase: 8}, "", "080170487a0408011008", false},
		{barrierRenew.operation, &barrierpb.RenewRequest{Key: "k", Party: "p", TtlNs: 1e9}, "",
			"0801100218038001498a010c0a016b1a0170208094ebdc039201016b", &barrierpb.RenewResponse{Renewed: true, Phase: 8}, "", "080170497a0408011008", false},
		{barrierLeave.operation, &barrierpb.LeaveRequest{Key: "k", Party: "p", Phase: 8, RequestId: id}, "",
			"08011002180380014a8a01220a016b1a017020082a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009", &barrierpb.LeaveResponse{Left: true}, "", "0801704a7a020801", false},
		{barrierBreak.operation, &barrierpb.BreakRequest{Key: "k", RequestId: id}, "",
			"08011002180380014b8a011d0a016b1a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009", &barrierpb.BreakResponse{Broken: true}, "", "0801704b7a020801", false},
		{barrierInspect.operation, &barrierpb.InspectRequest{Key: "k", MaxListed: 3}, "",
			"08011002180380014c8a01050a016b18039201016b", &barrierpb.InspectResponse{Phase: 8, ArrivedParties: 1, Parties: 3}, "", "0801704c7a06080810011803", false},
		{counterAwait.operation, &counterpb.AwaitRequest{Key: "k", AtMost: &zero, WaitNs: 2e9}, "",
			"08011002180380014d8a010b0a016b18002880a8d6b9079201016ba00180a8d6b907", &counterpb.AwaitResponse{Met: true, Version: 4}, "", "0801704d7a0408011804", false},
	}
}

// forLong is a context for calls that wait for long.
func forLong(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	t.Cleanup(cancel)
	return ctx
}

// TestBarriers: through any node, parties arrive, wait, come and go.
func TestBarriers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		g.called("c", owner.BarrierLevel)
		for _, n := range []string{"n1", "n2", "n3"} {
			barrierThrough(t, g.nodes[n], "of "+n)
			phaserThrough(t, g.nodes[n], "of "+n)
			counterThrough(t, g.nodes[n], "of "+n)
		}
	})
}

func barrierThrough(t *testing.T, m *member, key string) {
	const second = int64(time.Second)
	ctx := forLong(t)
	arrive := func(party string, of uint32, phase uint64) *barrierpb.ArriveRequest {
		return &barrierpb.ArriveRequest{Key: key, Party: party, Parties: of, Phase: phase}
	}
	a := must(m.barriers.Arrive(ctx, arrive("a", 2, 0)))(t)
	if !a.Arrived || a.Phase == 0 || a.Last || a.Verdict != barrierpb.Verdict_VERDICT_UNDER_WAY || a.ArrivedParties != 1 || a.Parties != 2 || a.Owner == "" || a.Epoch == 0 {
		t.Fatal(a)
	}
	_, err := m.barriers.Arrive(ctx, arrive("b", 3, 0))
	refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_CAPACITY_MISMATCH, hint: true}.check(in(t, "another number"), err)
	_, err = m.barriers.Await(ctx, &barrierpb.AwaitRequest{Key: key})
	refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, hint: true, field: "phase"}.check(in(t, "no phase"), err)
	if r := must(m.barriers.Await(ctx, &barrierpb.AwaitRequest{Key: key, Phase: a.Phase, WaitNs: 12 * second}))(t); r.Verdict != barrierpb.Verdict_VERDICT_UNDER_WAY {
		t.Error("after a wait that is over:", r)
	}
	passed := make(chan *barrierpb.AwaitResponse, 1)
	go func() {
		r, _ := m.barriers.Await(ctx, &barrierpb.AwaitRequest{Key: key, Phase: a.Phase, WaitNs: 30 * second})
		passed <- r
	}()
	synctest.Wait()
	b := must(m.barriers.Arrive(ctx, arrive("b", 2, a.Phase)))(t)
	if r := <-passed; !b.Last || b.Verdict != barrierpb.Verdict_VERDICT_PASSED || r.GetVerdict() != barrierpb.Verdict_VERDICT_PASSED || r.Current != b.Current {
		t.Error(b, r)
	}
	if r := must(m.barriers.Arrive(ctx, arrive("c", 2, a.Phase)))(t); r.Arrived || r.Refusal != barrierpb.Refusal_REFUSAL_OVER || r.Verdict != barrierpb.Verdict_VERDICT_PASSED {
		t.Error(r)
	}
	c := must(m.barriers.Arrive(ctx, arrive("a", 2, 0)))(t)
	if r := must(m.barriers.Break(ctx, &barrierpb.BreakRequest{Key: key}))(t); !r.Broken {
		t.Error(r)
	}
	if r := must(m.barriers.Await(ctx, &barrierpb.AwaitRequest{Key: key, Phase: c.Phase}))(t); r.Verdict != barrierpb.Verdict_VERDICT_BROKEN || r.Cause != barrierpb.Cause_CAUSE_RESET {
		t.Error(r)
	}
}

func phaserThrough(t *testing.T, m *member, key string) {
	ctx, minute := forLong(t), int64(time.Minute)
	for _, p := range []string{"a", "b"} {
		if r := must(m.barriers.Register(ctx, &barrierpb.RegisterRequest{Key: key, Name: "phaser", Party: p, TtlNs: minute, Loss: barrierpb.Loss_LOSS_BREAK}))(t); !r.Registered || r.Phase == 0 {
			t.Fatal(r)
		}
	}
	a := must(m.barriers.Arrive(ctx, &barrierpb.ArriveRequest{Key: key, Name: "phaser", Party: "a"}))(t)
	if r := must(m.barriers.Renew(ctx, &barrierpb.RenewRequest{Key: key, Name: "phaser", Party: "a", TtlNs: 10 * minute}))(t); !r.Renewed {
		t.Error(r)
	}
	if v := must(m.barriers.Inspect(ctx, &barrierpb.InspectRequest{Key: key, Name: "phaser"}))(t); !v.Phaser || v.Parties != 2 || v.ArrivedParties != 1 || len(v.Listed) != 2 {
		t.Error(v)
	}
	r := must(m.barriers.Await(ctx, &barrierpb.AwaitRequest{Key: key, Name: "phaser", Phase: a.Phase, WaitNs: 2 * minute}))(t)
	if r.Verdict != barrierpb.Verdict_VERDICT_BROKEN || r.Cause != barrierpb.Cause_CAUSE_LOST || r.Party != "b" {
		t.Error("when the lease of the other party was over:", r)
	}
	if r := must(m.barriers.Arrive(ctx, &barrierpb.ArriveRequest{Key: key, Name: "phaser", Party: "b"}))(t); r.Refusal != barrierpb.Refusal_REFUSAL_NOT_REGISTERED {
		t.Error(r)
	}
	if r := must(m.barriers.Leave(ctx, &barrierpb.LeaveRequest{Key: key, Name: "phaser", Party: "a"}))(t); !r.Left {
		t.Error(r)
	}
}

func counterThrough(t *testing.T, m *member, key string) {
	ctx, zero := forLong(t), int64(0)
	must(m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1}))(t)
	_, err := m.counters.Await(ctx, &counterpb.AwaitRequest{Key: key})
	badField("at_most").check(in(t, "no condition"), err)
	if r := must(m.counters.Await(ctx, &counterpb.AwaitRequest{Key: key, AtMost: &zero, WaitNs: int64(12 * time.Second)}))(t); r.Met || r.Value != 1 {
		t.Error(r)
	}
	met := make(chan *counterpb.AwaitResponse, 1)
	go func() {
		r, _ := m.counters.Await(ctx, &counterpb.AwaitRequest{Key: key, AtMost: &zero, WaitNs: int64(time.Minute)})
		met <- r
	}()
	synctest.Wait()
	must(m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: -1}))(t)
	if r := <-met; !r.GetMet() || r.Value != 0 {
		t.Error(r)
	}
}

// TestAwaitersLeaveNothing: callers that wait for long are told when the phase ends, and nothing is
// left of them.
func TestAwaitersLeaveNothing(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := forLong(t)
		a := must(h.barriers.Arrive(ctx, &barrierpb.ArriveRequest{Key: "k", Party: "a", Parties: 2}))(t)
		const many = 300
		done := make(chan error, many)
		for i := range many {
			go func() {
				r, err := h.barriers.Await(ctx, &barrierpb.AwaitRequest{Key: "k", Phase: a.Phase, WaitNs: int64(time.Hour)})
				if err == nil && r.Verdict != barrierpb.Verdict_VERDICT_PASSED {
					err = fmt.Errorf("%d: %v", i, r)
				}
				done <- err
			}()
		}
		time.Sleep(3 * awaitLook)
		synctest.Wait()
		if n := h.store.Stats().Waiting; n != many {
			t.Errorf("%d wait", n)
		}
		must(h.barriers.Arrive(ctx, &barrierpb.ArriveRequest{Key: "k", Party: "b", Parties: 2}))(t)
		for range many {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := h.store.Stats().Waiting; n != 0 {
			t.Errorf("%d wait when all have heard", n)
		}
	})
}

// TestAwaitOfASumThatNeverWas: the parts of a split counter are read one after the other. A sum that is
// as it is awaited, but that the counter never had, ends no Await.
func TestAwaitOfASumThatNeverWas(t *testing.T) {
	none, now := owner.Cond{Value: 0}, time.Now()
	read := func(value int64, version uint64) *counterpb.GetResponse {
		return &counterpb.GetResponse{Value: value, Version: version, Parts: 2, Epoch: 7}
	}
	var r sums
	for i, g := range []*counterpb.GetResponse{
		read(1, 5), // work 1 is under way, and makes work 2 between the reads of the two parts
		read(0, 6), // 1 was added to part A after its read, and taken from part B before its read
		read(1, 7), // as it is
		read(0, 8), read(0, 9),
	} {
		if r.met(none, g, now) {
			t.Fatalf("read %d: a sum that changed meanwhile is taken for true", i)
		}
	}
	if !r.met(none, read(0, 9), now) {
		t.Error("not met though nothing changed between two reads")
	}
	if r = (sums{}); r.met(none, read(0, 1), now) || r.met(none, read(0, 2), now.Add(awaitSteady-1)) {
		t.Error("met before it was so for a while")
	}
	if !r.met(none, read(0, 3), now.Add(awaitSteady)) {
		t.Error("never met while it changes all the time")
	}
	if r.met(none, read(1, 4), now.Add(2*awaitSteady)) || r.met(none, read(0, 5), now.Add(3*awaitSteady)) {
		t.Error("met at once after a read that was not so")
	}
}
