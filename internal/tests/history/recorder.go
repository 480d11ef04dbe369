package history

import (
	"cmp"
	"math"
	"slices"
	"sync"
)

// Never is the return of a call that had no answer.
const Never = int64(math.MaxInt64)

// Call is one attempt of a request, as its client saw it.
type Call struct {
	Client int
	Object string // histories are checked object by object
	// Request names the request: equal for an attempt and its retries. "" is a
	// request without an id, which is never retried.
	Request string
	Input   any   // a CounterInput, BucketInput or LockInput
	Start   int64 // ns by the recorder's clock
	End     int64 // … Never if there was no answer
	Output  any   // a CounterOutput, BucketOutput or LockOutput; nil if there was no answer
	// Epoch and Owner are those that the answer names; 0 and "" if there was none.
	Epoch uint64
	Owner string
}

// Recorder collects the calls of concurrent clients.
type Recorder struct {
	now func() int64

	mu    sync.Mutex
	calls []*Pending // guarded by mu
}

// NewRecorder returns a recorder that takes the time from now, in ns. It must
// not go back, and run as fast as the clock of the node.
func NewRecorder(now func() int64) *Recorder { return &Recorder{now: now} }

// Pending is a call that is under way. It belongs to one goroutine.
type Pending struct {
	r       *Recorder
	call    Call
	nothing bool
}

// Begin records a call that is about to be sent.
func (r *Recorder) Begin(client int, object, request string, in any) *Pending {
	p := &Pending{r: r, call: Call{Client: client, Object: object, Request: request, Input: in, End: Never}}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.call.Start = r.now()
	r.calls = append(r.calls, p)
	return p
}

// Add records something that is known only now to have happened, between two moments.
func (r *Recorder) Add(c Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, &Pending{r: r, call: c})
}

// By records who gave the answer, and under which epoch, before it is recorded itself.
func (p *Pending) By(owner string, epoch uint64) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.call.Owner, p.call.Epoch = owner, epoch
}

// Answer records the answer. A call that gets none is lost: it may act at any
// time, or never.
func (p *Pending) Answer(out any) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.call.Output, p.call.End = out, p.r.now()
}

// Nothing records that this attempt did nothing and never will.
func (p *Pending) Nothing() {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.nothing = true
}

// Calls returns the calls so far that did something or may have, by their start.
func (r *Recorder) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	var calls []Call
	for _, p := range r.calls {
		if !p.nothing {
			calls = append(calls, p.call)
		}
	}
	slices.SortStableFunc(calls, func(a, b Call) int { return cmp.Compare(a.Start, b.Start) })
	return calls
}
