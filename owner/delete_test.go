package owner

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

var stock = Ref{Key: "stock", Name: "counter"}

// pair is an owner, and a standby that is told of its changes.
func pair(t testing.TB) (s, standby *Store) {
	t.Helper()
	to := &copyTo{store: newStore(t, func(c *Config) { c.Rule = ownsNothing })}
	return newStore(t, func(c *Config) { c.Sink = to }), to.store
}

// promote makes a standby the owner.
func promote(s *Store) *Store {
	s.cfg.Rule = &testRule{epoch: 200, since: math.MinInt64}
	return s
}

// joiner is a store that gets a copy of all that another one holds, as a handoff makes it.
func joiner(t testing.TB, from *Store) *Store {
	t.Helper()
	to := &copyTo{store: newStore(t, func(c *Config) { c.Rule, c.Shards = ownsNothing, 8 })}
	if !from.Export(func() int64 { return 0 }, always, to.emit, func() bool { return true }) {
		t.Fatal("not exported")
	}
	if err := to.store.RaiseVersions(from.LastVersion()); err != nil {
		t.Fatal(err)
	}
	return to.store
}

func add(s *Store, seq, settled uint64, by int64) AddAnswer {
	x := id(seq)
	x.Settled = settled
	a, err := s.Add(0, stock, x, counter.AddOp{Delta: by})
	if err != nil {
		panic(err)
	}
	return a
}

func TestDeleteForgets(t *testing.T) {
	s, standby := pair(t)
	must(s.Add(1, stock, noID, counter.AddOp{Delta: 7}))
	was := must(s.Get(1, stock))
	a := must(s.Delete(2, stock, noID))
	if !a.Deleted || a.Previous != 7 || a.Version <= was.Version || a.Current != 0 {
		t.Errorf("deleted: %+v of %+v", a, was)
	}
	if n, m := held(s), held(standby); n != 0 || m != 0 {
		t.Errorf("%d objects are left at the owner, %d at the standby", n, m)
	}
	if got := must(s.Get(2, stock)); got.Value != 0 || got.Version != 0 {
		t.Errorf("a deleted counter reads %+v", got)
	}
	if a := must(s.Delete(3, stock, noID)); a.Deleted || a.Version != 0 || held(s) != 0 {
		t.Errorf("nothing is deleted: %+v", a)
	}
	if a := must(s.CompareAndSet(4, stock, noID, counter.CompareAndSetOp{Value: 1, Version: was.Version})); a.Applied {
		t.Error("a version of before the deletion still matches")
	}
	if a := must(s.CompareAndSet(4, stock, noID, counter.CompareAndSetOp{Value: 1})); !a.Applied || a.Version <= was.Version {
		t.Errorf("made again: %+v", a)
	}
}

// What is remembered of request ids outlasts the counter, at its owner and wherever that is
// later, for its time and no longer.
func TestDeleteAndRequestIDs(t *testing.T) {
	for name, next := range map[string]func(s, standby *Store) *Store{
		"at the owner":   func(s, _ *Store) *Store { return s },
		"at the standby": func(_, standby *Store) *Store { return promote(standby) },
		"at a joiner":    func(s, _ *Store) *Store { return promote(joiner(t, s)) },
	} {
		t.Run(name, func(t *testing.T) {
			s, standby := pair(t)
			first := add(s, 1, 0, 7)
			del := must(s.Delete(0, stock, id(2)))
			s = next(s, standby)
			if a := must(s.Delete(0, stock, retry(2, 1))); !a.Replayed || !a.Deleted || a.Previous != 7 || a.Version != del.Version {
				t.Errorf("a retry of the deletion: %+v, first %+v", a, del)
			}
			if a := add(s, 1, 0, 7); !a.Replayed || a.Value != 7 || a.Version != first.Version || a.Current != 0 {
				t.Errorf("a retry of an add of before: %+v", a)
			}
			if got := must(s.Get(0, stock)); got.Version != 0 {
				t.Fatalf("a retry has made it again: %+v", got)
			}
			again := add(s, 3, 0, 5)
			if again.Value != 5 || again.Version <= del.Version {
				t.Errorf("made again: %+v after %+v", again, del)
			}
			if a := must(s.Delete(0, stock, retry(2, 1))); !a.Replayed || a.Current != 5 {
				t.Errorf("a retry of the deletion, now that there is another: %+v", a)
			}
			if got := must(s.Get(0, stock)); got.Value != 5 {
				t.Errorf("a retry has deleted what was made since: %+v", got)
			}
			if _, err := s.Delete(0, stock, id(3)); reason(err) != failure.RequestIDReused {
				t.Errorf("a deletion under the id of an add: %v", err)
			}
			must(s.Delete(0, stock, id(4)))
			if held(s) != 1 {
				t.Errorf("%d objects while ids are remembered", held(s))
			}
			if sweepAll(s, 2*DefaultIDWindow); held(s) != 0 {
				t.Errorf("%d objects after the window", held(s))
			}
			if _, err := s.Delete(2*DefaultIDWindow, stock, retry(4, 2*DefaultIDWindow)); reason(err) != failure.RequestTooOld {
				t.Errorf("a deletion that is sent again after the window: %v", err)
			}
		})
	}
}

// A deletion that is late, of a client that has settled it, deletes nothing.
func TestLateDelete(t *testing.T) {
	s, _ := pair(t)
	add(s, 1, 0, 7)
	add(s, 3, 3, 1)
	if _, err := s.Delete(0, stock, id(2)); reason(err) != failure.RequestTooOld {
		t.Errorf("a deletion below what the client has settled: %v", err)
	}
	if got := must(s.Get(0, stock)); got.Value != 8 {
		t.Errorf("it was done: %+v", got)
	}
}

// A full store still deletes.
func TestDeleteInFullStore(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxObjects = 2 })
	for i := range 2 {
		must(s.Add(0, Ref{Key: fmt.Sprint(i), Name: "n"}, noID, counter.AddOp{Delta: 1}))
	}
	if _, err := s.Add(0, stock, noID, counter.AddOp{Delta: 1}); reason(err) != failure.StoreFull {
		t.Fatal(err)
	}
	must(s.Delete(0, Ref{Key: "0", Name: "n"}, noID))
	must(s.Add(0, stock, noID, counter.AddOp{Delta: 1}))
}

// Versions of a counter never come a second time, wherever it is deleted and made again:
// not where nothing of its shard is left to be told of.
func TestVersionsNeverRepeat(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s, standby := pair(t)
		last, now := map[string]uint64{}, int64(0)
		rise := func(key string, v uint64) {
			if v <= last[key] {
				r.Fatalf("version %d of %s comes after %d", v, key, last[key])
			}
			last[key] = v
		}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			now += rapid.Int64Range(0, int64(1e9)).Draw(r, "time")
			ref := Ref{Key: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "key"), Name: "n"}
			switch rapid.IntRange(0, 6).Draw(r, "what") {
			case 0, 1:
				rise(ref.Key, must(s.Add(now, ref, noID, counter.AddOp{Delta: 1})).Version)
			case 2:
				rise(ref.Key, must(s.Add(now, ref, noID, counter.AddOp{Delta: 1, IdleTTL: counter.MinIdleTTL})).Version)
			case 3:
				if a := must(s.Delete(now, ref, noID)); a.Deleted {
					rise(ref.Key, a.Version)
				}
			case 4:
				sweepAll(s, now)
			case 5: // the owner dies
				s = promote(standby)
				standby = joiner(t, s)
				s.cfg.Sink = &copyTo{store: standby}
			default: // it drains
				s = promote(joiner(t, s))
				standby = joiner(t, s)
				s.cfg.Sink = &copyTo{store: standby}
			}
		}
	})
}

func TestRaiseVersions(t *testing.T) {
	s := newStore(t, nil)
	if err := s.RaiseVersions(maxVersion + 1); reason(err) != failure.Invalid {
		t.Error(err)
	}
	for _, v := range []uint64{40, 20} {
		if err := s.RaiseVersions(v); err != nil || s.LastVersion() != 40 {
			t.Errorf("%d after %d: %v", s.LastVersion(), v, err)
		}
	}
}

// A version that cannot be true is not taken in: not from a record, and not beside a copy.
func TestFalseVersions(t *testing.T) {
	const now = 1_800_000_000 * second
	s := newStore(t, func(c *Config) { c.MaxVersion = func() uint64 { return MaxVersionAt(now) } })
	told := func(version uint64, state counter.State) error {
		r := Record{Key: []byte("k"), Name: []byte("n"), Version: version, At: 1}
		return s.Install(1, r.SetCounter(state), always)
	}
	top := MaxVersionAt(now)
	for what, err := range map[string]error{
		"of a record":    told(top+1, counter.State{Value: 1, Version: 7, At: 1}),
		"of a counter":   told(7, counter.State{Value: 1, Version: top + 1, At: 1}),
		"beside a copy":  s.RaiseVersions(top + 1),
		"above all":      s.RaiseVersions(math.MaxUint64),
		"a record's own": told(math.MaxUint64, counter.State{}),
	} {
		if reason(err) != failure.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	if last := s.LastVersion(); last != 0 {
		t.Errorf("versions go on from %d", last)
	}
	if err := told(top, counter.State{Value: 1, Version: top, At: 1}); err != nil || s.LastVersion() != top {
		t.Errorf("the greatest that can be: %v", err)
	}
}

// A false version that was taken in keeps no later ones from being taken in: time goes on
// faster than versions rise.
func TestAfterAFalseVersion(t *testing.T) {
	const now = 1_800_000_000 * second
	standby := newStore(t, func(c *Config) {
		c.Rule, c.MaxVersion = ownsNothing, func() uint64 { return MaxVersionAt(now + second) }
	})
	s := newStore(t, func(c *Config) {
		c.Sink, c.MaxVersion = &copyTo{store: standby}, func() uint64 { return MaxVersionAt(now) }
	})
	if err := s.RaiseVersions(MaxVersionAt(now)); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		add(s, 0, 0, 1) // it panics if the standby takes no copy
	}
	if err := standby.RaiseVersions(s.LastVersion()); err != nil {
		t.Error(err)
	}
}

// Where versions are used up, counters refuse changes, and are read; the rest goes on.
func TestVersionsAreUsedUp(t *testing.T) {
	s, standby := pair(t)
	must(s.Add(0, stock, noID, counter.AddOp{Delta: 7}))
	for i := range s.shards {
		s.shards[i].version = maxVersion
	}
	for what, call := range map[string]func() error{
		"add": func() error { _, err := s.Add(0, stock, noID, counter.AddOp{Delta: 1}); return err },
		"compare and set": func() error {
			_, err := s.CompareAndSet(0, stock, noID, counter.CompareAndSetOp{Version: must(s.Get(0, stock)).Version})
			return err
		},
		"reset":  func() error { _, err := s.Reset(0, stock, noID); return err },
		"delete": func() error { _, err := s.Delete(0, stock, noID); return err },
		"a new one": func() error {
			_, err := s.Add(0, Ref{Key: "new", Name: "n"}, noID, counter.AddOp{Delta: 1})
			return err
		},
	} {
		if err := call(); reason(err) != failure.StoreFull || err.(*failure.Error).Hint == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if a := must(s.Get(0, stock)); a.Value != 7 {
		t.Errorf("%+v", a)
	}
	for range 3 {
		must2(s.Acquire(0, Ref{Key: "k", Name: "lock"}, noID, asks("h", second, 0)))
		must(s.Release(0, Ref{Key: "k", Name: "lock"}, noID, s.shard(Hash("k")).lastToken))
		must(s.Check(0, door, noID, perSecond(10)))
	}
	if err := standby.RaiseVersions(s.LastVersion()); err != nil {
		t.Error(err)
	}
}

// No member of a cluster is told of what it may not know.
func TestLevelOfDelete(t *testing.T) {
	rule := &levelRule{testRule: testRule{epoch: 1}, level: DeleteLevel - 1}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	must(s.Add(0, stock, noID, counter.AddOp{Delta: 1}))
	calls := map[string]func() error{
		"Delete":     func() error { _, err := s.Delete(0, stock, noID); return err },
		"ResetLimit": func() error { _, err := s.ResetLimit(0, door, noID); return err },
	}
	for name, call := range calls {
		if err := call(); reason(err) != failure.Unavailable {
			t.Errorf("%s before its level: %v", name, err)
		}
	}
	rule.level++
	for name, call := range calls {
		if err := call(); err != nil {
			t.Errorf("%s from its level on: %v", name, err)
		}
	}
}

func limits3() []limit.Op {
	return []limit.Op{
		{Params: limit.Params{Limit: 10, Period: 60 * second}, Cost: 3},
		{Params: limit.Params{Algorithm: limit.FixedWindow, Limit: 10, Period: 60 * second}, Cost: 3},
		{Params: limit.Params{Algorithm: limit.SlidingWindow, Limit: 10, Period: 60 * second}, Cost: 3},
	}
}

func TestResetLimit(t *testing.T) {
	for _, op := range limits3() {
		t.Run(fmt.Sprint(op.Algorithm), func(t *testing.T) {
			s, standby := pair(t)
			at := Ref{Key: "alice", Name: "api"}
			must(s.Check(0, at, noID, op))
			must(s.Check(second, at, noID, op))
			if a := must(s.ResetLimit(2*second, at, noID)); a.Spent != 6 {
				t.Errorf("%d tokens were spent", a.Spent)
			}
			if held(s) != 0 || held(standby) != 0 {
				t.Errorf("%d objects are left at the owner, %d at the standby", held(s), held(standby))
			}
			if a := must(s.ResetLimit(2*second, at, noID)); a.Spent != 0 || held(s) != 0 {
				t.Errorf("a full one: %+v", a)
			}
			spend := op
			spend.Cost = 10
			if a := must(s.Check(2*second, at, id(1), spend)); !a.Allowed {
				t.Errorf("it is not full: %+v", a)
			}
			if a := must(s.ResetLimit(2*second, at, id(2))); a.Spent != 10 {
				t.Errorf("%d tokens were spent", a.Spent)
			}
			s.cfg.Sink = nil // each goes on by itself
			for name, s := range map[string]*Store{"owner": s, "standby": promote(standby), "joiner": promote(joiner(t, s))} {
				if a := must(s.Check(2*second, at, retry(1, 1), spend)); !a.Replayed || !a.Allowed || a.Remaining != 10 {
					t.Errorf("%s: a retry of a check of before: %+v", name, a)
				}
				must(s.Check(2*second, at, noID, op))
				if a := must(s.ResetLimit(2*second, at, retry(2, 1))); !a.Replayed || a.Spent != 10 {
					t.Errorf("%s: a retry: %+v", name, a)
				}
				if a := must(s.Check(2*second, at, noID, peekAt(op))); a.Remaining != 7 {
					t.Errorf("%s: a retry has reset what was spent since: %+v", name, a)
				}
			}
		})
	}
}

func TestResetLimitOfAnotherKind(t *testing.T) {
	s, _ := pair(t)
	add(s, 1, 0, 1)
	if _, err := s.ResetLimit(0, stock, noID); reason(err) != failure.KindMismatch {
		t.Error(err)
	}
}

// A limit that is taken to be used up because it was lost cannot be made full before the
// grace is over: as full it would be one that is absent.
func TestResetLimitInGrace(t *testing.T) {
	s, rule := lost(t, func(c *Config) { c.LostLimits = LostEmpty })
	at, op := Ref{Key: "alice", Name: "api"}, perSecond(10)
	must(s.Check(cameAt+second/2, at, noID, op))
	_, err := s.ResetLimit(cameAt+second/2, at, id(2))
	if reason(err) != failure.Recovering || err.(*failure.Error).RetryAfter <= 0 {
		t.Fatal(err)
	}
	rule.lost = 0
	if a := must(s.ResetLimit(cameAt+second/2, at, id(2))); a.Replayed {
		t.Errorf("what was refused is remembered: %+v", a)
	}
	if a := must(s.Check(cameAt+second/2, at, reqid.ID{}, peekAt(op))); a.Remaining != 10 {
		t.Errorf("%+v", a)
	}
}
