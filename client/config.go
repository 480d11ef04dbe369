package client

import (
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keystead/keystead/internal/clock"
)

// Config is how a client behaves. The zero Config is a good one.
type Config struct {
	// Timeout is how long a call may take, retries included, when its context
	// has no deadline. Default 5 s.
	Timeout time.Duration
	// AttemptTimeout is how long one attempt may take before another node is
	// asked, with the same request id. Time in the queue of a lock does not count.
	// Default 2 s.
	AttemptTimeout time.Duration
	// MaxInFlight bounds the calls under way; more wait. Calls that acquire locks
	// have a bound of their own, of the same size. Default 10,000.
	MaxInFlight int
	// NoBatching sends each Check, Add, TryAcquire and Release in a message of its own, however
	// many there are.
	NoBatching bool
	// Connections is how many connections are held to each node. Default 1.
	Connections int
	// Credentials are those of the connections. Default: none, plain text.
	Credentials credentials.TransportCredentials
	// DialOptions are given to grpc.NewClient after the client's own.
	DialOptions []grpc.DialOption
	// Log is told of nodes that are lost and found, and of leases that are not renewed.
	// Default: none.
	Log *slog.Logger
	// Observers are told of every call, the first one first. Default: none.
	Observers []Observer

	clock     clock.Clock // default: clock.System
	noForward bool        // ask nodes not to forward
}

// Defaults of Config, and what is not a setting.
const (
	DefaultTimeout        = 5 * time.Second
	DefaultAttemptTimeout = 2 * time.Second
	DefaultMaxInFlight    = 10_000

	maxConnections = 64

	firstPause = 10 * time.Millisecond // before the second attempt, on average
	maxPause   = time.Second           // before any later one, unless the node asks for more

	// MaxItems is how many items a call of BatchCheck, BatchAdd or BatchGet may
	// have. They go in messages of at most maxBatch items.
	MaxItems = 100_000
	// maxBatch items of the largest size stay below the 1 MiB that a node takes.
	maxBatch = 1_000
	// maxBatchBytes is how long a message of requests is at most that may be longer than those:
	// locks have metadata.
	maxBatchBytes = 900 << 10
	// batchAgain is how long calls of a kind go one by one to a node that does not know batches
	// of them: it may have another version by then.
	batchAgain = time.Minute
	// maxFlights is how many messages to a node may be under way before calls
	// are put together.
	maxFlights = 4

	maxKey  = 512 // bytes
	maxName = 128 // bytes
)

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.AttemptTimeout == 0 {
		c.AttemptTimeout = DefaultAttemptTimeout
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	if c.Connections == 0 {
		c.Connections = 1
	}
	if c.Credentials == nil {
		c.Credentials = insecure.NewCredentials()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.clock == nil {
		c.clock = clock.System()
	}
	return c
}

func (c Config) validate(addrs []string) error {
	switch {
	case len(addrs) == 0:
		return invalid("address", "is missing; name at least one node as HOST:PORT")
	case c.Timeout < 0:
		return invalid("Timeout", "of %s is negative", c.Timeout)
	case c.AttemptTimeout < 0:
		return invalid("AttemptTimeout", "of %s is negative", c.AttemptTimeout)
	case c.MaxInFlight < 1:
		return invalid("MaxInFlight", "is %d; choose 1 or more", c.MaxInFlight)
	case c.Connections < 1 || c.Connections > maxConnections:
		return invalid("Connections", "is %d; choose 1 to %d", c.Connections, maxConnections)
	case slices.Contains(c.DialOptions, nil):
		return invalid("DialOptions", "have one that is nil")
	case slices.Contains(c.Observers, nil):
		return invalid("Observers", "have one that is nil")
	}
	for _, addr := range addrs {
		//guard:client-address
		if err := validAddress(addr); err != nil {
			return err
		}
	}
	return nil
}

// validAddress judges an address as far as it can be without the network. A socket of
// this machine is "unix:" and its path.
func validAddress(addr string) error {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok && path != "" {
		return nil
	}
	wrong := func(why string) error {
		return invalid("address", "%q %s; write HOST:PORT, like 127.0.0.1:7400", addr, why)
	}
	if strings.Contains(addr, "://") {
		return wrong("is a URL")
	}
	_, port, err := net.SplitHostPort(addr)
	switch {
	case addr == "":
		return wrong("is empty")
	case err != nil && strings.Contains(err.Error(), "too many colons"):
		return wrong("has colons in its host, which belong in brackets")
	case err != nil || port == "":
		return wrong("has no port")
	}
	if n, err := strconv.Atoi(port); err == nil && (n < 1 || n > math.MaxUint16) {
		return wrong("has a port that there cannot be")
	} else if err != nil && strings.Trim(port, serviceName) != "" {
		return wrong("has a port that is neither a number nor a name")
	}
	return nil
}

// serviceName are the characters of names of ports (RFC 6335).
const serviceName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
