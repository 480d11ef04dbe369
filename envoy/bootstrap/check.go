package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/keystead/keystead/ring"
)

var (
	// hostName is a DNS name. Underscores are not for hosts, but in use.
	hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)
	// headerName is a token of RFC 9110, section 5.6.2.
	headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
)

// maxHost is the longest host name, in bytes.
const maxHost = 253

// page is a configuration as the templates see it: checked, and with all defaults.
type page struct {
	Proxy
	Admin    *endpoint
	Listener *listener
	Nodes    cluster
	Upstream cluster
}

type listener struct {
	At        endpoint
	KeyHeader string
	Owners    string // cluster of requests with the key header; "" = all go to Any
	Any       string // cluster of the others
	Keystead  bool   // they are clusters of Keystead's own API
	CDS       bool   // the clusters come by CDS
	RateLimit *RateLimit
	Wait      string // RateLimit.Timeout, as JSON has a Duration
	Remote    bool   // the remote address is asked about
}

// cluster is a list of hosts.
type cluster struct {
	Type  string // STATIC, or STRICT_DNS if there are names
	Hosts []endpoint
}

// MinimumRingSize returns how many points the ring of the hosts has.
func (c cluster) MinimumRingSize() int { return ring.PointsPerNode * len(c.Hosts) }

// MaximumRingSize is Envoy's own limit, which is the default, too.
func (c cluster) MaximumRingSize() int { return ring.MaxPoints }

type endpoint struct {
	Host    string // without brackets
	Port    uint16
	HashKey string
	ip      bool
}

func (s Static) page() (*page, error) {
	p, err := s.Proxy.page()
	if err != nil {
		return nil, err
	}
	if p.Nodes, err = ringOf(s.Nodes); err != nil {
		return nil, err
	}
	if s.Listener.App {
		return nil, &Error{"Listener.App", "a static configuration knows no application beside the nodes", "use a dynamic one"}
	}
	if p.Listener, p.Upstream, err = s.Listener.page(false); err != nil {
		return nil, err
	}
	return p, nil
}

func (d Dynamic) page() (*page, error) {
	p, err := d.Proxy.page()
	if err != nil {
		return nil, err
	}
	if p.Nodes, err = clusterOf("Nodes", d.Nodes); err != nil {
		return nil, err
	}
	if d.Listener != nil {
		if p.Listener, p.Upstream, err = d.Listener.page(true); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (x Proxy) page() (*page, error) {
	p := &page{Proxy: x}
	p.ID, p.Cluster = cmp.Or(p.ID, DefaultID), cmp.Or(p.Cluster, DefaultCluster)
	if len(p.Made) > MaxMade || printable(p.Made) != nil {
		p.Made = ""
	}
	for field, text := range map[string]string{"ID": p.ID, "Cluster": p.Cluster} {
		if err := checkText(field, text); err != nil {
			return nil, err
		}
	}
	if x.Admin != "" {
		at, err := bindable("Admin", x.Admin)
		if err != nil {
			return nil, err
		}
		p.Admin = &at
	}
	return p, nil
}

// page returns the listener, and the cluster of what it stands before, if that is not
// Keystead.
func (l Listener) page(cds bool) (*listener, cluster, error) {
	none := cluster{}
	p := &listener{KeyHeader: strings.ToLower(cmp.Or(l.KeyHeader, DefaultKeyHeader)), CDS: cds, Keystead: true, Owners: "keystead-owners", Any: "keystead-any"}
	var err error
	if p.At, err = bindable("Listener.Addr", l.Addr); err != nil {
		return nil, none, err
	}
	if err := checkHeader("Listener.KeyHeader", p.KeyHeader); err != nil {
		return nil, none, err
	}
	if p.RateLimit, err = l.RateLimit.withDefaults(p.KeyHeader); err != nil {
		return nil, none, err
	}
	if p.RateLimit != nil {
		p.Wait = strconv.FormatFloat(p.RateLimit.Timeout.Seconds(), 'f', -1, 64) + "s"
		p.Remote = slices.ContainsFunc(p.RateLimit.Descriptors, func(d Descriptor) bool { return d.Header == "" })
	}
	if l.App {
		p.Keystead, p.Owners, p.Any = false, "app-owners", "app-any"
	}
	if len(l.Upstream) == 0 {
		return p, none, nil
	}
	switch {
	case l.App:
		return nil, none, &Error{"Listener.Upstream", "requests go either to it or to the application beside the owner", "leave one of the two out"}
	case l.RateLimit == nil:
		return nil, none, &Error{"Listener.Upstream", "without a rate limit Keystead would have no part in it", "say which domain of limits holds for it"}
	}
	p.Keystead, p.Owners, p.Any = false, "", "upstream"
	up, err := clusterOf("Listener.Upstream", l.Upstream)
	return p, up, err
}

// withDefaults is a copy; of nil it is nil.
func (r *RateLimit) withDefaults(keyHeader string) (*RateLimit, error) {
	if r == nil {
		return nil, nil
	}
	c := *r
	c.Timeout = cmp.Or(c.Timeout, DefaultRateLimitTimeout)
	if err := checkText("Listener.RateLimit.Domain", c.Domain); err != nil {
		return nil, err
	}
	if c.Timeout < time.Millisecond || c.Timeout > MaxRateLimitTimeout {
		return nil, &Error{"Listener.RateLimit.Timeout", fmt.Sprintf("%s is out of bounds", c.Timeout), fmt.Sprintf("choose 1ms to %s", MaxRateLimitTimeout)}
	}
	c.Descriptors = slices.Clone(c.Descriptors)
	if len(c.Descriptors) == 0 {
		c.Descriptors = []Descriptor{{DefaultDescriptor, keyHeader}}
	}
	const field = "Listener.RateLimit.Descriptors"
	if len(c.Descriptors) > MaxDescriptors {
		return nil, &Error{field, fmt.Sprintf("there are %d", len(c.Descriptors)), fmt.Sprintf("at most %d are allowed", MaxDescriptors)}
	}
	for i := range c.Descriptors {
		d := &c.Descriptors[i]
		if d.Header == "" {
			continue // Envoy names the remote address by itself
		}
		d.Header = strings.ToLower(d.Header)
		if err := checkHeader(field, d.Header); err != nil {
			return nil, err
		}
		if err := checkText(field, d.Key); err != nil {
			return nil, err
		}
	}
	return &c, nil
}

// ringOf returns the ring's hosts, bytewise by hash key.
func ringOf(nodes []Node) (cluster, error) {
	addrs := make([]string, len(nodes))
	for i, n := range nodes {
		addrs[i] = n.Addr
	}
	c, err := clusterOf("Nodes", addrs)
	if err != nil {
		return cluster{}, err
	}
	byKey := map[string]string{}
	for i, n := range nodes {
		key := cmp.Or(n.HashKey, n.Addr)
		if err := checkText("Nodes", key); err != nil {
			return cluster{}, err
		}
		if other, ok := byKey[key]; ok {
			return cluster{}, &Error{"Nodes", fmt.Sprintf("%s and %s have the hash key %q", other, n.Addr, key), "each node has one of its own"}
		}
		byKey[key], c.Hosts[i].HashKey = n.Addr, key
	}
	slices.SortFunc(c.Hosts, func(a, b endpoint) int { return cmp.Compare(a.HashKey, b.HashKey) })
	return c, nil
}

// clusterOf is hosts to connect to, in the order in which they come.
func clusterOf(field string, addrs []string) (cluster, error) {
	switch {
	case len(addrs) == 0:
		return cluster{}, &Error{field, "there are none", "name one or more as HOST:PORT"}
	case len(addrs) > MaxNodes:
		return cluster{}, &Error{field, fmt.Sprintf("there are %d", len(addrs)), fmt.Sprintf("at most %d are allowed", MaxNodes)}
	}
	c, seen := cluster{Type: "STATIC"}, map[string]bool{}
	for _, addr := range addrs {
		e, err := split(field, addr)
		if err != nil {
			return cluster{}, err
		}
		if ip, err := netip.ParseAddr(e.Host); err == nil && ip.IsUnspecified() {
			return cluster{}, &Error{field, fmt.Sprintf("%s is where one listens, not where others find it", addr), "name the address that the node advertises"}
		}
		name := net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
		if seen[name] {
			return cluster{}, &Error{field, name + " is there twice", "name each once"}
		}
		if seen[name] = true; !e.ip {
			c.Type = "STRICT_DNS"
		}
		c.Hosts = append(c.Hosts, e)
	}
	return c, nil
}

// bindable returns an address to listen on, which Envoy wants by number.
func bindable(field, addr string) (endpoint, error) {
	e, err := split(field, addr)
	if err == nil && !e.ip {
		err = &Error{field, fmt.Sprintf("%q is no IP address", e.Host), "Envoy listens on IP addresses: write 127.0.0.1, 0.0.0.0 or one of the machine's"}
	}
	return e, err
}

func split(field, addr string) (endpoint, error) {
	bad := func(problem string) (endpoint, error) {
		return endpoint{}, &Error{field, fmt.Sprintf("%.80q %s", addr, problem), "write HOST:PORT, like 10.0.0.1:7400 or [fd00::1]:7400"}
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return bad("has no port, or more than one")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return bad("has no port from 1 to 65535")
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil && ip.Zone() != "":
		return bad("has a zone, which means something on one machine only")
	case err != nil && (len(host) > maxHost || !hostName.MatchString(host) || digits(host)):
		return bad("has no host that is an IP address or a name")
	}
	return endpoint{Host: host, Port: uint16(n), ip: err == nil}, nil
}

// digits reports whether a name is an IP address that went wrong, like 10.0.0.256.
func digits(host string) bool { return strings.Trim(host, "0123456789.") == "" }

func checkHeader(field, name string) error {
	switch {
	case name == "" || len(name) > MaxText || !headerName.MatchString(name):
		return &Error{field, fmt.Sprintf("%.80q is no header name", name), "letters, digits and hyphens, like " + DefaultKeyHeader}
	case strings.HasSuffix(name, "-bin"):
		return &Error{field, fmt.Sprintf("%.80q is a binary header", name), "gRPC sends those in base64, which would be hashed as it is: choose a name without -bin"}
	}
	return nil
}

func checkText(field, text string) error {
	if text == "" || len(text) > MaxText {
		return &Error{field, fmt.Sprintf("%.40q has %d bytes", text, len(text)), fmt.Sprintf("1 to %d are allowed", MaxText)}
	}
	if err := printable(text); err != nil {
		return &Error{field, fmt.Sprintf("%.40q %s", text, err), "use letters, digits and signs that can be printed"}
	}
	return nil
}

// printable refuses what YAML, a comment in it, or a string in protobuf would not
// carry as it is.
func printable(text string) error {
	if !utf8.ValidString(text) {
		return errors.New("is not UTF-8")
	}
	for _, r := range text {
		if !unicode.IsGraphic(r) {
			return errors.New("has a character that cannot be printed")
		}
	}
	return nil
}
