package rpc

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// A batch over all owners is answered in the order in which it was asked, and
// the items of one key are done in that order.
func TestBatchOverAllOwners(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		const n, keys = MaxBatchItems, 100
		adds, gets, checks := &counterpb.BatchAddRequest{}, &counterpb.BatchGetRequest{}, &limitpb.BatchCheckRequest{}
		for i := range n {
			key := fmt.Sprint("key-", i%keys)
			adds.Adds = append(adds.Adds, &counterpb.AddRequest{Key: key, Delta: 1})
			gets.Gets = append(gets.Gets, &counterpb.GetRequest{Key: key})
			checks.Checks = append(checks.Checks, &limitpb.CheckRequest{Key: key, Limit: n / keys, PeriodNs: int64(time.Hour)})
		}
		adds.Adds[7].IdleTtlNs = 1 // wrong, and only itself
		n1, owners := g.nodes["n1"], map[string]int{}
		added := must(n1.counters.BatchAdd(bound(t), adds))(t)
		for i, r := range added.Results {
			if i == 7 {
				badField("idle_ttl_ns").checkItem(t, r.Error)
				continue
			}
			m, since, _ := g.board.Table().Owner(owner.Hash(adds.Adds[i].Key))
			want := int64(i/keys + 1)
			if i%keys == 7 {
				want--
			}
			by := added.Deciders[r.Decider]
			if r.Response.GetValue() != want || by.Owner != m.Node || by.Epoch != since || r.Response.Owner != "" || r.Response.Epoch != 0 {
				t.Fatalf("item %d: %v", i, r)
			}
			owners[m.Node]++
		}
		if len(owners) != 3 {
			t.Errorf("the owners are %v", owners)
		}
		for i, r := range must(g.nodes["n3"].counters.BatchGet(bound(t), gets))(t).Results {
			want := int64(n / keys)
			if i%keys == 7 {
				want--
			}
			if r.Response.GetValue() != want {
				t.Fatalf("item %d: %v", i, r)
			}
		}
		for i, r := range must(n1.limits.BatchCheck(bound(t), checks))(t).Results {
			if want := uint64(n/keys - i/keys - 1); r.Response.GetRemaining() != want || !r.Response.Allowed {
				t.Fatalf("check %d: %v", i, r)
			}
		}
		if sent, came := count(t, n1.metrics.passed["answered"]), count(t, g.nodes["n2"].metrics.received); sent == 0 || came == 0 {
			t.Errorf("%v passed on, and %v came to n2", sent, came)
		}
	})
}

func TestStreamOverAllOwners(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		s := stream(t, g.nodes["n1"].house, bound(t), g.nodes["n1"].conn)
		for tag := range uint64(3) {
			req := &limitpb.StreamCheckRequest{Tag: tag}
			for i := range 30 {
				req.Checks = append(req.Checks, &limitpb.CheckRequest{Key: fmt.Sprint("key-", i), Limit: 3, PeriodNs: int64(time.Hour)})
			}
			if err := s.Send(req); err != nil {
				t.Fatal(err)
			}
			r := must(s.Recv())(t)
			for i, c := range r.Results {
				if r.Tag != tag || c.Response.GetRemaining() != 2-tag || r.Deciders[c.Decider].Owner == "" {
					t.Fatalf("check %d: %v", i, c)
				}
			}
		}
	})
}

// Items that cannot be passed on fail alone; the others do not wait to be done.
func TestBatchWithAnOwnerGone(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		down := func() bool { return false }
		g.nodes["n2"].wire.Store(&down)
		own, far, gone := g.key("n1"), g.key("n3"), g.key("n2")
		r := must(g.nodes["n1"].counters.BatchAdd(bound(t), &counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{
			{Key: gone, Delta: 1}, {Key: own, Delta: 1}, {Key: far, Delta: 1}, {Key: gone, Delta: 1},
		}}))(t).Results
		unavailable.checkItem(t, r[0].Error)
		unavailable.checkItem(t, r[3].Error)
		if r[1].Response.GetValue() != 1 || r[2].Response.GetValue() != 1 {
			t.Errorf("the others: %v", r)
		}
	})
}

// A batch on a key that is being handed over waits for it, item after item.
func TestBatchKeepsTheOrderOfAKey(t *testing.T) {
	for _, through := range []string{"n1", "n3"} {
		t.Run(through, func(t *testing.T) {
			inGroup(t, func(t *testing.T, g *group) {
				key := g.key("n3")
				g.begin("n1", "n2")
				n3 := g.nodes["n3"]
				n3.frozen.Store(true)
				time.AfterFunc(forward.MaxBehind+50*time.Millisecond, func() { g.flip(key) })
				req := &counterpb.BatchAddRequest{}
				for range 500 {
					req.Adds = append(req.Adds, &counterpb.AddRequest{Key: key, Delta: 1})
				}
				for i, r := range must(g.nodes[through].counters.BatchAdd(bound(t), req))(t).Results {
					if r.Response.GetValue() != int64(i+1) {
						t.Fatalf("item %d: %v", i, r)
					}
				}
			})
		})
	}
}

// asks starts an Acquire through a node and returns when it waits at the owner.
func (g *group) asks(t *testing.T, through string, ctx context.Context, req *lockpb.AcquireRequest) *pending {
	t.Helper()
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.resp, p.err = g.nodes[through].locks.Acquire(ctx, req)
		p.at = time.Now()
	}()
	synctest.Wait()
	if p.over() {
		t.Fatalf("the call did not wait: %v, %v", p.resp, p.err)
	}
	return p
}

func wants(key, holder string, wait time.Duration) *lockpb.AcquireRequest {
	return &lockpb.AcquireRequest{Key: key, Holder: holder, TtlNs: int64(time.Minute), WaitNs: int64(wait)}
}

// A caller waits at the owner through another node: it is granted the lock in
// its turn, and leaves the queue by its cancel, its deadline, and its wait.
func TestForwardedWait(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		key, n2 := g.key("n2"), g.nodes["n2"]
		first := must(n2.locks.Acquire(bound(t), wants(key, "first", 0)))(t)
		ctx, cancel := context.WithCancel(context.Background())
		cancelled := g.asks(t, "n1", ctx, wants(key, "cancelled", time.Hour))
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		late := g.asks(t, "n1", ctx, wants(key, "late", time.Hour))
		short := g.asks(t, "n3", bound(t), wants(key, "short", 2*time.Second))
		next := g.asks(t, "n3", context.Background(), wants(key, "next", time.Hour))
		waiting := func(want int64) {
			t.Helper()
			synctest.Wait()
			if n := n2.store.Stats().Waiting; n != want {
				t.Errorf("%d wait, want %d", n, want)
			}
		}
		began := time.Now()
		cancel()
		<-cancelled.done
		waiting(3)
		<-late.done
		waiting(2)
		<-short.done
		waiting(1)
		if short.err != nil || short.resp.Acquired || short.resp.Holder.GetId() != "first" || short.at.Sub(began) != 2*time.Second {
			t.Errorf("short: %v, %v", short.resp, short.err)
		}
		must(g.nodes["n1"].locks.Release(bound(t), &lockpb.ReleaseRequest{Key: key, Token: first.Token}))(t)
		if r := next.granted(t); r.Token <= first.Token || r.Owner != "n2" || r.WaitedNs != int64(2*time.Second) {
			t.Errorf("next: %v", r)
		}
	})
}

// Waiting callers go on to the next owner when the row moves, with the time that
// is left to them. Places in the queue are not kept yet: who comes first is
// served first.
func TestWaitMovesWithItsRow(t *testing.T) {
	for _, through := range []string{"n1", "n2", "n3"} { // the next owner, another node, and the former owner
		t.Run(through, func(t *testing.T) {
			inGroup(t, func(t *testing.T, g *group) {
				g.begin("n1", "n2")
				key := g.moving("n3", "n1")
				must(g.nodes["n3"].locks.Acquire(bound(t), wants(key, "first", 0)))(t)
				began := time.Now()
				lucky := g.asks(t, through, context.Background(), wants(key, "one", 15*time.Second))
				other := g.asks(t, through, context.Background(), wants(key, "two", 15*time.Second))
				time.Sleep(10 * time.Second)
				g.flip(key)
				synctest.Wait()
				if !lucky.over() {
					lucky, other = other, lucky
				}
				if r := lucky.granted(t); r.Owner != "n1" || r.WaitedNs != int64(10*time.Second) {
					t.Errorf("the lucky one: %v", r)
				}
				<-other.done
				if took := other.at.Sub(began); other.err != nil || other.resp.Acquired || took != 15*time.Second {
					t.Errorf("the other, after %v: %v, %v", took, other.resp, other.err)
				}
			})
		})
	}
}

// A node that retires is taken out of the table while others wait there. It says
// that nothing happened to them, and they go on to the next owner.
func TestWaitSurvivesARetirement(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		key, n2 := g.key("n2"), g.nodes["n2"]
		must(n2.locks.Acquire(bound(t), wants(key, "first", 0)))(t)
		p := g.asks(t, "n1", context.Background(), wants(key, "me", time.Hour))
		n2.hold(true) // the others know it a little earlier
		g.without("n2")
		time.Sleep(forward.PartingTime / 2)
		n2.hold(false)
		g.tell()
		if r := p.granted(t); r.Owner == "n2" {
			t.Errorf("granted: %v", r)
		}
	})
}

// Nothing is spent on forwarding for keys that a node owns itself.
func TestOwnKeysCostNoMore(t *testing.T) {
	h := newHouse(t, nil)
	alone := bare(h)
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		n1, key := g.nodes["n1"].server, g.key("n1")
		batch := &counterpb.BatchAddRequest{}
		for range 100 {
			batch.Adds = append(batch.Adds, &counterpb.AddRequest{Key: key, Delta: 1})
		}
		for what, call := range map[string]func(*Server) error{
			"one": func(s *Server) error {
				_, err := counterAdd.serve(context.Background(), s, &counterpb.AddRequest{Key: key, Delta: 1})
				return err
			},
			"a batch": func(s *Server) error {
				_, err := (&counters{s: s}).BatchAdd(context.Background(), batch)
				return err
			},
		} {
			allocs := func(s *Server) float64 {
				least := math.Inf(1) // of many: what others allocate is counted too, and pools lose things at random
				for range 100 {
					least = min(least, testing.AllocsPerRun(1, func() {
						if err := call(s); err != nil {
							t.Fatal(err)
						}
					}))
				}
				return least
			}
			if in, out := allocs(n1), allocs(alone); in > out {
				t.Errorf("%s: %v allocations in a cluster, %v alone", what, in, out)
			}
		}
	})
}

// A lock that is granted at the moment at which its caller leaves is given back,
// unless a retry may have been told of it.
func TestGrantToWhoHasLeft(t *testing.T) {
	for _, c := range []struct {
		what string
		id   *commonpb.RequestId
		held bool
	}{{"no id", nil, false}, {"an id", requestN(1, 1), true}} {
		t.Run(c.what, func(t *testing.T) {
			inGroup(t, func(t *testing.T, g *group) {
				key, n1, n2 := g.key("n2"), g.nodes["n1"], g.nodes["n2"]
				first := wants(key, "first", 0)
				first.TtlNs = int64(time.Second)
				must(n2.locks.Acquire(bound(t), first))(t)
				ctx, leave := context.WithCancel(context.Background())
				req := wants(key, "gone", time.Hour)
				req.RequestId = c.id
				gone := g.asks(t, "n1", ctx, req)
				reached, on := make(chan struct{}), make(chan struct{})
				hang := func() { close(reached); <-on }
				n2.confirm.Store(&hang)
				<-reached // it was granted the lock, and the answer is on its way
				leave()
				<-gone.done
				synctest.Wait() // its cancel is there, and too late
				close(on)
				synctest.Wait()
				if r := must(n1.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: key}))(t); (r.Holder != nil) != c.held {
					t.Errorf("the lock: %v", r)
				}
			})
		})
	}
}

// A peer that takes nothing fills the queue, which is bounded; callers that leave
// get out of it.
func TestQueueIsBounded(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		key, n1 := g.key("n2"), g.nodes["n1"]
		must(n1.counters.Get(bound(t), &counterpb.GetRequest{Key: key}))(t)
		hang := make(chan struct{})
		stuck := func() { <-hang }
		g.nodes["n2"].after.Store(&stuck)
		req := &counterpb.BatchAddRequest{}
		for range MaxBatchItems {
			req.Adds = append(req.Adds, &counterpb.AddRequest{Key: key, Delta: 1})
		}
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		var wg sync.WaitGroup
		// How batches share the two streams is a matter of chance: more come until a
		// call finds them full. No time may pass, for n2 is stuck in a lock.
		err := error(nil)
		for n := 0; err == nil && n < 30; n++ {
			wg.Go(func() { _, _ = (&counters{s: n1.server}).BatchAdd(ctx, req) })
			synctest.Wait()
			one := make(chan error, 1)
			wg.Go(func() {
				_, err := n1.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1})
				one <- err
			})
			synctest.Wait()
			select {
			case err = <-one:
			default:
			}
		}
		if n := peerOf(t, n1.server, "n2").Pending; n < forward.MaxQueued || n > 2*(forward.MaxQueued+MaxBatchItems) {
			t.Errorf("%d calls are on their way", n)
		}
		refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_OVERLOADED, hint: true, retry: errOverloaded.RetryAfter}.check(t, err)
		leave()
		wg.Wait()
		close(hang)
		synctest.Wait()
		if n := peerOf(t, n1.server, "n2").Pending; n != 0 {
			t.Errorf("%d calls are still on their way", n)
		}
		before := must(n1.counters.Get(bound(t), &counterpb.GetRequest{Key: key}))(t).Value
		if r := must(n1.counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1}))(t); r.Value != before+1 {
			t.Errorf("afterwards: %v after %d", r, before)
		}
	})
}

// Connections that nobody uses are closed, and opened again when needed.
func TestIdlePeers(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, key := g.nodes["n1"], g.key("n2")
		for i := range int64(2) {
			if r := must(n1.counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1}))(t); r.Value != i+1 {
				t.Errorf("add %d: %v", i, r)
			}
			if n := len(n1.server.router.Peers()); n != 1 {
				t.Errorf("there are %d peers", n)
			}
			time.Sleep(2 * forward.PeerIdle)
			if n := len(n1.server.router.Peers()); n != 0 {
				t.Errorf("%d idle peers are kept", n)
			}
		}
	})
}

// A node at its limit of calls refuses the stream: nothing was sent to it.
func TestReceiverIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, func(c *Config) {
			if c.Node == "n2" {
				c.MaxCalls = 1
			}
		})
		s := stream(t, g.nodes["n2"].house, bound(t), g.nodes["n2"].conn)
		synctest.Wait()
		_, err := g.nodes["n1"].counters.Add(bound(t), &counterpb.AddRequest{Key: g.key("n2"), Delta: 1})
		unavailable.check(t, err)
		_ = s.CloseSend()
	})
}

// Long queues that many look at do not make answers that are too large.
func TestManyLongAnswers(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		key, n2 := g.key("n2"), g.nodes["n2"]
		ctx, leave := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				_, _ = lockAcquire.serve(ctx, n2.server, wants(key, fmt.Sprintf("%0128d", i), time.Hour))
			})
		}
		synctest.Wait()
		var looks sync.WaitGroup
		for range 100 {
			looks.Go(func() {
				r, err := lockInspect.serve(bound(t), g.nodes["n1"].server, &lockpb.InspectRequest{Key: key, MaxWaiters: 1000})
				if err != nil || len(r.Waiters) != 999 {
					t.Errorf("%d waiters, %v", len(r.GetWaiters()), err)
				}
			})
		}
		looks.Wait()
		leave()
		wg.Wait()
	})
}

// Counters that are raised through all nodes, with ids, while rows move, add up
// as far as the table does not declare their state lost.
func TestCountersAddUpWhileRowsMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		const clients, adds = 8, 60
		time.Sleep(time.Minute) // ids that are a little old are known to be new
		var mu sync.Mutex
		acked := map[string]map[uint64]int64{} // by key and epoch of the answer
		top := map[string]map[uint64]int64{}   // … the greatest value
		var wg sync.WaitGroup
		for c := range uint64(clients) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(c, 9))
				for seq := uint64(1); seq <= adds; seq++ {
					key := fmt.Sprint("key-", r.IntN(5))
					began := time.Now()
					for {
						id := again(requestN(c+1, seq), time.Since(began))
						a, err := g.nodes[g.names()[r.IntN(3)]].counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1, RequestId: id})
						if err == nil {
							mu.Lock()
							if acked[key] == nil {
								acked[key], top[key] = map[uint64]int64{}, map[uint64]int64{}
							}
							acked[key][a.Epoch]++
							top[key][a.Epoch] = max(top[key][a.Epoch], a.Value)
							mu.Unlock()
							break
						}
						time.Sleep(time.Duration(1+r.IntN(20)) * time.Millisecond)
					}
					time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
				}
			})
		}
		stop := make(chan struct{})
		go func() {
			wg.Wait()
			close(stop)
		}()
		moves := 0
		for round, running := 0, true; running; round++ {
			g.begin(g.names()[round%3], g.names()[(round+1)%3])
			for i := range 5 {
				key := fmt.Sprint("key-", i)
				tab := g.board.Table()
				m, _, _ := tab.Owner(owner.Hash(key))
				if to, _ := tab.WantedOwner(owner.Hash(key)); to.Node != m.Node {
					g.flip(key)
					moves++
				}
				time.Sleep(7 * time.Millisecond)
			}
			g.finish()
			select {
			case <-stop:
				running = false
			default:
			}
		}
		for key, epochs := range acked {
			for epoch, n := range epochs {
				if v := top[key][epoch]; v != n {
					t.Errorf("%s since epoch %d: %d were acknowledged, and it stands at %d", key, epoch, n, v)
				}
			}
		}
		if moves < 5 {
			t.Errorf("only %d moves", moves)
		}
	})
}
