package rpc

import (
	"context"
	"encoding/binary"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// ref is the address in a request; an empty name is that of the kind.
func ref(key, name, kind string) owner.Ref {
	if name == "" {
		name = kind
	}
	return owner.Ref{Key: key, Name: name}
}

// requestID is the id in a request, or the zero id if there is none.
func requestID(id *pb.RequestId) (reqid.ID, error) {
	if id == nil {
		return reqid.ID{}, nil
	}
	bad := func(field, problem string) (reqid.ID, error) {
		return reqid.ID{}, &owner.Error{Reason: owner.Invalid, Field: "request_id." + field, Message: problem}
	}
	switch {
	case len(id.Client) != 16:
		return bad("client", "must be 16 bytes, drawn at random when the client starts")
	case id.Sequence == 0:
		return bad("sequence", "is 0; numbers start at 1")
	case id.AgeNs < 0:
		return bad("age_ns", "is negative")
	}
	return reqid.ID{
		Client:   reqid.Client{Hi: binary.BigEndian.Uint64(id.Client), Lo: binary.BigEndian.Uint64(id.Client[8:])},
		Sequence: id.Sequence, Settled: id.Settled, Age: id.AgeNs,
	}, nil
}

func replayOf(m owner.Meta) *pb.Replay {
	if !m.Replayed {
		return nil
	}
	return &pb.Replay{AgeNs: m.Age}
}

// items runs the operations of a batch: do executes one and says whether it was
// decided positively, put takes its answer or its error. The answers have been
// confirmed when it returns. Both are called with the index of the item.
type items[A any] struct {
	do   func(i int, now int64) (A, error)
	meta func(a *A) owner.Meta
	yes  func(a *A) bool
	put  func(i int, a *A, err error)
}

func run[A any](ctx context.Context, s *Server, o *op, n int, it items[A]) error {
	if err := checkItems(n); err != nil {
		return s.refuse(err)
	}
	answers := make([]A, n)
	errs := make([]error, n)
	now := s.cfg.Clock.Now()
	var left error
	for i := range n {
		if left == nil {
			left = leftAt(ctx, i)
		}
		if errs[i] = left; left == nil {
			answers[i], errs[i] = it.do(i, now)
		}
	}
	var t tally
	now = s.cfg.Clock.Now()
	for i := range n {
		err := errs[i]
		if err == nil {
			err = s.cfg.Store.Confirm(it.meta(&answers[i]).Permit, now)
		}
		if err != nil {
			t.errored++
			o.failed[wire(err).Reason].Inc()
		} else {
			t.decided(it.yes(&answers[i]), it.meta(&answers[i]).Replayed)
		}
		it.put(i, &answers[i], err)
	}
	o.add(t)
	return nil
}

// one is run for a single operation whose answer is a status rather than an
// item's error.
func one[A any](s *Server, o *op, a *A, meta func(*A) owner.Meta, yes func(*A) bool, err error) error {
	var t tally
	if err == nil {
		err = s.confirm(meta(a).Permit)
	}
	if err != nil {
		t.errored++
		o.failed[wire(err).Reason].Inc()
	} else {
		t.decided(yes(a), meta(a).Replayed)
	}
	o.add(t)
	return Status(err)
}
