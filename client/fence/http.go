package fence

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
)

// Header is the header field with the fencing token of a request, in decimal.
const Header = "Keystead-Fencing-Token"

// Sign puts a token into the header of a request that is to be sent.
func Sign(h http.Header, token uint64) { h.Set(Header, strconv.FormatUint(token, 10)) }

// HTTP is which requests have to show a token, and how they are refused.
type HTTP struct {
	// Scope is what the lock of a request protects, by 1 to 512 bytes; "" = the request is
	// let in without a token. Default: one scope for all requests but those whose methods
	// only read (GET, HEAD, OPTIONS, TRACE). It should name what there is, and not whatever a
	// caller writes: each scope is remembered for good.
	Scope func(*http.Request) string
	// Refused answers a request that is not let in. Default: a problem of RFC 9457 with the
	// status that Status returns.
	Refused func(http.ResponseWriter, *http.Request, error)
}

// ErrNoToken is the error of a request without a token.
var ErrNoToken = errors.New("fence: the request has no fencing token in " + Header)

// HTTP returns the middleware: what it is given handles the requests that are let in. Their
// contexts end when a request under a greater token comes, which waits until the handler has
// returned; so what a handler leaves behind, in another goroutine say, is not protected.
func (g *Gate) HTTP(o HTTP) func(next http.Handler) http.Handler {
	if o.Scope == nil {
		o.Scope = unlessItReads
	}
	if o.Refused == nil {
		o.Refused = refuse
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name := o.Scope(r)
			if name == "" {
				next.ServeHTTP(w, r)
				return
			}
			token, err := tokenOf(r.Header)
			if err != nil {
				o.Refused(w, r, err)
				return
			}
			ctx, leave, err := g.Enter(r.Context(), name, token)
			if err != nil {
				o.Refused(w, r, err)
				return
			}
			defer leave()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// unlessItReads is the default of HTTP.Scope.
func unlessItReads(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return ""
	}
	return "all"
}

// tokenOf reads the token of a request.
func tokenOf(h http.Header) (uint64, error) {
	values := h.Values(Header)
	switch len(values) {
	case 0:
		return 0, ErrNoToken
	case 1:
	default:
		return 0, invalid("%s is there %d times", Header, len(values))
	}
	token, err := strconv.ParseUint(values[0], 10, 64)
	if err != nil {
		return 0, invalid("%s is %.40q, and not a number", Header, values[0])
	}
	return token, judge(token)
}

// Status returns the status of HTTP for an error of Enter: 412 for ErrStale, 428 for
// ErrNoToken, 400 for ErrInvalid, and 503 for what may be tried again.
func Status(err error) int {
	switch {
	case errors.Is(err, ErrStale):
		return http.StatusPreconditionFailed
	case errors.Is(err, ErrNoToken):
		return http.StatusPreconditionRequired
	case errors.Is(err, ErrInvalid):
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

var titles = map[int]string{
	http.StatusPreconditionFailed:   "The fencing token is older than one that has written: stop",
	http.StatusPreconditionRequired: "A fencing token is required in " + Header,
	http.StatusBadRequest:           "The fencing token or its scope cannot be one",
	http.StatusServiceUnavailable:   "The fencing token cannot be let in at the moment",
}

// refuse is the default of HTTP.Refused. The greatest token is not told: no caller may use it.
func refuse(w http.ResponseWriter, _ *http.Request, err error) {
	code := Status(err)
	w.Header().Set("Content-Type", "application/problem+json")
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(struct { // fails when the client is gone
		Title  string `json:"title"`
		Status int    `json:"status"`
	}{titles[code], code})
}
