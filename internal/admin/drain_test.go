package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/internal/drain"
	"github.com/keystead/keystead/ring/epoch/table"
)

// draining is a node whose drain ends when it is told to, or with an error.
type draining struct {
	end  chan struct{}
	fail error
}

func (d *draining) DrainState() drain.State { return state(table.Active, 256) }

func (d *draining) Drain(ctx context.Context) (drain.State, error) {
	if d.fail != nil {
		return d.DrainState(), d.fail
	}
	select {
	case <-d.end:
		return state(table.Drained, 0), nil
	case <-ctx.Done():
		return state(table.Leaving, 7), ctx.Err()
	}
}

func state(p table.Phase, rows int) drain.State {
	return drain.State{DrainState: table.DrainState{Member: table.Member{Node: "n1", Phase: p}, Owned: rows}}
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
	ask(http.MethodGet, "/drain", 200, Drain{Node: "n1", Phase: "active", RowsOwned: 256})
	ask(http.MethodPost, "/drain?timeout=10ms", 504, Drain{Node: "n1", Phase: "leaving", RowsOwned: 7, Problem: "not drained within 10ms"})
	close(d.end)
	ask(http.MethodPost, "/drain", 200, Drain{Node: "n1", Phase: "drained", Drained: true})
	d.fail = drain.ErrLastNode("n1")
	ask(http.MethodPost, "/drain", 409, Drain{Node: "n1", Phase: "active", RowsOwned: 256, Problem: "nobody would be left to take what n1 owns"})
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
