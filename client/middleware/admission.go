package middleware

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/limitfield"
)

// Admitter admits requests by an admission policy, which says what each of them needs by its fields. It may be used for
// several servers.
type Admitter struct {
	reach
	admission client.Admission
	policy    string
	hold      time.Duration
}

// Says is what a request is, and costs, by the names that the policy has for it. A value of more than 512 bytes, or that is
// not UTF-8, is replaced by its SHA-256.
type Says struct {
	Fields  map[string]string
	Amounts map[string]uint64
}

// NewAdmitter prepares an admitter by an admission policy. With a hold, what a request is charged is reserved for its
// time, however long that is: the hold is settled when the handler returns, also if it panics or the caller has left, and
// ends by itself that long after the process has died. 0 = it is spent at once. OnFailure and OnRefusal are
// FailOpen or FailClosed; the default of OnRefusal is FailClosed.
func NewAdmitter(a client.Admission, policy string, hold time.Duration, cfg Config) (*Admitter, error) {
	if err := cfg.complete(true); err != nil {
		return nil, err
	}
	switch {
	case policy == "":
		return nil, errors.New("middleware: the admission policy has no name")
	case hold != 0 && hold < time.Second:
		return nil, fmt.Errorf("middleware: a hold of %s: choose 1s or more, or 0 to spend at once", hold)
	}
	return &Admitter{reach: reach{cfg: cfg, what: policy, began: time.Now()}, admission: a, policy: policy, hold: hold}, nil
}

// admittedKey is what the context of a request has its admission under.
type admittedKey struct{}

// Admitted returns the admission of the request that ctx is of, so that its handler can Settle what it has really cost, or
// Release it. What it has not settled when it returns has cost what was reserved. It is nil if the request was let
// through without an admission.
func Admitted(ctx context.Context) *client.Admitted {
	h, _ := ctx.Value(admittedKey{}).(*client.Admitted)
	return h
}

// admit asks whether a request may run. What is returned is not nil if there is an answer.
func (a *Admitter) admit(ctx context.Context, says Says) (verdict, *client.Admitted) {
	if !a.mayAsk() {
		return a.alone(a.cfg.OnFailure), nil
	}
	call, cancel := a.within(ctx)
	defer cancel()
	fields := make(map[string]string, len(says.Fields))
	for name, v := range says.Fields {
		if fields[name] = v; v != "" {
			fields[name] = fit(v)
		}
	}
	h, err := a.admission.Admit(call, client.Admit{Policy: a.policy, Fields: fields, Amounts: says.Amounts, Hold: a.hold, Keep: a.hold != 0})
	switch {
	case err == nil:
		a.answered()
		return verdict{allowed: true, limited: true}, h
	case errors.Is(err, client.ErrNotAdmitted):
		a.answered()
		return verdict{limited: true, decision: client.Decision{RetryAfter: h.RetryAfter}}, h
	//guard:middleware-admission-refusal
	case refused(err):
		a.cfg.Log.Warn("Keystead cannot decide this request; it is decided without it", "policy", a.policy, "fail", a.cfg.OnRefusal, "err", err)
		a.answered()
		return a.alone(a.cfg.OnRefusal), nil
	}
	a.failure(err)
	return a.alone(a.cfg.OnFailure), nil
}

func (a *Admitter) alone(how OnFailure) verdict { return verdict{allowed: how == FailOpen} }

// settle ends the hold of a request, unless its handler has, whatever has become of its caller.
func (a *Admitter) settle(ctx context.Context, h *client.Admitted) {
	if h == nil || h.Hold() == "" {
		return
	}
	call, cancel := a.within(ctx)
	defer cancel()
	if _, err := h.Settle(call); err != nil && !errors.Is(err, client.ErrHoldUnknown) {
		a.cfg.Log.Warn("a hold was not settled; it ends with its time", "policy", a.policy, "key", h.Key(), "hold", h.Hold(), "err", err)
	}
}

// fields returns the fields that tell what is left of the demand that has the smallest share left, under the name of the
// policy: what demands are called may tell who others are.
func (a *Admitter) fields(h *client.Admitted) (policy, left string, ok bool) {
	if h == nil {
		return "", "", false
	}
	var least *client.DemandResult
	for i := range h.Demands {
		d := &h.Demands[i]
		if d.Capacity == 0 {
			continue
		}
		if least == nil || tighter(d, least) {
			least = d
		}
	}
	if least == nil {
		return "", "", false
	}
	until := limitfield.Left{Name: a.policy, Remaining: least.Remaining}
	if until.Known = !h.OK && h.RetryAfter > 0; until.Known {
		until.Until = h.RetryAfter
	}
	return string(limitfield.Policy{Name: a.policy, Quota: least.Capacity}.Append(nil)), string(until.Append(nil)), true
}

// tighter reports whether a demand has a smaller share left than another one, refused ones first.
func tighter(d, than *client.DemandResult) bool {
	if d.Refused != than.Refused {
		return d.Refused
	}
	return float64(d.Remaining)/float64(d.Capacity) < float64(than.Remaining)/float64(than.Capacity)
}

// HTTP returns the middleware: what it is given handles the requests that are admitted.
func (a *Admitter) HTTP(says func(*http.Request) Says) func(next http.Handler) http.Handler {
	name := string(limitfield.Quote(nil, a.policy))
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			v, h := a.admit(r.Context(), says(r))
			if policy, left, ok := a.fields(h); ok {
				w.Header().Add(policyFieldName, policy)
				w.Header().Add(rateLimitField, left)
			}
			switch {
			case v.allowed:
				//guard:middleware-settles
				defer a.settle(r.Context(), h)
				next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), admittedKey{}, h)))
			case v.limited:
				w.Header().Set(retryAfterField, retryAfter(v.decision.RetryAfter))
				problem(w, name, http.StatusTooManyRequests, "quota-exceeded", "Too many requests: the limit is used up")
			default:
				w.Header().Set(retryAfterField, retryAfter(pause))
				problem(w, name, http.StatusServiceUnavailable, "temporary-reduced-capacity", "The limit of requests cannot be checked at the moment")
			}
		})
	}
}

// Unary returns the interceptor of unary calls.
func (a *Admitter) Unary(says func(ctx context.Context, method string) Says) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		h, err := a.call(ctx, says(ctx, info.FullMethod), func(md metadata.MD) error { return grpc.SetHeader(ctx, md) })
		if err != nil {
			return nil, err
		}
		defer a.settle(ctx, h)
		return next(context.WithValue(ctx, admittedKey{}, h), req)
	}
}

// Stream returns the interceptor of streams, which are admitted when they begin, and settled when they end.
func (a *Admitter) Stream(says func(ctx context.Context, method string) Says) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		ctx := ss.Context()
		h, err := a.call(ctx, says(ctx, info.FullMethod), ss.SetHeader)
		if err != nil {
			return err
		}
		defer a.settle(ctx, h)
		return next(srv, admittedStream{ss, context.WithValue(ctx, admittedKey{}, h)})
	}
}

// admittedStream is a stream whose context has its admission.
type admittedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s admittedStream) Context() context.Context { return s.ctx }

// call admits a call, and returns the error that it is refused with.
func (a *Admitter) call(ctx context.Context, says Says, set func(metadata.MD) error) (*client.Admitted, error) {
	v, h := a.admit(ctx, says)
	md := metadata.MD{}
	if policy, left, ok := a.fields(h); ok {
		md.Set(policyFieldName, policy)
		md.Set(rateLimitField, left)
	}
	return h, refusal(&v, string(limitfield.Quote(nil, a.policy)), v.decision.RetryAfter, md, set)
}
