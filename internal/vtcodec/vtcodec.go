// Package vtcodec is the gRPC codec of Keystead's own server and clients: the
// protobuf wire format, written and read by the code that vtprotobuf generates,
// without reflection. Messages without such code (health, reflection) take the
// ordinary way. On the wire nobody can tell.
package vtcodec

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// vtMessage is what vtprotobuf generates for every message.
type vtMessage interface {
	SizeVT() int
	MarshalToSizedBufferVT(data []byte) (int, error)
	UnmarshalVT(data []byte) error
}

// Codec is an encoding.CodecV2. Use it with grpc.ForceServerCodecV2 and
// grpc.ForceCodecV2.
type Codec struct {
	rest      encoding.CodecV2 // for messages without generated code
	maxFields int              // at the top level of a message that is read; 0 = any number
}

// New returns a codec.
func New() Codec { return Codec{rest: encoding.GetCodecV2(proto.Name)} }

// Bounded returns a codec that refuses to read a message with more fields at its
// top level than maxFields. Two bytes on the wire can be an item of a hundred
// bytes in memory: a bound on the size of a message does not bound that.
func Bounded(maxFields int) Codec {
	c := New()
	c.maxFields = maxFields
	return c
}

// countFrom is the size from which messages are worth counting: smaller ones
// cannot hold much.
const countFrom = 4 << 10

// maxRest is how large a message without generated code may be, in bytes, where there
// is a bound on fields: what is within its fields is not counted. An Envoy that lists
// all of its extensions needs some tens of KiB.
const maxRest = 256 << 10

func (c Codec) check(data []byte) error {
	if c.maxFields == 0 || len(data) < countFrom {
		return nil
	}
	for n := 0; len(data) > 0; n++ {
		if n == c.maxFields {
			return fmt.Errorf("the message has more than %d fields or items", c.maxFields)
		}
		_, _, size := protowire.ConsumeField(data)
		if size < 0 {
			return protowire.ParseError(size)
		}
		data = data[size:]
	}
	return nil
}

// Name returns that of the standard codec, whose wire format this is.
func (Codec) Name() string { return proto.Name }

// Marshal writes a message, into pooled memory if it is large.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(vtMessage)
	if !ok {
		return c.rest.Marshal(v)
	}
	size := m.SizeVT()
	if mem.IsBelowBufferPoolingThreshold(size) {
		buf := make([]byte, size)
		_, err := m.MarshalToSizedBufferVT(buf)
		return mem.BufferSlice{mem.SliceBuffer(buf)}, err
	}
	pool := mem.DefaultBufferPool()
	buf := pool.Get(size)
	if _, err := m.MarshalToSizedBufferVT((*buf)[:size]); err != nil {
		pool.Put(buf)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}, nil
}

// Unmarshal reads a message. It copies what it keeps.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(vtMessage)
	if !ok {
		if n := data.Len(); c.maxFields != 0 && n > maxRest {
			return fmt.Errorf("the message has %d bytes; at most %d are allowed", n, maxRest)
		}
		return c.rest.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if err := c.check(buf.ReadOnlyData()); err != nil {
		return err
	}
	return m.UnmarshalVT(buf.ReadOnlyData())
}
