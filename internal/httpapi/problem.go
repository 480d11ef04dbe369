package httpapi

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/failure"
)

// problem is an error as HTTP has it (RFC 9457).
type problem struct {
	Title      string `json:"title"` // that of the status
	Status     int    `json:"status"`
	Detail     string `json:"detail"`                // what went wrong
	Reason     string `json:"reason,omitempty"`      // why, for machines
	Hint       string `json:"hint,omitempty"`        // what to do about it
	Field      string `json:"field,omitempty"`       // at fault
	RetryAfter string `json:"retry_after,omitempty"` // when trying again helps: "0.25s"
	Owner      string `json:"owner,omitempty"`       // of NOT_OWNER: the node that owns the key,
	OwnerAddr  string `json:"owner_addr,omitempty"`  // where its gRPC is,
	Epoch      string `json:"epoch,omitempty"`       // and the epoch that says so

	retryAfter time.Duration
}

const problemType = "application/problem+json"

// byReason are statuses that the gRPC code does not decide alone.
var byReason = map[string]int{
	"KIND_MISMATCH":     http.StatusConflict,
	"REQUEST_TOO_OLD":   http.StatusConflict,
	"REQUEST_ID_REUSED": http.StatusUnprocessableEntity, // as the draft on Idempotency-Key has it
	"OTHER_FINGERPRINT": http.StatusUnprocessableEntity, // … and of a key's other request
	"LAST_NODE":         http.StatusConflict,
	"TOO_FEW_LEFT":      http.StatusConflict,
	"NOT_OWNER":         http.StatusMisdirectedRequest,
	"STORE_FULL":        http.StatusInsufficientStorage,
	"TOO_LARGE":         http.StatusRequestEntityTooLarge,
}

// statusCanceled is what proxies log for a client that has closed its request. Only those
// get it that have closed their connection for sending alone.
const statusCanceled = 499

// titleOf returns the name of a status.
func titleOf(code int) string {
	if code == statusCanceled {
		return "Client Closed Request"
	}
	return http.StatusText(code)
}

// byCode are the statuses of gRPC's codes. RESOURCE_EXHAUSTED is not 429: nobody's quota
// is used up, the node has no room.
var byCode = map[codes.Code]int{
	codes.Canceled:           statusCanceled,
	codes.InvalidArgument:    http.StatusBadRequest,
	codes.DeadlineExceeded:   http.StatusGatewayTimeout,
	codes.NotFound:           http.StatusNotFound,
	codes.AlreadyExists:      http.StatusConflict,
	codes.PermissionDenied:   http.StatusForbidden,
	codes.Unauthenticated:    http.StatusUnauthorized,
	codes.ResourceExhausted:  http.StatusServiceUnavailable,
	codes.FailedPrecondition: http.StatusConflict,
	codes.Aborted:            http.StatusConflict,
	codes.OutOfRange:         http.StatusBadRequest,
	codes.Unimplemented:      http.StatusNotImplemented,
	codes.Unavailable:        http.StatusServiceUnavailable,
	// Not one that clients and proxies repeat by themselves: UNKNOWN may have been done.
	codes.Unknown:  http.StatusInternalServerError,
	codes.Internal: http.StatusInternalServerError,
	codes.DataLoss: http.StatusInternalServerError,
}

// own are the reasons of errors that are found before the call.
var own = map[failure.Reason]struct {
	reason string
	status int
}{
	failure.Invalid:    {"INVALID", http.StatusBadRequest},
	failure.TooLarge:   {"TOO_LARGE", http.StatusRequestEntityTooLarge},
	failure.Overloaded: {"OVERLOADED", http.StatusServiceUnavailable},
	failure.Deadline:   {"GAVE_UP", http.StatusRequestTimeout},
}

// problemOf returns an error as HTTP has it.
func problemOf(err error) *problem {
	var p *problem
	var bad *failure.Error
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &bad):
		o := own[bad.Reason]
		p = &problem{Status: o.status, Reason: o.reason, Detail: bad.Error(), Hint: bad.Hint, Field: bad.Field}
		return p.retry(bad.RetryAfter)
	}
	return problemOfStatus(status.Convert(err))
}

func problemOfStatus(st *status.Status) *problem {
	p := &problem{Status: byCode[st.Code()], Detail: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			p.Reason, p.Hint = d.Reason, inJSON(d.Metadata["hint"])
			p.Owner, p.OwnerAddr, p.Epoch = d.Metadata["owner"], d.Metadata["owner_addr"], d.Metadata["epoch"]
		case *errdetails.BadRequest:
			for _, v := range d.FieldViolations {
				p.Field = inJSON(v.Field)
			}
		case *errdetails.RetryInfo:
			p.retry(d.RetryDelay.AsDuration())
		}
	}
	if p.Reason == "UNSPECIFIED" {
		p.Reason = ""
	}
	if s := byReason[p.Reason]; s != 0 {
		p.Status = s
	}
	if p.Status == 0 {
		p.Status = http.StatusInternalServerError
	}
	p.Detail = inJSON(p.Detail)
	return p
}

// nanoseconds are names of fields that have another name in JSON.
var nanoseconds = regexp.MustCompile(`\b([a-z][a-z_]*)_ns\b`)

// inJSON returns a text of the API with the names that fields have in JSON.
func inJSON(text string) string {
	if !strings.Contains(text, "_ns") {
		return text
	}
	return nanoseconds.ReplaceAllString(text, "$1")
}

func (p *problem) retry(after time.Duration) *problem {
	p.retryAfter = after
	if after > 0 {
		p.RetryAfter = string(appendSeconds(nil, int64(after)))
	}
	return p
}

// Error implements error.
func (p *problem) Error() string { return p.Detail }

// write answers with the problem.
func (p *problem) write(w http.ResponseWriter) {
	p.Title = titleOf(p.Status)
	h := w.Header()
	h.Set("Content-Type", problemType)
	h.Set("Cache-Control", "no-store")
	if p.retryAfter > 0 { // in whole seconds, rounded up
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(p.retryAfter.Seconds())), 10))
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}
