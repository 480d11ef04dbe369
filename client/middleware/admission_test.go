package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
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
)

const policies = `
policies:
  per-user: {limit: 2/1h, burst: 3}
admissions:
  chat:
    key: org:{org}
    fields: [org, user]
    demands:
    - {name: rpm, limit: 4/1h}
    - {name: "user:{user}/tpm", limit: 100/1h, cost: tokens, clamp: 50}
    - {name: running, slots: 1}
`

// withPolicies is a client of a node that goes by the policies.
func withPolicies(t *testing.T) *client.Client {
	t.Helper()
	c := keysteadtest.Start(t).Client(t)
	if _, err := c.Admin().ApplyPolicies(t.Context(), policies, 0, false); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestPolicy: a middleware may be given the name of a policy in place of a rate. Headers tell the quota of an answer.
func TestPolicy(t *testing.T) {
	c := withPolicies(t)
	cost := uint64(1)
	o := middleware.HTTP{Cost: func(*http.Request) uint64 { return cost }}
	h := made(t, c.Policy("per-user"), middleware.Config{Timeout: 5 * time.Second}).HTTP(o)(page)
	for i, want := range []int{200, 200, 200, 429} {
		w := get(h, "203.0.113.9:1")
		head := w.Header()
		if w.Code != want || head.Get("RateLimit-Policy") != `"per-user";q=2` || (head.Get("Retry-After") != "") != (want == 429) {
			t.Errorf("%d: %d %v", i, w.Code, head)
		}
		if left := fmt.Sprintf(`"per-user";r=%d`, 2-i); want == 200 && head.Get("RateLimit") != left {
			t.Errorf("%d: %v", i, head)
		}
	}
	cost = 4 // more than it ever holds
	if w := get(h, "203.0.113.10:1"); w.Code != 429 || w.Header().Get("RateLimit") != "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	cost = 1
	for range 5 { // a policy that is not there lets nobody through, and is no reason not to ask
		if w := get(made(t, c.Policy("none"), middleware.Config{Timeout: 5 * time.Second}).HTTP(o)(page), "203.0.113.9:1"); w.Code != 503 {
			t.Errorf("no such policy: %d", w.Code)
		}
	}
	for what, cfg := range map[string]middleware.Config{"failure": {OnFailure: middleware.FailLocal}, "refusal": {OnRefusal: middleware.FailLocal}} {
		if _, err := middleware.New(c.Policy("per-user"), cfg); err == nil {
			t.Errorf("%s: a policy has no rate to limit by", what)
		}
	}
}

// holds returns how many holds of a key are not settled.
func holds(t *testing.T, c *client.Client, key string) int {
	t.Helper()
	_, n, err := c.Admission("").Holds(t.Context(), key, "")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func admitter(t *testing.T, c *client.Client, cfg middleware.Config) *middleware.Admitter {
	t.Helper()
	cfg.Timeout = 5 * time.Second
	a, err := middleware.NewAdmitter(c.Admission(""), "chat", time.Minute, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func says(org, user string) middleware.Says {
	return middleware.Says{Fields: map[string]string{"org": org, "user": user}, Amounts: map[string]uint64{"tokens": 30}}
}

// TestAdmitter: a request is admitted by its fields, and its hold ends with it: as its handler says, or as reserved, also if
// that panics or the caller has left.
func TestAdmitter(t *testing.T) {
	c := withPolicies(t)
	handle := func(http.ResponseWriter, *http.Request) {}
	h := admitter(t, c, middleware.Config{}).HTTP(func(r *http.Request) middleware.Says { return says(r.Header.Get("X-Org"), "u") })(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n := holds(t, c, "org:"+r.Header.Get("X-Org")); n != 1 {
				t.Errorf("%d holds", n)
			}
			handle(w, r)
		}))
	left := func(org string) uint64 {
		d, err := c.Limit("user:u/tpm", client.PerHour(100)).Peek(t.Context(), "org:"+org)
		if err != nil {
			t.Fatal(err)
		}
		return d.Remaining
	}
	w := get(h, "203.0.113.9:1", "X-Org", "reserved")
	if w.Code != 200 || w.Header().Get("RateLimit-Policy") != `"chat";q=1` || w.Header().Get("RateLimit") != `"chat";r=0` || left("reserved") != 70 || holds(t, c, "org:reserved") != 0 {
		t.Errorf("%d %v: %d left", w.Code, w.Header(), left("reserved"))
	}
	handle = func(w http.ResponseWriter, r *http.Request) {
		if in := get(h, "203.0.113.9:1", "X-Org", "told"); in.Code != 429 || in.Header().Get("Retry-After") == "" {
			t.Errorf("a second one at a time: %d %v", in.Code, in.Header())
		}
		if _, err := middleware.Admitted(r.Context()).Settle(r.Context(), client.Cost{Name: "user:u/tpm", Cost: 7}); err != nil {
			t.Error(err)
		}
	}
	if w := get(h, "203.0.113.9:1", "X-Org", "told"); w.Code != 200 || left("told") != 93 {
		t.Errorf("%d: %d left", w.Code, left("told"))
	}
	handle = func(http.ResponseWriter, *http.Request) { panic("a bug") }
	func() {
		defer func() {
			if recover() != "a bug" {
				t.Error("the panic was swallowed")
			}
		}()
		get(h, "203.0.113.9:1", "X-Org", "panics")
	}()
	if holds(t, c, "org:panics") != 0 || left("panics") != 70 {
		t.Errorf("after a panic: %d holds, %d left", holds(t, c, "org:panics"), left("panics"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	handle = func(http.ResponseWriter, *http.Request) { cancel() }
	r := httptest.NewRequest("POST", "/", nil).WithContext(ctx)
	r.Header.Set("X-Org", "leaves")
	h.ServeHTTP(httptest.NewRecorder(), r)
	if holds(t, c, "org:leaves") != 0 || left("leaves") != 70 {
		t.Errorf("after the caller has left: %d holds, %d left", holds(t, c, "org:leaves"), left("leaves"))
	}
	if w := get(h, "203.0.113.9:1"); w.Code != 503 {
		t.Errorf("a request that says too little: %d", w.Code)
	}
}

// TestAdmitterOverGRPC: the same of calls and streams.
func TestAdmitterOverGRPC(t *testing.T) {
	c := withPolicies(t)
	a := admitter(t, c, middleware.Config{})
	unary := a.Unary(func(_ context.Context, method string) middleware.Says { return says("g", method) })
	info := &grpc.UnaryServerInfo{FullMethod: "m"}
	for i := range 5 {
		_, err := unary(t.Context(), &healthpb.HealthCheckRequest{}, info, func(ctx context.Context, _ any) (any, error) {
			if h := middleware.Admitted(ctx); h == nil || !h.OK || holds(t, c, "org:g") != 1 {
				t.Errorf("call %d: %+v", i, h)
			}
			return nil, nil
		})
		if want := codes.OK; i < 3 && status.Code(err) != want || i == 4 && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("call %d: %v", i, err)
		}
		if holds(t, c, "org:g") != 0 {
			t.Errorf("call %d is still held", i)
		}
	}
	stream := a.Stream(func(context.Context, string) middleware.Says { return says("s", "u") })
	err := stream(nil, quiet{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "m"}, func(_ any, ss grpc.ServerStream) error {
		if middleware.Admitted(ss.Context()) == nil || holds(t, c, "org:s") != 1 {
			t.Error("a stream is not held")
		}
		return nil
	})
	if err != nil || holds(t, c, "org:s") != 0 {
		t.Errorf("a stream: %v", err)
	}
}

// quiet is a stream that sends nothing.
type quiet struct {
	grpc.ServerStream
	ctx context.Context
}

func (q quiet) Context() context.Context { return q.ctx }

func (quiet) SetHeader(metadata.MD) error { return nil }

// TestAdmitterWithoutKeystead: it fails open, without an admission, or closed.
func TestAdmitterWithoutKeystead(t *testing.T) {
	for how, want := range map[middleware.OnFailure]int{middleware.FailOpen: 200, middleware.FailClosed: 503} {
		n := keysteadtest.Start(t)
		a, err := middleware.NewAdmitter(n.Client(t).Admission(""), "chat", time.Minute, middleware.Config{Timeout: 50 * time.Millisecond, OnFailure: how})
		if err != nil {
			t.Fatal(err)
		}
		n.Stop()
		h := a.HTTP(func(*http.Request) middleware.Says { return says("7", "u") })(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if middleware.Admitted(r.Context()) != nil {
				t.Error("an admission that is none")
			}
		}))
		for range 5 {
			if w := get(h, "203.0.113.9:1"); w.Code != want {
				t.Errorf("%s: %d", how, w.Code)
			}
		}
	}
	for what, new := range map[string]func() (*middleware.Admitter, error){
		"no policy": func() (*middleware.Admitter, error) {
			return middleware.NewAdmitter(client.Admission{}, "", 0, middleware.Config{})
		},
		"short hold": func() (*middleware.Admitter, error) {
			return middleware.NewAdmitter(client.Admission{}, "p", time.Millisecond, middleware.Config{})
		},
		"local": func() (*middleware.Admitter, error) {
			return middleware.NewAdmitter(client.Admission{}, "p", 0, middleware.Config{OnFailure: middleware.FailLocal})
		},
	} {
		if _, err := new(); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
