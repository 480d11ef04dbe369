package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
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
	// State is how far it is.
	State() Drain
	// Drain drains the node, and returns when that is done. With the error of the
	// context, the drain goes on. A *Refused says that there will be none.
	Drain(ctx context.Context) (Drain, error)
}

// Refused is why a node is not drained, and will not be.
type Refused struct{ Why error }

func (r *Refused) Error() string { return r.Why.Error() }

// Unwrap returns the cause.
func (r *Refused) Unwrap() error { return r.Why }

func drainPages(mux *http.ServeMux, d Drainer) {
	mux.HandleFunc("GET /drain", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, d.State()) })
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, r *http.Request) {
		within, err := drainTime(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), within)
		defer cancel()
		s, err := d.Drain(ctx)
		code := http.StatusOK
		switch {
		case err == nil:
		case errors.As(err, new(*Refused)):
			code, s.Problem = http.StatusConflict, err.Error()
		case ctx.Err() != nil:
			code, s.Problem = http.StatusGatewayTimeout, fmt.Sprintf("not drained within %v", within)
		default:
			code, s.Problem = http.StatusServiceUnavailable, err.Error()
		}
		reply(w, code, s)
	})
}

// drainTime is how long a request waits.
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
