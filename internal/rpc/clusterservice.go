package rpc

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keystead/keystead/internal/drain"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// cluster is the ClusterService.
type cluster struct {
	clusterpb.UnimplementedClusterServiceServer
	s       *Server
	c       Cluster
	alone   bool         // there are no other nodes, and no raft
	watches atomic.Int64 // under way
	last    lastTable
}

func newCluster(s *Server) *cluster {
	if s.cfg.Cluster != nil {
		return &cluster{s: s, c: s.cfg.Cluster}
	}
	return &cluster{s: s, c: newLone(s.cfg.Node, s.cfg.GRPCAddr, s.cfg.Alone), alone: true}
}

func (c *cluster) GetRing(context.Context, *clusterpb.GetRingRequest) (*clusterpb.GetRingResponse, error) {
	t := c.c.Table()
	r := &clusterpb.GetRingResponse{Epoch: t.Epoch, Digest: digestOf(t)}
	want := t.Wanted()
	if want == nil {
		return r, nil
	}
	r.Size = uint64(want.Size())
	owned, byKey := ownedShares(t), map[string]table.Member{}
	for _, m := range t.Members {
		byKey[m.HashKey] = m
	}
	for _, share := range want.Balance().Nodes { // bytewise by hash key
		m := byKey[share.Node]
		r.Nodes = append(r.Nodes, &clusterpb.RingNode{Id: m.Node, HashKey: m.HashKey, GrpcAddr: m.GRPCAddr,
			WantedShare: min(share.Owned, 1), OwnedShare: owned[m.Node]})
	}
	return r, nil
}

func (c *cluster) GetTable(context.Context, *clusterpb.GetTableRequest) (*clusterpb.GetTableResponse, error) {
	return &clusterpb.GetTableResponse{Table: c.last.snapshot(c.c.Table())}, nil
}

// ListMembers takes together what the table, gossip and raft say of each node.
func (c *cluster) ListMembers(context.Context, *clusterpb.ListMembersRequest) (*clusterpb.ListMembersResponse, error) {
	t, st := c.c.Table(), c.c.State()
	known := map[string]*clusterpb.MemberStatus{}
	of := func(id string) *clusterpb.MemberStatus {
		m := known[id]
		if m == nil {
			m = &clusterpb.MemberStatus{Id: id}
			known[id] = m
		}
		return m
	}
	owned := ownedShares(t)
	for i := range t.Members {
		m := of(t.Members[i].Node)
		m.Member, m.OwnedShare = wireMember(&t.Members[i]), owned[m.Id]
	}
	for i := range t.Rows {
		if o := t.Rows[i].Owner; !o.None() {
			of(o.Node).RowsOwned++
		}
		if s := t.Rows[i].Standby; !s.None() {
			of(s.Node).RowsStandby++
		}
	}
	for _, g := range st.Gossip {
		m := of(g.Node)
		m.Gossip, m.GossipAddr, m.AppAddr = gossips[g.State], g.Addr, g.App
	}
	for _, id := range st.Nonvoters {
		of(id).Raft = clusterpb.Raft_RAFT_NONVOTER
	}
	for _, id := range st.Voters {
		of(id).Raft = clusterpb.Raft_RAFT_VOTER
	}
	if st.Leader != "" {
		of(st.Leader).Raft = clusterpb.Raft_RAFT_LEADER
	}
	r := &clusterpb.ListMembersResponse{Epoch: t.Epoch}
	for _, m := range known {
		r.Members = append(r.Members, m)
	}
	slices.SortFunc(r.Members, func(a, b *clusterpb.MemberStatus) int { return cmp.Compare(a.Id, b.Id) })
	return r, nil
}

// gossips are what gossip says of a node, as the API has it.
var gossips = map[string]clusterpb.Gossip{
	"alive": clusterpb.Gossip_GOSSIP_ALIVE, "failed": clusterpb.Gossip_GOSSIP_FAILED,
	"leaving": clusterpb.Gossip_GOSSIP_LEAVING, "left": clusterpb.Gossip_GOSSIP_LEFT,
}

func (c *cluster) GetOwners(_ context.Context, req *clusterpb.GetOwnersRequest) (*clusterpb.GetOwnersResponse, error) {
	if err := checkItems(len(req.Keys)); err != nil {
		return nil, c.s.refuse(err)
	}
	t := c.c.Table()
	r := &clusterpb.GetOwnersResponse{Epoch: t.Epoch, Owners: make([]*clusterpb.KeyOwner, len(req.Keys))}
	cells := make([]clusterpb.KeyOwner, len(req.Keys))
	for i, key := range req.Keys {
		if key == "" || len(key) > owner.MaxKey {
			return nil, c.s.refuse(&failure.Error{Reason: failure.Invalid, Field: fmt.Sprintf("keys[%d]", i),
				Message: fmt.Sprintf("has %d bytes; 1 to %d are allowed", len(key), owner.MaxKey)})
		}
		r.Owners[i] = &cells[i]
		ownerOfKey(t, key, r.Owners[i])
	}
	return r, nil
}

// ownerOfKey says who owns a key by a table.
func ownerOfKey(t *table.Table, key string, o *clusterpb.KeyOwner) {
	h := owner.Hash(key)
	o.Hash, o.Standby = h, t.Next(h)
	if m, since, ok := t.Owner(h); ok {
		o.Owner, o.OwnerAddr, o.Since = m.Node, m.GRPCAddr, since
	}
}

func (c *cluster) GetStatus(context.Context, *clusterpb.GetStatusRequest) (*clusterpb.GetStatusResponse, error) {
	t, st, self := c.c.Table(), c.c.State(), c.c.Self()
	r := &clusterpb.GetStatusResponse{
		Id: self.Node, Incarnation: self.Incarnation, Version: st.Version, Cluster: cmp.Or(t.Cluster, st.ClusterID), Epoch: t.Epoch,
		LeaseLeftNs: int64(max(st.LeaseLeft, 0)), Leader: st.Leader, Voters: st.Voters,
		Changing: t.Transition != nil, RowsToMove: uint32(len(t.Moves())), Rows: uint32(len(t.Rows)), Members: uint32(len(t.Members)),
		GrpcAddr: st.GRPCAddr, RaftAddr: st.RaftAddr, GossipAddr: st.Gossips,
		Serving: c.alone || t.Holds(self) && st.LeaseLeft > 0, RowsUnprotected: uint32(t.Unprotected()), RowsInGrace: uint32(t.InGrace()), RowsInGraceInPart: uint32(t.InGraceInPart()),
	}
	r.Waiting, r.LevelKnown, r.RecoveringNs = st.Waiting, table.Level, int64(st.Recovery)
	r.PolicyVersion = c.s.inForce().Load().Version
	if !c.alone {
		r.Level = max(1, t.Level)
	}
	if c.s.cfg.Warnings != nil {
		for _, w := range c.s.cfg.Warnings() {
			r.Warnings = append(r.Warnings, &clusterpb.Warning{Problem: w.Problem, Hint: w.Hint})
		}
	}
	if c.s.cfg.Disk != nil {
		r.Disk = c.s.cfg.Disk()
	}
	r.Copies = st.Copies
	if !st.Started.IsZero() {
		r.UptimeNs = int64(time.Since(st.Started))
	}
	for i := range t.Rows {
		if t.Rows[i].Owner.None() {
			r.RowsUnowned++
		}
	}
	r.RowsCold, r.Awaited = uint32(t.Cold()), awaitedOf(t, st.Awaited)
	if s, ok := t.DrainState(self.Node); ok && s.Member.Holder() == self {
		r.Phase, r.RowsOwned, r.RowsStandby = phases[s.Member.Phase], uint32(s.Owned), uint32(s.Standby)
	}
	return r, nil
}

// maxAwaited bounds the disks that a status tells of.
const maxAwaited = 256

// awaitedOf returns the disks that cold rows wait for, those of the most rows first.
func awaitedOf(t *table.Table, since []Awaited) []*clusterpb.AwaitedDisk {
	of := map[table.Holder]*clusterpb.AwaitedDisk{}
	for _, c := range t.ColdRows() {
		for _, h := range [...]table.Holder{c.Was, c.Stood} {
			if h.None() {
				continue
			}
			d := of[h]
			if d == nil {
				d = &clusterpb.AwaitedDisk{Node: h.Node, Incarnation: h.Incarnation}
				of[h] = d
			}
			d.Rows += uint32(len(c.Rows))
			if c.Stood.None() {
				d.RowsAlone += uint32(len(c.Rows))
			}
		}
	}
	for _, s := range since {
		if d := of[s.Holder]; d != nil {
			d.WaitingNs = int64(s.For)
		}
	}
	all := slices.SortedFunc(maps.Values(of), func(a, b *clusterpb.AwaitedDisk) int {
		return cmp.Or(cmp.Compare(b.Rows, a.Rows), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return all[:min(len(all), maxAwaited)]
}

// lone is the Cluster of a node that runs alone: a table of one, of which nothing but
// the epoch ever changes.
type lone struct {
	alone Alone
	table atomic.Pointer[table.Table]
	state ClusterState
}

// loneID is the id of a lone node that was not given one.
const loneID = "node"

func newLone(id, addr string, a Alone) Cluster {
	id = cmp.Or(id, loneID)
	m := table.Member{Node: id, Incarnation: max(1, a.Incarnation), HashKey: cmp.Or(addr, id), GRPCAddr: addr, Version: a.Version}
	t, first := &table.Table{}, uint64(1)
	if a.Epoch != nil {
		first = max(a.Epoch(), 4) - 3 // the last of the commands below brings it to the node's
	}
	for _, c := range []table.Command{
		{Init: &table.Init{Cluster: "alone", Epoch: first}},
		{Admit: &table.Admit{Member: m}},
		{Begin: &table.Begin{Want: []table.Holder{m.Holder()}}},
		{End: &table.End{Transition: first + 2}}, // the epoch of the Begin
	} {
		next, err := t.Apply(c)
		if err != nil {
			panic("rpc: the table of a lone node: " + err.Error())
		}
		t = next
	}
	t.Cluster = "" // nobody else has seen it yet
	l := &lone{alone: a, state: ClusterState{Started: time.Now(), GRPCAddr: addr, Version: a.Version}}
	l.table.Store(t)
	return l
}

func (l *lone) Self() table.Holder  { return l.Table().Members[0].Holder() }
func (l *lone) State() ClusterState { return l.state }

// Table returns the table under the present epoch: that is raised within a run only when
// all fencing tokens of one are used up.
func (l *lone) Table() *table.Table {
	t := l.table.Load()
	if l.alone.Epoch == nil || l.alone.Epoch() <= t.Epoch {
		return t
	}
	next := *t
	next.Epoch = l.alone.Epoch()
	if l.table.CompareAndSwap(t, &next) {
		return &next
	}
	return l.table.Load()
}

// Drain refuses: there is nobody to take anything.
func (l *lone) Drain(_ context.Context, o drain.Order) (drain.State, error) {
	return drain.GiveAlone(l.Table(), o)
}

// Await waits for a change that does not come.
func (l *lone) Await(ctx context.Context, after uint64) (*table.Table, error) {
	if t := l.Table(); t.Epoch > after {
		return t, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// lastTable keeps what the last table looks like on the wire, and the last
// change of it, so that a change costs the same however many watch.
type lastTable struct {
	mu       sync.Mutex   // guards what follows
	of       *table.Table // of whole
	whole    *clusterpb.Table
	from, to *table.Table // of change
	change   *clusterpb.TableChange
}

// snapshot returns the table whole. It is shared: nobody may change it.
func (l *lastTable) snapshot(t *table.Table) *clusterpb.Table {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of != t {
		l.of, l.whole = t, wireTable(t)
	}
	return l.whole
}

// step returns the message that brings a watcher from one table to the next.
func (l *lastTable) step(from, to *table.Table) *clusterpb.WatchResponse {
	if c := l.between(from, to); c != nil {
		return &clusterpb.WatchResponse{Change: c}
	}
	return &clusterpb.WatchResponse{Snapshot: l.snapshot(to)}
}

func (l *lastTable) between(from, to *table.Table) *clusterpb.TableChange {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.from != from || l.to != to {
		l.from, l.to, l.change = from, to, wireChange(from, to)
	}
	return l.change
}
