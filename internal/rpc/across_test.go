package rpc

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/across"
	"github.com/keystead/keystead/owner/admission"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// envelopedAcross are those of enveloped that are of admissions of several keys.
func envelopedAcross() []envelopedCall {
	id := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 7, Settled: 5, AgeNs: 9}
	news := &peerv1.NewsRequest{News: []*peerv1.News{{Key: "k", Name: "n", Client: []byte("0123456789abcdef"), Sequence: 7, To: 1, Epoch: 3, Print: 4, AgeNs: 5, Phase: 2, All: true}}}
	known := &peerv1.NewsResponse{Answers: []*peerv1.Knowledge{{Phase: 2}}}
	return []envelopedCall{
		{acrossHold.operation, &peerv1.HoldRequest{Key: "k", Name: "n", Keys: []string{"k", "l"}, Of: []byte{0, 1}, Names: []uint32{1, 2}, Self: 1, Epoch: 3, Print: 4, HoldNs: 5, RequestId: id}, "", "0801100218038001748a013f0a016b12016e22016b22016c2a0200013208010000000200000038054d040000005001580362180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&peerv1.HoldResponse{Knows: &peerv1.Knowledge{Phase: 1}, Epoch: 3}, "", "080170747a060a0208012003", false},
		{acrossWord, news, "", "0801100218038001758a012b0a290a016b12016e1a10303132333435363738396162636465662007280130033d04000000400548025801", known, "", "080170757a040a020802", false},
		{acrossQuestion, news, "", "0801100218038001768a012b0a290a016b12016e1a10303132333435363738396162636465662007280130033d04000000400548025801", known, "", "080170767a040a020802", false},
	}
}

// crossing is a group whose keys are demanded together: one of each node.
type crossing struct {
	*group
	t    *testing.T
	keys []string
	next uint64
}

func crossed(t *testing.T, n int, f func(t *testing.T, x *crossing)) { crossedWith(t, n, nil, f) }

func crossedWith(t *testing.T, n int, change func(*Config), f func(t *testing.T, x *crossing)) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, n, false, change)
		g.called("c", owner.AdmissionLevel)
		ctx, cancel := context.WithCancel(context.Background())
		x := &crossing{group: g, t: t}
		var wg sync.WaitGroup
		for _, name := range g.names() {
			x.keys = append(x.keys, g.key(name))
			wg.Go(func() { g.nodes[name].server.Across(ctx) })
		}
		f(t, x)
		for _, m := range g.nodes {
			m.stop()
		}
		cancel()
		wg.Wait()
		time.Sleep(time.Minute) // what is on its way ends
	})
}

// request is one for n of each key, of which there are most.
func (x *crossing) request(n uint64, most int64) *admissionpb.AdmitRequest {
	x.next++
	q := &admissionpb.AdmitRequest{Key: x.keys[0], RequestId: x.id(x.next)}
	for _, key := range x.keys {
		q.Demands = append(q.Demands, &admissionpb.Demand{Key: key, Name: "used", Cost: n, Counter: &admissionpb.CounterDemand{Max: most}})
	}
	return q
}

func (x *crossing) id(n uint64) *commonpb.RequestId {
	return &commonpb.RequestId{Client: binary.BigEndian.AppendUint64([]byte("crossing"), 1), Sequence: n}
}

func (x *crossing) admit(through string, q *admissionpb.AdmitRequest) *admissionpb.AdmitResponse {
	x.t.Helper()
	return must(x.nodes[through].admissions.Admit(bound(x.t), q))(x.t)
}

// used checks what is charged under each key.
func (x *crossing) used(want ...int64) {
	x.t.Helper()
	for i, key := range x.keys {
		for through := range x.nodes {
			r, err := x.nodes[through].counters.Get(bound(x.t), &counterpb.GetRequest{Key: key, Name: "used"})
			if err == nil && r.Value != want[i%len(want)] {
				x.t.Errorf("%s has %d under %q, want %d", through, r.Value, key, want[i%len(want)])
			}
		}
	}
}

// phases checks what the owners of the keys know of a request.
func (x *crossing) phases(id *commonpb.RequestId, want ...across.Phase) {
	x.t.Helper()
	of, _ := acrossID(&peerv1.News{Client: id.Client, Sequence: id.Sequence})
	for i, key := range x.keys {
		m := x.nodes[fmt.Sprint("n", i+1)]
		a, err := m.store.AskAcross(m.clock.Now(), owner.Ref{Key: key, Name: "admission", Hash: owner.Hash(key)}, across.Question{ID: of, Key: key, To: uint8(i), Print: x.printOf(m, key, of)})
		if err != nil || a.Phase != want[i%len(want)] {
			x.t.Errorf("the owner of %q knows %v (%v), want %v", key, a.Phase, err, want[i%len(want)])
		}
	}
}

// printOf returns the print of a vote, as its owner tells others.
func (x *crossing) printOf(m *member, key string, id across.ID) uint32 {
	var print uint32
	m.store.VoteAcross(m.clock.Now(), owner.Ref{Key: key, Name: "admission", Hash: owner.Hash(key)}, id, func(v *across.Vote) { print = v.Print })
	return print
}

// All owners charge, or none does; the caller is told which, and all owners know it soon.
func TestAdmitAcross(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		q := x.request(4, 10)
		a := x.admit("n1", q)
		if !a.Admitted || len(a.Demands) != 3 || a.Demands[2].Remaining != 6 || a.Key != x.keys[0] || a.HoldId != "" || a.Owner != "n1" {
			t.Error(a)
		}
		x.used(4)
		time.Sleep(500 * time.Millisecond) // less than they wait before they ask
		x.phases(q.RequestId, across.Charged)
		if again := x.admit("n2", q); !again.Admitted || again.Replay == nil {
			t.Error(again)
		}
		x.used(4)
		q = x.request(4, 10)
		q.Demands[1].Cost = 7
		a = x.admit("n3", q)
		if a.Admitted || a.Demands[0].Refused || !a.Demands[1].Refused || a.Demands[2].Refused || a.RetryAfterNs != 0 || a.Contended {
			t.Error(a)
		}
		time.Sleep(500 * time.Millisecond)
		x.used(4)
		x.phases(q.RequestId, across.Cancelled, across.Refused, across.Cancelled)
		if again := x.admit("n2", q); again.Admitted {
			t.Error(again)
		}
		q = x.request(4, 10)
		q.RequestId = nil
		if a := x.admit("n3", q); !a.Admitted {
			t.Error(a)
		}
		x.used(8)
		if a := x.admit("n2", &admissionpb.AdmitRequest{Key: x.keys[0], Demands: x.request(2, 10).Demands, Peek: true}); !a.Admitted || a.Demands[1].Remaining != 0 {
			t.Error(a)
		}
		x.used(8)
	})
}

// A hold is extended, shown and settled by any of its keys.
func TestHoldAcross(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		q := x.request(4, 10)
		q.HoldNs = int64(time.Minute)
		a := x.admit("n1", q)
		if !a.Admitted || a.HoldNs != int64(time.Minute) || a.HoldId == "" {
			t.Fatal(a)
		}
		time.Sleep(time.Second / 2)
		i := must(x.nodes["n2"].admissions.Inspect(bound(t), &admissionpb.InspectRequest{Key: x.keys[2], HoldId: a.HoldId}))(t)
		if i.Total != 1 || len(i.Holds) != 1 || len(i.Holds[0].Keys) != 3 || i.Holds[0].Undecided || i.Holds[0].Reserved[0].Cost != 4 {
			t.Error(i)
		}
		e := must(x.nodes["n2"].admissions.Extend(bound(t), &admissionpb.ExtendRequest{Key: x.keys[1], HoldId: a.HoldId, HoldNs: int64(time.Hour)}))(t)
		if e.State != admissionpb.HoldState_HOLD_STATE_HELD || e.HoldNs != int64(time.Hour) || len(e.Keys) != 3 {
			t.Error(e)
		}
		time.Sleep(30 * time.Minute)
		x.used(4)
		settle := &admissionpb.SettleRequest{Key: x.keys[1], HoldId: a.HoldId, Costs: []*admissionpb.Cost{{Name: "used", Cost: 1}, {Key: x.keys[2], Name: "used", Cost: 6}}}
		s := must(x.nodes["n3"].admissions.Settle(bound(t), settle))(t)
		if s.State != admissionpb.HoldState_HOLD_STATE_HELD {
			t.Error(s)
		}
		time.Sleep(time.Second / 2)
		x.used(4, 1, 6)
		if s := must(x.nodes["n3"].admissions.Settle(bound(t), settle))(t); s.State != admissionpb.HoldState_HOLD_STATE_HELD || s.Replay == nil {
			t.Error(s)
		}
		settle.Costs[0].Cost = 2
		if s := must(x.nodes["n3"].admissions.Settle(bound(t), settle))(t); s.State != admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN {
			t.Error(s)
		}
		q = x.request(1, 10)
		q.HoldNs = int64(time.Second)
		a = x.admit("n2", q)
		x.used(5, 2, 7)
		time.Sleep(2 * time.Second)
		x.used(4, 1, 6)
		s = must(x.nodes["n3"].admissions.Settle(bound(t), &admissionpb.SettleRequest{Key: x.keys[0], HoldId: a.HoldId}))(t)
		if s.State != admissionpb.HoldState_HOLD_STATE_RELEASED {
			t.Error(s)
		}
		time.Sleep(2 * time.Second)
		x.used(5, 2, 7)
		if e := must(x.nodes["n2"].admissions.Extend(bound(t), &admissionpb.ExtendRequest{Key: x.keys[1], HoldId: a.HoldId, HoldNs: int64(time.Hour)}))(t); e.State == admissionpb.HoldState_HOLD_STATE_HELD {
			t.Error(e)
		}
	})
}

// TestOverriddenAcross: each owner goes by the override that it has of its key, also when it settles, and by what is stated
// when that has ended; another key with a limit of that name has none.
func TestOverriddenAcross(t *testing.T) {
	crossed(t, 2, func(t *testing.T, x *crossing) {
		must(x.nodes["n1"].limits.SetOverride(bound(t), &limitpb.SetOverrideRequest{Key: x.keys[1], Name: "api", Limit: 20, PeriodNs: int64(time.Hour), EndsAfterNs: int64(30 * time.Minute)}))(t)
		ask := func(first, second uint64, hold time.Duration) *admissionpb.AdmitResponse {
			q := x.request(1, 10)
			q.HoldNs = int64(hold)
			for i, cost := range []uint64{first, second} {
				q.Demands[i].Name, q.Demands[i].Cost, q.Demands[i].Counter = "api", cost, nil
				q.Demands[i].Limit = &admissionpb.LimitDemand{Limit: 10, PeriodNs: int64(time.Hour), Algorithm: limitpb.Algorithm_ALGORITHM_FIXED_WINDOW}
			}
			return x.admit("n1", q)
		}
		a := ask(8, 15, time.Minute)
		if one, two := a.Demands[0], a.Demands[1]; !a.Admitted || one.Overridden || one.Capacity != 10 || !two.Overridden || two.Capacity != 20 || two.Remaining != 5 {
			t.Fatal(a)
		}
		s := must(x.nodes["n2"].admissions.Settle(bound(t), &admissionpb.SettleRequest{Key: x.keys[0], HoldId: a.HoldId, Costs: []*admissionpb.Cost{{Name: "api", Cost: 2}, {Key: x.keys[1], Name: "api", Cost: 12}}}))(t)
		if s.State != admissionpb.HoldState_HOLD_STATE_HELD {
			t.Error(s)
		}
		time.Sleep(100 * time.Millisecond) // the owners tell each other
		a = ask(1, 9, 0)
		if one, two := a.Demands[0], a.Demands[1]; a.Admitted || one.Refused || !two.Refused || !two.Overridden || two.Remaining != 8 {
			t.Error(a)
		}
		time.Sleep(30 * time.Minute)
		a = ask(1, 1, 0)
		if one, two := a.Demands[0], a.Demands[1]; a.Admitted || one.Refused || one.Remaining != 7 || !two.Refused || two.Overridden || two.Capacity != 10 || two.Debt != 2 {
			t.Error(a)
		}
	})
}

func TestAcrossRefusesWhatIsNone(t *testing.T) {
	crossed(t, 2, func(t *testing.T, x *crossing) {
		for what, change := range map[string]func(q *admissionpb.AdmitRequest){
			"a key that is used for retries": func(q *admissionpb.AdmitRequest) { q.RequestId, q.IdempotencyKey = nil, "x" },
			"a hold without an id":           func(q *admissionpb.AdmitRequest) { q.RequestId, q.HoldNs = nil, int64(time.Second) },
			"a demand of nothing":            func(q *admissionpb.AdmitRequest) { q.Demands[1].Counter = nil },
			"no key at all":                  func(q *admissionpb.AdmitRequest) { q.Key, q.Demands[0].Key = "", "" },
			"a name twice under a key":       func(q *admissionpb.AdmitRequest) { q.Demands = append(q.Demands, q.Demands[1]) },
			"slots without a hold": func(q *admissionpb.AdmitRequest) {
				q.Demands[1].Counter, q.Demands[1].Slots = nil, &admissionpb.SlotsDemand{Max: 2}
			},
		} {
			q := x.request(1, 10)
			change(q)
			if _, err := x.nodes["n1"].admissions.Admit(bound(t), q); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", what, err)
			}
		}
		time.Sleep(5 * time.Second)
		x.used(0)
		q := x.request(3, 10)
		q.Key, q.Demands = "", q.Demands[:1]
		if a := x.admit("n2", q); !a.Admitted || a.Key != x.keys[0] {
			t.Error(a)
		}
	})
}

// A hold that is over at one owner when it is extended is over at all: what the others were extended by does not stay.
func TestExtendAcrossTooLate(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		for i, expiry := range []admissionpb.OnExpiry{admissionpb.OnExpiry_ON_EXPIRY_RELEASE, admissionpb.OnExpiry_ON_EXPIRY_CHARGE} {
			q := x.request(3, 10)
			q.HoldNs, q.OnExpiry = int64(time.Minute), expiry
			a := x.admit("n1", q)
			time.Sleep(across.Patience + across.Patience/2) // between two moments at which the node itself wakes what is due
			m := x.nodes["n3"]                              // its clock is fast
			m.store.Wake(m.clock.Now() + int64(i+1)*int64(90*time.Second))
			extend := func(key string, state admissionpb.HoldState) {
				e := must(x.nodes["n2"].admissions.Extend(bound(t), &admissionpb.ExtendRequest{Key: key, HoldId: a.HoldId, HoldNs: int64(5 * time.Minute)}))(t)
				if e.State != state {
					t.Error(e)
				}
			}
			extend(x.keys[0], admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN)
			time.Sleep(time.Second)
			over := across.Released
			if expiry == admissionpb.OnExpiry_ON_EXPIRY_CHARGE {
				over = across.Charged
			}
			x.phases(q.RequestId, over)
			extend(x.keys[0], admissionpb.HoldState_HOLD_STATE_HOLD_UNKNOWN)
		}
		x.used(3)
	})
}

// An error that stays is one of all: what the others hold is given back at once. After one that passes, the same request
// may be admitted.
func TestAcrossAfterAnError(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		other := &admissionpb.AdmitRequest{Key: x.keys[1], Demands: []*admissionpb.Demand{{Name: "used", Limit: &admissionpb.LimitDemand{Limit: 9, PeriodNs: int64(time.Hour)}}}}
		x.admit("n1", other)
		for _, through := range x.names() {
			if _, err := x.nodes[through].admissions.Admit(bound(t), x.request(3, 10)); status.Code(err) != codes.FailedPrecondition {
				t.Error(err)
			}
			time.Sleep(across.Patience / 4)
			x.used(0)
		}

		k := x.coordinated(x.request(3, 10))
		k.q.Demands[1].Name, k.c.Names[1] = "more", owner.NameAcross(x.keys[1], "more")
		for _, i := range []int{0, 2} {
			k.answers[i] = must(acrossHold.atOwner(bound(t), x.nodes["n1"].server, k.hold(i)))(t)
		}
		k.errs[1] = owner.ErrDemandSplit
		if _, err := k.conclude(); status.Code(Status(err)) != codes.Unavailable {
			t.Error(err)
		}
		time.Sleep(across.Patience / 4)
		x.used(3)
		if last := x.holds(k, 1); last[0] != across.Held {
			t.Error("asked again:", last)
		}
		time.Sleep(2 * across.Patience)
		x.used(3)
	})
}

// coordinated are the Holds of a request whose coordinator then dies.
func (x *crossing) coordinated(q *admissionpb.AdmitRequest) *coordination {
	x.t.Helper()
	k, err := x.nodes["n1"].server.coordinate(admissionAdmit, q, keysOf(q))
	if err != nil {
		x.t.Fatal(err)
	}
	return k
}

func (x *crossing) holds(k *coordination, of ...int) (phases []across.Phase) {
	x.t.Helper()
	for _, i := range of {
		r, err := acrossHold.atOwner(bound(x.t), x.nodes["n1"].server, k.hold(i))
		if err != nil {
			x.t.Fatal(err)
		}
		phases = append(phases, across.Phase(r.Knows.Phase))
	}
	return phases
}

// What a coordinator that dies has left, the owners decide among themselves, whatever it has sent.
func TestAcrossWithoutCoordinator(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		k := x.coordinated(x.request(1, 10))
		x.holds(k, 0, 1)
		x.used(1, 1, 0)
		time.Sleep(1500 * time.Millisecond)
		x.used(0)
		if late := x.holds(k, 2); late[0] != across.Aborted {
			t.Error("a Hold that comes late:", late)
		}
		x.used(0)
		if a := x.admit("n3", k.q); a.Admitted {
			t.Error("asked again:", a)
		}

		k = x.coordinated(x.request(2, 10))
		x.holds(k, 0, 1, 2)
		x.holds(k, 2, 1) // and once more
		time.Sleep(1500 * time.Millisecond)
		x.used(2)
		x.phases(k.id, across.Charged)
		if a := x.admit("n3", k.q); !a.Admitted {
			t.Error("asked again:", a)
		}
		x.used(2)

		q := x.request(3, 10)
		q.Demands[2].Cost = 9
		k = x.coordinated(q)
		x.holds(k, 0, 1, 2)
		x.used(5, 5, 2)
		time.Sleep(1500 * time.Millisecond)
		x.used(2)
	})
}

// An owner that cannot be reached keeps the question open, and what is held stays held. When it is back, all are as it
// knows.
func TestAcrossOpenQuestion(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		k := x.coordinated(x.request(1, 10))
		x.holds(k, 0, 1)
		x.cut("n3", true)
		time.Sleep(time.Hour)
		used := must(x.nodes["n2"].counters.Get(bound(t), &counterpb.GetRequest{Key: x.keys[1], Name: "used"}))(t)
		if used.Value != 1 {
			t.Error("what is held is", used.Value)
		}
		q := x.request(10, 10)
		q.Demands = q.Demands[:2]
		if a := x.admit("n1", q); a.Admitted || !a.Contended {
			t.Error("another request:", a)
		}
		x.cut("n3", false)
		time.Sleep(time.Minute)
		x.used(0)
	})
}

// cut has a node be reached by nobody, or by all again.
func (x *crossing) cut(node string, is bool) {
	way := func() bool { return !is }
	x.nodes[node].wire.Store(&way)
	if is {
		x.conns.Range(func(name, conn any) bool {
			if to := name.(string); to[3:5] == node {
				_ = conn.(interface{ Close() error }).Close()
			}
			return true
		})
	}
}

// Ways between nodes break all the time, and callers ask again through other nodes: all owners charge the same, and as
// much as callers were told.
func TestAcrossThroughFaults(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		const callers, each = 6, 12
		told := make([]int64, callers)
		over := make(chan struct{})
		var faults sync.WaitGroup
		faults.Go(func() {
			random := rand.New(rand.NewPCG(1, 2))
			for {
				select {
				case <-over:
					return
				case <-time.After(time.Duration(random.IntN(40)) * time.Millisecond):
				}
				node := fmt.Sprint("n", 1+random.IntN(3))
				x.cut(node, true)
				time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
				x.cut(node, false)
			}
		})
		var wg sync.WaitGroup
		for c := range callers {
			requests := make([]*admissionpb.AdmitRequest, each)
			for i := range requests {
				requests[i] = x.request(1, 40)
			}
			wg.Go(func() {
				random := rand.New(rand.NewPCG(3, uint64(c)))
				for _, q := range requests {
					first := time.Now()
					for q.RequestId.AgeNs < int64(time.Minute) {
						through := fmt.Sprint("n", 1+random.IntN(3))
						ctx, cancel := context.WithTimeout(context.Background(), time.Second)
						a, err := x.nodes[through].admissions.Admit(ctx, q)
						cancel()
						if err == nil {
							if a.Admitted {
								told[c]++
							}
							break
						}
						time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
						q.RequestId.AgeNs = int64(time.Since(first))
					}
				}
			})
		}
		wg.Wait()
		close(over)
		faults.Wait()
		time.Sleep(5 * time.Minute)
		sum := int64(0)
		for _, n := range told {
			sum += n
		}
		if sum == 0 || sum > 40 {
			t.Errorf("%d were admitted", sum)
		}
		x.used(sum)
	})
}

// gate are copies of a node that have nothing new while it is shut.
type gate struct{ shut atomic.Bool }

func (g *gate) Replicated(uint64) bool { return !g.shut.Load() }

func (g *gate) Await(uint64) bool {
	for g.shut.Load() {
		time.Sleep(10 * time.Millisecond)
	}
	return true
}

func (g *gate) Behind(uint64) (of table.Behind) {
	if g.shut.Load() {
		of[0] = agreed.Holder("copy")
	}
	return of
}

func (g *gate) AwaitOf(_ context.Context, hash uint64, _ table.Holder) bool { return g.Await(hash) }

// waits checks that something ends when the copies of a node have all, and not before.
func (g *gate) waits(t *testing.T, what string, do func()) {
	t.Helper()
	g.shut.Store(true)
	done := make(chan struct{})
	go func() { do(); close(done) }()
	time.Sleep(time.Second / 2)
	select {
	case <-done:
		t.Errorf("%s: it did not wait for the copies", what)
	default:
	}
	g.shut.Store(false)
	<-done
}

// sent reports how much waits to be sent by a node.
func (o *outboxes) sent() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, b := range o.all {
		n += len(b.queue)
	}
	return n
}

// What a participant says, and what it tells others by itself, leaves when its copies have it and it still owns the key,
// whatever the settings say of admissions.
func TestAcrossToldWhenCopied(t *testing.T) {
	gates := map[string]*gate{}
	crossedWith(t, 2, func(c *Config) {
		gates[c.Node] = &gate{}
		c.Copies, c.AckOwner = gates[c.Node], []string{"admissions"}
	}, func(t *testing.T, x *crossing) {
		two, key := x.nodes["n2"], x.keys[1]
		q := x.request(1, 10)
		gates["n2"].waits(t, "a vote", func() {
			if a := x.admit("n1", q); !a.Admitted {
				t.Error(a)
			}
		})
		held := x.request(1, 10)
		held.HoldNs = int64(time.Hour)
		hold := x.admit("n1", held)
		gates["n2"].waits(t, "a settlement", func() {
			s, err := two.admissions.Settle(bound(t), &admissionpb.SettleRequest{Key: key, HoldId: hold.HoldId, Release: true})
			if err != nil || s.State != admissionpb.HoldState_HOLD_STATE_HELD {
				t.Error(s, err)
			}
		})
		time.Sleep(time.Minute)
		news := func(n uint64) *peerv1.NewsRequest {
			return &peerv1.NewsRequest{News: []*peerv1.News{{Key: key, Name: "admission", Client: q.RequestId.Client, Sequence: n, To: 1, Epoch: 1}}}
		}
		question := func(n uint64, want across.Phase) func() {
			return func() {
				if r, err := two.server.heardNews(news(n), (*Server).questionAcross); err != nil || across.Phase(r.Answers[0].Phase) != want {
					t.Error(r, err)
				}
			}
		}
		gates["n2"].waits(t, "a mark", question(1000, across.Aborted))

		permit := must(two.Admit(owner.Hash(key), 0))(t)
		word := owner.Ask{Ref: owner.Ref{Key: key, Name: "admission", Hash: owner.Hash(key)}, Permit: permit,
			Words: []across.Word{{ID: across.ID{Sequence: 9}, Key: x.keys[0], Phase: across.Admitted}}}
		gates["n2"].shut.Store(true)
		two.server.asks(word)
		synctest.Wait()
		if n := two.server.outboxes.sent(); n != 0 {
			t.Error("words left before the copies had them:", n)
		}
		gates["n2"].shut.Store(false)
		time.Sleep(15 * time.Millisecond)
		synctest.Wait()
		if n := two.server.outboxes.sent(); n != 1 {
			t.Error("words did not leave:", n)
		}
		time.Sleep(time.Second)

		lose := func() { x.without("n2") }
		two.confirm.Store(&lose)
		question(2000, across.Unknown)()
		two.server.asks(word)
		if n := two.server.outboxes.sent(); n != 0 {
			t.Error("words of what the node does not own any more:", n)
		}
	})
}

// Who settles or cancels what is demanded of something that is split has that put together again.
func TestAcrossMakesWhole(t *testing.T) {
	s, b := parting(t)
	o := &orders{}
	s.cfg.Splits = o
	demand := owner.Demand{Demand: admission.Demand{Term: admission.Term{Of: admission.Counter, Name: counterKind, Max: 10}, Cost: 5}}
	at := owner.Ref{Key: "k", Name: "admission", Hash: owner.Hash("k")}
	client := []byte("0123456789abcdef")
	hold := func(sequence uint64, phase across.Phase) across.ID {
		of := must(requestID(&commonpb.RequestId{Client: client, Sequence: sequence}))(t)
		terms := across.Terms{Keys: []string{"k", "l"}, Of: []uint8{0, 1}, Names: []uint32{owner.NameAcross("k", counterKind), 1}, Hold: int64(time.Minute)}
		must(s.cfg.Store.HoldAcross(s.cfg.Clock.Now(), at, of, owner.HoldAcross{Terms: terms, Demands: []owner.Demand{demand}, Epoch: 1}, nil))(t)
		id := across.ID{Client: of.Client, Sequence: sequence}
		must(s.cfg.Store.TellAcross(s.cfg.Clock.Now(), at, across.Word{ID: id, Phase: phase}))(t)
		return id
	}
	settled, held := hold(1, across.Admitted), hold(2, across.Held)
	sp := b.Reach(b.Divide(counterKind, "k", "n1", "n1"), table.Open)
	for what, do := range map[string]func() error{
		"settled": func() error {
			_, err := s.settle(frame{now: s.cfg.Clock.Now(), at: at}, &admissionpb.SettleRequest{Key: "k", HoldId: holdText(admission.ID(settled)), Release: true}, new(admissionpb.SettleResponse))
			return err
		},
		"cancelled": func() error {
			_, err := s.wordAcross(s.cfg.Clock.Now(), &peerv1.News{Key: "k", Name: "admission", Client: client, Sequence: 2, Phase: uint32(across.Cancelled)}, held)
			return err
		},
		"answered": func() error {
			s.answersTo(at, held, 1)(across.Answer{Phase: across.Refused})
			return owner.ErrDemandSplit
		},
	} {
		o.whole = nil
		if err := do(); err != owner.ErrDemandSplit || len(o.whole) != 1 || o.whole[0] != sp.ID {
			t.Errorf("%s: %v; made whole: %v", what, err, o.whole)
		}
	}
}
