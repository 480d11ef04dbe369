package chunk

import (
	"container/list"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/keystead/keystead/internal/failure"
)

// Bounds.
const (
	// MaxKeys is how many buckets a node holds chunks of: 12 MB with the longest
	// keys. Checks of others are made at the owner.
	MaxKeys = 16_384
	// MaxWaiters is how many callers may wait for one bucket.
	MaxWaiters = 10_000

	shards = 16
	// tries is how often the owner is asked for less when it has not as much.
	tries = 4
)

// Fault is an error of Charge that the parameters of the bucket, or the cost, are to blame
// for. It is for callers that state the same parameters, and not for others of the key.
type Fault struct{ Err error }

func (f *Fault) Error() string { return f.Err.Error() }

// ErrFull says that the node may hold no chunk for a cost: it is too great, or there
// are chunks of as many buckets as may be.
var ErrFull = errors.New("chunk: no room")

var errWaiters = &failure.Error{Reason: failure.TooManyWaiters, RetryAfter: 50e6,
	Message: "as many calls as this node allows wait for tokens of this limit; nothing was spent",
	Hint:    "try again later, or call the owner of the key"}

var errSlow = &failure.Error{Reason: failure.Unavailable, RetryAfter: 200e6,
	Message: "the owner of the key did not answer in time; nothing was allowed, though tokens may have been taken",
	Hint:    "try again: it comes back, or another node takes over within seconds"}

var errClosed = &failure.Error{Reason: failure.Unavailable, RetryAfter: 500e6,
	Message: "the node is stopping; nothing was spent", Hint: "ask another node"}

// Bucket is a token bucket, by its address and the parameters that a caller states. A
// bucket has one name: a default one must be filled in.
type Bucket struct {
	Key, Name string
	Limit     uint64 // tokens that come back per Period
	Period    int64  // ns
	Burst     uint64 // most tokens at once
}

// address is where a bucket is, whatever its parameters: the owner has one there, and
// so a node has one chunk.
type address struct{ key, name string }

// same reports whether two callers of a bucket state the same parameters.
func (b *Bucket) same(o *Bucket) bool {
	return b.Limit == o.Limit && b.Period == o.Period && b.Burst == o.Burst
}

// ID names a charge at the owner, so that it is not made twice. Charges of a client
// are made one after the other.
type ID struct {
	Client   [16]byte
	Sequence uint64 // from 1; those below are settled
}

// Config is what a Cache needs.
type Config struct {
	// Charge charges tokens at the owner, as one check with a burst that is smaller by
	// Slack, under an id. Without an answer before ctx ends it fails.
	Charge func(ctx context.Context, b *Bucket, id ID, tokens uint64) (allowed bool, t Report, err error)
	// Now is the time in nanoseconds; only differences matter.
	Now func() int64
}

// Cache holds the chunks of a node. Its methods may be called from any goroutine.
type Cache struct {
	cfg     Config
	process uint64 // first half of client ids
	clients atomic.Uint64
	seed    maphash.Seed
	shards  [shards]shard
	ctx     context.Context // ends at Close
	stop    context.CancelFunc
	running sync.WaitGroup
}

type shard struct {
	mu     sync.Mutex
	cells  map[address]*entry // guarded by mu, and all in them
	swept  int64              // guarded by mu: when idle ones were forgotten
	closed bool               // guarded by mu
}

// entry is a cell and the callers that wait for it.
type entry struct {
	cell
	bucket Bucket     // with the parameters that all in cell is of
	id     ID         // of the last charge
	taking bool       // a goroutine asks the owner
	queue  *list.List // of *waiter, in the order in which they came
	came   uint64     // number of the last one that came to the queue
	asked  uint64     // … before the owner was last asked
}

// waiter is a caller in the queue.
type waiter struct {
	bucket Bucket
	cost   uint64
	most   uint64        // that the node may hold
	number uint64        // in the order in which they came, from 1
	take   bool          // it may give back what it gets
	done   chan struct{} // closed when the rest is set
	answer Answer
	err    error
}

// New returns a Cache without any chunks.
func New(cfg Config) *Cache {
	k := &Cache{cfg: cfg, seed: maphash.MakeSeed()}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	k.process = binary.BigEndian.Uint64(b[:])
	k.ctx, k.stop = context.WithCancel(context.Background())
	for i := range k.shards {
		k.shards[i].cells = map[address]*entry{}
	}
	return k
}

// Close ends the waits, and the charges under way. The tokens that the node holds are
// lost.
func (k *Cache) Close() {
	k.stop()
	for i := range k.shards {
		sh := &k.shards[i]
		sh.mu.Lock()
		sh.closed = true // nobody begins anything more
		sh.mu.Unlock()
	}
	k.running.Wait()
}

// Spend spends a cost of a bucket, or says that it is refused. most is how many
// tokens the node may hold (Cap). The cost is at least 1. Errors: ErrFull, an
// *failure.Error, what Charge failed with, or the context's.
func (k *Cache) Spend(ctx context.Context, b Bucket, cost, most uint64) (Answer, error) {
	return k.get(ctx, b, cost, most, false)
}

// Take is Spend of a caller that decides later whether it needs the tokens. If they are allowed, Keep or GiveBack
// has to follow, soon: what is taken counts as held.
func (k *Cache) Take(ctx context.Context, b Bucket, cost, most uint64) (Answer, Taken, error) {
	a, err := k.get(ctx, b, cost, most, true)
	return a, a.taken, err
}

// Keep has what was taken be spent.
func (k *Cache) Keep(x Taken) {
	x.shard.mu.Lock()
	defer x.shard.mu.Unlock()
	x.entry.keep(k.cfg.Now(), &x)
}

// GiveBack puts what was taken back into the chunk. It is lost if the time of that is over, or callers state other
// parameters by now.
func (k *Cache) GiveBack(x Taken) {
	x.shard.mu.Lock()
	defer x.shard.mu.Unlock()
	x.entry.give(k.cfg.Now(), &x)
}

func (k *Cache) get(ctx context.Context, b Bucket, cost, most uint64, take bool) (Answer, error) {
	if cost > most {
		return Answer{}, ErrFull
	}
	sh := &k.shards[maphash.String(k.seed, b.Key)%shards]
	sh.mu.Lock()
	now := k.cfg.Now()
	e := k.entry(sh, &b, now)
	if e == nil {
		sh.mu.Unlock()
		return Answer{}, ErrFull
	}
	if e.queue.Len() == 0 && (!e.taking || e.bucket.same(&b)) {
		e.become(&b)
		if a, ok := e.decide(sh, now, cost, take); ok {
			sh.mu.Unlock()
			return a, nil
		}
	}
	if e.queue.Len() >= MaxWaiters {
		sh.mu.Unlock()
		return Answer{}, errWaiters
	}
	e.came++
	w := &waiter{bucket: b, cost: cost, most: most, number: e.came, take: take, done: make(chan struct{})}
	place := e.queue.PushBack(w)
	if !e.taking {
		if sh.closed {
			e.leave(place)
			sh.mu.Unlock()
			return Answer{}, errClosed
		}
		e.taking = true
		k.running.Go(func() { k.serve(sh, e) })
	}
	sh.mu.Unlock()
	select {
	case <-w.done:
		return w.answer, w.err
	case <-ctx.Done():
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	select {
	case <-w.done: // decided meanwhile
		return w.answer, w.err
	default:
		e.leave(place)
		return Answer{}, ctx.Err()
	}
}

// entry finds or makes the entry of a bucket; nil if there is no room. The caller
// holds the shard.
func (k *Cache) entry(sh *shard, b *Bucket, now int64) *entry {
	at := address{b.Key, b.Name}
	if e := sh.cells[at]; e != nil {
		return e
	}
	if len(sh.cells) >= MaxKeys/shards && now-sh.swept >= int64(Lease) {
		sh.swept = now
		for at, e := range sh.cells {
			if !e.taking && e.queue.Len() == 0 && e.idle(now) {
				delete(sh.cells, at)
			}
		}
	}
	if len(sh.cells) >= MaxKeys/shards {
		return nil
	}
	e := &entry{bucket: *b, queue: list.New()}
	e.window = now / int64(Lease)
	binary.BigEndian.PutUint64(e.id.Client[:], k.process)
	binary.BigEndian.PutUint64(e.id.Client[8:], k.clients.Add(1))
	sh.cells[at] = e
	return e
}

// become makes the entry one of the parameters that a caller states. What is left of a
// chunk that was taken by others is lost: beside one by these it might be more than
// the node may hold.
func (e *entry) become(b *Bucket) {
	if e.bucket.same(b) {
		return
	}
	e.bucket, e.asked = *b, 0
	//guard:chunk-parameters
	e.forget()
}

// decide decides a cost by what is known here, if it can.
func (e *entry) decide(sh *shard, now int64, cost uint64, take bool) (Answer, bool) {
	if take {
		if x, ok := e.take(now, cost); ok {
			a := e.answer(now, true, 0)
			a.taken, a.taken.shard, a.taken.entry = x, sh, e
			return a, true
		}
	} else if e.spend(now, cost) {
		return e.answer(now, true, 0), true
	}
	if left, ok := e.refuses(now, cost); ok {
		if cost > e.denied {
			left = addTime(left, e.bucket.refill(cost-e.denied))
		}
		return e.answer(now, false, left), true
	}
	return Answer{}, false
}

// decideQueue decides for callers that wait, as far as that can be done without the owner.
func (e *entry) decideQueue(sh *shard, now int64) {
	for place := e.queue.Front(); place != nil; place = e.queue.Front() {
		w := place.Value.(*waiter)
		e.become(&w.bucket)
		a, ok := e.decide(sh, now, w.cost, w.take)
		if !ok {
			break
		}
		e.reply(place, a)
	}
	// A caller that was there when the owner was asked, and needs more than it said was left and
	// those before do not need, is refused.
	have := e.left + e.report.Remaining
	for place := e.queue.Front(); place != nil; {
		w, next := place.Value.(*waiter), place.Next()
		switch {
		case w.number > e.asked || !w.bucket.same(&e.bucket):
			return
		case w.cost <= have:
			have -= w.cost
		default:
			back := max(int64(Rest), e.bucket.refill(w.cost-have)-(now-e.reportedAt))
			if e.denied == 0 || w.cost < e.denied {
				e.denied, e.again, e.due = w.cost, now+int64(Rest), addTime(now, back)
			}
			e.reply(place, e.answer(now, false, back))
		}
		place = next
	}
}

// reply gives a waiter its answer.
func (e *entry) reply(place *list.Element, a Answer) {
	w := e.leave(place)
	w.answer = a
	close(w.done)
}

// refill returns how long so many tokens take to come back, in ns.
func (b *Bucket) refill(tokens uint64) int64 {
	hi, lo := bits.Mul64(tokens, uint64(b.Period))
	if hi >= b.Limit {
		return math.MaxInt64
	}
	ns, _ := bits.Div64(hi, lo, b.Limit)
	return int64(min(ns, math.MaxInt64-1)) + 1
}

// possible returns the most that the owner can have, or one less: what it said, and what
// came back since.
func (e *entry) possible(now int64) uint64 {
	if e.report == (Report{}) {
		return e.bucket.Burst
	}
	hi, lo := bits.Mul64(uint64(max(0, now-e.reportedAt)), e.bucket.Limit)
	if hi >= uint64(e.bucket.Period) {
		return e.bucket.Burst
	}
	back, _ := bits.Div64(hi, lo, uint64(e.bucket.Period))
	return e.report.Remaining + min(back, e.bucket.Burst)
}

// leave takes a waiter out of the queue.
func (e *entry) leave(place *list.Element) *waiter {
	return e.queue.Remove(place).(*waiter)
}

// waiting returns what those at the head of the queue ask for in all that state the entry's
// parameters.
func (e *entry) waiting() (cost uint64) {
	for place := e.queue.Front(); place != nil; place = place.Next() {
		w := place.Value.(*waiter)
		if !w.bucket.same(&e.bucket) {
			break
		}
		cost += w.cost
	}
	return cost
}

// serve decides for callers that wait until none does, and asks the owner for what
// that takes. It is the only one that does so for the entry.
func (k *Cache) serve(sh *shard, e *entry) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for {
		e.decideQueue(sh, k.cfg.Now())
		if e.queue.Len() == 0 {
			e.taking = false
			return
		}
		//guard:chunk-taken-room
		if w := e.queue.Front().Value.(*waiter); w.cost > e.room(w.most) {
			e.leave(e.queue.Front())
			w.err = ErrFull
			close(w.done)
			continue
		}
		if err := k.charge(sh, e, e.queue.Front().Value.(*waiter)); err != nil {
			if !e.fail(err) {
				e.taking = false
				return
			}
		}
	}
}

// fail gives an error of the owner's to callers that wait: to those that state the same
// parameters, if it is about these. It reports whether others are left.
func (e *entry) fail(err error) bool {
	var fault *Fault
	own := errors.As(err, &fault)
	for place := e.queue.Front(); place != nil; {
		w, next := place.Value.(*waiter), place.Next()
		//guard:fault-is-its-callers true
		//guard:nonsense-at-the-door true
		if !own || w.bucket.same(&e.bucket) {
			e.leave(place)
			w.err = err
			if own {
				w.err = fault.Err
			}
			close(w.done)
		}
		place = next
	}
	return e.queue.Len() > 0
}

// charge asks the owner for what the first in the queue needs, and best for all of
// them, and lets go of the shard meanwhile.
func (k *Cache) charge(sh *shard, e *entry, first *waiter) error {
	ctx, cancel := context.WithTimeout(k.ctx, Lease)
	defer cancel()
	sent := k.cfg.Now()
	least, tokens := e.wants(sent, first.cost, e.waiting(), first.most)
	tokens = max(least, min(tokens, e.possible(sent)))
	for try := 1; ; try++ {
		e.id.Sequence++
		e.asked = e.came
		id := e.id
		sh.mu.Unlock()
		allowed, report, err := k.cfg.Charge(ctx, &e.bucket, id, tokens)
		sh.mu.Lock()
		now := k.cfg.Now()
		switch {
		case err != nil && k.ctx.Err() != nil:
			return errClosed
		case err != nil && ctx.Err() != nil:
			return errSlow
		case err != nil:
			return err
		case allowed && now-sent >= int64(Lease):
			return errSlow
		case allowed:
			e.took(now, sent, tokens, report)
			return nil
		case tokens > least: // in the end the least, to learn how long that takes
			tokens, sent = fewer(tokens, least, report.Remaining, try), now
			continue
		}
		e.deny(now, sent, first.cost, report)
		return nil
	}
}

// fewer returns how many tokens to ask for after more were refused.
func fewer(tokens, least, remaining uint64, try int) uint64 {
	if try >= tries-1 || remaining < least {
		return least
	}
	return max(least, min(remaining, tokens)/uint64(try)) // others take of it, too
}
