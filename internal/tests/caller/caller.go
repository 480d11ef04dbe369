// Package caller is a client of Keystead as the protocol has it, without the comfort of the
// client library: it numbers its requests, and knows what an attempt without an answer
// means. What tests send through it is what a client in another language would send.
//
//	Begin ─▶ Request ─▶ ID for each attempt ─▶ FateOf its error ─▶ End
//
// It does not retry, connect or wait: tests do that in ways of their own.
package caller

import (
	"encoding/binary"
	"sync"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// Caller numbers the requests of one client process. It may be used concurrently.
type Caller struct {
	id  []byte
	now func() int64 // ns

	mu   sync.Mutex
	last uint64           // guarded by mu: the latest number
	open map[uint64]int64 // guarded by mu: by number, when requests began that are not settled
}

// New returns a caller with an id made of two numbers, which has to be its own. Ages of
// requests are counted by now, in ns.
func New(a, b uint64, now func() int64) *Caller {
	id := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, a), b)
	return &Caller{id: id, now: now, open: map[uint64]int64{}}
}

// Request is one operation of a caller, with all of its attempts. It belongs to one
// goroutine.
type Request struct {
	Sequence uint64
	Began    int64 // ns

	c    *Caller
	sent bool
}

// Begin numbers a request. It has to be ended.
func (c *Caller) Begin() *Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	r := &Request{Sequence: c.last, Began: c.now(), c: c}
	c.open[r.Sequence] = r.Began
	return r
}

// ID returns the request id of the next attempt. From the second on it has an age.
func (r *Request) ID() *commonpb.RequestId {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	id := &commonpb.RequestId{Client: c.id, Sequence: r.Sequence, Settled: r.Sequence}
	for other := range c.open {
		id.Settled = min(id.Settled, other)
	}
	if r.sent {
		id.AgeNs = max(c.now()-r.Began, 1)
	}
	r.sent = true
	return id
}

// End settles a request: it is not sent again.
func (r *Request) End() {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	delete(r.c.open, r.Sequence)
}
