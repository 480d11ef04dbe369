package rpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/keystead/keystead/internal/vtcodec"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Bounds of the way to other nodes.
const (
	// linksPerPeer are streams to one node. A key always takes the same one, so
	// that its calls stay in order; two keep both directions of a connection busy.
	linksPerPeer = 2
	// maxQueued bounds the calls to one node that wait to be sent, for each
	// stream. Those sent are bounded by the receiver's flow control and by
	// MaxCalls.
	maxQueued = 16_384
	// maxFlush bounds the calls of one message.
	maxFlush = 1_000
	// maxFlushBytes bounds the bytes of one message, below MaxBatch.
	maxFlushBytes = MaxBatch - MaxRequest
	// peerIdle is how long connections to a node that is no member any more, or
	// that nothing is sent to, are kept.
	peerIdle = 30 * time.Second
)

// What may become of an attempt that is not answered.
var (
	errUnsent = errors.New("it was never sent")
	errBroken = errors.New("it was sent, and the answer did not come")
	errMoved  = errors.New("it was never sent, and the key has another owner now")
)

// attempt is one call on its way to one node.
type attempt struct {
	to    table.Holder
	since uint64
	hash  uint64
	call  *peerv1.ForwardCall
	size  int
	link  *link
	done  chan struct{} // closed when answer or err is there

	// Guarded by link.mu until done is closed.
	state  attemptState
	answer *peerv1.ForwardAnswer
	err    error
}

type attemptState uint8

const (
	queued attemptState = iota
	sent
	finished
)

// wait returns the answer, or errUnsent, errBroken, or that the caller has left.
func (a *attempt) wait(ctx context.Context) (*peerv1.ForwardAnswer, error) {
	select {
	case <-a.done:
		return a.answer, a.err
	case <-ctx.Done():
	}
	return a.link.abandon(ctx, a)
}

// links are the ways to other nodes.
type links struct {
	s  *Server
	mu sync.Mutex
	// peers by address; nil = closed. Guarded by mu.
	peers map[string]*peer
	halt  context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

// peer is another node.
type peer struct {
	conn  *grpc.ClientConn
	links [linksPerPeer]*link
	used  time.Time // last; guarded by links.mu
}

func newLinks(s *Server) *links {
	l := &links{s: s, peers: map[string]*peer{}}
	l.halt, l.stop = context.WithCancel(context.Background())
	l.wg.Go(l.follow)
	return l
}

// submit sends a call to a member. The attempt ends by itself if the member no
// longer owns the key.
func (l *links) submit(ctx context.Context, hash uint64, to table.Member, since uint64, call *peerv1.ForwardCall) *attempt {
	c := &peerv1.ForwardCall{Since: since, Call: call.Call}
	if d, ok := ctx.Deadline(); ok {
		c.DeadlineNs = max(int64(time.Until(d)), 1)
	}
	a := &attempt{to: to.Holder(), since: since, hash: hash, call: c, size: c.SizeVT(), done: make(chan struct{})}
	p, err := l.peer(to.GRPCAddr)
	if err != nil {
		a.err = errUnsent
		close(a.done)
		return a
	}
	a.link = p.links[hash%linksPerPeer]
	a.link.add(a)
	return a
}

func (l *links) peer(addr string) (*peer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers == nil {
		return nil, errUnsent
	}
	p := l.peers[addr]
	if p == nil {
		conn, err := l.dial(addr)
		if err != nil {
			return nil, err
		}
		p = &peer{conn: conn}
		for i := range p.links {
			k := &link{conn: conn, wake: make(chan struct{}, 1), pending: map[uint64]*attempt{}}
			p.links[i] = k
			l.wg.Go(func() { k.run(l.halt) })
		}
		l.peers[addr] = p
	}
	p.used = time.Now()
	return p, nil
}

func (l *links) dial(addr string) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.New()), grpc.MaxCallRecvMsgSize(maxReceive*2)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
	}
	if d := l.s.cfg.Dial; d != nil {
		opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return d(ctx, addr) }))
	}
	return grpc.NewClient("passthrough:///"+addr, opts...)
}

// follow ends attempts whose member has lost the key, and closes what is idle.
func (l *links) follow() {
	tick := time.NewTicker(peerIdle / 2)
	defer tick.Stop()
	tables := make(chan *table.Table)
	l.wg.Go(func() {
		for after := uint64(0); ; {
			t, err := l.s.cfg.Cluster.Await(l.halt, after)
			if err != nil {
				return
			}
			after = t.Epoch
			select {
			case tables <- t:
			case <-l.halt.Done():
				return
			}
		}
	})
	for {
		select {
		case t := <-tables:
			for _, p := range l.all() {
				for _, k := range p.links {
					k.review(t)
				}
			}
		case <-tick.C:
			l.closeIdle()
		case <-l.halt.Done():
			return
		}
	}
}

func (l *links) all() []*peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*peer, 0, len(l.peers))
	for _, p := range l.peers {
		out = append(out, p)
	}
	return out
}

func (l *links) closeIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for addr, p := range l.peers {
		busy := false
		for _, k := range p.links {
			busy = busy || k.busy()
		}
		if !busy && time.Since(p.used) > peerIdle {
			for _, k := range p.links {
				k.close()
			}
			_ = p.conn.Close()
			delete(l.peers, addr)
		}
	}
}

func (l *links) close() {
	l.stop()
	l.mu.Lock()
	peers := l.peers
	l.peers = nil
	l.mu.Unlock()
	for _, p := range peers {
		_ = p.conn.Close()
	}
	l.wg.Wait()
}

// link is a stream to another node. One goroutine opens it and sends, another
// one receives.
type link struct {
	conn *grpc.ClientConn
	wake chan struct{} // capacity 1: there is something to send, or the link is closed

	mu        sync.Mutex
	queue     []*attempt          // guarded by mu
	cancelled []uint64            // guarded by mu: tags to tell the receiver of
	pending   map[uint64]*attempt // guarded by mu: sent, by tag
	tag       uint64              // guarded by mu: last used
	closed    bool                // guarded by mu
}

func (k *link) add(a *attempt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
		a.finishLocked(nil, errUnsent)
		return
	case len(k.queue) >= maxQueued:
		a.finishLocked(nil, errOverloaded)
		return
	}
	k.queue = append(k.queue, a)
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
func (a *attempt) finishLocked(answer *peerv1.ForwardAnswer, err error) {
	if a.state == finished {
		return
	}
	a.state, a.answer, a.err = finished, answer, err
	close(a.done)
}

// abandon is for a caller that has left.
func (k *link) abandon(ctx context.Context, a *attempt) (*peerv1.ForwardAnswer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch a.state {
	case finished:
		return a.answer, a.err
	case queued:
		a.finishLocked(nil, errUnsent)
		return nil, gaveUp(ctx)
	}
	delete(k.pending, a.call.Tag)
	k.cancelled = append(k.cancelled, a.call.Tag)
	k.nudge()
	if acquire, waits := a.call.Call.(*peerv1.ForwardCall_Acquire); waits && acquire.Acquire.WaitNs > 0 {
		a.finishLocked(nil, errBroken)
		return nil, gaveUp(ctx) // the receiver takes it out of the queue, or gives the lock back
	}
	a.finishLocked(nil, errBroken)
	if changesNothing(a.call) {
		return nil, gaveUp(ctx)
	}
	return nil, errUnheard
}

// review ends the attempts whose receiver does not own their key any more.
func (k *link) review(t *table.Table) {
	k.mu.Lock()
	defer k.mu.Unlock()
	moved := func(a *attempt) bool {
		m, _, ok := t.Owner(a.hash)
		return t.Epoch >= a.since && (!ok || m.Holder() != a.to)
	}
	for tag, a := range k.pending {
		if moved(a) {
			delete(k.pending, tag)
			a.finishLocked(nil, errBroken)
		}
	}
	for _, a := range k.queue {
		if moved(a) {
			a.finishLocked(nil, errMoved)
		}
	}
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
				drop()
			}
		}
	}
}

// open opens the stream; nil if the node cannot be reached.
func (k *link) open(halt context.Context) *outbound {
	ctx, end := context.WithCancel(halt)
	stream, err := peerv1.NewForwardServiceClient(k.conn).Forward(ctx)
	if err != nil {
		end()
		return nil
	}
	out := &outbound{stream, end, make(chan struct{})}
	go k.receive(stream, out.broken)
	return out
}

// next takes what is to be sent in one message.
func (k *link) next() (req *peerv1.ForwardRequest, closed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, true
	}
	if len(k.queue) == 0 && len(k.cancelled) == 0 {
		return nil, false
	}
	req = &peerv1.ForwardRequest{Cancelled: k.cancelled}
	k.cancelled = nil
	bytes, n := 0, 0
	for _, a := range k.queue {
		if n++; a.state == finished {
			continue // its caller has left
		}
		if bytes += a.size; len(req.Calls) == maxFlush || bytes > maxFlushBytes {
			n--
			break
		}
		k.tag++
		a.call.Tag, a.state = k.tag, sent
		k.pending[k.tag] = a
		req.Calls = append(req.Calls, a.call)
	}
	if k.queue = k.queue[n:]; len(k.queue) == 0 {
		k.queue = nil
	}
	return req, false
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
				a.finishLocked(nil, errBroken)
			}
			k.cancelled = nil
			k.mu.Unlock()
			return
		}
		for _, answer := range resp.Answers {
			if a := k.pending[answer.Tag]; a != nil {
				delete(k.pending, answer.Tag)
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
		a.finishLocked(nil, errUnsent)
	}
	k.queue, k.cancelled = nil, nil
}

// fail ends everything: the link is not used any more.
func (k *link) fail() {
	k.refuseQueued()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for tag, a := range k.pending {
		delete(k.pending, tag)
		a.finishLocked(nil, errBroken)
	}
}
