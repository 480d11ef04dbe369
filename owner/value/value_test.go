package value

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/wire"
)

func put(v string) Set { return Set{Value: []byte(v)} }

func (op Set) at(version uint64) Set {
	op.Versioned, op.Version = true, version
	return op
}

func (op Set) fenced(token uint64) Set {
	op.Fence = token
	return op
}

func (op Set) over() Set {
	op.Over = true
	return op
}

func there(v string, version, fence uint64) State {
	return State{Exists: true, Value: []byte(v), Version: version, Fence: fence}
}

func TestSet(t *testing.T) {
	for name, tc := range map[string]struct {
		was  State
		op   Set
		want State
		why  Refusal
	}{
		"made":                      {State{}, put("a"), there("a", 9, 0), None},
		"replaced":                  {there("a", 5, 0), put("b"), there("b", 9, 0), None},
		"the version that it has":   {there("a", 5, 0), put("b").at(5), there("b", 9, 0), None},
		"another version":           {there("a", 5, 0), put("b").at(4), there("a", 5, 0), OtherVersion},
		"a free name":               {State{}, put("b").at(0), there("b", 9, 0), None},
		"a name that is taken":      {there("a", 5, 0), put("b").at(0), there("a", 5, 0), OtherVersion},
		"of one that is not there":  {State{}, put("b").at(5), State{}, OtherVersion},
		"the first token":           {there("a", 5, 0), put("b").fenced(7), there("b", 9, 7), None},
		"the same token":            {there("a", 5, 7), put("b").fenced(7), there("b", 9, 7), None},
		"an older token":            {there("a", 5, 7), put("b").fenced(6), there("a", 5, 7), OldFence},
		"no token":                  {there("a", 5, 7), put("b"), there("b", 9, 7), None},
		"a refusal keeps the fence": {there("a", 5, 7), put("b").fenced(8).at(4), there("a", 5, 7), OtherVersion},
		"deleted, an older token":   {State{Version: 5, Fence: 7}, put("b").fenced(6), State{Version: 5, Fence: 7}, OldFence},
		"deleted, a free name":      {State{Version: 5, Fence: 7}, put("b").fenced(7).at(0), there("b", 9, 7), None},
		"deleted, its version":      {State{Version: 5, Fence: 7}, put("b").at(5), State{Version: 5, Fence: 7}, OtherVersion},
		"a hold that is over":       {there("a", 5, 0), put("b").over(), there("a", 5, 0), HoldOver},
		"over before all else":      {there("a", 5, 7), put("b").over().fenced(6).at(4), there("a", 5, 7), HoldOver},
	} {
		next, res, changed := tc.was.Set(tc.op, 9, 0)
		version := tc.was.current()
		if tc.why == None {
			version = 9
		}
		if !reflect.DeepEqual(next, tc.want) || changed != (tc.why == None) || res != (Result{tc.why == None, tc.why, version}) {
			t.Errorf("%s: %+v, %+v, changed %v", name, next, res, changed)
		}
	}
}

func TestDelete(t *testing.T) {
	fenced := func(token uint64) Delete { return Delete{Conditions: Conditions{Fence: token}} }
	for name, tc := range map[string]struct {
		was     State
		op      Delete
		want    State
		applied bool
		why     Refusal
	}{
		"nothing is left":         {there("a", 5, 0), Delete{}, State{}, true, None},
		"the fence stays":         {there("a", 5, 7), Delete{}, State{Version: 9, Fence: 7}, true, None},
		"its token stays":         {there("a", 5, 0), fenced(7), State{Version: 9, Fence: 7}, true, None},
		"an older token":          {there("a", 5, 7), fenced(6), there("a", 5, 7), false, OldFence},
		"forgotten":               {there("a", 5, 7), Delete{Forget: true}, State{}, true, None},
		"forgotten later":         {State{Version: 5, Fence: 7}, Delete{Forget: true}, State{}, false, None},
		"what is not there":       {State{}, Delete{}, State{}, false, None},
		"… under a token":         {State{}, fenced(7), State{Version: 9, Fence: 7}, false, None},
		"… under a greater token": {State{Version: 5, Fence: 7}, fenced(8), State{Version: 9, Fence: 8}, false, None},
		"… under the same":        {State{Version: 5, Fence: 7}, fenced(7), State{Version: 5, Fence: 7}, false, None},
		"another version":         {there("a", 5, 0), Delete{Conditions: Conditions{Versioned: true, Version: 4}}, there("a", 5, 0), false, OtherVersion},
		"a hold that is over":     {there("a", 5, 0), Delete{Conditions: Conditions{Over: true}}, there("a", 5, 0), false, HoldOver},
	} {
		next, res, changed := tc.was.Delete(tc.op, 9, 0)
		version := uint64(0)
		switch {
		case tc.why != None:
			version = tc.was.current()
		case tc.applied:
			version = 9
		}
		if !reflect.DeepEqual(next, tc.want) || changed == reflect.DeepEqual(next, tc.was) || res != (Result{tc.applied, tc.why, version}) {
			t.Errorf("%s: %+v, %+v, changed %v", name, next, res, changed)
		}
	}
}

// What other stores of values get wrong, by name.
func TestKnownFailures(t *testing.T) {
	t.Run("a fence that a deletion forgets", func(t *testing.T) {
		s, _, _ := there("a", 1, 0).Set(put("b").fenced(7), 2, 0)
		s, _, _ = s.Delete(Delete{}, 3, 0)
		if _, res, _ := s.Set(put("late").fenced(6), 4, 0); res.Applied {
			t.Error("a late writer has won, for the register was deleted meanwhile")
		}
	})
	t.Run("a compare-and-set that an equal version of another life lets in", func(t *testing.T) {
		s, first, _ := State{}.Set(put("a"), 1, 0)
		s, _, _ = s.Delete(Delete{}, 2, 0)
		s, again, _ := s.Set(put("b"), 3, 0)
		if _, res, _ := s.Set(put("c").at(first.Version), 4, 0); res.Applied || again.Version == first.Version {
			t.Error("the version of the register that was deleted came again")
		}
	})
	t.Run("two writers with one token are both the newest", func(t *testing.T) {
		s, _, _ := State{}.Set(put("a").fenced(7), 1, 0)
		if _, res, _ := s.Set(put("b").fenced(7), 2, 0); !res.Applied {
			t.Error("the holder's second write is refused: < alone does not do")
		}
	})
}

func TestValidate(t *testing.T) {
	long := Set{Value: make([]byte, MaxValue+1)}
	for field, err := range map[string]error{
		"value":   long.Validate(),
		"fence":   (&Set{Conditions: Conditions{Fence: MaxToken + 1}}).Validate(),
		"version": (&Delete{Conditions: Conditions{Versioned: true}}).Validate(),
	} {
		var bad *failure.Error
		if !errors.As(err, &bad) || bad.Reason != failure.Invalid || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	long.Value = long.Value[1:]
	if err := long.Validate(); err != nil {
		t.Error(err)
	}
}

func TestWords(t *testing.T) {
	if HoldOver.String() != "hold over" || Refusal(9).String() != "unknown refusal" {
		t.Error(HoldOver, Refusal(9))
	}
}

func TestVersionsThatFallPanic(t *testing.T) {
	for _, version := range []uint64{4, 5, MaxToken + 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("version %d after 5 was let in", version)
				}
			}()
			there("a", 5, 0).Set(put("b"), version, 0)
		}()
	}
}

// event is a change that was applied: all that the model keeps.
type event struct {
	set     bool
	value   string
	version uint64
	fence   uint64
	forget  bool
}

// model is a register as a list of what was done to it.
type model []event

// read returns the value and its version, by the last event.
func (m model) read() (v string, version uint64) {
	if len(m) == 0 || !m[len(m)-1].set {
		return "", 0
	}
	return m[len(m)-1].value, m[len(m)-1].version
}

// fence returns the greatest token since the last one that was to be forgotten.
func (m model) fence() (most uint64) {
	for _, e := range m {
		if most = max(most, e.fence); e.forget {
			most = 0
		}
	}
	return most
}

// refuses is the order of conditions, as the package doc has it.
func (m model) refuses(c Conditions) Refusal {
	_, version := m.read()
	if c.Over {
		return HoldOver
	}
	if c.Fence > 0 && m.fence() > c.Fence {
		return OldFence
	}
	if c.Versioned && version != c.Version {
		return OtherVersion
	}
	return None
}

func conditions(t *rapid.T, m model) (c Conditions) {
	if rapid.Bool().Draw(t, "versioned") {
		_, now := m.read()
		c.Versioned, c.Version = true, rapid.SampledFrom([]uint64{0, now, now, now + 1, 1}).Draw(t, "version")
	}
	c.Fence = rapid.Uint64Range(0, 4).Draw(t, "fence")
	c.Over = rapid.IntRange(0, 9).Draw(t, "over") == 0
	return c
}

// Whatever is done: the register is what the list of all that was applied says.
func TestLikeTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s State
		var m model
		version, last := uint64(0), uint64(0)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			version += rapid.Uint64Range(1, 3).Draw(t, "next version")
			now := rapid.Int64Range(0, 100).Draw(t, "now")
			before, c := s, conditions(t, m)
			why := m.refuses(c)
			var res Result
			var changed bool
			if rapid.IntRange(0, 2).Draw(t, "deletes") == 0 {
				op := Delete{Conditions: c, Forget: rapid.IntRange(0, 3).Draw(t, "forgets") == 0}
				_, had := m.read()
				if why == None && (had != 0 || c.Fence > 0 || op.Forget) {
					m = append(m, event{version: version, fence: c.Fence, forget: op.Forget})
				}
				if s, res, changed = s.Delete(op, version, now); res.Applied != (why == None && had != 0) {
					t.Fatalf("%+v of version %d: %+v", op, had, res)
				}
			} else {
				v := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "value")
				if why == None {
					m = append(m, event{set: true, value: v, version: version, fence: c.Fence})
				}
				if s, res, changed = s.Set(Set{[]byte(v), c}, version, now); res.Applied != (why == None) {
					t.Fatalf("%+v: %+v", c, res)
				}
			}
			v, is := m.read()
			if res.Refusal != why || string(s.Value) != v || s.current() != is || s.Fence != m.fence() || s.Exists != (is != 0) {
				t.Fatalf("%+v after %+v: %+v, want %q at %d, fence %d, refusal %s", s, c, res, v, is, m.fence(), why)
			}
			if changed == reflect.DeepEqual(s, before) || !changed && !reflect.DeepEqual(s, before) {
				t.Fatalf("changed %v from %+v to %+v", changed, before, s)
			}
			if is != 0 && is < last {
				t.Fatalf("version %d after %d", is, last)
			}
			if last = max(last, is); !s.Absent() {
				if err := s.Valid(); err != nil {
					t.Fatalf("%+v: %v", s, err)
				}
			}
			same(t, s)
		}
	})
}

// same sees to it that a state is what is read of what is written of it.
func same(t *rapid.T, s State) {
	w := wire.Writer{Now: 200}
	s.AppendTo(&w)
	r, got := wire.Reader{B: w.B, Now: 200}, State{}
	if got.ReadFrom(&r); !r.Ends() || !reflect.DeepEqual(got, s) {
		t.Fatalf("%+v is read as %+v", s, got)
	}
	for n := range w.B {
		if r := (wire.Reader{B: w.B[:n], Now: 200}); true {
			if got.ReadFrom(&r); r.Ends() {
				t.Fatalf("%d of %d bytes are read", n, len(w.B))
			}
		}
	}
}

func TestBounds(t *testing.T) {
	s := State{Exists: true, Value: bytes.Repeat([]byte("v"), MaxValue), Version: MaxToken, Fence: MaxToken, At: -1 << 62}
	w := wire.Writer{Now: 1 << 62}
	if s.AppendTo(&w); len(w.B) > MaxState || s.Valid() != nil {
		t.Errorf("%d bytes, %v", len(w.B), s.Valid())
	}
	for name, bad := range map[string]State{
		"no version":       {Exists: true},
		"nothing":          {Version: 1},
		"a value of none":  {Version: 1, Fence: 1, Value: []byte("a")},
		"too long":         {Exists: true, Version: 1, Value: make([]byte, MaxValue+1)},
		"a version beyond": {Exists: true, Version: MaxToken + 1},
		"a fence beyond":   {Exists: true, Version: 1, Fence: MaxToken + 1},
	} {
		if err := bad.Valid(); err == nil || !strings.HasPrefix(err.Error(), "value: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Records that were written stay readable.
func TestGolden(t *testing.T) {
	for want, s := range map[string]State{
		"\x01\x0a\x87\x80\x80\x08\x05\x02hi": {Exists: true, Value: []byte("hi"), Version: 1<<24 | 7, Fence: 5, At: 90},
		"\x01\x0a\x07\x00\x00":               {Exists: true, Version: 7, At: 90},
		"\x00\x0a\x07\x05":                   {Version: 7, Fence: 5, At: 90},
	} {
		w := wire.Writer{Now: 100}
		if s.AppendTo(&w); string(w.B) != want {
			t.Errorf("%+v is written as %q, not %q", s, w.B, want)
		}
	}
	if r := (wire.Reader{B: []byte("\x02\x0a\x07\x05"), Now: 100}); true {
		if new(State).ReadFrom(&r); r.Ends() {
			t.Error("a flag of later is read")
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x01\x0a\x87\x80\x80\x08\x05\x02hi"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s State
		r := wire.Reader{B: b, Now: 100}
		if s.ReadFrom(&r); !r.Ends() || s.Valid() != nil {
			return
		}
		w := wire.Writer{Now: 100}
		s.AppendTo(&w)
		again, from := State{}, wire.Reader{B: w.B, Now: 100}
		if again.ReadFrom(&from); !from.Ends() || !reflect.DeepEqual(s, again) {
			t.Errorf("%+v is read as %+v", s, again)
		}
	})
}
