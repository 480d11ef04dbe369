package cli

import (
	"context"
	"io"
	"math"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// atNode is the Go client as the commands use it: request ids, retries and leases are the
// client's; all calls go to a node at --addr, which passes on what it does not own.
type atNode struct {
	*client.Client
	remote *remote
	nodes  *nodes
	// refused receives the errors of attempts, and returns the error that the client is to
	// act on. It may call end. nil = all errors stay as they are.
	refused func(method string, err error) error

	mu      sync.Mutex // guards what follows
	reached bool       // the node has answered
	last    error      // of the latest attempt that failed
	over    error      // ends the command; nil = goes on
}

// client prepares a client; it connects when the first call needs it.
func (r *remote) client(ctx context.Context) (*atNode, error) {
	nodes, err := r.dial()
	if err != nil {
		return nil, err
	}
	n := &atNode{remote: r, nodes: nodes}
	n.Client, err = client.Config{
		Timeout: r.timeout, AttemptTimeout: r.timeout,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(n.call), grpc.WithChainStreamInterceptor(n.stream)},
	}.Dial(ctx, nodes.given[0])
	if err != nil {
		return nil, err
	}
	return n, nil
}

// Close ends the client and its connections.
func (n *atNode) Close() {
	n.Client.Close()
	_ = n.nodes.Close()
}

// table is one in which one node owns everything: the client need not know that there are
// several, and which of them is asked is decided by nodes.
func (n *atNode) table() *clusterpb.Table {
	return &clusterpb.Table{Epoch: 1, Members: []*clusterpb.Member{{Id: n.nodes.given[0], GrpcAddr: n.nodes.given[0]}}, Rows: []*clusterpb.Row{{End: math.MaxUint64, Owner: 1}}}
}

// call is each attempt of the client.
func (n *atNode) call(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if r, ok := reply.(*clusterpb.GetTableResponse); ok {
		r.Table = n.table()
		return nil
	}
	err := n.nodes.Invoke(ctx, method, req, reply, opts...)
	if n.attempted(err); err != nil && n.refused != nil {
		err = n.refused(method, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over != nil {
		return &client.Error{Code: codes.FailedPrecondition, Message: n.over.Error()} // not to be tried again
	}
	return err
}

// attempted notes the outcome of an attempt. The first one ends the command if nothing
// listens at the address, or something else than a node: a person at a prompt should not
// wait for that.
func (n *atNode) attempted(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	first := !n.reached && n.last == nil
	if n.last = err; err == nil || len(status.Convert(err).Details()) > 0 {
		n.reached = true
	}
	switch {
	case err == nil || !first || status.Code(err) != codes.Unavailable:
	case refusedConnection(err):
		n.over = n.remote.explain(err)
	case strings.Contains(err.Error(), "server preface") && speaks(n.remote.addr) == "HTTP":
		n.over = wrongPort(n.remote.addr, "HTTP")
	}
}

// end has the command fail with an error.
func (n *atNode) end(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over = err
}

// explain returns the error of a command whose call failed: that of the last attempt.
func (n *atNode) explain(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case n.over != nil:
		return n.over
	case n.last != nil:
		return n.remote.explain(n.last)
	}
	return err
}

// stream returns the client's watch of the table, or another stream of a node.
func (n *atNode) stream(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, _ grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if method == clusterpb.ClusterService_Watch_FullMethodName {
		return &tableStream{ctx: ctx, table: n.table()}, nil
	}
	s, err := n.nodes.NewStream(ctx, desc, method, opts...)
	if n.attempted(err); err == nil {
		return s, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over != nil {
		return nil, &client.Error{Code: codes.FailedPrecondition, Message: n.over.Error()} // not to be tried again
	}
	return nil, err
}

// tableStream is a watch of a table that does not change.
type tableStream struct {
	grpc.ClientStream
	ctx   context.Context
	table *clusterpb.Table
}

func (s *tableStream) SendMsg(any) error { return nil }
func (s *tableStream) CloseSend() error  { return nil }

// RecvMsg gives the table once, and then waits for the end.
func (s *tableStream) RecvMsg(m any) error {
	if r, ok := m.(*clusterpb.WatchResponse); ok && s.table != nil {
		r.Snapshot, s.table = s.table, nil
		return nil
	}
	<-s.ctx.Done()
	return io.EOF
}
