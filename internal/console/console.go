package console

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxPages are made at a time; further ones are refused.
	maxPages = 4
	// pageTime is how long a page may take: another node may have to be asked about a key. So
	// long its reader may take as well.
	pageTime = 3 * time.Second
)

// API is what the page asks: the full name of a method, and its request. The error is a
// gRPC status.
type API interface {
	Call(ctx context.Context, method string, request any) (any, error)
}

// Config is what a page is made from.
type Config struct {
	Totals func() Totals // what the node has counted
	Stock  func() Stock  // what it holds now
}

// Stock is what a node holds.
type Stock struct {
	Objects         map[string]int64 // by kind
	Bytes, MaxBytes int64
}

// Console makes the page of a node.
type Console struct {
	cfg     Config
	api     atomic.Pointer[API] // nil before the node serves
	samples samples
	slots   chan struct{}
}

// New returns a console. Before Open the page says that the node starts.
func New(cfg Config) *Console {
	return &Console{cfg: cfg, slots: make(chan struct{}, maxPages)}
}

// Run takes the samples until ctx ends.
func (c *Console) Run(ctx context.Context) { c.samples.run(ctx, c.cfg.Totals) }

// Open has the page ask an API.
func (c *Console) Open(api API) { c.api.Store(&api) }

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	for name, value := range headers {
		h.Set(name, value)
	}
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the page only shows: use GET", http.StatusMethodNotAllowed)
		return
	//guard:page-by-its-own-name
	case !ownName(r):
		http.Error(w, "this node is not called so: use localhost, or an address", http.StatusMisdirectedRequest)
		return
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		h.Set("Retry-After", "1")
		http.Error(w, "too many of these pages are being made: try again", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageTime)
	defer cancel()
	var page bytes.Buffer
	if err := layout.Execute(&page, c.view(ctx, r)); err != nil {
		http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	//guard:page-slow-readers
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(pageTime))
	_, _ = w.Write(page.Bytes()) // the reader has left
}

// headers are those of every answer.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; style-src '" + digest(style) + "'; script-src '" + digest(script) +
		"'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options": "nosniff",
	"X-Frame-Options":        "DENY",
	"Referrer-Policy":        "no-referrer",
	"Cache-Control":          "no-store",
}

// ownName reports whether a request may be meant for this machine. One that comes over
// loopback under a name of the Internet may be of a page whose name was made to lead here;
// addresses and names without a dot are nobody's there.
func ownName(r *http.Request) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	if err != nil || !at.Addr().Unmap().IsLoopback() {
		return err == nil
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") || strings.HasSuffix(host, ".internal")
}
