package fence_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/keystead/keystead/client/fence"
)

// send has a handler answer a request with the given values of the token's header.
func send(h http.Handler, method, path string, tokens ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for _, token := range tokens {
		r.Header.Add(fence.Header, token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHTTP(t *testing.T) {
	handled := 0
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled++ })
	h := fence.NewGate(fence.Config{Scopes: 2}).HTTP(fence.HTTP{Scope: func(r *http.Request) string { return r.URL.Path[1:] }})(next)
	for i, tc := range []struct {
		path   string
		tokens []string
		want   int
	}{
		{"/a", []string{"33"}, 200},
		{"/a", []string{"34"}, 200},
		{"/a", []string{"33"}, 412},
		{"/a", []string{"34"}, 200},
		{"/a", []string{"9223372036854775807"}, 200},
		{"/b", []string{"33"}, 200},
		{"/c", []string{"33"}, 503}, // no room
		{"/", nil, 200},             // needs none
		{"/b", nil, 428},
		{"/b", []string{"33", "34"}, 400},
		{"/b", []string{"0"}, 400},
		{"/b", []string{"-1"}, 400},
		{"/b", []string{"+34"}, 400},
		{"/b", []string{"9223372036854775808"}, 400},
		{"/b", []string{""}, 400},
		{"/b", []string{"0x22"}, 400},
	} {
		before := handled
		w := send(h, http.MethodPut, tc.path, tc.tokens...)
		if w.Code != tc.want || (handled > before) != (tc.want == 200) {
			t.Errorf("%d: %s %q: %d", i, tc.path, tc.tokens, w.Code)
		}
		if tc.want == 200 {
			continue
		}
		var problem struct {
			Title  string
			Status int
		}
		if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || problem.Status != tc.want || problem.Title == "" ||
			w.Header().Get("Content-Type") != "application/problem+json" || (w.Header().Get("Retry-After") != "") != (tc.want == 503) {
			t.Errorf("%d: %s %v", i, w.Body, w.Header())
		}
	}
}

// Unless told otherwise, what only reads needs no token, and all the rest has one scope.
func TestHTTPByDefault(t *testing.T) {
	h := fence.NewGate(fence.Config{}).HTTP(fence.HTTP{})(http.NotFoundHandler())
	for method, want := range map[string]int{"GET": 404, "HEAD": 404, "OPTIONS": 404, "PUT": 428, "POST": 428, "DELETE": 428, "PATCH": 428} {
		if w := send(h, method, "/x"); w.Code != want {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
	if w := send(h, "PUT", "/x", "34"); w.Code != 404 {
		t.Error(w.Code)
	}
	if w := send(h, "PUT", "/y", "33"); w.Code != 412 {
		t.Error(w.Code)
	}
}

// A handler that is at work when the next holder comes is told, and the next one is handled
// when it has returned; also if it panics.
func TestHTTPHandsOver(t *testing.T) {
	begun, order := make(chan struct{}), make(chan string, 2)
	h := fence.NewGate(fence.Config{}).HTTP(fence.HTTP{})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get(fence.Header) == "33" {
			close(begun)
			<-r.Context().Done()
			order <- "late"
			panic(http.ErrAbortHandler)
		}
		order <- "next"
	}))
	server := httptest.NewServer(h)
	defer server.Close()
	put := func(token uint64) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL, nil)
		if err != nil {
			return 0, err
		}
		fence.Sign(r.Header, token)
		a, err := server.Client().Do(r)
		if err != nil {
			return 0, err
		}
		_, _ = io.Copy(io.Discard, a.Body)
		return a.StatusCode, a.Body.Close()
	}
	failed := make(chan error, 1)
	go func() {
		_, err := put(33)
		failed <- err
	}()
	<-begun
	if code, err := put(34); code != 200 || err != nil {
		t.Error(code, err)
	}
	if err := <-failed; err == nil {
		t.Error("the handler that panicked was answered for")
	}
	if first, second := <-order, <-order; first != "late" || second != "next" {
		t.Error(first, second)
	}
}

func TestRefusedByTheProgram(t *testing.T) {
	var why error
	h := fence.NewGate(fence.Config{}).HTTP(fence.HTTP{Refused: func(w http.ResponseWriter, _ *http.Request, err error) {
		why = err
		w.WriteHeader(http.StatusTeapot)
	}})(http.NotFoundHandler())
	if w := send(h, "PUT", "/x"); w.Code != http.StatusTeapot || !errors.Is(why, fence.ErrNoToken) {
		t.Error(w.Code, why)
	}
}
