package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"mime"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/rate"
)

// Headers of requests.
const (
	timeoutHeader     = "Keystead-Timeout"
	idempotencyHeader = "Idempotency-Key"
	// passedHeaders begin the headers that calls get as gRPC metadata.
	passedHeaders = "X-Keystead-"
)

const jsonType = "application/json"

// How long a call may take: by header, or DefaultTimeout and what it may wait.
const (
	DefaultTimeout = 5 * time.Second
	MaxTimeout     = 25 * time.Hour // more than the longest wait
	minTimeout     = time.Millisecond
)

// allows returns why a request is not one of the route's.
func (t *route) allows(w http.ResponseWriter, r *http.Request) error {
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case get && t.reads, r.Method == http.MethodPost:
	case t.reads:
		w.Header().Set("Allow", "GET, HEAD, POST")
		return &problem{Status: http.StatusMethodNotAllowed, Detail: "GET or POST is the method of " + t.path}
	default:
		w.Header().Set("Allow", "POST")
		return &problem{Status: http.StatusMethodNotAllowed, Detail: "POST is the method of " + t.path, Hint: "curl -d '{…}' posts"}
	}
	if get {
		return nil
	}
	return readable(r.Header)
}

// readable returns why a body cannot be read. What curl -d says that it sends is taken for
// JSON, too.
func readable(h http.Header) error {
	if enc := h.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return &problem{Status: http.StatusUnsupportedMediaType, Detail: "the body is compressed (Content-Encoding " + enc + ")", Hint: "send it as it is"}
	}
	ct := h.Get("Content-Type")
	if ct == "" || ct == jsonType || ct == "application/x-www-form-urlencoded" {
		return nil
	}
	if kind, params, err := mime.ParseMediaType(ct); err == nil && (kind == jsonType || strings.HasSuffix(kind, "+json")) {
		if c := params["charset"]; c == "" || strings.EqualFold(c, "utf-8") {
			return nil
		}
	}
	return &problem{Status: http.StatusUnsupportedMediaType, Detail: fmt.Sprintf("the body is %q", ct), Hint: "send " + jsonType}
}

// read reads a request out of a query or a body. It holds room for what it asks.
func (s *Server) read(w http.ResponseWriter, r *http.Request, t *route, m protoreflect.Message, held *room) error {
	if r.Method != http.MethodPost {
		if r.ContentLength != 0 {
			return &failure.Error{Reason: failure.Invalid, Message: "a GET has its request in the query of the URL, and this one has a body",
				Hint: "send the body by POST"}
		}
		items, err := readQuery(t.asked, r.URL.RawQuery, m)
		if err != nil {
			return err
		}
		return held.forItems(items)
	}
	if r.URL.RawQuery != "" {
		return &failure.Error{Reason: failure.Invalid, Message: "a POST has its request in the body, and this one has a query as well",
			Hint: "move the parameters into the body, as JSON"}
	}
	if r.ContentLength == 0 {
		return nil
	}
	if r.ContentLength > t.most {
		return tooLarge(t.most)
	}
	buf := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buf)
	b := body{room: held, from: r, conn: http.NewResponseController(w), end: time.Now().Add(s.bodyTimeout), most: t.most, data: (*buf)[:0]}
	if err := b.readAll(); err != nil {
		_ = b.conn.SetReadDeadline(time.Now()) // nobody waits for the rest
		return err
	}
	// Off again: where it stood, it would end a call that waits.
	//guard:http-waits time.Time{} -> time.Now().Add(s.bodyTimeout)
	_ = b.conn.SetReadDeadline(time.Time{})
	items, err := readMessage(t.asked, b.data, m)
	if err != nil {
		return err
	}
	return held.forItems(items)
}

// patient is a request that says how long it may wait.
type patient interface{ GetWaitNs() int64 }

// callContext returns the context of a call: it ends with the connection, and when the time
// of the call is over. One that may take longer than DefaultTimeout also ends when its caller
// sends more: what would come after that, its end, is not seen.
func callContext(r *http.Request, request proto.Message) (context.Context, context.CancelFunc, error) {
	timeout := DefaultTimeout
	if p, ok := request.(patient); ok {
		timeout += time.Duration(min(max(p.GetWaitNs(), 0), int64(MaxTimeout-DefaultTimeout)))
	}
	if texts := r.Header.Values(timeoutHeader); len(texts) > 0 {
		d, err := rate.ParseDuration(texts[0])
		if err != nil || len(texts) > 1 || d < minTimeout || d > MaxTimeout {
			return nil, nil, &problem{Status: http.StatusBadRequest, Reason: "INVALID",
				Detail: fmt.Sprintf("the header %s is %q: choose %s to 25h", timeoutHeader, shown(strings.Join(texts, ", ")), minTimeout), Hint: "write it once, as 2s, 250ms or 1m30s"}
		}
		timeout = d
	}
	ctx := r.Context()
	if md := passed(r.Header); md != nil {
		ctx = metadata.NewIncomingContext(ctx, md)
	}
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok || timeout <= DefaultTimeout {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		return ctx, cancel, nil
	}
	ctx, more := context.WithCancelCause(ctx)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	c.watch(more)
	return ctx, func() { c.unwatch(); cancel(); more(nil) }, nil
}

// whyCanceled returns the error of a call as its caller is told of it.
func whyCanceled(ctx context.Context, err error) error {
	if status.Code(err) != codes.Canceled || !errors.Is(context.Cause(ctx), errSentMore) {
		return err
	}
	return &problem{Status: http.StatusBadRequest, Reason: "INVALID", Detail: errSentMore.Error() + ", which cancelled it",
		Hint: "send the next request when the answer is there, or on another connection"}
}

// passed returns the headers that the call gets as metadata, nil if there are none.
func passed(h http.Header) (md metadata.MD) {
	for name, values := range h {
		if strings.HasPrefix(name, passedHeaders) {
			if md == nil {
				md = metadata.MD{}
			}
			md.Append(strings.ToLower(name), values...)
		}
	}
	return md
}

// quiet is where net/http says what callers do wrong: nowhere.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
