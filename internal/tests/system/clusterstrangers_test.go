package system

import (
	"encoding/base64"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Whoever is of another cluster, has another key or none, or takes the name of a
// member is kept out, and can read why in its log.
func TestClusterStrangers(t *testing.T) {
	t.Parallel()
	key := func(b byte) string { return base64.StdEncoding.EncodeToString(slices.Repeat([]byte{b}, 32)) }
	c := newCluster(t, 1, false, "--gossip-key", key(1))
	home := c.nodes[0]
	for _, tc := range []struct {
		name, id, cluster, key string
		says                   []string // what a line of its log has
	}{
		{"of another cluster", "n2", "other", key(1), []string{"not ours", `it is of cluster \"c\", not \"other\"`}},
		{"with another key", "n3", "c", key(2), []string{"level=WARN", "cannot join the pool", "no installed keys could decrypt"}},
		{"without a key", "n4", "c", "", []string{"level=WARN", "cannot join the pool", "remote state is encrypted and encryption is not configured"}},
		{"of the same name", "n1", "c", key(1), []string{"level=WARN", "two processes claim one name", "name=n1", "give every node an id of its own"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			flags := []string{"--cluster-id", tc.cluster, "--join", home.gossip}
			if tc.key != "" {
				flags = append(flags, "--gossip-key", tc.key)
			}
			n := newTestNode(t, tc.id, "", flags...)
			n.run()
			n.said(tc.says...)
			n.said("msg=serving")
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
				n.unready(home)
				if g, err := home.acquire(t.Context(), tc.name, false); err != nil || g.owner != home.id {
					t.Fatalf("the member: %+v, %v", g, err)
				}
				if g, err := n.acquire(t.Context(), tc.name, true); err == nil {
					t.Fatalf("a stranger got %+v", g)
				}
			}
			n.signal(t, syscall.SIGTERM)
			n.ends(t, 0)
		})
	}
}

// With a data directory, a second process of the same name is refused at once.
func TestClusterDiskInUse(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, true)
	n := newTestNode(t, "n1", c.nodes[0].disk, "--cluster-id", "c", "--join", c.nodes[0].gossip)
	n.run()
	n.ends(t, exitError)
	if !strings.Contains(n.err(), "in use by another keystead process") {
		t.Error(n.err())
	}
	// Nor may the disk be another's, or of another cluster.
	c.nodes[0].kill()
	for _, tc := range []struct{ says, id, cluster string }{
		{`belongs to the node "n1", not to "n2"`, "n2", "c"},
		{`belongs to the cluster "c", not to "d"`, "n1", "d"},
	} {
		refuses(t, exitError, tc.says, "server", "--id", tc.id, "--cluster-id", tc.cluster, "--data-dir", c.nodes[0].disk, "--bootstrap",
			"--grpc-addr", "127.0.0.1:0", "--admin-addr", "", "--raft-addr", "127.0.0.1:0", "--gossip-addr", "127.0.0.1:0")
	}
}

func TestClusterMisuse(t *testing.T) {
	t.Parallel()
	in := func(args ...string) []string { return append([]string{"--cluster-id", "c", "--bootstrap"}, args...) }
	for _, tc := range []struct {
		says string
		args []string
	}{
		{"needs its name: set --cluster-id", []string{"--bootstrap"}},
		{"needs its name: set --cluster-id", []string{"--join", "127.0.0.1:7402"}},
		{`cluster id "a/b": use 1 to 64`, []string{"--cluster-id", "a/b"}},
		{`--join "here": write HOST:PORT`, in("--join", "here")},
		{`--join ":7402": write HOST:PORT`, in("--join", ":7402")},
		{`--join "here:port": write HOST:PORT`, in("--join", "here:port")},
		{`--join "here:0": write HOST:PORT`, in("--join", "127.0.0.1:7402,here:0")},
		{`--join "here:70000": write HOST:PORT`, in("--join", "here:70000")},
		{"--gossip-key: give base64 of 16, 24 or 32 bytes\n  hint: make one with", in("--gossip-key", "secret")},
		{"--gossip-key: give base64 of 16, 24 or 32 bytes", in("--gossip-key", "c2hvcnQ=")},
		{`--gossip-profile "fast": choose local, lan or wan`, in("--gossip-profile", "fast")},
		{"--lease-ttl 1ms: choose 200ms to 1m", in("--lease-ttl", "1ms")},
		{"--lease-ttl 0s: choose 200ms to 1m", in("--lease-ttl", "0s")},
		{"--lease-ttl 2m0s: choose 200ms to 1m", in("--lease-ttl", "2m")},
		{"--lease-margin 2s: choose more than 0, to half of --lease-ttl, 1s", in("--lease-margin", "2s")},
		{"--lease-margin -1s: choose more than 0", in("--lease-margin", "-1s")},
		{"--recover-wait 25h0m0s: choose more than 0, to 24h", in("--recover-wait", "25h")},
		{"--join-settle -1s: choose more than 0, to 1m", in("--join-settle", "-1s")},
		{`--raft-addr "here": write HOST:PORT`, in("--raft-addr", "here")},
		{`--gossip-addr "127.0.0.1:70000": write HOST:PORT`, in("--gossip-addr", "127.0.0.1:70000")},
		{`--advertise "10.0.0.1:7400": write a HOST without a port`, in("--advertise", "10.0.0.1:7400")},
		{`--advertise "0.0.0.0": others cannot reach a node there`, in("--advertise", "0.0.0.0")},
		{"an epoch floor of 549755813888: the greatest possible", in("--epoch-floor", "549755813888")},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			args := []string{"server", "--grpc-addr", "127.0.0.1:0", "--admin-addr", "", "--raft-addr", "127.0.0.1:0", "--gossip-addr", "127.0.0.1:0"}
			refuses(t, exitUsage, tc.says, append(args, tc.args...)...)
		})
	}
	for _, tc := range []struct {
		says string
		args []string
	}{
		{"--nodes 0: choose 1 to 16", []string{"--nodes", "0"}},
		{"--nodes 17: choose 1 to 16", []string{"--nodes", "17"}},
		{`--grpc-addr "here": write HOST:PORT`, []string{"--nodes", "3", "--grpc-addr", "here"}},
		{`--admin-addr "here": write HOST:PORT`, []string{"--nodes", "3", "--admin-addr", "here"}},
		{`--grpc-addr "127.0.0.1:65530": the ports of 3 nodes`, []string{"--nodes", "3", "--grpc-addr", "127.0.0.1:65530"}},
		{"--lease-ttl 1ms: choose 200ms to 1m", []string{"--nodes", "3", "--lease-ttl", "1ms"}},
	} {
		t.Run("dev "+strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			refuses(t, exitUsage, tc.says, append([]string{"dev"}, tc.args...)...)
		})
	}
}
