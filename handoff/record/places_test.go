package record

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
)

func crowded(t *rapid.T, w *cable) *pair {
	p := &pair{t: t, wire: w, crowd: true, now: 1000 * second, tokens: map[stamp]uint64{}, version: map[stamp]uint64{}}
	p.level = rapid.SampledFrom([]uint32{owner.LockLevel - 1, owner.LockLevel}).Draw(t, "level")
	w.level = &p.level
	p.a = newStore(t, &rule{epoch: 7, level: &p.level}, w)
	p.b = newStore(t, &rule{epoch: 8, since: math.MinInt64, level: &p.level}, nil)
	return p
}

// steps does some things at the lock, of which the copy hears by place or by whole queues.
func (p *pair) steps(name string, most int, then func()) {
	for range rapid.IntRange(0, most).Draw(p.t, name) {
		p.wire.places, p.wire.old = rapid.IntRange(0, 3).Draw(p.t, "by place") > 0, rapid.Bool().Draw(p.t, "old")
		p.step()
		then()
	}
}

// Whatever happens to a queue, and wherever a stream ends and the next one begins with a
// copy: when all is acknowledged, the copy has the same places in the same order.
func TestQueueOfCopy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &cable{t: t}
		p := crowded(t, w)
		nothing := func() {}
		for range rapid.IntRange(1, 3).Draw(t, "streams") {
			w.to = nil
			p.steps("no stream", 10, nothing)
			p.b.Discard(func(uint64) bool { return true })
			w.to = p.b
			p.steps("live before the walk", 5, nothing)
			whole := p.a.Export(func() int64 { return p.now }, func(uint64) bool { return true }, w.send,
				func() bool { p.steps("during", 1, nothing); return true })
			if !whole {
				t.Fatal("the walk ended early")
			}
			p.sameQueues()
			p.steps("live", 40, p.sameQueues)
		}
		if w.to = nil; !p.detached {
			p.handOver()
			p.steps("after", 20, nothing)
		}
	})
}

// A copy to which some records are longer on their way than others is never one that
// cannot be, and has the same places in the same order.
func TestQueueOverSlowWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &cable{t: t, delay: func() int64 { return rapid.SampledFrom([]int64{0, 0, 1, second / 2, 2 * second}).Draw(t, "late") }}
		p := crowded(t, w)
		w.to = p.b
		p.steps("steps", 80, func() {
			p.now = max(p.now, w.last)
			p.sameQueues()
		})
	})
}

// TestQuickRecord: the record of an operation that changed nothing speaks of an earlier
// moment than a slower record did before it. The copy goes by the later one, and its
// places are still of no later moment than its last change.
func TestQuickRecord(t *testing.T) {
	late := int64(0)
	w := &cable{t: t, places: true, delay: func() int64 { return late }}
	a := newStore(t, &rule{epoch: 7}, w)
	b := newStore(t, &rule{epoch: 8, since: math.MinInt64}, nil)
	w.to = b
	now, ref := 1000*second, owner.Ref{Key: "k", Name: "n"}
	acquire := func(seq uint64, wait int64) {
		_, _, err := a.Acquire(now, ref, reqid.ID{Client: reqid.Client{Hi: 1}, Sequence: seq}, owner.AcquireLock{Holder: "h", TTL: 60 * second, Wait: wait})
		if err != nil {
			t.Fatal(err)
		}
	}
	acquire(1, 0)
	late = 2 * second
	acquire(2, 60*second)
	now, late = now+second, 0
	acquire(3, 0) // is refused
	found := false
	b.Export(func() int64 { return now + 2*second }, func(uint64) bool { return true }, func(r *owner.Record, _ int64) bool {
		state := r.Hold()
		if state == nil {
			t.Fatal("the record cannot be read")
		}
		if err := state.Valid(); err != nil || state.At != 1002*second {
			t.Errorf("the copy changed at %d: %v", state.At, err)
		}
		found = state.Queue.Len() == 1
		return true
	}, func() bool { return true })
	if !found {
		t.Error("the copy has no queue of one")
	}
}

// sameQueues checks that the copy knows of the same grants, and of the same places in
// the same order, as the original: those that have a request id. If
// records are late, times are not compared, and what is over may not be over there.
func (p *pair) sameQueues() {
	queues := func(s *owner.Store) map[string]string {
		all := map[string]string{}
		s.Export(func() int64 { return p.now }, func(uint64) bool { return true }, func(r *owner.Record, now int64) bool {
			state := r.Hold()
			if state == nil || state.First(p.now).Token == 0 && state.Queue.Len() == 0 {
				return true
			}
			for i := range state.Queue.Places {
				state.Queue.Places[i].Away = true
			}
			if err := state.Valid(); err != nil {
				p.t.Fatal(err)
			}
			if p.wire.delay != nil {
				for i := range state.Holders {
					state.Holders[i].Expires = 0
				}
				for i := range state.Queue.Places {
					state.Queue.Places[i].Since, state.Queue.Places[i].GiveUp = 0, 0
				}
			}
			text := ""
			for _, h := range state.Holders {
				text += fmt.Sprintf("%s %d %d %q %d %d, ", h.Name, h.Token, h.Weight, h.Metadata, h.Waited, h.Expires)
			}
			for _, w := range state.Queue.Places {
				q := &w.Request
				text += fmt.Sprintf(", %s %+v %d %d %q %d %d", q.Name, w.Caller.ID.Client, w.Caller.ID.Sequence, q.TTL, q.Metadata, w.Since, w.GiveUp)
			}
			all[string(r.Key)] = text
			return true
		}, func() bool { return true })
		return all
	}
	a, b := queues(p.a), queues(p.b)
	for key := range b {
		if _, is := a[key]; !is && p.wire.delay != nil {
			delete(b, key)
		}
	}
	if !reflect.DeepEqual(a, b) {
		p.t.Fatalf("at %d:\n original %v\n     copy %v", p.now, a, b)
	}
}
