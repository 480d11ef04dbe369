package client

import (
	"context"
	"slices"
	"sync"
	"time"

	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// CheckResult is the answer to one check of a batch, or its error.
type CheckResult struct {
	Decision
	Err error
}

// AddResult is the answer to one add of a batch, or its error.
type AddResult struct {
	Change
	Err error
}

// GetResult is the answer to one read of a batch, or its error.
type GetResult struct {
	Count
	Err error
}

// BatchCheck decides checks, at most MaxItems, each on its own; they may be of any limits.
// They go to their owners in parallel, and the results are in the order of the checks.
// Checks of one key are done in order, unless some of them have to be sent again or the
// limit is split. The error is that of the whole batch; an item's is in its result.
func (c *Client) BatchCheck(ctx context.Context, qs []Check) ([]CheckResult, error) {
	return c.batchCheck(ctx, len(qs), func(i int) Check { return qs[i] })
}

// BatchCheck is Check for many keys, as Client.BatchCheck does it.
func (l Limit) BatchCheck(ctx context.Context, keys []string) ([]CheckResult, error) {
	return l.c.batchCheck(ctx, len(keys), func(i int) Check { return Check{Limit: l, Key: keys[i]} })
}

func (c *Client) batchCheck(ctx context.Context, n int, at func(i int) Check) ([]CheckResult, error) {
	out := make([]CheckResult, n)
	b := batch[*limitpb.CheckRequest, *limitpb.CheckResponse]{c: c, kind: checkKind, what: "check",
		fail:   func(i int, err error) { out[i].Err = err },
		accept: func(i int, r *limitpb.CheckResponse) { out[i].Decision = decision(r) },
		check: func(i int) error {
			q := at(i)
			if err := q.judgeRule(q.rule()); err != nil {
				return err
			}
			return q.judgeOptions()
		},
	}
	return out, b.run(ctx, n, func(i int) (object, *limitpb.CheckRequest, bool) {
		q := at(i)
		return q.object(), q.wire(), !q.Peek // a node refuses those Anywhere
	})
}

// BatchAdd does adds as BatchCheck does checks.
func (c *Client) BatchAdd(ctx context.Context, qs []Add) ([]AddResult, error) {
	out := make([]AddResult, len(qs))
	b := batch[*counterpb.AddRequest, *counterpb.AddResponse]{c: c, kind: addKind, what: "add",
		fail:   func(i int, err error) { out[i].Err = err },
		accept: func(i int, r *counterpb.AddResponse) { out[i].Change = changed(r) },
		check:  func(i int) error { return judgeOptions(qs[i].Options) },
	}
	return out, b.run(ctx, len(qs), func(i int) (object, *counterpb.AddRequest, bool) {
		q := &qs[i]
		return q.Counter.object(q.Key, q.Options), q.Counter.addition(q.Key, q.Delta, q.Options), true
	})
}

// BatchGet reads counters as BatchCheck does checks.
func (c *Client) BatchGet(ctx context.Context, qs []Get) ([]GetResult, error) {
	return c.batchGet(ctx, len(qs), func(i int) (name, key string) { return qs[i].Counter.name, qs[i].Key })
}

// BatchGet is Get for many keys, as Client.BatchGet does it.
func (n Counter) BatchGet(ctx context.Context, keys []string) ([]GetResult, error) {
	return n.c.batchGet(ctx, len(keys), func(i int) (name, key string) { return n.name, keys[i] })
}

func (c *Client) batchGet(ctx context.Context, n int, at func(i int) (name, key string)) ([]GetResult, error) {
	out := make([]GetResult, n)
	b := batch[*counterpb.GetRequest, *counterpb.GetResponse]{c: c, kind: getKind, what: "get",
		fail:   func(i int, err error) { out[i].Err = err },
		accept: func(i int, r *counterpb.GetResponse) { out[i].Count = counted(r) },
	}
	return out, b.run(ctx, n, func(i int) (object, *counterpb.GetRequest, bool) {
		name, key := at(i)
		return objectAt(counterObject, key, name), &counterpb.GetRequest{Key: key, Name: name}, false
	})
}

// batch is a call with many items.
type batch[Q, R any] struct {
	c      *Client
	kind   kind[Q, R]
	what   string // the operation of an item, for errors
	accept func(i int, r R)
	fail   func(i int, err error)
	check  func(i int) error // what is wrong with an item beside its address; nil = nothing ever is
	// reqs are those of the items that have no answer yet.
	reqs []pending[Q]
}

// pending is an item that has no answer yet.
type pending[Q any] struct {
	at      int // in the call
	req     Q
	op      *operation // nil = changes nothing
	route   route
	unknown bool // some attempt may have taken effect
	last    *Error
	node    string // that the last attempt was made at
}

// run sends all items, and again those whose failure may pass, until none is left or
// the time is over.
func (b *batch[Q, R]) run(ctx context.Context, n int, item func(i int) (of object, req Q, changes bool)) error {
	if err := b.c.callable(ctx); err != nil {
		return about(err, b.what, "", "")
	}
	if b.c.observed() {
		return b.runObserved(ctx, n, item)
	}
	return b.perform(ctx, n, item)
}

// perform is run without an Observer.
func (b *batch[Q, R]) perform(ctx context.Context, n int, item func(i int) (of object, req Q, changes bool)) error {
	if err := tooMany(n); err != nil {
		return about(err, b.what, "", "")
	}
	ctx, cancel := b.c.bounded(ctx, b.c.cfg.Timeout)
	defer cancel()
	if err := b.c.enter(ctx, b.c.opSlots); err != nil {
		return about(err, b.what, "", "")
	}
	defer func() { <-b.c.opSlots }()
	var ops []*operation
	defer func() {
		for _, op := range ops {
			op.finish()
		}
	}()
	for i := range n {
		of, req, changes := item(i)
		err := address(of.key, of.name)
		if err == nil && b.check != nil {
			err = b.check(i)
		}
		if err != nil {
			b.fail(i, about(err, b.what, of.key, ""))
			continue
		}
		p := pending[Q]{at: i, req: req}
		if changes {
			p.op = b.c.ops.begin().under(any(req).(interface{ GetIdempotencyKey() string }).GetIdempotencyKey())
			ops = append(ops, p.op)
		}
		p.route = toObject(of, p.op).of(b.what)
		b.reqs = append(b.reqs, p)
	}
	for pause := firstPause; len(b.reqs) > 0; pause = min(2*pause, maxPause) {
		v := b.c.view.Load()
		wait := b.round(ctx, v)
		if len(b.reqs) == 0 {
			return nil
		}
		over := ctx.Err()
		if over == nil {
			over = b.c.rest(ctx, &b.reqs[0].route, v, max(pause, wait))
		}
		if over != nil {
			for _, p := range b.reqs {
				b.fail(p.at, b.over(p, over))
			}
			return nil
		}
		b.dropOutlived()
		b.c.stats.retries.Add(int64(len(b.reqs)))
	}
	return nil
}

// dropOutlived ends the items whose idempotency key nodes may have forgotten, if they may have
// been done.
func (b *batch[Q, R]) dropOutlived() {
	b.reqs = slices.DeleteFunc(b.reqs, func(p pending[Q]) bool {
		//guard:client-key-time-batch false
		over := p.unknown && p.op.outlived()
		if over {
			b.fail(p.at, b.over(p, errKeyTime))
		}
		return over
	})
}

func (b *batch[Q, R]) over(p pending[Q], over error) error {
	if b.c.ctx.Err() != nil {
		return about(b.c.closedAfter(p.unknown), b.what, p.route.key, p.node)
	}
	return about(final(p.last, p.unknown, over), b.what, p.route.key, p.node)
}

// round makes one attempt for every item: to all nodes at once, to each in
// messages one after the other. What is to be sent again stays in b.reqs; wait is the
// pause that the nodes ask for.
func (b *batch[Q, R]) round(ctx context.Context, v *view) (wait time.Duration) {
	groups := map[string][]int{} // items by address, in order
	for i := range b.reqs {
		a := b.c.address(v, &b.reqs[i].route)
		groups[a] = append(groups[a], i)
	}
	if len(groups) == 1 {
		for addr, items := range groups {
			b.toNode(ctx, v, addr, items)
		}
	} else {
		var wg sync.WaitGroup
		for addr, items := range groups {
			wg.Go(func() { b.toNode(ctx, v, addr, items) })
		}
		wg.Wait()
	}
	var again []pending[Q]
	for _, p := range b.reqs {
		switch {
		case p.last == nil: // answered
		case !p.last.retry():
			b.fail(p.at, about(final(p.last, p.unknown, nil), b.what, p.route.key, p.node))
		default:
			wait = max(wait, p.last.RetryAfter)
			again = append(again, p)
		}
	}
	b.reqs = again
	return wait
}

// toNode makes one attempt for some items at one node.
func (b *batch[Q, R]) toNode(ctx context.Context, v *view, addr string, items []int) {
	n, err := b.c.pool.acquire(addr)
	if err != nil {
		for _, i := range items {
			b.reqs[i].failed(b.c, fromCall(err, false), v, addr)
		}
		return
	}
	defer b.c.pool.release(n)
	for len(items) > 0 {
		part := items[:min(len(items), maxBatch)]
		items = items[len(part):]
		b.send(ctx, v, n, part)
	}
}

func (b *batch[Q, R]) send(ctx context.Context, v *view, n *node, items []int) {
	reqs := make([]Q, len(items))
	for k, i := range items {
		p := &b.reqs[i]
		reqs[k], p.last = p.req, nil
		if p.op != nil {
			b.kind.stamp(p.req, p.op.stamp())
		}
	}
	b.c.stats.attempts.Add(int64(len(items)))
	sent, err := sendBatch(ctx, b.c, n, b.kind, reqs, func(k int, r R, e *Error) {
		p := &b.reqs[items[k]]
		if e != nil {
			p.failed(b.c, e, v, n.addr)
			return
		}
		b.accept(p.at, r)
		if o, ok := any(r).(interface {
			GetOwner() string
			GetEpoch() uint64
		}); ok {
			b.c.answered(v, n, o.GetOwner(), o.GetEpoch())
		}
	})
	if err != nil {
		e := fromCall(err, sent)
		for _, i := range items {
			b.reqs[i].failed(b.c, e, v, n.addr)
		}
	}
}

// failed notes why an attempt at an address failed.
func (p *pending[Q]) failed(c *Client, e *Error, v *view, addr string) {
	p.node = v.nameOf(addr)
	p.last, p.unknown = e, p.unknown || e.unknown && !p.route.reads
	p.route.learn(c, e, v, addr)
}
