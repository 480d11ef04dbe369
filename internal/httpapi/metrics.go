package httpapi

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts requests by the status of their answers. What calls did is counted where
// all calls are.
type metrics map[int]prometheus.Counter

func newMetrics(reg prometheus.Registerer) metrics {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keystead_http_requests_total",
		Help: "Requests of the HTTP API by the status of the answer; the calls among them are in keystead_rpc_calls_total, too.",
	}, []string{"status"})
	reg.MustRegister(requests)
	m := metrics{}
	for _, code := range statuses() {
		m[code] = requests.WithLabelValues(strconv.Itoa(code))
	}
	return m
}

// statuses are all that are answered.
func statuses() []int {
	codes := []int{http.StatusOK, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType, http.StatusForbidden}
	for _, code := range byCode {
		codes = append(codes, code)
	}
	for _, code := range byReason {
		codes = append(codes, code)
	}
	for _, o := range own {
		codes = append(codes, o.status)
	}
	return codes
}

func (m metrics) done(code int) { m[code].Inc() }
