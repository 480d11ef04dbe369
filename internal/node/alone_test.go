package node

import (
	"context"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/ids"
	"github.com/keystead/keystead/owner"
	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
)

// oneOf is a node of a cluster on free ports.
func oneOf(id, dir string, change func(*Config)) func(*Config) {
	return func(c *Config) {
		c.ID, c.DataDir, c.AdminAddr = id, dir, ""
		c.Cluster = ClusterConfig{ID: "c", RaftAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", Profile: "local"}
		change(c)
	}
}

// given takes a token and an id of a node, as soon as it gives them.
func given(t *testing.T, n *Node, key string) (token, id uint64) {
	t.Helper()
	conn := dial(t, n)
	eventually(t, "it gives a token and an id", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		select {
		case err := <-n.Failed():
			t.Fatal(err)
		default:
		}
		l, err := lockpb.NewLockServiceClient(conn).Acquire(ctx, &lockpb.AcquireRequest{Key: key, Holder: "h", TtlNs: 10e6})
		if err != nil || !l.Acquired {
			return false
		}
		i, err := idpb.NewIdServiceClient(conn).Next(ctx, &idpb.NextRequest{Count: 1})
		if err != nil {
			return false
		}
		token, id = l.Token, i.First
		return true
	})
	return token, id
}

// TestAloneThenInACluster: on one data directory tokens and ids rise, though the clock is
// behind what the node has served under alone; and there is no way back.
func TestAloneThenInACluster(t *testing.T) {
	t.Parallel()
	dir, floor := t.TempDir(), wallEpoch(time.Now())+1<<30
	n := startStandalone(t, dir, func(c *Config) { c.EpochFloor = floor })
	token, id := given(t, n, "k1")
	if token>>owner.SeqBits < floor || id>>ids.SeqBits < floor {
		t.Fatalf("token %d and id %d are below the floor", token, id)
	}
	n.Stop()
	for _, key := range []string{"k2", "k3"} { // it makes the cluster, and goes on with its log
		n = start(t, oneOf("n1", dir, func(c *Config) { c.Cluster.Bootstrap = true }))
		token2, id2 := given(t, n, key)
		if token2 <= token || id2 <= id {
			t.Errorf("the token %d after %d, the id %d after %d", token2, token, id2, id)
		}
		token, id = token2, id2
		n.Stop()
	}
	_, err := Start(Config{ID: "n1", GRPCAddr: "127.0.0.1:0", DataDir: dir})
	for _, want := range []string{dir, "holds the log of a cluster", "--cluster-id", "--epoch-floor"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("alone again: %v, want %q", err, want)
		}
	}
}

// TestAloneThenTakenIn: a cluster that is behind what a node has served under alone does
// not get it as a member, and gets no epoch for its ids raised.
func TestAloneThenTakenIn(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() { // a probe of memberlist's outlives its node for a moment
		eventually(t, "nobody is probed any more", func() bool {
			var b strings.Builder
			return pprof.Lookup("goroutine").WriteTo(&b, 1) == nil && !strings.Contains(b.String(), "(*Memberlist).probeNode")
		})
	})
	dir := t.TempDir()
	n := startStandalone(t, dir, func(c *Config) { c.EpochFloor = wallEpoch(time.Now()) + 1<<30 })
	given(t, n, "k1")
	n.Stop()
	first := start(t, oneOf("n1", t.TempDir(), func(c *Config) { c.Cluster.Bootstrap = true }))
	given(t, first, "k2")
	second := start(t, oneOf("n2", dir, func(c *Config) { c.Cluster.Join = []string{first.cluster.pool.Addr()} }))
	select {
	case err := <-second.Failed():
		for _, want := range []string{"has served alone up to epoch", epochPath(dir), "--data-dir"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	case <-time.After(patience):
		t.Fatal("nobody is told")
	}
	if e, err := second.cluster.claimEpoch(expired(t)); err == nil {
		t.Errorf("the epoch %d for its ids", e)
	}
	for hash := range uint64(64) {
		if _, v := second.cluster.serving.Enter(hash<<58, second.cfg.Clock.Now()); v == serving.Yes {
			t.Fatal("it may act")
		}
	}
}

// expired is a context that ends soon.
func expired(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
