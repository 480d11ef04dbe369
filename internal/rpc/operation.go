package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// A verb is what a caller has to be allowed in order to do an operation.
type verb uint8

const (
	canRead  verb = iota + 1 // learn what an object is
	canWrite                 // change what an object is
	canHold                  // keep others out
	ofPeers                  // be a node of the cluster
)

// A cost is the class of what an operation takes.
type cost uint8

const (
	costsOne   cost = iota + 1 // one object, at once
	costsMany                  // as much as the object has: a list
	costsPlace                 // memory for as long as the caller waits
)

// A durability is what is true of an operation when its answer leaves.
type durability uint8

const (
	// asTold: what the answer tells was decided before, and the copies have it.
	asTold durability = iota + 1
	// asDone: what the operation did is with the copies.
	asDone
)

// operation is what the API knows of an operation, whatever its messages are. It is what
// metrics, settings and forwarding go by.
type operation struct {
	forward.Operation
	method  string // of its service
	yes, no string // what its two outcomes are called in metrics
	of      *kind
	reads   bool // it changes nothing
	verb    verb
	cost    cost
	durable durability
	level   uint32 // of the cluster, from which on all nodes know it; 0 = they all do

	// keyLevel is that from which on they know its idempotency keys.
	keyLevel uint32

	// peeks is the operation as which a request is counted that changes nothing, although
	// the operation may; nil if there is none.
	peeks *operation

	// handler is the method of a service that serves it.
	handler func(s *Server, service string) grpc.MethodDesc
	// decide does a call here. With later, its answer is not confirmed yet.
	decide func(ctx context.Context, s *Server, c *forward.Call, later *unconfirmed) (forward.Message, error)
}

// request is what forwarding and the store need of every request.
type request[Q any] interface {
	*Q
	forward.Message
	GetKey() string
	GetName() string
}

// response is a response of type A.
type response[A any] interface {
	*A
	forward.Message
}

type identified interface{ GetRequestId() *commonpb.RequestId }

type patient interface{ GetWaitNs() int64 }

// frame is what an operation is given beside its request.
type frame struct {
	ctx  context.Context
	at   owner.Ref // with the name of the kind, if the request has none
	id   reqid.ID  // the zero id if it has none
	wait int64     // how long it may wait, ns
	part *peerv1.Part
	now  int64
}

// verdict is what an operation has decided, beside its answer.
type verdict struct {
	owner.Meta
	yes bool
}

// op is an operation on requests Q that are answered by A.
type op[Q, A any, PQ request[Q], PA response[A]] struct {
	*operation
	// do decides a request on this node, and fills in the answer.
	do func(s *Server, f frame, q *Q, a *A) (verdict, error)
	// front answers the request of a user; nil = atOwner does.
	front func(s *Server, ctx context.Context, o *op[Q, A, PQ, PA], q *Q) (*A, error)
	// peek reports whether a request changes nothing; nil = none of them does, or all.
	peek func(q *Q) bool
	// divides reports whether a part of a split object can do a request; nil = no.
	divides func(q *Q) bool
	// sums reports whether all parts of a split object do a request; nil = no.
	sums func(q *Q) bool
	ids  bool // requests have ids
	keys bool // … or idempotency keys
	wait bool // requests say how long to wait
}

// changes returns an operation that changes an object.
func changes[Q, A any, PQ request[Q], PA response[A]](number uint32, method, name, yes, no string, do func(*Server, frame, *Q, *A) (verdict, error)) *op[Q, A, PQ, PA] {
	return newOp[Q, A, PQ, PA](number, name, do, &operation{method: method, yes: yes, no: no, verb: canWrite, cost: costsOne, durable: asDone})
}

// reads returns an operation that changes nothing.
func reads[Q, A any, PQ request[Q], PA response[A]](number uint32, method, name, yes, no string, do func(*Server, frame, *Q, *A) (verdict, error)) *op[Q, A, PQ, PA] {
	return newOp[Q, A, PQ, PA](number, name, do, &operation{method: method, yes: yes, no: no, reads: true, verb: canRead, cost: costsOne, durable: asTold})
}

// waits returns an operation whose callers may stand in a queue. ungive is the call that
// takes back what an answer gave and nobody heard of, nil if it gave nothing; waited adds
// to an answer what its caller had waited before.
func waits[Q, A any, PQ request[Q], PA response[A]](number uint32, method, name, yes, no string, do func(*Server, frame, *Q, *A) (verdict, error),
	ungive func(*Q, *A) *forward.Call, waited func(a *A, before int64, identified bool)) *op[Q, A, PQ, PA] {
	o := newOp[Q, A, PQ, PA](number, name, do, &operation{method: method, yes: yes, no: no, verb: canHold, cost: costsPlace, durable: asDone})
	_, o.wait = any(PQ(new(Q))).(patient)
	o.Undo = func(q, a forward.Message) *forward.Call { return ungive(any(q).(*Q), any(a).(*A)) }
	o.Waited = func(a forward.Message, before int64, identified bool) { waited(any(a).(*A), before, identified) }
	return o
}

// counted returns an operation that is never sent: it is another one in part, or of this node
// alone.
func counted(number uint32, name, yes, no string) *operation {
	return &operation{Operation: forward.Operation{Number: number, Name: name}, yes: yes, no: no, verb: canRead, cost: costsOne, durable: asTold}
}

// ofPart returns an operation of a split's home on a part. It is the same when it is done
// twice.
func ofPart[Q, A any, PQ interface {
	*Q
	forward.Message
}, PA response[A]](number uint32, name string, phase func(*Q) table.SplitPhase, do func(*Server, *peerv1.Part, *Q) (*A, error)) *operation {
	x := &operation{verb: ofPeers, cost: costsMany, durable: asDone}
	x.Operation = forward.Operation{
		Number: number, Name: name, Beside: true, Bare: true, // it waits for the copies of the part
		Request:  func() forward.Message { return PQ(new(Q)) },
		Response: func() forward.Message { return PA(new(A)) },
		Call: func(m forward.Message) forward.Call {
			return forward.Call{Op: &x.Operation, Request: m, Harmless: true, Phase: phase(any(m).(*Q))}
		},
	}
	x.decide = func(_ context.Context, s *Server, c *forward.Call, _ *unconfirmed) (forward.Message, error) {
		return answerOf[A, PA](do(s, c.Part, any(c.Request).(*Q)))
	}
	return x
}

// peeking has requests that change nothing counted as another operation.
func (o *op[Q, A, PQ, PA]) peeking(as *operation, peek func(*Q) bool) *op[Q, A, PQ, PA] {
	as.reads, o.peeks, o.peek = true, as, peek
	return o
}

// dividing has parts of split objects do the requests that divides reports.
func (o *op[Q, A, PQ, PA]) dividing(divides func(*Q) bool) *op[Q, A, PQ, PA] {
	o.divides = divides
	return o
}

// summing has all parts of a split object answer the requests together that all reports.
func (o *op[Q, A, PQ, PA]) summing(all func(*Q) bool, sum func(node string, sp *table.Split, q *Q, parts []*A) *A) *op[Q, A, PQ, PA] {
	o.sums = all
	o.Sum = func(node string, sp *table.Split, q forward.Message, parts []forward.Message) forward.Message {
		answers := make([]*A, len(parts))
		for i, m := range parts {
			answers[i] = any(m).(*A)
		}
		return PA(sum(node, sp, any(q).(*Q), answers))
	}
	return o
}

// fronted has requests of users answered by front.
func (o *op[Q, A, PQ, PA]) fronted(front func(*Server, context.Context, *op[Q, A, PQ, PA], *Q) (*A, error)) *op[Q, A, PQ, PA] {
	o.front = front
	return o
}

// mayWait has an operation answered beside the calls of its stream: it may wait for another node.
func mayWait[Q, A any, PQ request[Q], PA response[A]](o *op[Q, A, PQ, PA]) *op[Q, A, PQ, PA] {
	o.Beside = true
	return o
}

func newOp[Q, A any, PQ request[Q], PA response[A]](number uint32, name string, do func(*Server, frame, *Q, *A) (verdict, error), x *operation) *op[Q, A, PQ, PA] {
	o := &op[Q, A, PQ, PA]{operation: x, do: do}
	_, o.ids = any(PQ(new(Q))).(identified)
	_, o.keys = any(PQ(new(Q))).(keyed)
	x.Operation = forward.Operation{
		Number: number, Name: name,
		Request:  func() forward.Message { return PQ(new(Q)) },
		Response: func() forward.Message { return PA(new(A)) },
		Call:     func(m forward.Message) forward.Call { return o.describe(any(m).(*Q)) },
	}
	x.handler = o.handler
	x.decide = func(ctx context.Context, s *Server, c *forward.Call, later *unconfirmed) (forward.Message, error) {
		return answerOf[A, PA](o.decide(ctx, s, c, later))
	}
	return o
}

// answerOf keeps an answer that is nil from becoming a message that is not.
func answerOf[A any, PA response[A]](a *A, err error) (forward.Message, error) {
	if a == nil {
		return nil, err
	}
	return PA(a), err
}

// describe returns the call of a request: all but the hash of its key.
func (o *op[Q, A, PQ, PA]) describe(q *Q) forward.Call {
	c := forward.Call{Op: &o.Operation, Request: PQ(q), Key: PQ(q).GetKey(), Name: o.of.named(PQ(q).GetName()), Harmless: o.harmless(q)}
	if o.of.parts {
		c.Kind, c.Divisible, c.All = o.of.name, o.divides != nil && o.divides(q), o.sums != nil && o.sums(q)
	}
	if o.ids {
		c.ID = any(PQ(q)).(identified).GetRequestId()
	}
	//guard:key-passed
	if key := o.key(q); key != "" {
		c.ID = wireKey(key)
	}
	if o.wait {
		c.Wait = any(PQ(q)).(patient).GetWaitNs()
	}
	return c
}

// call is a request on its way to the owner of its key.
func (o *op[Q, A, PQ, PA]) call(q *Q, hash uint64) *forward.Call {
	c := o.describe(q)
	c.Hash = hash
	return &c
}

// harmless reports whether a request changes nothing.
func (o *op[Q, A, PQ, PA]) harmless(q *Q) bool { return o.reads || o.peek != nil && o.peek(q) }

// counted returns the operation as which a request is counted.
func (o *op[Q, A, PQ, PA]) counted(q *Q) *operation {
	if o.peeks != nil && o.peek(q) {
		return o.peeks
	}
	return o.operation
}

// place returns where the object of a request is: its address, with the hash of the key.
func (o *op[Q, A, PQ, PA]) place(q *Q, hash uint64) owner.Ref {
	return owner.Ref{Key: PQ(q).GetKey(), Name: o.of.named(PQ(q).GetName()), Hash: hash}
}

// frame returns what do is given for a request of a user's. A request that changes nothing has
// nothing to repeat: its id is not looked at.
func (o *op[Q, A, PQ, PA]) frame(ctx context.Context, q *Q, hash uint64, now int64) (f frame, err error) {
	f = frame{ctx: ctx, at: o.place(q, hash), now: now}
	if o.ids && !o.harmless(q) {
		f.id, err = o.idOf(q, any(PQ(q)).(identified).GetRequestId())
	}
	if o.wait {
		f.wait = any(PQ(q)).(patient).GetWaitNs()
	}
	return f, err
}

// since has the operation refused before a level of the cluster.
func (o *op[Q, A, PQ, PA]) since(level uint32) *op[Q, A, PQ, PA] {
	o.level = level
	return o
}

// keysSince has requests with an idempotency key refused before a level of the cluster: until
// then there are nodes that know the operation and not its key.
func (o *op[Q, A, PQ, PA]) keysSince(level uint32) *op[Q, A, PQ, PA] {
	o.keyLevel = level
	return o
}

// levelOf returns the error of an operation that not all nodes know yet.
func (s *Server) levelOf(o *operation) error {
	//guard:operation-sent
	if o.level != 0 && s.cfg.Cluster != nil && !s.cfg.Cluster.Table().Uses(o.level) {
		return owner.ErrLevel
	}
	return nil
}

// serve answers the request of a user.
func (o *op[Q, A, PQ, PA]) serve(ctx context.Context, s *Server, q *Q) (*A, error) {
	if err := s.levelOf(o.operation); err != nil {
		return nil, s.refuse(err)
	}
	if o.front != nil {
		return o.front(s, ctx, o, q)
	}
	return o.atOwner(ctx, s, q)
}

// atOwner has the owner of the key decide. This node asks the table first: where that has
// the key at another node, its own store is not asked.
func (o *op[Q, A, PQ, PA]) atOwner(ctx context.Context, s *Server, q *Q) (*A, error) {
	began := time.Time{}
	if o.wait {
		began = time.Now()
	}
	hash, away := s.locate(o.of, PQ(q).GetKey(), PQ(q).GetName())
	if !away {
		f, err := o.frame(ctx, q, hash, s.cfg.Clock.Now())
		a := new(A)
		if err = o.conclude(s, f, q, a, nil, err); err == nil {
			return a, nil
		}
		if !s.elsewhere(err) {
			return nil, Status(err)
		}
	}
	if err := o.passable(s, q); err != nil {
		return nil, s.refuse(err)
	}
	m, err := s.forward(ctx, o.call(q, hash), began)
	if err != nil {
		return nil, err
	}
	return any(m).(*A), nil
}

// locate returns where a key is: its position, and whether the table has it at another node.
// An object that is split is for place to find. A node that runs alone has all keys.
func (s *Server) locate(k *kind, key, name string) (hash uint64, away bool) {
	if s.cfg.Cluster == nil {
		return 0, false
	}
	hash = owner.Hash(key)
	t := s.cfg.Cluster.Table()
	i := t.Find(hash)
	if i < 0 || t.Rows[i].Owner.None() || t.Rows[i].Owner.Node == s.cfg.Node {
		return hash, false
	}
	//guard:table-asked-first s.splitAt(t, k, key, name) == nil -> false
	return hash, s.splitAt(t, k, key, name) == nil
}

// splitAt returns the split of an object; nil if it is whole.
func (s *Server) splitAt(t *table.Table, k *kind, key, name string) *table.Split {
	if len(t.Splits) == 0 || !k.parts {
		return nil
	}
	return findSplit(t, k.name, owner.Ref{Key: key, Name: k.named(name)})
}

// decide does a call on this node.
func (o *op[Q, A, PQ, PA]) decide(ctx context.Context, s *Server, c *forward.Call, later *unconfirmed) (*A, error) {
	q := any(c.Request).(*Q)
	f, err := frame{ctx: ctx, at: o.place(q, c.Hash), part: c.Part, wait: c.Wait, now: s.cfg.Clock.Now()}, error(nil)
	if !c.Harmless {
		f.id, err = o.idOf(q, c.ID)
	}
	a := new(A)
	if err := o.conclude(s, f, q, a, later, err); err != nil {
		return nil, err
	}
	return a, nil
}

// conclude decides a request whose frame was made with this error, and confirms the answer
// unless that is left for later.
func (o *op[Q, A, PQ, PA]) conclude(s *Server, f frame, q *Q, a *A, later *unconfirmed, err error) error {
	var v verdict
	if err == nil {
		v, err = o.do(s, f, q, a)
	}
	return s.one(f.ctx, later, s.row(o.counted(q)), v, err)
}

// handler returns the method of a service that serves the operation.
func (o *op[Q, A, PQ, PA]) handler(s *Server, service string) grpc.MethodDesc {
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: "/" + service + "/" + o.method}
	serve := func(ctx context.Context, q any) (any, error) {
		a, err := o.serve(ctx, s, q.(*Q))
		if err != nil {
			return nil, err // and no message that is nil
		}
		return a, nil
	}
	return grpc.MethodDesc{MethodName: o.method, Handler: func(_ any, ctx context.Context, read func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		q := new(Q)
		if err := read(q); err != nil {
			return nil, err
		}
		return intercept(ctx, q, info, serve)
	}}
}
