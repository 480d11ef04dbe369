package forward

import (
	"context"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/internal/failure"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// link is a stream to another node. One goroutine opens it and sends, another
// one receives.
type link struct {
	conn  *grpc.ClientConn
	node  string              // at the other end, as the table says
	table func() *table.Table // as this node knows it
	full  error               // of a call for which there is no room
	most  int                 // bytes of a message
	wake  chan struct{}       // capacity 1: there is something to send, or the link is closed

	mu        sync.Mutex
	queue     []*Attempt          // guarded by mu
	bytes     int                 // guarded by mu: of queue
	cancelled []uint64            // guarded by mu: tags to tell the receiver of, as are
	detached  []uint64            // guarded by mu: … those whose callers may come back another way
	pending   map[uint64]*Attempt // guarded by mu: sent, by tag
	tag       uint64              // guarded by mu: last used
	closed    bool                // guarded by mu
}

func (k *link) add(a *Attempt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
		a.finishLocked(nil, ErrUnsent)
		return
	case a.size > k.most: // no message holds it
		a.finishLocked(nil, errTooLarge)
		return
	case len(k.queue) >= MaxQueued || k.bytes+a.size > maxQueuedBytes:
		a.finishLocked(nil, k.full)
		return
	}
	k.queue, k.bytes = append(k.queue, a), k.bytes+a.size
	k.nudge()
}

func (k *link) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *link) busy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.queue)+len(k.pending) > 0
}

func (k *link) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.nudge()
}

// finishLocked delivers what became of an attempt.
func (a *Attempt) finishLocked(answer *peerv1.ForwardAnswer, err error) {
	if a.state == finished {
		return
	}
	a.state, a.answer, a.err = finished, answer, err
	close(a.done)
}

// abandon returns for a caller that has left, or is sent away, for a reason by which
// nothing happened, unless it was granted a lock at that very moment. If the caller is
// sent away and has a request id, it may come back another way: keeps says that the
// receiver knows what to keep for it then.
func (k *link) abandon(a *Attempt, why error, keeps bool) (*peerv1.ForwardAnswer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch a.state {
	case finished:
		return a.answer, a.err
	case queued:
		a.finishLocked(nil, why)
		return nil, why
	}
	//guard:detached-told
	if keeps && a.Call.Waits() && a.Call.ID != nil {
		k.detached = append(k.detached, a.wire.Tag)
	} else {
		k.cancelled = append(k.cancelled, a.wire.Tag)
	}
	k.nudge()
	a.finishLocked(nil, ErrBroken)
	if a.Call.Waits() { // it stays in pending: see unwantedLocked
		if a.Call.ID != nil {
			return nil, ErrUnheard // what it may have been granted meanwhile is a retry's
		}
		return nil, why
	}
	delete(k.pending, a.wire.Tag)
	if a.Call.Harmless {
		return nil, why
	}
	return nil, ErrUnheard
}

// unwantedLocked takes back what was given as its caller left.
func (k *link) unwantedLocked(a *Attempt, f *peerv1.ForwardAnswer) {
	if a.Call.Op.Undo == nil || f.GetError() != nil || k.closed {
		return
	}
	answer, err := DecodeAnswer(f, a.Call.Op)
	if err != nil {
		return // it ends with its lease
	}
	undo := a.Call.Op.Undo(a.Call.Request, answer)
	if undo == nil {
		return
	}
	back := &Attempt{To: a.To, Since: a.Since, Call: undo, Began: time.Now(), hash: a.hash, link: k, done: make(chan struct{})}
	if back.encode(k.table()) != nil {
		return
	}
	k.queue, k.bytes = append(k.queue, back), k.bytes+back.size
	k.nudge()
}

// review ends the attempts whose receiver is gone, and those not sent yet whose
// receiver does not own their key any more. A receiver that is still there says
// itself that it did nothing. It returns whether some are about to be ended.
func (k *link) review(t *table.Table, now time.Time) (again bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for tag, a := range k.pending {
		switch {
		case t.Epoch < a.Since || t.Holds(a.To):
		case a.gone.IsZero():
			a.gone, again = now, true
		case now.Sub(a.gone) < PartingTime:
			again = true
		default:
			delete(k.pending, tag)
			a.finishLocked(nil, ErrBroken)
		}
	}
	for _, a := range k.queue {
		if m, _, ok := t.Owner(a.hash); t.Epoch >= a.Since && (!ok || m.Holder() != a.To) {
			a.finishLocked(nil, ErrMoved)
		}
	}
	return again
}

// outbound is the open stream of a link.
type outbound struct {
	stream grpc.BidiStreamingClient[peerv1.ForwardRequest, peerv1.ForwardResponse]
	end    context.CancelFunc
	broken chan struct{} // closed when all that was pending has failed
}

// run opens the stream when there is something to send, and sends.
func (k *link) run(halt context.Context) {
	var out *outbound
	drop := func() {
		if out != nil {
			out.end()
			<-out.broken
			out = nil
		}
	}
	defer func() {
		drop()
		k.fail()
	}()
	for {
		var broken chan struct{}
		if out != nil {
			broken = out.broken
		}
		select {
		case <-k.wake:
		case <-broken:
			drop()
			continue
		case <-halt.Done():
			return
		}
		// Callers that are about to add something do so first: one message for many calls
		// costs little more than for one. Where nobody is, this takes no time.
		runtime.Gosched()
		// gofail: var forwardSend struct{}

		for more := true; more; {
			if out == nil {
				if out = k.open(halt); out == nil {
					k.refuseQueued()
					break
				}
			}
			req, closed := k.next()
			if closed {
				return
			}
			if more = req != nil; more && out.stream.Send(req) != nil {
				k.unsend(req) // grpc has not taken it
				drop()
			}
		}
	}
}

// open opens the stream; nil if the node cannot be reached.
func (k *link) open(halt context.Context) *outbound {
	ctx, end := context.WithCancel(metadata.AppendToOutgoingContext(halt, ClusterHeader, k.table().UID, TargetHeader, k.node))
	timeout := time.AfterFunc(OpenTime, end)
	stream, err := peerv1.NewForwardServiceClient(k.conn).Forward(ctx)
	var accepted metadata.MD
	if err == nil {
		accepted, err = stream.Header() // nothing is sent to a node that refuses the stream
	}
	if !timeout.Stop() || err != nil || accepted == nil {
		end()
		return nil
	}
	out := &outbound{stream, end, make(chan struct{})}
	go k.receive(stream, out.broken)
	return out
}

// errTooLarge is the end of a call that no message to another node holds.
var errTooLarge = &failure.Error{Reason: failure.TooLarge, Message: "the call is larger than a message to another node may be; nothing happened"}

// next takes what is to be sent in one message.
func (k *link) next() (req *peerv1.ForwardRequest, closed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, true
	}
	if len(k.queue) == 0 && len(k.cancelled) == 0 && len(k.detached) == 0 {
		return nil, false
	}
	req = &peerv1.ForwardRequest{Calls: make([]*peerv1.ForwardCall, 0, min(len(k.queue), maxFlush)), Cancelled: k.cancelled, Detached: k.detached}
	k.cancelled, k.detached = nil, nil
	bytes, n := 0, 0
	for _, a := range k.queue {
		if n++; a.state == finished {
			k.bytes -= a.size
			continue // its caller has left
		}
		if bytes += a.size; len(req.Calls) == maxFlush || len(req.Calls) > 0 && bytes > k.most {
			n--
			break
		}
		k.tag++
		k.bytes -= a.size
		a.wire.Tag, a.state = k.tag, sent
		k.pending[k.tag] = a
		req.Calls = append(req.Calls, a.wire)
	}
	if k.queue = k.queue[n:]; len(k.queue) == 0 {
		k.queue = nil
	}
	return req, false
}

// unsend puts calls back that were not sent because the stream had ended: once,
// and they are the first to go out on the next one.
func (k *link) unsend(req *peerv1.ForwardRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var back []*Attempt
	for _, c := range req.Calls {
		a := k.pending[c.Tag]
		if a == nil {
			continue
		}
		delete(k.pending, c.Tag)
		switch {
		case a.state == finished:
		case a.unsent:
			a.finishLocked(nil, ErrUnsent)
		default:
			a.unsent, a.state = true, queued
			k.bytes += a.size
			back = append(back, a)
		}
	}
	k.queue = append(back, k.queue...)
}

// receive matches answers to attempts until the stream ends.
func (k *link) receive(stream grpc.BidiStreamingClient[peerv1.ForwardRequest, peerv1.ForwardResponse], broken chan<- struct{}) {
	defer close(broken)
	for {
		resp, err := stream.Recv()
		k.mu.Lock()
		if err != nil {
			for tag, a := range k.pending {
				delete(k.pending, tag)
				a.finishLocked(nil, ErrBroken)
			}
			k.cancelled, k.detached = nil, nil
			k.mu.Unlock()
			return
		}
		for _, answer := range resp.Answers {
			if a := k.pending[answer.Tag]; a != nil {
				delete(k.pending, answer.Tag)
				if a.state == finished {
					k.unwantedLocked(a, answer)
				}
				a.finishLocked(answer, nil)
			}
		}
		k.mu.Unlock()
	}
}

// refuseQueued fails what was never sent, because the node cannot be reached.
func (k *link) refuseQueued() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.queue {
		a.finishLocked(nil, ErrUnsent)
	}
	k.queue, k.bytes, k.cancelled, k.detached = nil, 0, nil, nil
}

// fail ends everything: the link is not used any more.
func (k *link) fail() {
	k.refuseQueued()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for tag, a := range k.pending {
		delete(k.pending, tag)
		a.finishLocked(nil, ErrBroken)
	}
}
