package power

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/tests/nemesis/cluster"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// agreed waits until the cluster has agreed on what its disks promise: from then on they count.
func (x *three) agreed(on string) {
	x.t.Helper()
	n := x.c.Nodes()[0]
	conn, err := x.c.Connect(n)
	must(x.t, err)
	defer conn.Close()
	said := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); pause(50 * time.Millisecond) {
		st, err := clusterpb.NewClusterServiceClient(conn).GetStatus(x.t.Context(), &clusterpb.GetStatusRequest{})
		if said = st.GetDisk().GetAgreed(); err == nil && said == on {
			return
		}
	}
	x.t.Fatalf("the cluster has agreed on %q within %s, want %q", said, patience, on)
}

// die ends all nodes: their power is cut, or they are killed.
func (x *three) die(cycle int, power bool, r *rand.Rand) {
	x.t.Helper()
	if power {
		x.cut(cycle, r)
		return
	}
	for _, i := range r.Perm(3) {
		must(x.t, x.c.Nodes()[i].Kill())
		if r.IntN(2) == 0 {
			pause(time.Duration(r.IntN(20)) * time.Millisecond)
		}
	}
}

// startAny starts all nodes in any order, one of them much later at times. It returns a client of the first one.
func (x *three) startAny(r *rand.Rand) *client.Client {
	x.t.Helper()
	order := r.Perm(3)
	for i, n := range order {
		if i == 2 && r.IntN(3) == 0 {
			pause(time.Duration(r.IntN(3000)) * time.Millisecond)
		}
		must(x.t, x.c.Nodes()[n].Start())
	}
	for deadline := time.Now().Add(patience); ; pause(10 * time.Millisecond) {
		c, err := client.Dial(x.t.Context(), x.c.Nodes()[order[0]].Addr())
		if err == nil {
			return c
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("no node tells who owns what within %s: %v", patience, err)
		}
	}
}

// served waits until every meter can be read.
func (x *load) served(t *testing.T, c *client.Client) {
	t.Helper()
	for _, m := range x.meters {
		for deadline := time.Now().Add(patience); ; pause(10 * time.Millisecond) {
			_, _, err := m.read(t.Context(), c, m.key)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s %s is not served within %s: %v", m.what, m.key, patience, err)
			}
		}
	}
}

// All nodes of a cluster die under load, by kill -9 or by a power cut, and come back in any order. What they acknowledged is
// there: all of it under always, and under interval all but that of the last second. Ids never come twice. A cycle
// takes seconds: there are a third as many.
func TestAcknowledgedByAll(t *testing.T) {
	for i, durability := range []string{"always", "interval"} {
		t.Run(durability, func(t *testing.T) {
			t.Parallel()
			r, always := rand.New(rand.NewPCG(*seed, uint64(11+i))), durability == "always"
			ttl := cluster.MaxLockTTL
			if always {
				ttl = lockTTL
			}
			x, l := newThree(t, "--durability", durability, "--max-lock-ttl", ttl.String()), newLoad()
			if l.given = map[uint64]bool{}; !always {
				l.latches = nil // a lock is not granted anew as long as one may be held that was lost
			}
			for _, m := range l.meters {
				m.unnamed = !always
			}
			x.await()
			x.agreed(durability)
			answers, lost, cuts := 0, 0, 0
			var took []time.Duration
			for cycle := range (*cycles + 2) / 3 {
				stop := l.run(t, x.c.Nodes()[r.IntN(3)].Addr())
				pause(time.Duration(50+r.IntN(1500)) * time.Millisecond)
				power := r.IntN(2) == 0
				x.die(cycle, power, r)
				stop()
				if power {
					cuts++
				}
				answers += l.answers()
				began := time.Now()
				c := x.startAny(r)
				l.served(t, c)
				took = append(took, time.Since(began))
				lost += l.check(t, c, always)
				c.Close()
				x.await()
				if t.Failed() {
					t.Fatalf("cycle %d of seed %d", cycle, *seed)
				}
			}
			slices.Sort(took)
			t.Logf("%s: all of three nodes died %d times under load, %d times by a power cut: %d operations acknowledged, %d of them lost; all served after %s (half of the times), %s at most",
				durability, len(took), cuts, answers, lost, took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
		})
	}
}
