package rls

import (
	"errors"
	"math"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// answer is a RateLimitResponse as it goes to the wire.
type answer struct{ wire []byte }

// SizeVT returns the size in bytes.
func (a *answer) SizeVT() int { return len(a.wire) }

// MarshalToSizedBufferVT writes the answer to the end of data.
func (a *answer) MarshalToSizedBufferVT(data []byte) (int, error) {
	return copy(data[len(data)-len(a.wire):], a.wire), nil
}

// UnmarshalVT makes an answer one of the messages that the server's codec writes.
func (a *answer) UnmarshalVT([]byte) error { return errors.New("rls: an answer is only written") }

// Codes of answers.
const (
	codeOK   = rlspb.RateLimitResponse_OK
	codeOver = rlspb.RateLimitResponse_OVER_LIMIT
)

// status is what is answered to one descriptor.
type status struct {
	code      rlspb.RateLimitResponse_Code
	current   []byte // of Limit; nil = none applies
	remaining uint32
	reset     time.Duration
	hasReset  bool
}

func (s *status) append(b []byte) []byte {
	var space [statusSpace]byte // so that most need no more memory
	in := appendVarint(space[:0], 1, uint64(s.code))
	if s.current != nil {
		in = appendMessage(in, 2, s.current)
	}
	in = appendVarint(in, 3, uint64(s.remaining))
	if s.hasReset {
		var space [durationSpace]byte
		d := appendVarint(space[:0], 1, uint64(s.reset/time.Second))
		d = appendVarint(d, 2, uint64(s.reset%time.Second))
		in = appendMessage(in, 4, d)
	}
	return appendMessage(b, 2, in)
}

// Room for a status with a name of usual length, and for any duration, in bytes.
const (
	statusSpace   = 128
	durationSpace = 24
)

// appendHeader adds a header to add to the response for the client.
func appendHeader[T []byte | string](b []byte, key string, value T) []byte {
	var in []byte
	in = protowire.AppendTag(in, 1, protowire.BytesType)
	in = protowire.AppendString(in, key)
	in = protowire.AppendTag(in, 2, protowire.BytesType)
	in = protowire.AppendBytes(in, []byte(value))
	return appendMessage(b, 3, in)
}

// appendVarint adds a number, unless it is 0, as proto3 has it.
func appendVarint(b []byte, number protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = protowire.AppendTag(b, number, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

func appendMessage(b []byte, number protowire.Number, body []byte) []byte {
	b = protowire.AppendTag(b, number, protowire.BytesType)
	return protowire.AppendBytes(b, body)
}

// small is a number of tokens as answers have it.
func small(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }
