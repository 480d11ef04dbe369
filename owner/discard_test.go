package owner

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

func TestDiscard(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 4 })
	lost := func(h uint64) bool { return h%2 == 0 }
	const n = 5000
	for i := range n {
		key := fmt.Sprint("k", i)
		id := reqid.ID{Client: reqid.Client{Lo: uint64(i%7) + 1}, Sequence: uint64(i) + 1}
		if _, err := s.Add(1, Ref{Key: key, Name: "c"}, id, counter.AddOp{Delta: 5}); err != nil {
			t.Fatal(err)
		}
		op := limit.Op{Params: limit.Params{Algorithm: limit.TokenBucket, Limit: 10, Period: 3600e9}, Cost: 3}
		if _, err := s.Check(1, Ref{Key: key, Name: "l"}, reqid.ID{}, op); err != nil {
			t.Fatal(err)
		}
	}
	waits := map[string]*Wait[GrantAnswer]{}
	for i := range 100 {
		ref := Ref{Key: fmt.Sprint("k", i), Name: "lock"}
		if _, _, err := s.Acquire(1, ref, reqid.ID{}, AcquireLock{Holder: "h", TTL: 3600e9}); err != nil {
			t.Fatal(err)
		}
		id := reqid.ID{Client: reqid.Client{Lo: 9}, Sequence: uint64(i) + 1}
		_, w, err := s.Acquire(1, ref, id, AcquireLock{Holder: "w", TTL: 3600e9, Wait: 3600e9})
		if err != nil || w == nil {
			t.Fatal(w, err)
		}
		waits[ref.Key] = w
	}
	s.Discard(lost)
	kept := int64(0)
	for i := range n {
		key := fmt.Sprint("k", i)
		is, want := int64(0), int64(5)
		if lost(Hash(key)) {
			want = 0
		} else {
			kept++
		}
		a, err := s.Get(2, Ref{Key: key, Name: "c"})
		if is = a.Value; err != nil || is != want {
			t.Fatalf("%s is %d, want %d, %v", key, is, want, err)
		}
		// An id that was forgotten with its object is new; one that was kept is a replay.
		id := reqid.ID{Client: reqid.Client{Lo: uint64(i%7) + 1}, Sequence: uint64(i) + 1}
		again, err := s.Add(3, Ref{Key: key, Name: "c"}, id, counter.AddOp{Delta: 5})
		if err != nil || again.Replayed == lost(Hash(key)) || again.Current != 5 {
			t.Fatalf("%s again: %+v, %v", key, again, err)
		}
	}
	gone := 0
	for key, w := range waits {
		var why *failure.Error
		if !lost(Hash(key)) {
			if w.finished() {
				t.Errorf("the wait for %s ended", key)
			}
			continue
		}
		gone++
		if _, err := w.Answer(); !w.finished() || !errors.As(err, &why) || why.Reason != failure.NotOwner {
			t.Errorf("the wait for %s: %v", key, err)
		}
		w.GiveUp(4) // the caller leaves after it was told: nothing happens
	}
	st := s.Stats()
	if st.Waiting != int64(len(waits)-gone) || st.Objects[KindLimit] != kept || st.Objects[KindCounter] != n || st.Objects[KindLock] != int64(len(waits)-gone) {
		t.Errorf("stats %+v, want %d limits, %d waiting", st, kept, len(waits)-gone)
	}
	s.Discard(func(uint64) bool { return true })
	st = s.Stats()
	if st.Waiting != 0 || st.Objects[KindLimit]+st.Objects[KindCounter]+st.Objects[KindLock] != 0 {
		t.Errorf("all discarded, and still %+v", st)
	}
	for i := range s.shards {
		sh := &s.shards[i]
		if sh.text != 0 || len(sh.waits) != 0 || len(sh.waitIDs) != 0 || sh.index.Len() != 0 {
			t.Errorf("shard %d: text %d, %d waits, %d entries", i, sh.text, len(sh.waits), sh.index.Len())
		}
	}
}

// Others create and forget objects while a discard goes on; none of the lost may
// be overlooked.
func TestDiscardAmongOthers(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	lost := func(h uint64) bool { return h%4 == 0 }
	for i := range 5_000 {
		if _, err := s.Add(1, Ref{Key: fmt.Sprint("k", i), Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 1}); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			key := fmt.Sprint("other", i)
			if lost(Hash(key)) {
				continue
			}
			if _, err := s.Add(2, Ref{Key: key, Name: "c"}, reqid.ID{}, counter.AddOp{Delta: 1, IdleTTL: 1e6}); err != nil {
				t.Error(err)
				return
			}
			s.Sweep(int64(i)*1e6 + 1e8)
		}
	})
	s.Discard(lost)
	for i := range 5_000 {
		key := fmt.Sprint("k", i)
		want := int64(1)
		if lost(Hash(key)) {
			want = 0
		}
		if a, err := s.Get(3, Ref{Key: key, Name: "c"}); err != nil || a.Value != want {
			t.Fatalf("%s is %d, want %d, %v", key, a.Value, want, err)
		}
	}
	close(stop)
	wg.Wait()
}
