package owner

import (
	"fmt"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// allKeys returns how many keys a store remembers, those of copies included.
func allKeys(s *Store) (n int) {
	for i := range s.shards {
		n += s.shards[i].ids.AllKeys()
	}
	return n
}

// addKeyed adds 1 under a key.
func addKeyed(s *Store, now int64, object, key string) (AddAnswer, error) {
	return s.Add(now, Ref{Key: object, Name: "n"}, reqid.KeyID(key), counter.AddOp{Delta: 1})
}

// TestKeysOfCopiesAreNotCounted: what a node remembers for others takes no room from its
// own objects, also not when these have become its own.
func TestKeysOfCopiesAreNotCounted(t *testing.T) {
	b, _ := keyStore(t, func(c *Config) { c.Keys = 16 })
	a, _ := keyStore(t, func(c *Config) { c.Sink = &copyTo{store: b}; c.Keys = 16 })
	now := 100 * second
	for i := range 16 {
		must(addKeyed(a, now, fmt.Sprint("theirs", i), "order"))
	}
	if _, err := addKeyed(a, now, "theirs too", "order"); reason(err) != failure.StoreFull {
		t.Fatalf("more than there may be: %v", err)
	}
	b.Own(now, always, OwnGrace)
	for i := range 16 {
		must(addKeyed(b, now, fmt.Sprint("mine", i), "order"))
		if r := must(addKeyed(b, now, fmt.Sprint("theirs", i), "order")); !r.Replayed {
			t.Errorf("done again: %+v", r)
		}
	}
	sweepAll(b, now+b.cfg.RequestIDs.Window+1)
	if n, m := allKeys(b), b.keys.Load(); n != 0 || m != 0 {
		t.Errorf("%d keys are remembered, %d counted", n, m)
	}
}

// TestBusyObjectsLeaveRoomForKeys: objects that use new keys as fast as old ones are
// forgotten, for ever, leave room for the keys of one that uses few.
func TestBusyObjectsLeaveRoomForKeys(t *testing.T) {
	s, _ := keyStore(t, func(c *Config) { c.Keys, c.KeysPerObject = 1024, 512 })
	now := int64(100 * second)
	for step := range 900 { // of one second: three windows
		now += second
		sweepAll(s, now)
		for i := range 256 {
			_, _ = addKeyed(s, now, fmt.Sprint("busy", i%16), fmt.Sprint(step, i))
		}
		if n := s.keys.Load(); n > 1024 {
			t.Fatalf("%d keys", n)
		}
		if step%10 == 0 {
			must(addKeyed(s, now, "calm", fmt.Sprint(step)))
		}
	}
	used := s.keys.Load()
	if t.Logf("%d keys", used); used < 900 {
		t.Errorf("room for %d keys is left unused", 1024-used)
	}
}

// TestDeleteFindsRoomForItsKey: a counter that is full of keys, or whose node is, can be
// deleted under a key, which acts once like all others. But what it may take beyond is
// bounded.
func TestDeleteFindsRoomForItsKey(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"of the object": func(c *Config) { c.KeysPerObject = 32 },
		"of the node":   func(c *Config) { c.Keys = 63 }, // an object may have as many as are left
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := keyStore(t, change)
			ref, now := Ref{Key: "k", Name: "n"}, 100*second
			for i := range 32 {
				must(addKeyed(s, now, "k", fmt.Sprint(i)))
			}
			if _, err := addKeyed(s, now, "k", "one more"); reason(err) != failure.StoreFull {
				t.Fatalf("one more: %v", err)
			}
			if d := must(s.Delete(now, ref, reqid.KeyID("delete"))); !d.Deleted {
				t.Errorf("%+v", d)
			}
			must(s.Add(now, ref, noID, counter.AddOp{Delta: 1}))
			if d := must(s.Delete(now, ref, reqid.KeyID("delete"))); !d.Replayed || d.Current != 1 {
				t.Errorf("again: %+v", d)
			}
			deleted := 1
			for ; deleted < 32; deleted++ {
				if _, err := s.Delete(now, ref, reqid.KeyID(fmt.Sprint("delete", deleted))); reason(err) == failure.StoreFull {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				must(s.Add(now, ref, noID, counter.AddOp{Delta: 1}))
			}
			if deleted > 32/deleteRoom+1 {
				t.Errorf("%d deletions found room", deleted)
			}
		})
	}
}

// TestHeldUpAttemptUnderAKey: an attempt under a key that was held up on its way takes the
// place from the one that was sent later, for nothing tells them apart. When it turns out
// that nobody waits for it any more, the other one has a second to come back to its place.
func TestHeldUpAttemptUnderAKey(t *testing.T) {
	for _, back := range []bool{true, false} {
		t.Run(fmt.Sprint(back), func(t *testing.T) {
			s, _ := keyStore(t, nil)
			ref, now := Ref{Key: "k", Name: "n"}, 100*second
			acquire := func(id reqid.ID, wait int64) *Wait[GrantAnswer] {
				t.Helper()
				now++
				a, w, err := s.Acquire(now, ref, id, AcquireLock{Holder: "h", TTL: 60 * second, Wait: wait})
				if err != nil || a.Acquired != (w == nil) {
					t.Fatal(a, w, err)
				}
				return w
			}
			acquire(noID, 0) // holds it
			later := acquire(reqid.KeyID("nightly"), 60*second)
			other := acquire(reqid.KeyID("other"), 60*second)
			heldUp := acquire(reqid.KeyID("nightly"), 60*second)
			if _, err := later.Answer(); reason(err) != failure.Superseded {
				t.Fatalf("the later one: %v", err)
			}
			heldUp.GiveUp(now)
			if _, err := heldUp.Answer(); reason(err) != failure.GaveUp {
				t.Errorf("the one that was held up: %v", err)
			}
			want := other
			if back {
				now += OwnGrace / 2
				want = acquire(reqid.KeyID("nightly"), 60*second)
			} else {
				now += OwnGrace + 1
			}
			view := must(s.Inspect(now, ref, 10))
			must(s.Release(now, ref, noID, view.Holding.Token))
			if a, err := want.Answer(); err != nil || !a.Acquired {
				t.Errorf("%+v, %v", a, err)
			}
			if back { // it is there, and leaves: nothing is kept for it
				want.GiveUp(now)
				if a, err := other.Answer(); err != nil || !a.Acquired {
					t.Errorf("the next one: %+v, %v", a, err)
				}
			}
		})
	}
}
