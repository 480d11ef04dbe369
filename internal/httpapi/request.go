package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
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
	// Browsers tell where a request comes from. A page anywhere could have the browser of
	// somebody who reaches this port send calls; none of ours does.
	if !get && (r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "") {
		return &problem{Status: http.StatusForbidden, Detail: "the request comes from a web page, and those are refused",
			Hint: "call from a server, or put a proxy before the node that lets your pages in"}
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

// read reads a request out of a query or a body.
func (s *Server) read(w http.ResponseWriter, r *http.Request, t *route, m protoreflect.Message) error {
	if r.Method != http.MethodPost {
		return readQuery(t.asked, r.URL.RawQuery, m)
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
	announced := r.ContentLength
	if announced < 0 {
		announced = t.most
	}
	defer s.bodies.Add(-announced)
	if s.bodies.Add(announced) > maxBodies {
		return &failure.Error{Reason: failure.Overloaded, RetryAfter: 100 * time.Millisecond,
			Message: "as many bytes of requests are under way as this node allows; nothing happened", Hint: "try again later, or send smaller batches"}
	}
	buf := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buf)
	c := http.NewResponseController(w)
	body, err := readBody(r, *buf, t.most)
	if err != nil {
		_ = c.SetReadDeadline(time.Now()) // nobody waits for the rest
		return err
	}
	// Off again: where it stood, it would end a call that waits.
	//guard:http-waits time.Time{} -> time.Now().Add(s.bodyTimeout)
	_ = c.SetReadDeadline(time.Time{})
	return readMessage(t.asked, body, m)
}

// readBody reads a body of at most so many bytes, into buf if it fits.
func readBody(r *http.Request, buf []byte, most int64) (body []byte, err error) {
	if n := r.ContentLength; n >= 0 {
		if n > int64(len(buf)) {
			buf = make([]byte, n)
		}
		body = buf[:n]
		_, err = io.ReadFull(r.Body, body)
	} else if body, err = io.ReadAll(io.LimitReader(r.Body, most+1)); err == nil && int64(len(body)) > most {
		return nil, tooLarge(most)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, &failure.Error{Reason: failure.Deadline, Message: fmt.Sprintf("the body did not arrive within %s; nothing happened", bodyTimeout)}
	}
	if err != nil {
		return nil, failure.Invalidf("", "the body did not arrive whole: %s", err)
	}
	return body, nil
}

func tooLarge(most int64) error {
	return &failure.Error{Reason: failure.TooLarge, Message: fmt.Sprintf("the body may have %d bytes, and has more", most), Hint: "send less at once"}
}

// patient is a request that says how long it may wait.
type patient interface{ GetWaitNs() int64 }

// callContext returns the context of a call: it ends with the connection, and when the time
// of the call is over.
func callContext(r *http.Request, request proto.Message) (context.Context, context.CancelFunc, error) {
	timeout := DefaultTimeout
	if p, ok := request.(patient); ok {
		timeout += time.Duration(min(max(p.GetWaitNs(), 0), int64(MaxTimeout-DefaultTimeout)))
	}
	if text := r.Header.Get(timeoutHeader); text != "" {
		d, err := rate.ParseDuration(text)
		if err != nil || d < minTimeout || d > MaxTimeout {
			return nil, nil, &problem{Status: http.StatusBadRequest, Reason: "INVALID",
				Detail: fmt.Sprintf("the header %s is %q: choose %s to 25h", timeoutHeader, text, minTimeout), Hint: "write it as 2s, 250ms or 1m30s"}
		}
		timeout = d
	}
	ctx := r.Context()
	if md := passed(r.Header); md != nil {
		ctx = metadata.NewIncomingContext(ctx, md)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, cancel, nil
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
