package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadtest"
	"github.com/keystead/keystead/client/middleware"
	"github.com/keystead/keystead/internal/node"
	"github.com/keystead/keystead/owner"
)

// A tenant that is named like an address, or like another key, spends nothing of that.
func TestSourcesAreApart(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	h := made(t, c.Limit("api", client.PerHour(1)), middleware.Config{Timeout: 5 * time.Second}).
		HTTP(middleware.HTTP{Key: middleware.Header("X-Tenant", middleware.Header("X-User", middleware.ClientIP(middleware.Proxies{})))})(page)
	for _, tenant := range []string{"198.51.100.1", "ip:198.51.100.1", "user", "header:x-user:user"} {
		if w := get(h, "203.0.113.7:1", "X-Tenant", tenant); w.Code != http.StatusOK {
			t.Errorf("tenant %s: %d", tenant, w.Code)
		}
	}
	if w := get(h, "198.51.100.1:1"); w.Code != http.StatusOK {
		t.Errorf("a client is refused for what a tenant spent: %d", w.Code)
	}
	if w := get(h, "198.51.100.1:1", "X-User", "user"); w.Code != http.StatusOK {
		t.Errorf("a user is refused for what a tenant spent: %d", w.Code)
	}
}

// A tenant has one limit, whether it calls by HTTP or by gRPC.
func TestSourcesOfBothServers(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	l := made(t, c.Limit("api", client.PerHour(1)), middleware.Config{Timeout: 5 * time.Second})
	h := l.HTTP(middleware.HTTP{Key: middleware.Header("X-Tenant", middleware.ClientIP(middleware.Proxies{}))})(page)
	if w := get(h, "203.0.113.7:1", "X-Tenant", "acme"); w.Code != http.StatusOK {
		t.Fatal(w.Code)
	}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-tenant", "acme"))
	_, err := l.Unary(middleware.GRPC{Key: middleware.Metadata("x-tenant", middleware.CallerIP(middleware.Proxies{}))})(
		ctx, &healthpb.HealthCheckRequest{}, &grpc.UnaryServerInfo{FullMethod: "/x/Y"}, func(context.Context, any) (any, error) { return nil, nil })
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
}

// Who fills the store does not get past the limit by that, and new clients are served.
func TestFullStore(t *testing.T) {
	const room = 100
	n, err := node.Start(node.Config{ID: "full", GRPCAddr: "127.0.0.1:0", Fresh: true, StopGrace: time.Millisecond, Store: owner.Config{MaxObjects: room}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	c, err := client.Dial(t.Context(), n.GRPCAddr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for i := range room {
		if _, err := c.Counter("").Add(t.Context(), fmt.Sprint("filler-", i), 1); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		what               string
		failure, onRefusal middleware.OnFailure
		want               []int
	}{
		{"by default", 0, 0, []int{200, 200, 429, 429}},
		{"as was said", 0, middleware.FailOpen, []int{200, 200, 200, 200}},
		{"closed", 0, middleware.FailClosed, []int{503, 503, 503, 503}},
		{"closed by default", middleware.FailClosed, 0, []int{503, 503, 503, 503}},
		{"though it is closed", middleware.FailClosed, middleware.FailLocal, []int{200, 200, 429, 429}},
	} {
		h := made(t, c.Limit("api", client.PerHour(2)), middleware.Config{Timeout: 5 * time.Second, OnFailure: tc.failure, OnRefusal: tc.onRefusal}).HTTP(middleware.HTTP{})(page)
		var got []int
		for range tc.want {
			got = append(got, get(h, "203.0.113.9:1").Code)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.what, got, tc.want)
		}
		if w := get(h, "203.0.113.10:1"); w.Code != tc.want[0] {
			t.Errorf("%s: another client: %d", tc.what, w.Code)
		}
	}
}
