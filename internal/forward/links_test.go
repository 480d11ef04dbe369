package forward

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/failure"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// operation is one of this number, on keys.
func operation(number uint32) *Operation {
	o := &Operation{Number: number, Name: "get", Request: func() Message { return &counterpb.GetRequest{} }, Response: func() Message { return &counterpb.GetResponse{} }}
	o.Call = func(m Message) Call { return Call{Op: o, Request: m, Key: m.(*counterpb.GetRequest).Key} }
	return o
}

// TestEnvelopeByLevel: a call is sent by the number of its operation from the commit of
// the level on that says that all members read it, and not before.
func TestEnvelopeByLevel(t *testing.T) {
	encoded := func(number, level uint32) (*Attempt, error) {
		c := operation(number).Call(&counterpb.GetRequest{Key: "k"})
		a := &Attempt{Call: &c, Since: 5}
		return a, a.encode(&table.Table{Level: level})
	}
	for level, number := range map[uint32]uint32{0: 0, 3: 0, EnvelopeLevel: numGet} {
		a, err := encoded(numGet, level)
		if err != nil || a.wire.Operation != number || (a.wire.Call == nil) != (number != 0) || a.wire.Since != 5 {
			t.Errorf("level %d: %v, %v", level, a.wire, err)
		}
	}
	const later = 20
	if a, err := encoded(later, EnvelopeLevel); err != nil || a.wire.Operation != later {
		t.Errorf("an operation without a field: %v, %v", a.wire, err)
	}
	var e *failure.Error
	if _, err := encoded(later, EnvelopeLevel-1); !errors.As(err, &e) || e.Reason != failure.Unavailable || e.Hint == "" {
		t.Errorf("an operation that is too new: %v", err)
	}
}

// TestSubmitWhenClosed: a node that stops has no links any more, and its own calls about
// parts end at the same moment: the caller learns that nothing was sent.
func TestSubmitWhenClosed(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	l := NewLinks(LinksConfig{Table: b, Full: errors.New("full")})
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m, _ := b.Table().Member("n2")
	gone := func(ctx context.Context) error { return ctx.Err() }
	for range 100 { // both are over: either may be seen first
		a := l.Submit(ctx, 1, m, 0, b.add("k"), time.Now())
		if _, err := a.Wait(ctx, gone, nil, nil, nil); !errors.Is(err, ErrUnsent) {
			t.Fatal(err)
		}
	}
}
