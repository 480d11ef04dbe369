package middleware

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// HTTPKey returns the key that an HTTP request is limited by, "" if it is not limited. Those
// of this package begin with where they come from, "ip:" or "header:", so that no tenant has
// the key of an address. Begin your own with a word of your own.
type HTTPKey func(*http.Request) string

// GRPCKey returns the key that a call of a method (/package.Service/Method) is limited by,
// "" if it is not limited.
type GRPCKey func(ctx context.Context, method string) string

// Proxies are those that a request passes on its way here, each of which appends the address
// that it was called from to X-Forwarded-For. Whatever stands left of theirs in that header
// was written by the client, and may be a lie. The zero Proxies are none.
type Proxies struct {
	hops    int
	trusted []netip.Prefix
}

// Hops are so many proxies, the same number for every request: what the program can only be
// reached through.
func Hops(n int) Proxies { return Proxies{hops: max(n, 0)} }

// Trusted are proxies with addresses in some networks. Any number of them may follow each
// other, and a request that does not come from one of them is judged by its own address.
func Trusted(networks ...netip.Prefix) Proxies {
	p := Proxies{}
	for _, n := range networks {
		if n.Addr().Is4In6() && n.Bits() >= mappedBits { // addresses are compared as those of IPv4
			n = netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-mappedBits)
		}
		p.trusted = append(p.trusted, n)
	}
	return p
}

// mappedBits are those before an address of IPv4 that is written as one of IPv6.
const mappedBits = 96

// Client returns the address of the client of a request that came from the address peer
// (host:port), with the values of X-Forwarded-For. It reports false if there is none.
func (p Proxies) Client(peer string, forwardedFor []string) (netip.Addr, bool) {
	client, ok := address(peer)
	entries := entriesOf(forwardedFor)
	for hop := 0; len(entries) > 0; hop++ {
		if len(p.trusted) > 0 && !(ok && p.trusts(client)) || len(p.trusted) == 0 && hop >= p.hops {
			break
		}
		last := len(entries) - 1 //guard:middleware-forwarded len(entries) - 1 -> 0
		next, valid := address(entries[last])
		if entries = entries[:last]; !valid {
			break // the proxy does not know, or hides it
		}
		client, ok = next, true
	}
	return client, ok
}

func (p Proxies) trusts(a netip.Addr) bool {
	return slices.ContainsFunc(p.trusted, func(n netip.Prefix) bool { return n.Contains(a) })
}

// entriesOf returns the entries of a header that may stand on several lines.
func entriesOf(lines []string) (all []string) {
	for _, line := range lines {
		for entry := range strings.SplitSeq(line, ",") {
			all = append(all, strings.TrimSpace(entry))
		}
	}
	return all
}

// address reads an IP address, with or without a port.
func address(s string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return a.Unmap().WithZone(""), err == nil
}

// ipv6Network is what a client has of IPv6: one that has an address of it has them all.
const ipv6Network = 64

// nat64 is where translators put the addresses of IPv4 (RFC 6052): one network of 64 bits
// for all of its clients.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Where a key comes from. Whoever may choose what stands in one source must not spend what
// belongs to another.
const (
	fromIP     = "ip:"
	fromHeader = "header:"
	fromHash   = "hash:" // of what is no key as it is
)

// addressKey returns the key of an address: of IPv6, that of its network of 64 bits, or of the
// address of IPv4 that it stands for. Requests without an address have one key together.
func addressKey(a netip.Addr, ok bool) string {
	if !ok {
		return fromIP + "unknown"
	}
	if bytes := a.As16(); nat64.Contains(a) {
		a = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	if a.Is6() {
		n, _ := a.Prefix(ipv6Network) // has so many bits
		return fromIP + n.String()
	}
	return fromIP + a.String()
}

// headerKey returns the key of a header or of metadata, which are the same thing.
func headerKey(name, value string) string {
	//guard:middleware-sources -> return value
	return fromHeader + strings.ToLower(name) + ":" + value
}

// ClientIP is the address of the client; of IPv6, its network of 64 bits. The key is like
// "ip:203.0.113.9".
func ClientIP(p Proxies) HTTPKey {
	return func(r *http.Request) string {
		return addressKey(p.Client(r.RemoteAddr, r.Header.Values("X-Forwarded-For")))
	}
}

// Header is the value of a header, and what otherwise says where it is missing. The key is
// like "header:x-tenant:acme". Only use a header that clients cannot change at will to be
// somebody else: one that was checked, or that a proxy sets.
func Header(name string, otherwise HTTPKey) HTTPKey {
	return func(r *http.Request) string {
		if v := r.Header.Get(name); v != "" {
			return headerKey(name, v)
		}
		return otherwise(r)
	}
}

// Hashed is the SHA-256 of another key, so that what is secret, like a token, is not seen
// by those who operate Keystead.
func Hashed(key HTTPKey) HTTPKey {
	return func(r *http.Request) string {
		if k := key(r); k != "" {
			return hash(k)
		}
		return ""
	}
}

// CallerIP is the address of the client of a gRPC call; of IPv6, its network of 64 bits. The
// key is that of ClientIP.
func CallerIP(p Proxies) GRPCKey {
	return func(ctx context.Context, _ string) string {
		from := ""
		if p, ok := peer.FromContext(ctx); ok {
			from = p.Addr.String()
		}
		return addressKey(p.Client(from, metadata.ValueFromIncomingContext(ctx, "x-forwarded-for")))
	}
}

// Metadata is the first value of a key of the metadata, and what otherwise says where it is
// missing. The key is that of the Header of the same name; see there for what to use.
func Metadata(name string, otherwise GRPCKey) GRPCKey {
	return func(ctx context.Context, method string) string {
		if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 && v[0] != "" {
			return headerKey(name, v[0])
		}
		return otherwise(ctx, method)
	}
}

// maxKey is the longest key that Keystead takes, in bytes.
const maxKey = 512

// fit returns a key that Keystead takes: the hash of what is too long, is not UTF-8, begins
// with a NUL byte, or looks like such a hash.
func fit(key string) string {
	if len(key) <= maxKey && key[0] != 0 && utf8.ValidString(key) && !strings.HasPrefix(key, fromHash) {
		return key
	}
	return fromHash + hash(key)
}

func hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}
