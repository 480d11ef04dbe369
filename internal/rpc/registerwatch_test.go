package rpc

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/value"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// watch opens a watch, which ends with the test.
func watch(t *testing.T, m *member, key string, after uint64) grpc.ServerStreamingClient[registerpb.WatchResponse] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // of the bubble
	t.Cleanup(cancel)
	return must(m.registers.Watch(ctx, &registerpb.WatchRequest{Key: key, AfterVersion: after}))(t)
}

// nextChange returns the next message of a watch that is no heartbeat, and how many of those came
// before.
func nextChange(t *testing.T, w grpc.ServerStreamingClient[registerpb.WatchResponse]) (r *registerpb.WatchResponse, beats int) {
	t.Helper()
	for ; ; beats++ {
		if r = must(w.Recv())(t); !r.Heartbeat {
			return r, beats
		}
		if r.Exists || r.Value != nil || r.Version != 0 || r.StaleAfterNs != int64(watchStale) || r.Owner == "" {
			t.Errorf("a heartbeat says %v", r)
		}
		if beats == 100 {
			t.Fatal("nothing but heartbeats")
		}
	}
}

// Through any node: what there is, what it becomes, in order, and a heartbeat a second in between.
func TestWatchRegister(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel)
		key := g.key("n2")
		for _, name := range []string{"n1", "n2"} {
			m, ctx := g.nodes[name], bound(t)
			w := watch(t, m, key, 0)
			first, _ := nextChange(t, w)
			if first.Exists || first.Version == 0 || first.Owner != "n2" {
				t.Errorf("%s: %v", name, first)
			}
			began := time.Now()
			for range 3 {
				if r := must(w.Recv())(t); !r.Heartbeat {
					t.Errorf("%s: %v", name, r)
				}
			}
			if took := time.Since(began); took < 2*watchBeat || took > 4*watchBeat {
				t.Errorf("%s: three heartbeats in %s", name, took)
			}
			last := first.Version
			for i := range 3 {
				put := must(g.nodes["n3"].registers.Put(ctx, &registerpb.PutRequest{Key: key, Value: fmt.Append(nil, i)}))(t)
				r, _ := nextChange(t, w)
				if string(r.Value) != fmt.Sprint(i) || r.Version != put.Version || r.Version <= last || !r.Exists {
					t.Errorf("%s: %v after %d, put %v", name, r, last, put)
				}
				last = r.Version
			}
			from := watch(t, m, key, last) // has it already
			if r := must(from.Recv())(t); !r.Heartbeat {
				t.Errorf("%s: %v", name, r)
			}
			must(m.registers.Delete(ctx, &registerpb.DeleteRequest{Key: key}))(t)
			for _, w := range []grpc.ServerStreamingClient[registerpb.WatchResponse]{w, from} {
				if r, _ := nextChange(t, w); r.Exists || r.Version <= last || len(r.Value) != 0 {
					t.Errorf("%s: %v", name, r)
				}
			}
			again := must(m.registers.Put(ctx, &registerpb.PutRequest{Key: key, Value: []byte("again")}))(t)
			if r, _ := nextChange(t, w); r.Version != again.Version {
				t.Errorf("%s: %v", name, r)
			}
			must(m.registers.Delete(ctx, &registerpb.DeleteRequest{Key: key}))(t)
		}
	})
}

// All watches of a register at a node are one to the owner; when the last one ends, so does it.
func TestWatchesShareATopic(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel)
		m, key := g.nodes["n1"], g.key("n2")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		const many = 50
		for range many {
			w := must(m.registers.Watch(ctx, &registerpb.WatchRequest{Key: key}))(t)
			nextChange(t, w)
		}
		topics := func() (n, streams int) {
			r := m.server.registers
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, t := range r.topics {
				streams += t.streams
			}
			return len(r.topics), streams
		}
		synctest.Wait()
		if n, streams := topics(); n != 1 || streams != many {
			t.Errorf("%d topics of %d streams", n, streams)
		}
		row := g.nodes["n2"].server.row(registerAwait.operation)
		before := count(t, row.no)
		time.Sleep(10 * watchBeat)
		if asked := count(t, row.no) - before; asked > 12 {
			t.Errorf("the owner was asked %v times in 10 s", asked)
		}
		cancel()
		synctest.Wait()
		if n, streams := topics(); n != 0 || streams != 0 || m.server.watching.Load() != 0 {
			t.Errorf("%d topics of %d streams are left", n, streams)
		}
	})
}

// A watcher that does not read is sent the latest, when it does, and not what was in between.
func TestSlowWatcher(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel)
		key := g.key("n2")
		w := watch(t, g.nodes["n1"], key, 0)
		nextChange(t, w)
		const many = 100
		var last uint64
		for range many {
			r := must(g.nodes["n2"].registers.Put(bound(t), &registerpb.PutRequest{Key: key, Value: make([]byte, 60<<10)}))(t)
			last = r.Version
			time.Sleep(10 * time.Millisecond)
		}
		n, at := 0, uint64(0)
		for ; at < last; n++ {
			r, _ := nextChange(t, w)
			if r.Version <= at {
				t.Fatalf("version %d after %d", r.Version, at)
			}
			at = r.Version
		}
		if n > many/2 {
			t.Errorf("%d of %d changes were sent to a watcher that did not read", n, many)
		}
	})
}

// While the owner does not answer there is no heartbeat; nobody is told a state that is not
// with the copies.
func TestWatchOfASilentOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &roomy{}
		copies.had.Store(true)
		g := grouped(t, 1, false, func(c *Config) { c.Copies = copies })
		g.called("c", owner.RegisterLevel)
		n := g.nodes["n1"]
		w := watch(t, n, "k", 0)
		nextChange(t, w)
		got := make(chan *registerpb.WatchResponse, 1000)
		go func() {
			for {
				r, err := w.Recv()
				if err != nil {
					close(got)
					return
				}
				got <- r
			}
		}()
		time.Sleep(watchBeat / 2)
		copies.had.Store(false)
		time.Sleep(2 * watchStale)
		for len(got) > 0 {
			<-got // of before
		}
		_, _ = n.store.SetRegister(0, owner.Ref{Key: "k", Name: "register"}, reqid.ID{}, owner.SetRegister{})
		select {
		case r := <-got:
			t.Errorf("told %v before the copies have it", r)
		case <-time.After(3 * watchStale):
		}
		copies.had.Store(true)
		for r := range got {
			if r.Exists {
				return
			}
		}
		t.Error("never told")
	})
}

func TestWatchRefusals(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel-1)
		m, ctx := g.nodes["n1"], bound(t)
		refused := func(q *registerpb.WatchRequest, want refusal) {
			t.Helper()
			_, err := must(m.registers.Watch(ctx, q))(t).Recv()
			want.check(t, err)
		}
		refused(&registerpb.WatchRequest{Key: "k"}, refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second})
		g.called("c", owner.RegisterLevel)
		refused(&registerpb.WatchRequest{}, refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "key"})
		must(m.counters.Add(ctx, &counterpb.AddRequest{Key: "k", Name: "c", Delta: 1}))(t)
		refused(&registerpb.WatchRequest{Key: "k", Name: "c"}, refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_KIND_MISMATCH, hint: true})
		m.server.watching.Store(MaxObjectWatches)
		refused(&registerpb.WatchRequest{Key: "k"}, refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_OVERLOADED, hint: true, retry: time.Second})
		m.server.watching.Store(0)

		// A name that becomes another kind's ends its watches.
		w := watch(t, m, "x", 0)
		nextChange(t, w)
		must(m.counters.Add(ctx, &counterpb.AddRequest{Key: "x", Name: "register", Delta: 1}))(t)
		for {
			if _, err := w.Recv(); err != nil {
				refusal{code: codes.FailedPrecondition, why: commonpb.Reason_REASON_KIND_MISMATCH, hint: true}.check(t, err)
				return
			}
		}
	})
}

// A version that the register has not come to is another's: its watch would be told nothing.
func TestWatchOfTheFuture(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel)
		m, key, ctx := g.nodes["n1"], g.key("n2"), bound(t)
		future := func(after uint64) {
			t.Helper()
			_, err := must(m.registers.Watch(ctx, &registerpb.WatchRequest{Key: key, AfterVersion: after}))(t).Recv()
			refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "after_version", hint: true}.check(t, err)
		}
		future(1 << 62)
		put := must(m.registers.Put(ctx, &registerpb.PutRequest{Key: key}))(t)
		future(put.Version + 1)
		if r := must(watch(t, m, key, put.Version).Recv())(t); !r.Heartbeat {
			t.Errorf("%v", r)
		}
	})
}

// A watch that nothing happens to costs the owner a few bytes a second, however long the value,
// and whoever comes late is told all of it.
func TestIdleWatchIsBrief(t *testing.T) {
	for level, brief := range map[uint32]bool{briefLevel: true, briefLevel - 1: false} {
		inGroup(t, func(t *testing.T, g *group) {
			g.called("c", level)
			m, key := g.nodes["n1"], g.key("n2")
			long := bytes.Repeat([]byte("v"), value.MaxValue)
			must(m.registers.Put(bound(t), &registerpb.PutRequest{Key: key, Value: long}))(t)
			w := watch(t, m, key, 0)
			first, _ := nextChange(t, w)
			for range 3 {
				must(w.Recv())(t)
			}
			a := must(registerAwait.atOwner(bound(t), m.server, &peerv1.AwaitRequest{Key: key, Seen: &peerv1.Seen{Position: first.Version, Exists: true}}))(t)
			if !a.Exists || a.Position != first.Version || (len(a.Value) == 0) != brief {
				t.Errorf("level %d: nothing new takes %d bytes", level, a.SizeVT())
			}
			if r, _ := nextChange(t, watch(t, m, key, 0)); !bytes.Equal(r.Value, long) {
				t.Errorf("level %d: %d bytes", level, len(r.Value))
			}
			r := m.server.registers
			r.mu.Lock()
			for _, topic := range r.topics {
				if n := len(topic.now.Load().answer.Value); n != len(long) {
					t.Errorf("level %d: a topic has %d bytes", level, n)
				}
			}
			r.mu.Unlock()
		})
	}
}

// A name may be a register, then a counter, and a register again: whoever comes then does not join
// a watch that has ended.
func TestWatchAfterATopicEnded(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel)
		r := g.nodes["n1"].server.registers
		of := watched{g.key("n2"), "register"}
		held := r.join(of) // a stream that has not noticed yet
		must(g.nodes["n2"].counters.Add(bound(t), &counterpb.AddRequest{Key: of.key, Name: of.name, Delta: 1}))(t)
		for held.now.Load().err == nil {
			<-held.now.Load().next
		}
		must(g.nodes["n2"].counters.Delete(bound(t), &counterpb.DeleteRequest{Key: of.key, Name: of.name}))(t)
		put := must(g.nodes["n1"].registers.Put(bound(t), &registerpb.PutRequest{Key: of.key, Value: []byte("v")}))(t)
		w := watch(t, g.nodes["n1"], of.key, 0)
		nextChange(t, w)
		next := must(g.nodes["n1"].registers.Put(bound(t), &registerpb.PutRequest{Key: of.key, Value: []byte("w")}))(t)
		if c, _ := nextChange(t, w); c.Version != next.Version || next.Version <= put.Version {
			t.Errorf("%v", c)
		}
		r.leave(held)
		if c := r.join(of); c == held || c.streams != 2 {
			t.Error("the end of the old watch has ended the new one")
		} else {
			r.leave(c)
		}
	})
}

// Who watches takes a part of the calls that an owner may have under way, and no more: to others
// it says at once that nothing is new, and their nodes ask a beat later.
func TestAwaitsLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 40
		g := grouped(t, 2, false, func(c *Config) { c.MaxCalls = calls })
		g.called("c", owner.RegisterLevel)
		m, n2 := g.nodes["n1"], g.nodes["n2"]
		r := m.server.registers
		var topics []watched
		for _, key := range g.keys("n2", 2*calls, nil) {
			topics = append(topics, watched{key, "register"})
		}
		for _, of := range topics {
			defer r.leave(r.join(of))
		}
		row := n2.server.row(registerAwait.operation)
		time.Sleep(5 * watchBeat)
		synctest.Wait()
		if n := n2.server.calls.Load(); n > calls/awaitsShare+1 { // and the stream from there
			t.Errorf("%d of %d calls of the owner are awaits", n, calls)
		}
		before := count(t, row.no)
		time.Sleep(5 * watchBeat)
		if asked := count(t, row.no) - before; asked > float64(7*len(topics)) || asked < float64(4*len(topics)) {
			t.Errorf("%d topics asked %v times in 5 s", len(topics), asked)
		}
		last := topics[len(topics)-1].key // that has no place
		put := must(n2.registers.Put(bound(t), &registerpb.PutRequest{Key: last}))(t)
		time.Sleep(2 * watchBeat)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if seen := r.topics[topics[len(topics)-1]].now.Load().seen; seen.Position != put.Version {
			t.Errorf("%+v, put %v", seen, put)
		}
	})
}

// What is watched has so much memory at a node.
func TestWatchedBytesAreBounded(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel)
		m, key := g.nodes["n1"], g.key("n2")
		put := func(size int) {
			must(m.registers.Put(bound(t), &registerpb.PutRequest{Key: key, Value: make([]byte, size)}))(t)
		}
		put(value.MaxValue)
		synctest.Wait()
		m.server.watched.Add(maxWatchedBytes - value.MaxValue/2)
		w := watch(t, m, key, 0)
		for {
			_, err := w.Recv()
			if err == nil {
				continue
			}
			refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_OVERLOADED, hint: true, retry: time.Second}.check(t, err)
			break
		}
		synctest.Wait()
		put(10)
		w = watch(t, m, key, 0)
		for range 3 {
			must(w.Recv())(t)
		}
		m.server.watched.Add(-(maxWatchedBytes - value.MaxValue/2))
	})
}

// pausing is a clock that goes on while the process does not.
type pausing struct {
	clock.Clock
	ahead atomic.Int64
}

func (p *pausing) Now() int64 { return p.Clock.Now() + p.ahead.Load() }

// What a node had heard before it was paused is not told afterwards as the latest: neither as a
// heartbeat nor as a state. It asks again.
func TestWatchAtAPausedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pausing{}
		g := grouped(t, 1, false, func(c *Config) { p.Clock, c.Clock = c.Clock, p })
		g.called("c", owner.RegisterLevel)
		n := g.nodes["n1"]
		w := watch(t, n, "k", 0)
		nextChange(t, w)
		must(w.Recv())(t)
		synctest.Wait() // the owner waits for news
		p.ahead.Store(int64(time.Minute))
		began := time.Now()
		put := must(n.registers.Put(bound(t), &registerpb.PutRequest{Key: "k"}))(t)
		r := must(w.Recv())(t)
		if took := time.Since(began); r.Version != put.Version || took == 0 {
			t.Errorf("%v after %s: of before the pause", r, took)
		}
	})
}

// A long value is written once for all who watch it at a node: for each of them it would be 600
// MB where 10,000 watch.
func TestWatchersShareTheBytes(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel)
		m, key := g.nodes["n1"], g.key("n2")
		var watchers []grpc.ServerStreamingClient[registerpb.WatchResponse]
		for range 20 {
			w := watch(t, m, key, 0)
			nextChange(t, w)
			watchers = append(watchers, w)
		}
		r := m.server.registers
		for i, size := range []int{value.MaxValue, longValue, 10, value.MaxValue - 1} {
			before := r.told.Load()
			put := must(m.registers.Put(bound(t), &registerpb.PutRequest{Key: key, Value: bytes.Repeat([]byte{byte(i)}, size), Fence: uint64(i + 1)}))(t)
			for _, w := range watchers {
				if c, _ := nextChange(t, w); c.Version != put.Version || !c.Exists || c.Fence != uint64(i+1) || !bytes.Equal(c.Value, bytes.Repeat([]byte{byte(i)}, size)) {
					t.Fatalf("%d bytes of version %d, want %d of %d", len(c.Value), c.Version, size, put.Version)
				}
			}
			synctest.Wait()
			told := r.told.Load()
			if size < longValue {
				if told != before {
					t.Errorf("%d bytes are kept", size)
				}
				continue
			}
			r.mu.Lock()
			for _, topic := range r.topics {
				if told.answer.Position != put.Version || told.answer != topic.now.Load().answer && len(topic.now.Load().answer.Value) != size {
					t.Errorf("%d bytes were not written once", size)
				}
			}
			r.mu.Unlock()
		}
	})
}

// Watches that began at the same moment ask their owner at different ones after a while.
func TestWatchesSpread(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel)
		r := g.nodes["n1"].server.registers
		const many = 200
		for _, key := range g.keys("n2", many, nil) {
			defer r.leave(r.join(watched{key, "register"}))
		}
		row := g.nodes["n2"].server.row(registerAwait.operation)
		time.Sleep(30*watchBeat + watchBeat/200) // at no moment at which those ask that do not spread
		most, asked := 0.0, count(t, row.no)
		for range 100 {
			time.Sleep(watchBeat / 100)
			now := count(t, row.no)
			most, asked = max(most, now-asked), now
		}
		if most > many/4 {
			t.Errorf("%v of %d asked within %s", most, many, watchBeat/100)
		}
	})
}
