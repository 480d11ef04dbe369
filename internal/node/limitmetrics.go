package node

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// limitCollector shows Prometheus what other figures are to be compared with: an
// alert on how full a node is, or how short its lease, needs no copy of its
// settings.
type limitCollector struct {
	n                                  *Node
	objects, bytes, ttl, drains, jumps *prometheus.Desc
	stalled, stalls, differs, gains    *prometheus.Desc
	ahead, timeless, policies          *prometheus.Desc
}

func newLimitCollector(n *Node) *limitCollector {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("keystead_"+name, help, nil, nil) }
	return &limitCollector{
		n:       n,
		objects: desc("max_objects", "Objects that the node holds at most."),
		bytes:   desc("max_memory_bytes", "Memory that objects and request ids may take."),
		ttl:     desc("lease_ttl_seconds", "For how long a lease is granted; 0 before the node knows it."),
		drains:  desc("draining", "1 while the node gives away what it has, 0 before and afterwards."),
		jumps:   desc("clock_jumps_total", "Times that the lease was dropped because wall time and boot time had parted."),
		differs: desc("clock_differs", "1 while the node asks for no lease because its clock is slower than the leader's, 0 otherwise."),
		gains:   desc("clock_gains_total", "Times that the lease was dropped because the leader's clock had gained on the node's."),

		ahead:    desc("wall_clock_ahead_seconds", "How far the node's wall clock is ahead of the time that the nodes have agreed on; 0 while it knows of none."),
		timeless: desc("time_unknown", "1 while the node refuses limits by the calendar because the nodes have agreed on no time, 0 otherwise."),

		stalled: desc("disk_stalled_seconds", "For how long a write to the log has hung; 0 while none does."),
		stalls:  desc("disk_stalls_total", "Times that a write to the log has hung for longer than half of a lease."),

		policies: desc("policy_version", "Version of the policies that the node goes by; 0 if there are none."),
	}
}

// Describe implements prometheus.Collector.
func (m *limitCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *limitCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(m.objects, float64(cmp.Or(m.n.cfg.Store.MaxObjects, owner.DefaultMaxObjects)))
	gauge(m.bytes, float64(cmp.Or(m.n.cfg.Store.MaxBytes, owner.DefaultMaxBytes)))
	gauge(m.policies, float64(m.n.policies().InForce().Load().Version))
	c := m.n.cluster
	if c == nil {
		return
	}
	gauge(m.ttl, time.Duration(c.Table().LeaseTTL).Seconds())
	gauge(m.drains, one(m.n.DrainState().Member.Phase == table.Leaving))
	ch <- prometheus.MustNewConstMetric(m.jumps, prometheus.CounterValue, float64(c.group.ClockJumps()))
	differs, gains := c.group.ClocksDiffer()
	gauge(m.differs, one(differs))
	ch <- prometheus.MustNewConstMetric(m.gains, prometheus.CounterValue, float64(gains))
	ahead, _ := c.group.WallAhead()
	gauge(m.ahead, ahead.Seconds())
	gauge(m.timeless, one(m.n.timeless()))
	gauge(m.stalled, c.group.Stalled().Seconds())
	ch <- prometheus.MustNewConstMetric(m.stalls, prometheus.CounterValue, float64(c.group.Stalls()))
}
