package forward

import (
	"context"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/tests/agreed"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// wire is a stream from another node, of these messages.
type wire struct {
	grpc.ServerStream
	ctx     context.Context
	in      chan *peerv1.ForwardRequest
	answers map[uint64]*peerv1.ForwardAnswer // by tag
}

func (w *wire) Context() context.Context { return w.ctx }

func (w *wire) SendHeader(metadata.MD) error { return nil }

func (w *wire) Recv() (*peerv1.ForwardRequest, error) {
	if req, ok := <-w.in; ok {
		return req, nil
	}
	return nil, io.EOF
}

func (w *wire) Send(resp *peerv1.ForwardResponse) error {
	for _, a := range resp.Answers {
		w.answers[a.Tag] = a
	}
	return nil
}

// tallied counts calls, and has room for all.
type tallied struct{ calls, busy atomic.Int64 }

func (c *tallied) Begin(n int64) bool { c.calls.Add(n); return true }
func (c *tallied) End(n int64)        { c.calls.Add(-n) }
func (c *tallied) Busy(n int64)       { c.busy.Add(n) }

// lagging are copies of which one has nothing until it is let go.
type lagging struct{ has chan struct{} }

func (l *lagging) Behind(uint64) table.Behind {
	select {
	case <-l.has:
		return table.Behind{}
	default:
		return table.Behind{agreed.Holder("copy")}
	}
}

func (l *lagging) AwaitOf(context.Context, uint64, table.Holder) bool { <-l.has; return true }

// TestServiceCarriesDecisions: what a node wants to know of a decision comes back to it,
// as it was, just before the answer leaves: at once if the answer waits for nothing, and
// when the copies have it otherwise. What is not confirmed is not told.
func TestServiceCarriesDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t, "n1", "n2")
		copies, calls, op := &lagging{make(chan struct{})}, &tallied{}, operation(numGet)
		confirmed := []string{}
		s := NewService(b.router(nil), ServiceConfig[string]{
			Known: func(uint32) *Operation { return op },
			Decide: func(_ context.Context, c *Call, later *Later[string]) (Message, error) {
				later.Add(Unconfirmed[string]{Hash: c.Hash, Alone: c.Key == "alone" || c.Key == "late", Decision: c.Key})
				return &counterpb.GetResponse{Value: int64(c.Tag)}, nil
			},
			Confirm: func(d *string, _ int64, err error) error {
				if confirmed = append(confirmed, *d); *d == "late" {
					return &failure.Error{Reason: failure.OutcomeUnknown, Message: "the lease is over"}
				}
				return err
			},
			Now: func() int64 { return 0 }, Copies: copies, Untold: func(bool) error { return errBadID }, Calls: calls,
			Received: func(int) {}, Check: func(*peerv1.ForwardRequest) error { return nil }, Refuse: func(err error) error { return err }, MaxMessage: 1 << 20,
		})
		w := &wire{ctx: t.Context(), in: make(chan *peerv1.ForwardRequest, 1), answers: map[uint64]*peerv1.ForwardAnswer{}}
		req := &peerv1.ForwardRequest{}
		for i, key := range []string{"alone", "held", "late", "held too"} {
			f, err := Encode(&Call{Op: op, Request: &counterpb.GetRequest{Key: key}, Key: key}, true)
			if err != nil {
				t.Fatal(err)
			}
			f.Tag = uint64(i + 1)
			req.Calls = append(req.Calls, f)
		}
		w.in <- req
		over := make(chan error, 1)
		go func() { over <- s.Forward(w) }()
		synctest.Wait()
		if !slices.Equal(confirmed, []string{"alone", "late"}) || len(w.answers) != 2 || w.answers[3].GetError() == nil || calls.busy.Load() != 2 {
			t.Errorf("%q are confirmed, and the answers are %v; %d are waited for", confirmed, w.answers, calls.busy.Load())
		}
		close(copies.has)
		synctest.Wait()
		if !slices.Equal(confirmed, []string{"alone", "late", "held", "held too"}) || calls.busy.Load() != 0 {
			t.Errorf("%q are confirmed; %d are waited for", confirmed, calls.busy.Load())
		}
		close(w.in)
		if err := <-over; err != nil {
			t.Error(err)
		}
		s.Close()
		for tag := range uint64(4) {
			a := w.answers[tag+1]
			if m, err := DecodeAnswer(a, op); tag != 2 && (err != nil || m.(*counterpb.GetResponse).Value != int64(tag+1)) {
				t.Errorf("call %d: %v, %v", tag+1, a, err)
			}
		}
	})
}
