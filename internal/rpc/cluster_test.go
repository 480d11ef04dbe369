package rpc

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"

	"github.com/keystead/keystead/internal/drain"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/owner"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// board is a Cluster whose table a test changes.
type board struct {
	*agreed.Cluster
	t     testing.TB
	self  table.Holder
	state ClusterState
}

func newBoard(t testing.TB, nodes ...string) *board {
	return &board{Cluster: agreed.New(t, 100, agreed.Nodes(nodes...)...), t: t, self: agreed.Holder(nodes[0])}
}

func (b *board) admit(nodes ...string) {
	b.t.Helper()
	for _, m := range agreed.Nodes(nodes...) {
		b.Must(table.Command{Admit: &table.Admit{Member: m}})
	}
}

// flip moves the first n rows as the transition wants.
func (b *board) flip(n int) {
	b.t.Helper()
	for _, m := range b.Table().Moves()[:n] {
		b.Flip(m)
	}
}

func (b *board) Self() table.Holder { return b.self }

func (b *board) State() ClusterState { return b.state }

// Drain gives the order to the table, as it is.
func (b *board) Drain(ctx context.Context, o drain.Order) (drain.State, error) {
	s, ok := drain.StateOf(b.Table(), o.Node)
	switch {
	case o.Node == "slow":
		<-ctx.Done()
		return s, ctx.Err()
	case !ok:
		return s, drain.ErrUnknownNode(o.Node)
	case !o.Force && !o.Undo && s.Member.Node == "n3":
		return s, drain.ErrTooFewLeft(o.Node, 1, 3)
	}
	if s.Already = o.Undo == (s.Member.Phase <= table.Active); s.Already {
		return s, nil
	}
	if _, err := b.Apply(table.Command{Drain: &table.Drain{Member: s.Member.Holder(), Undo: o.Undo}}); err != nil {
		return s, drain.ErrLastNode(o.Node)
	}
	s, _ = drain.StateOf(b.Table(), o.Node)
	return s, nil
}

// clusterOf is a server that knows of others, and a client of it.
func clusterOf(t *testing.T, cfg Config) (*house, clusterpb.ClusterServiceClient) {
	t.Helper()
	h := newHouse(t, nil)
	cfg.Store, cfg.Clock, cfg.Metrics = h.store, h.clock, NewMetrics(prometheus.NewRegistry())
	h.server = NewServer(cfg)
	l := bufconn.Listen(1 << 20)
	h.dial = dialer(l)
	done := make(chan struct{})
	go func() { defer close(done); _ = h.server.Serve(l) }()
	t.Cleanup(func() { h.server.Stop(0); <-done })
	h.conn = h.connect()
	return h, clusterpb.NewClusterServiceClient(h.conn)
}

func TestLoneNodeKnowsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := clusterOf(t, Config{Node: "n1", GRPCAddr: "10.0.0.1:7400"})
		ctx := bound(t)
		time.Sleep(time.Second)
		st := must(c.GetStatus(ctx, &clusterpb.GetStatusRequest{}))(t)
		same(t, st, &clusterpb.GetStatusResponse{Id: "n1", Incarnation: 1, Epoch: st.Epoch, Rows: 256, Members: 1, Serving: true, RowsOwned: 256, Phase: clusterpb.Phase_PHASE_ACTIVE, LevelKnown: table.Level,
			UptimeNs: int64(time.Second), GrpcAddr: "10.0.0.1:7400"})
		me := &clusterpb.Member{Id: "n1", Incarnation: 1, HashKey: "10.0.0.1:7400", GrpcAddr: "10.0.0.1:7400", Phase: clusterpb.Phase_PHASE_ACTIVE}
		same(t, must(c.ListMembers(ctx, &clusterpb.ListMembersRequest{}))(t),
			&clusterpb.ListMembersResponse{Epoch: st.Epoch, Members: []*clusterpb.MemberStatus{{Id: "n1", Member: me, OwnedShare: 1, RowsOwned: 256}}})
		r := must(c.GetRing(ctx, &clusterpb.GetRingRequest{}))(t)
		same(t, r, &clusterpb.GetRingResponse{Epoch: st.Epoch, Digest: r.Digest, Size: 256,
			Nodes: []*clusterpb.RingNode{{Id: "n1", HashKey: "10.0.0.1:7400", GrpcAddr: "10.0.0.1:7400", WantedShare: 1, OwnedShare: 1}}})
		tab := must(c.GetTable(ctx, &clusterpb.GetTableRequest{}))(t).Table
		if len(tab.Rows) != 256 || tab.Cluster != "" || tab.RingDigest != r.Digest || r.Digest == 0 || len(tab.Wanted) != 1 {
			t.Errorf("the table is %v…", tab.Members)
		}
		o := must(c.GetOwners(ctx, &clusterpb.GetOwnersRequest{Keys: []string{"a", "b"}}))(t)
		for i, k := range []string{"a", "b"} {
			same(t, o.Owners[i], &clusterpb.KeyOwner{Hash: owner.Hash(k), Owner: "n1", OwnerAddr: "10.0.0.1:7400", Since: o.Owners[i].Since})
		}
	})
}

// A lone node that was told nothing about itself answers all the same.
func TestLoneNodeWithoutAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := clusterOf(t, Config{})
		o := must(c.GetOwners(bound(t), &clusterpb.GetOwnersRequest{Keys: []string{"a"}}))(t).Owners[0]
		if o.Owner != loneID || o.OwnerAddr != "" {
			t.Errorf("the owner is %v", o)
		}
	})
}

func TestClusterAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t, "n1", "n2", "n3")
		b.state = ClusterState{
			LeaseLeft: time.Second, Leader: "n2", Voters: []string{"n1", "n2"}, Nonvoters: []string{"n3"}, Started: time.Now(),
			Gossip:   []Gossiper{{"n1", "n1:1", "alive", "n1:8080"}, {"n3", "n3:1", "failed", ""}, {"stranger", "x:1", "alive", ""}},
			RaftAddr: "n1:2", Gossips: "n1:1", GRPCAddr: "n1:7400", Version: "v",
			Copies: []*clusterpb.Copy{{To: "n2", Rows: 3, Objects: 5, ObjectsExpected: 7, Bytes: 9, AgeNs: 11, CaughtUp: true}},
		}
		_, c := clusterOf(t, Config{Cluster: b})
		ctx, tab := bound(t), b.Table()
		same(t, must(c.GetStatus(ctx, &clusterpb.GetStatusRequest{}))(t), &clusterpb.GetStatusResponse{
			Copies: []*clusterpb.Copy{{To: "n2", Rows: 3, Objects: 5, ObjectsExpected: 7, Bytes: 9, AgeNs: 11, CaughtUp: true}},
			Id:     "n1", Incarnation: 1, Version: "v", Level: 1, LevelKnown: table.Level, Cluster: "test", Epoch: tab.Epoch, LeaseLeftNs: int64(time.Second), Leader: "n2",
			Voters: []string{"n1", "n2"}, Rows: 768, Members: 3, GrpcAddr: "n1:7400", RaftAddr: "n1:2", GossipAddr: "n1:1", Serving: true,
			RowsUnprotected: uint32(tab.Unprotected()), RowsOwned: 256, Phase: clusterpb.Phase_PHASE_ACTIVE})
		var got []string
		sum := 0.0
		for _, m := range must(c.ListMembers(ctx, &clusterpb.ListMembersRequest{}))(t).Members {
			got = append(got, fmt.Sprintf("%s %v %v %q %v %q", m.Id, m.Member.GetPhase(), m.Gossip, m.GossipAddr, m.Raft, m.AppAddr))
			sum += m.OwnedShare
		}
		want := `n1 PHASE_ACTIVE GOSSIP_ALIVE "n1:1" RAFT_VOTER "n1:8080"
n2 PHASE_ACTIVE GOSSIP_UNSPECIFIED "" RAFT_LEADER ""
n3 PHASE_ACTIVE GOSSIP_FAILED "n3:1" RAFT_NONVOTER ""
stranger PHASE_UNSPECIFIED GOSSIP_ALIVE "x:1" RAFT_UNSPECIFIED ""`
		if s := strings.Join(got, "\n"); s != want || math.Abs(sum-1) > 1e-9 {
			t.Errorf("shares of %v; members:\n%s", sum, s)
		}
		r := must(c.GetRing(ctx, &clusterpb.GetRingRequest{}))(t)
		if len(r.Nodes) != 3 || r.Size != 768 || r.Digest != tab.Wanted().Digest() {
			t.Errorf("the ring is %v", r)
		}
		for _, n := range r.Nodes {
			if math.Abs(n.WantedShare-n.OwnedShare) > 1e-9 || math.Abs(n.OwnedShare-tab.Share(n.Id)) > 1e-9 {
				t.Errorf("%v, and the table gives it %v", n, tab.Share(n.Id))
			}
		}
		keys := make([]string, MaxBatchItems)
		for i := range keys {
			keys[i] = fmt.Sprint("key-", i)
		}
		for i, o := range must(c.GetOwners(ctx, &clusterpb.GetOwnersRequest{Keys: keys}))(t).Owners {
			h := owner.Hash(keys[i])
			m, since, _ := tab.Owner(h)
			if o.Hash != h || o.Owner != m.Node || o.OwnerAddr != m.GRPCAddr || o.Since != since || o.Standby != tab.Next(h) || o.Standby == o.Owner {
				t.Fatalf("%s: %v", keys[i], o)
			}
		}
		b.state.LeaseLeft = 0
		if must(c.GetStatus(ctx, &clusterpb.GetStatusRequest{}))(t).Serving {
			t.Error("it serves without a lease")
		}
	})
}

// What a node says while the ring changes, and of rows that nobody owns.
func TestStatusOfAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t, "n1")
		_, c := clusterOf(t, Config{Cluster: b})
		b.admit("n2")
		b.Begin("n1", "n2")
		moves := len(b.Table().Moves())
		b.flip(3)
		st := must(c.GetStatus(bound(t), &clusterpb.GetStatusRequest{}))(t)
		if !st.Changing || int(st.RowsToMove) != moves-3 || st.Rows != 512 || st.Serving {
			t.Errorf("the status is %v", st)
		}
		b.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{agreed.Holder("n1"), agreed.Holder("n2")}}})
		st = must(c.GetStatus(bound(t), &clusterpb.GetStatusRequest{}))(t)
		if st.RowsUnowned != st.Rows || st.Members != 0 || st.Changing {
			t.Errorf("the status without nodes is %v", st)
		}
		o := must(c.GetOwners(bound(t), &clusterpb.GetOwnersRequest{Keys: []string{"a"}}))(t).Owners[0]
		same(t, o, &clusterpb.KeyOwner{Hash: owner.Hash("a")})
		same(t, must(c.GetRing(bound(t), &clusterpb.GetRingRequest{}))(t), &clusterpb.GetRingResponse{Epoch: b.Table().Epoch})
	})
}

func TestGetOwnerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := clusterOf(t, Config{Cluster: newBoard(t, "n1")})
		for what, x := range map[string]struct {
			keys []string
			want refusal
		}{
			"too many":  {make([]string, MaxBatchItems+1), refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_TOO_LARGE, hint: true}},
			"too large": {[]string{strings.Repeat("x", MaxBatch)}, refusal{code: codes.ResourceExhausted, why: commonpb.Reason_REASON_TOO_LARGE, hint: true}},
			"empty":     {[]string{"a", ""}, badField("keys[1]")},
			"long":      {[]string{strings.Repeat("x", owner.MaxKey+1)}, badField("keys[0]")},
		} {
			_, err := c.GetOwners(bound(t), &clusterpb.GetOwnersRequest{Keys: x.keys})
			x.want.check(in(t, what), err)
		}
	})
}
