package rpc

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
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
// confirmed when it returns. Items of other nodes' keys are passed on: call makes
// the call, took takes its answer. All are called with the index of the item.
type items[A any] struct {
	do   func(i int, now int64) (A, error)
	call func(i int) *peerv1.ForwardCall
	took func(i int, a *peerv1.ForwardAnswer)
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
	var away []int
	for i := range n {
		if left == nil {
			left = leftAt(ctx, i)
		}
		if errs[i] = left; left == nil {
			if answers[i], errs[i] = it.do(i, now); errs[i] != nil && s.elsewhere(errs[i]) {
				away = append(away, i)
			}
		}
	}
	var passed map[int]bool
	if len(away) > 0 {
		passed = s.passAll(ctx, away, it.call, it.took, errs)
	}
	var t tally
	now = s.cfg.Clock.Now()
	for i := range n {
		err := errs[i]
		if passed[i] {
			continue // counted and confirmed by the owner of its key
		}
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

// passAll passes items on to the owners of their keys, all at once, and puts
// those that failed in errs. It returns those that were answered.
func (s *Server) passAll(ctx context.Context, away []int, call func(int) *peerv1.ForwardCall, took func(int, *peerv1.ForwardAnswer), errs []error) map[int]bool {
	passed := make(map[int]bool, len(away))
	if staysHere(ctx) {
		t := s.cfg.Cluster.Table()
		for _, i := range away {
			errs[i] = asError(notOwner(t, hashOf(call(i))))
		}
		return passed
	}
	passages, attempts := make([]passage, len(away)), make([]*attempt, len(away))
	t := s.cfg.Cluster.Table()
	for n, i := range away {
		c := s.private(call(i))
		passages[n] = passage{s: s, ctx: ctx, call: c, hash: hashOf(c), began: time.Now()}
		if m, since, ok := t.Owner(passages[n].hash); ok && m.Holder() != s.cfg.Cluster.Self() {
			attempts[n] = s.links.submit(ctx, passages[n].hash, m, since, c)
		}
	}
	var wg sync.WaitGroup
	answers, failures := make([]*peerv1.ForwardAnswer, len(away)), make([]error, len(away))
	slots := make(chan struct{}, maxRetries)
	for n := range away {
		again := attempts[n] == nil
		if !again {
			answers[n], again, failures[n] = passages[n].settle(attempts[n])
		}
		if again {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				answers[n], failures[n] = passages[n].run()
			})
		}
	}
	wg.Wait()
	for n, i := range away {
		s.cfg.Metrics.forwarded(failures[n])
		if errs[i] = failures[n]; errs[i] == nil {
			passed[i] = true
			took(i, answers[n])
		}
	}
	return passed
}

// maxRetries bounds the items of a batch that are tried again at once.
const maxRetries = 64

// one is run for a single operation; its error is for the caller, or says that
// the operation belongs elsewhere.
func one[A any](s *Server, o *op, a *A, meta func(*A) owner.Meta, yes func(*A) bool, err error) error {
	if err != nil && s.elsewhere(err) {
		return err // whoever does it counts it
	}
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
	return err
}
