package xds

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
)

// typeNames are the resources that are served, as the metrics name them.
var typeNames = map[string]string{
	resource.ListenerType: "listener", resource.RouteType: "route",
	resource.ClusterType: "cluster", resource.EndpointType: "endpoint",
}

// otherType is the name of all types that are not served.
const otherType = "other"

// metrics counts what the server does. Every series is there from the start.
type metrics struct {
	clients [clients]prometheus.Gauge
	epoch   prometheus.Gauge
	sent    map[string]prometheus.Counter // by name of the type
	refused map[string]prometheus.Counter // likewise
	cut     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	streams := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "keystead_xds_clients",
		Help: "Clients that are being told of the ring over xDS, by kind.",
	}, []string{"client"})
	sent := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keystead_xds_responses_total",
		Help: "xDS responses sent, by type of the resources.",
	}, []string{"type"})
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keystead_xds_nacks_total",
		Help: "xDS responses that clients have refused, by type of the resources.",
	}, []string{"type"})
	m := &metrics{
		epoch: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keystead_xds_epoch",
			Help: "Epoch of the table that xDS clients were told of last; 0 = of none.",
		}),
		cut: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keystead_xds_turned_away_total",
			Help: "xDS streams that were ended because they asked for too much, or there were too many.",
		}),
		sent: map[string]prometheus.Counter{}, refused: map[string]prometheus.Counter{},
	}
	for c := range Client(clients) {
		m.clients[c] = streams.WithLabelValues(c.String())
	}
	for _, name := range typeNames {
		m.sent[name], m.refused[name] = sent.WithLabelValues(name), refused.WithLabelValues(name)
	}
	m.sent[otherType], m.refused[otherType] = sent.WithLabelValues(otherType), refused.WithLabelValues(otherType)
	reg.MustRegister(streams, sent, refused, m.epoch, m.cut)
	return m
}

func typeName(url string) string {
	if name, ok := typeNames[url]; ok {
		return name
	}
	return otherType
}
