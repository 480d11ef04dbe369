package httpapi

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"pgregory.net/rapid"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// messages returns all that the API asks and answers, and the shapes of them.
func messages(t testing.TB) (all []*shape) {
	h := newHouse(t)
	seen := map[*shape]bool{}
	for _, path := range slices.Sorted(keysOf(h.web.routes)) {
		reach(h.web.routes[path].asked, seen)
		reach(h.web.routes[path].answered, seen)
	}
	for s := range seen {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *shape) int {
		if a.desc.FullName() < b.desc.FullName() {
			return -1
		}
		return 1
	})
	return all
}

func keysOf[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func newMessage(t testing.TB, s *shape) protoreflect.Message {
	t.Helper()
	mt, err := protoregistry.GlobalTypes.FindMessageByName(s.desc.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return mt.New()
}

// fill sets fields of a message to anything.
func fill(t *rapid.T, s *shape, m protoreflect.Message, depth int) {
	for _, f := range s.fields {
		if !rapid.Bool().Draw(t, f.name) || f.message != nil && depth == 0 {
			continue
		}
		if !f.desc.IsList() {
			m.Set(f.desc, anyValue(t, f, func() protoreflect.Value { return m.NewField(f.desc) }, depth))
			continue
		}
		l := m.Mutable(f.desc).List()
		for range rapid.IntRange(0, 3).Draw(t, "elements") {
			l.Append(anyValue(t, f, l.NewElement, depth))
		}
	}
}

func anyValue(t *rapid.T, f *field, empty func() protoreflect.Value, depth int) protoreflect.Value {
	switch f.desc.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, "bool"))
	case protoreflect.EnumKind:
		values := f.desc.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(rapid.IntRange(0, values.Len()-1).Draw(t, "enum")).Number())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, "int32"))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, "uint32"))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, "int64"))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(rapid.Uint64().Draw(t, "uint64"))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(rapid.OneOf(rapid.Float64(), rapid.Just(math.Inf(-1)), rapid.Just(math.NaN())).Draw(t, "double"))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.String().Draw(t, "string"))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	case protoreflect.MessageKind:
		v := empty()
		fill(t, f.message, v.Message(), depth-1)
		return v
	}
	t.Fatalf("no value of %s", f.desc.Kind())
	return protoreflect.Value{}
}

// What is written is JSON, and reads as what it was, for every message of the API.
func TestWhatIsWrittenReadsTheSame(t *testing.T) {
	for _, s := range messages(t) {
		t.Run(string(s.desc.FullName()), func(t *testing.T) {
			if s.desc.Name() == errorName {
				t.Logf("its texts are those of people") // see TestCalls
				return
			}
			rapid.Check(t, func(rt *rapid.T) {
				m := newMessage(t, s)
				fill(rt, s, m, 2)
				text := s.append(nil, m)
				if !json.Valid(text) {
					rt.Fatalf("not JSON: %s", text)
				}
				back := newMessage(t, s)
				if _, err := readMessage(s, text, back); err != nil {
					rt.Fatalf("%s: %v", text, err)
				}
				if again := s.append(nil, back); string(again) != string(text) {
					rt.Fatalf("%s is %s when it is read", text, again)
				}
				clearWords(s, m)
				clearWords(s, back)
				if !equal(m, back) {
					rt.Fatalf("%s is %v, not %v", text, back, m)
				}
			})
		})
	}
}

// clearWords takes away texts that are not written as they are: those of errors.
func clearWords(s *shape, m protoreflect.Message) {
	for _, f := range s.fields {
		switch {
		case f.words:
			m.Clear(f.desc)
		case f.message == nil || !m.Has(f.desc):
		case f.desc.IsList():
			for i := range m.Get(f.desc).List().Len() {
				clearWords(f.message, m.Get(f.desc).List().Get(i).Message())
			}
		default:
			clearWords(f.message, m.Get(f.desc).Message())
		}
	}
}

// equal compares messages; NaN is NaN.
func equal(a, b protoreflect.Message) bool { return proto.Equal(a.Interface(), b.Interface()) }

// Strings and what is nested read as protobuf's own library reads them.
func FuzzReadMessage(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"checks":[{"key":"alice","limit":"20","cost":1}]}`, `{"checks":[{"key":"\u00e9\ud83d\ude00"}]}`, `{"checks":[{"requestId":{"client":"AAE=","sequence":7}}]}`,
		`{"checks":[{"rate":"20/1m","algorithm":"fixed_window","peek":true}]}`, `{"checks":null}`, ` { "checks" : [ ] } `, `{"checks":[{"refund":-0}]}`, "{\"checks\":[{\"key\":\"\xff\"}]}",
	} {
		f.Add([]byte(seed))
	}
	s := shapes{}.of((*limitpb.BatchCheckRequest)(nil).ProtoReflect().Descriptor())
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(limitpb.BatchCheckRequest)
		if _, err := readMessage(s, data, m.ProtoReflect()); err != nil {
			return
		}
		if len(data) > 0 && !json.Valid(data) && len(trimmed(data)) > 0 {
			t.Fatalf("%q is read, and is not JSON", data)
		}
		if theirs := new(limitpb.BatchCheckRequest); protojson.Unmarshal(data, theirs) == nil && !proto.Equal(m, theirs) {
			t.Fatalf("%q is %v, and for protobuf's library %v", data, m, theirs)
		}
		back := new(limitpb.BatchCheckRequest)
		text := s.append(nil, m.ProtoReflect())
		if _, err := readMessage(s, text, back.ProtoReflect()); err != nil || !proto.Equal(m, back) {
			t.Fatalf("%q is %v, written %s, and then %v, %v", data, m, text, back, err)
		}
	})
}

// Whole numbers are read in all forms that JSON has for them, exactly.
func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0", "-0": "-0", "17": "17", "20.0": "20", "-20.00": "-20", "1e3": "1000", "1E+05": "100000", "1.25e2": "125", "1200e-2": "12", "0.0": "0", "0e9": "0", "-0.0": "0",
		"9007199254740993.0": "9007199254740993", "1.8446744073709551615e19": "18446744073709551615",
		"1.5": "1.5", "1e-1": "1e-1", "12e-2": "12e-2", "1e21": "1e21", "1e999": "1e999", "1e99999999999999999999": "1e99999999999999999999", "1e-9223372036854775808": "1e-9223372036854775808",
	} {
		if got := plain(text); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
}

func trimmed(data []byte) []byte {
	r := scanner{data: data}
	r.next()
	return data[r.at:]
}
