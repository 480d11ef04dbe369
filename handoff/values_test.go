package handoff

import (
	"testing"
	"testing/synctest"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/value"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestUnackedValues: who writes long values is told how far the standby is behind, and stops long
// before the stream to it fails.
func TestUnackedValues(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		w.apply(table.Command{Adopt: &table.Adopt{Level: owner.RegisterLevel}})
		w.set("unsync", held)
		key := w.keys(1, ownedBy(n[0], n[1]))[0]
		hash := owner.Hash(key)
		put := func() {
			_, err := n[0].store.SetRegister(w.now(), owner.Ref{Key: key, Name: "register"}, reqid.ID{},
				owner.SetRegister{Set: value.Set{Value: make([]byte, value.MaxValue)}})
			if err != nil {
				t.Fatal(err)
			}
		}
		w.until("the level is known", func() bool { return sends(n[0].source.routes.Load().table, owner.RegisterLevel) })
		n[0].to(n[1].self).stall()
		const window = 8 << 20
		puts := 0
		for n[0].source.Unacked(hash) < window && puts < 1000 {
			put()
			puts++
		}
		if least := window / value.MaxValue; puts < least || puts > least+2 {
			t.Errorf("%d values of %d bytes are %d bytes behind", puts, value.MaxValue, n[0].source.Unacked(hash))
		}
		l := n[0].source.plan.links[n[1].self]
		if err := l.feed.Err(); err != nil {
			t.Fatal(err)
		}
		n[0].to(n[1].self).flow()
		w.until("the standby has all of it", func() bool { return n[0].source.Unacked(hash) == 0 })
		if l.feed.Err() != nil {
			t.Error(l.feed.Err())
		}
	})
}

// putValue writes a value of so many bytes.
func (p *process) putValue(key string, size int) {
	p.w.t.Helper()
	_, err := p.store.SetRegister(p.w.now(), owner.Ref{Key: key, Name: "register"}, reqid.ID{},
		owner.SetRegister{Set: value.Set{Value: make([]byte, size)}})
	if err != nil {
		p.w.t.Fatal(err)
	}
}

// TestJoinWhileValuesAreWritten: whoever writes long values is told of a joiner that is slower
// than the standby, too. Its copy does not fall behind, to begin anew again and again; and one
// that hangs holds up nobody for long.
func TestJoinWhileValuesAreWritten(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		w.apply(table.Command{Adopt: &table.Adopt{Level: owner.RegisterLevel}})
		w.until("the level is known", func() bool { return sends(n[0].source.routes.Load().table, owner.RegisterLevel) })
		joiner := w.start("n3", 1)
		joins := n[0].to(joiner.self)
		joins.stall()
		w.towards(append(n, joiner)...)
		key := w.keys(1, moving(n[0], joiner))[0]
		hash := owner.Hash(key)
		w.until("the joiner is fed", func() bool {
			rt := n[0].source.routes.Load()
			return len(rt.rows[rt.table.Find(hash)].feeds) > 1
		})
		const window = 8 << 20 // what admits values
		written := 0
		write := func() (refused bool) {
			synctest.Wait() // the standby takes all: only the joiner is behind
			if n[0].source.Unacked(hash) > window {
				return true
			}
			n[0].putValue(key, value.MaxValue)
			written++
			return false
		}
		l := n[0].source.plan.links[joiner.self]
		for range feed.DefaultMaxUnacked/value.MaxValue + 10 {
			write()
		}
		if err := l.feed.Err(); err != nil {
			t.Fatalf("the copy fell behind after %d values: %v", written, err)
		}
		if !write() {
			t.Errorf("%d bytes behind, and nobody is held back", l.feed.Unacked())
		}
		pass(slowStandby + pollEvery)
		if write() {
			t.Error("a joiner that hangs holds up the writers")
		}
		joins.flow()
		w.awaitStable()
	})
}

// TestCopyGoesOn: a copy does not wait for ever for a link over which much that changes goes, too.
func TestCopyGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.cluster(2)
		w.apply(table.Command{Adopt: &table.Adopt{Level: owner.RegisterLevel}})
		w.until("the level is known", func() bool { return sends(n[0].source.routes.Load().table, owner.RegisterLevel) })
		joiner := w.start("n3", 1)
		keys := w.keys(40, func(t *table.Table, r *table.Row) bool { return r.Owner == n[0].self })
		for _, k := range keys {
			n[0].putValue(k, value.MaxValue)
		}
		w.towards(append(n, joiner)...)
		key := w.keys(1, moving(n[0], joiner))[0]
		joins := n[0].to(joiner.self)
		joins.stall()
		w.until("the joiner is fed", func() bool {
			rt := n[0].source.routes.Load()
			return len(rt.rows[rt.table.Find(owner.Hash(key))].feeds) > 1
		})
		for l := n[0].source.plan.links[joiner.self]; l.feed.Unacked() < feed.DefaultCopyWindow+value.MaxValue; {
			n[0].putValue(key, value.MaxValue)
		}
		sent := func() int64 { return n[0].source.totals.bytes.Load() }
		before := sent()
		pass(10 * copyPatience)
		if now := sent(); now < before+4*value.MaxValue {
			t.Errorf("a copy sent %d bytes in %s beside what changes", now-before, 10*copyPatience)
		}
		if most := n[0].source.plan.links[joiner.self].feed.Unacked(); most > feed.DefaultCrowdWindow+4*value.MaxValue {
			t.Errorf("%d bytes are unacknowledged", most)
		}
		joins.flow()
		w.awaitStable()
	})
}
