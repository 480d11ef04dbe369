package epoch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/vtcodec"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// maxMessage bounds what nodes send each other here: a flip of 32,768 rows.
const maxMessage = 2 << 20

// greetingTime is how long a server that has connected may take for the first bytes of
// gRPC. A stop waits for those that are at it.
const greetingTime = 3 * time.Second

// peers are connections to the lease services of other servers.
type peers struct {
	w     *wire
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // guarded by mu; by address with identity; nil map = closed
}

func newPeers(w *wire) *peers { return &peers{w: w, conns: map[string]*grpc.ClientConn{}} }

// maxPeers bounds the connections; those of servers that are gone make room.
const maxPeers = 2 * table.MaxMembers

func (p *peers) client(to raft.ServerAddress) (peerv1.LeaseServiceClient, error) {
	var old []*grpc.ClientConn
	defer func() { closeAll(old) }()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return nil, errors.New("stopping")
	}
	if c := p.conns[string(to)]; c != nil {
		return peerv1.NewLeaseServiceClient(c), nil
	}
	if len(p.conns) >= maxPeers {
		for a, c := range p.conns {
			old = append(old, c)
			delete(p.conns, a)
		}
	}
	c, err := grpc.NewClient("passthrough:///"+string(to),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return p.w.connect(ctx, kindLease, addr) }),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.New()), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, err
	}
	p.conns[string(to)] = c
	return peerv1.NewLeaseServiceClient(c), nil
}

func (p *peers) close() {
	p.mu.Lock()
	conns := slices.Collect(maps.Values(p.conns))
	p.conns = nil
	p.mu.Unlock()
	closeAll(conns)
}

// closeAll closes connections, which may take seconds: it is called without locks.
func closeAll(conns []*grpc.ClientConn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// leases is the LeaseService.
type leases struct {
	peerv1.UnimplementedLeaseServiceServer
	g *Group
}

func newLeaseServer(g *Group) *grpc.Server {
	s := grpc.NewServer(
		grpc.ForceServerCodecV2(vtcodec.New()), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(1024), grpc.ConnectionTimeout(greetingTime),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	peerv1.RegisterLeaseServiceServer(s, &leases{g: g})
	return s
}

// Renew implements the service. The keeper answers.
func (l *leases) Renew(ctx context.Context, req *peerv1.RenewRequest) (*peerv1.RenewResponse, error) {
	return l.g.renew(ctx, req)
}

func (g *Group) renew(ctx context.Context, req *peerv1.RenewRequest) (*peerv1.RenewResponse, error) {
	r := &renewal{req: req, received: g.steady(), reply: make(chan *peerv1.RenewResponse, 1)}
	if err := g.post(ctx, func(k *keeper) { k.renewalReceived(r) }); err != nil {
		return nil, err
	}
	select {
	case resp := <-r.reply:
		return resp, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-g.halt.Done():
		return nil, status.Error(codes.Unavailable, "stopping")
	}
}

// post gives the keeper something to do.
func (g *Group) post(ctx context.Context, event func(*keeper)) error {
	select {
	case g.events <- event:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-g.halt.Done():
		return status.Error(codes.Unavailable, "stopping")
	}
}

// Heard reports whether the leader has answered something that this node asked it
// after a moment. If not, and nothing that was asked since is still under way, the
// node asks. It does not wait.
func (g *Group) Heard(since int64) bool {
	if g.heard.Load() > since {
		return true
	}
	select {
	case g.events <- func(k *keeper) {
		if !k.retired && k.askedAt <= since && k.sent < renewalsAtOnce {
			k.renew()
		}
	}:
	default: // the caller asks again
	}
	return false
}

// Prove implements the service.
func (l *leases) Prove(ctx context.Context, req *peerv1.ProveRequest) (*peerv1.ProveResponse, error) {
	r := l.g.prove()
	if req.Write && !r.Stalled {
		r.Stalled = !l.g.couldVote(ctx)
	}
	return r, nil
}

func (g *Group) prove() *peerv1.ProveResponse {
	r := &peerv1.ProveResponse{Term: g.raft.CurrentTerm(), LastIndex: g.raft.LastIndex(), Stalled: g.stalled.Load() != 0}
	r.LastLogTerm, _ = strconv.ParseUint(g.raft.Stats()["last_log_term"], 10, 64)
	switch last := g.raft.LastContact(); {
	case g.raft.State() == raft.Leader:
	case last.IsZero():
		r.LastContactNs = -1
	default:
		r.LastContactNs = int64(time.Since(last))
	}
	return r
}

// Propose implements the service. Other nodes propose what concerns themselves
// alone, the splits of objects, policies, and what operators give up; admissions and removals
// are the leader's own.
func (l *leases) Propose(ctx context.Context, req *peerv1.ProposeRequest) (*peerv1.ProposeResponse, error) {
	c, err := table.Decode(req.Command)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if c.Flip == nil && (c.Raise == nil || c.Raise.To != 0) && c.Sync == nil && c.Unsync == nil && c.Drain == nil && c.EndGrace == nil && c.Policies == nil && c.Forgo == nil && !c.OfSplits() {
		return nil, status.Errorf(codes.InvalidArgument, "only the leader proposes a command of the kind %q", c.Kind())
	}
	// gofail: var epochProposeReceived struct{}

	epoch, err := l.g.bring(ctx, c)
	var why *table.Refused
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return &peerv1.ProposeResponse{}, nil
	case errors.As(err, &why):
		return &peerv1.ProposeResponse{Leader: true, Refused: why.Why, Epoch: epoch}, nil
	case err != nil:
		return nil, status.Error(codes.Unknown, err.Error())
	}
	return &peerv1.ProposeResponse{Leader: true, Epoch: epoch}, nil
}

// applyWait bounds the wait for a place in raft's queue.
const applyWait = time.Second

// apply proposes a command as the leader and waits until it is applied here.
// raft.ErrNotLeader says that nothing was proposed and a *table.Refused that it
// changed nothing; any other error, that the outcome is unknown.
func (g *Group) apply(c table.Command) (epoch uint64, err error) {
	if t := g.Table(); t.Knows(c) != nil {
		return t.Epoch, t.Knows(c)
	}
	if !g.open() {
		return 0, raft.ErrNotLeader
	}
	return g.commit(c)
}

// commit is apply, also before others' commands may be.
func (g *Group) commit(c table.Command) (epoch uint64, err error) {
	if g.leads() == 0 {
		return 0, raft.ErrNotLeader // raft says so as well, when its turn has come
	}
	g.applying.Add(1)
	f := g.raft.Apply(c.Encode(), applyWait)
	err = g.await(f)
	if last := g.applying.Add(-1) == 0; err != nil {
		return 0, err
	} else if last {
		// The next entry tells the followers that this one is committed. If another
		// command is under way, its entry does, or the one after it.
		g.raft.Barrier(0)
	}
	// gofail: var epochApplied string
	// if epochApplied == c.Kind() {
	//	return 0, raft.ErrLeadershipLost
	// }

	out := f.Response().(outcome)
	return out.epoch, out.refused
}

// await waits for a future of raft. One that was on its way to the state
// machine when raft stopped is never answered, so nobody waits for it then.
func (g *Group) await(f raft.Future) error {
	done := make(chan error, 1)
	g.futures.Add(1)
	go func() {
		defer g.futures.Add(-1)
		done <- f.Error()
	}()
	select {
	case err := <-done:
		return err
	case <-g.dead:
		return raft.ErrRaftShutdown
	}
}

// rest waits a little, or until the node stops.
func (g *Group) rest() {
	t := time.NewTimer(minTick)
	defer t.Stop()
	select {
	case <-t.C:
	case <-g.halt.Done():
	}
}

// drain waits a little until raft has answered what was proposed.
func (g *Group) drain() {
	tick := time.NewTicker(minTick)
	defer tick.Stop()
	for over := time.After(drainTime); g.futures.Load() > 0; {
		select {
		case <-tick.C:
		case <-over:
			return
		}
	}
}

// drainTime is longer than a leader that hears from nobody takes to step down,
// which answers all that was proposed.
const drainTime = 4 * leaderLease

// askLeader sends a renewal to the present leader.
func (g *Group) askLeader(ctx context.Context, req *peerv1.RenewRequest) (*peerv1.RenewResponse, error) {
	addr, id := g.raft.LeaderWithID()
	switch id {
	case "":
		return &peerv1.RenewResponse{Refusal: peerv1.Refusal_REFUSAL_NOT_LEADER}, nil
	case g.self:
		return g.renew(ctx, req) // the same way, but for the network
	}
	client, err := g.peers.client(addr)
	if err != nil {
		return nil, err
	}
	return client.Renew(ctx, req)
}

// proof asks the voters whether the term is still theirs, and returns nil when a
// majority, this node included if it votes, has said so after now.
func (g *Group) proof(ctx context.Context, term uint64) error {
	f := g.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return err
	}
	voters, yes := 0, 0
	votes := make(chan bool, len(f.Configuration().Servers))
	for _, s := range f.Configuration().Servers {
		//guard:proof-voters
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == g.self {
			votes <- g.leads() == term
			continue
		}
		g.running.Go(func() { votes <- g.askVoter(ctx, s, term) })
	}
	for range voters {
		if <-votes {
			yes++
		}
		//guard:proof-majority voters/2 -> 0
		if yes > voters/2 && g.leads() == term {
			return nil
		}
	}
	return fmt.Errorf("%d of %d voters know of the term %d", yes, voters, term)
}

func (g *Group) askVoter(ctx context.Context, s raft.Server, term uint64) bool {
	r := g.askServer(ctx, s, &peerv1.ProveRequest{Term: term})
	return r != nil &&
		r.Term == term //guard:proof-term
}

// askServer asks another server how it stands; nil = it does not answer.
func (g *Group) askServer(ctx context.Context, s raft.Server, q *peerv1.ProveRequest) *peerv1.ProveResponse {
	to := s.Address
	if a, err := g.ServerAddr(s.ID); err == nil {
		to = a
	}
	client, err := g.peers.client(to)
	if err != nil {
		return nil
	}
	r, err := client.Prove(ctx, q)
	if err != nil {
		return nil
	}
	return r
}

// leads returns the term in which this node leads, or 0.
func (g *Group) leads() uint64 {
	term := g.raft.CurrentTerm()
	if g.raft.State() == raft.Leader && g.raft.CurrentTerm() == term && term != math.MaxUint64 {
		return term
	}
	return 0
}
