package member

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

// Profile is the timing of gossip.
type Profile string

// The profiles are those of memberlist, with serf's settings beside them. When a
// dead one is shown as failed was measured: one of three, 25 times, in simulation.
//
//	                         local   lan     wan
//	a member is probed       1 s     1 s     5 s
//	shown as failed after    4–6 s   5–7 s   36–48 s
//	whole states exchanged   15 s    30 s    60 s
//	a failed one is retried  2 s     10 s    30 s
//	and forgotten after      1 h     24 h    72 h
//	one that left, after     1 h     24 h    24 h
const (
	Local Profile = "local" // several nodes on one machine
	LAN   Profile = "lan"
	WAN   Profile = "wan"
)

// Debounce.
const (
	// DefaultSettle is how long a change is stable before it is shown.
	DefaultSettle = 200 * time.Millisecond
	// MaxSettle is the most that Config.Settle may be.
	MaxSettle = time.Minute
)

// maxJoin is the number of addresses that may be given to join.
const maxJoin = 256

// Config says what a node is and how it gossips.
type Config struct {
	Self Self // what the node says of itself; its name is the name in the pool
	// Bind is the host:port to gossip at, UDP and TCP. Port 0 picks a free one.
	// Not used with a Transport.
	Bind string
	// Advertise is the host:port that others reach it at. Port 0 is the bound
	// one; "" is the bound address, or a private address of the machine if it is
	// bound to all of IPv4's.
	Advertise string
	// Join are host:port of members, at most 256. All addresses of a host are
	// tried, again and again, until one of our cluster is in the pool.
	Join []string
	// Key encrypts gossip: 16, 24 or 32 bytes. Nil is no encryption. Members
	// with another key, or none, are not in the pool.
	Key     []byte
	Profile Profile // "" is lan
	// Settle is how long a change is stable before it is shown. 0 is 200 ms.
	Settle time.Duration
	// Transport carries gossip. Nil is UDP and TCP sockets. The pool shuts it
	// down.
	Transport memberlist.Transport
	// Answer answers queries of the pool whose name begins with EventPrefix, as
	// `serf query` asks them: at most MaxAnswer bytes, nil for no answer. It is
	// called by a goroutine that does nothing else, and holds up only other
	// queries. Nil: no answers.
	Answer func(query string, payload []byte) []byte
	Log    *slog.Logger // nil: none

	tune func(*serf.Config) // tests quicken serf with it
}

// Validate says what is wrong with the configuration, as a sentence for people.
func (c Config) Validate() error {
	if err := c.Self.Validate(); err != nil {
		return err
	}
	if c.Transport == nil {
		if _, _, err := splitAddr(c.Bind); err != nil {
			return fmt.Errorf("gossip address: %w", err)
		}
	}
	if c.Advertise != "" {
		if host, _, err := splitAddr(c.Advertise); err != nil || host == "" {
			return fmt.Errorf("advertised gossip address %q is not HOST:PORT", c.Advertise)
		}
	}
	if len(c.Join) > maxJoin {
		return fmt.Errorf("%d addresses to join, more than %d: a few that are likely to be there are enough", len(c.Join), maxJoin)
	}
	for _, j := range c.Join {
		if err := checkAddr(j); err != nil {
			return fmt.Errorf("address to join: %w", err)
		}
	}
	if !slices.Contains([]int{0, 16, 24, 32}, len(c.Key)) {
		return fmt.Errorf("the gossip key has %d bytes; give 16, 24 or 32", len(c.Key))
	}
	if !slices.Contains([]Profile{"", Local, LAN, WAN}, c.Profile) {
		return fmt.Errorf("gossip profile %q: give local, lan or wan", c.Profile)
	}
	if c.Settle < 0 || c.Settle > MaxSettle {
		return fmt.Errorf("settle time %v: give 0 to %v", c.Settle, MaxSettle)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Profile == "" {
		c.Profile = LAN
	}
	if c.Settle == 0 {
		c.Settle = DefaultSettle
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// splitAddr splits host:port, where host may be empty and port 0.
func splitAddr(addr string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q: the port is not a number from 0 to 65535", addr)
	}
	return host, int(n), nil
}

// reclaimAfter is how long a member must have been failed before its name may be
// had by another address. Without it, a node restarted elsewhere would be turned
// away until memberlist forgets the old one, half a minute later.
const reclaimAfter = time.Millisecond

// serfConfig returns the agent's, but for address, events and log.
func (c Config) serfConfig() *serf.Config {
	conf := serf.DefaultConfig()
	var m *memberlist.Config
	switch c.Profile {
	case Local:
		m = memberlist.DefaultLocalConfig()
		conf.BroadcastTimeout, conf.LeavePropagateDelay = time.Second, 200*time.Millisecond
		conf.ReconnectTimeout, conf.TombstoneTimeout = time.Hour, time.Hour
	case WAN:
		m = memberlist.DefaultWANConfig()
		conf.BroadcastTimeout, conf.LeavePropagateDelay = 5*time.Second, 2*time.Second
		conf.ReconnectTimeout, conf.TombstoneTimeout = 72*time.Hour, 24*time.Hour
	default:
		m = memberlist.DefaultLANConfig()
		conf.BroadcastTimeout, conf.LeavePropagateDelay = 2*time.Second, time.Second
		conf.ReconnectTimeout, conf.TombstoneTimeout = 24*time.Hour, 24*time.Hour
	}
	conf.ReconnectInterval = c.Profile.Reconnect()
	conf.NodeName, conf.Tags = c.Self.Node, c.Self.tags()
	conf.EnableNameConflictResolution = false // see the package comment
	conf.DisableCoordinates = true            // nobody asks how far apart members are
	m.SecretKey = c.Key
	m.DeadNodeReclaimTime = reclaimAfter
	conf.MemberlistConfig = m
	if c.tune != nil {
		c.tune(conf)
	}
	return conf
}
