package middleware_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadtest"
	"github.com/keystead/keystead/client/middleware"
)

// A client that is over its limit and closes its connection once it has sent its request does not
// reach the handler.
func TestCallersThatLeaveAtOnce(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	var handled atomic.Int64
	h := made(t, c.Limit("api", client.PerHour(1)), middleware.Config{Timeout: 5 * time.Second}).
		HTTP(middleware.HTTP{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled.Add(1) }))
	s := httptest.NewServer(h)
	const n = 200
	for range n {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "POST /pay HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
		_ = conn.Close()
	}
	s.Close() // waits for handlers
	if got := handled.Load(); got > 1 {
		t.Errorf("%d of %d requests were handled under a limit of 1", got, n)
	}
}

// Nor does the request whose context has ended before it is checked.
func TestCallersThatHaveLeft(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	handled := 0
	h := made(t, c.Limit("api", client.PerHour(1)), middleware.Config{Timeout: 5 * time.Second}).
		HTTP(middleware.HTTP{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled++ }))
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", nil).WithContext(ctx))
	}
	if handled > 1 {
		t.Errorf("%d of 10 requests were handled under a limit of 1", handled)
	}
}

// A key that Keystead does not take, and that a caller can choose, lets nobody through.
func TestKeyWithNUL(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	handled := 0
	h := made(t, c.Limit("api", client.PerHour(1)), middleware.Config{Timeout: 5 * time.Second}).
		HTTP(middleware.HTTP{Key: func(r *http.Request) string { return r.URL.Query().Get("user") }})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled++ }))
	for range 10 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/?user=%00eve", nil))
	}
	if handled > 1 {
		t.Errorf("%d of 10 requests were handled under a limit of 1", handled)
	}
}

// The same by gRPC, with metadata that may be any bytes.
func TestKeyWithNULOverGRPC(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	l := made(t, c.Limit("api", client.PerHour(1)), middleware.Config{Timeout: 5 * time.Second})
	conn := serve(t, l, middleware.GRPC{Key: middleware.Metadata("tenant-bin", middleware.CallerIP(middleware.Proxies{}))})
	ok := 0
	for range 10 {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "tenant-bin", "\x00eve")
		if _, err := conn.Check(ctx, &healthpb.HealthCheckRequest{}); err == nil {
			ok++
		}
	}
	if ok > 1 {
		t.Errorf("%d of 10 calls were handled under a limit of 1", ok)
	}
}

// gRPC: the caller's own deadline decides nothing about the limit.
func TestShortDeadlines(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	l := made(t, c.Limit("api", client.PerHour(1)), middleware.Config{Timeout: 5 * time.Second})
	in, handled := l.Unary(middleware.GRPC{}), 0
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond) // grpc-timeout: 1n
		_, _ = in(ctx, &healthpb.HealthCheckRequest{}, &grpc.UnaryServerInfo{FullMethod: "/x/Y"}, func(context.Context, any) (any, error) {
			handled++
			return nil, nil
		})
		cancel()
	}
	if handled > 1 {
		t.Errorf("%d of 10 calls were handled under a limit of 1", handled)
	}
}
