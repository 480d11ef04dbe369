package owner

import (
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
)

// guest is what has been seen of the semaphore of these tests.
type guest struct {
	HoldSight
	seen Seen
}

// look asks once, and returns what is closed at a change; nil if there was news.
func (g *guest) look(t testing.TB, s *Store, now int64) <-chan struct{} {
	t.Helper()
	a, changed, err := s.AwaitSemaphore(now, pool, g.seen)
	if err != nil {
		t.Fatal(err)
	}
	next, news := g.seen.Then(a.Seen)
	if news != (changed == nil) || next.Position < g.seen.Position || a.Seen.Position < g.seen.Position {
		t.Fatalf("%+v after %+v: news %v", a, g.seen, news)
	}
	if g.seen = next; news {
		g.HoldSight = a
	}
	return changed
}

// is reports whether what was seen is what is held.
func (g *guest) is(t testing.TB, s *Store, now int64) (so HoldSight, ok bool) {
	t.Helper()
	v := must(s.InspectSemaphore(now, pool, hold.MaxHolders))
	for _, h := range v.Longest {
		if h.Left > 0 {
			if so.Held, so.Holding = so.Held+uint64(h.Weight), so.Holding+1; so.Holding <= MaxSighted {
				so.Holders = append(so.Holders, h)
			}
		}
	}
	if so.Holding > 0 || v.Fixed {
		so.Capacity, so.Fixed = v.Capacity, v.Fixed
	}
	plain := func(all []hold.Holding) (plain []hold.Holding) {
		for _, h := range all {
			h.Age, h.Left = 0, 0 // as it was when it was seen
			plain = append(plain, h)
		}
		return plain
	}
	return so, so.Held == g.Held && so.Holding == g.Holding && so.Capacity == g.Capacity && so.Fixed == g.Fixed && reflect.DeepEqual(plain(so.Holders), plain(g.Holders))
}

// Of a semaphore a watcher is told who holds permits, and the capacity that was set; what is no
// change has no later version.
func TestWatchSemaphore(t *testing.T) {
	s, g := newStore(t, nil), guest{}
	now := int64(0)
	expect := func(what string, news bool) {
		t.Helper()
		before := g.seen
		g.look(t, s, now)
		so, ok := g.is(t, s, now)
		if told := g.seen.Exists != before.Exists || g.seen.Exists && g.seen.Position > before.Position; told != news || !ok {
			t.Errorf("%s: %+v after %+v, have %+v, is %+v", what, g.seen, before, g.HoldSight, so)
		}
	}
	expect("at first", false)
	a, _ := permitsOf(t, s, now, noID, wants("a", 2, 4, 0))
	expect("a grant", true)
	expect("nothing", false)
	must(s.RenewPermits(now, pool, a.Token, 9*second))
	expect("a renewal", false)
	_, w := permitsOf(t, s, now, id(1), wants("b", 4, 4, 60*second))
	expect("a place in the queue", false)
	must(s.UpdatePermits(now, pool, noID, a.Token, []byte("new")))
	expect("other metadata", true)
	must(s.DowngradePermits(now, pool, a.Token, 1))
	expect("fewer permits", true)
	must(s.ReleasePermits(now, pool, noID, a.Token))
	b := givenPermits(t, w)
	expect("the next one", true)
	must(s.RevokePermits(now, pool, noID, b.Token))
	expect("nobody", true)
	expect("nobody, still", false)
	must(s.SetCapacity(now, pool, noID, 5))
	expect("a capacity", true)
	must(s.SetCapacity(now, pool, noID, 5))
	expect("the same", false)
	permitsOf(t, s, now, noID, wants("c", 1, 0, 0))
	expect("beside a capacity", true)
	now += 10 * second
	expect("when time is over", true)
	must(s.SetCapacity(now, pool, noID, 0))
	expect("no capacity", true)
	for i := range MaxSighted + 3 {
		permitsOf(t, s, now, noID, wants(fmt.Sprint(i), 1, 100, 0))
	}
	expect("many", true)
	if len(g.Holders) != MaxSighted || g.Holding != MaxSighted+3 {
		t.Errorf("%d of %d", len(g.Holders), g.Holding)
	}
}

// Where nobody watches, no token is used up but by grants; and a watch that goes on has its version
// through all rounds of the sweep.
func TestVersionsAreOfThoseWhoLook(t *testing.T) {
	s := newStore(t, nil)
	last := uint64(0)
	for i := range 3 {
		a, _ := permitsOf(t, s, 0, noID, wants("a", 1, 1, 0))
		must(s.ReleasePermits(0, pool, noID, a.Token))
		if i > 0 && a.Token != last+1 {
			t.Errorf("token %d after %d", a.Token, last)
		}
		last = a.Token
	}
	permitsOf(t, s, 0, noID, wants("a", 1, 1, 0))
	g := guest{}
	g.look(t, s, 0)
	for range 3 {
		changed := g.look(t, s, second)
		if changed == nil {
			t.Fatal("told again")
		}
		if sweepAll(s, second); !closed(changed) {
			t.Error("it is not to look again")
		}
	}
	sweepAll(s, second)
	sweepAll(s, second)
	if n := len(s.shard(Hash(pool.Key)).watched); n != 0 {
		t.Errorf("%d objects that nobody awaits any more are kept", n)
	}
}

// What is watched at an owner is bounded.
func TestWatchedObjectsAreBounded(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	permitsOf(t, s, 0, noID, wants("a", 1, 1, 0))
	sh := s.shard(0)
	for i := range maxWatched {
		sh.watchedLocked(address{fmt.Sprint(i), "register"})
	}
	if a, _, err := s.AwaitSemaphore(0, pool, Seen{}); err != nil || a.Holding != 1 {
		t.Errorf("%+v %v", a, err)
	}
	if _, _, err := s.AwaitSemaphore(0, pool, Seen{Position: 1}); reason(err) != failure.Overloaded {
		t.Errorf("%v", err)
	}
	if len(sh.watched) != maxWatched {
		t.Errorf("%d", len(sh.watched))
	}
}

// Whatever happens to a semaphore and to its owners, also to one that gets it back, what a watcher
// is told goes forward, and when there is no news, it has what is so.
func TestWatchersHaveWhatIsSo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		epoch, partial := uint64(100), rapid.Bool().Draw(rt, "partial")
		s, other := newStore(t, nil), newStore(t, nil)
		owns := func() {
			sink := &copies{t: t, partial: partial, to: other}
			s.cfg.Rule, s.cfg.Sink, s.partial = &testRule{epoch: epoch}, sink, sink
			other.cfg.Rule, other.cfg.Sink, other.partial = ownsNothing, nil, nil
		}
		owns()
		now, seq, token, g := int64(0), uint64(0), uint64(1), guest{}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			now += rapid.Int64Range(0, 4).Draw(rt, "pass") * second
			s.Wake(now)
			seq++
			switch rapid.IntRange(0, 9).Draw(rt, "op") {
			case 0, 1, 2:
				op := wants(fmt.Sprint(seq), rapid.Uint32Range(1, 2).Draw(rt, "n"), rapid.SampledFrom([]uint32{0, 3}).Draw(rt, "of"), rapid.SampledFrom([]int64{0, 20 * second}).Draw(rt, "wait"))
				op.Delay = rapid.SampledFrom([]int64{0, 2 * second}).Draw(rt, "delay")
				if a, _, err := s.AcquirePermits(now, pool, id(seq), op); err == nil && a.Acquired {
					token = a.Token
				}
			case 3:
				must(s.ReleasePermits(now, pool, noID, token))
			case 4:
				must(s.RevokePermits(now, pool, noID, token))
			case 5:
				must(s.UpdatePermits(now, pool, noID, token, fmt.Append(nil, seq)))
			case 6:
				must(s.SetCapacity(now, pool, noID, rapid.SampledFrom([]uint32{0, 3, 4}).Draw(rt, "capacity")))
			case 7:
				must(s.DowngradePermits(now, pool, token, 1))
			case 8: // another object of the shard uses tokens
				must(s.SetRegister(now, Ref{Key: pool.Key, Name: "r"}, noID, puts("v")))
			case 9: // the standby is the owner, and the owner the standby
				if rapid.IntRange(0, 2).Draw(rt, "move") == 0 {
					epoch++
					s, other = other, s
					owns()
				}
			}
			if rapid.IntRange(0, 9).Draw(rt, "sweep") == 0 {
				sweepAll(s, now)
			}
			if rapid.Bool().Draw(rt, "looks") {
				g.look(t, s, now)
				if so, ok := g.is(t, s, now); !ok {
					rt.Fatalf("at %d a watcher has %+v, and it is %+v", now, g.HoldSight, so)
				}
			}
		}
	})
}

// An owner that gets a semaphore back, to which nothing has happened since, gives its state a version
// above that of the owner in between.
func TestVersionWhenTheOwnerIsBack(t *testing.T) {
	one, two := newStore(t, nil), newStore(t, nil)
	owns := func(s, other *Store, epoch uint64) {
		s.cfg.Rule, other.cfg.Rule = &testRule{epoch: epoch}, ownsNothing
	}
	owns(one, two, 100)
	one.cfg.Sink = &copies{t: t, to: two}
	permitsOf(t, one, 0, noID, wants("a", 1, 1, 0))
	g := guest{}
	for i, s := range []*Store{one, two, one} {
		other := two
		if s == two {
			other = one
		}
		owns(s, other, 100+uint64(i))
		before := g.seen.Position
		if g.look(t, s, 0); g.seen.Position <= before || g.Holding != 1 {
			t.Errorf("owner %d: %+v after %d", i+1, g.seen, before)
		}
	}
}
