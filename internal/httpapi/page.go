package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// notOfPages returns why a request is refused that a web page had a browser send: any page
// could call for somebody who reaches this port.
//
// Browsers say so of all but one: a page that has its own name lead here (DNS rebinding) has
// its GETs sent as to its own server. Their Host betrays them, where the names are known
// under which this node is called: on loopback.
func (s *Server) notOfPages(r *http.Request) error {
	site := r.Header.Get("Sec-Fetch-Site")
	//guard:http-pages
	if r.Header.Get("Origin") != "" || site != "" && site != "none" { // none: of the address bar
		return &problem{Status: http.StatusForbidden, Detail: "the request comes from a web page, and those are refused",
			Hint: "call from a server, or put a proxy before the node that lets your pages in"}
	}
	if r.Method == http.MethodPost { // browsers give these an Origin
		return nil
	}
	//guard:http-host
	if s.onLoopback && !local(r.Host) {
		return &problem{Status: http.StatusForbidden, Detail: "this node listens on loopback, where it is not called " + shown(r.Host),
			Hint: "call 127.0.0.1 or localhost, or send the request by POST; a proxy has to send one of them as Host"}
	}
	return nil
}

// local reports whether a Host is one that only this machine and its network give meaning to:
// an address, a name without a dot, one in .localhost or .internal. None of them can be had
// on the Internet.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(host); err == nil || strings.Trim(host, "0123456789.") == "" {
		return true // also 127.1
	}
	return !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") || strings.HasSuffix(host, ".internal")
}

// isLoopback reports whether an address is reached from this machine alone.
func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
