package record

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner"
)

// fork is a sink with two copies, as a source has while a row moves.
type fork struct{ one, two *cable }

func (f *fork) Partial() bool { return f.one.places }

func (f *fork) Changed(r *owner.Record) {
	f.one.Changed(r)
	f.two.Changed(r)
}

// A row moves to a node that was a copy, while its next standby was another copy of the
// same source: what the new owner then tells by place leads to the same queue there.
// Some callers come to the new owner, some are detached, some never come.
func TestQueueOfNextStandby(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, two, onward := &cable{t: t}, &cable{t: t}, &cable{t: t}
		p := &pair{t: t, wire: one, crowd: true, now: 1000 * second, tokens: map[stamp]uint64{}, version: map[stamp]uint64{}}
		p.level = rapid.SampledFrom([]uint32{owner.LockLevel - 1, owner.LockLevel}).Draw(t, "level")
		one.level, two.level, onward.level = &p.level, &p.level, &p.level
		p.a = newStore(t, &rule{epoch: 7, level: &p.level}, &fork{one, two})
		p.b = newStore(t, &rule{epoch: 8, since: math.MinInt64, level: &p.level}, onward)
		c := newStore(t, &rule{epoch: 9, since: math.MinInt64, level: &p.level}, nil)
		steps := func(name string, most int, w *cable, then func()) {
			for range rapid.IntRange(0, most).Draw(t, name) {
				w.places, w.old = rapid.IntRange(0, 3).Draw(t, "by place") > 0, rapid.Bool().Draw(t, "old")
				p.step()
				then()
			}
		}
		nothing := func() {}
		steps("before", 10, one, nothing)
		for _, to := range []struct {
			w *cable
			s *owner.Store
		}{{one, p.b}, {two, c}} {
			to.w.to = to.s
			steps("live before the walk", 3, one, nothing)
			p.a.Export(func() int64 { return p.now }, func(uint64) bool { return true }, to.w.send, func() bool { return true })
			steps("live", 10, one, nothing)
		}
		p.a.Wake(p.now)
		p.compareWaits()
		one.to, two.to = nil, nil
		onward.to = c
		b := p.b
		waits := p.waits
		onward.places = true
		b.Own(p.now, func(uint64) bool { return true }, owner.OwnGrace)
		p.waits, p.split = nil, false
		p.a, p.b = b, c // the new owner and its standby
		p.wire = onward
		p.tokens, p.version = map[stamp]uint64{}, map[stamp]uint64{}
		p.sameQueues()
		for _, w := range rapid.Permutation(waits).Draw(t, "order of coming") {
			onward.places = rapid.IntRange(0, 3).Draw(t, "by place") > 0
			if rapid.IntRange(0, 2).Draw(t, "comes") > 0 && w.id.Given() {
				again := w.op
				again.acquire.Wait = max(w.from+w.acquire.Wait-p.now, 0)
				again.id.Age = max(1, p.now-w.at)
				p.do(again)
				p.sameQueues()
			}
		}
		steps("after", 25, onward, p.sameQueues)
	})
}
