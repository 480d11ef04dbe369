package node

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// diskCollector shows Prometheus how the disk of the data directory does.
type diskCollector struct {
	n            *Node
	room, errors *prometheus.Desc
}

func newDiskCollector(n *Node) *diskCollector {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("keystead_"+name, help, nil, nil) }
	return &diskCollector{
		n:      n,
		room:   desc("state_room_missing_bytes", "Bytes that an orderly stop would need on the disk, and that are not there."),
		errors: desc("log_write_errors_total", "Writes to the log of the cluster that failed."),
	}
}

// Describe implements prometheus.Collector.
func (m *diskCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *diskCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(m.room, prometheus.GaugeValue, float64(m.n.keeps.short.Load()))
	if c := m.n.cluster; c != nil {
		failed, _ := c.group.WriteFailures()
		ch <- prometheus.MustNewConstMetric(m.errors, prometheus.CounterValue, float64(failed))
	}
}

// logWarning returns what the status says when the log of the cluster cannot be written.
func (n *Node) logWarning() (problem, hint string) {
	if n.cluster == nil {
		return "", ""
	}
	_, err := n.cluster.group.WriteFailures()
	if err == nil {
		return "", ""
	}
	return fmt.Sprintf("the log of the cluster in %s cannot be written: %v", n.cluster.group.LogDir(), err),
		"make room on that disk, or repair it; this node agrees to nothing until then"
}
