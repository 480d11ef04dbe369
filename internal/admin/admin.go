// Package admin is the HTTP face of a node for operators. It serves:
//
//	/metrics      Prometheus
//	/healthz      200 while the process runs
//	/readyz       200 while the node takes requests, 503 before and after
//	/status       the node's state as JSON
//	/drain        GET: how far a drain is; POST: drain the node, and wait
//	/debug/pprof  profiles
//
// It has no authentication and listens on loopback unless told otherwise. Its
// requests are bounded in size and time, so that a slow reader holds up nobody.
package admin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config is what a Server shows.
type Config struct {
	Addr     string              // to listen on, host:port
	Gatherer prometheus.Gatherer // of /metrics
	Status   func() any          // of /status
	// Ready says why the node is not ready although SetReady said so; nil = it
	// is. May be nil.
	Ready func() error
	// Drain is what /drain does; nil = there is no such page.
	Drain Drainer
}

// Bounds of a request. Profiles take up to a minute to write.
const (
	headerTimeout = 5 * time.Second
	writeTimeout  = 90 * time.Second
	idleTimeout   = 60 * time.Second
	maxHeader     = 16 << 10
	stopGrace     = time.Second
)

// Server is a running admin server.
type Server struct {
	ready atomic.Bool
	l     net.Listener
	http  *http.Server
	done  chan struct{}
}

// Start listens and serves until Stop. The node is not ready until SetReady.
func Start(cfg Config) (*Server, error) {
	l, err := net.Listen("tcp", cfg.Addr)
	if err != nil {
		return nil, err
	}
	s := &Server{l: l, done: make(chan struct{})}
	s.http = &http.Server{
		Handler: s.mux(cfg), ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l) // returns when the server is shut down
	}()
	return s, nil
}

func (s *Server) mux(cfg Config) *http.ServeMux {
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
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, cfg.Status())
	})
	if cfg.Drain != nil {
		drainPages(mux, cfg.Drain)
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "keystead: /metrics /healthz /readyz /status /drain /debug/pprof/")
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// SetReady says what /readyz answers.
func (s *Server) SetReady(ready bool) { s.ready.Store(ready) }

// Addr is where the server listens.
func (s *Server) Addr() string { return s.l.Addr().String() }

// Stop lets requests finish for a second and stops.
func (s *Server) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
	<-s.done
}
