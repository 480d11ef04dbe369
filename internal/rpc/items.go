package rpc

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// badID is the error of a field of a request id.
func badID(field, problem string) (reqid.ID, error) {
	return reqid.ID{}, &failure.Error{Reason: failure.Invalid, Field: "request_id." + field, Message: problem}
}

// requestID returns the id in a request, or the zero id if there is none.
func requestID(id *commonpb.RequestId) (reqid.ID, error) {
	//guard:key-sequence
	if id.GetSequence() == reqid.KeySequence {
		return badID("sequence", "is the greatest number, which no request may have")
	}
	return wireID(id)
}

// wireID is requestID of an id that may be that of an idempotency key.
func wireID(id *commonpb.RequestId) (reqid.ID, error) {
	if id == nil {
		return reqid.ID{}, nil
	}
	bad := badID
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

func replayOf(m owner.Meta) *commonpb.Replay {
	if !m.Replayed {
		return nil
	}
	return &commonpb.Replay{AgeNs: m.Age}
}

// batch does the operations of a batch, in order, and returns their results, in which put
// sets the answer or the error. bad is why no node would do an item, nil if there is
// nothing like that. Items of other nodes' keys are passed on. The answers have been
// confirmed when it returns; results and answers are allocated in one piece.
func batch[R, Q, A any, PQ request[Q], PA response[A]](ctx context.Context, s *Server, o *op[Q, A, PQ, PA], reqs []*Q, bad func(*Q) error, put func(r *R, a *A, w *commonpb.Error)) ([]*R, error) {
	if err := cmp.Or(checkItems(len(reqs)), s.levelOf(o.operation)); err != nil {
		return nil, s.refuse(err)
	}
	return batchWithin(ctx, s, o, reqs, bad, nil, put), nil
}

// batchWithin is batch of items of which some have a context of their own, which ends first:
// within returns it, nil if one has none.
func batchWithin[R, Q, A any, PQ request[Q], PA response[A]](ctx context.Context, s *Server, o *op[Q, A, PQ, PA], reqs []*Q, bad func(*Q) error, within func(i int) context.Context, put func(r *R, a *A, w *commonpb.Error)) []*R {
	b := batched[R, Q, A, PQ, PA]{
		s: s, o: o, reqs: reqs, put: put, within: within, row: s.row(o.operation),
		cells: make([]cell[R, A], len(reqs)), verdicts: make([]verdict, len(reqs)), errs: make([]error, len(reqs)),
	}
	b.decide(ctx, bad)
	// Others decide theirs while this node waits for the copies of its own.
	sent := s.router.Depart(ctx, b.away.items)
	b.awaitCopies()
	return b.finish(sent)
}

// cell is an item's result, and its answer if this node gives it.
type cell[R, A any] struct {
	result R
	answer A
}

// batched is a batch that is being done.
type batched[R, Q, A any, PQ request[Q], PA response[A]] struct {
	s        *Server
	o        *op[Q, A, PQ, PA]
	row      *opMetrics
	reqs     []*Q
	put      func(r *R, a *A, w *commonpb.Error)
	within   func(i int) context.Context // nil = no item has one
	cells    []cell[R, A]
	verdicts []verdict
	errs     []error
	away     elsewhere
}

// decide decides the items that are this node's to decide, and finds the others.
func (b *batched[R, Q, A, PQ, PA]) decide(ctx context.Context, bad func(*Q) error) {
	s, o, now := b.s, b.o, b.s.cfg.Clock.Now()
	var left error
	for i, q := range b.reqs {
		if left == nil {
			left = leftAt(ctx, i)
		}
		if b.errs[i] = left; left == nil && bad != nil {
			b.errs[i] = bad(q)
		}
		if b.errs[i] != nil {
			continue
		}
		hash, away := s.locate(o.of, PQ(q).GetKey(), PQ(q).GetName())
		if away || b.away.follows(s, o.of, PQ(q).GetKey(), PQ(q).GetName(), hash) {
			b.pass(i, q, hash)
			continue
		}
		f, err := o.frame(ctx, q, hash, now)
		if err == nil {
			b.verdicts[i], err = o.do(s, f, q, &b.cells[i].answer)
		}
		if b.errs[i] = err; err != nil && s.elsewhere(err) {
			b.pass(i, q, hash)
		}
	}
}

// pass has another node decide an item, if it can.
func (b *batched[R, Q, A, PQ, PA]) pass(i int, q *Q, hash uint64) {
	if b.errs[i] = b.o.passable(b.s, q); b.errs[i] == nil {
		b.away.add(forward.Item{At: i, Call: b.o.call(q, hash), Ctx: b.ctxOf(i)})
	}
}

// ctxOf returns the context that an item has of its own, nil if it has none.
func (b *batched[R, Q, A, PQ, PA]) ctxOf(i int) context.Context {
	if b.within == nil {
		return nil
	}
	return b.within(i)
}

// awaitCopies waits until the answers that this node gives may be told.
func (b *batched[R, Q, A, PQ, PA]) awaitCopies() {
	if b.s.cfg.Copies == nil {
		return
	}
	for i := range b.reqs {
		if b.errs[i] == nil && !b.away.is(i) {
			//guard:answers-wait-batch
			//guard:answer-not-told-batch b.errs[i] -> _
			b.errs[i] = b.s.await(b.ctxOf(i), b.row, b.verdicts[i].Permit)
		}
	}
}

// finish confirms the answers of this node, and waits for those of others.
func (b *batched[R, Q, A, PQ, PA]) finish(sent forward.Departed) []*R {
	results := make([]*R, len(b.reqs))
	var t tally
	now := b.s.cfg.Clock.Now()
	fail := func(i int, err error) {
		t.errored++
		w := wire(err)
		b.row.failed[w.Reason].Inc()
		b.put(results[i], nil, w)
	}
	next := 0 // of away
	for i := range b.reqs {
		results[i] = &b.cells[i].result
		if next < len(b.away.items) && b.away.items[next].At == i {
			next++
			continue
		}
		err := b.errs[i]
		if err == nil {
			//guard:answer-check-batch
			err = b.s.cfg.Store.Confirm(b.verdicts[i].Permit, now)
		}
		if err != nil {
			fail(i, err)
			continue
		}
		t.decided(b.verdicts[i].yes, b.verdicts[i].Replayed)
		b.put(results[i], &b.cells[i].answer, nil)
	}
	if len(b.away.items) > 0 {
		sent.Arrive(func(i int, m forward.Message, err error) {
			b.s.cfg.Metrics.forwarded(err)
			if err != nil {
				fail(i, err)
				return
			}
			b.put(results[i], any(m).(*A), nil)
		})
	}
	b.row.add(t)
	return results
}

// elsewhere are the items of a batch whose keys belong to other nodes, in order.
type elsewhere struct {
	items []forward.Item
	keys  map[uint64]bool // by hash
}

func (e *elsewhere) add(x forward.Item) {
	if e.keys == nil {
		e.keys = map[uint64]bool{}
	}
	e.keys[x.Call.Hash] = true
	e.items = append(e.items, x)
}

// follows reports whether another item with this key is away: what is asked of one key
// stays in order, unless the object is split.
func (e *elsewhere) follows(s *Server, k *kind, key, name string, hash uint64) bool {
	return len(e.keys) > 0 && e.keys[hash] && s.splitAt(s.cfg.Cluster.Table(), k, key, name) == nil
}

// is reports whether an item is among them.
func (e *elsewhere) is(i int) bool {
	_, found := slices.BinarySearchFunc(e.items, i, func(x forward.Item, i int) int { return cmp.Compare(x.At, i) })
	return found
}
