package owner

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

const second = int64(1e9)

// testRule lets everything in under an epoch, unless told otherwise.
type testRule struct {
	epoch     uint64
	admit     error
	confirm   error
	exhausted int // how often the epoch was raised
	since     int64
	lost      uint64 // Permit.Lost and LostAt
	lostAt    int64
	loss      uint64 // Permit.Loss and LossAt
	lossAt    int64
	terms     Terms
}

func (r *testRule) Admit(uint64, int64) (Permit, error) {
	return Permit{Epoch: r.epoch, Since: r.since, Lost: r.lost, LostAt: r.lostAt, Loss: r.loss, LossAt: r.lossAt}, r.admit
}
func (r *testRule) Confirm(Permit, int64) error { return r.confirm }
func (r *testRule) Terms() Terms                { return r.terms }
func (r *testRule) Exhausted(epoch uint64) (uint64, error) {
	r.exhausted++
	r.epoch = epoch + 1
	return r.epoch, nil
}

func newStore(t testing.TB, change func(*Config)) *Store {
	t.Helper()
	cfg := Config{Rule: &testRule{epoch: 100}, Shards: 2}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func perSecond(n uint64) limit.Op {
	return limit.Op{Params: limit.Params{Limit: n, Period: second}, Cost: 1}
}

func id(seq uint64) reqid.ID { return reqid.ID{Client: reqid.Client{Hi: 1, Lo: 2}, Sequence: seq} }

func retry(seq uint64, age int64) reqid.ID {
	r := id(seq)
	r.Age = age
	return r
}

var noID reqid.ID

func reason(err error) failure.Reason {
	var e *failure.Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return 0
}

// sweepAll goes round all shards once.
func sweepAll(s *Store, now int64) {
	for range s.shards {
		s.Sweep(now)
	}
}

func held(s *Store) int64 {
	st := s.Stats()
	return st.Objects[KindLimit] + st.Objects[KindCounter] + st.Objects[KindLock] + st.Objects[KindRegister]
}

// Whatever is asked, in whatever order, and however often the store is swept:
// it answers as the pure cores do on states that are never forgotten.
func TestStoreAgainstCores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := New(Config{Rule: &testRule{epoch: 1}, Shards: 2}, 0)
		if err != nil {
			t.Fatal(err)
		}
		limits, counters := map[Ref]limit.State{}, map[Ref]counter.State{}
		var now int64
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, 1, second / 3, 5 * second}).Draw(t, "pause")
			n := rapid.IntRange(0, 5).Draw(t, "object")
			ref := Ref{Key: fmt.Sprintf("key-%d", n/2), Name: fmt.Sprintf("name-%d", n%2)}
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				ref.Name += "/limit"
				op := perSecond(rapid.Uint64Range(1, 4).Draw(t, "limit"))
				op.Peek = rapid.Bool().Draw(t, "peek")
				next, want, _ := limit.Apply(limits[ref], op, now)
				got, err := s.Check(now, ref, noID, op)
				if err != nil || got.Result != want {
					t.Fatalf("check: %+v %v, want %+v", got, err, want)
				}
				limits[ref] = next
			case 1:
				op := counter.AddOp{Delta: rapid.Int64Range(-3, 3).Draw(t, "delta"), Max: 5, HasMax: true,
					IdleTTL: rapid.SampledFrom([]int64{0, 2 * second}).Draw(t, "ttl")}
				next, want, _ := counter.Add(counters[ref], op, 1, now)
				got, err := s.Add(now, ref, noID, op)
				if err != nil || got.Value != want.Value || got.Applied != want.Applied || got.Refusal != want.Refusal {
					t.Fatalf("add: %+v %v, want %+v", got, err, want)
				}
				if got.Applied && op.Delta != 0 && got.Version <= counters[ref].Version {
					t.Fatalf("version went from %d to %d", counters[ref].Version, got.Version)
				}
				next.Version = got.Version
				counters[ref] = next
			case 2:
				value, version := counter.Get(counters[ref], now)
				got, err := s.Get(now, ref)
				if err != nil || got.Value != value || (got.Version == 0) != (version == 0) {
					t.Fatalf("get: %+v %v, want %d at %d", got, err, value, version)
				}
			case 3:
				next, want, _ := counter.Reset(counters[ref], 1, now)
				got, err := s.Reset(now, ref, noID)
				if err != nil || got.Previous != want.Previous {
					t.Fatalf("reset: %+v %v, want %+v", got, err, want)
				}
				next.Version = got.Version
				counters[ref] = next
			case 4:
				sweepAll(s, now)
			}
		}
	})
}

func TestKindsDoNotMix(t *testing.T) {
	s := newStore(t, nil)
	ref := Ref{Key: "k", Name: "n"}
	if _, err := s.Check(0, ref, noID, perSecond(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(0, ref); reason(err) != failure.KindMismatch {
		t.Errorf("a counter where a limit is: %v", err)
	}
	if _, err := s.Inspect(0, ref, 1); reason(err) != failure.KindMismatch {
		t.Errorf("a lock where a limit is: %v", err)
	}
	if _, err := s.Add(second, ref, noID, counter.AddOp{Delta: 1}); err != nil {
		t.Errorf("a counter where a limit was that is full again: %v", err)
	}
	if _, err := s.Check(second, ref, noID, perSecond(1)); reason(err) != failure.KindMismatch {
		t.Errorf("a limit where a counter is: %v", err)
	}
	if _, err := s.Add(0, Ref{Key: "kn", Name: ""}, noID, counter.AddOp{Delta: 5}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(0, Ref{Key: "k", Name: "n "}); err != nil || got.Version != 0 {
		t.Errorf("addresses run into each other: %+v %v", got, err)
	}
}

func TestAddresses(t *testing.T) {
	s := newStore(t, nil)
	for field, ref := range map[string]Ref{
		"key":  {Key: "", Name: "n"},
		"key ": {Key: strings.Repeat("x", MaxKey+1), Name: "n"},
		"Key":  {Key: "\x00k", Name: "n"},
		"name": {Key: "k", Name: strings.Repeat("x", MaxName+1)},
		"KEY":  {Key: "\xff", Name: "n"},
		"NAME": {Key: "k", Name: "\xff"},
	} {
		_, err := s.Get(0, ref)
		var e *failure.Error
		if !errors.As(err, &e) || e.Reason != failure.Invalid || e.Field != strings.ToLower(strings.TrimSpace(field)) {
			t.Errorf("%.10q: %v", ref.Key, err)
		}
	}
	longest := Ref{Key: strings.Repeat("k", MaxKey), Name: strings.Repeat("n", MaxName)}
	if got, err := s.Add(0, longest, noID, counter.AddOp{Delta: 1}); err != nil || got.Value != 1 {
		t.Errorf("the longest address: %+v %v", got, err)
	}
	if got, err := s.Get(0, longest); err != nil || got.Value != 1 {
		t.Errorf("the longest address: %+v %v", got, err)
	}
}

func TestSweepForgetsWhatIsOver(t *testing.T) {
	s := newStore(t, func(c *Config) { c.RequestIDs.Window = 100 * second })
	for i := range 1000 {
		ref := Ref{Key: fmt.Sprintf("k%d", i), Name: "n"}
		must(s.Check(0, Ref{Key: ref.Key, Name: "limit"}, noID, perSecond(1)))
		must(s.Add(0, Ref{Key: ref.Key, Name: "idle"}, noID, counter.AddOp{Delta: 1, IdleTTL: 2 * second}))
		must(s.Add(0, Ref{Key: ref.Key, Name: "kept"}, noID, counter.AddOp{Delta: 1}))
		must(s.Check(0, Ref{Key: ref.Key, Name: "id"}, id(uint64(i+1)), perSecond(1)))
		if _, _, err := s.Acquire(0, Ref{Key: ref.Key, Name: "lock"}, noID, AcquireLock{Holder: "h", TTL: second}); err != nil {
			t.Fatal(err)
		}
	}
	bytes := s.Stats().Bytes
	for _, step := range []struct {
		at   int64
		held int64
	}{
		{second - 1, 5000},
		{second, 3000},       // limits are full, locks have lapsed
		{2 * second, 2000},   // idle counters are gone
		{100 * second, 2000}, // ids are kept for their window
		{101 * second, 1000},
	} {
		sweepAll(s, step.at)
		sweepAll(s, step.at) // ids are freed in one round, their objects in the next at the latest
		if got := held(s); got != step.held {
			t.Errorf("at %d s: %d objects, want %d", step.at/second, got, step.held)
		}
	}
	if st := s.Stats(); st.Lapsed != 1000 || st.Expired[KindLimit] != 2000 || st.Expired[KindCounter] != 1000 {
		t.Errorf("%+v", st)
	}
	// What was freed is used again.
	for i := range 1000 {
		must(s.Check(200*second, Ref{Key: fmt.Sprintf("k%d", i), Name: "limit"}, noID, perSecond(1)))
	}
	if got := s.Stats().Bytes; got > bytes {
		t.Errorf("%d bytes, %d before", got, bytes)
	}
}

func must[A any](a A, err error) A {
	if err != nil {
		panic(err)
	}
	return a
}

func TestRoom(t *testing.T) {
	t.Run("objects", func(t *testing.T) {
		s := newStore(t, func(c *Config) { c.MaxObjects = 3 })
		for i := range 3 {
			must(s.Add(0, Ref{Key: fmt.Sprint(i), Name: "n"}, noID, counter.AddOp{Delta: 1}))
		}
		if _, err := s.Add(0, Ref{Key: "3", Name: "n"}, noID, counter.AddOp{Delta: 1}); reason(err) != failure.StoreFull {
			t.Errorf("a fourth object: %v", err)
		}
		if _, _, err := s.Acquire(0, Ref{Key: "3", Name: "l"}, noID, AcquireLock{Holder: "h", TTL: second}); reason(err) != failure.StoreFull {
			t.Errorf("a fourth object: %v", err)
		}
		if a := must(s.Add(0, Ref{Key: "1", Name: "n"}, noID, counter.AddOp{Delta: 1})); a.Value != 2 {
			t.Errorf("an old one: %+v", a)
		}
		if a := must(s.Get(0, Ref{Key: "3", Name: "n"})); a.Version != 0 {
			t.Errorf("the refused one: %+v", a)
		}
	})
	t.Run("memory", func(t *testing.T) {
		s := newStore(t, func(c *Config) { c.MaxBytes = 1 << 20 })
		var err error
		n := 0
		for ; err == nil && n < 100_000; n++ {
			_, err = s.Add(0, Ref{Key: fmt.Sprint(n), Name: "n"}, noID, counter.AddOp{Delta: 1})
		}
		if reason(err) != failure.StoreFull {
			t.Fatalf("after %d counters: %v", n, err)
		}
		if b := s.Stats().Bytes; b > 1<<20+1<<18 {
			t.Errorf("%d bytes", b)
		}
		if a := must(s.Add(0, Ref{Key: "0", Name: "n"}, noID, counter.AddOp{Delta: 1})); a.Value != 2 {
			t.Errorf("an old one: %+v", a)
		}
		if a := must(s.Add(0, Ref{Key: "0", Name: "n"}, id(1), counter.AddOp{Delta: 1})); a.Value != 3 { // see TestReserve
			t.Errorf("a request id: %+v", a)
		}
	})
	t.Run("memory that was freed", func(t *testing.T) {
		s := newStore(t, func(c *Config) { c.MaxBytes = 1 << 20 })
		fill := func(now int64) (n int) {
			for ; n < 100_000; n++ {
				if _, err := s.Add(now, Ref{Key: fmt.Sprint(now, n), Name: "n"}, noID, counter.AddOp{Delta: 1, IdleTTL: second}); err != nil {
					return n
				}
			}
			return n
		}
		first := fill(0)
		sweepAll(s, second)
		if held(s) != 0 {
			t.Fatalf("%d objects are left", held(s))
		}
		if again := fill(second); again < first*3/4 {
			t.Errorf("%d objects found room at first, %d when they were gone", first, again)
		}
		if b := s.Stats().Bytes; b > 1<<20+1<<18 {
			t.Errorf("%d bytes", b)
		}
	})
}

// Adds from many goroutines are all counted, once.
func TestConcurrentAdds(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 16 })
	const workers, each, keys = 8, 2000, 13
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				must(s.Add(int64(i), Ref{Key: fmt.Sprint(i % keys), Name: "n"}, noID, counter.AddOp{Delta: 1}))
				if i%100 == w {
					s.Sweep(int64(i))
				}
			}
		})
	}
	wg.Wait()
	var sum int64
	for k := range keys {
		sum += must(s.Get(each, Ref{Key: fmt.Sprint(k), Name: "n"})).Value
	}
	if sum != workers*each {
		t.Errorf("%d counted, want %d", sum, workers*each)
	}
}

func TestRuleDecides(t *testing.T) {
	rule := &testRule{epoch: 7}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	ref := Ref{Key: "k", Name: "n"}
	a := must(s.Add(0, ref, noID, counter.AddOp{Delta: 1}))
	if a.Permit.Epoch != 7 {
		t.Errorf("epoch %d", a.Permit.Epoch)
	}
	rule.admit = &failure.Error{Reason: failure.Unavailable}
	if _, err := s.Add(0, ref, noID, counter.AddOp{Delta: 1}); reason(err) != failure.Unavailable {
		t.Errorf("not let in: %v", err)
	}
	rule.admit = nil
	if a := must(s.Get(0, ref)); a.Value != 1 {
		t.Errorf("what was not let in acted: %+v", a)
	}
	rule.confirm = &failure.Error{Reason: failure.OutcomeUnknown}
	if err := s.Confirm(a.Permit, 0); reason(err) != failure.OutcomeUnknown {
		t.Errorf("not confirmed: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"rule":        func(c *Config) { c.Rule = nil },
		"shards":      func(c *Config) { c.Shards = 3 },
		"many shards": func(c *Config) { c.Shards = 8192 },
		"objects":     func(c *Config) { c.MaxObjects = -1 },
		"memory":      func(c *Config) { c.MaxBytes = 1 },
		"waiters":     func(c *Config) { c.MaxWaiters = -1 },
		"queue":       func(c *Config) { c.MaxWaitersPerLock = -1 },
		"long queue":  func(c *Config) { c.MaxWaitersPerLock = MaxQueue + 1 },
		"ttl":         func(c *Config) { c.MaxLockTTL = math.MaxInt64 },
		"window":      func(c *Config) { c.RequestIDs.Window = 1 },
		"ids":         func(c *Config) { c.RequestIDs.IDsPerClient = -1 },
	} {
		cfg := Config{Rule: &testRule{}}
		change(&cfg)
		if _, err := New(cfg, 0); reason(err) != failure.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
