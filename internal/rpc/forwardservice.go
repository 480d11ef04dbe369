package rpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	pb "github.com/keystead/keystead/proto/keystead/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// forwards is the ForwardService: calls that other nodes pass on.
type forwards struct {
	peerv1.UnimplementedForwardServiceServer
	s *Server
}

// Forward answers the calls of one stream. Those that wait for a lock do so
// beside it; all others are done in the order in which they come.
func (f *forwards) Forward(stream grpc.BidiStreamingServer[peerv1.ForwardRequest, peerv1.ForwardResponse]) error {
	in := &inbound{s: f.s, stream: stream, waiting: map[uint64]context.CancelFunc{}}
	defer in.end()
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := checkSize(req, MaxBatch); err != nil {
			return f.s.refuse(err)
		}
		if err := checkItems(len(req.Calls)); err != nil {
			return f.s.refuse(err)
		}
		if err := in.take(req); err != nil {
			return err
		}
	}
}

// inbound is a stream of calls from another node.
type inbound struct {
	s      *Server
	stream grpc.BidiStreamingServer[peerv1.ForwardRequest, peerv1.ForwardResponse]
	wg     sync.WaitGroup

	send sync.Mutex // one answer is written at a time

	mu      sync.Mutex
	waiting map[uint64]context.CancelFunc // guarded by mu: calls beside the stream, by tag
}

// take does the calls of one message and answers those that need not wait.
func (in *inbound) take(req *peerv1.ForwardRequest) error {
	in.s.busy.Add(1)
	defer in.s.busy.Add(-1)
	in.s.cfg.Metrics.received.Add(float64(len(req.Calls)))
	in.mu.Lock()
	for _, tag := range req.Cancelled {
		if cancel := in.waiting[tag]; cancel != nil {
			cancel()
		}
	}
	in.mu.Unlock()
	patience := time.Now().Add(maxBehind)
	resp := &peerv1.ForwardResponse{Answers: make([]*peerv1.ForwardAnswer, 0, len(req.Calls))}
	for _, c := range req.Calls {
		if a := c.GetAcquire(); a != nil && a.WaitNs > 0 {
			if answer := in.beside(c); answer != nil {
				resp.Answers = append(resp.Answers, answer)
			}
			continue
		}
		resp.Answers = append(resp.Answers, in.answer(in.stream.Context(), c, patience))
	}
	return in.reply(resp)
}

func (in *inbound) reply(resp *peerv1.ForwardResponse) error {
	if len(resp.Answers) == 0 {
		return nil
	}
	in.send.Lock()
	defer in.send.Unlock()
	return in.stream.Send(resp)
}

// beside starts a call that may wait for long. It returns an answer if there is
// no room for it.
func (in *inbound) beside(c *peerv1.ForwardCall) *peerv1.ForwardAnswer {
	if err := in.s.begin(); err != nil {
		return failed(c.Tag, wire(errOverloaded))
	}
	ctx, cancel := context.WithCancel(in.stream.Context())
	if c.DeadlineNs > 0 {
		ctx, cancel = context.WithTimeout(in.stream.Context(), time.Duration(c.DeadlineNs))
	}
	in.mu.Lock()
	in.waiting[c.Tag] = cancel
	in.mu.Unlock()
	in.wg.Go(func() {
		defer in.s.calls.Add(-1)
		in.s.busy.Add(1)
		defer in.s.busy.Add(-1)
		answer := in.answer(ctx, c, time.Now().Add(maxBehind))
		in.mu.Lock()
		delete(in.waiting, c.Tag)
		in.mu.Unlock()
		cancel()
		_ = in.reply(&peerv1.ForwardResponse{Answers: []*peerv1.ForwardAnswer{answer}}) // the sender is gone
	})
	return nil
}

func (in *inbound) end() {
	in.mu.Lock()
	for _, cancel := range in.waiting {
		cancel()
	}
	in.mu.Unlock()
	in.wg.Wait()
}

// answer does one call here; it is never passed on again. A node that is behind
// waits until it knows what the sender knows.
func (in *inbound) answer(ctx context.Context, c *peerv1.ForwardCall, patience time.Time) *peerv1.ForwardAnswer {
	for {
		if in.s.stopped.Load() {
			return failed(c.Tag, wire(errStopping))
		}
		t := in.s.cfg.Cluster.Table() // before the decision, so that a later one is not waited for
		answer, err := in.s.decide(ctx, c)
		if err == nil {
			answer.Tag = c.Tag
			return answer
		}
		if !in.s.elsewhere(err) {
			return failed(c.Tag, wire(err))
		}
		if !in.catchUp(ctx, c, t, patience) {
			return failed(c.Tag, notOwner(in.s.cfg.Cluster.Table(), hashOf(c)))
		}
	}
}

// catchUp waits for a later table if this node is behind the sender, or hands
// the row over; it returns false if there is no point in waiting, or no time.
func (in *inbound) catchUp(ctx context.Context, c *peerv1.ForwardCall, t *table.Table, patience time.Time) bool {
	cluster := in.s.cfg.Cluster
	m, since, ok := t.Owner(hashOf(c))
	mine := ok && m.Holder() == cluster.Self()
	if !mine && ok && since >= c.Since {
		return false
	}
	ctx, cancel := context.WithDeadline(ctx, patience)
	defer cancel()
	_, err := cluster.Await(ctx, t.Epoch)
	return err == nil
}

func failed(tag uint64, w *pb.Error) *peerv1.ForwardAnswer {
	return &peerv1.ForwardAnswer{Tag: tag, Answer: &peerv1.ForwardAnswer_Error{Error: w}}
}
