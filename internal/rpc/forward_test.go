package rpc

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// inGroup runs a test of three nodes in a bubble.
func inGroup(t *testing.T, f func(t *testing.T, g *group)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, grouped(t, 3, false, nil)) })
}

// script calls every operation on a key through one node and returns what was
// answered.
func script(t *testing.T, m *member, key string) []string {
	t.Helper()
	var said []string
	say := func(r fmt.Stringer, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, r.String())
	}
	const second = int64(time.Second)
	ctx := bound(t)
	for _, peek := range []bool{true, false, true} {
		r, err := m.limits.Check(ctx, &limitpb.CheckRequest{Key: key, Limit: 5, PeriodNs: second, Cost: 2, Peek: peek})
		say(r, err)
	}
	for range 2 { // with a replay
		r, err := m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 3, RequestId: requestN(1, 1)})
		say(r, err)
	}
	get := must(m.counters.Get(ctx, &counterpb.GetRequest{Key: key}))(t)
	say(get, nil)
	set, err := m.counters.CompareAndSet(ctx, &counterpb.CompareAndSetRequest{Key: key, Value: 9, Version: get.Version})
	say(set, err)
	reset, err := m.counters.Reset(ctx, &counterpb.ResetRequest{Key: key, RequestId: requestN(1, 2)})
	say(reset, err)
	lock, err := m.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: "me", TtlNs: second})
	say(lock, err)
	held, err := m.locks.Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: "other", TtlNs: second})
	say(held, err)
	renew, err := m.locks.Renew(ctx, &lockpb.RenewRequest{Key: key, Token: lock.GetToken(), TtlNs: 2 * second})
	say(renew, err)
	look, err := m.locks.Inspect(ctx, &lockpb.InspectRequest{Key: key})
	say(look, err)
	release, err := m.locks.Release(ctx, &lockpb.ReleaseRequest{Key: key, Token: lock.GetToken()})
	say(release, err)
	adds := must(m.counters.BatchAdd(ctx, &counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{{Key: key, Delta: 1}, {Key: key, Delta: 2, Name: "other"}}}))(t)
	say(adds, nil)
	gets := must(m.counters.BatchGet(ctx, &counterpb.BatchGetRequest{Gets: []*counterpb.GetRequest{{Key: key}, {Key: key, Name: "other"}}}))(t)
	say(gets, nil)
	checks := must(m.limits.BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: []*limitpb.CheckRequest{{Key: key, Limit: 5, PeriodNs: second}, {Key: key, PeriodNs: second}}}))(t)
	say(checks, nil)
	return said
}

// The same is answered at the owner and at any other node, and the answers name
// the owner and the epoch of the row.
func TestEveryOperationIsForwarded(t *testing.T) {
	for _, c := range []struct {
		what    string
		sockets bool
	}{{"in memory", false}, {"on sockets", true}} {
		t.Run(c.what, func(t *testing.T) {
			test := func(t *testing.T) {
				var want []string
				for _, through := range []string{"n2", "n1", "n3"} { // the owner first
					g := grouped(t, 3, c.sockets, nil)
					key := g.key("n2")
					r := must(g.nodes[through].counters.Get(bound(t), &counterpb.GetRequest{Key: key}))(t)
					same(t, r, &counterpb.GetResponse{Owner: "n2", Epoch: g.since(key)})
					if c.sockets {
						script(t, g.nodes[through], key) // real time: what it says differs by nanoseconds
						continue
					}
					got := script(t, g.nodes[through], key)
					if want == nil {
						want = got
					}
					for i := range want {
						if got[i] != want[i] {
							t.Errorf("through %s:\n%s\nat the owner:\n%s", through, got[i], want[i])
						}
					}
				}
			}
			if c.sockets {
				test(t)
			} else {
				synctest.Test(t, test)
			}
		})
	}
}

// Errors of the owner arrive as they are.
func TestErrorsAreForwarded(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, key := g.nodes["n1"], g.key("n2")
		must(n1.counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1}))(t)
		_, err := n1.locks.Inspect(bound(t), &lockpb.InspectRequest{Key: key, Name: "counter"})
		refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_KIND_MISMATCH, hint: true}.check(t, err)
		_, err = n1.locks.Acquire(bound(t), &lockpb.AcquireRequest{Key: key, Holder: "me", TtlNs: 1})
		badField("ttl_ns").check(t, err)
	})
}

func TestNoForward(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, key := g.nodes["n1"], g.key("n2")
		ctx := metadata.AppendToOutgoingContext(bound(t), forward.NoForward, "")
		check := func(err error, owner, addr string, epoch uint64) {
			t.Helper()
			if status.Code(err) != codes.FailedPrecondition {
				t.Fatal(err)
			}
			info, _ := status.Convert(err).Details()[0].(*errdetails.ErrorInfo)
			if info.GetReason() != "NOT_OWNER" || info.Metadata["owner"] != owner || info.Metadata["owner_addr"] != addr ||
				info.Metadata["epoch"] != strconv.FormatUint(epoch, 10) {
				t.Errorf("the details are %v", info)
			}
		}
		_, err := n1.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1})
		check(err, "n2", "n2:7400", g.since(key))
		own := g.key("n1")
		r := must(n1.counters.BatchAdd(ctx, &counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{{Key: own, Delta: 1}, {Key: key, Delta: 1}}}))(t).Results
		if e := r[1].Error; r[0].Response.GetValue() != 1 || e.GetReason() != commonpb.Reason_REASON_NOT_OWNER || e.Owner != "n2" || e.OwnerAddr != "n2:7400" || e.Epoch != g.since(key) {
			t.Errorf("the batch: %v", r)
		}
		if r := must(n1.counters.Get(bound(t), &counterpb.GetRequest{Key: key}))(t); r.Value != 0 {
			t.Errorf("it was done all the same: %v", r)
		}
		g.apply(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Holder("n1"), agreed.Holder("n2"), agreed.Holder("n3")}}})
		_, err = n1.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1})
		check(err, "", "", 0)
	})
}

// A key that nobody owns is waited for, and not for ever.
func TestNobodyOwnsTheKey(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		all := []table.Holder{agreed.Holder("n1"), agreed.Holder("n2"), agreed.Holder("n3")}
		key := g.key("n2")
		g.apply(table.Command{Remove: &table.Remove{Members: all}})
		began := time.Now()
		_, err := g.nodes["n1"].counters.Get(bound(t), &counterpb.GetRequest{Key: key})
		unavailable.check(t, err)
		if took := time.Since(began); took != forward.MaxAwait {
			t.Errorf("it took %v", took)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
		defer cancel()
		if _, err = g.nodes["n1"].counters.Get(ctx, &counterpb.GetRequest{Key: key}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("by the deadline: %v", err)
		}
		done := make(chan error)
		go func() {
			_, err := g.nodes["n1"].counters.Get(bound(t), &counterpb.GetRequest{Key: key})
			done <- err
		}()
		time.Sleep(time.Second)
		g.board.admit("n1", "n2", "n3")
		g.begin("n1", "n2", "n3")
		if err := <-done; err != nil {
			t.Errorf("when it has an owner again: %v", err)
		}
	})
}

// A frozen row is waited for, also while tables change that do not concern it.
func TestFrozenRow(t *testing.T) {
	for _, through := range []string{"n1", "n2", "n3"} {
		t.Run(through, func(t *testing.T) {
			inGroup(t, func(t *testing.T, g *group) {
				key := g.key("n3")
				g.begin("n1", "n2")
				g.nodes["n3"].frozen.Store(true)
				done := make(chan string)
				go func() {
					r, err := g.nodes[through].counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1})
					done <- fmt.Sprint(r.GetValue(), " ", r.GetOwner(), " ", err)
				}()
				for range 2 * forward.MaxHops { // of other rows, or of none
					time.Sleep(10 * time.Millisecond)
					g.apply(table.Command{Raise: &table.Raise{Above: g.board.Table().Epoch}})
				}
				to := g.flip(key)
				if got, want := <-done, fmt.Sprint(1, " ", to, " ", error(nil)); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

// A row may become fit to be served without a later table.
func TestRowThawsWithoutATable(t *testing.T) {
	for _, through := range []string{"n1", "n2"} {
		t.Run(through, func(t *testing.T) {
			inGroup(t, func(t *testing.T, g *group) {
				g.nodes["n2"].frozen.Store(true)
				time.AfterFunc(50*time.Millisecond, func() { g.nodes["n2"].frozen.Store(false) })
				began := time.Now()
				must(g.nodes[through].counters.Add(bound(t), &counterpb.AddRequest{Key: g.key("n2"), Delta: 1}))(t)
				if took := time.Since(began); took > 50*time.Millisecond+forward.LookAgain {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// The sender's table is ahead: the receiver waits for it, and serves then.
func TestReceiverBehind(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.begin("n1", "n2")
		key := g.moving("n3", "n2")
		n2 := g.nodes["n2"]
		n2.hold(true)
		g.flip(key)
		done := make(chan error)
		go func() {
			r, err := g.nodes["n1"].counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1})
			if err == nil && (r.Owner != "n2" || r.Epoch != g.since(key)) {
				err = fmt.Errorf("answered by %v", r)
			}
			done <- err
		}()
		time.Sleep(forward.MaxBehind / 2)
		n2.hold(false)
		g.tell()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := count(t, n2.metrics.received); n != 1 {
			t.Errorf("it came %v times", n)
		}
	})
}

// While one call waits at a receiver that is behind, calls on other keys do not.
func TestOthersDoNotWait(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.begin("n1", "n2")
		key, n1, n2 := g.moving("n3", "n2"), g.nodes["n1"], g.nodes["n2"]
		other := g.keys("n2", 1, func(h uint64) bool { return h%forward.LinksPerPeer == owner.Hash(key)%forward.LinksPerPeer })[0]
		n2.hold(true)
		g.flip(key)
		done := make(chan error)
		go func() {
			_, err := n1.counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1})
			done <- err
		}()
		synctest.Wait()
		began := time.Now()
		must(n1.counters.Add(bound(t), &counterpb.AddRequest{Key: other, Delta: 1}))(t)
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		n2.hold(false)
		g.tell()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The receiver's table is ahead: it refuses, and the sender catches up.
func TestReceiverAhead(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.begin("n1", "n2")
		key := g.moving("n3", "n2")
		n1 := g.nodes["n1"]
		n1.hold(true)
		g.flip(key)
		done := make(chan error)
		go func() {
			r, err := n1.counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1})
			if err == nil && (r.Owner != "n2" || r.Value != 1) {
				err = fmt.Errorf("answered by %v", r)
			}
			done <- err
		}()
		synctest.Wait()
		if n := count(t, g.nodes["n3"].metrics.received); n != 1 {
			t.Errorf("it came to the former owner %v times", n)
		}
		time.Sleep(time.Second)
		n1.hold(false)
		g.tell()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := count(t, n1.metrics.passed["answered"]); n != 1 {
			t.Errorf("%v calls are counted as passed on", n)
		}
	})
}

// Two nodes that take each other for the owner do not pass a call to and fro.
func TestNoLoop(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.begin("n1", "n2")
		key := g.moving("n3", "n2")
		n2, n3 := g.nodes["n2"], g.nodes["n3"]
		n2.hold(true) // n2 goes on taking n3 for the owner
		g.flip(key)
		began := time.Now()
		_, err := n3.counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1})
		unavailable.check(t, err)
		if took := time.Since(began); took > forward.MaxAwait+2*forward.MaxBehind {
			t.Errorf("it took %v", took)
		}
		if a, b := count(t, n2.metrics.received), count(t, n3.metrics.received); a == 0 || a > forward.MaxHops || b != 0 {
			t.Errorf("it was passed on %v times, and back %v times", a, b)
		}
	})
}

// A node that cannot be reached costs its callers no time, and nothing happened.
func TestPeerIsUnreachable(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		down := func() bool { return false }
		g.nodes["n2"].wire.Store(&down)
		key := g.key("n2")
		for range 3 {
			began := time.Now()
			_, err := g.nodes["n1"].counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1})
			unavailable.check(t, err)
			if took := time.Since(began); took > forward.OpenTime {
				t.Errorf("it took %v", took)
			}
			time.Sleep(20 * time.Millisecond)
		}
		g.nodes["n2"].wire.Store(nil)
		time.Sleep(2 * time.Second)
		if r := must(g.nodes["n1"].counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1}))(t); r.Value != 1 {
			t.Errorf("a refused call was done: %v", r)
		}
	})
}

// The owner dies with a call: who has an id learns what became of it from the
// next owner, a read is unavailable, and all others are unknown.
func TestPeerDiesMidCall(t *testing.T) {
	for _, c := range []struct {
		what string
		call func(ctx context.Context, m *member, key string) error
		want *refusal
	}{
		{"an id", func(ctx context.Context, m *member, key string) error {
			r, err := m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1, RequestId: requestN(1, 1)})
			if err == nil && (r.Owner == "n2" || r.Value != 1) {
				return fmt.Errorf("answered %v", r)
			}
			return err
		}, nil},
		{"no id", func(ctx context.Context, m *member, key string) error {
			_, err := m.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1})
			return err
		}, &unheard},
		{"a read", func(ctx context.Context, m *member, key string) error {
			_, err := m.counters.Get(ctx, &counterpb.GetRequest{Key: key})
			return err
		}, &unavailable},
		{"a renewal", func(ctx context.Context, m *member, key string) error {
			_, err := m.locks.Renew(ctx, &lockpb.RenewRequest{Key: key, Token: 1, TtlNs: int64(time.Second)})
			return err
		}, &unheard},
	} {
		t.Run(c.what, func(t *testing.T) {
			inGroup(t, func(t *testing.T, g *group) {
				n1, n2, key := g.nodes["n1"], g.nodes["n2"], g.key("n2")
				must(n1.counters.Get(bound(t), &counterpb.GetRequest{Key: key}))(t) // the way is open
				time.Sleep(10 * time.Second)                                        // the other nodes know enough to take a retry
				reached, die := make(chan struct{}), make(chan struct{})
				hang := func() { close(reached); <-die }
				n2.after.Store(&hang)
				done := make(chan error)
				go func() { done <- c.call(bound(t), n1, key) }()
				<-reached
				down := func() bool { return false }
				n2.wire.Store(&down)
				peerOf(t, n1.server, "n2").Conn.ResetConnectBackoff()
				go n2.stop()
				synctest.Wait()
				close(die) // its answer finds nobody
				time.Sleep(time.Second)
				g.without("n2")
				err := <-done
				if c.want == nil {
					if err != nil {
						t.Error(err)
					}
					return
				}
				c.want.check(t, err)
			})
		})
	}
}

// The way to the owner breaks after it acted: who has an id is told what it did.
func TestConnectionBreaksMidCall(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, n2, key := g.nodes["n1"], g.nodes["n2"], g.key("n2")
		add := func(id *commonpb.RequestId) (*counterpb.AddResponse, error) {
			reached, on := make(chan struct{}), make(chan struct{})
			hang := func() { close(reached); <-on }
			n2.confirm.Store(&hang)
			go func() {
				<-reached
				conn, _ := g.conns.Load("n1 n2:7400")
				_ = conn.(net.Conn).Close()
				synctest.Wait()
				close(on)
			}()
			return n1.counters.Add(bound(t), &counterpb.AddRequest{Key: key, Delta: 1, RequestId: id})
		}
		began := time.Now()
		r := must(add(requestN(1, 1)))(t)
		if took := time.Since(began); r.Value != 1 || r.Replay == nil || took > time.Second {
			t.Errorf("after %v: %v", took, r)
		}
		_, err := add(nil)
		unheard.check(t, err)
		if r := must(n1.counters.Get(bound(t), &counterpb.GetRequest{Key: key}))(t); r.Value != 2 {
			t.Errorf("it was done more than once: %v", r)
		}
	})
}

// What was passed on and is not answered in time is unknown, a read is not.
func TestCallerLeavesMidCall(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, n2, key := g.nodes["n1"], g.nodes["n2"], g.key("n2")
		cut := func(do func(ctx context.Context) error) error {
			reached, on := make(chan struct{}), make(chan struct{})
			hang := func() { close(reached); <-on }
			n2.after.Store(&hang)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- do(ctx) }()
			<-reached
			cancel()
			err := <-done
			close(on)
			synctest.Wait()
			return err
		}
		s := n1.server
		err := cut(func(ctx context.Context) error {
			_, err := counterAdd.serve(ctx, s, &counterpb.AddRequest{Key: key, Delta: 1})
			return err
		})
		unheard.check(t, err)
		err = cut(func(ctx context.Context) error {
			_, err := counterGet.serve(ctx, s, &counterpb.GetRequest{Key: key})
			return err
		})
		refusal{code: codes.Canceled, why: commonpb.Reason_REASON_GAVE_UP}.check(t, err)
		if r := must(n1.counters.Get(bound(t), &counterpb.GetRequest{Key: key}))(t); r.Value != 1 {
			t.Errorf("the stream goes on: %v", r)
		}
		if n := peerOf(t, s, "n2").Pending; n != 0 {
			t.Errorf("%d calls are still awaited", n)
		}
	})
}

// peerOf returns what a server knows of its way to another node.
func peerOf(t testing.TB, s *Server, node string) forward.Peer {
	t.Helper()
	for _, p := range s.router.Peers() {
		if p.Node == node {
			return p
		}
	}
	t.Fatalf("there is no connection to %s", node)
	return forward.Peer{}
}

// Who waits for a lock through a node that stops is sent away: nothing happened; or
// with a request id, by which it may come back for what it was granted at that very
// moment, that is unknown.
func TestStopOfTheSender(t *testing.T) {
	t.Run("without an id", func(t *testing.T) {
		stopOfTheSender(t, nil, refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: errStopping.RetryAfter})
	})
	t.Run("with an id", func(t *testing.T) {
		stopOfTheSender(t, &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 1},
			refusal{code: codes.Unknown, why: commonpb.Reason_REASON_OUTCOME_UNKNOWN, hint: true, retry: forward.ErrUnheard.RetryAfter})
	})
}

func stopOfTheSender(t *testing.T, id *commonpb.RequestId, want refusal) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, n2, key := g.nodes["n1"], g.nodes["n2"], g.key("n2")
		must(n2.locks.Acquire(bound(t), &lockpb.AcquireRequest{Key: key, Holder: "holder", TtlNs: int64(time.Hour)}))(t)
		waiting := make(chan error)
		go func() {
			_, err := n1.locks.Acquire(context.Background(), &lockpb.AcquireRequest{Key: key, Holder: "me", TtlNs: int64(time.Second), WaitNs: int64(time.Hour), RequestId: id})
			waiting <- err
		}()
		synctest.Wait()
		if n := n2.store.Stats().Waiting; n != 1 {
			t.Fatalf("%d wait", n)
		}
		began := time.Now()
		go n1.server.Stop(time.Minute)
		want.check(t, <-waiting)
		synctest.Wait()
		if took := time.Since(began); took > lastAnswers {
			t.Errorf("it took %v", took)
		}
		if id != nil { // the owner may have seen the way end before the call was given up: the place is kept then
			time.Sleep(time.Duration(owner.OwnGrace))
			synctest.Wait()
		}
		if n := n2.store.Stats().Waiting; n != 0 {
			t.Errorf("%d still wait at the owner", n)
		}
	})
}

// A node that stops while calls are passed on to it says that nothing happened.
func TestStopOfTheReceiver(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n1, n2, key := g.nodes["n1"], g.nodes["n2"], g.key("n2")
		must(n2.locks.Acquire(bound(t), &lockpb.AcquireRequest{Key: key, Holder: "holder", TtlNs: int64(time.Hour)}))(t)
		waiting := make(chan error)
		go func() {
			_, err := n1.locks.Acquire(context.Background(), &lockpb.AcquireRequest{Key: key, Holder: "me", TtlNs: int64(time.Second), WaitNs: int64(time.Hour)})
			waiting <- err
		}()
		synctest.Wait()
		go n2.server.Stop(time.Minute)
		refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: errStopping.RetryAfter}.check(t, <-waiting)
		time.Sleep(time.Second)
		if a := must(n2.store.Inspect(n2.clock.Now(), owner.Ref{Key: key, Name: "lock"}, 1))(t); a.Waiting != 0 {
			t.Errorf("%d still wait", a.Waiting)
		}
	})
}
