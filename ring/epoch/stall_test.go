package epoch

import (
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/ring/epoch/table"
)

// platter is a disk whose writes hang on command, and go on when it is told so.
type platter struct {
	mu   sync.Mutex
	flow chan struct{} // guarded by mu; closed = writes return
	slow time.Duration // guarded by mu: how long a write takes
}

func newPlatter() *platter {
	p := &platter{flow: make(chan struct{})}
	close(p.flow)
	return p
}

func (p *platter) hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flow = make(chan struct{})
}

func (p *platter) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = 0
	select {
	case <-p.flow:
	default:
		close(p.flow)
	}
}

func (p *platter) wait() {
	p.mu.Lock()
	flow, slow := p.flow, p.slow
	p.mu.Unlock()
	<-flow
	if slow > 0 {
		<-time.After(slow)
	}
}

// under puts a storage on the disk.
func (p *platter) under(s *Storage) {
	s.Logs, s.Stable = platterLogs{s.Logs, p}, platterStable{s.Stable, p}
}

type platterLogs struct {
	raft.LogStore
	p *platter
}

func (l platterLogs) StoreLog(e *raft.Log) error     { l.p.wait(); return l.LogStore.StoreLog(e) }
func (l platterLogs) StoreLogs(es []*raft.Log) error { l.p.wait(); return l.LogStore.StoreLogs(es) }
func (l platterLogs) DeleteRange(a, b uint64) error  { l.p.wait(); return l.LogStore.DeleteRange(a, b) }

type platterStable struct {
	raft.StableStore
	p *platter
}

func (s platterStable) Set(k, v []byte) error { s.p.wait(); return s.StableStore.Set(k, v) }
func (s platterStable) SetUint64(k []byte, v uint64) error {
	s.p.wait()
	return s.StableStore.SetUint64(k, v)
}

// onPlatters forms a cluster of n nodes, each of them on a disk of its own.
func onPlatters(t *testing.T, n int, change ...func(*Config)) ([]*Group, map[string]*platter) {
	t.Helper()
	disks := map[string]*platter{}
	groups := form(t, newPool(), n, func(c *Config) {
		for _, f := range change {
			f(c)
		}
		disks[c.Node] = newPlatter()
		disks[c.Node].under(c.Storage)
	})
	voters(t, n, groups...)
	t.Cleanup(func() { // before the groups are stopped: raft waits for its writes
		for _, d := range disks {
			d.thaw()
		}
	})
	return groups, disks
}

// leading waits for one of the groups to lead, and returns it and the others.
func leading(t *testing.T, groups ...*Group) (leader *Group, others []*Group) {
	t.Helper()
	eventually(t, "a leader", func() bool {
		leader, others = nil, nil
		for _, g := range groups {
			if g.leads() != 0 && leader == nil {
				leader = g
				continue
			}
			others = append(others, g)
		}
		return leader != nil
	})
	return leader, others
}

// lead has a node lead, as the one that makes the cluster does unless a busy machine has had
// another one elected.
func lead(t *testing.T, g *Group, groups ...*Group) {
	t.Helper()
	eventually(t, g.cfg.Node+" leads", func() bool {
		if leader := leaderOf(groups); leader != nil && leader != g {
			_ = leader.raft.LeadershipTransferToServer(g.self, joinAddr(g.self, g.cfg.RaftAddr)).Error() // it is tried again
		}
		return g.leads() != 0
	})
}

// steady has leases outlast what a busy machine keeps a process waiting, for tests in which
// none may end.
func steady(c *Config) { c.TTL = 3 * time.Second }

// TestLeaderDiskHangs: a leader that cannot write its log does not keep the others
// from removing a dead node, nor itself.
func TestLeaderDiskHangs(t *testing.T) {
	t.Parallel()
	groups, disks := onPlatters(t, 5)
	leader, others := leading(t, groups...)
	dead, alive := others[0], others[1:]
	was := leader.Self()
	disks[leader.cfg.Node].hang()
	dead.Kill()
	begun := time.Now()
	until(t, alive[0], "the dead node is removed", without(dead.Self()))
	t.Logf("removed after %s", time.Since(begun))
	until(t, alive[0], "the leader that hangs is removed", without(was))
	if left := leader.LeaseLeft(); left > 0 {
		t.Errorf("it was removed with %s of its lease left", left)
	}
	eventually(t, "it says that it is stalled", func() bool { return leader.Stalled() > 0 })
	disks[leader.cfg.Node].thaw()
	eventually(t, "it is back", func() bool { return leader.Self() != was && leader.LeaseLeft() > 0 })
	if s := leader.Stalled(); s > 0 {
		t.Errorf("it is still stalled, for %s", s)
	}
}

// TestLeaderDiskHangsOfThree: the others take over although nobody died.
func TestLeaderDiskHangsOfThree(t *testing.T) {
	t.Parallel()
	groups, disks := onPlatters(t, 3)
	leader, others := leading(t, groups...)
	was := leader.Self()
	disks[leader.cfg.Node].hang()
	raise := table.Command{Raise: &table.Raise{Above: leader.Table().Epoch}}
	go func() { _, _ = others[0].Propose(t.Context(), raise) }() // the first thing that it has to write
	until(t, others[0], "the leader that hangs is removed", without(was))
	disks[leader.cfg.Node].thaw()
	for _, g := range groups {
		until(t, g, "all again", stableWith(3))
	}
}

// TestLeaderDiskHangsAlone: a leader in whose place nobody could be elected goes on
// granting leases: what needs no change of the table is served.
func TestLeaderDiskHangsAlone(t *testing.T) {
	t.Parallel()
	groups, disks := onPlatters(t, 3, steady)
	leader, others := leading(t, groups...)
	others[0].Kill()
	disks[leader.cfg.Node].hang()
	eventually(t, "it is stalled", func() bool { return leader.Stalled() > 0 })
	stays(t, 3*leader.cfg.TTL, leader, leader, others[1])
}
