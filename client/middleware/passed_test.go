package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadtest"
	"github.com/keystead/keystead/client/middleware"
)

// What a server passes on of a caller's metadata is not sent to Keystead with the check: a
// caller that sends much, or what has a meaning there, is limited like all others.
func TestPassedOnMetadata(t *testing.T) {
	c := keysteadtest.Start(t).Client(t)
	h := made(t, c.Limit("api", client.PerHour(1)), middleware.Config{Timeout: 5 * time.Second}).HTTP(middleware.HTTP{})(page)
	for i, md := range []metadata.MD{nil, {"x-much": {strings.Repeat("x", 100_000)}}, {"x-keystead-cluster": {"another"}}, {"x-keystead-target": {"nobody"}}} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(metadata.NewOutgoingContext(r.Context(), md)))
		if want := map[bool]int{true: http.StatusOK, false: http.StatusTooManyRequests}[i == 0]; w.Code != want {
			t.Errorf("%.60v: %d", md, w.Code)
		}
	}
}
