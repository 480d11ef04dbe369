package sim

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

var (
	seeds     = flag.Int("sim.seeds", 1, "runs of each scenario")
	firstSeed = flag.Uint64("sim.first", 1, "seed of the first run")
	verbose   = flag.Bool("sim.log", false, "show what the nodes say")
)

// simulated is the virtual time of all runs, in nanoseconds.
var simulated atomic.Int64

func TestMain(m *testing.M) {
	go scenes.watch()
	code := m.Run()
	fmt.Printf("simulated %.2f hours\n", time.Duration(simulated.Load()).Hours())
	os.Exit(code)
}

// Bounds of what a healthy cluster needs.
const (
	formTime     = 3 * time.Second // until all of its nodes serve
	failoverTime = 4 * time.Second // until keys of a dead node are served
	stableTime   = 40 * time.Second
	pollEvery    = 5 * time.Millisecond           // for what is waited for
	watchEvery   = slower * 10 * time.Millisecond // of the verifier
	positions    = 32
)

// scene is a run of a scenario.
type scene struct {
	*Cluster
	t      *testing.T
	seed   uint64
	rnd    *rand.Rand
	v      *Verifier
	judge  *Judge
	formed time.Duration // how long it took until all nodes served
}

// wholeLogs are not cut short: some judge by the log from its first entry on.
var wholeLogs = epoch.Snapshots{Every: time.Minute, After: 1 << 20, Trailing: 1 << 20}

const (
	// clockDrift is by how much clocks of hosts run fast or slow, with something to spare.
	clockDrift = history.Drift(2 * maxDrift * 1e6)
	// slewDrift is the same where they are slewed as well, or run fast.
	slewDrift = history.Drift((maxDrift + slewed + 0.01) * 1e6)
)

// setting is what a scenario begins with.
type setting struct {
	nodes, clients int
	config         func(*Config)
	// drift is that of the clocks. Default clockDrift.
	drift history.Drift
}

// play runs a scenario with several seeds. In half of them, as with the first one, the
// cluster is made at the latest level; in the others at the first one, as old programs
// make it: counters are not deleted, limits not reset and keys not used there until the
// level is adopted.
func play(t *testing.T, set setting, act func(*scene)) {
	for i := range *seeds {
		seed := *firstSeed + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			var j *Judge
			defer func() { // by the clock of the machine
				if j == nil {
					return
				}
				began := time.Now()
				for _, f := range j.Faults() {
					t.Error(f)
				}
				t.Logf("%s; judged in %s", j.Summary(), time.Since(began).Round(time.Millisecond))
			}()
			synctest.Test(t, func(t *testing.T) {
				j = NewJudge(cmp.Or(set.drift, clockDrift))
				playOnce(t, set, seed, j, act)
			})
		})
	}
}

func playOnce(t *testing.T, set setting, seed uint64, j *Judge, act func(*scene)) {
	cfg := Config{Nodes: set.nodes, Seed: seed, Old: seed%2 == 0}
	if *verbose {
		cfg.Log = slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})
	}
	if set.config != nil {
		set.config(&cfg)
	}
	s := &scene{Cluster: New(cfg), t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 0x7363656e)), v: NewVerifier(positions, seed), judge: j}
	s.v.OnTable(j.Learn)
	defer scenes.begin(t.Name())()
	began := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.v.Watch(s.Cluster, watchEvery, ctx.Done()) })
	defer func() {
		cancel()
		running.Wait()
		s.Close()
		simulated.Add(int64(time.Since(began)))
		for _, f := range s.v.Faults() {
			t.Error(f)
		}
		if n := s.Net.Open(); n > 0 {
			t.Errorf("%d ends of connections are still open", n)
		}
		looks, permits, confirmed := s.v.Figures()
		t.Logf("%d looks, %d permits, %d confirmed; %+v", looks, permits, confirmed, s.Net.Stats())
	}()
	s.form()
	for i := range set.clients {
		k, err := NewClient(s.Cluster, j, i+1, 6)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { defer k.Close(); k.Run(ctx) })
	}
	act(s)
}

// form starts all nodes and waits until they share the ring and serve it; and
// until as many vote as are to: before, the death of the only one that votes
// stops the cluster.
func (s *scene) form() {
	s.t.Helper()
	if err := s.StartAll(); err != nil {
		s.t.Fatal(err)
	}
	s.formed = s.until(10*time.Second, "all nodes serve", s.stable)
	s.until(10*time.Second, "all vote", s.vote((len(s.hosts)-1)|1))
}

// until waits for a condition, and returns how long it took.
func (s *scene) until(limit time.Duration, what string, ok func() bool) time.Duration {
	s.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > limit {
			s.t.Fatalf("%s: not after %s\n%s", what, limit, s.describe())
		}
		time.Sleep(pollEvery)
	}
	return time.Since(began)
}

// describe shows what every node knows.
func (s *scene) describe() string {
	out := ""
	for _, p := range s.Live() {
		t := p.Group.Table()
		voters, nonvoters := p.Group.Servers()
		out += fmt.Sprintf("%s paused=%v leader=%q epoch=%d lease=%v voters=%v nonvoters=%v transition=%v moves=%d members=", p.Name, s.hosts[p.Host].gate.Paused(),
			p.Group.Leader(), t.Epoch, time.Duration(p.Group.Rule().Until()-p.Now), voters, nonvoters, t.Transition, len(t.Moves()))
		for _, m := range t.Members {
			out += m.Node + " " + m.Phase.String() + ", "
		}
		out += "\n"
	}
	return out
}

// stable reports whether all nodes that run are active, nothing is to move, and
// every position is served.
func (s *scene) stable() bool {
	live := s.Live()
	for _, p := range live {
		if t := p.Group.Table(); !calm(t, len(live)) || !t.Holds(p.Group.Self()) {
			return false
		}
	}
	s.v.Verify(s.Cluster)
	return s.v.Served(time.Now()) == positions
}

// lostNothing checks that no state was lost: one node at a time was gone, and all
// rows had their standby before.
func (s *scene) lostNothing() {
	s.t.Helper()
	if n := s.judge.Lost(); n > 0 {
		s.t.Errorf("state of %d keys was lost", n)
	}
}

func calm(t *table.Table, nodes int) bool {
	for _, m := range t.Members {
		if m.Phase != table.Active {
			return false
		}
	}
	return len(t.Members) == nodes && t.Transition == nil && len(t.Rows) > 0 && len(t.Moves()) == 0 && t.Unprotected() == 0
}

// served reports whether every position is served now.
func (s *scene) served() bool {
	s.v.Verify(s.Cluster)
	return s.v.Served(time.Now()) == positions
}

// servedWithout reports whether every position is served by others than these hosts.
func (s *scene) servedWithout(out ...int) bool {
	live := s.Live()
	for i := range s.v.positions {
		if !slices.ContainsFunc(live, func(p Process) bool {
			_, _, v := p.Group.Rule().May(s.v.positions[i].hash, p.Now)
			return v == serving.Yes && !slices.Contains(out, p.Host)
		}) {
			return false
		}
	}
	return true
}

// restore heals all faults, and waits until all is as it should be.
func (s *scene) restore() time.Duration {
	s.t.Helper()
	s.Heal()
	for i := range s.hosts {
		s.Resume(i)
	}
	if err := s.StartAll(); err != nil {
		s.t.Fatal(err)
	}
	return s.until(stableTime, "all is well again", s.stable)
}

// leader waits for a leader.
func (s *scene) leader() int {
	s.t.Helper()
	s.until(stableTime, "there is a leader", func() bool { return s.Leader() >= 0 && s.Running(s.Leader()) })
	return s.Leader()
}

// follower is a host that does not lead.
func (s *scene) follower() int {
	l, i := s.leader(), -1
	s.until(stableTime, "a follower runs", func() bool {
		i = s.rnd.IntN(len(s.hosts))
		return i != l && s.Running(i)
	})
	return i
}

// sleep lets simulated time pass.
func (s *scene) sleep(d time.Duration) { time.Sleep(d) }

// between draws a duration.
func (s *scene) between(a, b time.Duration) time.Duration {
	return a + time.Duration(s.rnd.Int64N(int64(b-a)))
}

// ttl is that of all leases.
const ttl = epoch.DefaultTTL
