package once

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

func TestValidate(t *testing.T) {
	long := bytes.Repeat([]byte("x"), MaxResult+1)
	for name, tc := range map[string]struct {
		err   error
		field string
	}{
		"good":             {(&Begin{Print: long[:MaxPrint], Holder: long[:MaxHolder], TTL: MinTTL}).Validate(), ""},
		"long fingerprint": {(&Begin{Print: long[:MaxPrint+1], TTL: MinTTL}).Validate(), "fingerprint"},
		"long holder":      {(&Begin{Holder: long[:MaxHolder+1], TTL: MinTTL}).Validate(), "holder"},
		"holder of bytes":  {(&Begin{Holder: []byte("\xff"), TTL: MinTTL}).Validate(), "holder"},
		"short TTL":        {(&Begin{TTL: MinTTL - 1}).Validate(), "ttl_ns"},
		"long TTL":         {(&Begin{TTL: MaxTTL + 1}).Validate(), "ttl_ns"},
		"longest":          {ValidateResult(long[:MaxResult], MaxKeep), ""},
		"too long":         {ValidateResult(long, MinKeep), "result"},
		"short retention":  {ValidateResult(nil, MinKeep-1), "keep_ns"},
		"long retention":   {ValidateResult(nil, MaxKeep+1), "keep_ns"},
	} {
		var e *failure.Error
		if tc.field == "" && tc.err != nil || tc.field != "" && (!errors.As(tc.err, &e) || e.Field != tc.field || e.Reason != failure.Invalid) {
			t.Errorf("%s: %v", name, tc.err)
		}
	}
}

// reference is what the machine promises, said another way: all turns that began, of which one at
// most is in force, and the result.
type reference struct {
	current    uint64 // in force; 0 = none
	print      string // the key stands for it; only if used
	used       bool
	lease, end int64 // of the turn; when all is forgotten
	result     string
	by         uint64 // token of the result; 0 = none
	attempt    uint32
}

func (m *reference) pass(now int64) {
	if m.used && now >= m.end {
		*m = reference{}
	}
}

func (m *reference) begin(print string, token uint64, ttl, now int64) Outcome {
	m.pass(now)
	switch {
	case m.used && m.print != print:
		return Other
	case m.by != 0:
		return Done
	case m.current != 0 && now < m.lease:
		return Busy
	}
	*m = reference{current: token, print: print, used: true, lease: now + ttl, end: now + ttl + Linger, attempt: m.attempt + 1}
	return First
}

// The machine does what the reference does, whatever comes in whatever order: late calls of old
// tokens, claims of nobody, the ends of leases and retentions to the nanosecond.
func TestReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s State
		var m reference
		now, last := int64(0), uint64(0)
		step := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Just(int64(MinKeep)), rapid.Just(int64(MinTTL)), rapid.Just(int64(MinTTL)-1), rapid.Just(int64(Linger)), rapid.Just(int64(Linger)-1))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += step.Draw(t, "later")
			token := uint64(0)
			if last > 0 {
				token = rapid.Uint64Range(1, last+1).Draw(t, "token")
			}
			before := s
			switch rapid.IntRange(0, 5).Draw(t, "op") {
			case 0, 1:
				print := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "print")
				next, o := s.Begin(Begin{Print: []byte(print), TTL: MinTTL}, last+1, now)
				if want := m.begin(print, last+1, MinTTL, now); o != want {
					t.Fatalf("begin: %s, want %s\n%s", o, want, s.Describe(now))
				}
				if s = next; o == First {
					last++
				}
				if o == Done && string(s.Result) != m.result || o == First && s.Attempt != m.attempt {
					t.Fatalf("%s, want %+v", s.Describe(now), m)
				}
			case 2:
				m.pass(now)
				next, held := s.Renew(token, MinTTL, now)
				if s = next; held != (token != 0 && token == m.current) {
					t.Fatalf("renew %d: %v, want %+v", token, held, m)
				}
				if held {
					m.lease = max(m.lease, now+MinTTL)
					m.end = m.lease + Linger
				}
			case 3:
				m.pass(now)
				result := rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "result")
				next, c := s.Complete(token, []byte(result), MinKeep, now)
				want := NotInForce
				switch {
				case token != 0 && token == m.by:
					want = Repeated
				case token != 0 && token == m.current:
					want, m.by, m.current, m.result, m.end = Completed, token, 0, result, now+MinKeep
				}
				if s = next; c != want {
					t.Fatalf("complete %d: %d, want %d", token, c, want)
				}
			case 4:
				m.pass(now)
				next, ended := s.Abandon(token, now)
				if s = next; ended != (token != 0 && token == m.current) {
					t.Fatalf("abandon %d: %v, want %+v", token, ended, m)
				}
				if ended {
					m = reference{}
				}
			case 5:
				m.pass(now)
				even := rapid.Bool().Draw(t, "under way")
				next, _, forgotten := s.Forget(even, now)
				if s = next; forgotten != (m.used && (even || m.by != 0 || now >= m.lease)) {
					t.Fatalf("forget %v: %v, want %+v", even, forgotten, m)
				}
				if forgotten {
					m = reference{}
				}
			}
			if s.Token < before.Token {
				t.Fatalf("token %d after %d", s.Token, before.Token)
			}
			if s.Phase != Absent {
				same(t, s, now)
			}
		}
	})
}

// same sees to it that a state is what is read of what is written of it.
func same(t *rapid.T, s State, now int64) {
	if err := s.Valid(); err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
	w := wire.Writer{Now: now}
	s.AppendTo(&w)
	r, got := wire.Reader{B: w.B, Now: now}, State{}
	if got.ReadFrom(&r); !r.Ends() || !reflect.DeepEqual(got, s) {
		t.Fatalf("%+v is read as %+v", s, got)
	}
	for n := range w.B {
		r := wire.Reader{B: w.B[:n], Now: now}
		if got.ReadFrom(&r); r.Ends() {
			t.Fatalf("%d of %d bytes are read", n, len(w.B))
		}
	}
}

func TestTokenMustRise(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a turn began under the token of the one before")
		}
	}()
	s, _ := State{}.Begin(Begin{TTL: MinTTL}, 7, 0)
	s.Begin(Begin{TTL: MinTTL}, 7, MinTTL)
}

func TestBounds(t *testing.T) {
	s := State{Phase: Finished, Token: MaxToken, Attempt: maxAttempt, Print: bytes.Repeat([]byte("f"), MaxPrint), Result: make([]byte, MaxResult), Since: -1 << 62, Until: -1<<62 + MaxKeep}
	w := wire.Writer{Now: 1 << 62}
	if s.AppendTo(&w); len(w.B) > MaxState || s.Valid() != nil {
		t.Errorf("%d bytes, %v", len(w.B), s.Valid())
	}
	good := State{Phase: UnderWay, Token: 1, Attempt: 1, Until: 1}
	for name, edit := range map[string]func(*State){
		"nothing":           func(s *State) { *s = State{} },
		"a phase of later":  func(s *State) { s.Phase = 3 },
		"no token":          func(s *State) { s.Token = 0 },
		"a token beyond":    func(s *State) { s.Token = MaxToken + 1 },
		"no attempt":        func(s *State) { s.Attempt = 0 },
		"attempts beyond":   func(s *State) { s.Attempt = maxAttempt + 1 },
		"ends at once":      func(s *State) { s.Until = s.Since },
		"ends too late":     func(s *State) { s.Until = 1<<61 + 1 },
		"long fingerprint":  func(s *State) { s.Print = make([]byte, MaxPrint+1) },
		"long holder":       func(s *State) { s.Holder = make([]byte, MaxHolder+1) },
		"a holder of bytes": func(s *State) { s.Holder = []byte("\xff") },
		"a result too soon": func(s *State) { s.Result = []byte("r") },
		"a holder too late": func(s *State) { s.Phase, s.Holder = Finished, []byte("h") },
		"a long result":     func(s *State) { s.Phase, s.Result = Finished, make([]byte, MaxResult+1) },
	} {
		bad := good
		if edit(&bad); good.Valid() != nil || bad.Valid() == nil || !strings.HasPrefix(bad.Valid().Error(), "once: ") {
			t.Errorf("%s: %v, %v", name, good.Valid(), bad.Valid())
		}
	}
	if Outcome(9).String() != "unknown outcome" || First.String() != "first" {
		t.Error("names")
	}
}

// Records that were written stay readable.
func TestGolden(t *testing.T) {
	for want, s := range map[string]State{
		"\x01\x87\x80\x80\x08\x02\x0a\x1e\x02fp\x01h": {Phase: UnderWay, Token: 1<<24 | 7, Attempt: 2, Print: []byte("fp"), Holder: []byte("h"), Since: 90, Until: 120},
		"\x01\x07\x01\x0a\x1e\x00\x00":                {Phase: UnderWay, Token: 7, Attempt: 1, Since: 90, Until: 120},
		"\x02\x07\x01\x0a\x1e\x02fp\x02hi":            {Phase: Finished, Token: 7, Attempt: 1, Print: []byte("fp"), Result: []byte("hi"), Since: 90, Until: 120},
	} {
		w := wire.Writer{Now: 100}
		if s.AppendTo(&w); string(w.B) != want {
			t.Errorf("%+v is written as %q, not %q", s, w.B, want)
		}
	}
	r := wire.Reader{B: []byte("\x03\x07\x01\x0a\x1e\x00\x00"), Now: 100}
	if new(State).ReadFrom(&r); r.Ends() {
		t.Error("a phase of later is read")
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x02\x07\x01\x0a\x1e\x02fp\x02hi"))
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
