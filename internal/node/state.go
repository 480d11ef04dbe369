package node

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keystead/keystead/handoff"
	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/owner"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	// flushTime is how long what was let in before a node retires may still get
	// out. Operations take microseconds.
	flushTime = 5 * time.Millisecond
	// proposeTime bounds one try to have a command agreed on.
	proposeTime = time.Second
)

// state is what is kept here for others and elsewhere for this node.
type state struct {
	c      *cluster
	source *handoff.Source
	target *handoff.Target             // nil until run
	server *grpc.Server                // of the target; nil until run
	intake atomic.Pointer[feed.Intake] // of the target; nil until run
	done   sync.WaitGroup
	frozen freezes
}

func newState(c *cluster, rule *serving.Rule) *state {
	s := &state{c: c, frozen: newFreezes()}
	conf := handoff.Config{
		Propose: func(ctx context.Context, cmd table.Command) (uint64, error) { return c.group.Propose(ctx, cmd) },
		Dial:    func(ctx context.Context, to table.Holder) (grpc.ClientConnInterface, error) { return c.dialState(to) },
		Heard:   func(since int64) bool { return c.group.Heard(since) },
		Rule:    rule, NewID: c.newID, Now: c.cfg.Clock.Now, Log: c.log.With("part", "handoff"),
		CopyRate: c.cfg.CopyRate, Frozen: s.frozen.observe,
	}
	if c.disk != nil {
		conf.Disk = forHandoff{c.disk.keeper}
	}
	s.source = handoff.New(conf)
	return s
}

// run begins to take copies in and to make them.
func (s *state) run(store *owner.Store) {
	conf := handoff.TargetConfig{
		Rule: s.c.serving, Store: store, Now: s.c.cfg.Clock.Now, Log: s.c.log.With("part", "handoff"),
		NoRoom: s.c.group.NoRoom,
		Await: func(ctx context.Context, epoch uint64) error {
			_, err := s.c.group.Await(ctx, max(epoch, 1)-1)
			return err
		},
	}
	if d := s.c.disk; d != nil {
		conf.Urgent, conf.Rounds = d.keeper.Crowded, d.keeper.Rounds
	}
	s.target = handoff.NewTarget(conf)
	s.intake.Store(s.target.Intake)
	s.server = grpc.NewServer(grpc.MaxRecvMsgSize(maxStateMessage), grpc.ConnectionTimeout(stateGreeting),
		grpc.StaticStreamWindowSize(stateWindow), grpc.StaticConnWindowSize(stateWindow))
	peerv1.RegisterStateServiceServer(s.server, s.target.Intake)
	s.done.Go(func() { _ = s.server.Serve(s.c.group.StateListener()) })
	s.source.Run(store)
}

// streams returns how far the streams of records are, from this node and to it.
func (s *state) streams() (all []disk.Stream) {
	add := func(out bool, of []feed.Stream) {
		for _, f := range of {
			all = append(all, disk.Stream{Node: f.Peer.Node, Incarnation: f.Peer.Incarnation, Out: out, Session: f.Session, Number: f.Number, PeerRounds: f.Rounds})
		}
	}
	add(true, s.source.Streams())
	if in := s.intake.Load(); in != nil {
		add(false, in.Streams())
	}
	return all
}

// sent returns how many bytes the copies that are being made have sent.
func (s *state) sent() (bytes int64) {
	for _, c := range s.source.Progress().Copies {
		bytes += c.Bytes
	}
	return bytes
}

// stateGreeting is how long a member that has connected may take for the first bytes of
// gRPC. A stop waits for those that are at it: one that was cut off just then must not keep
// a node from stopping, and from writing its state file, for two minutes.
const stateGreeting = 3 * time.Second

// maxStateMessage is above what a batch of records may have.
const maxStateMessage = 4 << 20

func (s *state) stop() {
	s.source.Close()
	if s.server != nil {
		s.server.Stop()
	}
	s.done.Wait()
}

// dialState connects to the target of another member.
func (c *cluster) dialState(to table.Holder) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+to.Node,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.group.DialState(ctx, to) }),
		grpc.WithStaticStreamWindowSize(stateWindow), grpc.WithStaticConnWindowSize(stateWindow))
}

// stateWindow is how much of a stream may be on its way: more than a copy has
// under way at once. It is fixed at both ends: grpc finds out what the way holds
// otherwise, with a ping in every round trip.
const stateWindow = 4 << 20

// pause waits, and returns false if the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
