package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/keystead/keystead/internal/config"
)

// Bounds of a request.
const (
	headerTimeout = 5 * time.Second // to send the headers
	idleTimeout   = 2 * time.Minute // between requests of a connection
	maxHeader     = 16 << 10        // bytes; as over gRPC

	// lastAnswers is how long Stop waits for answers to be written that are there.
	lastAnswers = time.Second
)

// API is what is served.
type API interface {
	// Methods returns the full names of the methods, "/package.Service/Method".
	Methods() []string
	// MaxRequest returns how many bytes a request of a method has at most, on the wire
	// of gRPC.
	MaxRequest(method string) int
	// Call does a call. The error is a gRPC status.
	Call(ctx context.Context, method string, request any) (any, error)
}

// Config is what a Server needs.
type Config struct {
	API      API          // required
	Listener net.Listener // required; Stop closes it
	// MaxConns bounds open connections; more wait in the listen queue. Default 10,000.
	MaxConns int
	// Metrics is where requests are counted; required.
	Metrics prometheus.Registerer
}

// Server serves the API as HTTP with JSON.
type Server struct {
	api      API
	listener net.Listener
	http     *http.Server
	routes   map[string]*route
	streams  map[string]protoreflect.MethodDescriptor
	paths    []string // of both, for suggestions
	openapi  []byte
	metrics  metrics
	bodies   atomic.Int64 // bytes, see maxBodies
	buffers  sync.Pool    // of *[]byte, of smallBody bytes
	stopped  chan struct{}

	onLoopback                bool          // nobody calls from another machine
	bodyTimeout, pieceTimeout time.Duration // see there
	readTimeout               time.Duration // see there
}

// New returns a server that takes requests once Serve is called.
func New(cfg Config) (*Server, error) {
	routes, streams, err := routesOf(cfg.API)
	if err != nil {
		return nil, fmt.Errorf("the API has no form in HTTP: %w", err)
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 10_000
	}
	s := &Server{
		api: cfg.API, listener: newDoor(cfg.Listener, cfg.MaxConns), routes: routes, streams: streams,
		openapi: document(routes), metrics: newMetrics(cfg.Metrics), stopped: make(chan struct{}),
		onLoopback: isLoopback(cfg.Listener.Addr()), bodyTimeout: bodyTimeout, pieceTimeout: pieceTimeout, readTimeout: readTimeout,
	}
	for path := range routes {
		s.paths = append(s.paths, path)
	}
	s.buffers.New = func() any { b := make([]byte, smallBody); return &b }
	s.http = &http.Server{
		Handler: http.HandlerFunc(s.serve), ConnContext: withConn,
		// A deadline for the whole of a request would end the ones that wait: reads and
		// writes have theirs where they begin.
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: quiet(), DisableGeneralOptionsHandler: true,
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s.http.Protocols = protocols
	return s, nil
}

// Serve serves until Stop.
func (s *Server) Serve() error {
	err := s.http.Serve(s.listener)
	if errors.Is(err, http.ErrServerClosed) {
		<-s.stopped
		return nil
	}
	return err
}

// Addr returns where it listens.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Stop refuses new connections at once, has stopAPI end the calls, and then gives their
// answers a moment to be written. It is called once.
func (s *Server) Stop(stopAPI func()) {
	defer close(s.stopped)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.http.Shutdown(ctx) }()
	stopAPI()
	last := time.AfterFunc(lastAnswers, cancel)
	defer last.Stop()
	if err := <-done; err != nil {
		_ = s.http.Close()
	}
	_ = s.listener.Close() // should Serve never have come to it
}

// serve answers a request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	defer crash()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.ContentLength != 0 { // a body that is not wanted is read, too, before the answer
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyTimeout))
	}
	code := http.StatusOK
	if err := s.answer(w, r); err != nil {
		p := problemOf(err)
		code = p.Status
		s.deadline(w)
		p.write(w)
	}
	s.metrics.done(code)
}

// crash ends the process where a handler panics: a broken invariant must not go on
// serving, and net/http would let it.
func crash() {
	if broken := recover(); broken != nil {
		go panic(broken)
		select {}
	}
}

// deadline bounds how long a caller may take to read the answer.
func (s *Server) deadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout))
}

// answer answers a request, or returns why not.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) error {
	if err := s.notOfPages(r); err != nil {
		return err
	}
	if r.URL.Path == openAPIPath {
		return s.answerOpenAPI(w, r)
	}
	route := s.routes[r.URL.Path]
	if route == nil {
		return s.notHere(r.URL.Path)
	}
	if err := route.allows(w, r); err != nil {
		return err
	}
	request, held := route.newRequest(), room{s: s}
	defer held.must(0)
	if err := s.read(w, r, route, request.ProtoReflect(), &held); err != nil {
		return err
	}
	if keys := r.Header.Values(idempotencyHeader); len(keys) > 0 {
		if err := route.setKey(request.ProtoReflect(), keys); err != nil {
			return err
		}
	}
	ctx, cancel, err := callContext(r, request)
	if err != nil {
		return err
	}
	defer cancel()
	response, err := s.api.Call(ctx, route.method, request)
	if err != nil {
		return whyCanceled(ctx, err)
	}
	return s.write(w, route, response.(protoreflect.ProtoMessage), &held)
}

// write answers with a message, or returns why not: what was only read can be read again.
func (s *Server) write(w http.ResponseWriter, route *route, m protoreflect.ProtoMessage, held *room) error {
	buf := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buf)
	body := route.answered.append((*buf)[:0], m.ProtoReflect())
	switch size := int64(len(body)); {
	case size <= smallBody:
		held.must(0)
	//guard:http-room-for-answers
	case route.reads:
		if err := held.take(size); err != nil {
			return err
		}
	default:
		held.must(size)
	}
	h := w.Header()
	h.Set("Content-Type", jsonType)
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	s.send(w, body)
	return nil
}

// notHere is the error of a path that has no call.
func (s *Server) notHere(path string) error {
	if m := s.streams[path]; m != nil {
		return &problem{Status: http.StatusNotImplemented, Detail: string(m.Name()) + " is a stream, which is offered over gRPC alone",
			Hint: "send batches instead of a stream of calls; poll instead of watching"}
	}
	hint := "see " + openAPIPath
	if near := config.Nearest(path, s.paths); near != "" {
		hint = "did you mean " + near + "?"
	}
	return &problem{Status: http.StatusNotFound, Detail: "there is no call " + shown(path), Hint: hint}
}
