package sim

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keystead/keystead/internal/node"
)

// founded is a cluster of hosts of which the first three are its founders, with the
// timing of a LAN. Only the founders are addresses to join. Hosts of the same name are
// said in as.
func founded(nodes int, as map[int]string) *Cluster {
	return New(Config{Nodes: nodes, Seed: 1, Profile: "lan", Tune: func(i int, cfg *node.Config) {
		cfg.Cluster.Bootstrap = false
		cfg.Cluster.Founders = []string{"n1", "n2", "n3"}
		cfg.Cluster.Join = []string{"10.0.0.1:7402", "10.0.0.2:7402", "10.0.0.3:7402"}
		if as[i] != "" {
			cfg.ID = as[i]
		}
	}})
}

// clusters returns the numbers of the clusters that processes belong to.
func clusters(c *Cluster) (uids []string) {
	for _, p := range c.Live() {
		if uid := p.Group.Table().UID; uid != "" && !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	return uids
}

// one waits until so many processes belong to a cluster.
func one(t *testing.T, c *Cluster, nodes int) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		n := 0
		for _, p := range c.Live() {
			if tab := p.Group.Table(); calm(tab, nodes) {
				n++
			}
		}
		if n >= nodes {
			return
		}
		if time.Since(began) > 90*time.Second {
			t.Fatalf("%d of %d nodes are in the cluster", n, nodes)
		}
	}
}

// TestFoundersWiped: all founders lose their disks while others hold the cluster, and are
// at first cut off from these. They hear of them before they make a second one, because
// they wait for those that look for members that have failed.
func TestFoundersWiped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer scenes.begin(t.Name())()
		c := founded(5, nil)
		defer c.Close()
		if err := c.StartAll(); err != nil {
			t.Fatal(err)
		}
		one(t, c, 5)
		was := clusters(c)
		founders := []int{0, 1, 2}
		for _, i := range founders {
			c.Crash(i)
			c.Wipe(i)
		}
		time.Sleep(20 * time.Second)
		c.Partition(founders)
		for _, i := range founders {
			if err := c.Start(i); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(8 * time.Second)
		c.Heal()
		time.Sleep(30 * time.Second)
		if now := clusters(c); !slices.Equal(was, now) {
			t.Errorf("the cluster was %v, and now there are %v", was, now)
		}
	})
}

// TestFounderSleeps: a founder is stopped just before it makes the cluster, and replaced
// by another process of its name, which makes it. When it wakes it makes no second one.
func TestFounderSleeps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer scenes.begin(t.Name())()
		c := founded(4, map[int]string{3: "n1"})
		defer c.Close()
		for i := range 3 {
			if err := c.Start(i); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(21400 * time.Millisecond) // it has seen them for some 21 s
		made := clusters(c)
		c.Pause(0)
		time.Sleep(10 * time.Second) // it is found to have failed
		if err := c.Start(3); err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); len(clusters(c)) == 0 && time.Since(began) < 2*time.Minute; {
			time.Sleep(time.Second)
		}
		c.Resume(0)
		time.Sleep(30 * time.Second)
		now := clusters(c)
		if t.Logf("before it slept %v, at the end %v", made, now); len(now) != 1 {
			t.Errorf("clusters %v", now)
		}
	})
}
