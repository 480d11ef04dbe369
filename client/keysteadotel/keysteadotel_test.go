package keysteadotel_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/keysteadotel"
	"github.com/keystead/keystead/client/keysteadtest"
)

func TestSpans(t *testing.T) {
	for _, keys := range []bool{false, true} {
		t.Run(fmt.Sprintf("keys=%v", keys), func(t *testing.T) {
			spans := tracetest.NewSpanRecorder()
			provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
			var opts []keysteadotel.Option
			if keys {
				opts = append(opts, keysteadotel.WithKeys())
			}
			c, err := client.Config{Observers: []client.Observer{keysteadotel.New(provider, opts...)}}.Dial(t.Context(), keysteadtest.Start(t).Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ctx, parent := provider.Tracer("test").Start(t.Context(), "request")
			api := c.Limit("api", client.PerHour(1))
			for range 2 {
				if _, err := api.Check(ctx, "alice"); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = api.BatchCheck(ctx, []string{"bob", "bob", ""})
			_, _ = c.Counter("").Add(ctx, "alice", 1, client.IdleTTL(-1))
			parent.End()
			want := []string{
				"keystead check refused=0 attempts=1", "keystead check refused=1 attempts=1",
				"keystead check items=3 refused=1 failed=1", "keystead add refused=0 attempts=1 reason=INVALID", "request",
			}
			for i, s := range spans.Ended() {
				got, key := s.Name(), false
				for _, a := range s.Attributes() {
					if a.Key == "keystead.key" {
						key = a.Value.AsString() == "alice"
						continue
					}
					got += " " + strings.TrimPrefix(string(a.Key), "keystead.") + "=" + a.Value.String()
				}
				if i >= len(want) || got != want[i] {
					t.Errorf("%d: %s", i, got)
				}
				if s.Name() == "request" {
					continue
				}
				if s.SpanKind() != trace.SpanKindClient || s.Parent().SpanID() != parent.SpanContext().SpanID() {
					t.Errorf("%d: %v below %v", i, s.SpanKind(), s.Parent())
				}
				if failed := strings.Contains(got, "reason="); failed != (s.Status().Code == codes.Error) {
					t.Errorf("%d: %v", i, s.Status())
				}
				batch := strings.Contains(got, "items=")
				if key != (keys && !batch) || !keys && strings.Contains(fmt.Sprint(s.Status(), s.Events()), "alice") {
					t.Errorf("%d: %v %v", i, s.Attributes(), s.Status())
				}
			}
			if n := len(spans.Ended()); n != len(want) {
				t.Errorf("%d spans", n)
			}
			if !slices.ContainsFunc(spans.Ended(), func(s sdk.ReadOnlySpan) bool { return s.InstrumentationScope().Name == keysteadotel.Scope }) {
				t.Error("no scope")
			}
		})
	}
}
