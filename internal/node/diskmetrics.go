package node

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/handoff/disk"
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

// keeperCollector shows Prometheus the store on disk.
type keeperCollector struct {
	n                                                        *Node
	behind, interval, taking, bytes, debt, written, failures *prometheus.Desc
	rounds, given, moved, syncs, ungathered, free, room      *prometheus.Desc
}

func newKeeperCollector(n *Node) *keeperCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("keystead_disk_store_"+name, help, labels, nil)
	}
	return &keeperCollector{
		n:          n,
		behind:     desc("behind_seconds", "How old a change may be that is not in the store on disk."),
		interval:   desc("interval_seconds", "The durability interval: what was answered within it may be lost with the process."),
		taking:     desc("taking", "1 if the store on disk takes what is decided, 0 if operations are refused because it does not."),
		bytes:      desc("bytes", "Bytes of the store on disk."),
		free:       desc("free_bytes", "Bytes that the file system of the store has left."),
		room:       desc("room_bytes", "Bytes that it ought to have left, for merges of the store."),
		debt:       desc("debt_bytes", "Bytes of the store that have to be merged until all is in order, about."),
		written:    desc("written_total", "Objects, deletions and entries about request ids that were written."),
		failures:   desc("failures_total", "Writes that failed, after each of which the store was begun anew."),
		rounds:     desc("rounds_total", "Rounds in which what had changed was looked for, by whether there was something to write.", "wrote"),
		given:      desc("given_bytes_total", "Bytes that were given to the store."),
		moved:      desc("moved_bytes_total", "Bytes that the store has written for them, merges included."),
		syncs:      desc("sync_seconds", "How long the syncs of the store took."),
		ungathered: desc("waiting_bytes", "Bytes of memory that wait for the next round, beside the objects."),
	}
}

// Describe implements prometheus.Collector.
func (m *keeperCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.behind, m.interval, m.taking, m.bytes, m.debt, m.written, m.failures, m.rounds, m.given, m.moved, m.syncs, m.ungathered, m.free, m.room} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *keeperCollector) Collect(ch chan<- prometheus.Metric) {
	k := m.n.keeper()
	if k == nil {
		return
	}
	st := k.Status()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	taking := 1.0
	if st.Problem != "" {
		taking = 0
	}
	gauge(m.behind, st.Behind.Seconds())
	gauge(m.interval, st.Settings.Interval.Seconds())
	gauge(m.taking, taking)
	gauge(m.bytes, float64(st.Store.DiskBytes))
	if gauge(m.room, float64(st.Room())); st.Free >= 0 {
		gauge(m.free, float64(st.Free))
	}
	gauge(m.debt, float64(st.Store.Debt))
	gauge(m.ungathered, float64(m.n.store.Ungathered()))
	count(m.written, st.Written)
	count(m.failures, st.Failures)
	count(m.rounds, st.Synced, "true")
	count(m.rounds, st.Rounds-st.Synced, "false")
	count(m.given, st.Store.Given)
	count(m.moved, st.Store.ToLog+st.Store.ToTables+st.Store.ToOther)
	bounds := map[float64]uint64{}
	below := uint64(0)
	for i, bound := range disk.SyncBounds {
		below += st.Store.Syncs.Counts[i]
		bounds[bound.Seconds()] = below
	}
	ch <- prometheus.MustNewConstHistogram(m.syncs, st.Store.Syncs.Count, st.Store.Syncs.Sum.Seconds(), bounds)
}
