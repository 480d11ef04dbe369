package rpc

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/value"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// Through any node: what a register is, why a change was refused, and what it is then.
func TestRegisters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 3, false, nil)
		g.called("c", owner.RegisterLevel)
		for _, n := range []string{"n1", "n2", "n3"} {
			m, ctx, key := g.nodes[n], bound(t), "of "+n
			put := must(m.registers.Put(ctx, &registerpb.PutRequest{Key: key, Value: []byte("1"), Fence: 5}))(t)
			if !put.Applied || put.Version == 0 || put.Current != nil || put.Epoch == 0 || put.Owner == "" {
				t.Errorf("%s: %v", n, put)
			}
			got := must(m.registers.Get(ctx, &registerpb.GetRequest{Key: key, Name: "register"}))(t)
			if !got.Exists || string(got.Value) != "1" || got.Version != put.Version || got.Fence != 5 || got.Owner != put.Owner {
				t.Errorf("%s: %v", n, got)
			}
			taken := must(m.registers.CompareAndSet(ctx, &registerpb.CompareAndSetRequest{Key: key, Value: []byte("2"), RequestId: requestN(1, 7)}))(t)
			if taken.Applied || taken.Refusal != registerpb.Refusal_REFUSAL_OTHER_VERSION || taken.Version != put.Version || string(taken.Current.GetValue()) != "1" {
				t.Errorf("%s: %v", n, taken)
			}
			set := must(m.registers.CompareAndSet(ctx, &registerpb.CompareAndSetRequest{Key: key, Value: []byte("2"), Version: put.Version}))(t)
			if !set.Applied || set.Version <= put.Version {
				t.Errorf("%s: %v", n, set)
			}
			again := must(m.registers.CompareAndSet(ctx, &registerpb.CompareAndSetRequest{Key: key, Value: []byte("2"), RequestId: requestN(1, 7)}))(t)
			if again.Replay == nil || again.Applied || again.Version != put.Version || string(again.Current.GetValue()) != "2" || again.Current.GetVersion() != set.Version {
				t.Errorf("%s: %v", n, again)
			}
			if r := must(m.registers.Put(ctx, &registerpb.PutRequest{Key: key, Value: []byte("late"), Fence: 4}))(t); r.Refusal != registerpb.Refusal_REFUSAL_OLD_FENCE {
				t.Errorf("%s: %v", n, r)
			}
			gone := must(m.registers.Delete(ctx, &registerpb.DeleteRequest{Key: key}))(t)
			if !gone.Deleted || gone.Version <= set.Version || gone.Current != nil {
				t.Errorf("%s: %v", n, gone)
			}
			if r := must(m.registers.Get(ctx, &registerpb.GetRequest{Key: key}))(t); r.Exists || r.Version != 0 || r.Fence != 5 {
				t.Errorf("%s: %v", n, r)
			}
			if r := must(m.registers.Delete(ctx, &registerpb.DeleteRequest{Key: key, ForgetFence: true}))(t); r.Deleted || r.Refusal != 0 {
				t.Errorf("%s: %v", n, r)
			}
		}
	})
}

// The lock of a register's key, and no other, lets its holder write.
func TestRegistersUnderLocks(t *testing.T) {
	bubble(t, nil, func(t *testing.T, h *house) {
		ctx := bound(t)
		lock := must(h.locks.Acquire(ctx, acquire("me", 10*time.Second, 0)))(t)
		key := acquire("me", 0, 0).Key
		put := func(hold *registerpb.Hold) *registerpb.PutResponse {
			return must(h.registers.Put(ctx, &registerpb.PutRequest{Key: key, Value: []byte("1"), Hold: hold}))(t)
		}
		for name, want := range map[string]bool{"": true, "lock": true, "other": false} {
			if r := put(&registerpb.Hold{Name: name, Token: lock.Token}); r.Applied != want || want != (r.Refusal == 0) {
				t.Errorf("under %q: %v", name, r)
			}
		}
		if r := must(h.registers.Delete(ctx, &registerpb.DeleteRequest{Key: key, Hold: &registerpb.Hold{Token: lock.Token + 1}}))(t); r.Deleted || r.Refusal != registerpb.Refusal_REFUSAL_HOLD_OVER {
			t.Error(r)
		}
		must(h.locks.Release(ctx, &lockpb.ReleaseRequest{Key: key, Token: lock.Token}))(t)
		if r := put(&registerpb.Hold{Token: lock.Token}); r.Applied || r.Refusal != registerpb.Refusal_REFUSAL_HOLD_OVER {
			t.Errorf("after the release: %v", r)
		}
		_, err := h.registers.Put(ctx, &registerpb.PutRequest{Key: key, Hold: &registerpb.Hold{}})
		refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "hold.token", hint: true}.check(t, err)
		_, err = h.registers.Put(ctx, &registerpb.PutRequest{Key: key, Value: make([]byte, value.MaxValue+1)})
		refusal{code: codes.InvalidArgument, why: commonpb.Reason_REASON_INVALID, field: "value"}.check(t, err)
	})
}

// The longest request of a register fits a message, also passed on by another node.
func TestLongestRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := grouped(t, 2, false, nil)
		g.called("c", owner.RegisterLevel)
		q := &registerpb.CompareAndSetRequest{Key: strings.Repeat("k", owner.MaxKey), Name: strings.Repeat("n", owner.MaxName), Value: make([]byte, value.MaxValue),
			Fence: value.MaxToken, Hold: &registerpb.Hold{Name: strings.Repeat("l", owner.MaxName), Token: value.MaxToken}, IdempotencyKey: strings.Repeat("i", 64)}
		if n := q.SizeVT(); n > MaxRequest {
			t.Errorf("%d bytes", n)
		}
		q.IdempotencyKey = "" // what nodes here remember of keys is not known
		for _, m := range g.nodes {
			if r := must(m.registers.CompareAndSet(bound(t), q))(t); r.Refusal != registerpb.Refusal_REFUSAL_HOLD_OVER {
				t.Error(r)
			}
			p := &registerpb.PutRequest{Key: q.Key, Name: q.Name, Value: q.Value}
			if r := must(m.registers.Put(bound(t), p))(t); !r.Applied {
				t.Error(r)
			}
			if r := must(m.registers.Get(bound(t), &registerpb.GetRequest{Key: q.Key, Name: q.Name}))(t); len(r.Value) != value.MaxValue {
				t.Errorf("%d bytes", len(r.Value))
			}
		}
	})
}

// stocked are copies that are so many bytes behind.
type stocked struct {
	lapsing
	behind atomic.Int64
}

func (s *stocked) Unacked(uint64) int { return int(s.behind.Load()) }

// A long value is refused while the standby is far behind: nothing else would hold back what
// ends the stream to it. Short ones, and reads, are not.
func TestValuesNeedRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &stocked{}
		copies.had.Store(true)
		g := grouped(t, 1, false, func(c *Config) { c.Copies = copies })
		g.called("c", owner.RegisterLevel)
		n, ctx := g.nodes["n1"], bound(t)
		put := func(size int) error {
			_, err := n.registers.Put(ctx, &registerpb.PutRequest{Key: "k", Value: make([]byte, size)})
			return err
		}
		for behind, most := range map[int]int{0: value.MaxValue, valueWindow - longValue: longValue, valueWindow - 1: longValue - 1, 2 * valueWindow: longValue - 1} {
			copies.behind.Store(int64(behind))
			if err := put(most); err != nil {
				t.Errorf("%d bytes behind, a value of %d: %v", behind, most, err)
			}
			if most < value.MaxValue {
				refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_OVERLOADED, hint: true, retry: 50 * time.Millisecond}.check(t, put(most+1))
			}
		}
		if _, err := n.registers.Get(ctx, &registerpb.GetRequest{Key: "k"}); err != nil {
			t.Error(err)
		}
	})
}

// Nodes of an earlier level know no registers: none is asked for one, and none is made, until
// all know them.
func TestRegistersNeedTheirLevel(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		g.called("c", owner.RegisterLevel-1)
		for _, m := range g.nodes {
			for _, rpc := range []string{"GetRegister", "Put", "PutIf", "DeleteRegister"} {
				refusal{code: codes.Unavailable, why: commonpb.Reason_REASON_UNAVAILABLE, hint: true, retry: time.Second}.check(in(t, rpc), m.calls(bound(t), g.key("n2"), "", nil)[rpc]())
			}
		}
		g.called("c", owner.RegisterLevel)
		if err := g.nodes["n1"].calls(bound(t), g.key("n2"), "", nil)["Put"](); err != nil {
			t.Error(err)
		}
	})
}

// A change that is refused sends the value that is there to the copies, if it has an id that they
// are to know: it is held back as one that writes so much is.
func TestRefusedChangesNeedRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := &stocked{}
		copies.had.Store(true)
		g := grouped(t, 1, false, func(c *Config) { c.Copies = copies })
		g.called("c", owner.RegisterLevel)
		n, ctx := g.nodes["n1"], bound(t)
		n.known.Store(true)
		put := must(n.registers.Put(ctx, &registerpb.PutRequest{Key: "k", Value: make([]byte, value.MaxValue)}))(t)
		var told atomic.Int64
		n.sink.on(func(*owner.Record) { told.Add(1) })
		copies.behind.Store(valueWindow - value.MaxValue/2)
		sequence := uint64(0)
		id := func() *commonpb.RequestId { sequence++; return requestN(1, sequence) }
		for name, change := range map[string]func(id *commonpb.RequestId) error{
			"put if absent": func(id *commonpb.RequestId) error {
				_, err := n.registers.CompareAndSet(ctx, &registerpb.CompareAndSetRequest{Key: "k", Value: []byte("me"), RequestId: id})
				return err
			},
			"delete": func(id *commonpb.RequestId) error {
				_, err := n.registers.Delete(ctx, &registerpb.DeleteRequest{Key: "k", Version: put.Version + 1, RequestId: id})
				return err
			},
		} {
			refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_OVERLOADED, hint: true, retry: 50 * time.Millisecond}.check(in(t, name), change(id()))
			if err := change(nil); err != nil {
				t.Errorf("%s without an id tells the copies nothing: %v", name, err)
			}
		}
		if n := told.Load(); n != 0 {
			t.Errorf("the copies were told %d times", n)
		}
		copies.behind.Store(0)
		must(n.registers.CompareAndSet(ctx, &registerpb.CompareAndSetRequest{Key: "k", RequestId: id()}))(t)
	})
}
