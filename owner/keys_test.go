package owner

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/once"
	"github.com/keystead/keystead/owner/reqid"
)

// knowing is a rule under which everything is known that was done before since.
type knowing struct {
	testRule
	since, lostAt int64
	lost          uint64
	level         uint32
}

func (r *knowing) Admit(uint64, int64) (Permit, error) {
	return Permit{Epoch: 7, Since: r.since, Lost: r.lost, LostAt: r.lostAt}, nil
}
func (r *knowing) Uses(level uint32) bool { return r.level >= level }

// keyStore is a store that has forgotten nothing yet.
func keyStore(t testing.TB, change func(*Config)) (*Store, *knowing) {
	rule := &knowing{since: math.MinInt64, level: OnceLevel}
	return newStore(t, func(c *Config) {
		c.Rule = rule
		if change != nil {
			change(c)
		}
	}), rule
}

// keyedOps are the operations that carry keys, each by what it is about: variant 0 is the
// request, the others differ from it in one field each. free are variants that are the
// same request.
var keyedOps = map[string]struct {
	variants, free int
	do             func(s *Store, now int64, id reqid.ID, variant int) (done, replayed bool, err error)
}{
	"check": {6, 1, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		op := limit.Op{Params: limit.Params{Limit: 10, Period: 1000 * second}, Cost: 2}
		switch v {
		case -1:
			op.Burst = 10 // is the default
		case 1:
			op.Cost = 3
		case 2:
			op.Limit = 11
		case 3:
			op.Period++
		case 4:
			op.Burst = 11
		case 5:
			op.Algorithm = limit.SlidingWindow
		}
		a, err := s.Check(now, Ref{Key: "k", Name: "limit"}, id, op)
		return a.Allowed, a.Replayed, err
	}},
	"refund": {3, 0, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		op := limit.Op{Params: limit.Params{Limit: 10, Period: 1000 * second}, Refund: 2}
		switch v {
		case 1:
			op.Refund = 3
		case 2:
			op.Refund, op.Cost = 0, 2
		}
		a, err := s.Check(now, Ref{Key: "k", Name: "refunded"}, id, op)
		return a.Allowed, a.Replayed, err
	}},
	"add": {6, 0, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		op := counter.AddOp{Delta: 5, Min: 0, HasMin: true}
		switch v {
		case 1:
			op.Delta = 6
		case 2:
			op.Min = -1
		case 3:
			op.HasMin = false
		case 4:
			op.HasMax, op.Max = true, 1000
		case 5:
			op.IdleTTL = 1000 * second
		}
		a, err := s.Add(now, Ref{Key: "k", Name: "added"}, id, op)
		return a.Applied, a.Replayed, err
	}},
	"compare and set": {4, 0, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		op := counter.CompareAndSetOp{Value: 5}
		switch v {
		case 1:
			op.Value = 6
		case 2:
			op.Version = 1
		case 3:
			op.IdleTTL = 1000 * second
		}
		a, err := s.CompareAndSet(now, Ref{Key: "k", Name: "set"}, id, op)
		return a.Applied, a.Replayed, err
	}},
	"reset": {2, 0, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		if v == 1 { // another operation
			_, err := s.Add(now, Ref{Key: "k", Name: "reset"}, id, counter.AddOp{})
			return false, false, err
		}
		a, err := s.Reset(now, Ref{Key: "k", Name: "reset"}, id)
		return true, a.Replayed, err
	}},
	"delete": {2, 0, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		if v == 1 { // another operation
			_, err := s.Reset(now, Ref{Key: "k", Name: "deleted"}, id)
			return false, false, err
		}
		a, err := s.Delete(now, Ref{Key: "k", Name: "deleted"}, id)
		return true, a.Replayed, err
	}},
	"reset of a limit": {2, 0, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		if v == 1 { // another operation
			_, err := s.Check(now, Ref{Key: "k", Name: "full"}, id, limit.Op{Params: limit.Params{Limit: 10, Period: second}, Cost: 1})
			return false, false, err
		}
		a, err := s.ResetLimit(now, Ref{Key: "k", Name: "full"}, id)
		return true, a.Replayed, err
	}},
	"acquire": {4, 1, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		op := AcquireLock{Holder: "ann", TTL: 100 * second, Metadata: []byte("m")}
		switch v {
		case -1:
			op.Wait = second // it may wait for another time each time that it is sent
		case 1:
			op.Holder = "bob"
		case 2:
			op.TTL++
		case 3:
			op.Metadata = []byte("n")
		}
		a, _, err := s.Acquire(now, Ref{Key: "k", Name: "acquired"}, id, op)
		return a.Acquired, a.Replayed, err
	}},
	"set of a register": {6, 0, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		op := puts("v")
		switch v {
		case 1:
			op = puts("w")
		case 2:
			op = op.at(0)
		case 3:
			op = op.fenced(1)
		case 4:
			op.Hold.Token = 1
		case 5:
			op.Hold.Name = "lock"
		}
		a, err := s.SetRegister(now, Ref{Key: "k", Name: "register"}, id, op)
		return a.Applied, a.Replayed, err
	}},
	"delete of a register": {6, 0, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		var op DeleteRegister
		switch v {
		case 1:
			op.Forget = true
		case 2:
			op.Versioned, op.Version = true, 1
		case 3:
			op.Fence = 1
		case 4:
			op.Hold.Token = 1
		case 5:
			op.Hold.Name = "lock"
		}
		if _, err := s.SetRegister(now, Ref{Key: "k", Name: "gone"}, reqid.ID{}, puts("v")); err != nil {
			return false, false, err
		}
		a, err := s.DeleteRegister(now, Ref{Key: "k", Name: "gone"}, id, op)
		return a.Applied, a.Replayed, err
	}},
	"begin of work": {4, 0, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		op := begins("ann", "body")
		switch v {
		case 1:
			op.Print = []byte("other")
		case 2:
			op.Holder = []byte("bob")
		case 3:
			op.TTL++
		}
		// Only a turn is remembered, so each key has work of its own.
		a, err := s.BeginOnce(now, Ref{Key: "k", Name: fmt.Sprint("begun ", id.Client)}, id, op)
		return a.Outcome == once.First, a.Replayed, err
	}},
	"complete of work": {4, 0, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		ref, result, keep := Ref{Key: "k", Name: fmt.Sprint("completed ", id.Client)}, "r", int64(once.DefaultKeep)
		if _, err := s.BeginOnce(now, ref, reqid.ID{}, begins("ann", "body")); err != nil {
			return false, false, err
		}
		token := must(s.GetOnce(now, ref)).Token
		switch v {
		case 1:
			token++
		case 2:
			result = "other"
		case 3:
			keep++
		}
		a, err := s.CompleteOnce(now, ref, id, token, []byte(result), keep, TurnClaim{})
		return a.OK, a.Replayed, err
	}},
	"release": {2, 0, func(s *Store, now int64, id reqid.ID, v int) (bool, bool, error) {
		ref := Ref{Key: "k", Name: "released"}
		a, _, err := s.Acquire(now, ref, reqid.ID{}, AcquireLock{Holder: "ann", TTL: 100 * second})
		if err != nil {
			return false, false, err
		}
		token := uint64(7<<SeqBits | 1)
		if a.Acquired && a.Token == 0 {
			return false, false, errors.New("no token")
		}
		if v == 1 {
			token++
		}
		r, err := s.Release(now, ref, id, token)
		return r.Released, r.Replayed, err
	}},
}

// TestKeys: an operation under an idempotency key acts once, however often it is sent, and
// whatever may be said otherwise in one that is the same; one that differs in any field is
// refused. It is so for all operations.
func TestKeys(t *testing.T) {
	for name, op := range keyedOps {
		t.Run(name, func(t *testing.T) {
			s, _ := keyStore(t, nil)
			now := 100 * second
			if name == "release" {
				// The token of the first grant in this store is known.
				a, _, err := s.Acquire(now, Ref{Key: "k", Name: "released"}, reqid.ID{}, AcquireLock{Holder: "ann", TTL: 100 * second})
				if err != nil || a.Token != 7<<SeqBits|1 {
					t.Fatal(a, err)
				}
			}
			id := reqid.KeyID("order-7")
			done, replayed, err := op.do(s, now, id, 0)
			if err != nil || replayed || !done {
				t.Fatalf("first: done %t, replayed %t, %v", done, replayed, err)
			}
			for v := -op.free; v < op.variants; v++ {
				now += second
				again, replayed, err := op.do(s, now, id, v)
				switch {
				case v <= 0 && (err != nil || !replayed || again != done):
					t.Errorf("variant %d, the same: done %t, replayed %t, %v", v, again, replayed, err)
				case v > 0 && (reason(err) != failure.RequestIDReused || err.(*failure.Error).Field != keyField):
					t.Errorf("variant %d, another request: %v", v, err)
				}
			}
			// Another key is another operation.
			if _, replayed, err := op.do(s, now, reqid.KeyID("order-8"), 0); err != nil || replayed {
				t.Errorf("another key: replayed %t, %v", replayed, err)
			}
		})
	}
}

// TestKeysAreOfTheirObject: the same key on another object is another operation.
func TestKeysAreOfTheirObject(t *testing.T) {
	s, _ := keyStore(t, nil)
	for i := range 3 {
		a := must(s.Add(0, Ref{Key: fmt.Sprint(i), Name: "n"}, reqid.KeyID("order-7"), counter.AddOp{Delta: 1}))
		if a.Replayed || a.Value != 1 {
			t.Errorf("%+v", a)
		}
	}
}

// TestKeysAreNotEvicted: keys are kept for the window, whatever else there is no room for.
// What finds no room is refused, and the object is as it was.
func TestKeysAreNotEvicted(t *testing.T) {
	ref := Ref{Key: "k", Name: "n"}
	add := func(s *Store, now int64, ref Ref, key string) (AddAnswer, error) {
		return s.Add(now, ref, reqid.KeyID(key), counter.AddOp{Delta: 1})
	}
	for name, tc := range map[string]struct {
		change func(*Config)
		ref    func(i int) Ref
	}{
		"of the object": {func(c *Config) { c.KeysPerObject = 10 }, func(int) Ref { return ref }},
		"of the node":   {func(c *Config) { c.Keys = 10 }, func(i int) Ref { return Ref{Key: fmt.Sprint(i), Name: "n"} }},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := keyStore(t, func(c *Config) {
				tc.change(c)
				c.RequestIDs.ClientsPerObject, c.RequestIDs.IDsPerClient = 2, 2
			})
			start := 100 * second
			for i := range 10 {
				must(add(s, start, tc.ref(i), fmt.Sprint("order", i)))
			}
			// Clients with ids come and go, and displace each other.
			for i := range 100 {
				must(s.Add(start, ref, reqid.ID{Client: reqid.Client{Hi: uint64(i), Lo: 1}, Sequence: uint64(i) + 1}, counter.AddOp{}))
			}
			before := must(s.Get(start, tc.ref(9)))
			_, err := add(s, start, tc.ref(9), "one more")
			var e *failure.Error
			if !errors.As(err, &e) || e.Reason != failure.StoreFull || e.RetryAfter == 0 || e.Hint == "" || e.Field != keyField {
				t.Fatalf("one more: %v", err)
			}
			if after := must(s.Get(start, tc.ref(9))); after.Value != before.Value {
				t.Errorf("it is %d, and was %d", after.Value, before.Value)
			}
			end := start + int64(s.cfg.RequestIDs.Window)
			for _, now := range []int64{start, end} {
				sweepAll(s, now)
				for i := range 10 {
					if a := must(add(s, now, tc.ref(i), fmt.Sprint("order", i))); !a.Replayed {
						t.Fatalf("order %d was done again", i)
					}
				}
			}
			sweepAll(s, end+1)
			if a := must(add(s, end+1, tc.ref(9), "one more")); a.Replayed {
				t.Errorf("%+v", a)
			}
			if n := s.keys.Load(); n != 1 {
				t.Errorf("%d keys are counted", n)
			}
		})
	}
}

// TestKeysAreCountedAsMemory: what keys take is counted, and given back.
func TestKeysAreCountedAsMemory(t *testing.T) {
	s, _ := keyStore(t, nil)
	ref := Ref{Key: "k", Name: "n"}
	must(s.Add(0, ref, noID, counter.AddOp{Delta: 1}))
	before := s.Stats().Bytes
	for i := range 10_000 {
		must(s.Add(0, ref, reqid.KeyID(fmt.Sprint(i)), counter.AddOp{Delta: 1}))
	}
	took := s.Stats().Bytes - before
	if took < 10_000*64 || took > 10_000*160 || s.idBytes.Load() < took {
		t.Errorf("10,000 keys take %d bytes", took)
	}
	t.Logf("a key takes %d bytes", took/10_000)
	sweepAll(s, int64(s.cfg.RequestIDs.Window)+1)
	if left := s.Stats().Bytes - before; left > took/8 {
		t.Errorf("%d bytes are left of %d", left, took)
	}
}

// TestUnknownKeys: a key that is not known is done only where none can have been forgotten
// in its window. The table of package reqid has the cases.
func TestUnknownKeys(t *testing.T) {
	const window = 300 * second
	start := 1000 * second
	for name, tc := range map[string]struct {
		since, lostAt int64
		lost          uint64
		until         int64 // when it is done; 0 = at once
	}{
		"the row came with all its ids":      {since: math.MinInt64},
		"the process began with nothing":     {since: start, until: start + window},
		"… a while ago":                      {since: start - 100*second, until: start + window - 100*second},
		"… longer ago than keys are kept":    {since: start - window - 1},
		"… and the row is in grace":          {since: start, lost: 5, lostAt: start, until: start + window},
		"the grace is longer than keys live": {since: start - window - 1, lost: 5, lostAt: start - window - 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, rule := keyStore(t, func(c *Config) { c.RequestIDs.Window = window })
			ref := Ref{Key: "k", Name: "n"}
			must(s.Add(start, ref, reqid.KeyID("known"), counter.AddOp{Delta: 1}))
			rule.since, rule.lost, rule.lostAt = tc.since, tc.lost, tc.lostAt
			add := func(now int64, key string) (AddAnswer, error) {
				return s.Add(now, ref, reqid.KeyID(key), counter.AddOp{Delta: 1})
			}
			if a := must(add(start, "known")); !a.Replayed {
				t.Errorf("what is known: %+v", a)
			}
			if tc.until == 0 {
				must(add(start, "unknown"))
				return
			}
			for _, now := range []int64{start, tc.until} {
				_, err := add(now, "unknown")
				var e *failure.Error
				left := time.Duration(tc.until - now + 1)
				if !errors.As(err, &e) || e.Reason != failure.Recovering || e.Field != keyField || e.Hint == "" || e.RetryAfter != max(left, retrySoon) {
					t.Errorf("at %d: %v, try again in %v, want %v", now, err, e, left)
				}
			}
			if v := must(s.Get(tc.until, ref)); v.Value != 1 {
				t.Errorf("it acted: %d", v.Value)
			}
			must(s.Add(start, ref, noID, counter.AddOp{Delta: 1})) // without a key it is done
			if a := must(add(tc.until+1, "unknown")); a.Replayed {
				t.Errorf("%+v", a)
			}
		})
	}
}

// TestKeysNeedTheirLevel: as long as a member of the cluster does not know keys, nobody
// uses them.
func TestKeysNeedTheirLevel(t *testing.T) {
	s, rule := keyStore(t, nil)
	rule.level = KeyLevel - 1
	for name, op := range keyedOps {
		_, _, err := op.do(s, 0, reqid.KeyID("order-7"), 0)
		if reason(err) != failure.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	rule.level = KeyLevel
	must(s.Add(0, Ref{Key: "k", Name: "added"}, reqid.KeyID("order-7"), counter.AddOp{Delta: 1}))
}

// TestKeyOfACallerThatWaits: a place in a queue belongs to its key. Another attempt takes it
// over, and whichever was granted the lock is told again.
func TestKeyOfACallerThatWaits(t *testing.T) {
	s, _ := keyStore(t, nil)
	ref, start := Ref{Key: "k", Name: "n"}, 100*second
	held, _, err := s.Acquire(start, ref, noID, AcquireLock{Holder: "ann", TTL: 50 * second})
	if err != nil {
		t.Fatal(err)
	}
	id, bob := reqid.KeyID("nightly"), AcquireLock{Holder: "bob", TTL: 50 * second, Wait: 20 * second}
	_, first, err := s.Acquire(start, ref, id, bob)
	if err != nil || first == nil {
		t.Fatal(first, err)
	}
	other := bob
	other.TTL++
	if _, _, err := s.Acquire(start, ref, id, other); reason(err) != failure.RequestIDReused {
		t.Errorf("another request under the key of a place: %v", err)
	}
	if _, err := s.Release(start, ref, id, held.Token); reason(err) != failure.RequestIDReused {
		t.Errorf("another operation under the key of a place: %v", err)
	}
	_, next, err := s.Acquire(start, ref, id, bob)
	if err != nil || next == nil {
		t.Fatal(next, err)
	}
	if _, err := first.Answer(); reason(err) != failure.Superseded {
		t.Errorf("the first attempt: %v", err)
	}
	must(s.Release(start+second, ref, noID, held.Token))
	a, err := next.Answer()
	if err != nil || !a.Acquired {
		t.Fatal(a, err)
	}
	again, w, err := s.Acquire(start+2*second, ref, id, bob)
	if err != nil || w != nil || !again.Replayed || again.Token != a.Token {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestKeysTravel: a copy knows the keys that it was told of, by record and by export, and
// is asked about them as their owner would be. Records may come twice.
func TestKeysTravel(t *testing.T) {
	b, _ := keyStore(t, nil)
	to := &copyTo{store: b}
	told := false
	a, _ := keyStore(t, func(c *Config) {
		c.Sink = sinkFunc(func(r *Record) {
			if told {
				to.Changed(r)
				to.Changed(r)
			}
		})
	})
	now := 100 * second
	for name, op := range keyedOps {
		if name == "release" { // its tokens are of one store
			continue
		}
		told = false
		if _, _, err := op.do(a, now, reqid.KeyID("exported"), 0); err != nil {
			t.Fatal(name, err)
		}
	}
	a.Export(func() int64 { return now }, always, to.emit, func() bool { return true })
	told = true
	for name, op := range keyedOps {
		if name == "release" {
			continue
		}
		if _, _, err := op.do(a, now, reqid.KeyID("told"), 0); err != nil {
			t.Fatal(name, err)
		}
	}
	if n, m := allKeys(a), allKeys(b); n != m || n == 0 || a.keys.Load() != int64(n) || b.keys.Load() != 0 {
		t.Errorf("the owner knows %d keys and counts %d, the copy %d and %d", n, a.keys.Load(), m, b.keys.Load())
	}
	now += second
	b.Own(now, always, OwnGrace)
	for name, op := range keyedOps {
		if name == "release" {
			continue
		}
		for _, key := range []string{"exported", "told"} {
			of, _, err1 := op.do(a, now, reqid.KeyID(key), 0)
			did, replayed, err2 := op.do(b, now, reqid.KeyID(key), 0)
			if err1 != nil || err2 != nil || !replayed || did != of {
				t.Errorf("%s, %s: %t by the owner (%v), %t by the copy, replayed %t (%v)", name, key, of, err1, did, replayed, err2)
			}
			if _, _, err := op.do(b, now, reqid.KeyID(key), 1); reason(err) != failure.RequestIDReused {
				t.Errorf("%s, %s: another request at the copy: %v", name, key, err)
			}
		}
	}
}

// TestKeyUsedAgainAtTheCopy: a copy that has not forgotten a key of a window ago takes in
// that it was used again.
func TestKeyUsedAgainAtTheCopy(t *testing.T) {
	b, _ := keyStore(t, nil)
	a, _ := keyStore(t, func(c *Config) { c.Sink = &copyTo{store: b} })
	ref, now := Ref{Key: "k", Name: "n"}, 100*second
	must(a.Add(now, ref, reqid.KeyID("order"), counter.AddOp{Delta: 1}))
	now += a.cfg.RequestIDs.Window + second
	must(a.Add(now, ref, reqid.KeyID("order"), counter.AddOp{Delta: 2}))
	if r := must(b.Add(now+second, ref, reqid.KeyID("order"), counter.AddOp{Delta: 2})); !r.Replayed || r.Value != 3 {
		t.Errorf("%+v", r)
	}
}

// TestKeysAllocateNothing: an operation with a key allocates nothing, once there is room for as many
// as are remembered.
func TestKeysAllocateNothing(t *testing.T) {
	s, _ := keyStore(t, nil)
	ref, now := Ref{Key: "k", Name: "n"}, int64(0)
	step := func() {
		now += second
		id := reqid.KeyID("01J9ZQ5V7M8E2C3T4R6P0KXNBD")
		id.Client.Lo = uint64(now)
		must(s.Add(now, ref, id, counter.AddOp{Delta: 1}))
		if now%(10*second) == 0 {
			s.shards[0].expireIDs(now)
		}
	}
	for range 2000 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Errorf("%v allocations per operation", n)
	}
}
