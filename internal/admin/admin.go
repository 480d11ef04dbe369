// Package admin is the HTTP face of a node for operators. It has two doors.
//
// The metrics address serves what Prometheus and probes need, and changes nothing:
//
//	/metrics      Prometheus
//	/healthz      200 while the process runs
//	/readyz       200 while the node takes requests, 503 before and after
//
// The admin address serves these, and what operators do:
//
//	/             for browsers: the page of the node
//	/status       the node's state as JSON
//	/drain        GET: how far a drain is; POST: drain the node, and wait
//	/debug/pprof  profiles, but not the command line, which may hold a key
//
// Neither has authentication. The admin address is loopback unless told otherwise,
// and refuses what a web page has a browser send. Requests are bounded in size and
// time, so that a slow reader holds up nobody; one profile is taken at a time.
package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config is what a Server shows.
type Config struct {
	// Addr is where operators come, host:port. "" = nowhere.
	Addr string
	// MetricsAddr is where metrics and probes are served without the rest, host:port.
	// "" = at Addr alone.
	MetricsAddr string
	Gatherer    prometheus.Gatherer // of /metrics
	Status      func() any          // of /status
	// Ready says why the node is not ready although SetReady said so; nil = it
	// is. May be nil.
	Ready func() error
	// Drain is what /drain does; nil = there is no such page.
	Drain Drainer
	// Page is what browsers get at the admin address; nil = what others get, the list
	// of what there is.
	Page http.Handler
}

// Bounds of a request.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second // of all of a request; no page wants a body
	writeTimeout  = 90 * time.Second
	idleTimeout   = 60 * time.Second
	maxHeader     = 16 << 10
	stopGrace     = time.Second
	// maxProfile bounds a profile over time, in seconds; it is written within writeTimeout.
	maxProfile = 60
)

// Server is a running admin server.
type Server struct {
	ready   atomic.Bool
	admin   *door // nil = none
	metrics *door // nil = none of its own
	profile sync.Mutex
}

// door is one address that is served.
type door struct {
	l    net.Listener
	http *http.Server
	done chan struct{}
}

// ListenError is why an address cannot be listened at.
type ListenError struct {
	Metrics bool // the metrics address, not the admin address
	Err     error
}

func (e *ListenError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.Err }

// Start listens and serves until Stop. The node is not ready until SetReady. It fails
// with a *ListenError.
func Start(cfg Config) (*Server, error) {
	s := &Server{}
	if cfg.Addr != "" {
		d, err := open(cfg.Addr, s.operators(cfg))
		if err != nil {
			return nil, &ListenError{Err: err}
		}
		s.admin = d
	}
	if cfg.MetricsAddr != "" {
		d, err := open(cfg.MetricsAddr, s.probes(cfg))
		if err != nil {
			s.Stop()
			return nil, &ListenError{Metrics: true, Err: err}
		}
		s.metrics = d
	}
	return s, nil
}

// open serves a handler at an address.
func open(addr string, h http.Handler) (*door, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	d := &door{l: l, done: make(chan struct{})}
	d.http = newHTTP(h)
	go func() {
		defer close(d.done)
		_ = d.http.Serve(l) // returns when the server is shut down
	}()
	return d, nil
}

func newHTTP(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}
}

// probes returns the pages that change nothing and tell little.
func (s *Server) probes(cfg Config) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.ready.Load() {
			http.Error(w, "not ready: the node starts or stops", http.StatusServiceUnavailable)
			return
		}
		if cfg.Ready != nil {
			if err := cfg.Ready(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "keystead: /metrics /healthz /readyz")
	})
	return mux
}

// operators returns all pages.
func (s *Server) operators(cfg Config) http.Handler {
	probes, mux := s.probes(cfg), http.NewServeMux()
	for _, page := range []string{"/metrics", "/healthz", "/readyz"} {
		mux.Handle("GET "+page, probes)
	}
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, cfg.Status())
	})
	if cfg.Drain != nil {
		drainPages(mux, cfg.Drain)
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept")
		if cfg.Page != nil && strings.Contains(r.Header.Get("Accept"), "text/html") {
			cfg.Page.ServeHTTP(w, r)
			return
		}
		fmt.Fprintln(w, "keystead: /metrics /healthz /readyz /status /drain /debug/pprof/")
	})
	mux.HandleFunc("GET /debug/pprof/", s.one(pprof.Index))
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /debug/pprof/profile", s.one(pprof.Profile))
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", s.one(pprof.Trace))
	return noBrowsers(mux)
}

// one lets one profile be taken at a time, and none for longer than maxProfile:
// profiles cost what callers would have had.
func (s *Server) one(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if text := r.FormValue("seconds"); text != "" {
			if n, err := strconv.ParseFloat(text, 64); err != nil || !(n >= 0 && n <= maxProfile) {
				http.Error(w, fmt.Sprintf("seconds=%q: write a number from 0 to %d", text, maxProfile), http.StatusBadRequest)
				return
			}
		}
		if !s.profile.TryLock() {
			http.Error(w, "another profile is being taken: wait for its end", http.StatusTooManyRequests)
			return
		}
		defer s.profile.Unlock()
		h(w, r)
	}
}

// noBrowsers refuses requests that a web page has a browser send, and that may change
// something: an operator who opens a hostile page would drain the node. Browsers say
// where such a request comes from, and no page of this server sends any.
func noBrowsers(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		safe := r.Method == http.MethodGet || r.Method == http.MethodHead
		if !safe && (r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "") {
			http.Error(w, "refused: the request comes from a web page; use curl or `keystead drain`", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// SetReady says what /readyz answers.
func (s *Server) SetReady(ready bool) { s.ready.Store(ready) }

// Addr returns where operators come, "" if they do not.
func (s *Server) Addr() string { return s.admin.addr() }

// MetricsAddr returns where metrics and probes are served: at an address of their own, or
// where operators come.
func (s *Server) MetricsAddr() string {
	if s.metrics != nil {
		return s.metrics.addr()
	}
	return s.admin.addr()
}

// Stop lets requests finish for a second and stops.
func (s *Server) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	s.admin.stop(ctx)
	s.metrics.stop(ctx)
}

func (d *door) addr() string {
	if d == nil {
		return ""
	}
	return d.l.Addr().String()
}

func (d *door) stop(ctx context.Context) {
	if d == nil {
		return
	}
	if err := d.http.Shutdown(ctx); err != nil && !errors.Is(err, http.ErrServerClosed) {
		_ = d.http.Close()
	}
	<-d.done
}
