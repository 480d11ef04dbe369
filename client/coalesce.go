package client

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// kind is how one kind of operation travels.
type kind[Q, R any] struct {
	stamp func(Q, *commonpb.RequestId)
	one   func(ctx context.Context, conn *grpc.ClientConn, q Q, opts ...grpc.CallOption) (R, error)
	// many sends a batch; put takes the results, which are as many.
	many func(ctx context.Context, conn *grpc.ClientConn, qs []Q, put func(i int, r R, e *Error), opts ...grpc.CallOption) (n int, err error)
	// size is how many bytes a request takes in a batch; nil = maxBatch of them fit, however long they are.
	size func(Q) int
}

// coalescer puts single calls to one node together. While fewer than maxFlights
// messages to the node are under way a call goes out at once and alone; the
// others gather and go together when one of these comes back, as in a group
// commit. So no call waits for a batch to fill, and batches grow with the load.
type coalescer[Q, R any] struct {
	c    *Client
	n    *node
	kind kind[Q, R]

	mu      sync.Mutex // guards what follows, and the fields of items that say so
	flights int
	waiting []*item[Q, R]
	alone   int64 // until then, by the clock, each goes alone: the node does not know such batches
}

// item is a call that waits to go with others.
type item[Q, R any] struct {
	req     Q
	op      *operation // nil = changes nothing
	done    chan struct{}
	sending bool // guarded by coalescer.mu: it is being sent

	resp R // set before done is closed
	sent bool
	err  error
}

func (o *coalescer[Q, R]) init(c *Client, n *node, k kind[Q, R]) { o.c, o.n, o.kind = c, n, k }

// do makes one attempt of a call.
func (o *coalescer[Q, R]) do(ctx context.Context, req Q, op *operation) (resp R, sent bool, err error) {
	o.mu.Lock()
	if o.c.cfg.NoBatching || o.flights < maxFlights || o.alone != 0 && o.c.clock.Now() < o.alone {
		o.flights++
		o.mu.Unlock()
		defer func() { o.landed(ctx.Err() == nil && o.c.ctx.Err() == nil && silentNode(sent, err)) }()
		return o.sendOne(ctx, req, op)
	}
	it := &item[Q, R]{req: req, op: op, done: make(chan struct{})}
	o.waiting = append(o.waiting, it)
	o.mu.Unlock()
	select {
	case <-it.done:
		return it.resp, it.sent, it.err
	case <-ctx.Done():
		return resp, !o.withdraw(it), ctx.Err()
	//guard:client-close
	case <-o.c.ctx.Done():
		return resp, !o.withdraw(it), errClosed()
	}
}

// withdraw removes an item from the queue. It reports false if it is being sent.
func (o *coalescer[Q, R]) withdraw(it *item[Q, R]) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !it.sending {
		o.waiting = slices.DeleteFunc(o.waiting, func(x *item[Q, R]) bool { return x == it })
	}
	return !it.sending
}

func (o *coalescer[Q, R]) sendOne(ctx context.Context, req Q, op *operation) (resp R, sent bool, err error) {
	if op != nil {
		o.kind.stamp(req, op.stamp())
	}
	sent, err = o.c.unary(ctx, o.n, 0, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
		resp, err = o.kind.one(ctx, o.n.conn(), req, opts...)
		return err
	})
	return resp, sent, err
}

// silentNode reports whether an attempt had no answer of the node.
func silentNode(sent bool, err error) bool { return err != nil && fromCall(err, sent).broken }

// turnBackLocked ends the waits of those that would go to a node that did not answer. They were not
// sent, and their next attempts go elsewhere.
func (o *coalescer[Q, R]) turnBackLocked() {
	for _, it := range o.waiting {
		it.err = &Error{Code: codes.Unavailable, Message: "the node did not answer another call; this one was not sent", broken: true}
		close(it.done)
	}
	o.waiting = nil
}

// landed notes that a message came back, or that there was no answer to it. If calls have gathered,
// they are sent.
func (o *coalescer[Q, R]) landed(silent bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	//guard:client-silent-node false
	if silent {
		o.turnBackLocked()
	}
	items := o.nextBatchLocked()
	if items == nil {
		o.flights--
		return
	}
	if !o.c.start(func() { o.fly(items) }) {
		o.flights--
		for _, it := range items {
			it.err = errClosed()
			close(it.done)
		}
	}
}

func (o *coalescer[Q, R]) nextBatchLocked() []*item[Q, R] {
	n := o.fitLocked()
	if n == 0 {
		return nil
	}
	items := slices.Clone(o.waiting[:n])
	o.waiting = slices.Delete(o.waiting, 0, n)
	for _, it := range items {
		it.sending = true
	}
	return items
}

// fitLocked returns how many of those that wait fit in the next message.
func (o *coalescer[Q, R]) fitLocked() int {
	most := min(len(o.waiting), maxBatch)
	if o.kind.size == nil {
		return most
	}
	for n, bytes := 0, 0; n < most; n++ {
		//guard:client-batch-fits
		if bytes += o.kind.size(o.waiting[n].req); bytes > maxBatchBytes && n > 0 {
			return n
		}
	}
	return most
}

// fly sends items, and those that gather meanwhile, until there are none.
func (o *coalescer[Q, R]) fly(items []*item[Q, R]) {
	for items != nil {
		silent := o.send(items)
		o.mu.Lock()
		if silent {
			o.turnBackLocked()
		}
		if items = o.nextBatchLocked(); items == nil {
			o.flights--
		}
		o.mu.Unlock()
	}
}

// send sends items in one message. It reports whether the node did not answer.
func (o *coalescer[Q, R]) send(items []*item[Q, R]) (silent bool) {
	reqs := make([]Q, len(items))
	for i, it := range items {
		reqs[i] = it.req
		if it.op != nil {
			o.kind.stamp(it.req, it.op.stamp())
		}
	}
	o.c.stats.messages.Add(1)
	o.c.stats.items.Add(int64(len(items)))
	sent, err := sendBatch(o.c.ctx, o.c, o.n, o.kind, reqs, func(i int, r R, e *Error) {
		it := items[i]
		if it.resp, it.sent = r, true; e != nil {
			it.err = e
		}
	})
	//guard:client-batch-unknown
	if err != nil && fromCall(err, sent).Code == codes.Unimplemented {
		o.sendEach(items)
		return false
	}
	for _, it := range items {
		if err != nil {
			it.sent, it.err = sent, err
		}
		close(it.done)
	}
	return o.c.ctx.Err() == nil && silentNode(sent, err)
}

// sendEach sends items one by one to a node of a version that does not know such batches, and has
// later ones go alone for a while.
func (o *coalescer[Q, R]) sendEach(items []*item[Q, R]) {
	o.mu.Lock()
	o.alone = o.c.clock.Now() + int64(batchAgain)
	o.mu.Unlock()
	for _, it := range items {
		one := func() {
			defer close(it.done)
			it.resp, it.sent, it.err = o.sendOne(o.c.ctx, it.req, it.op)
		}
		if !o.c.start(one) {
			it.err = errClosed()
			close(it.done)
		}
	}
}

// sendBatch is one attempt of a batch. The results come only if there is no
// error.
func sendBatch[Q, R any](ctx context.Context, c *Client, n *node, k kind[Q, R], reqs []Q, put func(i int, r R, e *Error)) (sent bool, err error) {
	return c.unary(ctx, n, 0, func(ctx context.Context, opts ...grpc.CallOption) error {
		got, err := k.many(ctx, n.conn(), reqs, put, opts...)
		if err == nil && got != len(reqs) {
			err = &Error{Message: "the node answered another number of items than it was asked", unknown: true}
		}
		return err
	})
}

// each calls put for each result of a batch that is one of the request's.
func each[X any](xs []X, n int, put func(i int, x X)) int {
	for i := range xs[:min(len(xs), n)] {
		put(i, xs[i])
	}
	return len(xs)
}

// itemError returns the error of an item of a batch, nil if it has been answered. An item with
// neither is no answer: what became of it is not known, and asking again does not help.
func itemError(e *commonpb.Error, answered bool) *Error {
	switch {
	case e.GetCode() != 0:
		return fromItem(e)
	//guard:item-unanswered
	case e != nil || !answered:
		return &Error{Code: codes.Internal, Message: "the node's answer has neither a result nor an error for this item: it is malformed, or of a later version",
			Hint: "upgrade the client to the version of the nodes", unknown: true}
	}
	return nil
}

// decidedBy returns who has decided an item of a batch, and under which epoch.
func decidedBy(by []*commonpb.Decider, i uint32) (owner string, epoch uint64) {
	if uint64(i) >= uint64(len(by)) {
		return "", 0
	}
	return by[i].GetOwner(), by[i].GetEpoch()
}

var checkKind = kind[*limitpb.CheckRequest, *limitpb.CheckResponse]{
	stamp: func(q *limitpb.CheckRequest, id *commonpb.RequestId) { q.RequestId = unlessKeyed(id, q.IdempotencyKey) },
	one: func(ctx context.Context, conn *grpc.ClientConn, q *limitpb.CheckRequest, opts ...grpc.CallOption) (*limitpb.CheckResponse, error) {
		return limitpb.NewLimitServiceClient(conn).Check(ctx, q, opts...)
	},
	many: func(ctx context.Context, conn *grpc.ClientConn, qs []*limitpb.CheckRequest, put func(int, *limitpb.CheckResponse, *Error), opts ...grpc.CallOption) (int, error) {
		r, err := limitpb.NewLimitServiceClient(conn).BatchCheck(ctx, &limitpb.BatchCheckRequest{Checks: qs}, opts...)
		return each(r.GetResults(), len(qs), func(i int, x *limitpb.CheckResult) {
			if a := x.GetResponse(); a != nil {
				a.Owner, a.Epoch = decidedBy(r.GetDeciders(), x.Decider)
			}
			put(i, x.GetResponse(), itemError(x.GetError(), x.GetResponse() != nil))
		}), err
	},
}

var addKind = kind[*counterpb.AddRequest, *counterpb.AddResponse]{
	stamp: func(q *counterpb.AddRequest, id *commonpb.RequestId) { q.RequestId = unlessKeyed(id, q.IdempotencyKey) },
	one: func(ctx context.Context, conn *grpc.ClientConn, q *counterpb.AddRequest, opts ...grpc.CallOption) (*counterpb.AddResponse, error) {
		return counterpb.NewCounterServiceClient(conn).Add(ctx, q, opts...)
	},
	many: func(ctx context.Context, conn *grpc.ClientConn, qs []*counterpb.AddRequest, put func(int, *counterpb.AddResponse, *Error), opts ...grpc.CallOption) (int, error) {
		r, err := counterpb.NewCounterServiceClient(conn).BatchAdd(ctx, &counterpb.BatchAddRequest{Adds: qs}, opts...)
		return each(r.GetResults(), len(qs), func(i int, x *counterpb.AddResult) {
			if a := x.GetResponse(); a != nil {
				a.Owner, a.Epoch = decidedBy(r.GetDeciders(), x.Decider)
			}
			put(i, x.GetResponse(), itemError(x.GetError(), x.GetResponse() != nil))
		}), err
	},
}

var getKind = kind[*counterpb.GetRequest, *counterpb.GetResponse]{
	one: func(ctx context.Context, conn *grpc.ClientConn, q *counterpb.GetRequest, opts ...grpc.CallOption) (*counterpb.GetResponse, error) {
		return counterpb.NewCounterServiceClient(conn).Get(ctx, q, opts...)
	},
	many: func(ctx context.Context, conn *grpc.ClientConn, qs []*counterpb.GetRequest, put func(int, *counterpb.GetResponse, *Error), opts ...grpc.CallOption) (int, error) {
		r, err := counterpb.NewCounterServiceClient(conn).BatchGet(ctx, &counterpb.BatchGetRequest{Gets: qs}, opts...)
		return each(r.GetResults(), len(qs), func(i int, x *counterpb.GetResult) {
			if a := x.GetResponse(); a != nil {
				a.Owner, a.Epoch = decidedBy(r.GetDeciders(), x.Decider)
			}
			put(i, x.GetResponse(), itemError(x.GetError(), x.GetResponse() != nil))
		}), err
	},
}

// idBytes is more than a request id takes in a message, which has none yet when it is measured.
const idBytes = 64

var acquireKind = kind[*lockpb.AcquireRequest, *lockpb.AcquireResponse]{
	stamp: func(q *lockpb.AcquireRequest, id *commonpb.RequestId) {
		q.RequestId = unlessKeyed(id, q.IdempotencyKey)
	},
	size: func(q *lockpb.AcquireRequest) int { return q.SizeVT() + idBytes },
	one: func(ctx context.Context, conn *grpc.ClientConn, q *lockpb.AcquireRequest, opts ...grpc.CallOption) (*lockpb.AcquireResponse, error) {
		return lockpb.NewLockServiceClient(conn).Acquire(ctx, q, opts...)
	},
	many: func(ctx context.Context, conn *grpc.ClientConn, qs []*lockpb.AcquireRequest, put func(int, *lockpb.AcquireResponse, *Error), opts ...grpc.CallOption) (int, error) {
		r, err := lockpb.NewLockServiceClient(conn).BatchAcquire(ctx, &lockpb.BatchAcquireRequest{Acquires: qs}, opts...)
		return each(r.GetResults(), len(qs), func(i int, x *lockpb.AcquireResult) {
			if a := x.GetResponse(); a != nil {
				a.Owner, a.Epoch = decidedBy(r.GetDeciders(), x.Decider)
			}
			put(i, x.GetResponse(), itemError(x.GetError(), x.GetResponse() != nil))
		}), err
	},
}

var releaseKind = kind[*lockpb.ReleaseRequest, *lockpb.ReleaseResponse]{
	stamp: func(q *lockpb.ReleaseRequest, id *commonpb.RequestId) {
		q.RequestId = unlessKeyed(id, q.IdempotencyKey)
	},
	one: func(ctx context.Context, conn *grpc.ClientConn, q *lockpb.ReleaseRequest, opts ...grpc.CallOption) (*lockpb.ReleaseResponse, error) {
		return lockpb.NewLockServiceClient(conn).Release(ctx, q, opts...)
	},
	many: func(ctx context.Context, conn *grpc.ClientConn, qs []*lockpb.ReleaseRequest, put func(int, *lockpb.ReleaseResponse, *Error), opts ...grpc.CallOption) (int, error) {
		r, err := lockpb.NewLockServiceClient(conn).BatchRelease(ctx, &lockpb.BatchReleaseRequest{Releases: qs}, opts...)
		return each(r.GetResults(), len(qs), func(i int, x *lockpb.ReleaseResult) {
			if a := x.GetResponse(); a != nil {
				a.Owner, a.Epoch = decidedBy(r.GetDeciders(), x.Decider)
			}
			put(i, x.GetResponse(), itemError(x.GetError(), x.GetResponse() != nil))
		}), err
	},
}
