package owner

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/value"
)

var config = Ref{Key: "door", Name: "register"} // of the key of the lock in these tests

func puts(v string) SetRegister { return SetRegister{Set: value.Set{Value: []byte(v)}} }

func (op SetRegister) at(version uint64) SetRegister {
	op.Versioned, op.Version = true, version
	return op
}

func (op SetRegister) fenced(token uint64) SetRegister {
	op.Fence = token
	return op
}

func (op SetRegister) under(token uint64) SetRegister {
	op.Hold = Hold{Name: door.Name, Token: token}
	return op
}

// A write that names a lock of the key is refused from the moment at which the lock is over,
// though nobody has written since, nor taken the lock.
func TestWritesUnderALock(t *testing.T) {
	s := newStore(t, nil)
	first, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
	if a := must(s.SetRegister(second, config, noID, puts("1").under(first.Token))); !a.Applied {
		t.Fatalf("the holder: %+v", a)
	}
	if a := must(s.SetRegister(10*second-1, config, noID, puts("2").under(first.Token))); !a.Applied {
		t.Errorf("the holder, at the last moment: %+v", a)
	}
	late := must(s.SetRegister(10*second, config, noID, puts("late").under(first.Token)))
	if late.Applied || late.Refusal != value.HoldOver || string(late.Current.Value) != "2" || late.Version != late.Current.Version {
		t.Errorf("at the end of the lease: %+v", late)
	}
	if a := must(s.DeleteRegister(10*second, config, noID, DeleteRegister{Hold: Hold{door.Name, first.Token}})); a.Applied || a.Refusal != value.HoldOver {
		t.Errorf("a late delete: %+v", a)
	}
	if s.Stats().Lapsed != 1 {
		t.Error("what was shown to be over is not")
	}
	next, _ := acquire(t, s, 11*second, noID, asks("b", 10*second, 0))
	if a := must(s.SetRegister(12*second, config, noID, puts("3").under(next.Token))); !a.Applied || a.Version <= late.Version {
		t.Errorf("the next holder: %+v", a)
	}
	if r := must(s.Release(13*second, door, noID, next.Token)); !r.Released {
		t.Fatal(r)
	}
	for name, token := range map[string]uint64{"released": next.Token, "of before": first.Token, "that never was": next.Token + 9} {
		if a := must(s.SetRegister(13*second, config, noID, puts("late").under(token))); a.Applied {
			t.Errorf("a token %s: %+v", name, a)
		}
	}
	if _, err := s.SetRegister(0, config, noID, SetRegister{Set: puts("x").Set, Hold: Hold{Token: 1}}); err != nil {
		t.Error(err) // a name that no object has
	}
	must(s.Add(0, Ref{Key: config.Key, Name: "count"}, noID, counter.AddOp{Delta: 1}))
	for name, field := range map[string]string{"count": "hold.name", "\xff": "hold.name"} {
		_, err := s.SetRegister(0, config, noID, SetRegister{Set: puts("x").Set, Hold: Hold{Name: name, Token: 1}})
		if reason(err) != failure.Invalid || err.(*failure.Error).Field != field {
			t.Errorf("under %q: %v", name, err)
		}
	}
}

// A lock whose queue came from elsewhere, and that nobody has asked for here, is known all the
// same.
func TestWritesUnderALockThatMoved(t *testing.T) {
	s, standby := pair(t)
	held, _ := acquire(t, s, 0, noID, asks("a", 10*second, 0))
	_, _ = acquire(t, s, 0, id(1), asks("b", 10*second, 100*second))
	b := promote(standby)
	if a := must(b.SetRegister(second, config, noID, puts("1").under(held.Token))); !a.Applied {
		t.Errorf("the holder: %+v", a)
	}
	if a := must(b.SetRegister(11*second, config, noID, puts("1").under(held.Token))); a.Applied || a.Refusal != value.HoldOver {
		t.Errorf("later: %+v", a)
	}
}

func TestForeignTokens(t *testing.T) {
	s, standby := pair(t)
	for i, tc := range []struct {
		op   SetRegister
		why  value.Refusal
		then string
	}{
		{puts("1").fenced(7), value.None, "1"},
		{puts("late").fenced(6), value.OldFence, "1"},
		{puts("2").fenced(7), value.None, "2"},
		{puts("3").fenced(8), value.None, "3"},
	} {
		if a := must(s.SetRegister(0, config, noID, tc.op)); a.Refusal != tc.why || a.Applied != (tc.why == value.None) || string(a.Current.Value) != tc.then {
			t.Errorf("%d: %+v", i, a)
		}
	}
	deleted := must(s.DeleteRegister(0, config, noID, DeleteRegister{}))
	if !deleted.Applied || deleted.Current.Exists || deleted.Current.Fence != 8 {
		t.Errorf("%+v", deleted)
	}
	sweepAll(s, 100*second)
	for name, s := range map[string]*Store{"the owner": s, "the next one": promote(standby)} {
		if a := must(s.GetRegister(0, config)); a.Exists || a.Version == 0 || a.Fence != 8 {
			t.Errorf("%s: %+v", name, a)
		}
		if a := must(s.SetRegister(0, config, noID, puts("late").fenced(7))); a.Applied || a.Refusal != value.OldFence {
			t.Errorf("%s takes an old token of a register that was deleted: %+v", name, a)
		}
	}
	if a := must(s.DeleteRegister(0, config, noID, DeleteRegister{Delete: value.Delete{Forget: true}})); a.Applied || held(s) != 0 {
		t.Errorf("%+v, %d objects", a, held(s))
	}
}

func TestRegisterReplays(t *testing.T) {
	s := newStore(t, nil)
	set := must(s.SetRegister(0, config, id(1), puts("1").at(0)))
	taken := must(s.SetRegister(0, config, id(2), puts("2").at(0)))
	old := must(s.SetRegister(0, config, id(3), puts("3").fenced(5)))
	fence := must(s.SetRegister(0, config, id(4), puts("4").fenced(4)))
	gone := must(s.DeleteRegister(0, config, id(5), DeleteRegister{}))
	for name, again := range map[string]struct{ first, now RegisterChange }{
		"set":         {set, must(s.SetRegister(second, config, retry(1, second), puts("1").at(0)))},
		"taken":       {taken, must(s.SetRegister(second, config, retry(2, second), puts("2").at(0)))},
		"fenced":      {old, must(s.SetRegister(second, config, retry(3, second), puts("3").fenced(5)))},
		"an old one":  {fence, must(s.SetRegister(second, config, retry(4, second), puts("4").fenced(4)))},
		"the removal": {gone, must(s.DeleteRegister(second, config, retry(5, second), DeleteRegister{}))},
	} {
		if a := again.now; !a.Replayed || a.Age != second || a.Result != again.first.Result || a.Current.Exists {
			t.Errorf("%s: %+v after %+v", name, a, again.first)
		}
	}
	if _, err := s.SetRegister(second, config, retry(1, second), puts("other").at(0)); reason(err) != failure.RequestIDReused {
		t.Errorf("another value under the id: %v", err)
	}
}

// Versions of a register rise over its deletions, over owners that die or drain, and over the
// loss of all that there was: no version is of two lives.
func TestRegisterVersionsNeverRepeat(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s, standby := pair(t)
		last, now, epoch := map[string]uint64{}, int64(0), uint64(100)
		own := func(next *Store) {
			epoch++
			s = next
			s.cfg.Rule = &testRule{epoch: epoch, since: math.MinInt64}
			standby = joiner(t, s)
			s.cfg.Sink = &copyTo{store: standby}
		}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			now += rapid.Int64Range(0, second).Draw(r, "time")
			ref := Ref{Key: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "key"), Name: "n"}
			rise := func(a RegisterChange) {
				if a.Applied && a.Version <= last[ref.Key] || a.Version>>SeqBits > epoch {
					r.Fatalf("version %x of %s comes after %x in epoch %d", a.Version, ref.Key, last[ref.Key], epoch)
				}
				last[ref.Key] = max(last[ref.Key], a.Version)
			}
			switch rapid.IntRange(0, 7).Draw(r, "what") {
			case 0, 1, 2:
				rise(must(s.SetRegister(now, ref, noID, puts("v").fenced(rapid.Uint64Range(0, 1).Draw(r, "fence")))))
			case 3:
				rise(must(s.DeleteRegister(now, ref, noID, DeleteRegister{})))
			case 4:
				sweepAll(s, now)
			case 5:
				own(standby)
			case 6:
				own(joiner(t, s))
			default:
				own(newStore(t, nil))
			}
		}
	})
}

// Whatever is done to registers, the copy has them as they are, and both have as many bytes as
// they count.
func TestRegistersAgainstCore(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s, standby := pair(t)
		states := map[Ref]value.State{}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			ref := Ref{Key: fmt.Sprint("k", rapid.IntRange(0, 3).Draw(r, "key")), Name: "n"}
			was, version := states[ref], s.shard(Hash(ref.Key)).lastToken+1
			if version < 100<<SeqBits {
				version = 100<<SeqBits | 1
			}
			var c value.Conditions
			if c.Fence = rapid.Uint64Range(0, 3).Draw(r, "fence"); rapid.Bool().Draw(r, "versioned") {
				c.Versioned, c.Version = true, rapid.SampledFrom([]uint64{1, was.Version, was.Version}).Draw(r, "version")
			}
			var a RegisterChange
			var want value.State
			var res value.Result
			switch rapid.IntRange(0, 3).Draw(r, "what") {
			case 0:
				op := value.Delete{Conditions: c, Forget: rapid.Bool().Draw(r, "forget")}
				if op.Version == 0 {
					op.Versioned = false
				}
				want, res, _ = was.Delete(op, version, 0)
				a = must(s.DeleteRegister(0, ref, noID, DeleteRegister{Delete: op}))
			case 1:
				sweepAll(s, 0)
				continue
			default:
				op := value.Set{Value: bytes.Repeat([]byte("v"), rapid.SampledFrom([]int{0, 1, 100, value.MaxValue}).Draw(r, "size")), Conditions: c}
				want, res, _ = was.Set(op, version, 0)
				a = must(s.SetRegister(0, ref, noID, SetRegister{Set: op}))
			}
			states[ref] = want
			if a.Result != res {
				r.Fatalf("%+v, want %+v", a.Result, res)
			}
		}
		for ref, want := range states {
			for name, s := range map[string]*Store{"owner": s, "copy": promote(standby)} {
				got := must(s.GetRegister(0, ref)).State
				if !bytes.Equal(got.Value, want.Value) || got.Exists != want.Exists || got.Version != want.Version || got.Fence != want.Fence {
					r.Fatalf("%s: %+v, want %+v", name, got, want)
				}
			}
		}
		for name, s := range map[string]*Store{"owner": s, "copy": standby} {
			for ref := range states {
				must(s.DeleteRegister(0, ref, noID, DeleteRegister{Delete: value.Delete{Forget: true}}))
			}
			for i := range s.shards {
				if sh := &s.shards[i]; sh.text != 0 || sh.values.Len() != 0 {
					r.Fatalf("%s: %d bytes and %d values are left", name, sh.text, sh.values.Len())
				}
			}
		}
	})
}

// After a loss, whether a name is free is unknown until the grace is over; what is written is
// there.
func TestRegisterInGrace(t *testing.T) {
	s, rule := lost(t, nil)
	now := cameAt + second
	if _, err := s.SetRegister(now, config, id(1), puts("mine").at(0)); reason(err) != failure.Recovering {
		t.Errorf("a free name: %v", err)
	}
	if _, err := s.SetRegister(now, config, id(2), puts("mine").under(granted(3, 1))); reason(err) != failure.Recovering {
		t.Errorf("under a lock that may be held: %v", err)
	}
	if a := must(s.SetRegister(now, config, id(3), puts("mine").under(lostIn<<SeqBits|5))); a.Applied {
		t.Errorf("under a lock that never was: %+v", a)
	}
	if a := must(s.GetRegister(now, config)); a.Exists || a.Permit.LostEpoch() != lostIn {
		t.Errorf("%+v", a)
	}
	must(s.Reclaim(now, door, granted(3, 5), 10*second, claim("a", 8*second)))
	if _, err := s.SetRegister(now, config, id(4), puts("later").under(granted(3, 9))); reason(err) != failure.Recovering {
		t.Errorf("under a higher token that may be the true one: %v", err)
	}
	if a := must(s.SetRegister(now, config, id(5), puts("old").under(granted(3, 4)))); a.Applied {
		t.Errorf("under a lower token than one that was shown: %+v", a)
	}
	if a := must(s.SetRegister(now, config, id(6), puts("1").under(granted(3, 5)))); !a.Applied {
		t.Errorf("under a lock that was reclaimed: %+v", a)
	}
	if a := must(s.SetRegister(now, config, id(7), puts("2").at(0))); a.Applied || a.Refusal != value.OtherVersion {
		t.Errorf("a name that is taken: %+v", a)
	}
	rule.lost, rule.lostAt = 0, 0
	if a := must(s.SetRegister(now, Ref{Key: "other", Name: "n"}, id(8), puts("1").at(0))); !a.Applied {
		t.Errorf("when it is over: %+v", a)
	}
}

// Values count as memory: what would go beyond it is refused, and changes nothing.
func TestValuesAreCounted(t *testing.T) {
	s := newStore(t, func(c *Config) { c.MaxBytes = 4 << 20 })
	big := SetRegister{Set: value.Set{Value: make([]byte, value.MaxValue)}}
	n := 0
	for ; ; n++ {
		if _, err := s.SetRegister(0, Ref{Key: fmt.Sprint(n), Name: "n"}, noID, big); err != nil {
			if reason(err) != failure.StoreFull {
				t.Fatal(err)
			}
			break
		}
	}
	if st := s.Stats(); n < 40 || st.Bytes > 4<<20 || st.Bytes < int64(n)*value.MaxValue {
		t.Errorf("%d values in %d bytes", n, st.Bytes)
	}
	small := Ref{Key: "0", Name: "n"}
	before := must(s.SetRegister(0, small, noID, puts("small")))
	must(s.SetRegister(0, small, noID, big))
	must(s.SetRegister(0, small, noID, puts("small")))
	for ; ; n++ {
		if _, err := s.SetRegister(0, Ref{Key: fmt.Sprint(n), Name: "n"}, noID, SetRegister{Set: value.Set{Value: make([]byte, 1000)}}); err != nil {
			break
		}
	}
	if _, err := s.SetRegister(0, small, noID, big); reason(err) != failure.StoreFull {
		t.Errorf("a longer value in a full store: %v", err)
	}
	if a := must(s.GetRegister(0, small)); string(a.Value) != "small" || a.Version <= before.Version {
		t.Errorf("%+v", a.State)
	}
	if _, err := s.SetRegister(0, small, noID, SetRegister{Set: value.Set{Value: make([]byte, value.MaxValue+1)}}); reason(err) != failure.Invalid {
		t.Error(err)
	}
}

// Of one of several processes, values of its own take no more than its share: copies of others'
// need the rest.
func TestValuesOfItsOwn(t *testing.T) {
	s, r := sharedStore(t, "memory")
	var refs []Ref
	for i := 0; len(refs) < 100; i++ {
		if ref := (Ref{Key: fmt.Sprint(i), Name: "n"}); r.own(Hash(ref.Key)) {
			must(s.SetRegister(0, ref, noID, puts("small")))
			refs = append(refs, ref)
		}
	}
	for _, ref := range refs { // no object is new
		if _, err := s.SetRegister(0, ref, noID, SetRegister{Set: value.Set{Value: make([]byte, value.MaxValue)}}); err != nil {
			if reason(err) != failure.StoreFull {
				t.Fatal(err)
			}
			break
		}
	}
	if b := s.Stats().Bytes; b > 2<<20 || b < 1<<20 {
		t.Errorf("%d bytes of 4 MiB", b)
	}
}

// A record of long values does not hold a shard for long.
func TestExportOfLongValues(t *testing.T) {
	s := newStore(t, func(c *Config) { c.Shards = 1 })
	for i := range 20 {
		must(s.SetRegister(0, Ref{Key: fmt.Sprint(i), Name: "n"}, noID, SetRegister{Set: value.Set{Value: make([]byte, value.MaxValue)}}))
	}
	step, most := 0, 0
	s.Export(func() int64 { return 0 }, always, func(r *Record, _ int64) bool {
		step += len(r.Register().Value)
		return true
	}, func() bool { most, step = max(most, step), 0; return true })
	if most == 0 || most > 3*value.MaxValue {
		t.Errorf("%d bytes under one hold of the lock", most)
	}
}

// What is read is not changed by what comes later, and what was given may be used again.
func TestValuesAreNotShared(t *testing.T) {
	s := newStore(t, nil)
	op := puts("first")
	must(s.SetRegister(0, config, noID, op))
	copy(op.Value, "wrong")
	a := must(s.GetRegister(0, config))
	must(s.SetRegister(0, config, noID, puts("other")))
	if string(a.Value) != "first" {
		t.Errorf("%q", a.Value)
	}
}

func TestRegisterRecordsThatCannotBe(t *testing.T) {
	good := value.State{Exists: true, Value: []byte("v"), Version: 7, At: 5}
	for name, tc := range map[string]struct {
		change func(r *Record)
		ok     bool
	}{
		"as it is":       {func(*Record) {}, true},
		"cut":            {func(r *Record) { r.State.bytes = r.State.bytes[:len(r.State.bytes)-1] }, false},
		"more":           {func(r *Record) { r.State.bytes = append(r.State.bytes, 0) }, false},
		"no version":     {func(r *Record) { r.SetRegister(value.State{Exists: true}) }, false},
		"of later":       {func(r *Record) { r.SetRegister(good); r.State.now = 1 << 62 }, false},
		"a member":       {func(r *Record) { r.Members = []Member{{}} }, false},
		"partial":        {func(r *Record) { r.Partial = true }, false},
		"what is absent": {func(r *Record) { r.State = State{} }, true},
	} {
		r := (&Record{Hash: Hash("k"), Key: []byte("k"), Name: []byte("n"), At: 5}).SetRegister(good)
		tc.change(r)
		s := newStore(t, nil)
		if err := s.Install(10, r, always); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRegistersNeedTheirLevel(t *testing.T) {
	s, rule := keyStore(t, nil)
	rule.level = RegisterLevel - 1
	_, get := s.GetRegister(0, config)
	_, set := s.SetRegister(0, config, noID, puts("v"))
	_, del := s.DeleteRegister(0, config, noID, DeleteRegister{})
	for name, err := range map[string]error{"get": get, "set": set, "delete": del} {
		if reason(err) != failure.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A change allocates its value, and a read nothing.
func TestRegistersAllocateTheirValue(t *testing.T) {
	s := newStore(t, nil)
	op := puts("v")
	if n := testing.AllocsPerRun(100, func() { must(s.SetRegister(0, config, noID, op)) }); n != 1 {
		t.Errorf("%v allocations of a change", n)
	}
	if n := testing.AllocsPerRun(100, func() { must(s.GetRegister(0, config)) }); n != 0 {
		t.Errorf("%v allocations of a read", n)
	}
}
