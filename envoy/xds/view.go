package xds

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// MaxNodes is how many nodes a View may have.
const MaxNodes = 1024

// View is the ring as it stands.
type View struct {
	Epoch uint64 // of the table that says so
	Nodes []Node // on the ring, in any order
	// SplitKeys are keys of objects that several nodes serve in parts, in any order.
	// Those that fit into no header are passed over, and so are all but MaxSplitKeys.
	SplitKeys []string
}

// Node is a node on the ring.
type Node struct {
	HashKey string         // what its points are computed from; no two nodes have the same
	GRPC    netip.AddrPort // where its API is reached
	App     netip.AddrPort // where the application beside it is reached; zero = there is none
}

// validate says what is wrong with v. Its maker has checked all of it.
func (v View) validate() error {
	if len(v.Nodes) > MaxNodes {
		return fmt.Errorf("xds: %d nodes; at most %d are allowed", len(v.Nodes), MaxNodes)
	}
	seen := make(map[string]bool, len(v.Nodes))
	for _, n := range v.Nodes {
		switch {
		case n.HashKey == "" || seen[n.HashKey]:
			return fmt.Errorf("xds: the hash key %q is empty, or there twice", n.HashKey)
		}
		if err := CheckAddr(n.GRPC); err != nil {
			return fmt.Errorf("xds: node %q: %w", n.HashKey, err)
		}
		if err := CheckAddr(n.App); n.App != (netip.AddrPort{}) && err != nil {
			return fmt.Errorf("xds: the application of node %q: %w", n.HashKey, err)
		}
		seen[n.HashKey] = true
	}
	return nil
}

// ErrAddr says that clients on other machines cannot use an address.
var ErrAddr = errors.New("clients on other machines cannot use it")

// CheckAddr says what is wrong with the address of a node or an application, as
// clients are told it: an ErrAddr, with the address. One such address among others
// would have Envoy refuse all of them.
func CheckAddr(a netip.AddrPort) error {
	problem := ""
	switch ip := a.Addr().Unmap(); {
	case !a.IsValid():
		problem = "is no address"
	case a.Port() == 0:
		problem = "has no port"
	case ip.IsUnspecified():
		problem = "is where one listens, not where others find it"
	case ip.Zone() != "":
		problem = "has a zone, which means something on one machine only"
	default:
		return nil
	}
	return fmt.Errorf("%s %s: %w", a, problem, ErrAddr)
}

// ring returns the nodes in the order of their hash keys, bytewise: that of package ring,
// by which the points of hosts are counted.
func (v View) ring() []Node {
	return slices.SortedFunc(slices.Values(v.Nodes), func(a, b Node) int { return cmp.Compare(a.HashKey, b.HashKey) })
}

// Defaults of Settings.
const (
	// DefaultListener is at the port of Envoy's own examples, and on loopback, because
	// nothing asks its callers who they are.
	DefaultListener = "127.0.0.1:10000"
	// DefaultKeyHeader says whose it is, and has nothing to do with what others send.
	DefaultKeyHeader = "x-keystead-key"
)

// MaxHeader is the longest name of a header, in bytes.
const MaxHeader = 128

// Settings are what resources depend on beside the ring.
type Settings struct {
	// Listener is the IP:PORT at which each Envoy listens. "" = Envoys are given no
	// listener, and have their own.
	Listener string
	// KeyHeader is the header (for gRPC: the metadata) that holds the key of a
	// request. "" is DefaultKeyHeader.
	KeyHeader string
}

// Errors of Settings.
var (
	ErrListener  = errors.New("the address at which Envoys listen has to be IP:PORT, like 0.0.0.0:10000")
	ErrKeyHeader = errors.New("the key's header has to be lower-case letters, digits, '-' and '_', at most 128, and not to end in -bin")
)

// headerPattern is what both HTTP/2 and gRPC's metadata take as a name.
var headerPattern = regexp.MustCompile(`^[a-z0-9_-]+$`)

// Validate says what makes no sense: ErrListener or ErrKeyHeader, with what was
// given.
func (s Settings) Validate() error {
	if s.Listener != "" {
		if a, err := netip.ParseAddrPort(s.Listener); err != nil || a.Port() == 0 {
			return fmt.Errorf("%q: %w", s.Listener, ErrListener)
		}
	}
	if h := s.KeyHeader; h != "" && (len(h) > MaxHeader || !headerPattern.MatchString(h) || strings.HasSuffix(h, "-bin") || strings.HasPrefix(h, "grpc-")) {
		return fmt.Errorf("%q: %w", h, ErrKeyHeader)
	}
	return nil
}

func (s Settings) withDefaults() Settings {
	if s.KeyHeader == "" {
		s.KeyHeader = DefaultKeyHeader
	}
	return s
}
