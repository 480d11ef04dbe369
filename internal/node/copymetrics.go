package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// freezes counts for how long rows were frozen to be handed over.
type freezes struct{ seconds, rows prometheus.Histogram }

func newFreezes() freezes {
	return freezes{
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "keystead_frozen_seconds", Help: "Seconds for which rows were frozen to be handed over together.",
			Buckets: []float64{.001, .0025, .005, .01, .015, .02, .03, .04, .05, .075, .1, .2, .5, 1, 2, 5},
		}),
		rows: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "keystead_frozen_rows", Help: "Rows that were frozen to be handed over together.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 9),
		}),
	}
}

func (f freezes) observe(rows int, long time.Duration) {
	f.seconds.Observe(long.Seconds())
	f.rows.Observe(float64(rows))
}

// copyCollector shows the copies that a node makes to Prometheus.
type copyCollector struct {
	s                                                        *state
	objects, bytes, copied, synced, handed, dropped, refused *prometheus.Desc
	underWay, rowsUnderWay, sentUnderWay, expected, age, lag *prometheus.Desc
	diskLag                                                  *prometheus.Desc
}

func newCopyCollector(s *state) *copyCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("keystead_"+name, help, labels, nil)
	}
	return &copyCollector{
		s:            s,
		objects:      desc("copied_objects_total", "Objects sent by copies of rows for other nodes."),
		bytes:        desc("copied_bytes_total", "Bytes sent by copies of rows for other nodes."),
		copied:       desc("rows_copied_total", "Rows of copies that were whole at their target."),
		synced:       desc("rows_synced_total", "Rows of this node that got a standby."),
		handed:       desc("rows_handed_over_total", "Rows that this node has handed over."),
		dropped:      desc("rows_unsynced_total", "Rows of this node whose standby was taken out."),
		refused:      desc("copies_refused_total", "Streams of copies that ended because their target has no room for them."),
		underWay:     desc("copies", "Copies under way."),
		rowsUnderWay: desc("copy_rows", "Rows of the copies under way.", "to"),
		sentUnderWay: desc("copy_objects", "Objects sent by the copies under way.", "to"),
		expected:     desc("copy_objects_expected", "About how many objects the copies under way have in all.", "to"),
		age:          desc("copy_age_seconds", "Time since the oldest copy under way began.", "to"),
		lag:          desc("standby_lag_seconds", "For how long the oldest record has been waiting that a standby has not acknowledged.", "standby"),
		diskLag:      desc("standby_disk_lag_seconds", "For how long the oldest record has been waiting that is not on the disk of a standby; 0 if disks do not count.", "standby"),
	}
}

// Describe implements prometheus.Collector.
func (m *copyCollector) Describe(ch chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(m, ch)
	for _, d := range []*prometheus.Desc{m.rowsUnderWay, m.sentUnderWay, m.expected, m.age, m.lag, m.diskLag} {
		ch <- d // there may be none of it yet
	}
}

// Collect implements prometheus.Collector.
func (m *copyCollector) Collect(ch chan<- prometheus.Metric) {
	m.s.frozen.seconds.Collect(ch)
	m.s.frozen.rows.Collect(ch)
	p := m.s.source.Progress()
	for d, n := range map[*prometheus.Desc]int64{
		m.objects: p.Totals.Objects, m.bytes: p.Totals.Bytes, m.copied: p.Totals.Copied,
		m.synced: p.Totals.Synced, m.handed: p.Totals.Handed, m.dropped: p.Totals.Dropped, m.refused: p.Totals.Refused,
	} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	type sum struct {
		rows              int
		objects, expected int64
		age               time.Duration
	}
	to, underWay := map[string]sum{}, 0
	for _, y := range p.Copies {
		if y.Caught {
			continue
		}
		t := to[y.To]
		to[y.To] = sum{t.rows + y.Rows, t.objects + y.Objects, t.expected + y.Expected, max(t.age, y.Age)}
		underWay++
	}
	gauge(m.underWay, float64(underWay))
	for node, t := range to {
		gauge(m.rowsUnderWay, float64(t.rows), node)
		gauge(m.sentUnderWay, float64(t.objects), node)
		gauge(m.expected, float64(t.expected), node)
		gauge(m.age, t.age.Seconds(), node)
	}
	lag, disk := map[string]time.Duration{}, map[string]time.Duration{} // an earlier incarnation may still be there
	for _, b := range p.Standbys {
		lag[b.Node], disk[b.Node] = max(lag[b.Node], b.Lag), max(disk[b.Node], b.DiskLag)
	}
	for node, d := range lag {
		gauge(m.lag, d.Seconds(), node)
		gauge(m.diskLag, disk[node].Seconds(), node)
	}
}
