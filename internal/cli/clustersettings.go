package cli

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/ring/member"
)

// Bounds of ring/epoch, checked here as well: before the node opens a port or gossips,
// and with the names of the flags.
const (
	minLeaseTTL   = 200 * time.Millisecond
	maxLeaseTTL   = time.Minute
	maxJoinSettle = time.Minute
	maxResumeWait = time.Hour

	maxRecoverWait = 24 * time.Hour
)

// ofClusters are flags that have an effect only in a cluster.
var ofClusters = []string{"lease-ttl", "lease-margin", "join-settle", "resume-wait", "recover-wait", "copy-rate", "ack-owner", "lost-limits",
	"raft-addr", "gossip-addr", "gossip-key", "gossip-profile", "advertise", "hash-key", "hot-node"}

// clusterOnly returns the given flags that have no effect because the node runs alone.
func clusterOnly(cmd *cobra.Command, cluster string) (idle []string) {
	if cluster != "" {
		return nil
	}
	for _, name := range ofClusters {
		if fl := cmd.Flags().Lookup(name); fl != nil && fl.Changed && fl.Value.String() != fl.DefValue {
			idle = append(idle, "--"+name)
		}
	}
	return idle
}

// clusterSettings turns the flags of a node's cluster into its settings.
func (f *nodeFlags) clusterSettings() error {
	c := &f.Cluster
	if f.gossipKey != "" {
		key, err := base64.StdEncoding.DecodeString(f.gossipKey)
		if err != nil || len(key) != 16 && len(key) != 24 && len(key) != 32 {
			return usageError{errors.New("--gossip-key: give base64 of 16, 24 or 32 bytes\n  hint: make one with `head -c 32 /dev/urandom | base64`")}
		}
		c.GossipKey = key
	}
	switch {
	case !slices.Contains([]member.Profile{"", member.Local, member.LAN, member.WAN}, member.Profile(c.Profile)):
		return usageError{fmt.Errorf("--gossip-profile %q: choose local, lan or wan", c.Profile)}
	case c.LeaseTTL < minLeaseTTL || c.LeaseTTL > maxLeaseTTL:
		return usageError{fmt.Errorf("--lease-ttl %s: choose 200ms to 1m", c.LeaseTTL)}
	case c.LeaseMargin <= 0 || c.LeaseMargin > c.LeaseTTL/2:
		return usageError{fmt.Errorf("--lease-margin %s: choose more than 0, to half of --lease-ttl, %s", c.LeaseMargin, c.LeaseTTL/2)}
	case c.ResumeWait <= 0 || c.ResumeWait > maxResumeWait:
		return usageError{fmt.Errorf("--resume-wait %s: choose more than 0, to 1h", c.ResumeWait)}
	case c.RecoverWait <= 0 || c.RecoverWait > maxRecoverWait:
		return usageError{fmt.Errorf("--recover-wait %s: choose more than 0, to 24h", c.RecoverWait)}
	case c.Settle <= 0 || c.Settle > maxJoinSettle:
		return usageError{fmt.Errorf("--join-settle %s: choose more than 0, to 1m", c.Settle)}
	}
	return f.clusterAddrs()
}

// clusterAddrs validates the addresses among the settings.
func (f *nodeFlags) clusterAddrs() error {
	c := &f.Cluster
	for _, a := range c.Join {
		if host, port := splitPort(a); host == "" || port < 1 {
			return usageError{fmt.Errorf("--join %q: write HOST:PORT, like 10.0.0.1:7402", a)}
		}
	}
	for _, l := range []struct{ flag, addr, like string }{
		{"raft-addr", c.RaftAddr, "10.0.0.1:7401"}, {"gossip-addr", c.GossipAddr, "10.0.0.1:7402"},
	} {
		if _, port := splitPort(l.addr); l.addr != "" && port < 0 {
			return usageError{fmt.Errorf("--%s %q: write HOST:PORT, like %s", l.flag, l.addr, l.like)}
		}
	}
	ip := net.ParseIP(c.Advertise)
	switch {
	case ip == nil && strings.ContainsAny(c.Advertise, ":/[] "):
		return usageError{fmt.Errorf("--advertise %q: write a HOST without a port, like 10.0.0.1", c.Advertise)}
	case ip != nil && ip.IsUnspecified():
		return usageError{fmt.Errorf("--advertise %q: others cannot reach a node there\n  hint: leave it out to advertise the machine's private address", c.Advertise)}
	}
	return nil
}

// splitPort splits HOST:PORT; the port is -1 if it is no number of a port.
func splitPort(addr string) (host string, port int) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", -1
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return host, -1
	}
	return host, int(n)
}
