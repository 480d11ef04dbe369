package shop_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/keystead/keystead/client/keysteadtest"
	"github.com/keystead/keystead/examples/shop"
)

// open opens a shop over a node of its own.
func open(t *testing.T, perMinute uint64) (*shop.Shop, func(method, path string, header ...string) (int, string)) {
	t.Helper()
	s, err := shop.New(keysteadtest.Start(t).Client(t), perMinute)
	if err != nil {
		t.Fatal(err)
	}
	h := s.Handler()
	return s, func(method, path string, header ...string) (int, string) {
		r := httptest.NewRequest(method, path, nil)
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, strings.TrimSpace(w.Body.String())
	}
}

func TestNothingIsOversold(t *testing.T) {
	_, call := open(t, 1_000_000)
	call("PUT", "/stock/lamp?items=100")
	if code, left := call("PUT", "/stock/lamp?items=7"); code != http.StatusOK || left != "100" {
		t.Errorf("a second supply: %d %s", code, left)
	}
	var sold atomic.Int64
	var buyers sync.WaitGroup
	for range 10 {
		buyers.Go(func() {
			for range 15 {
				if code, _ := call("POST", "/orders/lamp"); code == http.StatusOK {
					sold.Add(1)
				}
			}
		})
	}
	buyers.Wait()
	if _, left := call("GET", "/stock/lamp"); sold.Load() != 100 || left != "0" {
		t.Errorf("%d of 100 were sold, %s are left", sold.Load(), left)
	}
	if code, _ := call("POST", "/orders/lamp"); code != http.StatusConflict {
		t.Errorf("one more: %d", code)
	}
}

func TestTenantsAreLimited(t *testing.T) {
	_, call := open(t, 3)
	for i := range 4 {
		if code, _ := call("GET", "/stock/lamp", "Tenant", "a"); (code == http.StatusOK) != (i < 3) {
			t.Errorf("request %d: %d", i, code)
		}
	}
	if code, _ := call("GET", "/stock/lamp", "Tenant", "b"); code != http.StatusOK {
		t.Errorf("another tenant: %d", code)
	}
}

func TestTheJobRunsOnce(t *testing.T) {
	s, _ := open(t, 3)
	var runs, tokens atomic.Int64
	job := func(_ context.Context, token uint64) error {
		runs.Add(1)
		tokens.Add(int64(min(token, 1)))
		return nil
	}
	var machines sync.WaitGroup
	for range 5 {
		machines.Go(func() {
			if _, err := s.Nightly(t.Context(), "2026-03-02", job); err != nil {
				t.Error(err)
			}
		})
	}
	machines.Wait()
	if runs.Load() != 1 || tokens.Load() != 1 {
		t.Errorf("it ran %d times, %d of them with a token", runs.Load(), tokens.Load())
	}
	if again, err := s.Nightly(t.Context(), "2026-03-03", job); !again || err != nil {
		t.Errorf("the next night: %t, %v", again, err)
	}
}

func TestAnOrderIsSoldOnce(t *testing.T) {
	_, call := open(t, 1_000_000)
	call("PUT", "/stock/lamp?items=2")
	for i := range 3 {
		if code, left := call("POST", "/orders/lamp", "Idempotency-Key", "order-7"); code != http.StatusOK || left != "1" {
			t.Errorf("attempt %d: %d %s", i, code, left)
		}
	}
	if code, _ := call("POST", "/orders/lamp", "Idempotency-Key", strings.Repeat("x", 65)); code != http.StatusBadRequest {
		t.Errorf("a key that is too long: %d", code)
	}
}
