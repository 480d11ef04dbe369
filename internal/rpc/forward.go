package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/forward"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// routing is what forwarding is given of this server.
func (s *Server) routing() forward.Config {
	return forward.Config{
		Node: s.cfg.Node, Cluster: s.cfg.Cluster, Dial: s.cfg.Dial, MaxMessage: maxFlushBytes, MaxReceive: 2 * maxReceive,
		Decide: func(ctx context.Context, c *forward.Call) (forward.Message, error) { return s.decide(ctx, c, nil) },
		Choose: s.chooseFor, MakeWhole: s.makeWhole, Waiting: s.waiting,
		Gone: func(ctx context.Context) error { return gaveUp(ctx) }, Wire: wire,
		Stopping: s.stopping, Stopped: errStopping, Full: errOverloaded,
	}
}

// newForwards returns the service by which other nodes pass calls on to this one.
func newForwards(s *Server) *forward.Service[decision] {
	return forward.NewService(s.router, forward.ServiceConfig[decision]{
		Known: s.known, Decide: s.decide, Confirm: s.confirm, Now: s.cfg.Clock.Now, Copies: s.cfg.Copies, Untold: s.untold,
		Calls: underWay{s}, Received: func(n int) { s.cfg.Metrics.received.Add(float64(n)) },
		Check: checkForwarded, Refuse: s.refuse, MaxMessage: MaxBatch, MaxHeld: s.cfg.maxHeld,
	})
}

// underWay counts calls of other nodes as it does those of callers.
type underWay struct{ s *Server }

func (u underWay) Begin(n int64) bool {
	if u.s.calls.Add(n) <= u.s.cfg.MaxCalls {
		return true
	}
	u.s.calls.Add(-n)
	return false
}

func (u underWay) End(n int64) { u.s.calls.Add(-n) }

func (u underWay) Busy(n int64) { u.s.busy.Add(n) }

// checkForwarded bounds a message of calls that another node has passed on.
func checkForwarded(req *peerv1.ForwardRequest) error {
	if err := checkSize(req, MaxBatch); err != nil {
		return err
	}
	return checkItems(len(req.Calls))
}

// elsewhere reports whether an operation was not let in because this node does not
// act for its key, and there are nodes that might.
func (s *Server) elsewhere(err error) bool {
	var e *failure.Error
	return s.cfg.Cluster != nil && errors.As(err, &e) && e.Reason == failure.NotOwner
}

const (
	// startTime is how long after the start of the process calls wait for its cluster.
	startTime = 2 * time.Second
	// waitingRetry is when to try again at a node that has none: people have to mend that.
	waitingRetry = 15 * time.Second
)

// waiting returns the error of a node that has not heard of its cluster, nil if it has, or
// starts.
func (s *Server) waiting(t *table.Table) error {
	if t.Cluster != "" {
		return nil
	}
	st := s.cfg.Cluster.State()
	//guard:waiting-said true
	if st.Waiting == "" || time.Since(st.Started) < startTime {
		return nil
	}
	return &failure.Error{Reason: failure.Unavailable, RetryAfter: waitingRetry,
		Message: fmt.Sprintf("the node %q is no member of the cluster %q yet: %s; nothing happened", s.cfg.Node, st.ClusterID, st.Waiting),
		Hint:    "compare --cluster-id, --founders, --join and --bootstrap of the nodes, or ask another node: see `keystead status`"}
}

// known returns what forwarding has to know of an operation.
func (s *Server) known(number uint32) *forward.Operation {
	if number > maxOperation || s.sent[number] == nil {
		return nil
	}
	return &s.sent[number].Operation
}

// decide does a call on this node, and confirms its answer, or leaves that for later.
func (s *Server) decide(ctx context.Context, c *forward.Call, later *unconfirmed) (forward.Message, error) {
	return s.sent[c.Op.Number].decide(ctx, s, c, later)
}

// chooseFor chooses the part for a call with this request id.
func (s *Server) chooseFor(t *table.Table, sp *table.Split, id *commonpb.RequestId) (int, error) {
	given, err := wireID(id)
	if err != nil {
		return 0, err
	}
	i, _ := s.choose(t, sp, &given)
	return i, nil
}

// makeWhole has a split object made whole.
func (s *Server) makeWhole(split uint64) {
	if s.cfg.Splits != nil {
		s.cfg.Splits.MakeWhole(split, "an operation that needs the whole")
	}
}

// forward gets one call of a caller answered, and counts how it ended. The call
// came at began; the zero time is now.
func (s *Server) forward(ctx context.Context, c *forward.Call, began time.Time) (forward.Message, error) {
	a, err := s.router.Pass(ctx, c, began)
	s.cfg.Metrics.forwarded(err)
	if err != nil {
		s.cfg.Metrics.failed[wire(err).Reason].Inc()
	}
	return a, Status(err)
}
