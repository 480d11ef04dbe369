// Package keysteadotel traces the calls of a Keystead client with OpenTelemetry.
//
//	tracer := keysteadotel.New(otel.GetTracerProvider())
//	c, err := client.Config{Observers: []client.Observer{tracer}}.Dial(ctx, "n1:7400", "n2:7400")
//
// # Spans
//
// Each call is a span of kind client, from before its first attempt until its answer or
// error: "keystead check", "keystead lock" …, a child of the span of the caller's context.
// Its attributes are
//
//	keystead.attempts   how often it was tried; of single calls
//	keystead.refused    how many answers say no, such as a check that is denied
//	keystead.items      how many items a batch has
//	keystead.failed     how many of them have an error of their own
//	keystead.reason     the reason of the error, such as "UNAVAILABLE"
//	keystead.key        the key; only with WithKeys
//
// A refusal is an answer and no error. A lock that another holds is one.
//
// # Non-guarantee
//
// Nodes do not trace: what is below a span is not seen.
package keysteadotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/keystead/keystead/client"
)

// Scope is the name of the tracer.
const Scope = "github.com/keystead/keystead/client"

// Tracer makes spans of the calls of the clients whose observer it is.
type Tracer struct {
	tracer trace.Tracer
	keys   bool
}

// Option is what spans have.
type Option func(*Tracer)

// WithKeys has spans tell the keys. They may be names and addresses of people.
func WithKeys() Option { return func(t *Tracer) { t.keys = true } }

// New returns a tracer that makes spans by a provider.
func New(provider trace.TracerProvider, opts ...Option) *Tracer {
	t := &Tracer{tracer: provider.Tracer(Scope)}
	for _, o := range opts {
		o(t)
	}
	return t
}

// Begin implements client.Observer.
func (t *Tracer) Begin(ctx context.Context, call client.Call) context.Context {
	var attrs []attribute.KeyValue
	if call.Items > 0 {
		attrs = append(attrs, attribute.Int("keystead.items", call.Items))
	}
	if t.keys && call.Key != "" {
		attrs = append(attrs, attribute.String("keystead.key", call.Key))
	}
	ctx, _ = t.tracer.Start(ctx, "keystead "+call.Op, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
	return ctx
}

// End implements client.Observer.
func (t *Tracer) End(ctx context.Context, call client.Call, o client.Outcome) {
	span := trace.SpanFromContext(ctx)
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.Int("keystead.refused", o.Refused))
	if call.Items > 0 {
		span.SetAttributes(attribute.Int("keystead.failed", o.Failed))
	} else {
		span.SetAttributes(attribute.Int("keystead.attempts", o.Attempts))
	}
	if o.Err == nil {
		return
	}
	var e *client.Error
	if errors.As(o.Err, &e) {
		span.SetAttributes(attribute.String("keystead.reason", string(e.Reason)))
	}
	if t.keys {
		span.RecordError(o.Err)
		span.SetStatus(codes.Error, o.Err.Error())
		return
	}
	// The text of an error has the key in it.
	span.SetStatus(codes.Error, "the call failed")
}
