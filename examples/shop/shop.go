// Package shop is the back of a small web shop that leans on Keystead for all that must
// be right with many of its processes at once: a limit for each tenant, stock that is
// never sold twice, orders that may be sent again, and a nightly job that runs once. The
// shop keeps nothing itself, so there may be as many of its processes as are wanted.
//
//	PUT  /stock/{sku}?items=100   sets what there is, if nothing is known yet
//	POST /orders/{sku}            sells one; with an Idempotency-Key it is sold once
//	GET  /stock/{sku}             what is left
package shop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/middleware"
)

// Shop answers requests, and runs a job.
type Shop struct {
	stock client.Counter
	done  client.Counter // the nights whose job was begun
	jobs  client.Lock
	api   *middleware.Limiter
}

// New returns a shop whose tenants may send perMinute requests a minute each.
func New(c *client.Client, perMinute uint64) (*Shop, error) {
	// Without an answer customers are served: a shop that is open is worth more than a limit.
	api, err := middleware.New(c.Limit("requests", client.PerMinute(perMinute)), middleware.Config{OnFailure: middleware.FailOpen})
	if err != nil {
		return nil, err
	}
	return &Shop{stock: c.Counter("stock"), done: c.Counter("job-done"), jobs: c.Lock("job"), api: api}, nil
}

// Handler returns what serves the shop's requests.
func (s *Shop) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /stock/{sku}", s.supply)
	mux.HandleFunc("POST /orders/{sku}", s.order)
	mux.HandleFunc("GET /stock/{sku}", s.left)
	return s.api.HTTP(middleware.HTTP{Key: middleware.Header("Tenant", middleware.ClientIP(middleware.Proxies{}))})(mux)
}

// supply sets the stock of what was never sold. A second one changes nothing.
func (s *Shop) supply(w http.ResponseWriter, r *http.Request) {
	items, err := strconv.ParseInt(r.FormValue("items"), 10, 64)
	if err != nil || items < 0 {
		http.Error(w, "items: say how many there are", http.StatusBadRequest)
		return
	}
	v, err := s.stock.CompareAndSet(r.Context(), r.PathValue("sku"), items, 0) // 0: there is none yet
	answer(w, v.Current, err)
}

// order sells one. A refusal is an answer: there is none left.
func (s *Shop) order(w http.ResponseWriter, r *http.Request) {
	opts := []client.CounterOption{client.AtLeast(0)}
	if key := r.Header.Get("Idempotency-Key"); key != "" {
		opts = append(opts, client.IdempotencyKey(key)) // the browser may send the order again
	}
	v, err := s.stock.Add(r.Context(), r.PathValue("sku"), -1, opts...)
	if err == nil && !v.Applied {
		http.Error(w, "sold out", http.StatusConflict)
		return
	}
	answer(w, v.Value, err)
}

func (s *Shop) left(w http.ResponseWriter, r *http.Request) {
	v, err := s.stock.Get(r.Context(), r.PathValue("sku"))
	answer(w, v.Value, err)
}

// answer writes a number, or why there is none. The client has retried by itself until the
// request's deadline: what is not known then is not known.
func answer(w http.ResponseWriter, n int64, err error) {
	switch {
	case errors.Is(err, client.ErrInvalid), errors.Is(err, client.ErrRequestIDReused):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		_, _ = fmt.Fprintln(w, n)
	}
}

// Nightly runs a job for a night, in one of all processes that ask for it, once. It
// reports whether it was this one. The job's context ends before its lock is lost, and what
// it writes to should refuse a token below the highest that it has seen.
func (s *Shop) Nightly(ctx context.Context, night string, job func(ctx context.Context, token uint64) error) (bool, error) {
	held, err := s.jobs.TryAcquire(ctx, "nightly")
	if errors.Is(err, client.ErrLockHeld) {
		return false, nil // another process is at it
	}
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = held.Release(ctx) // else it ends by itself, with its lease
	}()
	first, err := s.done.Add(ctx, night, 1, client.AtMost(1), client.IdleTTL(48*time.Hour))
	if err != nil || !first.Applied {
		return false, err
	}
	return true, job(held.Context(), held.Token())
}
