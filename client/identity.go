package client

import (
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/keystead/keystead/internal/clock"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// identity makes request ids, and tracks the operations that are not finished.
type identity struct {
	client [16]byte
	clock  clock.Clock

	mu   sync.Mutex // guards what follows
	next uint64
	open operation // head of the ring of unfinished operations, by sequence
}

// operation is a call and its retries.
type operation struct {
	of         *identity
	seq        uint64
	named      bool  // it has an idempotency key
	sent       bool  // guarded by of.mu
	first      int64 // when it was first sent; guarded by of.mu
	prev, succ *operation

	refused bool // by the latest answer
}

// says notes whether the answer is a yes.
func (op *operation) says(yes bool) {
	if op != nil {
		op.refused = !yes
	}
}

func newIdentity(c clock.Clock) *identity {
	id := &identity{clock: c}
	id.open.prev, id.open.succ = &id.open, &id.open
	_, _ = rand.Read(id.client[:]) // never fails: it ends the process
	return id
}

// begin starts an operation. It must be finished, also after giving up.
func (id *identity) begin() *operation {
	op := &operation{of: id}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.next++
	op.seq = id.next
	op.prev, op.succ = id.open.prev, &id.open
	op.prev.succ, op.succ.prev = op, op
	return op
}

// under notes that the operation has an idempotency key, unless that is "".
func (op *operation) under(key string) *operation {
	op.named = key != ""
	return op
}

// keyTime is how long after its first attempt an operation under an idempotency key is sent
// again that may have been done. It is half of how long nodes keep keys unless they are told
// otherwise, as it is with request ids; but a key has no age by which a node could tell.
const keyTime = 150 * time.Second

// errKeyTime is why such an operation is not sent again.
var errKeyTime = errors.New("nodes may have forgotten the idempotency key, and would do it again")

// outlived reports whether nodes may have forgotten the idempotency key of an operation.
func (op *operation) outlived() bool {
	return op != nil && op.named && op.of.clock.Now()-op.firstSent() > int64(keyTime)
}

// finish marks the operation as answered, or never to be sent again.
func (op *operation) finish() {
	op.of.mu.Lock()
	defer op.of.mu.Unlock()
	if op.prev != nil {
		op.prev.succ, op.succ.prev = op.succ, op.prev
		op.prev, op.succ = nil, nil
	}
}

// stamp returns the request id of the attempt that is sent now.
func (op *operation) stamp() *commonpb.RequestId {
	now := op.of.clock.Now()
	op.of.mu.Lock()
	defer op.of.mu.Unlock()
	r := &commonpb.RequestId{Client: op.of.client[:], Sequence: op.seq, Settled: op.seq}
	if lowest := op.of.open.succ; lowest != &op.of.open {
		r.Settled = min(lowest.seq, op.seq) // a finished one may still be on its way out
	}
	if op.sent {
		r.AgeNs = max(now-op.first, 1)
		return r
	}
	op.sent, op.first = true, now
	return r
}

// firstSent returns when the operation was first sent, by the clock.
func (op *operation) firstSent() int64 {
	op.of.mu.Lock()
	defer op.of.mu.Unlock()
	return op.first
}
