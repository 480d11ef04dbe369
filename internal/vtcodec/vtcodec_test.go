package vtcodec

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"pgregory.net/rapid"

	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// api returns every message of the API.
func api(t *testing.T) []protoreflect.MessageType {
	t.Helper()
	var all []protoreflect.MessageType
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		if p := mt.Descriptor().ParentFile().Package(); strings.HasPrefix(string(p), "keystead.") && p.Parent().Name() != "peer" {
			all = append(all, mt)
		}
		return true
	})
	if len(all) < 30 {
		t.Fatalf("%d messages: these are not all", len(all))
	}
	return all
}

// draw fills a message with random values, edges among them.
func draw(t *rapid.T, m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !rapid.Bool().Draw(t, string(fd.Name())) {
			continue
		}
		switch {
		case fd.IsList():
			list := m.Mutable(fd).List()
			for range rapid.IntRange(0, 3).Draw(t, "length") {
				if fd.Kind() != protoreflect.MessageKind {
					list.Append(scalar(t, fd))
					continue
				}
				e := list.NewElement()
				draw(t, e.Message(), depth-1)
				list.Append(e)
			}
		case fd.Kind() == protoreflect.MessageKind:
			if depth > 0 {
				draw(t, m.Mutable(fd).Message(), depth-1)
			}
		default:
			m.Set(fd, scalar(t, fd))
		}
	}
}

func scalar(t *rapid.T, fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, "bool"))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.String().Draw(t, "string"))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.Int32().Draw(t, "enum")))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, "int32"))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, "uint32"))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(rapid.Float64Range(0, 1).Draw(t, "double"))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		edge := rapid.SampledFrom([]uint64{0, 127, 128, math.MaxUint64})
		return protoreflect.ValueOfUint64(rapid.OneOf(rapid.Uint64(), edge).Draw(t, "uint64"))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind:
		edge := rapid.SampledFrom([]int64{0, -1, math.MinInt64, math.MaxInt64})
		return protoreflect.ValueOfInt64(rapid.OneOf(rapid.Int64(), edge).Draw(t, "int64"))
	}
	t.Fatalf("the API has a field of kind %v", fd.Kind())
	return protoreflect.Value{}
}

// What this codec writes the standard library reads, and the other way round,
// for every message of the API.
func TestAgreesWithProtobuf(t *testing.T) {
	codec := New()
	for _, mt := range api(t) {
		t.Run(string(mt.Descriptor().Name()), func(t *testing.T) {
			if _, ok := mt.New().Interface().(vtMessage); !ok {
				t.Fatal("has no generated code")
			}
			rapid.Check(t, func(t *rapid.T) {
				m := mt.New()
				draw(t, m, 2)
				want := m.Interface()

				out, err := codec.Marshal(want)
				if err != nil {
					t.Fatal(err)
				}
				got := mt.New().Interface()
				if err := proto.Unmarshal(out.Materialize(), got); err != nil || !proto.Equal(got, want) {
					t.Fatalf("protobuf reads %v, %v; want %v", got, err, want)
				}
				if out.Len() != proto.Size(want) {
					t.Fatalf("%d bytes; protobuf writes %d", out.Len(), proto.Size(want))
				}
				out.Free()

				in, err := proto.Marshal(want)
				if err != nil {
					t.Fatal(err)
				}
				got = mt.New().Interface()
				if err := codec.Unmarshal(split(t, in), got); err != nil || !proto.Equal(got, want) {
					t.Fatalf("the codec reads %v, %v; want %v", got, err, want)
				}
				clear(in) // what was read does not refer to the buffer
				if !proto.Equal(got, want) {
					t.Fatal("the message changed with the buffer that it was read from")
				}
			})
		})
	}
}

// split cuts a message into buffers, as it comes from the network.
func split(t *rapid.T, b []byte) mem.BufferSlice {
	at := rapid.IntRange(0, len(b)).Draw(t, "cut")
	return mem.BufferSlice{mem.SliceBuffer(b[:at]), mem.SliceBuffer(b[at:])}
}

// Large messages go through pooled memory that was used before.
func TestPooledMemory(t *testing.T) {
	codec := New()
	for i := range 50 {
		want := &counterpb.GetRequest{Key: strings.Repeat(string(rune('a'+i%26)), 100+i*1000)}
		out, err := codec.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got := &counterpb.GetRequest{}
		if err := codec.Unmarshal(out, got); err != nil {
			t.Fatal(err)
		}
		out.Free()
		if got.Key != want.Key {
			t.Fatalf("message %d came back different", i)
		}
	}
}

// Fields that this version does not know are kept, as the standard codec does.
func TestUnknownFields(t *testing.T) {
	in := append([]byte{0x0a, 1, 'k'}, 0xfa, 0x3f, 3, 'n', 'e', 'w') // key, and field 1023
	m := &counterpb.GetRequest{}
	if err := New().Unmarshal(mem.BufferSlice{mem.SliceBuffer(in)}, m); err != nil {
		t.Fatal(err)
	}
	out, err := New().Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if m.Key != "k" || !bytes.Equal(out.Materialize(), in) {
		t.Errorf("%v is written as %x, was %x", m, out.Materialize(), in)
	}
}

// Messages without generated code take the ordinary way.
func TestOtherMessages(t *testing.T) {
	codec := New()
	out, err := codec.Marshal(&healthpb.HealthCheckRequest{Service: "x"})
	if err != nil {
		t.Fatal(err)
	}
	got := &healthpb.HealthCheckRequest{}
	if err := codec.Unmarshal(out, got); err != nil || got.Service != "x" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := codec.Marshal("not a message"); err == nil {
		t.Error("a string was written")
	}
	if err := codec.Unmarshal(nil, "not a message"); err == nil {
		t.Error("a string was read")
	}
	if codec.Name() != encoding.GetCodecV2(grpcproto.Name).Name() {
		t.Errorf("its name is %q", codec.Name())
	}
}

// FuzzUnmarshal reads arbitrary bytes as each message: what the codec accepts
// and protobuf accepts is the same message.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte{}, uint8(0))
	f.Add([]byte{0x0a, 1, 'k', 0x12, 0xff, 0xff, 0xff, 0xff, 0x0f}, uint8(1))
	f.Add([]byte{0x0b, 0x0c}, uint8(2))
	types := []proto.Message{&limitpb.CheckRequest{}, &counterpb.BatchAddRequest{}, &lockpb.AcquireRequest{}, &limitpb.BatchCheckResponse{}, &lockpb.InspectResponse{}}
	f.Fuzz(func(t *testing.T, data []byte, which uint8) {
		mt := types[int(which)%len(types)].ProtoReflect().Type()
		got, again, want := mt.New().Interface(), mt.New().Interface(), mt.New().Interface()
		if New().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, got) != nil {
			return // it takes a known field of another wire type for an error, protobuf for an unknown field
		}
		known := proto.UnmarshalOptions{DiscardUnknown: true} // whose tags may be written in several ways
		if known.Unmarshal(data, want) != nil {
			return // it checks UTF-8, for which handlers have their own error
		}
		out, err := New().Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if err := known.Unmarshal(out.Materialize(), again); err != nil || !proto.Equal(again, want) {
			t.Errorf("got %v, then %v, %v; want %v", got, again, err, want)
		}
	})
}
