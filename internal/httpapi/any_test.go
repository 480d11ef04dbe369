package httpapi

import (
	"net/http"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever a request asks, it gets an answer that has a meaning, and the process goes on.
func TestAnyRequest(t *testing.T) {
	h := newHouse(t)
	for _, path := range slices.Sorted(keysOf(h.web.routes)) {
		r := h.web.routes[path]
		t.Run(path, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				m := newMessage(t, r.asked)
				fill(rt, r.asked, m, 2)
				body := string(r.asked.append(nil, m))
				a := h.call(http.MethodPost, path, body, timeoutHeader+": 5ms")
				if a.status == http.StatusInternalServerError || !slices.Contains(statuses(), a.status) {
					rt.Fatalf("%s: %s", body, a)
				}
				h.clock.now.Add(rapid.Int64Range(0, 1e9).Draw(rt, "later"))
			})
		})
	}
}
