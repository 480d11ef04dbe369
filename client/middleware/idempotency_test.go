package middleware

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadtest"
)

// shop is a server whose handler is behind the middleware.
type shop struct {
	*httptest.Server
	node    *keysteadtest.Node
	handled atomic.Int32
}

func tenant(r *http.Request) string { return r.Header.Get("Tenant") }

func open(t *testing.T, o Idempotency, handle http.HandlerFunc) *shop {
	t.Helper()
	n, err := keysteadtest.Run()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	c, err := client.Dial(t.Context(), n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	o.Scope = tenant
	once, err := o.HTTP(c.Once("orders"))
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{node: n}
	s.Server = httptest.NewServer(once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handled.Add(1)
		handle(w, r)
	})))
	t.Cleanup(s.Close)
	return s
}

// answer is what a client of the shop sees.
type answer struct {
	status int
	header http.Header
	body   string
}

// post sends a request under a key, unless that is "".
func (s *shop) post(t *testing.T, path, key, body string, also ...string) answer {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Tenant", "acme")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(also); i += 2 {
		r.Header.Add(also[i], also[i+1])
	}
	res, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(b)}
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// TestIdempotency: one request of a key is handled, and its answer repeated with what is to be
// repeated; everything else is told apart from it.
func TestIdempotency(t *testing.T) {
	s := open(t, Idempotency{Required: true, Headers: []string{"x-cost"}, MaxRequest: 100}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if FencingToken(r.Context()) == 0 && r.Method == http.MethodPost {
			t.Error("no token")
		}
		w.Header().Set("Location", "/orders/7")
		w.Header().Set("X-Cost", "3")
		w.Header().Set("Set-Cookie", "a=b")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "made of "+string(body))
	})
	first := s.post(t, "/orders", `"key-1"`, "apples")
	if first.status != http.StatusCreated || first.body != "made of apples" || first.replayed() || first.header.Get("Set-Cookie") == "" {
		t.Errorf("%+v", first)
	}
	for name, key := range map[string]string{"as a string": `"key-1"`, "as a bare text": "key-1"} {
		a := s.post(t, "/orders", key, "apples")
		if a.status != first.status || a.body != first.body || !a.replayed() || a.header.Get("Location") != "/orders/7" || a.header.Get("X-Cost") != "3" || a.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if n := s.handled.Load(); n != 1 {
		t.Errorf("handled %d times", n)
	}
	for name, tc := range map[string]struct {
		a      answer
		status int
	}{
		"another body":       {s.post(t, "/orders", "key-1", "pears"), http.StatusUnprocessableEntity},
		"another path":       {s.post(t, "/orders?x=1", "key-1", "apples"), http.StatusUnprocessableEntity},
		"no key":             {s.post(t, "/orders", "", "apples"), http.StatusBadRequest},
		"an empty key":       {s.post(t, "/orders", `""`, "apples"), http.StatusBadRequest},
		"half a string":      {s.post(t, "/orders", `"a"b"`, "apples"), http.StatusBadRequest},
		"two keys":           {s.post(t, "/orders", "a", "apples", "Idempotency-Key", "b"), http.StatusBadRequest},
		"a long key":         {s.post(t, "/orders", strings.Repeat("k", 256), "apples"), http.StatusBadRequest},
		"a long body":        {s.post(t, "/orders", "key-2", strings.Repeat("a", 101)), http.StatusRequestEntityTooLarge},
		"quotes in a string": {s.post(t, "/orders", `"a \"b\" \\c"`, "apples"), http.StatusCreated},
	} {
		if tc.a.status != tc.status || tc.status >= 400 && tc.a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %+v", name, tc.a)
		}
	}
	r, _ := http.NewRequest(http.MethodPost, s.URL+"/orders", strings.NewReader("pears"))
	r.Header.Set("Tenant", "other")
	r.Header.Set("Idempotency-Key", "key-1")
	theirs, err := s.Client().Do(r)
	if err != nil || theirs.StatusCode != http.StatusCreated {
		t.Fatalf("the key of another tenant: %v %v", theirs, err)
	}
	theirs.Body.Close()
	before := s.handled.Load()
	res, err := s.Client().Get(s.URL + "/orders")
	if err != nil || res.StatusCode != http.StatusCreated || s.handled.Load() != before+1 {
		t.Fatalf("GET: %v %v", res, err)
	}
	res.Body.Close()
}

// TestIdempotencyWhileBusy: while one is handled, others are told so, or wait.
func TestIdempotencyWhileBusy(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	s := open(t, Idempotency{}, func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-end
		_, _ = io.WriteString(w, "done")
	})
	heard := make(chan answer, 1)
	go func() { heard <- s.post(t, "/", "k", "") }()
	<-begun
	if a := s.post(t, "/", "k", ""); a.status != http.StatusConflict || a.header.Get("Retry-After") != "1" {
		t.Errorf("%+v", a)
	}
	close(end)
	if a := <-heard; a.status != http.StatusOK || a.body != "done" {
		t.Errorf("%+v", a)
	}
	if a := s.post(t, "/", "k", ""); a.status != http.StatusOK || a.body != "done" || !a.replayed() {
		t.Errorf("%+v", a)
	}
}

// TestWhatIsNotStored: a failure is handled again; an answer that is too long is not, and is sent
// whole; after a panic the key is free when its lease ends.
func TestWhatIsNotStored(t *testing.T) {
	long := strings.Repeat("x", client.MaxResult+1)
	// The lease is over after the panic alone: a busy machine renews those of the others late.
	s := open(t, Idempotency{TTL: 2 * time.Second, Wait: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/fails":
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "the bank is closed")
		case "/long":
			_, _ = io.WriteString(w, long[:9])
			_, _ = io.WriteString(w, long[9:])
		case "/large":
			_, _ = io.WriteString(w, long[:client.MaxResult])
		case "/panics":
			panic(http.ErrAbortHandler)
		}
	})
	for range 2 {
		if a := s.post(t, "/fails", "f", ""); a.status != http.StatusBadGateway || a.body != "the bank is closed" || a.replayed() {
			t.Errorf("%+v", a)
		}
	}
	if n := s.handled.Load(); n != 2 {
		t.Errorf("handled %d times", n)
	}
	for _, path := range []string{"/long", "/large"} { // the latter with its head
		if a := s.post(t, path, path, ""); a.status != http.StatusOK || len(a.body) < client.MaxResult {
			t.Errorf("%d, %d bytes", a.status, len(a.body))
		}
		if a := s.post(t, path, path, ""); a.status != http.StatusConflict || !strings.Contains(a.body, "too long to be kept") {
			t.Errorf("%+v", a)
		}
	}
	for range 2 { // without a client: net/http sends a request with a key again by itself
		func() {
			defer func() { _ = recover() }()
			r := httptest.NewRequest(http.MethodPost, "/panics", nil)
			r.Header.Set("Tenant", "acme")
			r.Header.Set("Idempotency-Key", "p")
			s.Config.Handler.ServeHTTP(httptest.NewRecorder(), r)
			t.Error("answered")
		}()
	}
	if n := s.handled.Load(); n != 6 {
		t.Errorf("handled %d times", n)
	}
}

// TestHandlerThatGaveUp: a handler that returns without a word since its client has left has given
// no answer that a retry could get. A retry is handled when the lease of the key is over.
func TestHandlerThatGaveUp(t *testing.T) {
	begun := make(chan struct{})
	handled := 0
	s := open(t, Idempotency{TTL: 300 * time.Millisecond, Wait: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		if handled++; handled == 1 {
			close(begun)
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, "done")
	})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/", strings.NewReader("body"))
		r.Header.Set("Tenant", "acme")
		r.Header.Set("Idempotency-Key", "k")
		if res, err := s.Client().Do(r); err == nil {
			_ = res.Body.Close()
			t.Error("answered")
		}
	}()
	<-begun
	leave()
	<-left
	if a := s.post(t, "/", "k", "body"); a.status != http.StatusOK || a.body != "done" || a.replayed() {
		t.Errorf("%+v", a)
	}
}

// TestIdempotencyWithoutKeystead: what cannot be known is refused, or handled, as the service says.
func TestIdempotencyWithoutKeystead(t *testing.T) {
	for how, status := range map[OnFailure]int{FailClosed: http.StatusServiceUnavailable, FailOpen: http.StatusOK} {
		s := open(t, Idempotency{OnFailure: how, Timeout: 100 * time.Millisecond}, func(http.ResponseWriter, *http.Request) {})
		s.node.Stop()
		if a := s.post(t, "/", "k", ""); a.status != status || (a.header.Get("Retry-After") == "") != (status == http.StatusOK) {
			t.Errorf("%s: %+v", how, a)
		}
	}
	for name, o := range map[string]Idempotency{"no scope": {}, "locally": {Scope: tenant, OnFailure: FailLocal}, "a negative time": {Scope: tenant, Wait: -1}} {
		if _, err := o.HTTP(client.Once{}); err == nil {
			t.Errorf("%s: made", name)
		}
	}
	if FencingToken(context.Background()) != 0 {
		t.Error("a token of nothing")
	}
}
