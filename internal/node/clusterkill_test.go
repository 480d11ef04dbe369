package node

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/reqid"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// machines are three or more machines with disks, on which nodes of one cluster run.
type machines struct {
	t          *testing.T
	durability string // "none" = an orderly stop of all leaves state files
	interval   time.Duration
	root       string
	nodes      map[string]*Node // that run
	addrs      map[string][3]string
	cuts       map[string]*cut
	told       map[string]int64 // what was acknowledged, by key
	maybe      map[string]int64 // and what may have been done beside it
	clients    int
	change     func(id string, c *Config) // nil = nothing
}

// manyKeys is how many counters are counted: far fewer than there are rows, and more than nodes.
const manyKeys = 40

func newMachines(t *testing.T, durability string) *machines {
	t.Helper()
	t.Parallel()
	return &machines{t: t, durability: durability, interval: 200 * time.Millisecond, root: t.TempDir(),
		nodes: map[string]*Node{}, addrs: map[string][3]string{}, cuts: map[string]*cut{}, told: map[string]int64{}, maybe: map[string]int64{}}
}

func (m *machines) dir(id string) string { return filepath.Join(m.root, id) }

// start starts nodes, in this order. The first of all makes the cluster.
func (m *machines) start(ids ...string) {
	m.t.Helper()
	for _, id := range ids {
		m.cuts[id] = &cut{}
		m.nodes[id] = start(m.t, oneOf(id, m.dir(id), func(c *Config) {
			c.Durability, c.DurabilityInterval, c.Wires.AdoptAfter = m.durability, m.interval, time.Second
			c.Cluster.Settle, c.Cluster.HashKey, c.Cluster.ResumeWait = 50*time.Millisecond, id, 3*time.Second
			c.Cluster.Bootstrap = len(m.nodes) == 0 && !isThere(filepath.Join(m.dir(id), "raft"))
			for _, n := range m.nodes {
				c.Cluster.Join = append(c.Cluster.Join, n.cluster.pool.Addr())
			}
			if at, ok := m.addrs[id]; ok { // a node comes back where it was
				c.GRPCAddr, c.Cluster.RaftAddr, c.Cluster.GossipAddr = freed(at[0]), freed(at[1]), freed(at[2])
			}
			c.Wires.Listen, c.Wires.Dial = m.cuts[id].listen, m.cuts[id].dial
			if m.change != nil {
				m.change(id, c)
			}
		}))
		n := m.nodes[id]
		m.addrs[id] = [3]string{n.GRPCAddr(), n.cluster.self.RaftAddr, n.cluster.pool.Addr()}
	}
}

// freed returns an address, or one with any port if somebody has that.
func freed(addr string) string {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "127.0.0.1:0"
	}
	_ = l.Close()
	return addr
}

// shared waits until these nodes are the cluster.
func (m *machines) shared() {
	m.t.Helper()
	for id, n := range m.nodes {
		eventually(m.t, id+" is one of the cluster", func() bool {
			st := n.cluster.status()
			return len(st.Members) == len(m.nodes) && st.RowsToMove == 0 && st.RowsUnprotected == 0 && st.Ready
		})
	}
}

// settled waits until these nodes are the cluster, each row has its standby, and disks count.
func (m *machines) settled() {
	m.t.Helper()
	for id, n := range m.nodes {
		eventually(m.t, id+" is one of a cluster that keeps its state on disk", func() bool {
			t := n.cluster.Table()
			if t.Durable == table.Undurable || len(t.Members) != len(m.nodes) || t.Transition != nil {
				return false
			}
			st := n.cluster.status()
			return st.Ready && st.RowsToMove == 0 && (st.RowsUnprotected == 0 || len(m.nodes) == 1)
		})
	}
}

// agreed waits until the cluster has agreed that disks promise just this.
func (m *machines) agreed(d table.Durability) {
	m.t.Helper()
	for id, n := range m.nodes {
		eventually(m.t, id+" knows what is agreed", func() bool { return n.cluster.Table().Durable == d })
	}
}

// served waits until every counter can be read.
func (m *machines) served() {
	m.t.Helper()
	for i := range manyKeys {
		m.read(key(i))
	}
}

func key(i int) string { return fmt.Sprint("key", i) }

func (m *machines) any() *Node {
	ids := slices.Sorted(maps.Keys(m.nodes))
	return m.nodes[ids[m.clients%len(ids)]]
}

func (m *machines) get(n *Node, key string) (*counterpb.GetResponse, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), 2*time.Second)
	defer cancel()
	return counterpb.NewCounterServiceClient(dial(m.t, n)).Get(ctx, &counterpb.GetRequest{Key: key})
}

// read returns a counter, as soon as it can be read.
func (m *machines) read(key string) (r *counterpb.GetResponse) {
	m.t.Helper()
	eventually(m.t, "the counter can be read", func() (ok bool) {
		var err error
		r, err = m.get(m.any(), key)
		return err == nil
	})
	return r
}

// count counts each counter once, through each node in turn.
func (m *machines) count() {
	m.t.Helper()
	m.clients++
	for i := range manyKeys {
		m.clients++
		client := counterpb.NewCounterServiceClient(dial(m.t, m.any()))
		id := &commonpb.RequestId{Client: fmt.Append(nil, "client of tests", m.clients%10)[:16], Sequence: uint64(m.clients)}
		k := key(i)
		m.maybe[k] = 1
		eventually(m.t, "it counts", func() bool {
			ctx, cancel := context.WithTimeout(m.t.Context(), 2*time.Second)
			defer cancel()
			r, err := client.Add(ctx, &counterpb.AddRequest{Key: k, Delta: 1, RequestId: id})
			if err != nil {
				return false
			}
			m.told[k], m.maybe[k] = r.Value, 0
			return true
		})
	}
}

// killAll ends all at the same time, without a word.
func (m *machines) killAll() { m.end((*Node).Kill) }

// stopAll stops all at the same time, in order, as the command does.
func (m *machines) stopAll() {
	m.end(func(n *Node) {
		n.DrainBeforeStop(context.Background(), patience)
		n.Stop()
	})
}

func (m *machines) end(how func(*Node)) {
	var all sync.WaitGroup
	for _, n := range m.nodes {
		all.Go(func() { how(n) })
	}
	all.Wait()
	m.nodes = map[string]*Node{}
}

// whole fails unless all that was acknowledged is there. lossless says that no answer may name a loss.
func (m *machines) whole(lossless bool) {
	m.t.Helper()
	m.served()
	for i := range manyKeys {
		k := key(i)
		r := m.read(k)
		if r.Value < m.told[k] || r.Value > m.told[k]+m.maybe[k] {
			m.t.Errorf("%s is %d, and %d was acknowledged", k, r.Value, m.told[k])
		}
		if lossless && r.LostEpoch != 0 {
			m.t.Errorf("%s was lost in epoch %d", k, r.LostEpoch)
		}
	}
}

// comparable fails unless the disks, as they were found, tell how far the streams between the nodes were.
func (m *machines) comparable() {
	m.t.Helper()
	for id, n := range m.nodes {
		for other := range m.nodes {
			if id == other {
				continue
			}
			from, to := between(n, other, true), between(m.nodes[other], id, false)
			if from == nil || to == nil || from.Session != to.Session || from.Number == 0 || to.Number == 0 {
				m.t.Errorf("the stream from %s to %s was %+v at one end, and %+v at the other", id, other, from, to)
			}
		}
	}
}

// between returns what the disk of a node has said of its stream to or from another one.
func between(n *Node, other string, out bool) *peerv1.DiskStream {
	for _, s := range slices.Backward(n.cluster.disk.report(true).Streams) {
		if s.Node == other && s.Out == out {
			return s
		}
	}
	return nil
}

// cut holds back what goes through a node's connections, as long as it is closed.
type cut struct {
	mu     sync.Mutex
	closed chan struct{} // nil = it is open; closed when it opens
}

func (c *cut) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = make(chan struct{})
}

func (c *cut) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.closed)
	c.closed = nil
}

func (c *cut) pass() {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed != nil {
		<-closed
	}
}

func (c *cut) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := Wires{}.withDefaults().Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return cutConn{conn, c}, nil
}

func (c *cut) listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	return cutListener{l, c}, err
}

type cutListener struct {
	net.Listener
	c *cut
}

func (l cutListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return cutConn{conn, l.c}, nil
}

type cutConn struct {
	net.Conn
	c *cut
}

func (c cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.c.pass()
	return n, err
}

func (c cutConn) Write(b []byte) (int, error) {
	c.c.pass()
	return c.Conn.Write(b)
}

// TestDeathOfAll: whatever dies at once, and in whatever order it comes back, all is there that was acknowledged under
// always.
func TestDeathOfAll(t *testing.T) {
	m := newMachines(t, "always")
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	for _, order := range [][]string{{"n1", "n2", "n3"}, {"n3", "n1", "n2"}, {"n2", "n3", "n1"}} {
		m.count()
		m.killAll()
		m.start(order...)
		m.whole(true) // all that is answered is on disk
		m.settled()
		m.whole(true)
	}
}

// TestDeathOfAllUnderInterval: what is older than the interval is there, and that something may be missing is said.
func TestDeathOfAllUnderInterval(t *testing.T) {
	m := newMachines(t, "interval")
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	for _, n := range m.nodes {
		settled(t, n)
	}
	m.killAll()
	m.start("n2", "n1", "n3")
	m.comparable()
	m.whole(false)
	lost := 0
	for i := range manyKeys {
		if r := m.read(key(i)); r.LostEpoch != 0 {
			lost++
		}
	}
	if lost != manyKeys {
		t.Errorf("%d of %d counters say that something may be lost", lost, manyKeys)
	}
	rows := 0
	for id, n := range m.nodes {
		st, tab := n.cluster.status(), n.cluster.Table()
		if rows += int(st.RowsLost); st.RowsLost != st.RowsLostInPart || tab.InGraceInPart() != tab.InGrace() || tab.InGrace() == 0 {
			t.Errorf("%s: %d rows were lost, %d of them in part; in grace are %d, and %d in part", id, st.RowsLost, st.RowsLostInPart, tab.InGrace(), tab.InGraceInPart())
		}
	}
	if k, err := adminpb.NewAdminServiceClient(dial(t, m.any())).InspectKey(t.Context(), &adminpb.InspectKeyRequest{Key: key(0)}); rows == 0 || err != nil || !k.LostInPart {
		t.Errorf("%d rows say that something may be lost; %v, %v", rows, k, err)
	}
	m.settled()
	m.whole(false)
}

// TestStopOfAllWithDisks: nothing is lost, no loss is declared, and nobody waits for a grace to be over.
func TestStopOfAllWithDisks(t *testing.T) {
	for _, durability := range []string{"interval", "always"} {
		t.Run(durability, func(t *testing.T) {
			m := newMachines(t, durability)
			m.start("n1", "n2", "n3")
			m.settled()
			for _, order := range [][]string{{"n1", "n2", "n3"}, {"n3", "n2", "n1"}} {
				m.count()
				m.stopAll()
				if isThere(stateFile(m.dir("n1"))) || isThere(stateFile(m.dir("n2"))) || isThere(stateFile(m.dir("n3"))) {
					t.Error("there is a state file beside the disk that counts")
				}
				m.start(order...)
				m.whole(true)
				if g := m.any().cluster.Table().InGrace(); g > 0 {
					t.Errorf("%d rows are in grace", g)
				}
				m.settled()
			}
		})
	}
}

// TestOneDiskEmptied: what the other disk of each row has is enough.
func TestOneDiskEmptied(t *testing.T) {
	m := newMachines(t, "always")
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	m.killAll()
	if err := os.RemoveAll(filepath.Join(m.dir("n2"), diskDirectory)); err != nil {
		t.Fatal(err)
	}
	m.start("n2", "n1", "n3")
	m.whole(true)
	m.settled()
	m.whole(true)
}

// TestTwoOfThreeComeBack: they go on with all that was acknowledged, and the third comes later.
func TestTwoOfThreeComeBack(t *testing.T) {
	m := newMachines(t, "always")
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	m.killAll()
	m.start("n3", "n2")
	m.whole(true)
	m.settled()
	m.count()
	m.start("n1")
	m.settled()
	m.whole(true)
}

// TestCutOffWithADisk: a node that is removed and comes back has nothing of before that counts, and all dies afterwards.
func TestCutOffWithADisk(t *testing.T) {
	m := newMachines(t, "always")
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	before := m.nodes["n2"].cluster.Self().Incarnation
	m.cuts["n2"].close()
	eventually(t, "it is removed", func() bool {
		return len(m.nodes["n1"].cluster.Table().Members) == 2 || len(m.nodes["n3"].cluster.Table().Members) == 2
	})
	back := m.nodes["n2"]
	delete(m.nodes, "n2")
	m.count()
	m.cuts["n2"].open()
	m.nodes["n2"] = back
	eventually(t, "it is back", func() bool { return back.cluster.Self().Incarnation != before })
	m.settled()
	m.whole(true)
	if list := back.keeper().List(); list[len(list)-1].Incarnation != back.cluster.Self().Incarnation {
		t.Errorf("the disk does not say that it is %d's: %v", back.cluster.Self().Incarnation, list)
	}
	m.count()
	m.killAll()
	m.start("n2", "n3", "n1")
	m.whole(true)
}

// TestTwoCutOffUnderInterval: rows of which owner and standby are removed, and go on in the same processes, have lost nothing.
func TestTwoCutOffUnderInterval(t *testing.T) {
	m := newMachines(t, "interval")
	m.start("n1", "n2", "n3", "n4", "n5")
	m.settled()
	m.count()
	m.cuts["n4"].close()
	m.cuts["n5"].close()
	eventually(t, "rows wait for their disks", func() bool { return m.nodes["n1"].cluster.Table().Cold() > 0 })
	m.cuts["n4"].open()
	m.cuts["n5"].open()
	m.settled()
	m.whole(true)
}

// TestJoinAndDrainWithDisks: what moves is on the disks of those that get it before it counts.
func TestJoinAndDrainWithDisks(t *testing.T) {
	m := newMachines(t, "always")
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	m.start("n4")
	m.settled()
	m.whole(true)
	m.count()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if st, err := m.nodes["n1"].Drain(ctx); err != nil {
		t.Fatal(st, err)
	}
	m.nodes["n1"].Stop()
	delete(m.nodes, "n1")
	m.settled()
	m.count()
	m.killAll()
	m.start("n4", "n3", "n2")
	m.whole(true)
}

// TestFromStateFilesToDisks: a cluster whose nodes have kept state files until now goes on from those, agrees that disks
// count, and goes on from the disks.
func TestFromStateFilesToDisks(t *testing.T) {
	m := newMachines(t, "none")
	m.start("n1", "n2", "n3")
	m.shared()
	m.count()
	m.stopAll()
	m.durability = "always"
	m.start("n2", "n3", "n1")
	m.whole(true)
	m.settled()
	m.whole(true)
	m.killAll()
	m.start("n1", "n2", "n3")
	m.whole(true)
}

// TestNoneWhereDisksCount: a node that keeps nothing is not admitted where disks count, and it says why. What the disks
// of the others have is enough.
func TestNoneWhereDisksCount(t *testing.T) {
	m := newMachines(t, "always")
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	m.killAll()
	m.start("n1", "n2")
	m.durability = "none"
	m.start("n3")
	n := m.nodes["n3"]
	eventually(t, "it says what is wrong", func() bool {
		return slices.ContainsFunc(n.warnings(), func(w rpc.Warning) bool { return strings.Contains(w.Problem, "this node keeps none") })
	})
	m.whole(true)
	if _, is := n.cluster.Table().Member("n3"); is {
		t.Error("it is a member")
	}
	n.Stop()
	m.durability = "always"
	m.start("n3")
	m.settled()
	m.whole(true)
}

// TestLessDurable: nodes are restarted one by one with less; the cluster serves, and agrees on what is left.
func TestLessDurable(t *testing.T) {
	m := newMachines(t, "always")
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	m.durability = "interval"
	for i, id := range []string{"n1", "n2", "n3"} {
		m.nodes[id].Stop()
		m.start(id)
		m.settled()
		m.whole(true)
		if d := m.nodes[id].cluster.Table().Durable; i < 2 && d != table.Always {
			t.Errorf("%d nodes promise less, and agreed is %d", i+1, d)
		}
	}
	m.agreed(table.Interval)
	m.count()
	m.durability = "always"
	for _, id := range []string{"n1", "n2", "n3"} {
		m.nodes[id].Stop()
		m.start(id)
		m.settled()
	}
	m.agreed(table.Entire)
	m.count()
	m.killAll()
	m.start("n3", "n1", "n2")
	m.whole(true)
}

// TestPromisesLess: what a node is to be started with depends on what the cluster has agreed on.
func TestPromisesLess(t *testing.T) {
	for _, c := range []struct {
		own, agreed table.Durability
		hint        string
	}{
		{table.Undurable, table.Undurable, ""}, {table.Interval, table.Undurable, ""},
		{table.Undurable, table.Interval, "interval or always"}, {table.Undurable, table.Always, "interval or always"},
		{table.Interval, table.Interval, ""}, {table.Interval, table.Always, ""}, {table.Always, table.Interval, ""},
		{table.Undurable, table.Entire, "interval or always"}, {table.Interval, table.Entire, ""},
		{table.Always, table.Entire, ""}, {table.Entire, table.Entire, ""},
	} {
		if p, hint := promiseText(c.own, c.agreed); (p == "") != (c.hint == "") || !strings.Contains(hint, c.hint) {
			t.Errorf("own %d, agreed %d: %q, %q", c.own, c.agreed, p, hint)
		}
	}
}

// TestOneByOneWithDisks: each node is restarted, or killed, while the others go on.
func TestOneByOneWithDisks(t *testing.T) {
	m := newMachines(t, "interval")
	m.start("n1", "n2", "n3")
	m.settled()
	for _, id := range []string{"n1", "n2", "n3"} {
		m.count()
		n := m.nodes[id]
		if delete(m.nodes, id); id == "n2" {
			n.Kill()
		} else {
			n.DrainBeforeStop(t.Context(), patience)
			n.Stop()
		}
		m.count()
		m.start(id)
		m.settled()
		m.whole(true)
	}
	m.stopAll()
	m.start("n1", "n2", "n3")
	m.whole(true)
}

// TestDeathsInARow: all die again before they have recovered from the last time.
func TestDeathsInARow(t *testing.T) {
	m := newMachines(t, "always")
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		m.killAll()
		ids := []string{"n1", "n2", "n3"}
		rnd.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		m.start(ids[:2+rnd.IntN(2)]...)
		for end := time.Now().Add(time.Duration(rnd.Int64N(int64(4 * time.Second)))); time.Now().Before(end); {
			_, _ = m.get(m.any(), key(0))
			pass(t)
		}
	}
	m.killAll()
	m.start("n1", "n2", "n3")
	m.whole(true)
	m.settled()
	m.count()
	m.whole(true)
}

// TestBrokenDiskInACluster: a node whose disk takes nothing refuses operations, says so, and goes on when it does.
func TestBrokenDiskInACluster(t *testing.T) {
	m := newMachines(t, "always")
	broken, faulty := brokenDisk()
	m.change = func(id string, c *Config) {
		if id == "n1" {
			c.Wires.Disk = faulty
		}
	}
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	n := m.nodes["n1"]
	broken.Store(true)
	refused := func() bool {
		now := n.cfg.Clock.Now()
		for i := range manyKeys {
			if _, err := n.store.Add(now, owner.Ref{Key: key(i)}, reqid.ID{}, counter.AddOp{}); failure.ReasonOf(err) == failure.Unavailable && strings.Contains(err.Error(), "does not take what is decided") {
				return true
			}
		}
		return false
	}
	eventually(t, "operations are refused", func() bool {
		_, _ = m.get(n, key(m.clients%manyKeys))
		m.clients++
		return refused()
	})
	if n.cluster.disk.report(false).Whole {
		t.Error("the leader is told that the disk is whole")
	}
	if !slices.ContainsFunc(n.warnings(), func(w rpc.Warning) bool { return strings.Contains(w.Problem, "takes nothing") }) {
		t.Errorf("nothing is said: %v", n.warnings())
	}
	broken.Store(false)
	m.whole(true)
	m.settled()
	m.count()
	m.killAll()
	m.start("n1", "n2", "n3")
	m.whole(true)
}

// TestDiskSetBack: a disk that is set back to what its process had once is told from one that has all, though the same
// process had it: no row goes on from it while another disk may come.
func TestDiskSetBack(t *testing.T) {
	m := newMachines(t, "always")
	disks := map[string]*vfs.MemFS{}
	m.change = func(id string, c *Config) {
		if disks[id] == nil {
			disks[id] = vfs.NewCrashableMem()
		}
		c.Wires.Disk = disks[id]
	}
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	before := disks["n1"].CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	rounds := m.nodes["n1"].cluster.disk.keeper.Rounds()
	for range 3 {
		m.count()
	}
	eventually(t, "the disks of the others know how far that of n1 is", func() bool {
		m.count()
		for _, id := range []string{"n2", "n3"} {
			if s := between(m.nodes[id], "n1", true); s == nil || s.PeerRounds <= rounds {
				return false
			}
		}
		return true
	})
	m.count()
	m.killAll()
	disks["n1"] = before
	m.start("n1", "n2")
	waiting := func(of string) (rows int) { // that wait for n3 and another one
		for _, g := range m.nodes["n2"].cluster.Table().ColdRows() {
			if g.Was.Node == of || g.Stood.Node == of {
				rows += len(g.Rows)
			}
		}
		return rows
	}
	eventually(t, "rows have begun to wait", func() bool { return waiting("n3") > 0 })
	eventually(t, "n3 was waited for long enough", func() bool { return waiting("n2") == 0 })
	began := time.Now()
	eventually(t, "a moment passes", func() bool { return time.Since(began) > 500*time.Millisecond })
	if waiting("n1") == 0 {
		t.Error("no row waits for n3, and n1 has less than it had told")
	}
	m.start("n3")
	m.whole(true)
}
