package middleware

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func TestClientOfProxies(t *testing.T) {
	mapped := Trusted(netip.MustParsePrefix("::ffff:10.0.0.0/104"))
	private := Trusted(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"))
	for _, tc := range []struct {
		what    string
		proxies Proxies
		peer    string
		header  []string
		want    string // "" = none
	}{
		{"no proxy", Proxies{}, "203.0.113.9:4711", nil, "203.0.113.9"},
		{"no proxy, forged", Proxies{}, "203.0.113.9:4711", []string{"1.1.1.1"}, "203.0.113.9"},
		{"one", Hops(1), "10.0.0.1:1", []string{"203.0.113.9"}, "203.0.113.9"},
		{"one, forged", Hops(1), "10.0.0.1:1", []string{"1.1.1.1, 203.0.113.9"}, "203.0.113.9"},
		{"one, forged in a line of its own", Hops(1), "10.0.0.1:1", []string{"1.1.1.1", "203.0.113.9"}, "203.0.113.9"},
		{"two, forged", Hops(2), "10.0.0.1:1", []string{"1.1.1.1, 203.0.113.9,10.0.0.2"}, "203.0.113.9"},
		{"two, of which one was passed", Hops(2), "10.0.0.1:1", []string{"203.0.113.9"}, "203.0.113.9"},
		{"two, and none was passed", Hops(2), "203.0.113.9:1", nil, "203.0.113.9"},
		{"one that does not know", Hops(1), "10.0.0.1:1", []string{"1.1.1.1, unknown"}, "10.0.0.1"},
		{"one that writes nothing", Hops(1), "10.0.0.1:1", []string{"1.1.1.1,"}, "10.0.0.1"},
		{"with a port", Hops(1), "10.0.0.1:1", []string{"203.0.113.9:5555"}, "203.0.113.9"},
		{"IPv6", Hops(1), "[fd00::1]:1", []string{"2001:db8::7"}, "2001:db8::7"},
		{"IPv6 with a port", Hops(1), "[fd00::1]:1", []string{"[2001:db8::7]:443"}, "2001:db8::7"},
		{"IPv6 in brackets", Hops(1), "[fd00::1]:1", []string{"[2001:db8::7]"}, "2001:db8::7"},
		{"IPv4 in IPv6", Proxies{}, "[::ffff:203.0.113.9]:1", nil, "203.0.113.9"},
		{"a socket", Proxies{}, "@", []string{"1.1.1.1"}, ""},
		{"a socket behind one", Hops(1), "@", []string{"1.1.1.1, 203.0.113.9"}, "203.0.113.9"},
		{"trusted", private, "10.0.0.1:1", []string{"1.1.1.1, 203.0.113.9, 10.7.7.7"}, "203.0.113.9"},
		{"trusted, of IPv6", private, "[fd00::1]:1", []string{"1.1.1.1, 203.0.113.9, fd00::2"}, "203.0.113.9"},
		{"trusted, written as IPv6", mapped, "10.0.0.1:1", []string{"1.1.1.1, 203.0.113.9, 10.7.7.7"}, "203.0.113.9"},
		{"not trusted, written as IPv6", mapped, "11.0.0.1:1", []string{"1.1.1.1"}, "11.0.0.1"},
		{"not trusted", private, "203.0.113.9:1", []string{"10.0.0.1"}, "203.0.113.9"},
		{"from inside", private, "10.0.0.1:1", []string{"10.1.1.1"}, "10.1.1.1"},
		{"trusted that does not know", private, "10.0.0.1:1", []string{"1.1.1.1, _hidden"}, "10.0.0.1"},
		{"no peer to trust", private, "@", []string{"1.1.1.1"}, ""},
	} {
		got, ok := tc.proxies.Client(tc.peer, tc.header)
		if ok != (tc.want != "") || ok && got.String() != tc.want {
			t.Errorf("%s: %v, want %q", tc.what, got, tc.want)
		}
	}
}

// FuzzForged: whatever a client writes into X-Forwarded-For, its key is what the proxies
// saw.
func FuzzForged(f *testing.F) {
	f.Add("1.1.1.1")
	f.Add(" , ,")
	f.Add("10.0.0.9, 10.0.0.8")
	f.Add("[::1]:80,for=2.2.2.2")
	f.Fuzz(func(t *testing.T, forged string) {
		const real = "203.0.113.9"
		for _, tc := range []struct {
			proxies Proxies
			seen    string
		}{
			{Hops(1), real}, {Hops(2), real + ", 10.0.0.2"},
			{Trusted(netip.MustParsePrefix("10.0.0.0/8")), real}, {Trusted(netip.MustParsePrefix("10.0.0.0/8")), real + ", 10.0.0.2"},
		} {
			for _, header := range [][]string{{forged + ", " + tc.seen}, {forged, tc.seen}} {
				if got, ok := tc.proxies.Client("10.0.0.1:1", header); !ok || got.String() != real {
					t.Errorf("%q: %v", header, got)
				}
			}
		}
		if got, _ := (Proxies{}).Client(real+":1", []string{forged}); got.String() != real {
			t.Errorf("%q without proxies: %v", forged, got)
		}
	})
}

func TestKeys(t *testing.T) {
	request := func(peer string, header ...string) *http.Request {
		r := &http.Request{RemoteAddr: peer, Header: http.Header{}}
		for i := 0; i < len(header); i += 2 {
			r.Header.Add(header[i], header[i+1])
		}
		return r
	}
	ip := ClientIP(Proxies{})
	for _, tc := range []struct{ what, got, want string }{
		{"IPv4", ip(request("203.0.113.9:1")), "ip:203.0.113.9"},
		{"IPv6", ip(request("[2001:db8:1:2:3:4:5:6]:1")), "ip:2001:db8:1:2::/64"},
		{"IPv4 behind a translator", ip(request("[64:ff9b::203.0.113.9]:1")), "ip:203.0.113.9"},
		{"none", ip(request("@")), "ip:unknown"},
		{"a header", Header("X-Tenant", ip)(request("203.0.113.9:1", "X-Tenant", "a")), "header:x-tenant:a"},
		{"no header", Header("X-Tenant", ip)(request("203.0.113.9:1")), "ip:203.0.113.9"},
		{"hashed", Hashed(Header("Authorization", ip))(request("@", "Authorization", "a")), "sha256:8fa50b1c7a47b6ad059f9b8a41442c53451587cd3603012a09c890cc9c828c09"},
		{"nothing hashed", Hashed(func(*http.Request) string { return "" })(request("@")), ""},
		{"fits", fit(strings.Repeat("x", maxKey)), strings.Repeat("x", maxKey)},
		{"not UTF-8", fit("\xff"), "hash:sha256:a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89"},
		{"like the hash of another", fit("hash:sha256:a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89"), "hash:" + hash("hash:sha256:a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89")},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %q, want %q", tc.what, tc.got, tc.want)
		}
	}
	if got := fit(strings.Repeat("x", maxKey+1)); len(got) > 80 || got == fit(strings.Repeat("x", maxKey+2)) {
		t.Errorf("too long: %q", got)
	}
}
