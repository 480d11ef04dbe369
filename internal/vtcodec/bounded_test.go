package vtcodec

import (
	"bytes"
	"strings"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Two bytes a piece make a million items: they are refused before they are made.
func TestBoundedRefusesManyItems(t *testing.T) {
	read := func(c Codec, items int) (*limitpb.BatchCheckRequest, error) {
		var m limitpb.BatchCheckRequest
		data := mem.BufferSlice{mem.SliceBuffer(bytes.Repeat([]byte{0x0a, 0}, items))}
		return &m, c.Unmarshal(data, &m)
	}
	if m, err := read(Bounded(3000), 3000); err != nil || len(m.Checks) != 3000 {
		t.Errorf("as many as may be: %d %v", len(m.Checks), err)
	}
	m, err := read(Bounded(3000), 1<<20)
	if err == nil || len(m.Checks) != 0 {
		t.Errorf("a million: %d %v", len(m.Checks), err)
	}
	if m, err := read(New(), 10_000); err != nil || len(m.Checks) != 10_000 {
		t.Errorf("without a bound: %d %v", len(m.Checks), err)
	}
}

// A message without generated code is bounded by its size, where there is a bound.
func TestBoundedRefusesLargeOtherMessages(t *testing.T) {
	read := func(c Codec, size int) error {
		var m healthpb.HealthCheckRequest
		data, err := New().Marshal(&healthpb.HealthCheckRequest{Service: strings.Repeat("x", size)})
		if err != nil {
			t.Fatal(err)
		}
		return c.Unmarshal(data, &m)
	}
	if err := read(Bounded(1), maxRest-8); err != nil {
		t.Error(err)
	}
	if err := read(Bounded(1), maxRest); err == nil {
		t.Error("a larger one was read")
	}
	if err := read(New(), maxRest); err != nil {
		t.Error(err)
	}
}
