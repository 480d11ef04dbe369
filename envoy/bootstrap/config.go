package bootstrap

import (
	"fmt"
	"time"

	"github.com/keystead/keystead/ring"
)

// Defaults of what is left out, and bounds.
const (
	// DefaultID is the node.id that Envoy tells others.
	DefaultID = "envoy"
	// DefaultCluster is the node.cluster that Envoy tells others.
	DefaultCluster = "keystead"
	// DefaultAdmin is where Envoy's own admin interface listens: on loopback,
	// because it asks nobody who they are.
	DefaultAdmin = "127.0.0.1:9901"
	// DefaultListener is where Envoy takes requests: on loopback, because nothing
	// authenticates.
	DefaultListener = "127.0.0.1:10000"
	// DefaultKeyHeader is the request header that holds the key.
	DefaultKeyHeader = "x-keystead-key"
	// DefaultDescriptor is the key of the descriptor that is made of the key header.
	DefaultDescriptor = "key"
	// DefaultRateLimitTimeout is how long a request waits for the rate limit
	// service. Envoy's own default, 20 ms, is shorter than a row may be frozen while
	// it moves.
	DefaultRateLimitTimeout = 100 * time.Millisecond

	// MaxNodes and MaxDescriptors bound what is written. A ring of more nodes than
	// that has more points than Envoy's largest; a request asks for a descriptor each.
	MaxNodes       = ring.MaxNodes
	MaxDescriptors = 16
	// MaxText is the longest name, header, domain or hash key, in bytes. It is that
	// of the ring's hash keys.
	MaxText = ring.MaxHashKey
	// MaxMade is the longest command that is quoted as the maker, in bytes; a longer
	// one is left out.
	MaxMade = 4096
	// MaxRateLimitTimeout is the longest wait for the rate limit service.
	MaxRateLimitTimeout = time.Minute
)

// Node is a node of Keystead as Envoy is to see it.
type Node struct {
	// Addr is where its API listens, host:port: an IP address, or a name that
	// resolves to exactly one.
	Addr string
	// HashKey is what its points on the ring are computed from. Default: Addr, which
	// is right for a node without a --hash-key that advertises just this Addr.
	HashKey string
}

// Proxy is what every configuration says of the Envoy that reads it.
type Proxy struct {
	// ID and Cluster are its node.id and node.cluster. Defaults: DefaultID and
	// DefaultCluster.
	ID, Cluster string
	// Admin is where its admin interface listens, IP:port. Default: none.
	Admin string
	// Made is the command that makes the configuration again, for the comment at its
	// top. Default: none.
	Made string
}

// Listener is where requests come in, and where they go.
type Listener struct {
	// Addr is where it listens, IP:port. Required.
	Addr string
	// KeyHeader is the request header that holds the key. Default:
	// DefaultKeyHeader.
	KeyHeader string
	// App sends requests to the application beside the key's owner, clusters
	// app-owners and app-any, instead of to the nodes. Only for a Dynamic, since the
	// nodes' xDS has these clusters.
	App bool
	// Upstream, host:port each, is an application that is no part of the ring: all
	// requests that the RateLimit lets through go there. Default: none.
	Upstream []string
	// RateLimit asks the nodes' rate limit service about each request. Default: it
	// is not asked.
	RateLimit *RateLimit
}

// RateLimit is how Envoy asks the rate limit service.
type RateLimit struct {
	// Domain is that of the service's configuration. Required.
	Domain string
	// Descriptors are what is asked about, one by one. Default: one of the key
	// header, with the key DefaultDescriptor.
	Descriptors []Descriptor
	// Deny refuses requests, with 503, when the service gives no answer; otherwise
	// they are let through.
	Deny bool
	// Timeout is how long a request waits for the service, 1 ms to
	// MaxRateLimitTimeout. Default: DefaultRateLimitTimeout.
	Timeout time.Duration
}

// Descriptor is one entry that the rate limit service is asked about.
type Descriptor struct {
	// Key is its key. For the remote address it is Envoy's own, remote_address.
	Key string
	// Header is the request header that has its value; a request without it is not
	// asked about. "" = the remote address: that of the connection, whatever the
	// request says in X-Forwarded-For.
	Header string
}

// Static is a configuration that names the nodes.
type Static struct {
	Proxy
	// Listener is where requests come in.
	Listener Listener
	// Nodes are the nodes on the ring, 1 to MaxNodes, in any order, each with a hash
	// key of its own.
	Nodes []Node
}

// Dynamic is a configuration that asks the nodes by xDS.
type Dynamic struct {
	Proxy
	// Nodes are nodes to ask, host:port each, 1 to MaxNodes. One is enough to find
	// all; more are for the case that it is down. A name may resolve to several.
	Nodes []string
	// Listener is where requests come in. Default: the nodes' xDS says it, too.
	Listener *Listener
}

// Error is a mistake in a Static or Dynamic.
type Error struct {
	// Field is the field at fault, like "Nodes" or "Listener.Addr".
	Field string
	// Problem says what is wrong with it, Hint what to write instead.
	Problem, Hint string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%s)", e.Field, e.Problem, e.Hint) }

// YAML returns the configuration, commented. It ends with a line break. The error is an
// *Error, and there is no YAML then.
func (s Static) YAML() ([]byte, error) {
	p, err := s.page()
	if err != nil {
		return nil, err
	}
	return p.render("static.yaml.tmpl"), nil
}

// YAML returns the configuration, commented. It ends with a line break. The error is an
// *Error, and there is no YAML then.
func (d Dynamic) YAML() ([]byte, error) {
	p, err := d.page()
	if err != nil {
		return nil, err
	}
	return p.render("dynamic.yaml.tmpl"), nil
}
