// Package keysteadprom has Prometheus metrics of a Keystead client.
//
//	metrics := keysteadprom.New()
//	prometheus.MustRegister(metrics)
//	c, err := client.Config{Observers: []client.Observer{metrics}}.Dial(ctx, "n1:7400", "n2:7400")
//
// # Metrics
//
//	keystead_client_calls_total{op, result}       calls by operation, such as "check"; result is
//	                                              "ok", "refused", "failed" for an item of a batch,
//	                                              or the reason of the error, such as "UNAVAILABLE".
//	                                              Each item of a batch counts.
//	keystead_client_call_duration_seconds{op}     how long calls took, with all their attempts
//	keystead_client_retries_total{op}             attempts that were not the first of their call
//
// # Guarantee
//
// The number of series is bounded: no label holds a key, a name or an address.
package keysteadprom

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/client"
)

// Metrics counts the calls of the clients whose observer it is. It is a
// prometheus.Collector; register it once.
type Metrics struct {
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	retries  *prometheus.CounterVec
}

// buckets reach from an answer on the same machine to DefaultTimeout, in seconds.
var buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}

// New makes metrics.
func New() *Metrics {
	return &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keystead_client_calls_total", Help: "Calls of the Keystead client, by operation and result; each item of a batch counts.",
		}, []string{"op", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "keystead_client_call_duration_seconds", Help: "How long calls of the Keystead client took, with all their attempts.", Buckets: buckets,
		}, []string{"op"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keystead_client_retries_total", Help: "Attempts of the Keystead client that were not the first of their call.",
		}, []string{"op"}),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.calls.Describe(ch)
	m.duration.Describe(ch)
	m.retries.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.calls.Collect(ch)
	m.duration.Collect(ch)
	m.retries.Collect(ch)
}

// Begin implements client.Observer.
func (m *Metrics) Begin(ctx context.Context, _ client.Call) context.Context { return ctx }

// End implements client.Observer.
func (m *Metrics) End(_ context.Context, call client.Call, o client.Outcome) {
	m.duration.WithLabelValues(call.Op).Observe(o.Took.Seconds())
	if o.Attempts > 1 {
		m.retries.WithLabelValues(call.Op).Add(float64(o.Attempts - 1))
	}
	n := max(call.Items, 1)
	if o.Err != nil {
		m.calls.WithLabelValues(call.Op, reason(o.Err)).Add(float64(n))
		return
	}
	for result, count := range map[string]int{"refused": o.Refused, "failed": o.Failed, "ok": n - o.Refused - o.Failed} {
		if count > 0 {
			m.calls.WithLabelValues(call.Op, result).Add(float64(count))
		}
	}
}

// reason returns the reason of an error, of which there are few.
func reason(err error) string {
	var e *client.Error
	if errors.As(err, &e) && e.Reason != "" {
		return string(e.Reason)
	}
	return "error"
}
