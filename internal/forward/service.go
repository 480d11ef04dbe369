package forward

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/failure"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Forward answers the calls of one stream. Those that wait, for a lock or for a
// table, do so beside it; all others are done in the order in which they come. Their
// answers overtake each other when they wait for different copies.
func (s *Service[D]) Forward(stream grpc.BidiStreamingServer[peerv1.ForwardRequest, peerv1.ForwardResponse]) error {
	if err := s.r.meant(stream.Context()); err != nil {
		return s.cfg.Refuse(err)
	}
	in := &inbound[D]{s: s, stream: stream, turn: make(chan struct{}, 1), waiting: map[uint64]context.CancelCauseFunc{}, ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	in.wg.Go(in.sendHeld)
	defer in.end()
	if err := stream.SendHeader(nil); err != nil { // the stream is accepted
		return err
	}
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.cfg.Check(req); err != nil {
			return s.cfg.Refuse(err)
		}
		if err := in.answerAll(req); err != nil {
			return err
		}
	}
}

// inbound is a stream of calls from another node.
type inbound[D any] struct {
	s      *Service[D]
	stream grpc.BidiStreamingServer[peerv1.ForwardRequest, peerv1.ForwardResponse]
	wg     sync.WaitGroup
	later  Later[D] // empty, for the next message; of the goroutine that receives

	turn chan struct{} // capacity 1, full while somebody sends: that takes as long as the other end does not read

	ready chan struct{} // capacity 1: there are answers in outbox, or held is 0
	room  chan struct{} // capacity 1: outbox was emptied

	mu      sync.Mutex
	waiting map[uint64]context.CancelCauseFunc // guarded by mu: calls beside the stream, by tag
	outbox  []*peerv1.ForwardAnswer            // guarded by mu: they were held back, and need not be any more
	held    int                                // guarded by mu: in lanes and in outbox
	ending  bool                               // guarded by mu: no more calls come
	ended   bool                               // guarded by mu: nothing can be sent any more
}

// answerAll does the calls of one message and answers those that need not wait.
func (in *inbound[D]) answerAll(req *peerv1.ForwardRequest) error {
	if err := in.awaitRoom(); err != nil {
		return err
	}
	in.s.cfg.Calls.Busy(1)
	defer in.s.cfg.Calls.Busy(-1)
	in.s.cfg.Received(len(req.Calls))
	in.mu.Lock()
	for _, tag := range req.Cancelled {
		if cancel := in.waiting[tag]; cancel != nil {
			cancel(nil)
		}
	}
	for _, tag := range req.Detached {
		if cancel := in.waiting[tag]; cancel != nil {
			cancel(ErrWayEnded)
		}
	}
	in.mu.Unlock()
	bytes := 0 // of resp
	later := in.later[:0]
	resp := &peerv1.ForwardResponse{Answers: make([]*peerv1.ForwardAnswer, 0, len(req.Calls))}
	var late deferredCalls
	for _, f := range req.Calls {
		answer := in.receive(f, &later, &late)
		if answer == nil {
			continue
		}
		if n := len(later); n > 0 && later[n-1].place < 0 {
			later[n-1].place = len(resp.Answers)
		}
		resp.Answers = append(resp.Answers, answer)
		// Only looks at long queues come to this.
		if bytes += answer.SizeVT(); bytes > in.s.cfg.MaxMessage {
			if err := in.confirmAndReply(resp, later); err != nil {
				return err
			}
			clear(later)
			resp, later, bytes = &peerv1.ForwardResponse{}, later[:0], 0
		}
	}
	for _, q := range late.queues {
		resp.Answers = append(resp.Answers, in.hold(q)...)
	}
	err := in.confirmAndReply(resp, later)
	clear(later)
	if in.later = later[:0]; cap(later) > maxFlush {
		in.later = nil
	}
	return err
}

// receive does one call of a message, and returns its answer if that need not wait.
func (in *inbound[D]) receive(f *peerv1.ForwardCall, later *Later[D], late *deferredCalls) *peerv1.ForwardAnswer {
	c, err := Decode(f, in.s.cfg.Known)
	if err != nil {
		return Failed(f.Tag, in.s.r.cfg.Wire(unreadable(err)))
	}
	switch {
	//guard:lists-beside c.Op.Beside -> c.Op.Bare
	case c.Waits() || c.Op.Beside:
		return in.beside(c)
	case late.follows(c):
		return nil
	//guard:lane-has-room
	case in.s.lanes.full(c):
		return Failed(c.Tag, in.s.r.cfg.Wire(errManyHeld))
	}
	answer, behind, _ := in.try(in.stream.Context(), c, later)
	if behind || turnedBack(answer) {
		late.add(c, answer, behind)
		return nil
	}
	return answer
}

// unreadable returns the error of a call that this node cannot read.
func unreadable(err error) error {
	if errors.As(err, new(*Unknown)) {
		return &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second, Message: err.Error() + ", which owns the key; nothing happened",
			Hint: "upgrade this node: `keystead status` shows the versions of all"}
	}
	return &failure.Error{Reason: failure.Invalid, Field: "call", Message: err.Error()}
}

// confirmAndReply sends the answers of a message. Those that wait for copies go by the lane of
// the process for which they wait, and hold up no others.
func (in *inbound[D]) confirmAndReply(resp *peerv1.ForwardResponse, later Later[D]) error {
	now := in.s.cfg.Now()
	for i := range later {
		p := &later[i]
		answer := resp.Answers[p.place]
		//guard:answers-wait-forwarded
		if behind := in.s.behind(p); behind != (table.Behind{}) {
			resp.Answers[p.place] = in.s.lanes.hold(held[D]{in, answer, *p, behind}) // nil, unless there is no room
		} else if err := in.s.cfg.Confirm(&p.Decision, now, nil); err != nil {
			resp.Answers[p.place] = Failed(answer.Tag, in.s.r.cfg.Wire(err))
		}
	}
	resp.Answers = slices.DeleteFunc(resp.Answers, func(a *peerv1.ForwardAnswer) bool { return a == nil })
	return in.reply(resp)
}

// turnedBack reports whether nothing happened because the node does not act for the
// key.
func turnedBack(a *peerv1.ForwardAnswer) bool {
	w := a.GetError().GetReason()
	return w == commonpb.Reason_REASON_NOT_OWNER || w == commonpb.Reason_REASON_UNAVAILABLE
}

// deferredCalls are the calls of a message that were not done at once, by their keys: one that
// comes after another one on the same key waits with it and is refused with it,
// so that what is asked of one key stays in order.
type deferredCalls struct {
	queues []*deferredKey
	place  map[uint64]*deferredKey // by hash
}

type deferredKey struct {
	calls  []*Call
	answer *peerv1.ForwardAnswer // of the first one, if the node need not wait for anything
}

func (l *deferredCalls) add(c *Call, answer *peerv1.ForwardAnswer, behind bool) {
	if l.place == nil {
		l.place = map[uint64]*deferredKey{}
	}
	q := &deferredKey{calls: []*Call{c}}
	if !behind {
		q.answer = answer
	}
	l.place[lineOf(c)], l.queues = q, append(l.queues, q)
}

func (l *deferredCalls) follows(c *Call) bool {
	if len(l.place) == 0 {
		return false
	}
	q := l.place[lineOf(c)]
	if q != nil {
		q.calls = append(q.calls, c)
	}
	return q != nil
}

// failAll answers calls like one before them.
func failAll(calls []*Call, w *commonpb.Error) []*peerv1.ForwardAnswer {
	answers := make([]*peerv1.ForwardAnswer, len(calls))
	for i, c := range calls {
		answers[i] = Failed(c.Tag, w)
	}
	return answers
}

// hold has the calls on one key wait beside the stream, for keys whose rows do
// not move must not wait for them. It returns the answers if they need not, or
// there is no room for them.
func (in *inbound[D]) hold(q *deferredKey) []*peerv1.ForwardAnswer {
	if q.answer != nil {
		return failAll(q.calls, q.answer.GetError())
	}
	n := int64(len(q.calls))
	if !in.s.cfg.Calls.Begin(n) {
		return failAll(q.calls, in.s.r.cfg.Wire(in.s.r.cfg.Full))
	}
	in.wg.Go(func() {
		defer in.s.cfg.Calls.End(n)
		in.s.cfg.Calls.Busy(1)
		defer in.s.cfg.Calls.Busy(-1)
		patience := time.Now().Add(MaxBehind)
		var answers []*peerv1.ForwardAnswer
		bytes := 0 // of answers
		for i, c := range q.calls {
			answer := in.answer(in.stream.Context(), c, patience)
			size := answer.SizeVT()
			//guard:held-answers-fit
			if bytes += size; bytes > in.s.cfg.MaxMessage {
				_ = in.reply(&peerv1.ForwardResponse{Answers: answers}) // else the sender is gone
				answers, bytes = nil, size
			}
			answers = append(answers, answer)
			if turnedBack(answer) {
				answers = append(answers, failAll(q.calls[i+1:], answer.GetError())...)
				break
			}
		}
		_ = in.reply(&peerv1.ForwardResponse{Answers: answers})
	})
	return nil
}

func (in *inbound[D]) reply(resp *peerv1.ForwardResponse) error {
	if len(resp.Answers) == 0 {
		return nil
	}
	// gofail: var forwardManyConfirmed struct{}

	select {
	case in.turn <- struct{}{}:
	case <-in.stream.Context().Done():
		return in.stream.Context().Err()
	}
	defer func() { <-in.turn }()
	return in.stream.Send(resp)
}

// beside starts a call that may wait for long. It returns an answer if there is
// no room for it.
func (in *inbound[D]) beside(c *Call) *peerv1.ForwardAnswer {
	if !in.s.cfg.Calls.Begin(1) {
		_ = in.s.cfg.Refuse(in.s.r.cfg.Full) // it is counted as refused
		return Failed(c.Tag, in.s.r.cfg.Wire(in.s.r.cfg.Full))
	}
	// It is none of the stream's contexts: it would stay with the stream, which may live
	// for weeks, if it were not cancelled, and its end would be that of the caller.
	//guard:one-context-a-call insert _, _ = context.WithCancelCause(in.stream.Context())
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(in.stream.Context()))
	stop := context.CancelFunc(func() { cancel(nil) })
	if c.Deadline > 0 {
		ctx, stop = context.WithTimeout(ctx, time.Duration(c.Deadline))
	}
	in.mu.Lock()
	in.waiting[c.Tag] = cancel
	in.mu.Unlock()
	in.wg.Go(func() {
		defer in.s.cfg.Calls.End(1)
		in.s.cfg.Calls.Busy(1)
		defer in.s.cfg.Calls.Busy(-1)
		answer := in.answer(ctx, c, time.Now().Add(MaxBehind))
		in.mu.Lock()
		delete(in.waiting, c.Tag)
		in.mu.Unlock()
		stop()
		cancel(nil)
		_ = in.reply(&peerv1.ForwardResponse{Answers: []*peerv1.ForwardAnswer{answer}}) // the sender is gone
	})
	return nil
}

// ErrWayEnded is why the context of a call ends whose caller may still be there: the
// node that passed it on stops, or the stream from there is broken.
var ErrWayEnded = errors.New("the way to the caller has ended")

// end ends the calls that wait: nobody hears of them over this stream any more. That
// is not the end of their callers.
func (in *inbound[D]) end() {
	in.mu.Lock()
	for _, cancel := range in.waiting {
		cancel(ErrWayEnded)
	}
	in.ending = true
	in.mu.Unlock()
	in.nudge()
	in.wg.Wait()
}

// answer does one call here; it is never passed on again. A node that is behind
// waits until it knows what the sender knows.
func (in *inbound[D]) answer(ctx context.Context, c *Call, patience time.Time) *peerv1.ForwardAnswer {
	for {
		answer, behind, epoch := in.try(ctx, c, nil)
		if !behind || !in.awaitOnce(ctx, epoch, patience) {
			return answer
		}
	}
}

// try does one call, and reports whether to try again with a table later than epoch:
// this node is behind the sender, or hands the row over.
func (in *inbound[D]) try(ctx context.Context, c *Call, later *Later[D]) (answer *peerv1.ForwardAnswer, behind bool, epoch uint64) {
	if in.s.r.stopped() {
		return Failed(c.Tag, in.s.r.cfg.Wire(in.s.r.cfg.Stopped)), false, 0
	}
	cluster := in.s.r.cfg.Cluster
	t := cluster.Table() // before the decision, so that a later one is not waited for
	m, err := in.s.cfg.Decide(ctx, c, later)
	if err == nil {
		if answer, err = EncodeAnswer(c, m); err == nil {
			return answer, false, 0
		}
	}
	if !isElsewhere(err) {
		return Failed(c.Tag, in.s.r.cfg.Wire(err)), false, 0
	}
	return Failed(c.Tag, in.s.r.turnedAway(cluster.Table(), c)), mayBeBehind(t, c, cluster.Self()), t.Epoch
}

// awaitOnce waits for a table later than epoch, or until it is worth asking again. It
// returns false when there is no time left.
func (in *inbound[D]) awaitOnce(ctx context.Context, epoch uint64, patience time.Time) bool {
	left := time.Until(patience)
	if left <= 0 || ctx.Err() != nil {
		return false
	}
	step, cancel := context.WithTimeout(ctx, min(left, LookAgain))
	defer cancel()
	if _, err := in.s.r.cfg.Cluster.Await(step, epoch); err != nil {
		<-step.Done()
	}
	return true
}
