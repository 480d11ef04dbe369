package cli

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/vtcodec"
)

const (
	// maxAddrs bounds the addresses in --addr.
	maxAddrs = 32
	// maxNodes bounds the nodes behind them: a name may have many addresses.
	maxNodes = 64

	// A connection has connectTimeout to come about where there is one node only. Where
	// there are several it has its share of --timeout, so that all can be tried in it.
	connectTimeout = 5 * time.Second
	minConnect     = 100 * time.Millisecond
	maxConnect     = 2 * time.Second
)

// nodes are the nodes that --addr names, as one connection. A call goes to the one that
// answered last, and on to the next if it cannot be reached or says that it did nothing.
// A call whose connection breaks is not sent again here: its caller knows whether it may
// be. Names are looked up when they are needed, and again when no node has answered.
type nodes struct {
	given   []string
	timeout time.Duration
	lookup  func(ctx context.Context, host string) ([]string, error)

	mu       sync.Mutex  // guards what follows
	conns    []*nodeConn // in the order in which they are tried
	stale    bool        // names are to be looked up again
	answered string      // the address of the node that answered last
}

var _ grpc.ClientConnInterface = (*nodes)(nil)

// nodeConn is one of the nodes.
type nodeConn struct {
	*grpc.ClientConn
	addr  string
	fault error // of the last call, if the node did not answer it
}

// Invoke implements grpc.ClientConnInterface.
func (n *nodes) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return n.each(ctx, func(c *nodeConn) error { return c.Invoke(ctx, method, args, reply, opts...) })
}

// NewStream implements grpc.ClientConnInterface.
func (n *nodes) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	var at *nodeConn
	var s grpc.ClientStream
	err := n.each(ctx, func(c *nodeConn) (err error) {
		at = c
		s, err = c.NewStream(ctx, desc, method, opts...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &nodeStream{s, n, at}, nil
}

// nodeStream has the next stream begin elsewhere if the node breaks it off.
type nodeStream struct {
	grpc.ClientStream
	n  *nodes
	at *nodeConn
}

// RecvMsg implements grpc.ClientStream.
func (s *nodeStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.n.note(s.at, err)
	}
	return err
}

// each calls f with one node after the other until one does what it is asked. If none
// does, and names were looked up before, it looks them up again and has another go.
func (n *nodes) each(ctx context.Context, f func(*nodeConn) error) error {
	for {
		conns, fresh, err := n.all(ctx)
		if err != nil {
			return err
		}
		done, err := n.round(ctx, conns, f)
		if done || ctx.Err() != nil {
			return err
		}
		n.mu.Lock()
		n.stale = true
		n.mu.Unlock()
		if !fresh && n.named() {
			continue
		}
		if errorReason(err) != "" {
			return err
		}
		if none := n.faults(); none != nil {
			return none
		}
		return err
	}
}

// round calls f with each node once at most. done = the outcome stands; otherwise none of
// them has done anything, and the error is one that a node has answered, if any has.
func (n *nodes) round(ctx context.Context, conns []*nodeConn, f func(*nodeConn) error) (done bool, err error) {
	var said error
	for _, c := range conns {
		err = f(c)
		n.note(c, err)
		switch {
		case errorReason(err) == string(client.ErrUnavailable):
			said = err
		case !unsent(err):
			return true, err
		}
		if ctx.Err() != nil {
			return true, err
		}
	}
	if said != nil {
		err = said
	}
	return false, err
}

// unsent reports whether a call failed because no connection came about.
func unsent(err error) bool {
	msg := status.Convert(err).Message()
	return status.Code(err) == codes.Unavailable && (strings.HasPrefix(msg, "connection error:") || strings.Contains(msg, "last connection error"))
}

// named reports whether any of the addresses is a name.
func (n *nodes) named() bool { return slices.ContainsFunc(n.given, isName) }

// note keeps the outcome of a call. A node that did not do what it was
// asked is asked last from now on.
func (n *nodes) note(c *nodeConn, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	code := status.Code(err)
	if code != codes.Unavailable && code != codes.DeadlineExceeded {
		c.fault, n.answered = nil, c.addr
		return
	}
	c.fault = err
	if i := slices.Index(n.conns, c); i >= 0 {
		n.conns = append(slices.Delete(slices.Clone(n.conns), i, i+1), c)
	}
}

// all returns the nodes in the order in which they are to be tried; fresh = their names
// have just been looked up.
func (n *nodes) all(ctx context.Context) (conns []*nodeConn, fresh bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.conns) == 0 || n.stale {
		if err := n.lookUp(ctx); err != nil {
			return nil, false, err
		}
		fresh = true
	}
	return n.conns, fresh, nil
}

// lookUp brings the connections up to date with what the names stand for. Called with
// n.mu held: nothing can be asked meanwhile anyway.
func (n *nodes) lookUp(ctx context.Context) error {
	type found struct{ addr, given string }
	var all []found
	for _, given := range n.given {
		for _, addr := range n.resolve(ctx, given) {
			if len(all) < maxNodes && !slices.ContainsFunc(all, func(f found) bool { return f.addr == addr }) {
				all = append(all, found{addr, given})
			}
		}
	}
	var gone []*nodeConn
	n.conns = slices.DeleteFunc(slices.Clone(n.conns), func(c *nodeConn) bool {
		if slices.ContainsFunc(all, func(f found) bool { return f.addr == c.addr }) {
			return false
		}
		gone = append(gone, c)
		return true
	})
	for _, c := range gone {
		_ = c.Close()
	}
	for _, f := range all {
		if slices.ContainsFunc(n.conns, func(c *nodeConn) bool { return c.addr == f.addr }) {
			continue
		}
		conn, err := connect(f.addr, f.given, connectTime(n.timeout, len(all)))
		if err != nil {
			return usageError{err}
		}
		n.conns = append(n.conns, &nodeConn{ClientConn: conn, addr: f.addr})
	}
	n.stale = false
	return nil
}

// resolve returns the addresses of what may be a name; the name itself if it has none, so
// that the attempt to connect says why.
func (n *nodes) resolve(ctx context.Context, given string) []string {
	if !isName(given) {
		return []string{given}
	}
	host, port, _ := net.SplitHostPort(given)
	hosts, err := n.lookup(ctx, host)
	if err != nil || len(hosts) == 0 {
		return []string{given}
	}
	addrs := make([]string, len(hosts))
	for i, h := range hosts {
		addrs[i] = net.JoinHostPort(h, port)
	}
	return addrs
}

func isName(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	_, notIP := netip.ParseAddr(host)
	return err == nil && host != "" && notIP != nil
}

// connectTime returns how long a connection to one of several nodes may take to come about.
func connectTime(timeout time.Duration, nodes int) time.Duration {
	if nodes == 1 {
		return connectTimeout
	}
	return min(max(timeout/time.Duration(nodes+1), minConnect), maxConnect)
}

// connect prepares a connection. A node that comes back is found within about a second.
func connect(addr, given string, within time.Duration) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(given),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.New())),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxPause},
			MinConnectTimeout: within,
		}),
	)
}

// alone reports whether there is one node only.
func (n *nodes) alone() bool {
	if n == nil {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns) <= 1
}

func (n *nodes) answeredAt() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.answered
}

// faults returns why no node of several answers; nil if one may, or there is one only.
func (n *nodes) faults() error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.conns) < 2 {
		return nil
	}
	none := &noneAnswers{}
	for _, c := range n.conns {
		if c.fault == nil {
			return nil
		}
		none.addrs, none.faults = append(none.addrs, c.addr), append(none.faults, c.fault)
	}
	return none
}

// Close closes the connections.
func (n *nodes) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
	return nil
}

// noneAnswers is the error of a call that reached none of several nodes.
type noneAnswers struct {
	addrs  []string
	faults []error // of each
}

// Error names every address and why it did not answer.
func (e *noneAnswers) Error() string {
	list := make([]string, len(e.addrs))
	for i, addr := range e.addrs {
		list[i] = addr + ": " + causeOf(e.faults[i])
	}
	return strings.Join(list, "; ")
}

// GRPCStatus has it judged like the error of one node.
func (e *noneAnswers) GRPCStatus() *status.Status { return status.New(codes.Unavailable, e.Error()) }

// refused reports whether nothing listens at any of the addresses.
func (e *noneAnswers) refused() bool {
	return !slices.ContainsFunc(e.faults, func(err error) bool { return !refusedConnection(err) })
}

// causeOf shortens the error of an attempt to connect to what its user can act on.
func causeOf(err error) string {
	cause := status.Convert(err).Message()
	if i := strings.LastIndex(cause, "dial tcp"); i >= 0 {
		return strings.Trim(cause[i:], `"`)
	}
	return cause
}
