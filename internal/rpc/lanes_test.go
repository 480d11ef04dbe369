package rpc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// ack is how long a standby takes that is well.
const ack = time.Millisecond

// hanging are two standbys. One hangs until it is let go; the other one is well.
type hanging struct {
	name  table.Holder           // of the one that hangs
	disks atomic.Int64           // how often the disk was waited for
	stuck func(hash uint64) bool // its rows
	after chan struct{}          // closed when it is let go
}

func (h *hanging) Replicated(uint64) bool { return false }

func (h *hanging) Await(hash uint64) bool {
	return h.AwaitOf(context.Background(), hash, table.Holder{})
}

func (h *hanging) Behind(hash uint64) table.Behind {
	if h.stuck(hash) {
		return table.Behind{h.name}
	}
	return table.Behind{agreed.Holder("well"), agreed.Holder("next"), table.DiskOf(agreed.Holder("well")), table.DiskOf(agreed.Holder("next")), table.OwnDisk} // a row that gets another standby
}

func (h *hanging) AwaitOf(ctx context.Context, hash uint64, of table.Holder) bool {
	if of == table.OwnDisk {
		h.disks.Add(1)
	}
	if !h.stuck(hash) {
		time.Sleep(ack)
		return true
	}
	select {
	case <-h.after:
		return true
	case <-ctx.Done():
		return false
	}
}

// oneStream are keys of n1 that are passed on over one and the same stream, of which
// those before the last have a standby that hangs.
func (g *group) oneStream(n int) (stuck []string, well string, of func(hash uint64) bool) {
	keys := g.keys("n1", n+1, func(h uint64) bool { return h%forward.LinksPerPeer == 0 })
	well = keys[n]
	return keys[:n], well, func(hash uint64) bool { return hash != owner.Hash(well) }
}

// TestAnswersOvertake: a standby hangs, and hundreds of calls wait for it that came over
// the same stream. Those that wait for another standby are answered at once.
func TestAnswersOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &hanging{name: agreed.Holder("stuck"), after: make(chan struct{}), stuck: func(uint64) bool { return false }}
		g := grouped(t, 2, false, func(c *Config) {
			if c.Node == "n1" {
				c.Copies = copies
			}
		})
		release := sync.OnceFunc(func() { close(copies.after) })
		defer release()
		var stuck []string
		var well string
		stuck, well, copies.stuck = g.oneStream(300)
		through := g.nodes["n2"]
		var waiting sync.WaitGroup
		var wrong sync.Map
		ctx := bound(t)
		for i, key := range stuck {
			waiting.Go(func() {
				if r, err := through.counters.Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1}); err != nil || r.Value != 1 {
					wrong.Store(key, fmt.Sprint(r, err))
				}
			})
			if i%3 == 0 { // many messages, each with both
				time.Sleep(ack)
			}
			began := time.Now()
			r := must(through.counters.Add(ctx, &counterpb.AddRequest{Key: well, Delta: 1}))(t)
			if took := time.Since(began); r.Value != int64(i+1) || took > 5*ack {
				t.Fatalf("call %d beside %d that wait for the standby that hangs: %v after %s", i, i+1, r, took)
			}
		}
		if n := copies.disks.Load(); n < int64(len(stuck)) {
			t.Errorf("the disk was waited for %d times", n)
		}
		batch := must(through.counters.BatchAdd(ctx, &counterpb.BatchAddRequest{Adds: []*counterpb.AddRequest{{Key: well, Delta: 1}, {Key: well, Delta: 1}}}))(t)
		if n := batch.Results[1].GetResponse().GetValue(); n != int64(len(stuck)+2) {
			t.Errorf("a batch: %v", batch)
		}
		release()
		waiting.Wait()
		wrong.Range(func(key, what any) bool { t.Errorf("%s: %s", key, what); return true })
	})
}

// TestManyAnswersWait: so many answers wait for a standby that there is no room for more.
// What was done with the last ones is unknown; what comes for its rows from then on is
// refused before it is done. The same where they wait for the disk.
func TestManyAnswersWait(t *testing.T) {
	t.Run("standby", func(t *testing.T) { manyAnswersWait(t, agreed.Holder("n2")) })
	t.Run("disk", func(t *testing.T) { manyAnswersWait(t, table.OwnDisk) })
	t.Run("disk of the standby", func(t *testing.T) { manyAnswersWait(t, table.DiskOf(agreed.Holder("n2"))) })
}

func manyAnswersWait(t *testing.T, of table.Holder) {
	synctest.Test(t, func(t *testing.T) {
		const room, more = 20, 5
		copies := &hanging{after: make(chan struct{}), name: of, stuck: func(uint64) bool { return true }}
		g := grouped(t, 2, false, func(c *Config) { c.Copies, c.maxHeld = copies, room })
		g.protect(agreed.Holder("n1"), agreed.Holder("n2"))
		n, key := g.nodes["n1"], g.key("n1")
		stream := must(peerv1.NewForwardServiceClient(n.conn).Forward(bound(t)))(t)
		send := func(n int) {
			req := &peerv1.ForwardRequest{}
			for range n {
				req.Calls = append(req.Calls, passed(t, 0, 0, counterAdd.call(&counterpb.AddRequest{Key: key, Delta: 1}, 0)))
			}
			if err := stream.Send(req); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(n int, why commonpb.Reason) {
			t.Helper()
			for n > 0 {
				resp := must(stream.Recv())(t)
				for _, a := range resp.Answers {
					if got := a.GetError().GetReason(); got != why {
						t.Fatalf("%v, want %v", a, why)
					}
				}
				n -= len(resp.Answers)
			}
		}
		value := func() int64 {
			return must(n.store.Get(n.clock.Now(), owner.Ref{Key: key, Name: "counter"}))(t).Value
		}
		send(room + more)
		expect(more, commonpb.Reason_REASON_OUTCOME_UNKNOWN)
		if value() != room+more {
			t.Errorf("%d were done", value())
		}
		send(more)
		expect(more, commonpb.Reason_REASON_OVERLOADED)
		if value() != room+more {
			t.Errorf("%d were done, some after they were refused", value())
		}
		close(copies.after)
		expect(room, commonpb.Reason_REASON_UNSPECIFIED)
		send(more)
		expect(more, commonpb.Reason_REASON_UNSPECIFIED)
	})
}

// protect makes a process the standby of all rows of another one that it may have.
func (g *group) protect(o, standby table.Holder) {
	g.t.Helper()
	t := g.board.Table()
	c := &table.Sync{WantSince: t.WantSince, Owner: o, Standby: standby}
	for i, r := range t.Rows {
		if after, upTo := t.Segment(i); r.Owner == o {
			c.Rows = append(c.Rows, table.Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	g.apply(table.Command{Sync: c})
}

// TestStreamThatEndsWithHeldAnswers: answers that wait for their standby when the stream
// breaks are nobody's, and hold up neither the stream's end nor the stop of the server.
func TestStreamThatEndsWithHeldAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &hanging{name: agreed.Holder("stuck"), after: make(chan struct{}), stuck: func(uint64) bool { return true }}
		g := grouped(t, 1, false, func(c *Config) { c.Copies = copies })
		n := g.nodes["n1"]
		ctx, cancel := context.WithCancel(bound(t))
		stream := must(peerv1.NewForwardServiceClient(n.conn).Forward(ctx))(t)
		call := passed(t, 1, 0, counterAdd.call(&counterpb.AddRequest{Key: "k", Delta: 1}, 0))
		if err := stream.Send(&peerv1.ForwardRequest{Calls: []*peerv1.ForwardCall{call}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n.server.busy.Load() != 1 {
			t.Errorf("a stop waits for %d answers", n.server.busy.Load())
		}
		cancel()
		synctest.Wait()
		if n.server.calls.Load() != 0 {
			t.Error("the stream has not ended")
		}
		close(copies.after)
		synctest.Wait()
		if n.server.busy.Load() != 0 {
			t.Errorf("a stop waits for %d answers", n.server.busy.Load())
		}
	})
}
