package xds

import (
	"slices"
	"unicode/utf8"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// MaxSplitKeys is how many keys have a route of their own at most: clients try these
// routes one after the other for each request. A table has no more split objects.
const MaxSplitKeys = 100

// split returns the keys that get a route of their own, each once and in order: nodes that
// know the same serve the same.
func (v View) split() []string {
	var keys []string
	for _, k := range v.SplitKeys {
		if fitsHeader(k) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	return keys[:min(len(keys), MaxSplitKeys)]
}

// fitsHeader reports whether a key can be the value of a header, as it is: bytes of
// visible ASCII or above, with spaces in between (RFC 9110, 5.5). It is UTF-8 as all
// keys, and all text in a resource.
func fitsHeader(key string) bool {
	if key == "" || key[0] == ' ' || key[len(key)-1] == ' ' || !utf8.ValidString(key) {
		return false
	}
	return !slices.ContainsFunc([]byte(key), func(b byte) bool { return b < ' ' || b == 0x7f })
}

// spread returns the routes that send requests with some keys to any node: each has a part
// of what they are about, or knows who has the one that it takes.
func spread(keys []string, header string, c Client) []*routev3.Route {
	all := make([]*routev3.Route, 0, len(keys)+2) // room for those that follow
	for _, k := range keys {
		r := route(c.anyone(KeysteadOwners, KeysteadAny), c)
		r.Match.Headers = []*routev3.HeaderMatcher{exactly(header, k, c)}
		all = append(all, r)
	}
	return all
}

// exactly matches a header with one value. gRPC clients get the old form, which all
// of them know: those from before gRFC A63 refuse all routes for the new one.
func exactly(header, value string, c Client) *routev3.HeaderMatcher {
	m := &routev3.HeaderMatcher{Name: header}
	if c != Envoy {
		//lint:ignore SA1019 see above
		m.HeaderMatchSpecifier = &routev3.HeaderMatcher_ExactMatch{ExactMatch: value}
		return m
	}
	m.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value},
	}}
	return m
}
