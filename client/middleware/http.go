package middleware

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/keystead/keystead/client"
)

// HTTP is what of HTTP requests is limited, and how they are refused.
type HTTP struct {
	// Key is what a request is limited by. Default ClientIP(Proxies{}), the address that
	// the connection comes from. A key that is longer than 512 bytes, or is not UTF-8, is
	// replaced by its SHA-256.
	Key HTTPKey
	// Cost is how many tokens a request spends; 0 = it is not limited. Default 1.
	Cost func(*http.Request) uint64
	// Refused answers a request that is over the limit; Retry-After and the other fields
	// are set. Default: 429 with a problem of RFC 9457.
	Refused func(http.ResponseWriter, *http.Request, client.Decision)
}

// HTTP returns the middleware: what it is given handles the requests that are not over the
// limit.
func (l *Limiter) HTTP(o HTTP) func(next http.Handler) http.Handler {
	if o.Key == nil {
		o.Key = ClientIP(Proxies{})
	}
	if o.Cost == nil {
		o.Cost = func(*http.Request) uint64 { return 1 }
	}
	if o.Refused == nil {
		o.Refused = l.refused
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			v := l.decide(r.Context(), o.Key(r), o.Cost(r))
			if policy, left, ok := l.fields(&v); ok {
				// Several limits make a list of each field.
				w.Header().Add(policyFieldName, policy)
				w.Header().Add(rateLimitField, left)
			}
			switch {
			case v.allowed:
				next.ServeHTTP(w, r)
			case v.limited:
				w.Header().Set(retryAfterField, retryAfter(v.decision.RetryAfter))
				o.Refused(w, r, v.decision)
			default:
				w.Header().Set(retryAfterField, retryAfter(pause))
				problem(w, l.name, http.StatusServiceUnavailable, "temporary-reduced-capacity", "The limit of requests cannot be checked at the moment")
			}
		})
	}
}

func (l *Limiter) refused(w http.ResponseWriter, _ *http.Request, _ client.Decision) {
	problem(w, l.name, http.StatusTooManyRequests, "quota-exceeded", "Too many requests: the limit is used up")
}

// problem answers with a problem (RFC 9457) of those that the draft of the fields defines.
func problem(w http.ResponseWriter, name string, code int, what, title string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(struct { // fails when the client is gone
		Type     string   `json:"type"`
		Title    string   `json:"title"`
		Status   int      `json:"status"`
		Violated []string `json:"violated-policies"`
	}{"https://iana.org/assignments/http-problem-types#" + what, title, code, []string{strings.Trim(name, `"`)}})
}
