package forward

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
	"github.com/keystead/keystead/internal/vtcodec"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Bounds of the way to other nodes.
const (
	// LinksPerPeer are streams to one node. A key always takes the same one, so
	// that its calls stay in order. With one stream, calls that come at the same time
	// share a message as often as they can, which is most of what forwarding costs.
	LinksPerPeer = 1
	// MaxQueued bounds the calls to one node that wait to be sent, for each
	// stream. Those sent are bounded by the receiver's flow control and by
	// MaxCalls.
	MaxQueued = 16_384
	// maxQueuedBytes bounds them once more: several times what the largest batch
	// takes.
	maxQueuedBytes = 8 << 20
	// maxFlush bounds the calls of one message.
	maxFlush = 1_000
	// answerWindow is how many bytes of answers may be on their way to this node over one
	// stream, some 20,000 of them. It is fixed. Left to itself, grpc finds out what the way
	// holds, with a ping in every round trip that brings answers.
	answerWindow = 2 << 20
	// PeerIdle is how long connections to a node that is no member any more, or
	// that nothing is sent to, are kept.
	PeerIdle = 30 * time.Second
	// OpenTime is how long a node has to accept a stream. Calls to one that is cut
	// off wait for so long before they fail.
	OpenTime = time.Second
	// PartingTime is how long a member that was taken out of the table may still
	// answer: one that stops in order says itself that it did nothing.
	PartingTime = 200 * time.Millisecond
)

// What may become of an attempt that is not answered.
var (
	// ErrUnheard is what a caller is told whose call may have taken effect.
	ErrUnheard = &failure.Error{Reason: failure.OutcomeUnknown, RetryAfter: 200 * time.Millisecond,
		Message: "the call was passed on to the owner of the key and no answer came; it may have taken effect",
		Hint:    "try again with the same request id to learn what became of it"}

	ErrUnsent = errors.New("it was never sent")
	ErrBroken = errors.New("it was sent, and the answer did not come")
	ErrMoved  = errors.New("it was never sent, and the key has another owner now")
)

// Attempt is one call on its way to one node. What is exported does not change.
type Attempt struct {
	To    table.Holder // the node
	Since uint64       // epoch by which it was chosen
	Call  *Call        // nobody writes to it
	Began time.Time

	hash uint64
	wire *peerv1.ForwardCall // the call as it is sent
	size int                 // of wire, in bytes
	link *link               // nil = there is none any more: it is done
	done chan struct{}       // closed when answer or err is there

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

// Wait returns the answer, or ErrUnsent, ErrBroken, ErrMoved, or what gone or stopped
// return: the caller has left, or is sent away because this node stops. keeps reports
// whether the receiver knows what to keep for a caller that may come back another way.
func (a *Attempt) Wait(ctx context.Context, gone func(context.Context) error, stopping <-chan struct{}, stopped error, keeps func() bool) (*peerv1.ForwardAnswer, error) {
	if a.link == nil {
		return a.answer, a.err
	}
	select {
	case <-a.done:
		return a.answer, a.err
	case <-ctx.Done():
		return a.link.abandon(a, gone(ctx), false)
	case <-stopping:
		return a.link.abandon(a, stopped, keeps())
	}
}

// The headers of a stream between nodes: for which cluster, and for which of its nodes,
// the sender takes the node that answers at the address. A node that cannot be reached
// for long stays in the table of a cluster without a majority, and another one may be at
// its address by then.
const (
	ClusterHeader = "x-keystead-cluster"
	TargetHeader  = "x-keystead-target"
)

// Table is what links go by.
type Table interface {
	// Table is the ownership table as this node knows it; it is never nil.
	Table() *table.Table
	// Await returns the first table that it learns of whose epoch is above after, or the
	// error of the context.
	Await(ctx context.Context, after uint64) (*table.Table, error)
}

// LinksConfig is what Links need.
type LinksConfig struct {
	Table Table
	// Dial connects to other nodes. nil = TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Full is the error of a call for which there is no room.
	Full error
	// MaxMessage bounds the bytes of a message that is sent, and MaxReceive of one that
	// is received.
	MaxMessage, MaxReceive int
}

// Links are the ways to other nodes.
type Links struct {
	cfg LinksConfig
	mu  sync.Mutex
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
	links [LinksPerPeer]*link
	used  time.Time // last; guarded by links.mu
}

// NewLinks returns links that have to be closed.
func NewLinks(cfg LinksConfig) *Links {
	l := &Links{cfg: cfg, peers: map[place]*peer{}}
	l.halt, l.stop = context.WithCancel(context.Background())
	l.wg.Go(l.follow)
	return l
}

// Submit sends a call to a member, now. The attempt ends by itself if the member no
// longer owns the key.
func (l *Links) Submit(ctx context.Context, hash uint64, to table.Member, since uint64, call *Call, now time.Time) *Attempt {
	a := &Attempt{To: to.Holder(), Since: since, Call: call, Began: now, hash: hash, done: make(chan struct{})}
	p, err := l.peer(to, now)
	if err == nil {
		err = a.encode(l.cfg.Table.Table())
	} else {
		err = ErrUnsent
	}
	if err != nil {
		a.err = err
		close(a.done)
		return a
	}
	if d, ok := ctx.Deadline(); ok {
		a.wire.DeadlineNs = max(int64(time.Until(d)), 1)
	}
	a.link = p.links[hash%LinksPerPeer]
	a.link.add(a)
	return a
}

// encode writes the call as the nodes of this table understand it.
func (a *Attempt) encode(t *table.Table) (err error) {
	//guard:envelope-level t.Uses(EnvelopeLevel) -> true
	if a.wire, err = Encode(a.Call, t.Uses(EnvelopeLevel)); err != nil {
		return &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second, Message: err.Error() + "; nothing happened",
			Hint: "upgrade all nodes: `keystead status` shows their versions"}
	}
	a.wire.Since, a.size = a.Since, a.wire.SizeVT()
	return nil
}

// peer returns the links to a member, which are used now.
func (l *Links) peer(to table.Member, now time.Time) (*peer, error) {
	at := place{to.Node, to.GRPCAddr}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers == nil {
		return nil, ErrUnsent
	}
	p := l.peers[at]
	if p == nil {
		conn, err := l.dial(at.addr)
		if err != nil {
			return nil, err
		}
		p = &peer{conn: conn}
		for i := range p.links {
			k := &link{conn: conn, node: at.node, table: l.cfg.Table.Table, full: l.cfg.Full, most: l.cfg.MaxMessage, wake: make(chan struct{}, 1), pending: map[uint64]*Attempt{}}
			p.links[i] = k
			l.wg.Go(func() { k.run(l.halt) })
		}
		l.peers[at] = p
	}
	p.used = now
	return p, nil
}

func (l *Links) dial(addr string) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.New()), grpc.MaxCallRecvMsgSize(l.cfg.MaxReceive)),
		grpc.WithStaticStreamWindowSize(answerWindow), grpc.WithStaticConnWindowSize(answerWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: OpenTime,
		}),
	}
	if d := l.cfg.Dial; d != nil {
		opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return d(ctx, addr) }))
	}
	return grpc.NewClient("passthrough:///"+addr, opts...)
}

// follow ends attempts whose member is gone, and closes what is idle.
func (l *Links) follow() {
	tick := time.NewTicker(PeerIdle / 2)
	defer tick.Stop()
	tables := make(chan *table.Table)
	l.wg.Go(func() {
		for after := uint64(0); ; {
			t, err := l.cfg.Table.Await(l.halt, after)
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
	again := time.NewTimer(PeerIdle)
	defer again.Stop()
	for {
		select {
		case latest = <-tables:
			l.review(latest, again)
		case <-again.C:
			l.review(latest, again)
		case <-tick.C:
			l.CloseIdle(PeerIdle)
		case <-l.halt.Done():
			return
		}
	}
}

// review looks through all attempts after a change of the table, and sets the
// timer if it has to be done again.
func (l *Links) review(t *table.Table, again *time.Timer) {
	if t == nil {
		return
	}
	for _, p := range l.all() {
		for _, k := range p.links {
			if k.review(t, time.Now()) {
				again.Reset(PartingTime)
			}
		}
	}
}

func (l *Links) all() []*peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*peer, 0, len(l.peers))
	for _, p := range l.peers {
		out = append(out, p)
	}
	return out
}

// CloseIdle closes the connections by which nothing was sent for so long.
func (l *Links) CloseIdle(after time.Duration) {
	for _, p := range l.takeIdle(after) {
		_ = p.conn.Close()
	}
}

// takeIdle takes out those to which nothing was sent for a while. To close a connection
// may take seconds, when the other end does not read: calls to others do not wait for it.
func (l *Links) takeIdle(after time.Duration) (idle []*peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, p := range l.peers {
		busy := false
		for _, k := range p.links {
			busy = busy || k.busy()
		}
		if !busy && time.Since(p.used) > after {
			for _, k := range p.links {
				k.close()
			}
			delete(l.peers, at)
			idle = append(idle, p)
		}
	}
	return idle
}

// Close ends all attempts.
func (l *Links) Close() {
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

// Peer is a node that there is a connection to.
type Peer struct {
	Node, Addr string
	Conn       *grpc.ClientConn
	Pending    int // attempts that were not answered
}

// Peers returns the nodes that there are connections to.
func (l *Links) Peers() []Peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Peer
	for at, p := range l.peers {
		x := Peer{Node: at.node, Addr: at.addr, Conn: p.conn}
		for _, k := range p.links {
			k.mu.Lock()
			x.Pending += len(k.pending) + len(k.queue)
			k.mu.Unlock()
		}
		out = append(out, x)
	}
	return out
}
