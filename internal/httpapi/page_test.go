package httpapi

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// What a page has a browser send is refused, also where the page has a name of its own that
// leads here. What curl, libraries and proxies send is not.
func TestPages(t *testing.T) {
	const ok, no = "HTTP/1.1 200 OK", "HTTP/1.1 403 Forbidden"
	for what, row := range map[string]struct {
		method, host string
		headers      []string
		loopback     string // where the node listens on loopback
		elsewhere    string
	}{
		"curl by address":               {"GET", "127.0.0.1:7403", nil, ok, ok},
		"curl by address of IPv6":       {"GET", "[::1]:7403", nil, ok, ok},
		"curl by a short address":       {"GET", "127.1:7403", nil, ok, ok},
		"curl by name":                  {"GET", "localhost:7403", nil, ok, ok},
		"curl by name, without a port":  {"GET", "LOCALHOST.", nil, ok, ok},
		"a name of a machine":           {"GET", "build-7:7403", nil, ok, ok},
		"a name of containers":          {"GET", "host.docker.internal:7403", nil, ok, ok},
		"a name under localhost":        {"GET", "keystead.localhost:7403", nil, ok, ok},
		"a name of the Internet":        {"GET", "evil.example:7403", nil, no, ok},
		"one that looks like an adress": {"GET", "127.0.0.1.evil.example:7403", nil, no, ok},
		"one that ends like localhost":  {"GET", "evillocalhost.example", nil, no, ok},
		"HEAD of the Internet":          {"HEAD", "evil.example", nil, no, ok},
		"POST through a proxy":          {"POST", "keystead.example.com", nil, ok, ok},
		"POST of a page":                {"POST", "evil.example", []string{"Origin: http://evil.example"}, no, no},
		"POST of a sandbox":             {"POST", "localhost:7403", []string{"Origin: null"}, no, no},
		"GET of a page":                 {"GET", "localhost:7403", []string{"Origin: http://localhost:3000", "Sec-Fetch-Site: same-site"}, no, no},
		"GET of an image":               {"GET", "localhost:7403", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"}, no, no},
		"the address bar of a browser":  {"GET", "localhost:7403", []string{"Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"}, ok, ok},
		"fetch of Node":                 {"POST", "localhost:7403", []string{"Sec-Fetch-Mode: cors"}, ok, ok},
	} {
		h := newHouse(t)
		text := fmt.Sprintf("%s /v1/counter/get?key=k HTTP/1.1\r\nHost: %s\r\n%s\r\n", row.method, row.host, strings.Join(append(row.headers, ""), "\r\n"))
		if row.method == "POST" {
			const body = `{"key":"k"}`
			text = fmt.Sprintf("POST /v1/counter/get HTTP/1.1\r\nHost: %s\r\n%sContent-Length: %d\r\n\r\n%s", row.host, strings.Join(append(row.headers, ""), "\r\n"), len(body), body)
		}
		for _, h.web.onLoopback = range []bool{true, false} {
			want := row.elsewhere
			if h.web.onLoopback {
				want = row.loopback
			}
			if got := h.raw(text); got != want {
				t.Errorf("%s, on loopback %t: %q, want %q", what, h.web.onLoopback, got, want)
			}
		}
	}
}

// A node knows whether it listens on loopback.
func TestIsLoopback(t *testing.T) {
	for addr, want := range map[string]bool{"127.0.0.1:1": true, "127.8.8.8:1": true, "[::1]:1": true, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false} {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := isLoopback(a); got != want {
			t.Errorf("%s: %t", addr, got)
		}
	}
	if h := newHouse(t); !h.web.onLoopback {
		t.Error("127.0.0.1 is not taken for loopback")
	}
}
