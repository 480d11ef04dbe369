package feed

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// Times of a connection, with their reasons.
const (
	// openTime is how long a target has to answer a hello: longer than it may wait
	// for a table.
	openTime = MaxBehind + time.Second
	// stallTime is for how long nothing may be acknowledged until the connection
	// is taken for broken: longer than anything that a target does.
	stallTime = 10 * time.Second
	// firstPause and lastPause are between two tries to connect.
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// stream is one connection to the target.
type stream = grpc.BidiStreamingClient[peerv1.FeedRequest, peerv1.FeedResponse]

// run connects until the sender fails.
func (s *Sender) run() {
	pause := firstPause
	for number := uint64(1); s.ctx.Err() == nil; number++ {
		err := s.connect(number)
		var refused *Refused
		if errors.Is(err, ErrForgotten) || errors.Is(err, ErrNonsense) || errors.As(err, &refused) && !refused.passing() {
			s.fail(err)
		}
		if s.ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		s.stats.Reconnects++
		if s.progress {
			pause = firstPause
		}
		s.progress = false
		s.mu.Unlock()
		s.cfg.Log.Debug("the stream to a copy broke", "target", s.cfg.Target.Node, "connection", number, "error", err)
		wait := time.NewTimer(pause/2 + time.Duration(s.rnd.Int64N(int64(pause))))
		select {
		case <-wait.C:
		case <-s.ctx.Done():
			wait.Stop()
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// connect sends what there is over one connection until it breaks, and returns
// why.
func (s *Sender) connect(number uint64) error {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	timeout := time.AfterFunc(openTime, func() { cancel(errors.New("the target does not answer")) })
	defer timeout.Stop()
	conn, err := s.cfg.Dial(ctx)
	if err != nil {
		return err
	}
	if c, ok := conn.(io.Closer); ok {
		defer func() { _ = c.Close() }()
	}
	st, err := peerv1.NewStateServiceClient(conn).Feed(ctx)
	if err != nil {
		return err
	}
	if err := s.greet(st, number); err != nil {
		return err
	}
	if !timeout.Stop() {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	s.watch = time.AfterFunc(stallTime, func() { cancel(errors.New("the target acknowledges nothing")) })
	s.watch.Stop() // nothing is in flight
	s.mu.Unlock()
	received := make(chan struct{})
	go func() {
		defer close(received)
		cancel(s.receive(st))
	}()
	s.send(ctx, st)
	cancel(nil)
	<-received
	s.mu.Lock()
	s.watch.Stop()
	s.watch = nil
	s.mu.Unlock()
	return context.Cause(ctx)
}

// greet says hello and finds where to go on.
func (s *Sender) greet(st stream, number uint64) error {
	err := st.Send(&peerv1.FeedRequest{Request: &peerv1.FeedRequest_Hello{Hello: &peerv1.FeedHello{
		Version: Version,
		Source:  s.cfg.Source.Node, SourceIncarnation: s.cfg.Source.Incarnation,
		Target: s.cfg.Target.Node, TargetIncarnation: s.cfg.Target.Incarnation,
		Session: s.cfg.Session, Connection: number,
	}}})
	if err != nil && !errors.Is(err, io.EOF) { // after EOF, Recv knows why
		return err
	}
	resp, err := st.Recv()
	if err != nil {
		return err
	}
	if r := resp.GetRefusal(); r != nil {
		return &Refused{r.Reason, r.Message}
	}
	w := resp.GetWelcome()
	if w == nil {
		return ErrNonsense
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	//guard:feed-forgotten
	case w.Applied < s.acked.Load():
		return ErrForgotten
	case !w.Known && w.Applied > 0, !s.sentOnceLocked(w.Applied), !s.ackLocked(w.Applied):
		return ErrNonsense
	}
	s.sent = 0
	return nil
}

// sentOnceLocked reports whether the target may have a record.
func (s *Sender) sentOnceLocked(seq uint64) bool {
	if s.err != nil || seq <= s.acked.Load() {
		return true
	}
	return seq <= s.last.Load() && s.holdingLocked(seq).stamped
}

// send sends until the connection ends.
func (s *Sender) send(ctx context.Context, st stream) {
	for {
		now := s.cfg.Now()
		s.mu.Lock()
		b := s.nextLocked(now)
		if b != nil {
			s.watchLocked()
		}
		s.mu.Unlock()
		if b == nil {
			select {
			case <-s.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if err := s.sendOne(st, b); err != nil {
			<-ctx.Done() // receive knows why
			return
		}
	}
}

// sendOne sends a batch. The epoch is asked for only now, when no record is added
// any more, so that it is not below that of the table under which one of them was
// appended.
func (s *Sender) sendOne(st stream, b *batch) error {
	if !b.stamped {
		epoch := s.cfg.Epoch()
		sum := checksum(s.cfg.Session, b.first, b.count, epoch, b.buf)
		s.mu.Lock()
		b.epoch, b.sum, b.stamped = epoch, sum, true
		s.mu.Unlock()
	}
	err := st.Send(&peerv1.FeedRequest{Request: &peerv1.FeedRequest_Batch{Batch: &peerv1.FeedBatch{
		Session: s.cfg.Session, First: b.first, Count: uint32(b.count), Epoch: b.epoch, Records: b.buf, Checksum: b.sum, Urgent: b.urgent || b.asks,
	}}})
	s.mu.Lock()
	b.sending = false
	s.mu.Unlock()
	return err
}

// receive takes acknowledgements until the connection ends, and returns why.
func (s *Sender) receive(st stream) error {
	for {
		resp, err := st.Recv()
		if err != nil {
			return err
		}
		if r := resp.GetRefusal(); r != nil {
			return &Refused{r.Reason, r.Message}
		}
		ack := resp.GetAck()
		if ack == nil {
			return ErrNonsense
		}
		s.mu.Lock()
		kept := s.kept.Load()
		ok := s.sentHereLocked(ack.Applied) && s.ackLocked(ack.Applied) && s.keepLocked(ack.Kept)
		s.rounds.Store(max(ack.Rounds, s.rounds.Load()))
		if s.kept.Load() == kept || s.sent == 0 { // its disk is no sign that the target takes records in
			s.watchLocked()
		}
		s.mu.Unlock()
		if !ok {
			return ErrNonsense
		}
		s.nudge()
	}
}

// sentHereLocked reports whether a record was sent over the present connection, or
// acknowledged before.
func (s *Sender) sentHereLocked(seq uint64) bool {
	return s.err != nil || seq <= s.acked.Load() || s.sent > 0 && seq <= s.queue[s.sent-1].last()
}

// watchLocked winds the watch up, or stops it if nothing is in flight.
func (s *Sender) watchLocked() {
	switch {
	case s.watch == nil:
	case s.sent > 0:
		s.watch.Reset(stallTime)
	default:
		s.watch.Stop()
	}
}
