package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/owner"
)

// Status is what a node says of itself, as JSON at /status.
type Status struct {
	ID            string           `json:"id"`
	Version       string           `json:"version"`
	GRPCAddr      string           `json:"grpc_addr"`
	AdminAddr     string           `json:"admin_addr,omitempty"`
	Epoch         uint64           `json:"epoch"`
	UptimeSeconds float64          `json:"uptime_seconds"`
	Objects       map[string]int64 `json:"objects"` // by kind
	Expired       map[string]int64 `json:"expired"` // by kind, since the start
	LapsedLocks   int64            `json:"lapsed_locks"`
	Bytes         int64            `json:"bytes"`
	Waiting       int64            `json:"waiting"`
}

// Status returns the status of now.
func (n *Node) Status() Status {
	st := n.store.Stats()
	return Status{
		ID: n.cfg.ID, Version: n.cfg.Version, GRPCAddr: n.GRPCAddr(), AdminAddr: n.AdminAddr(),
		Epoch: n.rule.epoch.Load(), UptimeSeconds: time.Since(n.began).Seconds(),
		Objects: byName(st.Objects), Expired: byName(st.Expired),
		LapsedLocks: st.Lapsed, Bytes: st.Bytes, Waiting: st.Waiting,
	}
}

func byName(m map[owner.Kind]int64) map[string]int64 {
	out := make(map[string]int64, len(m))
	for k, v := range m {
		out[k.String()] = v
	}
	return out
}

// storeCollector shows the store's figures to Prometheus.
type storeCollector struct {
	store                                           *owner.Store
	rule                                            *sole
	objects, expired, lapsed, bytes, waiting, epoch *prometheus.Desc
}

func newStoreCollector(store *owner.Store, rule *sole) *storeCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("keystead_"+name, help, labels, nil)
	}
	return &storeCollector{
		store: store, rule: rule,
		objects: desc("objects", "Objects held.", "kind"),
		expired: desc("expired_total", "Objects forgotten because their time was over.", "kind"),
		lapsed:  desc("lapsed_locks_total", "Locks whose TTL ended while they were held."),
		bytes:   desc("store_bytes", "Memory allocated for objects and request ids."),
		waiting: desc("lock_waiters", "Callers waiting for locks."),
		epoch:   desc("epoch", "Ownership epoch under which the node serves."),
	}
}

// Describe implements prometheus.Collector.
func (c *storeCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *storeCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.store.Stats()
	for k, v := range st.Objects {
		ch <- prometheus.MustNewConstMetric(c.objects, prometheus.GaugeValue, float64(v), k.String())
	}
	for k, v := range st.Expired {
		ch <- prometheus.MustNewConstMetric(c.expired, prometheus.CounterValue, float64(v), k.String())
	}
	ch <- prometheus.MustNewConstMetric(c.lapsed, prometheus.CounterValue, float64(st.Lapsed))
	ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(st.Bytes))
	ch <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(st.Waiting))
	ch <- prometheus.MustNewConstMetric(c.epoch, prometheus.GaugeValue, float64(c.rule.epoch.Load()))
}
