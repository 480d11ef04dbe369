package rpc

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	sessionpb "github.com/keystead/keystead/proto/keystead/session/v1"
)

// Metrics counts what the server does. Every series is resolved when it is
// made, so that counting costs a few atomic adds and no look-up.
type Metrics struct {
	methods map[string]*method
	other   *method
	ops     [maxOperation + 1]opMetrics // by number
	failed  map[commonpb.Reason]prometheus.Counter

	passed   map[string]prometheus.Counter // calls passed on, by outcome
	received prometheus.Counter            // calls that other nodes passed on to this one
	degraded degradedMetrics
}

// method counts the calls of one RPC.
type method struct {
	batch   bool // takes messages of batch size
	seconds prometheus.Observer
	codes   [17]prometheus.Counter // by codes.Code
}

// most is how many bytes a message of the method has at most.
func (m *method) most() int {
	if m.batch {
		return MaxBatch
	}
	return MaxRequest
}

// opMetrics counts one operation by its outcomes.
type opMetrics struct {
	// alone says that answers do not wait for copies.
	alone bool
	// read says that the operation changes nothing.
	read                       bool
	yes, no, replayed, errored prometheus.Counter
	failed                     map[commonpb.Reason]prometheus.Counter
}

// row returns the counts of an operation.
func (s *Server) row(o *operation) *opMetrics { return &s.cfg.Metrics.ops[o.Number] }

// callBuckets are the classes of time that calls are counted in, in seconds.
var callBuckets = []float64{5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.5, 1, 5, 30}

// NewMetrics registers the server's metrics. Methods of more services are counted
// by name, too.
func NewMetrics(reg prometheus.Registerer, more ...*grpc.ServiceDesc) *Metrics {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keystead_rpc_calls_total",
		Help: "gRPC calls by service, method and status code.",
	}, []string{"service", "method", "code"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "keystead_rpc_seconds",
		Help:    "Time from the receipt of a gRPC call to its answer, waiting for locks included; of a stream, its life.",
		Buckets: callBuckets,
	}, []string{"service", "method"})
	ops := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keystead_operations_total",
		Help: "Operations on objects by what they did and how it ended; each item of a batch is one.",
	}, []string{"op", "outcome"})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keystead_operation_errors_total",
		Help: "Operations that could not be decided, by reason.",
	}, []string{"reason"})
	passed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keystead_forwarded_total",
		Help: "Operations on keys of other nodes by how they ended here; each item of a batch is one.",
	}, []string{"outcome"})
	received := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "keystead_forward_received_total",
		Help: "Operations that other nodes have passed on to this one.",
	})
	reg.MustRegister(calls, seconds, ops, failures, passed, received)

	m := &Metrics{methods: map[string]*method{}, passed: map[string]prometheus.Counter{}, received: received, degraded: newDegradedMetrics(reg)}
	for _, outcome := range []string{"answered", "not_owner", "unavailable", "unknown", "error"} {
		m.passed[outcome] = passed.WithLabelValues(outcome)
	}
	m.addMethods(calls, seconds, more)
	m.failed = map[commonpb.Reason]prometheus.Counter{}
	for r := range commonpb.Reason_name {
		m.failed[commonpb.Reason(r)] = failures.WithLabelValues(strings.ToLower(reasonName(commonpb.Reason(r))))
	}
	for _, k := range catalog {
		for _, o := range k.ops {
			if o.yes == "" {
				continue // of nodes among each other
			}
			count := func(outcome string) prometheus.Counter { return ops.WithLabelValues(o.Name, outcome) }
			m.ops[o.Number] = opMetrics{read: o.reads, yes: count(o.yes), no: count(o.no), replayed: count("replayed"), errored: count("error"), failed: m.failed}
		}
	}
	return m
}

// addMethods makes the counts of all methods: those of the API, of nodes among each other,
// and of further services.
func (m *Metrics) addMethods(calls *prometheus.CounterVec, seconds *prometheus.HistogramVec, more []*grpc.ServiceDesc) {
	newMethod := func(service, name string) *method {
		x := &method{batch: strings.HasPrefix(name, "Batch") || name == "GetOwners" || name == "ApplyPolicies", seconds: seconds.WithLabelValues(service, name)}
		for c := range x.codes {
			x.codes[c] = calls.WithLabelValues(service, name, codes.Code(c).String())
		}
		return x
	}
	more = append(more, &idpb.IdService_ServiceDesc, &sessionpb.SessionService_ServiceDesc, &peerv1.ForwardService_ServiceDesc, &clusterpb.ClusterService_ServiceDesc, &adminpb.AdminService_ServiceDesc)
	for _, k := range catalog {
		if k.service != nil {
			more = append(more, k.service)
		}
	}
	for _, sd := range more {
		for _, name := range namesOf(sd) {
			m.methods["/"+sd.ServiceName+"/"+name] = newMethod(sd.ServiceName, name)
		}
	}
	m.other = newMethod("other", "other")
}

// namesOf returns the methods of a service, streams among them.
func namesOf(sd *grpc.ServiceDesc) (names []string) {
	for _, x := range sd.Methods {
		names = append(names, x.MethodName)
	}
	for _, x := range sd.Streams {
		names = append(names, x.StreamName)
	}
	return names
}

// forwarded counts an operation that was passed on, or was to be.
func (m *Metrics) forwarded(err error) {
	outcome := "answered"
	if err != nil {
		switch wire(err).Reason {
		case commonpb.Reason_REASON_NOT_OWNER:
			outcome = "not_owner"
		case commonpb.Reason_REASON_UNAVAILABLE:
			outcome = "unavailable"
		case commonpb.Reason_REASON_OUTCOME_UNKNOWN:
			outcome = "unknown"
		default:
			outcome = "error"
		}
	}
	m.passed[outcome].Inc()
}

func (m *Metrics) method(full string) *method {
	if x := m.methods[full]; x != nil {
		return x
	}
	return m.other
}

func (x *method) done(err error, took time.Duration) {
	x.codes[min(int(status.Code(err)), len(x.codes)-1)].Inc()
	x.seconds.Observe(took.Seconds())
}

// tally counts the operations of one call and adds them to the metrics at once.
type tally struct{ yes, no, replayed, errored int }

func (t *tally) decided(positive, replay bool) {
	switch {
	case replay:
		t.replayed++
	case positive:
		t.yes++
	default:
		t.no++
	}
}

// add counts what a call did.
func (o *opMetrics) add(t tally) {
	addTo(o.yes, t.yes)
	addTo(o.no, t.no)
	addTo(o.replayed, t.replayed)
	addTo(o.errored, t.errored)
}

func addTo(c prometheus.Counter, n int) {
	if n > 0 {
		c.Add(float64(n))
	}
}
