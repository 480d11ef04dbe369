package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// draining is a node whose drain ends when it is told to, or with an error.
type draining struct {
	end  chan struct{}
	fail error
}

func (d *draining) State() Drain { return Drain{Node: "n1", Phase: "active", RowsOwned: 256} }

func (d *draining) Drain(ctx context.Context) (Drain, error) {
	if d.fail != nil {
		return d.State(), d.fail
	}
	select {
	case <-d.end:
		return Drain{Node: "n1", Phase: "drained", Drained: true}, nil
	case <-ctx.Done():
		return Drain{Node: "n1", Phase: "leaving", RowsOwned: 7}, ctx.Err()
	}
}

func TestDrainPages(t *testing.T) {
	d := &draining{end: make(chan struct{})}
	s, err := Start(Config{Addr: "127.0.0.1:0", Gatherer: prometheus.NewRegistry(), Drain: d})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	ask := func(method, path string, code int, want Drain) {
		t.Helper()
		got, header, body, err := do(t.Context(), s, method, path, nil)
		if err != nil || got != code || header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %d %s %v", method, path, got, body, err)
		}
		var d Drain
		if json.Unmarshal([]byte(body), &d) != nil || d != want {
			t.Errorf("%s %s: %s", method, path, body)
		}
	}
	ask(http.MethodGet, "/drain", 200, d.State())
	ask(http.MethodPost, "/drain?timeout=10ms", 504, Drain{Node: "n1", Phase: "leaving", RowsOwned: 7, Problem: "not drained within 10ms"})
	close(d.end)
	ask(http.MethodPost, "/drain", 200, Drain{Node: "n1", Phase: "drained", Drained: true})
	d.fail = &Refused{errors.New("it is the last one")}
	ask(http.MethodPost, "/drain", 409, Drain{Node: "n1", Phase: "active", RowsOwned: 256, Problem: "it is the last one"})
	d.fail = errors.New("no leader")
	ask(http.MethodPost, "/drain?timeout=1m", 503, Drain{Node: "n1", Phase: "active", RowsOwned: 256, Problem: "no leader"})
	for _, q := range []string{"x", "0s", "-1s", (MaxDrain + time.Second).String(), "1"} {
		if code, _, body, err := do(t.Context(), s, http.MethodPost, "/drain?timeout="+q, nil); err != nil || code != http.StatusBadRequest {
			t.Errorf("timeout=%s: %d %s %v", q, code, body, err)
		}
	}
	if code, _, _, err := do(t.Context(), s, http.MethodDelete, "/drain", nil); err != nil || code != http.StatusMethodNotAllowed {
		t.Errorf("DELETE: %d %v", code, err)
	}
}

// Without somebody to do it there is no such page.
func TestNoDrain(t *testing.T) {
	s := start(t, nil)
	if code, _, _ := get(t, s, "/drain"); code != 404 {
		t.Errorf("GET: %d", code)
	}
}
