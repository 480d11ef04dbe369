package forward

import (
	"testing"

	"github.com/keystead/keystead/ring/epoch/table"
)

// A call that is larger than a message may be is refused, or sent alone: it does not keep
// the calls behind it from being sent, nor the sender busy with empty messages.
func TestOneLargeCall(t *testing.T) {
	k := &link{most: 1<<20 - 1<<16, wake: make(chan struct{}, 1), pending: map[uint64]*Attempt{}, table: func() *table.Table { return &table.Table{Level: EnvelopeLevel} }}
	call := operation(numGet).Call(operation(numGet).Request())
	attempt := func(size int) *Attempt {
		a := &Attempt{Call: &call, link: k, done: make(chan struct{})}
		if err := a.encode(k.table()); err != nil {
			t.Fatal(err)
		}
		a.size = size
		return a
	}
	large, small := attempt(1_040_834), attempt(10)
	k.add(large)
	k.add(small)
	empty := 0
	for range 1000 {
		req, _ := k.next()
		if req == nil {
			break
		}
		if len(req.Calls) == 0 {
			empty++
		}
	}
	if empty > 0 || small.state == queued {
		t.Errorf("%d of 1000 messages were empty, and the call behind is not sent: %v", empty, small.state == queued)
	}
}
