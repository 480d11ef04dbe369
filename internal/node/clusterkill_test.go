package node

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// machines are three or more machines with disks, on which nodes of one cluster run.
type machines struct {
	t          *testing.T
	durability string
	interval   time.Duration
	root       string
	nodes      map[string]*Node // that run
	cuts       map[string]*cut
	told       map[string]int64 // what was acknowledged, by key
	maybe      map[string]int64 // and what may have been done beside it
	clients    int
}

// manyKeys is how many counters are counted: far fewer than there are rows, and more than nodes.
const manyKeys = 40

func newMachines(t *testing.T, durability string) *machines {
	t.Helper()
	if table.Level < table.DiskLevel {
		t.Skip("disks do not count yet")
	}
	t.Parallel()
	return &machines{t: t, durability: durability, interval: 200 * time.Millisecond, root: t.TempDir(),
		nodes: map[string]*Node{}, cuts: map[string]*cut{}, told: map[string]int64{}, maybe: map[string]int64{}}
}

func (m *machines) dir(id string) string { return filepath.Join(m.root, id) }

// start starts nodes, in this order. The first of all makes the cluster.
func (m *machines) start(ids ...string) {
	m.t.Helper()
	for _, id := range ids {
		m.cuts[id] = &cut{}
		m.nodes[id] = start(m.t, oneOf(id, m.dir(id), func(c *Config) {
			c.Durability, c.DurabilityInterval, c.Wires.Level = m.durability, m.interval, table.DiskLevel
			c.Cluster.Settle, c.Cluster.HashKey, c.Cluster.ResumeWait = 50*time.Millisecond, id, 3*time.Second
			c.Cluster.Bootstrap = len(m.nodes) == 0 && !isThere(filepath.Join(m.dir(id), "raft"))
			for _, n := range m.nodes {
				c.Cluster.Join = append(c.Cluster.Join, n.cluster.pool.Addr())
			}
			c.Wires.Listen, c.Wires.Dial = m.cuts[id].listen, m.cuts[id].dial
		}))
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

// served waits until every counter can be read.
func (m *machines) served() {
	m.t.Helper()
	for i := range manyKeys {
		eventually(m.t, "the counter can be read", func() bool {
			_, err := m.get(m.any(), key(i))
			return err == nil
		})
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

// stopAll stops all at the same time, in order.
func (m *machines) stopAll() {
	m.end((*Node).Stop)
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
		r, err := m.get(m.any(), k)
		if err != nil {
			m.t.Fatal(err)
		}
		if r.Value < m.told[k] || r.Value > m.told[k]+m.maybe[k] {
			m.t.Errorf("%s is %d, and %d was acknowledged", k, r.Value, m.told[k])
		}
		if lossless && r.LostEpoch != 0 {
			m.t.Errorf("%s was lost in epoch %d", k, r.LostEpoch)
		}
	}
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
	m.whole(false)
	lost := 0
	for i := range manyKeys {
		r, err := m.get(m.any(), key(i))
		if err != nil {
			t.Fatal(err)
		}
		if r.LostEpoch != 0 {
			lost++
		}
	}
	if lost != manyKeys {
		t.Errorf("%d of %d counters say that something may be lost", lost, manyKeys)
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

// TestJoinAndDrainWithDisks: what moves is on the disks of those who get it before it counts.
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
