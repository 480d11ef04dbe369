package rpc

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/keystead/keystead/internal/failure"
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
		return reqid.ID{}, &failure.Error{Reason: failure.Invalid, Field: "request_id." + field, Message: problem}
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
	bad  func(i int) error // what no node would do with it; nil = there is nothing like that
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
	var away elsewhere
	for i := range n {
		if left == nil {
			left = leftAt(ctx, i)
		}
		switch {
		case left != nil:
			errs[i] = left
		case it.bad != nil && it.bad(i) != nil:
			errs[i] = it.bad(i)
		case away.has(s, i, it.call):
		default:
			if answers[i], errs[i] = it.do(i, now); errs[i] != nil && s.elsewhere(errs[i]) {
				away.add(i, it.call(i))
			}
		}
	}
	// Others decide theirs while this node waits for the copies of its own.
	sent := s.depart(ctx, away.items)
	if s.cfg.Copies != nil {
		for i := range n {
			if errs[i] == nil && !away.is(i) {
				//guard:answers-wait-batch
				//guard:answer-not-told-batch errs[i] -> _
				errs[i] = s.await(o, it.meta(&answers[i]).Permit)
			}
		}
	}
	var t tally
	now = s.cfg.Clock.Now()
	next := 0 // of away
	for i := range n {
		if next < len(away.items) && away.items[next].i == i {
			next++
			continue
		}
		err := errs[i]
		if err == nil {
			//guard:answer-check-batch
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
	if len(away.items) > 0 {
		s.arrive(sent, func(i int, a *peerv1.ForwardAnswer, err error) {
			if err == nil {
				it.took(i, a)
				return
			}
			t.errored++
			o.failed[wire(err).Reason].Inc()
			it.put(i, nil, err)
		})
	}
	o.add(t)
	return nil
}

// elsewhere are the items of a batch whose keys belong to other nodes, in order.
type elsewhere struct {
	items []item
	keys  map[uint64]bool // by hash
}

type item struct {
	i    int // in the batch
	call *peerv1.ForwardCall
}

func (e *elsewhere) add(i int, c *peerv1.ForwardCall) {
	if e.keys == nil {
		e.keys = map[uint64]bool{}
	}
	e.keys[hashOf(c)] = true
	e.items = append(e.items, item{i, c})
}

// has takes an item whose key another item had that is away: what is asked of
// one key stays in order, unless the object is split.
func (e *elsewhere) has(s *Server, i int, call func(int) *peerv1.ForwardCall) bool {
	if len(e.keys) == 0 {
		return false
	}
	c := call(i)
	if !e.keys[hashOf(c)] || splitOf(s.cfg.Cluster.Table(), c) != nil {
		return false
	}
	e.items = append(e.items, item{i, c})
	return true
}

// is says whether an item is among them.
func (e *elsewhere) is(i int) bool {
	_, found := slices.BinarySearchFunc(e.items, i, func(x item, i int) int { return cmp.Compare(x.i, i) })
	return found
}

// departed are items on their way to the owners of their keys.
type departed struct {
	items    []item
	passages []*passage
	attempts []*attempt // the first ones; nil = none was made
}

// depart passes items on to the owners of their keys, all at once.
func (s *Server) depart(ctx context.Context, items []item) departed {
	if len(items) == 0 {
		return departed{}
	}
	began := time.Now()
	d := departed{items, make([]*passage, len(items)), make([]*attempt, len(items))}
	t, self := s.cfg.Cluster.Table(), s.cfg.Cluster.Self()
	for n, x := range items {
		p := newPassage(ctx, s, x.call, began)
		d.passages[n] = p
		sp, err := p.aim(t)
		if err != nil || sp != nil && p.part == nil {
			continue // it waits, or is for all parts
		}
		if m, since, ok := t.Owner(p.hash); ok && m.Holder() != self && !p.stays {
			d.attempts[n] = p.send(m, max(since, sinceOf(sp)))
		}
	}
	return d
}

// arrive waits for items that have departed, tries those again for which that is
// due, and hands over what became of each.
func (s *Server) arrive(d departed, put func(i int, a *peerv1.ForwardAnswer, err error)) {
	items, passages, attempts := d.items, d.passages, d.attempts
	over := time.Now().Add(maxAwait) // this node may have waited for copies meanwhile
	answers, failures := make([]*peerv1.ForwardAnswer, len(items)), make([]error, len(items))
	var again [][]int         // what has to be tried again, by key
	place := map[uint64]int{} // of a key in again
	for n, p := range passages {
		p.over = over
		retry := attempts[n] == nil
		if !retry {
			answers[n], retry, failures[n] = p.settle(attempts[n])
			p.later = true
			if failures[n] != nil {
				failures[n] = p.honest(failures[n])
			}
		}
		if !retry {
			continue
		}
		at, ok := place[p.hash]
		if !ok {
			at = len(again)
			place[p.hash], again = at, append(again, nil)
		}
		again[at] = append(again[at], n)
	}
	slots := make(chan struct{}, maxRetries)
	var wg sync.WaitGroup
	for _, key := range again {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			for _, n := range key { // in order
				answers[n], failures[n] = passages[n].run()
			}
		})
	}
	wg.Wait()
	for n, x := range items {
		s.cfg.Metrics.forwarded(failures[n])
		put(x.i, answers[n], failures[n])
	}
}

// maxRetries bounds the keys of a batch that are tried again at once.
const maxRetries = 64
