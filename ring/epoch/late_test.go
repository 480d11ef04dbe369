package epoch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// leaderOf returns the one of the groups that leads, or nil.
func leaderOf(groups []*Group) *Group {
	for _, g := range groups {
		if g.leads() != 0 {
			return g
		}
	}
	return nil
}

// kept is a snapshot that a leader sends.
type kept struct {
	req  raft.InstallSnapshotRequest
	data []byte
}

// snapshotOf has a leader write a snapshot down, and returns it.
func snapshotOf(t *testing.T, leader *Group) kept {
	t.Helper()
	var future raft.SnapshotFuture
	eventually(t, "a snapshot", func() bool { // not while raft's configuration is newer than the last command
		_, _ = leader.Propose(t.Context(), table.Command{Raise: &table.Raise{Above: leader.Table().Epoch}})
		future = leader.raft.Snapshot()
		return future.Error() == nil
	})
	meta, r, err := future.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	me := leader.trans.EncodePeer(leader.self, leader.trans.LocalAddr())
	return kept{data: data, req: raft.InstallSnapshotRequest{
		RPCHeader:       raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader.self), Addr: me},
		SnapshotVersion: meta.Version, Term: leader.raft.CurrentTerm(), Leader: me,
		LastLogIndex: meta.Index, LastLogTerm: meta.Term, Peers: meta.Peers, Size: meta.Size,
		Configuration: raft.EncodeConfiguration(meta.Configuration), ConfigurationIndex: meta.ConfigurationIndex,
	}}
}

// send sends a snapshot to a node, as a connection does that was late.
func (s kept) send(leader, to *Group, data io.Reader) (raft.InstallSnapshotResponse, error) {
	var resp raft.InstallSnapshotResponse
	err := leader.trans.InstallSnapshot(to.self, joinAddr(to.self, to.cfg.RaftAddr), &s.req, &resp, data)
	return resp, err
}

// TestTrap38LateSnapshot: a snapshot of the past, sent in this term, changes nothing: no
// row comes back to who gave it away, and raft's configuration stays. The leader is told
// that all of it is there.
func TestTrap38LateSnapshot(t *testing.T) {
	t.Parallel()
	p := newPool()
	groups := form(t, p, 3, nil)
	voters(t, 3, groups...)
	leader, _ := leading(t, groups...)
	late := snapshotOf(t, leader)
	g4 := join(t, p, "n4", nil)
	flips(t, g4)
	groups = append(groups, g4)
	for _, g := range groups {
		until(t, g, "the fourth one owns its share", stableWith(4))
	}
	voters(t, 3, groups...)
	i := slices.IndexFunc(groups, func(g *Group) bool { return g != leader && g != g4 })
	victim := groups[i]
	was, servers := victim.Table(), victim.raft.GetConfiguration().Configuration()
	var stop sync.WaitGroup
	defer stop.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stop.Go(func() { // two owners at any moment
		for ctx.Err() == nil {
			for _, r := range was.Rows {
				if acts(victim, r.End) && acts(g4, r.End) {
					t.Errorf("both act for the row that ends at %d", r.End)
					return
				}
			}
		}
	})
	resp, err := late.send(leader, victim, bytes.NewReader(late.data))
	if err != nil || !resp.Success || resp.Term != late.req.Term {
		t.Errorf("the leader is told %+v, %v", resp, err)
	}
	if is := victim.Table(); is.Epoch < was.Epoch {
		t.Errorf("the table went back from epoch %d to %d", was.Epoch, is.Epoch)
	}
	if is := victim.raft.GetConfiguration().Configuration(); len(is.Servers) < len(servers.Servers) {
		t.Errorf("raft's configuration went back from %v to %v", servers.Servers, is.Servers)
	}
	if _, err := leader.Propose(t.Context(), table.Command{Raise: &table.Raise{Above: leader.Table().Epoch}}); err != nil {
		t.Fatal(err)
	}
	until(t, victim, "it follows", func(tab *table.Table) bool { return tab.Epoch >= leader.Table().Epoch })
}

// sides are two parts of a network between which no connection lasts.
type sides struct {
	mu    sync.Mutex
	of    map[string]int // guarded by mu: by address of a listener
	apart bool           // guarded by mu
	open  []across       // guarded by mu
}

type across struct {
	net.Conn
	from, to string
}

// use makes a node's connections go through.
func (s *sides) use(c *Config) {
	dial, from := c.Dial, c.RaftAddr
	c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		s.mu.Lock()
		cut := s.apart && s.of[from] != s.of[addr]
		s.mu.Unlock()
		if cut {
			return nil, errors.New("cut")
		}
		conn, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open = append(s.open, across{conn, from, addr})
		return conn, nil
	}
}

// cut parts these nodes from all others.
func (s *sides) cut(some ...*Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apart = true
	for _, g := range some {
		s.of[g.cfg.RaftAddr] = 1
	}
	for _, c := range s.open {
		if s.of[c.from] != s.of[c.to] {
			_ = c.Close()
		}
	}
}

// TestTrap38SplitForGood: two of what was a cluster of three, and is one of five, cannot
// be made a majority again by a snapshot of then.
func TestTrap38SplitForGood(t *testing.T) {
	t.Parallel()
	p, net := newPool(), &sides{of: map[string]int{}}
	groups := form(t, p, 3, net.use)
	voters(t, 3, groups...)
	leader, _ := leading(t, groups...)
	late := snapshotOf(t, leader)
	for _, n := range []string{"n4", "n5"} {
		g := join(t, p, n, net.use)
		flips(t, g)
		groups = append(groups, g)
	}
	for _, g := range groups {
		until(t, g, "all own their shares", stableWith(5))
	}
	voters(t, 5, groups...)
	var minority, majority []*Group
	for _, g := range groups {
		if g != leader && len(minority) < 2 {
			minority = append(minority, g)
		} else {
			majority = append(majority, g)
		}
	}
	for _, g := range minority {
		if _, err := late.send(leader, g, bytes.NewReader(late.data)); err != nil {
			t.Fatal(err)
		}
	}
	net.cut(minority...)
	until(t, leader, "the two are removed", func(tab *table.Table) bool { return len(tab.Members) == 3 })
	began := time.Now()
	eventually(t, "the two elect nobody", func() bool {
		if two := leaderOf(minority); two != nil {
			t.Fatalf("%s leads two of five; its configuration is %v", two.self, two.raft.GetConfiguration().Configuration().Servers)
		}
		return time.Since(began) > 4*leader.cfg.TTL
	})
	leading(t, majority...)
}

// TestHalfASnapshot: of a snapshot only a part arrives. The log goes on meanwhile.
func TestHalfASnapshot(t *testing.T) {
	t.Parallel()
	groups := form(t, newPool(), 3, nil)
	voters(t, 3, groups...)
	leader, _ := leading(t, groups...)
	s := snapshotOf(t, leader)
	victim := groups[slices.IndexFunc(groups, func(g *Group) bool { return g != leader })]
	rest, part := io.Pipe()
	var sending sync.WaitGroup
	sending.Go(func() { _, _ = s.send(leader, victim, rest) })
	defer sending.Wait()
	defer part.Close()
	for at := 0; at < len(s.data)/2; at += 4096 { // in more pieces than any buffer takes
		if _, err := part.Write(s.data[at:min(at+4096, len(s.data)/2)]); err != nil {
			t.Fatal(err)
		}
	}
	epoch, err := leader.Propose(t.Context(), table.Command{Raise: &table.Raise{Above: leader.Table().Epoch}})
	if err != nil {
		t.Fatal(err)
	}
	until(t, victim, "it follows", func(tab *table.Table) bool { return tab.Epoch >= epoch })
}

// TestTrap38LateConfiguration: a snapshot of the same epoch, from before a server was
// added to raft's configuration. The table does not show that it is older.
func TestTrap38LateConfiguration(t *testing.T) {
	t.Parallel()
	groups := form(t, newPool(), 3, nil)
	voters(t, 3, groups...)
	leader, _ := leading(t, groups...)
	victim := groups[slices.IndexFunc(groups, func(g *Group) bool { return g != leader })]
	late := snapshotOf(t, leader)
	if err := leader.raft.AddNonvoter("n6/6", "n6/6@127.0.0.1:6", 0, applyWait).Error(); err != nil {
		t.Fatal(err)
	}
	servers := func() int { return len(victim.raft.GetConfiguration().Configuration().Servers) }
	eventually(t, "a server more", func() bool { return servers() == 4 })
	if resp, err := late.send(leader, victim, bytes.NewReader(late.data)); err != nil || !resp.Success {
		t.Errorf("%+v, %v", resp, err)
	}
	if n := servers(); n != 4 {
		t.Errorf("%d servers", n)
	}
}

// TestSnapshotIsHere: what a node has need not be applied yet. An entry of another term at
// that index is another one.
func TestSnapshotIsHere(t *testing.T) {
	t.Parallel()
	g := form(t, newPool(), 1, nil)[0]
	applied := g.raft.AppliedIndex()
	logs := raft.NewInmemStore()
	if err := logs.StoreLog(&raft.Log{Index: applied + 1000, Term: 7}); err != nil {
		t.Fatal(err)
	}
	tr := &transport{raft: g.raft, logs: logs}
	for _, c := range []struct {
		name        string
		index, term uint64
		has         bool
	}{
		{"applied", applied, 1, true},
		{"in the log", applied + 1000, 7, true},
		{"another one in the log", applied + 1000, 8, false},
		{"not there", applied + 1001, 7, false},
	} {
		if has := tr.has(&raft.InstallSnapshotRequest{LastLogIndex: c.index, LastLogTerm: c.term}); has != c.has {
			t.Errorf("%s: %v", c.name, has)
		}
	}
}

// TestRestoreGoesForward: the state machine refuses to go back by itself, too.
func TestRestoreGoesForward(t *testing.T) {
	t.Parallel()
	f := newFSM(serving.New(table.Holder{Node: "n1", Incarnation: 1}), &cleaner{cleaned: func(uint64) {}})
	f.learned, f.fail = func(*table.Table) {}, func(err error) { t.Error(err) }
	apply := func(c table.Command) { f.Apply(&raft.Log{Index: 1, Data: c.Encode()}) }
	apply(table.Command{Init: &table.Init{Cluster: "test", UID: "u", Epoch: 5}})
	older := f.table.Encode()
	apply(table.Command{Raise: &table.Raise{Above: 5}})
	if err := f.Restore(io.NopCloser(bytes.NewReader(older))); err == nil || f.table.Epoch != 6 {
		t.Errorf("%v, epoch %d", err, f.table.Epoch)
	}
	if err := f.Restore(io.NopCloser(bytes.NewReader(f.table.Encode()))); err != nil {
		t.Error(err)
	}
}

// TestMemorySnapshots: one that is not whole is not shown, and an older one than those
// that are there does not take the place of the newest.
func TestMemorySnapshots(t *testing.T) {
	t.Parallel()
	s := &memorySnapshots{}
	write := func(index uint64) raft.SnapshotSink {
		sink, err := s.Create(1, index, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sink.Write([]byte{byte(index)}); err != nil {
			t.Fatal(err)
		}
		return sink
	}
	newest := func() uint64 {
		all, err := s.List()
		if err != nil || len(all) == 0 {
			return 0
		}
		meta, r, err := s.Open(all[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r); err != nil || len(b) != 1 || meta.Size != 1 || b[0] != byte(meta.Index) {
			t.Errorf("%v, %v, %d bytes", b, err, meta.Size)
		}
		return meta.Index
	}
	sink := write(9)
	if i := newest(); i != 0 {
		t.Errorf("the snapshot of %d is shown before it is whole", i)
	}
	_ = sink.Close()
	_ = write(7).Close()
	if i := newest(); i != 9 {
		t.Errorf("the newest is that of %d", i)
	}
	for i := range uint64(5) {
		_ = write(10 + i).Close()
	}
	if all, _ := s.List(); len(all) != keptSnapshots || newest() != 14 {
		t.Errorf("%d are kept, the newest is that of %d", len(all), newest())
	}
}

// TestRaftGetsOneMessageAtATime: a snapshot would be judged too early otherwise, by an
// applied index that the message before it is about to raise.
func TestRaftGetsOneMessageAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in, dead := make(chan raft.RPC), make(chan struct{})
		tr := &transport{in: in, dead: dead, rpcs: make(chan raft.RPC), snapshots: make(chan arrived), arriving: make(chan struct{}, 1)}
		go tr.run(nil)
		defer close(dead)
		message := func() raft.RPC {
			return raft.RPC{Command: &raft.AppendEntriesRequest{}, RespChan: make(chan raft.RPCResponse, 1)}
		}
		in <- message()
		first := <-tr.Consumer()
		synctest.Wait()
		select {
		case in <- message():
			t.Error("the second one is taken before the first one is answered")
		default:
		}
		first.Respond(&raft.AppendEntriesResponse{}, nil)
		synctest.Wait()
		select {
		case in <- message():
		default:
			t.Error("the second one is not taken")
		}
	})
}

// TestRemovalOfAnotherTerm: what a leader judged in one term is not what it may propose in
// a later one: the member may have a lease by then. One of before level 3 names no term.
func TestRemovalOfAnotherTerm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		judged, term uint64
		removes      bool
	}{{5, 5, true}, {5, 7, false}, {0, 7, true}} {
		f := newFSM(serving.New(table.Holder{Node: "n9", Incarnation: 1}), &cleaner{cleaned: func(uint64) {}})
		f.learned, f.fail = func(*table.Table) {}, func(err error) { t.Error(err) }
		apply := func(c table.Command, term uint64) error {
			return f.Apply(&raft.Log{Index: 1, Term: term, Data: c.Encode()}).(outcome).refused
		}
		m := table.Member{Node: "n1", Incarnation: 1, HashKey: "k", Level: table.Level}
		for _, made := range []table.Command{{Init: &table.Init{Cluster: "test", UID: "u", Epoch: 5}}, {Admit: &table.Admit{Member: m}}} {
			if err := apply(made, 4); err != nil {
				t.Fatal(err)
			}
		}
		err := apply(table.Command{Remove: &table.Remove{Members: []table.Holder{m.Holder()}, Term: c.judged}}, c.term)
		if removed := !f.table.Holds(m.Holder()); removed != c.removes || removed != (err == nil) {
			t.Errorf("judged in %d, of term %d: %v", c.judged, c.term, err)
		}
	}
}

// TestRemovalNamesItsTerm: as soon as all members can read it.
func TestRemovalNamesItsTerm(t *testing.T) {
	t.Parallel()
	groups := form(t, newPool(), 3, nil)
	voters(t, 3, groups...)
	leader, _ := leading(t, groups...)
	judged := func() (named, term uint64, reads bool) {
		removes := false
		eventually(t, "the leader removes one", func() bool { // it may have something else to propose first
			done := make(chan struct{})
			if err := leader.post(t.Context(), func(k *keeper) {
				defer close(done)
				tab := leader.Table()
				gone := groups[slices.IndexFunc(groups, func(g *Group) bool { return g != leader })].Self()
				k.grants.Release(gone)
				if c, ok := k.next(tab); ok && c.Remove != nil {
					named, term, reads, removes = c.Remove.Term, leader.leads(), tab.Uses(3), true
				}
			}); err != nil {
				t.Fatal(err)
			}
			<-done
			return removes
		})
		return named, term, reads
	}
	if named, _, reads := judged(); named != 0 && !reads { // on a slow machine they are known to by now
		t.Errorf("a term is named that members may not be able to read: %d", named)
	}
	for _, g := range groups {
		until(t, g, "all again", stableWith(3))
	}
	adopted(t, groups...)
	if named, term, _ := judged(); named != term {
		t.Errorf("judged in term %d, names %d", term, named)
	}
}
