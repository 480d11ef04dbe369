package kinds

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/keystead/keystead/internal/tests/caller"
	"github.com/keystead/keystead/internal/tests/history"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// Config says how workers work.
type Config struct {
	// Recording takes what they are told; its clock is theirs, too.
	Recording *Recording
	// Connect returns a worker's connections to the nodes that there are now. It is called
	// again when Nodes says another number. The worker closes them.
	Connect func() ([]*grpc.ClientConn, error)
	Nodes   func() int
	// Log is told of what is not in the recording.
	Log Log
	// Attempt bounds an attempt, Insist the time for which an operation is tried, from its
	// first attempt on. Its request id has to be known for longer.
	Attempt, Insist time.Duration
	// LongestTTL is that of grants.
	LongestTTL time.Duration
	// SessionTTL is that of grants under sessions: the least that nodes take.
	SessionTTL time.Duration
	// Drift is that of the nodes' clocks: workers count on leases for less.
	Drift history.Drift
	// Splits says that objects are split meanwhile: every other counter seldom gets an
	// operation that needs the whole, so that it stays split for a while; some checks have
	// no request id, so that any part may decide them; some requests are sent again after
	// their answer.
	Splits bool
	// Keyless says that some nodes may not know idempotency keys: none is sent.
	Keyless bool
	// Roam has each operation begin at a node drawn anew; else a worker stays at one that
	// answers.
	Roam bool
	// Abandon has operations that are under way given up when the context of the work ends;
	// else they are tried until they have an answer, or Insist is over.
	Abandon bool
}

// Log is told of what workers do, beside what they record.
type Log interface {
	// Answered calls on an object have a start and an end, in ns.
	Answered(key string, start, end int64, probe bool)
	// Failed attempts had no answer, and may have acted or not.
	Failed(err error, f caller.Fate)
	// Open operations were given up, and may have been done.
	Open()
	// Unexpected answers are those that nobody should get.
	Unexpected(what string)
}

// Attempts rest between these before the next.
const leastRest, mostRest = 10 * time.Millisecond, 160 * time.Millisecond

// Worker is a client that works on objects, or probes them. It belongs to one goroutine.
type Worker struct {
	cfg    Config
	number int
	rng    *rand.Rand
	calls  *caller.Caller
	nodes  int // as many as there were when it connected
	conns  []*grpc.ClientConn
	at     int // the connection that it uses, until it fails

	run    uint64            // its own among the workers of all runs: part of its idempotency keys
	seen   map[string]uint64 // by object: what its kind wants to know at the next operation
	grants int               // that it asked for: each has a holder of its own

	objects Objects // that it works on
	admits  bool    // the nodes know admissions
}

// NewWorker returns the worker of a number, its own among those of a test.
func NewWorker(cfg Config, number int, seed uint64) *Worker {
	w := &Worker{cfg: cfg, number: number, rng: rand.New(rand.NewPCG(seed, uint64(number))), seen: map[string]uint64{}}
	w.calls, w.run = caller.New(w.rng.Uint64(), uint64(number), cfg.Recording.now), w.rng.Uint64()
	w.connect()
	return w
}

// connect connects to all nodes that there are now.
func (w *Worker) connect() {
	n := w.cfg.Nodes()
	if n == w.nodes {
		return
	}
	conns, err := w.cfg.Connect()
	if err != nil {
		w.cfg.Log.Unexpected(err.Error())
		return
	}
	w.Close()
	w.nodes, w.conns, w.at = n, conns, w.rng.IntN(len(conns))
}

// Close ends its connections.
func (w *Worker) Close() {
	for _, conn := range w.conns {
		_ = conn.Close()
	}
	w.conns = nil
}

// moveOn goes to another node.
func (w *Worker) moveOn() {
	w.at = (w.at + 1 + w.rng.IntN(max(1, len(w.conns)-1))) % len(w.conns)
}

// Rest waits for a while that is drawn; false if ctx ends before.
func (w *Worker) Rest(ctx context.Context, most time.Duration) bool {
	return wait(ctx, time.Duration(1+w.rng.Int64N(int64(most))))
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Work does one thing with one of the objects: of a kind by the shares of those that there are.
func (w *Worker) Work(ctx context.Context, objects Objects) {
	sum := 0
	share := func(k *Kind) int { return k.Share * min(len(objects[k]), 1) }
	for _, k := range All {
		sum += share(k)
	}
	n := w.rng.IntN(sum)
	for _, k := range All {
		if n -= share(k); n < 0 {
			w.WorkOn(ctx, objects, k)
			return
		}
	}
}

// WorkOn does one thing with one of the objects of a kind.
func (w *Worker) WorkOn(ctx context.Context, objects Objects, k *Kind) {
	w.connect()
	w.objects = objects
	if w.cfg.Roam {
		w.moveOn()
	}
	k.Work(ctx, w, objects[k][w.rng.IntN(len(objects[k]))])
}

// Probe reads an object once, within a time.
func (w *Worker) Probe(ctx context.Context, o Object, within time.Duration) {
	w.connect()
	p := w.cfg.Recording.calls[o.Kind].Begin(w.number, o.Key, "", o.Kind.Probe.In)
	start := w.now()
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	a, err := o.Kind.Probe.Ask(attempt, w.conns[w.at], o.Key)
	if err != nil {
		p.Nothing()
		w.moveOn()
		return
	}
	p.By(a.Owner, a.Epoch)
	p.Answer(a.Out)
	w.cfg.Log.Answered(o.Key, start, w.now(), true)
}

func (w *Worker) now() int64 { return w.cfg.Recording.now() }

// operation is one that a worker does on an object.
type operation[R response] struct {
	object Object
	in     any           // of its calls in the record
	wait   time.Duration // for which the node may let it wait
	bare   bool          // it has no request id: it is not sent again once it is lost
	// repeat has it sent once more though it was answered, as a client that has not heard of the
	// answer does: its first result has to be found, wherever the object is by then.
	repeat bool
	ticket *ticket // it has one, and what it waits for stands meanwhile
	keyed  bool    // its requests may carry an idempotency key
	// late operations are those that not all nodes may know yet: one that nobody does is
	// given up at once.
	late bool
	// call sends an attempt. Bare operations have no name.
	call   func(ctx context.Context, conn *grpc.ClientConn, as name, opt grpc.CallOption) (R, error)
	output func(R) any // the output in the record
}

// name is by what the node knows the attempts of an operation: one of the two, or nothing.
type name struct {
	id  *commonpb.RequestId
	key string // an idempotency key
}

// keyedOf is how many operations there are, for one that goes under an idempotency key, of
// those that may.
const keyedOf = 3

// response is what all answers have.
type response interface {
	GetOwner() string
	GetEpoch() uint64
}

// request is an operation with its attempts.
type request[R response] struct {
	operation[R]
	*caller.Request
	w    *Worker
	name string // in the record
	key  string // under which it goes; "" = its request id
}

// attempt sends the request once. ok says that there was an answer; the fate of an attempt
// without one is what the record has.
func (r *request[R]) attempt(ctx context.Context, within time.Duration) (out R, f caller.Fate, ok bool) {
	w := r.w
	var as name
	switch {
	case r.key != "":
		as.key = r.key
	case !r.bare:
		as.id = r.ID()
	}
	p := w.cfg.Recording.calls[r.object.Kind].Begin(w.number, r.object.Key, r.name, r.in)
	start := w.now()
	var by peer.Peer
	attempt, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	out, err := r.call(attempt, w.conns[w.at], as, grpc.Peer(&by))
	if err == nil && r.ticket != nil && waits(out) {
		// It may have been sent twice on its way, so that the other one is granted it.
		w.cfg.Log.Answered(r.object.Key, start, w.now(), false)
		return out, 0, true
	}
	if err == nil {
		p.By(out.GetOwner(), out.GetEpoch())
		p.Answer(r.output(out))
		w.cfg.Log.Answered(r.object.Key, start, w.now(), false)
		return out, 0, true
	}
	f, unexpected := caller.FateOf(err, by.Addr != nil)
	if f == caller.Nothing && r.wait > 0 && !r.bare && r.ticket == nil {
		f = caller.Lost // its place in the queue, and the time in it, may be the next attempt's
	}
	if f != caller.Lost {
		p.Nothing()
	}
	w.cfg.Log.Failed(err, f)
	if unexpected != "" {
		w.cfg.Log.Unexpected(unexpected)
	}
	return out, f, false
}

// repeats is how many operations there are, for one that is sent again, of those that a
// part can do.
const repeats = 6

// repeatLater is the longest rest before that: time for a split, or for a merge.
const repeatLater = 200 * time.Millisecond

// do does one operation: attempt after attempt, at one node after the other, until there is
// an answer or the time is over. began is when the first was sent.
func do[R response](ctx context.Context, w *Worker, op operation[R]) (out R, began int64, ok bool) {
	if !w.cfg.Abandon {
		ctx = context.WithoutCancel(ctx)
	}
	r := &request[R]{operation: op, Request: w.calls.Begin(), w: w}
	defer r.End()
	if !op.bare {
		r.name = fmt.Sprint(w.number, "/", r.Sequence)
		if op.keyed && !w.cfg.Keyless && w.rng.IntN(keyedOf) == 0 {
			r.key = fmt.Sprintf("%x/%s", w.run, r.name)
		}
	}
	if r.ticket != nil {
		return poll(ctx, r)
	}
	open := false
	for most := leastRest; w.now()-r.Began < int64(w.cfg.Insist) && ctx.Err() == nil; most = min(2*most, mostRest) {
		out, f, ok := r.attempt(ctx, w.cfg.Attempt+op.wait)
		if ok {
			if w.cfg.Splits && op.repeat && w.rng.IntN(repeats) == 0 {
				w.moveOn()
				w.Rest(ctx, repeatLater)
				_, _, _ = r.attempt(ctx, w.cfg.Attempt)
			}
			return out, r.Began, true
		}
		if open = open || f == caller.Lost; f == caller.Over || open && op.bare || op.late && f == caller.Nothing && !open {
			break
		}
		w.moveOn()
		w.Rest(ctx, most)
		w.connect()
	}
	if open {
		w.cfg.Log.Open()
	}
	return out, r.Began, false
}
