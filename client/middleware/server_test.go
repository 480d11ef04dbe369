package middleware_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadtest"
	"github.com/keystead/keystead/client/middleware"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// made returns a limiter.
func made(t *testing.T, limit client.Limit, cfg middleware.Config) *middleware.Limiter {
	t.Helper()
	l, err := middleware.New(limit, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var page = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("page")) })

// get asks a handler as a client would.
func get(h http.Handler, peer string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = peer
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// soon reports whether a field is a prefix and what is half a minute less some seconds, which a
// busy machine may need.
func soon(field, prefix string) bool {
	t, ok := strings.CutPrefix(field, prefix)
	n, err := strconv.Atoi(t)
	return ok && err == nil && n > 20 && n <= 30
}

func TestHTTP(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	h := made(t, c.Limit("api", client.PerMinute(2)), middleware.Config{Timeout: 5 * time.Second}).
		HTTP(middleware.HTTP{Key: middleware.ClientIP(middleware.Hops(1))})(page)
	const proxy = "10.0.0.1:1"
	for i, want := range []struct {
		code  int
		left  string
		retry string
	}{{200, `"api";r=1;t=`, ""}, {200, `"api";r=0;t=`, ""}, {429, `"api";r=0;t=`, "yes"}} {
		w := get(h, proxy, "X-Forwarded-For", "1.1.1."+string(rune('1'+i))+", 203.0.113.9")
		head := w.Header()
		if w.Code != want.code || !soon(head.Get("RateLimit"), want.left) || head.Get("RateLimit-Policy") != `"api";q=2;w=60` ||
			want.retry == "" && head.Get("Retry-After") != "" || want.retry != "" && !soon(head.Get("Retry-After"), "") {
			t.Errorf("%d: %d %v", i, w.Code, head)
		}
		if w.Code == http.StatusOK {
			continue
		}
		var got map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || head.Get("Content-Type") != "application/problem+json" {
			t.Fatal(err, head)
		}
		if want := map[string]any{"type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
			"title": "Too many requests: the limit is used up", "status": 429.0, "violated-policies": []any{"api"}}; !reflect.DeepEqual(got, want) {
			t.Errorf("%v", got)
		}
	}
	if w := get(h, proxy, "X-Forwarded-For", "203.0.113.10"); w.Code != 200 {
		t.Errorf("another client: %d", w.Code)
	}
}

func TestHTTPOptions(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	l := made(t, c.Limit("upload", client.PerHour(10)), middleware.Config{Timeout: 5 * time.Second})
	other := made(t, c.Limit("day", client.PerDay(100)), middleware.Config{Timeout: 5 * time.Second})
	h := other.HTTP(middleware.HTTP{})(l.HTTP(middleware.HTTP{
		Key: func(r *http.Request) string { return r.Header.Get("X-Tenant") },
		Cost: func(r *http.Request) uint64 {
			if r.Header.Get("X-Size") == "huge" {
				return 11
			}
			return uint64(len(r.Header.Get("X-Size")))
		},
		Refused: func(w http.ResponseWriter, _ *http.Request, d client.Decision) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte(d.RetryAfter.Round(time.Minute).String()))
		},
	})(page))
	const peer = "203.0.113.9:1"
	if w := get(h, peer, "X-Tenant", "a", "X-Size", "1234567"); w.Code != 200 || !slices.Equal(w.Header().Values("RateLimit-Policy"), []string{`"day";q=100;w=86400`, `"upload";q=10;w=3600`}) ||
		len(w.Header().Values("RateLimit")) != 2 {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if w := get(h, peer, "X-Tenant", "a", "X-Size", "1234"); w.Code != http.StatusTeapot || w.Body.String() != "6m0s" || len(w.Header().Get("Retry-After")) != 3 {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	if w := get(h, peer, "X-Tenant", "b", "X-Size", "huge"); w.Code != http.StatusTeapot || w.Header().Get("Retry-After") != "3600" {
		t.Errorf("more than the limit has: %d %v", w.Code, w.Header())
	}
	for what, header := range map[string][]string{"no cost": {"X-Tenant", "a"}, "no key": {"X-Size", "1234"}} {
		if w := get(h, peer, header...); w.Code != 200 || len(w.Header().Values("RateLimit")) != 1 {
			t.Errorf("%s: %d %v", what, w.Code, w.Header())
		}
	}
}

// What becomes of requests when Keystead is gone, and that they do not wait for it.
func TestWithoutKeystead(t *testing.T) {
	for policy, want := range map[middleware.OnFailure][]int{
		middleware.FailOpen:   {200, 200, 200, 200, 200, 200},
		middleware.FailClosed: {503, 503, 503, 503, 503, 503},
		middleware.FailLocal:  {200, 200, 200, 429, 429, 429},
	} {
		t.Run(policy.String(), func(t *testing.T) {
			n := keysteadtest.Start(t)
			c := n.Client(t)
			h := made(t, c.Limit("api", client.PerHour(6)), middleware.Config{Timeout: 50 * time.Millisecond, OnFailure: policy, LocalShare: 0.5}).
				HTTP(middleware.HTTP{})(page)
			n.Stop()
			var got []int
			for range want {
				w := get(h, "203.0.113.9:1")
				if got = append(got, w.Code); (w.Code == 200) != (w.Header().Get("Retry-After") == "") {
					t.Errorf("%d %v", w.Code, w.Header())
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

// A limit that can never be asked is no reason not to ask for others.
func TestMismatch(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	if _, err := c.Counter("api").Add(t.Context(), "ip:203.0.113.9", 1); err != nil {
		t.Fatal(err)
	}
	h := made(t, c.Limit("api", client.PerHour(6)), middleware.Config{Timeout: 5 * time.Second, OnFailure: middleware.FailClosed}).HTTP(middleware.HTTP{})(page)
	for range 5 {
		if w := get(h, "203.0.113.9:1"); w.Code != 503 {
			t.Errorf("%d", w.Code)
		}
	}
	if w := get(h, "203.0.113.10:1"); w.Code != 200 {
		t.Errorf("%d", w.Code)
	}
}

// serve runs a gRPC server with a health service, and returns a client of it.
func serve(t *testing.T, l *middleware.Limiter, o middleware.GRPC) healthpb.HealthClient {
	t.Helper()
	s := grpc.NewServer(grpc.UnaryInterceptor(l.Unary(o)), grpc.StreamInterceptor(l.Stream(o)))
	healthpb.RegisterHealthServer(s, health.NewServer())
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(at) }()
	conn, err := grpc.NewClient(at.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); s.Stop(); <-done })
	return healthpb.NewHealthClient(conn)
}

func TestGRPC(t *testing.T) {
	n := keysteadtest.Start(t)
	c := n.Client(t)
	l := made(t, c.Limit("api", client.PerMinute(2)), middleware.Config{Timeout: 5 * time.Second, OnFailure: middleware.FailClosed})
	calls := serve(t, l, middleware.GRPC{Key: middleware.Metadata("tenant", middleware.CallerIP(middleware.Hops(1)))})
	ask := func(ctx context.Context) (metadata.MD, error) {
		var md metadata.MD
		_, err := calls.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&md))
		return md, err
	}
	a := metadata.AppendToOutgoingContext(t.Context(), "tenant", "a")
	md, err := ask(a)
	if err != nil || len(md["ratelimit"]) != 1 || !soon(md["ratelimit"][0], `"api";r=1;t=`) || !slices.Equal(md["ratelimit-policy"], []string{`"api";q=2;w=60`}) {
		t.Errorf("%v %v", md, err)
	}
	stream := func(ctx context.Context) error {
		w, err := calls.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			return err
		}
		_, err = w.Recv()
		return err
	}
	if err := stream(a); err != nil {
		t.Errorf("a stream: %v", err)
	}
	if err := stream(a); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("another: %v", err)
	}
	md, err = ask(a)
	var told time.Duration
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			told = r.RetryDelay.AsDuration()
		}
	}
	if status.Code(err) != codes.ResourceExhausted || told <= 20*time.Second || told > 30*time.Second || len(md["retry-after"]) != 1 || !soon(md["retry-after"][0], "") {
		t.Errorf("%v after %s: %v", md, told, err)
	}
	// Two clients behind a proxy, one of which claims to be the other.
	for _, from := range []string{"203.0.113.9", "203.0.113.9", "203.0.113.9, 203.0.113.10"} {
		if _, err := ask(metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", from)); err != nil {
			t.Errorf("from %s: %v", from, err)
		}
	}
	n.Stop()
	if _, err := ask(metadata.AppendToOutgoingContext(t.Context(), "tenant", "b")); status.Code(err) != codes.Unavailable {
		t.Errorf("without Keystead: %v", err)
	}
}
