package owner

import (
	"fmt"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// A retry was told of the grant before the first attempt noticed that its caller
// is gone: the grant is the retry's and is not given back.
func TestGrantThatARetryWasToldOfIsKept(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
	_, ghost := acquire(t, s, 0, id(1), asks("b", 60*second, 60*second))
	must(s.Release(second, door, noID, first.Token))
	told, w := acquire(t, s, second, id(1), asks("b", 60*second, 60*second))
	if w != nil || !told.Acquired || told.TTL != 60*second {
		t.Fatalf("the retry: %+v", told)
	}
	ghost.GiveUp(second)
	if a, _ := acquire(t, s, second, noID, asks("c", second, 0)); a.Acquired || a.Holder.Token != told.Token {
		t.Errorf("another got it: %+v", a)
	}
}

// A retry that comes when the wait of the first attempt is over, but nobody has
// looked yet, gets the refusal.
func TestRetryAtTheEndOfTheWait(t *testing.T) {
	s := newStore(t, nil)
	acquire(t, s, 0, noID, asks("a", 60*second, 0))
	_, first := acquire(t, s, 0, id(1), asks("b", second, 5*second))
	a, w := acquire(t, s, 5*second, id(1), asks("b", second, 5*second))
	if w != nil || a.Acquired || !a.Replayed || a.Holder.Name != "a" {
		t.Errorf("the retry: %+v", a)
	}
	if a, err := answered(t, first); err != nil || a.Acquired {
		t.Errorf("the first attempt: %+v %v", a, err)
	}
}

// Whatever becomes of locks and waiters, when they are gone nothing is counted
// for them any more.
func TestTextIsCountedExactly(t *testing.T) {
	s := newStore(t, nil)
	op := func(wait int64) AcquireLock {
		return AcquireLock{Holder: "holder", TTL: second, Wait: wait, Metadata: make([]byte, 1000)}
	}
	now := int64(0)
	for range 50 {
		a, _ := acquire(t, s, now, noID, op(0))
		var waits []*Wait[GrantAnswer]
		for range 12 {
			_, w := acquire(t, s, now, noID, op(20*second))
			waits = append(waits, w)
		}
		for _, w := range waits[:6] {
			w.GiveUp(now)
		}
		must(s.Renew(now+2*second, door, a.Token, second)) // too late: the next one is granted it
		s.Wake(now + 4*second)
		now += 100 * second
		s.Wake(now)
		sweepAll(s, now)
		if text := s.shard(Hash(door.Key)).text; held(s) != 0 || text != 0 {
			t.Fatalf("%d objects, %d bytes of text", held(s), text)
		}
	}
}

// A store that request ids have filled takes objects again when they are gone.
func TestFullOfIDs(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxBytes, c.RequestIDs.Window = 4<<20, 100*second })
	var err error
	n := uint64(0)
	for ; err == nil && n < 1_000_000; n++ {
		rid := reqid.ID{Client: reqid.Client{Hi: n % 1000, Lo: 1}, Sequence: n + 1}
		_, err = s.Add(0, Ref{Key: "hot", Name: "n"}, rid, counter.AddOp{Delta: 1})
	}
	if reason(err) != failure.StoreFull {
		t.Fatalf("after %d ids: %v", n, err)
	}
	sweepAll(s, 101*second)
	for i := range 10_000 {
		if _, err := s.Check(101*second, Ref{Key: fmt.Sprint("k", i), Name: "n"}, noID, perSecond(1)); err != nil {
			t.Fatalf("limit %d: %v", i, err)
		}
	}
}

// A caller whose clock was read before a sweep does not find a bucket full that
// is not.
func TestStaleClockAdmitsNoMore(t *testing.T) {
	s := newStore(t, nil)
	op := limit.Op{Params: limit.Params{Limit: 1000, Period: second}, Cost: 1000}
	ref := Ref{Key: "k", Name: "n"}
	must(s.Check(0, ref, noID, op))
	sweepAll(s, second)
	if held(s) != 0 {
		t.Fatal("the bucket is not forgotten")
	}
	must(s.Check(second-second/100, ref, noID, op)) // counts as at one second
	if a := must(s.Check(2*second-second/100, ref, noID, op)); a.Allowed {
		t.Error("more than burst + limit · t were admitted")
	}
}

// Addresses that mirror each other, and keys that equal their names, stand apart
// in the index.
func TestTagsDoNotCollideByDesign(t *testing.T) {
	s := newStore(t, nil)
	seen := map[uint32]bool{}
	for i := range 1000 {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		for _, r := range []Ref{{Key: a, Name: a}, {Key: a, Name: b}, {Key: b, Name: a}} {
			seen[s.addressTag(r)] = true
		}
	}
	if len(seen) < 2990 {
		t.Errorf("3,000 addresses have %d tags", len(seen))
	}
}
