package replay

import (
	"context"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// calls makes the messages of a worker. They are used again and again: gRPC is
// through with a request when the call returns.
type calls struct {
	worker *worker
	ids    []commonpb.RequestId
	checks []limitpb.CheckRequest
	adds   []counterpb.AddRequest
	gets   []counterpb.GetRequest
}

// grow returns room for n values.
func grow[T any](room []T, n int) []T {
	if cap(room) < n {
		return make([]T, n)
	}
	return room[:n]
}

// check checks the limits of the open items of a batch, whose first has the
// given sequence.
func (c *calls) check(ctx context.Context, batch []*keyStat, open []int, first uint64, age time.Duration, opts []grpc.CallOption) ([]outcome, error) {
	cfg := &c.worker.run.cfg
	c.ids, c.checks = grow(c.ids, len(open)), grow(c.checks, len(open))
	req := &limitpb.BatchCheckRequest{Checks: make([]*limitpb.CheckRequest, len(open))}
	for j, i := range open {
		m := &c.checks[j]
		m.Key, m.Name = batch[i].key, cfg.Name
		m.Limit, m.PeriodNs, m.Burst = cfg.Limit, int64(cfg.Period), cfg.Burst
		m.Algorithm, m.Cost = cfg.Algorithm, cfg.Cost
		m.RequestId = c.worker.requestID(&c.ids[j], first+uint64(i), first+uint64(open[0]), age)
		req.Checks[j] = m
	}
	resp, err := cfg.Limits.BatchCheck(ctx, req, opts...)
	if err != nil {
		return nil, err
	}
	return outcomes(resp.Results, func(r *limitpb.CheckResponse) outcome { return outcome{yes: r.Allowed} }), nil
}

// add adds 1 to the counters of the open items of a batch, whose first has the
// given sequence.
func (c *calls) add(ctx context.Context, batch []*keyStat, open []int, first uint64, age time.Duration, opts []grpc.CallOption) ([]outcome, error) {
	cfg := &c.worker.run.cfg
	c.ids, c.adds = grow(c.ids, len(open)), grow(c.adds, len(open))
	req := &counterpb.BatchAddRequest{Adds: make([]*counterpb.AddRequest, len(open))}
	for j, i := range open {
		m := &c.adds[j]
		m.Key, m.Name, m.Delta, m.IdleTtlNs = batch[i].key, cfg.Name, 1, int64(c.worker.run.idleTTL)
		m.RequestId = c.worker.requestID(&c.ids[j], first+uint64(i), first+uint64(open[0]), age)
		req.Adds[j] = m
	}
	resp, err := cfg.Counters.BatchAdd(ctx, req, opts...)
	if err != nil {
		return nil, err
	}
	return outcomes(resp.Results, func(r *counterpb.AddResponse) outcome {
		if !r.Applied {
			return outcome{reason: trimmed(r.Refusal.String(), "REFUSAL_"), detail: "the add was refused"}
		}
		return outcome{yes: true}
	}), nil
}

// get reads the counters of the open keys.
func (c *calls) get(ctx context.Context, keys []*keyStat, open []int, opts []grpc.CallOption) ([]outcome, error) {
	cfg := &c.worker.run.cfg
	c.gets = grow(c.gets, len(open))
	req := &counterpb.BatchGetRequest{Gets: make([]*counterpb.GetRequest, len(open))}
	for j, i := range open {
		c.gets[j].Key, c.gets[j].Name = keys[i].key, cfg.Name
		req.Gets[j] = &c.gets[j]
	}
	resp, err := cfg.Counters.BatchGet(ctx, req, opts...)
	if err != nil {
		return nil, err
	}
	return outcomes(resp.Results, func(r *counterpb.GetResponse) outcome { return outcome{value: r.Value} }), nil
}

// outcomes returns those of the results of a batch; of is the outcome of an answer.
func outcomes[R interface {
	GetResponse() A
	GetError() *commonpb.Error
}, A comparable](results []R, of func(A) outcome) []outcome {
	out := make([]outcome, len(results))
	var none A
	for i, r := range results {
		if a := r.GetResponse(); a != none {
			out[i] = of(a)
		} else {
			out[i] = failure(r.GetError())
		}
	}
	return out
}

// retry is whether and when something that failed is to be tried again.
type retry struct {
	ok    bool
	after time.Duration // the server asks for so long a pause; 0 = it does not
	err   error         // what failed
	item  *outcome      // … if it was an item
}

// failure returns the outcome of an item that failed.
func failure(e *commonpb.Error) outcome {
	if e == nil {
		return outcome{reason: "NO_RESULT", detail: "the server sent neither an answer nor an error"}
	}
	o := outcome{reason: trimmed(e.Reason.String(), "REASON_"), detail: e.Message}
	if e.Reason == commonpb.Reason_REASON_UNSPECIFIED {
		o.reason = codes.Code(e.Code).String()
	}
	if e.Field != "" && !strings.HasPrefix(e.Message, e.Field) {
		o.detail = e.Field + ": " + o.detail
	}
	if e.Hint != "" {
		o.detail += "; " + e.Hint
	}
	switch e.Reason {
	case commonpb.Reason_REASON_UNAVAILABLE, commonpb.Reason_REASON_OUTCOME_UNKNOWN, commonpb.Reason_REASON_GAVE_UP:
		o.again.ok = true
	}
	if e.RetryAfterNs > 0 {
		o.again.ok, o.again.after = true, time.Duration(e.RetryAfterNs)
	}
	if o.again.ok {
		final := o
		final.again = retry{}
		o.again.item = &final
		o.again.err = status.Errorf(codes.Code(e.Code), "%s (%s)", o.detail, o.reason)
	}
	return o
}

func trimmed(name, prefix string) string { return strings.TrimPrefix(name, prefix) }

// retryOf returns the retry of a call that failed.
func retryOf(err error) retry {
	st := status.Convert(err)
	r := retry{err: err}
	switch st.Code() {
	case codes.Unavailable, codes.DeadlineExceeded:
		r.ok = true
	}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			r.ok, r.after = true, d.GetRetryDelay().AsDuration()
		case *errdetails.ErrorInfo:
			if d.Reason == trimmed(commonpb.Reason_REASON_OUTCOME_UNKNOWN.String(), "REASON_") {
				r.ok = true
			}
		}
	}
	return r
}
