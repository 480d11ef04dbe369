package owner

import (
	"fmt"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/lock"
)

func shares(holder string, wait int64) AcquireLock {
	return AcquireLock{Holder: holder, Shared: true, TTL: 10 * second, Wait: wait}
}

// TestLevelOfLocks: until all members know of shared locks there are none, and records have locks
// in the form that all read.
func TestLevelOfLocks(t *testing.T) {
	rule := &levelRule{testRule: testRule{epoch: 1}, level: LockLevel - 1}
	var told *Record
	s := newStore(t, func(c *Config) {
		c.Rule, c.Sink = rule, sinkOf(func(r *Record) { told = r.Clone() })
	})
	held, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
	if !told.plain() || len(told.Members) != 0 || told.Hold().First(0).Token != held.Token {
		t.Errorf("at the level before: %+v", told.Hold())
	}
	delayed := asks("b", second, 0)
	delayed.Delay = second
	calls := map[string]func() error{
		"shared":    func() error { _, _, err := s.Acquire(0, door, noID, shares("b", 0)); return err },
		"delay":     func() error { _, _, err := s.Acquire(0, door, noID, delayed); return err },
		"downgrade": func() error { _, err := s.DowngradeLock(0, door, held.Token); return err },
		"reclaim": func() error {
			_, err := s.Reclaim(0, door, held.Token, second, Claim{Holder: "b", Shared: true, Left: second})
			return err
		},
		"reclaim with a delay": func() error {
			_, err := s.Reclaim(0, door, held.Token, second, Claim{Holder: "b", Delay: second, Left: second})
			return err
		},
	}
	for name, call := range calls {
		if err := call(); reason(err) != failure.Unavailable {
			t.Errorf("%s before its level: %v", name, err)
		}
	}
	rule.level++
	must(s.Renew(second, door, held.Token, 10*second))
	if told.plain() || len(told.Members) != 1 || told.Hold().First(second).Token != held.Token {
		t.Errorf("from its level on: %+v", told.Hold())
	}
	for name, call := range calls {
		if err := call(); err != nil {
			t.Errorf("%s from its level on: %v", name, err)
		}
	}
}

// TestTwoWriters: while one has the lock exclusively nobody else has it, and those that share it
// keep out only such as want it alone.
func TestTwoWriters(t *testing.T) {
	s := newStore(t, nil)
	a, _ := acquire(t, s, 0, noID, shares("a", 0))
	b, _ := acquire(t, s, 0, noID, shares("b", 0))
	if !a.Acquired || !b.Acquired || b.Token <= a.Token {
		t.Fatalf("%+v %+v", a, b)
	}
	if w, _ := acquire(t, s, 0, noID, asks("w", second, 0)); w.Acquired || w.Holder.Name != "a" {
		t.Errorf("a writer among readers: %+v", w)
	}
	must(s.Release(0, door, noID, a.Token))
	if w, _ := acquire(t, s, 0, noID, asks("w", second, 0)); w.Acquired || w.Holder.Name != "b" {
		t.Errorf("a writer beside a reader: %+v", w)
	}
	must(s.Release(0, door, noID, b.Token))
	w, _ := acquire(t, s, 0, noID, asks("w", 10*second, 0))
	for _, op := range []AcquireLock{asks("x", second, 0), shares("y", 0)} {
		if a, _ := acquire(t, s, second, noID, op); a.Acquired || a.Holder.Token != w.Token {
			t.Errorf("beside a writer: %+v", a)
		}
	}
}

// TestWriterStarvedByReaders: a writer that waits lets no later reader pass, however many hold it
// shared and prolong.
func TestWriterStarvedByReaders(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, shares("0", 0))
	_, writer := acquire(t, s, 0, id(1), asks("w", 10*second, 100*second))
	var readers []*Wait[GrantAnswer]
	for i := range 5 {
		a, r := acquire(t, s, second, noID, shares(fmt.Sprint(i+1), 100*second))
		if a.Acquired || r == nil {
			t.Fatalf("reader %d passed the writer: %+v", i, a)
		}
		readers = append(readers, r)
	}
	must(s.Renew(5*second, door, first.Token, 10*second))
	must(s.Release(6*second, door, noID, first.Token))
	w, err := answered(t, writer)
	if err != nil || !w.Acquired {
		t.Fatalf("the writer: %+v %v", w, err)
	}
	must(s.Release(7*second, door, noID, w.Token))
	for i, r := range readers { // all at once
		if a, err := answered(t, r); err != nil || !a.Acquired {
			t.Errorf("reader %d: %+v %v", i, a, err)
		}
	}
}

// TestWaiterWhoseLeaseIsOverStillWins: a writer that came back late does not have the lock, nor does
// what it asks for take anything from those that have.
func TestWaiterWhoseLeaseIsOverStillWins(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, shares("a", 0))
	_, writer := acquire(t, s, 0, id(1), asks("w", second, 100*second))
	must(s.Release(second, door, noID, first.Token))
	w, _ := answered(t, writer)
	b, _ := acquire(t, s, 3*second, noID, shares("b", 0)) // its lease is over
	if !b.Acquired {
		t.Fatalf("%+v", b)
	}
	if v := must(s.VerifyLock(3*second, door, w.Token)); v.OK || v.Holder.Token != b.Token {
		t.Errorf("the token of a lease that is over: %+v", v)
	}
	if a, _ := acquire(t, s, 3*second, retry(1, 3*second), asks("w", second, 100*second)); !a.Acquired || !a.Replayed || a.TTL != 0 {
		t.Errorf("a retry of what is over: %+v", a)
	}
	if r := must(s.Renew(3*second, door, w.Token, second)); r.Renewed {
		t.Errorf("%+v", r)
	}
}

// TestOldUnlockFreesNoNewerLock: a release that is sent again, with its request id or without, and
// that of an earlier holder, free nothing of those that came after.
func TestOldUnlockFreesNoNewerLock(t *testing.T) {
	for _, shared := range []bool{false, true} {
		s := newStore(t, nil)
		op := asks("a", 10*second, 0)
		op.Shared = shared
		a, _ := acquire(t, s, 0, noID, op)
		must(s.Release(0, door, id(1), a.Token))
		b, _ := acquire(t, s, 0, noID, op)
		if r := must(s.Release(0, door, retry(1, 1), a.Token)); !r.Released || !r.Replayed {
			t.Errorf("a retry: %+v", r)
		}
		if r := must(s.Release(0, door, noID, a.Token)); r.Released {
			t.Errorf("a late one: %+v", r)
		}
		if v := must(s.VerifyLock(0, door, b.Token)); !v.OK {
			t.Errorf("shared %v: the newer lock is free: %+v", shared, v)
		}
	}
}

// TestDowngrade: an exclusive grant becomes a shared one in place, for those readers that are next
// in line, and never again an exclusive one.
func TestDowngrade(t *testing.T) {
	s := newStore(t, nil)
	a, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
	_, b := acquire(t, s, 0, noID, shares("b", 60*second))
	_, w := acquire(t, s, 0, noID, asks("w", 10*second, 60*second))
	_, c := acquire(t, s, 0, noID, shares("c", 60*second))
	for range 2 { // again changes nothing
		if v := must(s.DowngradeLock(second, door, a.Token)); !v.OK || v.Holding.Weight != lock.One || v.Holding.Token != a.Token {
			t.Fatalf("%+v", v)
		}
	}
	if r, err := answered(t, b); err != nil || !r.Acquired {
		t.Errorf("the reader that is next: %+v %v", r, err)
	}
	if w.finished() || c.finished() {
		t.Error("one passed the writer, or joined readers")
	}
	if v := must(s.Inspect(second, door, 10)); v.Holders != 2 || len(v.Longest) != 2 || v.Waiting != 2 {
		t.Errorf("%+v", v.View)
	}
}

// TestSharedClaims: after a loss, those that shared a lock get it back beside one another, in
// whatever order they come, and none of before a writer that has it back.
func TestSharedClaims(t *testing.T) {
	claim := func(s *Store, n uint64, shared bool) RenewAnswer {
		return must(s.Reclaim(cameAt+second, door, granted(1, n), 10*second, Claim{Holder: fmt.Sprint(n), Shared: shared, Left: 8 * second}))
	}
	s, _ := lost(t, nil)
	for _, n := range []uint64{5, 9, 7} {
		if r := claim(s, n, true); !r.Reclaimed {
			t.Errorf("reader %d: %+v", n, r)
		}
	}
	if r := claim(s, 8, false); r.Renewed {
		t.Errorf("a writer of before a reader: %+v", r)
	}
	if r := claim(s, 10, false); !r.Reclaimed {
		t.Errorf("a writer of after them: %+v", r)
	}
	for _, n := range []uint64{9, 6} {
		if r := claim(s, n, true); r.Renewed || r.Holder.Token != granted(1, 10) {
			t.Errorf("reader %d, of before the writer: %+v", n, r)
		}
		if r := must(s.Renew(cameAt+second, door, granted(1, n), second)); r.Renewed {
			t.Errorf("without a claim: %+v", r)
		}
	}
	must(s.Release(cameAt+second, door, noID, granted(1, 10)))
	for range s.shards {
		s.Sweep(cameAt + 2*second)
	}
	if r := claim(s, 6, true); r.Renewed {
		t.Errorf("when the writer has gone: %+v", r)
	}
	if r := claim(s, 12, true); !r.Reclaimed {
		t.Errorf("a reader of after it: %+v", r)
	}
}

// TestReadersAreBounded: more than a record has room for wait.
func TestReadersAreBounded(t *testing.T) {
	s := newStore(t, nil)
	var last uint64
	for i := range hold.MaxHolders {
		a, _ := acquire(t, s, 0, noID, shares(fmt.Sprint(i), 0))
		if !a.Acquired {
			t.Fatalf("reader %d: %+v", i, a)
		}
		last = a.Token
	}
	_, one := acquire(t, s, 0, noID, shares("one more", 60*second))
	if one == nil {
		t.Fatal("more than may share it")
	}
	must(s.Release(0, door, noID, last))
	if a, err := answered(t, one); err != nil || !a.Acquired {
		t.Errorf("%+v %v", a, err)
	}
}
