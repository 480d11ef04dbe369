package owner

import (
	"errors"
	"fmt"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
)

// sharedRule is the rule of one of several processes. It owns the keys for which own is
// true.
type sharedRule struct {
	testRule
	own func(hash uint64) bool
}

func (r *sharedRule) Owns(hash uint64) bool { return r.own(hash) }
func (r *sharedRule) Shared() bool          { return true }

func (r *sharedRule) Admit(hash uint64, now int64) (Permit, error) {
	if !r.own(hash) {
		return Permit{}, &failure.Error{Reason: failure.NotOwner}
	}
	return r.testRule.Admit(hash, now)
}

// sharedStore is one of 4 MiB, or of 10,000 objects, of a node that owns half of the keys.
func sharedStore(t *testing.T, what string) (*Store, *sharedRule) {
	t.Helper()
	r := &sharedRule{testRule: testRule{epoch: 100}, own: func(hash uint64) bool { return hash%2 == 0 }}
	return newStore(t, func(c *Config) {
		c.Rule = r
		if what == "objects" {
			c.MaxObjects = 10_000
		} else {
			c.MaxBytes = 4 << 20
		}
	}), r
}

// grow adds new counters of the process's own until one is refused, and returns them.
func grow(t *testing.T, s *Store, prefix string) (keys []string) {
	t.Helper()
	for i := 0; len(keys) < 1_000_000; i++ {
		key := fmt.Sprint(prefix, i)
		if !s.owners.Owns(Hash(key)) {
			continue
		}
		if _, err := s.Add(0, Ref{Key: key, Name: "n"}, noID, counter.AddOp{Delta: 1}); err != nil {
			if reason(err) != failure.StoreFull {
				t.Fatal(err)
			}
			return keys
		}
		keys = append(keys, key)
	}
	t.Fatal("it takes everything")
	return nil
}

// copyIn installs copies of so many counters of others.
func copyIn(s *Store, n int) error {
	for i := 0; n > 0; i++ {
		key := fmt.Sprint("copy", i)
		if s.owners.Owns(Hash(key)) {
			continue
		}
		n--
		r := (&Record{Hash: Hash(key), Key: []byte(key), Name: []byte("n")}).SetCounter(counter.State{Value: 1, Version: 1})
		if err := s.Install(0, r, always); err != nil {
			return fmt.Errorf("%d copies are left: %w", n, err)
		}
	}
	return nil
}

// TestBudgets: a process of a cluster that is as full as it may be has room for the copies
// of others that are as full, also when they all came after its own objects, and when they
// come anew.
func TestBudgets(t *testing.T) {
	for _, what := range []string{"objects", "memory"} {
		t.Run(what, func(t *testing.T) {
			s, _ := sharedStore(t, what)
			own := len(grow(t, s, "own"))
			for range 3 {
				if err := copyIn(s, own*3/2); err != nil { // of one that has taken over from a third one
					t.Fatalf("beside %d own objects: %v", own, err)
				}
				round(s)
				s.Discard(func(hash uint64) bool { return hash%2 == 1 }) // the stream broke
				round(s)
				own += len(grow(t, s, "more"+fmt.Sprint(own)))
			}
		})
	}
}

// round is a sweep of all shards.
func round(s *Store) {
	for range s.shards {
		s.Sweep(0)
	}
}

// TestBudgetsFollowTheTable: objects that come to be the process's own count as such, and
// those that go do not.
func TestBudgetsFollowTheTable(t *testing.T) {
	s, r := sharedStore(t, "memory")
	own := grow(t, s, "own")
	if err := copyIn(s, len(own)/2); err != nil {
		t.Fatal(err)
	}
	r.own = func(hash uint64) bool { return hash%4 == 0 } // half of the rows go, their copies stay
	round(s)
	if got := s.mine.Load(); got < int64(len(own))/2*9/10 || got > int64(len(own))/2*11/10 {
		t.Errorf("%d of %d objects count as own", got, len(own))
	}
	if more := len(grow(t, s, "again")); more < len(own)/4 {
		t.Errorf("there is room for %d more", more)
	}
	r.own = func(uint64) bool { return true }
	round(s)
	if got := s.mine.Load(); got < s.all()*9/10 || got > s.all()*11/10 {
		t.Errorf("%d of %d objects count as own", got, s.all())
	}
	if more := len(grow(t, s, "last")); more != 0 {
		t.Errorf("there is room for %d more", more)
	}
}

// TestReserve: what clients know goes on with request ids when nothing new is let in, and
// one object does not use up what is kept for that.
func TestReserve(t *testing.T) {
	for what, make := range map[string]func(t *testing.T) *Store{
		"in a cluster": func(t *testing.T) *Store { s, _ := sharedStore(t, "memory"); return s },
		"alone":        func(t *testing.T) *Store { return newStore(t, func(c *Config) { c.MaxBytes = 4 << 20 }) },
	} {
		t.Run(what, func(t *testing.T) {
			s := make(t)
			var keys []string
			if s.owners != nil {
				keys = grow(t, s, "own")
			} else {
				for i := 0; ; i++ {
					if _, err := s.Add(0, Ref{Key: fmt.Sprint(i), Name: "n"}, noID, counter.AddOp{Delta: 1}); err != nil {
						break
					}
					keys = append(keys, fmt.Sprint(i))
				}
			}
			add := func(key string, client, seq uint64) error {
				_, err := s.Add(1, Ref{Key: key, Name: "n"}, reqid.ID{Client: reqid.Client{Hi: client, Lo: 1}, Sequence: seq, Settled: seq}, counter.AddOp{Delta: 1})
				return err
			}
			for i, key := range keys[:30] {
				if err := add(key, uint64(i), 1); err != nil {
					t.Fatalf("operation %d with an id on a key that is there: %v", i, err)
				}
			}
			for i := 50; s.owners != nil && !s.idsFull(idHalf); i++ { // the reserve begins here
				if err := add(keys[i], 98, 1); err != nil {
					t.Fatal(err)
				}
			}
			busy, many := keys[40], 0
			for ; many < 1000 && add(busy, uint64(many), 1) == nil; many++ {
			}
			if err := add(keys[41], 7, 1); err != nil || many > 500 {
				t.Errorf("one object has used the reserve, by %d clients: %v", many, err)
			}
			if err := add(busy, 0, 2); err != nil {
				t.Errorf("a client that it knows: %v", err)
			}
			n, before := 0, s.Stats().Bytes
			var err error
			for ; err == nil && n < len(keys); n++ {
				err = add(keys[n], 99, 1)
			}
			if reason(err) != failure.StoreFull {
				t.Errorf("%d ids, from %d bytes to %d: %v", n, before, s.Stats().Bytes, err)
			}
			a := must(s.Get(1, Ref{Key: keys[n-1], Name: "n"}))
			if errors.Is(add(keys[n-1], 99, 1), nil) || must(s.Get(1, Ref{Key: keys[n-1], Name: "n"})).Value != a.Value {
				t.Errorf("it was refused and acted all the same: %v", a.Value)
			}
		})
	}
}
