package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadtest"
	"github.com/keystead/keystead/client/middleware"
)

// connect dials a node in this process. Programs dial nodes that run elsewhere.
func connect() (c *client.Client, stop func()) {
	n, err := keysteadtest.Run()
	if err != nil {
		panic(err)
	}
	if c, err = client.Dial(context.Background(), n.Addr()); err != nil {
		panic(err)
	}
	return c, func() { c.Close(); n.Stop() }
}

func ExampleLimiter_HTTP() {
	c, stop := connect()
	defer stop()

	// 2 requests a minute for each client address; while Keystead does not answer, each of
	// four processes allows a quarter of it.
	api, err := middleware.New(c.Limit("api", client.PerMinute(2)), middleware.Config{OnFailure: middleware.FailLocal, LocalShare: 0.25})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	// One proxy stands before this server, and appends to X-Forwarded-For.
	limited := api.HTTP(middleware.HTTP{Key: middleware.ClientIP(middleware.Hops(1))})(mux)

	server := httptest.NewServer(limited)
	defer server.Close()
	for range 3 {
		req, _ := http.NewRequest(http.MethodGet, server.URL, nil)
		req.Header.Set("X-Forwarded-For", "203.0.113.9")
		res, err := server.Client().Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		res.Body.Close()
		fmt.Println(res.StatusCode, res.Header.Get("RateLimit-Policy"), res.Header.Get("Retry-After") != "")
	}
	// Output:
	// 200 "api";q=2;w=60 false
	// 200 "api";q=2;w=60 false
	// 429 "api";q=2;w=60 true
}

func ExampleLimiter_Unary() {
	c, stop := connect()
	defer stop()

	api, err := middleware.New(c.Limit("api", client.PerMinute(20)), middleware.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	calls := middleware.GRPC{Key: middleware.CallerIP(middleware.Trusted(netip.MustParsePrefix("10.0.0.0/8")))}
	server := grpc.NewServer(grpc.UnaryInterceptor(api.Unary(calls)), grpc.StreamInterceptor(api.Stream(calls)))
	server.Stop()
	// Output:
}

func ExampleIdempotency_HTTP() {
	c, stop := connect()
	defer stop()

	// A payment is made once under each key of a tenant, however often the request is sent.
	once, err := middleware.Idempotency{
		Scope:    middleware.Header("X-Tenant", middleware.ClientIP(middleware.Proxies{})),
		Required: true,
	}.HTTP(c.Once("payments"))
	if err != nil {
		fmt.Println(err)
		return
	}
	paid := 0
	payments := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paid++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d", paid)
	}))
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("EUR 10"))
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		payments.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body, w.Header().Get("Idempotent-Replayed") != "")
	}
	// Output:
	// 201 payment 1 false
	// 201 payment 1 true
}
