package middleware

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/keystead/keystead/client"
)

const (
	idempotencyField = "Idempotency-Key"
	// replayedField marks an answer that was stored.
	replayedField = "Idempotent-Replayed"

	// maxIdempotencyKey is the longest key of a request, in bytes.
	maxIdempotencyKey = 255
	// DefaultMaxRequest is the longest body of a request that a fingerprint is made of.
	DefaultMaxRequest = 1 << 20
	// DefaultOnceTimeout is how long a request waits for Keystead, which needs about two seconds
	// to replace a node that died.
	DefaultOnceTimeout = 5 * time.Second
)

// storedHeaders are the fields of an answer that are stored in any case.
var storedHeaders = []string{"Content-Type", "Content-Encoding", "Content-Language", "Location", "ETag", "Last-Modified", "Link"}

// Idempotency is how requests under an Idempotency-Key are handled.
type Idempotency struct {
	// Scope is whose keys they are, such as Header("X-Tenant", …): who guesses a key of another
	// scope gets nothing of it. Required. A request whose scope is "" goes to the handler as if
	// it had no key.
	Scope HTTPKey
	// Required refuses requests without a key: 400. Default: they go to the handler.
	Required bool
	// Methods are those that are handled; others go to the handler. Default POST and PATCH.
	Methods []string
	// Headers are further fields of answers that are stored, such as "X-Request-Cost". Set-Cookie
	// is better left out: it is for one client.
	Headers []string
	// MaxRequest is the longest body of a request, in bytes; a longer one is refused: 413.
	// Default DefaultMaxRequest.
	MaxRequest int64
	// TTL is how long a request that is handled keeps its key if this process dies. Default
	// client.DefaultLockTTL.
	TTL time.Duration
	// Keep is how long answers are kept. Default client.DefaultKeep.
	Keep time.Duration
	// Wait is how long a request waits for another one under its key, instead of 409 at once.
	// Default 0.
	Wait time.Duration
	// Timeout is how long a request waits for Keystead beyond that. Default DefaultOnceTimeout.
	Timeout time.Duration
	// OnFailure is what is done with a request while Keystead does not answer: FailClosed refuses
	// it, 503; FailOpen hands it to the handler, which may do it for a second time. Default
	// FailClosed.
	OnFailure OnFailure
	// Log is told of answers that could not be stored. Default: none.
	Log *slog.Logger
}

// idempotent handles requests.
type idempotent struct {
	Idempotency
	once client.Once
	next http.Handler
}

// HTTP returns the middleware that hands a request under an Idempotency-Key to the handler once, and
// answers all further ones as the handler has, as draft-ietf-httpapi-idempotency-key-header says
// (revision 06):
//
//   - the first one goes to the handler. Its answer is stored before it is sent, with its status,
//     some of its fields and its body, of 60 KiB in all;
//   - another one with the same method, path, query and body is answered with what was stored,
//     marked by "Idempotent-Replayed: true"; with another one, 422;
//   - while the first one is handled: 409, with Retry-After;
//   - a key that is none, or is missing and required: 400.
//
// Not stored are answers from 500 on: the handler has failed, so that a retry goes to it again; it
// must not fail so after it has had an effect that bears no repetition. Nor is it stored that a
// handler returned without a word when its context had ended: a retry goes to it when the lease of
// the key is over. Of an answer that is too long is stored that there was one: it is sent, and a
// retry is answered with 409, for handling it again would have its effect again.
//
// The handler's context ends when the key is lost; FencingToken has the token that what it
// changes may check. The answer is held back until it is stored: nothing of it is streamed.
func (o Idempotency) HTTP(once client.Once) (func(next http.Handler) http.Handler, error) {
	o.TTL, o.Keep, o.Timeout = cmp.Or(o.TTL, client.DefaultLockTTL), cmp.Or(o.Keep, client.DefaultKeep), cmp.Or(o.Timeout, DefaultOnceTimeout)
	o.MaxRequest, o.OnFailure = cmp.Or(o.MaxRequest, DefaultMaxRequest), cmp.Or(o.OnFailure, FailClosed)
	if len(o.Methods) == 0 {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Scope == nil:
		return nil, errors.New("middleware: Scope is missing: say whose the keys are, or one client can read the answers to another")
	case o.OnFailure != FailOpen && o.OnFailure != FailClosed:
		return nil, errors.New("middleware: OnFailure is neither FailOpen nor FailClosed")
	case o.MaxRequest < 0 || o.Wait < 0 || o.Timeout < 0:
		return nil, errors.New("middleware: MaxRequest, Wait or Timeout is negative")
	}
	return func(next http.Handler) http.Handler { return &idempotent{o, once, next} }, nil
}

// ServeHTTP implements http.Handler.
func (h *idempotent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	values := r.Header.Values(idempotencyField)
	scope := ""
	if handled := slices.Contains(h.Methods, r.Method); handled {
		scope = h.Scope(r)
	}
	switch {
	case scope == "" || len(values) == 0 && !h.Required:
		h.next.ServeHTTP(w, r)
		return
	case len(values) == 0:
		refuse(w, http.StatusBadRequest, "This request needs an Idempotency-Key", 0)
		return
	}
	key, ok := idempotencyKey(values)
	if !ok {
		refuse(w, http.StatusBadRequest, "The Idempotency-Key is none: send one string of at most 255 characters", 0)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.MaxRequest))
	if err != nil {
		status, why := http.StatusBadRequest, "The body could not be read"
		if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
			status, why = http.StatusRequestEntityTooLarge, "The body is too long for a request with an Idempotency-Key"
		}
		refuse(w, status, why, 0)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.handle(w, r, fit(fmt.Sprintf("%d:%s:%s", len(scope), scope, key)), printOf(r, body))
}

// handle hands the request to the handler, or answers it with what is stored.
func (h *idempotent) handle(w http.ResponseWriter, r *http.Request, key, print string) {
	asking, cancel := context.WithTimeout(r.Context(), h.Wait+h.Timeout)
	b, err := h.once.Begin(asking, key, print, client.TTL(h.TTL), client.Keep(h.Keep), client.Wait(h.Wait))
	cancel()
	switch {
	case errors.Is(err, client.ErrOnceBusy):
		refuse(w, http.StatusConflict, "A request with this Idempotency-Key is being handled", time.Second)
	case errors.Is(err, client.ErrOtherFingerprint):
		refuse(w, http.StatusUnprocessableEntity, "This Idempotency-Key was used for another request", 0)
	case err != nil && h.OnFailure == FailOpen && r.Context().Err() == nil:
		h.Log.Warn("a request is handled although it may have been handled before: Keystead does not answer", "err", err)
		h.next.ServeHTTP(w, r)
	case err != nil:
		refuse(w, http.StatusServiceUnavailable, "Whether this request was handled before cannot be learnt at the moment", pause)
	case b.Turn == nil:
		replay(w, b.Result)
	default:
		h.first(w, r, b.Turn)
	}
}

// first hands the request to the handler, and stores its answer.
func (h *idempotent) first(w http.ResponseWriter, r *http.Request, turn *client.Turn) {
	defer turn.Leave() // if the handler panics, nobody knows what it has done
	ctx, stop := context.WithCancelCause(context.WithValue(turn.Context(), tokenKey{}, turn.Token()))
	defer stop(nil)
	defer context.AfterFunc(r.Context(), func() { stop(context.Cause(r.Context())) })()
	rec := &recorder{to: w, header: http.Header{}}
	h.next.ServeHTTP(rec, r.WithContext(ctx))
	//guard:middleware-given-up-not-stored
	if rec.status == 0 && ctx.Err() != nil {
		// Nobody knows what it has done before it gave up: the turn ends with its lease.
		refuse(w, http.StatusServiceUnavailable, "The request was given up", pause)
		return
	}
	after := context.WithoutCancel(r.Context())
	//guard:middleware-failed-not-stored
	if rec.status >= http.StatusInternalServerError {
		if err := turn.Abandon(after); err != nil {
			h.Log.Warn("the key of a request that failed is free when its lease ends", "err", err)
		}
		rec.send()
		return
	}
	if err := turn.Complete(after, rec.result(h.Headers)); err != nil {
		h.Log.Warn("an answer could not be stored: the request may be handled again", "err", err)
	}
	rec.send()
}

// tokenKey is where the context of a handler has the fencing token.
type tokenKey struct{}

// FencingToken returns the token under which a request is handled, 0 if it has no Idempotency-Key: it
// is greater than those of all former attempts, so that what the handler changes can refuse these.
func FencingToken(ctx context.Context) uint64 {
	token, _ := ctx.Value(tokenKey{}).(uint64)
	return token
}

// idempotencyKey returns the key in the fields of a request: a string of a structured field, or, as
// most clients send it, the bare text.
func idempotencyKey(values []string) (string, bool) {
	key := strings.TrimSpace(values[0])
	if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' {
		key = key[1 : n-1]
		if strings.ContainsAny(strings.NewReplacer(`\\`, "", `\"`, "").Replace(key), `"\`) {
			return "", false
		}
		key = strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(key)
	}
	for _, c := range []byte(key) {
		if c < ' ' || c > '~' {
			return "", false
		}
	}
	return key, len(values) == 1 && key != "" && len(key) <= maxIdempotencyKey
}

// printOf returns what tells a request from others under its key.
func printOf(r *http.Request, body []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d %s %d %s %d ", len(r.Method), r.Method, len(r.URL.RequestURI()), r.URL.RequestURI(), len(body))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}

// stored is what stands before the body of an answer that is stored.
type stored struct {
	Status int         `json:"status"`
	Header http.Header `json:"header,omitempty"`
	Size   int         `json:"size"`           // of the body
	Long   bool        `json:"long,omitempty"` // the body is too long, and missing
}

// recorder holds an answer back until it is stored. One that is too long to be goes on at once.
type recorder struct {
	to     http.ResponseWriter
	header http.Header
	status int
	body   []byte
	size   int
	sent   bool
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header {
	if r.sent {
		return r.to.Header()
	}
	return r.header
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK {
		r.status = status
	}
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.size += len(b); r.sent {
		return r.to.Write(b)
	}
	if r.size <= client.MaxResult {
		r.body = append(r.body, b...)
		return len(b), nil
	}
	r.send()
	return r.to.Write(b)
}

// send sends what was held back.
func (r *recorder) send() {
	if r.sent {
		return
	}
	r.sent = true
	r.WriteHeader(http.StatusOK) // of a handler that said nothing
	for name, values := range r.header {
		r.to.Header()[name] = values
	}
	r.to.WriteHeader(r.status)
	_, _ = r.to.Write(r.body) // fails when the client is gone
}

// result returns what is stored of the answer.
func (r *recorder) result(further []string) []byte {
	r.WriteHeader(http.StatusOK)
	head := stored{Status: r.status, Header: http.Header{}, Size: r.size}
	for _, name := range slices.Concat(storedHeaders, further) {
		if values := r.header.Values(name); len(values) > 0 {
			head.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	for {
		text, _ := json.Marshal(head) // of texts and numbers: it does not fail
		text = append(text, '\n')
		switch {
		case !head.Long && !r.sent && len(text)+len(r.body) <= client.MaxResult:
			return append(text, r.body...)
		case head.Long && len(text) <= client.MaxResult:
			return text
		case head.Long:
			head.Header = nil
		}
		head.Long = true
	}
}

// replay answers a request with what was stored.
func replay(w http.ResponseWriter, result []byte) {
	var head stored
	text, body, _ := bytes.Cut(result, []byte("\n"))
	switch err := json.Unmarshal(text, &head); {
	case err != nil || head.Status < http.StatusOK:
		refuse(w, http.StatusUnprocessableEntity, "This Idempotency-Key was used for something else", 0)
		return
	case head.Long:
		refuse(w, http.StatusConflict, fmt.Sprintf("The request was handled, with status %d; its answer of %d bytes was too long to be kept", head.Status, head.Size), 0)
		return
	}
	for name, values := range head.Header {
		w.Header()[name] = values
	}
	w.Header().Set(replayedField, "true")
	w.WriteHeader(head.Status)
	_, _ = w.Write(body) // fails when the client is gone
}

// refuse answers with a problem (RFC 9457).
func refuse(w http.ResponseWriter, status int, title string, after time.Duration) {
	if after > 0 {
		w.Header().Set(retryAfterField, retryAfter(after))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct { // fails when the client is gone
		Title  string `json:"title"`
		Status int    `json:"status"`
	}{title, status})
}
