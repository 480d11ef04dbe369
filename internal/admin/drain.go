package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/keystead/keystead/internal/drain"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Bounds of a drain that is waited for.
const (
	// DefaultDrain is how long a POST waits that does not say: less than the 30 s
	// that Kubernetes gives a container to end, its preStop hook included.
	DefaultDrain = 25 * time.Second
	// MaxDrain leaves time to write the answer.
	MaxDrain = writeTimeout - 10*time.Second
)

// Drain is how far the node is with giving away what it has.
type Drain struct {
	Node        string `json:"node"`
	Phase       string `json:"phase"` // joining, active, leaving, drained; "" = no member
	Drained     bool   `json:"drained"`
	RowsOwned   int    `json:"rows_owned"`
	RowsStandby int    `json:"rows_standby"`
	// Already says that the node was being drained when the request came.
	Already bool `json:"already,omitempty"`
	// Problem says why the node is not drained.
	Problem string `json:"problem,omitempty"`
}

// Drainer drains the node.
type Drainer interface {
	// DrainState is how far it is.
	DrainState() drain.State
	// Drain drains the node, and returns when that is done. With the error of the
	// context, the drain goes on.
	Drain(ctx context.Context) (drain.State, error)
}

func newDrain(s drain.State) Drain {
	d := Drain{Node: s.Member.Node, RowsOwned: s.Owned, RowsStandby: s.Standby, Already: s.Already, Drained: s.Member.Phase == table.Drained}
	if s.Member.Phase != 0 {
		d.Phase = s.Member.Phase.String()
	}
	return d
}

func drainPages(mux *http.ServeMux, d Drainer) {
	mux.HandleFunc("GET /drain", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, newDrain(d.DrainState())) })
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, r *http.Request) {
		within, err := drainTime(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), within)
		defer cancel()
		state, err := d.Drain(ctx)
		s, code := newDrain(state), http.StatusOK
		switch {
		case err == nil:
			s.Drained = true // if only its last transition has not ended yet
		case drain.Final(err):
			code, s.Problem = http.StatusConflict, err.Error()
		case ctx.Err() != nil:
			code, s.Problem = http.StatusGatewayTimeout, fmt.Sprintf("not drained within %v", within)
		default:
			code, s.Problem = http.StatusServiceUnavailable, err.Error()
		}
		reply(w, code, s)
	})
}

// drainTime returns how long a request waits.
func drainTime(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("timeout")
	if text == "" {
		return DefaultDrain, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > MaxDrain {
		return 0, fmt.Errorf("timeout=%q: write a duration above 0 and up to %v, like 25s", text, MaxDrain)
	}
	return d, nil
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the reader has left
}
