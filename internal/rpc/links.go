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

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	"github.com/keystead/keystead/internal/vtcodec"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Bounds of the way to other nodes.
const (
	// linksPerPeer are streams to one node. A key always takes the same one, so
	// that its calls stay in order. With one stream, calls that come at the same time
	// share a message as often as they can, which is most of what forwarding costs.
	linksPerPeer = 1
	// maxQueued bounds the calls to one node that wait to be sent, for each
	// stream. Those sent are bounded by the receiver's flow control and by
	// MaxCalls.
	maxQueued = 16_384
	// maxQueuedBytes bounds them once more: several times what the largest batch
	// takes.
	maxQueuedBytes = 8 << 20
	// maxFlush bounds the calls of one message.
	maxFlush = 1_000
	// maxFlushBytes bounds the bytes of one message, below MaxBatch.
	maxFlushBytes = MaxBatch - MaxRequest
	// peerIdle is how long connections to a node that is no member any more, or
	// that nothing is sent to, are kept.
	peerIdle = 30 * time.Second
	// openTime is how long a node has to accept a stream. Calls to one that is cut
	// off wait for so long before they fail.
	openTime = time.Second
	// partingTime is how long a member that was taken out of the table may still
	// answer: one that stops in order says itself that it did nothing.
	partingTime = 200 * time.Millisecond
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
	call  *forward.Call       // nobody writes to it
	wire  *peerv1.ForwardCall // … as it is sent
	size  int
	began time.Time
	link  *link         // nil = there is none any more: it is done
	done  chan struct{} // closed when answer or err is there

	// Guarded by link.mu until done is closed.
	gone   time.Time // when its receiver was found to be no member; zero = it is one
	state  attemptState
	unsent bool // it was put back once
	answer *peerv1.ForwardAnswer
	err    error
}

type attemptState uint8

const (
	queued attemptState = iota
	sent
	finished
)

// wait returns the answer, or errUnsent, errBroken, or that the caller has left or
// is sent away because this node stops. For keeps see abandon.
func (a *attempt) wait(ctx context.Context, stopping <-chan struct{}, keeps func() bool) (*peerv1.ForwardAnswer, error) {
	if a.link == nil {
		return a.answer, a.err
	}
	select {
	case <-a.done:
		return a.answer, a.err
	case <-ctx.Done():
		return a.link.abandon(a, gaveUp(ctx), false)
	case <-stopping:
		return a.link.abandon(a, errStopping, keeps())
	}
}

// links are the ways to other nodes.
type links struct {
	s  *Server
	mu sync.Mutex
	// peers by whom they are taken for, and where; nil = closed. Guarded by mu.
	peers map[place]*peer
	halt  context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

// place is where a member is.
type place struct{ node, addr string }

// peer is another node.
type peer struct {
	conn  *grpc.ClientConn
	links [linksPerPeer]*link
	used  time.Time // last; guarded by links.mu
}

func newLinks(s *Server) *links {
	l := &links{s: s, peers: map[place]*peer{}}
	l.halt, l.stop = context.WithCancel(context.Background())
	l.wg.Go(l.follow)
	return l
}

// submit sends a call to a member. The attempt ends by itself if the member no
// longer owns the key.
func (l *links) submit(ctx context.Context, hash uint64, to table.Member, since uint64, call *forward.Call) *attempt {
	a := &attempt{to: to.Holder(), since: since, hash: hash, call: call, began: time.Now(), done: make(chan struct{})}
	p, err := l.peer(to)
	if err == nil {
		err = a.encode(l.s.cfg.Cluster.Table())
	} else {
		err = errUnsent
	}
	if err != nil {
		a.err = err
		close(a.done)
		return a
	}
	if d, ok := ctx.Deadline(); ok {
		a.wire.DeadlineNs = max(int64(time.Until(d)), 1)
	}
	a.link = p.links[hash%linksPerPeer]
	a.link.add(a)
	return a
}

// encode writes the call as the nodes of this table understand it.
func (a *attempt) encode(t *table.Table) (err error) {
	//guard:envelope-level t.Uses(forward.EnvelopeLevel) -> true
	if a.wire, err = forward.Encode(a.call, t.Uses(forward.EnvelopeLevel)); err != nil {
		return &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second, Message: err.Error() + "; nothing happened",
			Hint: "upgrade all nodes: `keystead status` shows their versions"}
	}
	a.wire.Since, a.size = a.since, a.wire.SizeVT()
	return nil
}

func (l *links) peer(to table.Member) (*peer, error) {
	at := place{to.Node, to.GRPCAddr}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers == nil {
		return nil, errUnsent
	}
	p := l.peers[at]
	if p == nil {
		conn, err := l.dial(at.addr)
		if err != nil {
			return nil, err
		}
		p = &peer{conn: conn}
		for i := range p.links {
			k := &link{conn: conn, node: at.node, table: l.s.cfg.Cluster.Table, wake: make(chan struct{}, 1), pending: map[uint64]*attempt{}}
			p.links[i] = k
			l.wg.Go(func() { k.run(l.halt) })
		}
		l.peers[at] = p
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
			MinConnectTimeout: openTime,
		}),
	}
	if d := l.s.cfg.Dial; d != nil {
		opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return d(ctx, addr) }))
	}
	return grpc.NewClient("passthrough:///"+addr, opts...)
}

// follow ends attempts whose member is gone, and closes what is idle.
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
	var latest *table.Table
	again := time.NewTimer(peerIdle)
	defer again.Stop()
	for {
		select {
		case latest = <-tables:
			l.review(latest, again)
		case <-again.C:
			l.review(latest, again)
		case <-tick.C:
			l.closeIdle()
		case <-l.halt.Done():
			return
		}
	}
}

// review looks through all attempts after a change of the table, and sets the
// timer if it has to be done again.
func (l *links) review(t *table.Table, again *time.Timer) {
	if t == nil {
		return
	}
	for _, p := range l.all() {
		for _, k := range p.links {
			if k.review(t, time.Now()) {
				again.Reset(partingTime)
			}
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
	for _, p := range l.takeIdle() {
		_ = p.conn.Close()
	}
}

// takeIdle takes out those to which nothing was sent for a while. To close a connection
// may take seconds, when the other end does not read: calls to others do not wait for it.
func (l *links) takeIdle() (idle []*peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, p := range l.peers {
		busy := false
		for _, k := range p.links {
			busy = busy || k.busy()
		}
		if !busy && time.Since(p.used) > peerIdle {
			for _, k := range p.links {
				k.close()
			}
			delete(l.peers, at)
			idle = append(idle, p)
		}
	}
	return idle
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
