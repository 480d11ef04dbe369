package node

import (
	"fmt"

	"github.com/hashicorp/go-metrics"
	metricsprom "github.com/hashicorp/go-metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"
)

// showLibraries has raft and serf count into a registry. They count for the
// whole process, through a global of their own.
func showLibraries(reg prometheus.Registerer) error {
	sink, err := metricsprom.NewPrometheusSinkFrom(metricsprom.PrometheusOpts{Registerer: reg, Name: "keystead_libraries"})
	if err != nil {
		return fmt.Errorf("metrics of raft and serf: %w", err)
	}
	conf := metrics.DefaultConfig("keystead")
	conf.EnableHostname, conf.EnableRuntimeMetrics = false, false
	if _, err := metrics.NewGlobal(conf, sink); err != nil {
		return fmt.Errorf("metrics of raft and serf: %w", err)
	}
	return nil
}

// What is said of losses, by nodes alone and in clusters.
const (
	lostHelp       = "Rows that came to this node without their state, or without what was answered last."
	lostInPartHelp = "Those of the lost rows that went on from a disk: what was answered last may be lost."
)

// clusterCollector shows a node's part in its cluster to Prometheus.
type clusterCollector struct {
	c                                                                *cluster
	lease, members, rows, owned, moving, lost, leader, ready, voters *prometheus.Desc
	standby, unprotected, grace, graceInPart, cold, lostInPart       *prometheus.Desc
}

func newClusterCollector(c *cluster) *clusterCollector {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("keystead_"+name, help, nil, nil) }
	return &clusterCollector{
		c:           c,
		lease:       desc("lease_left_seconds", "Time that the node may still act without hearing from the leader."),
		members:     desc("cluster_members", "Members of the ownership table that the node knows."),
		rows:        desc("cluster_rows", "Rows of the ownership table."),
		owned:       desc("rows_owned", "Rows that this node owns."),
		standby:     desc("rows_standby", "Rows that this node stands by for."),
		unprotected: desc("cluster_rows_unprotected", "Rows without the standby that the ring has for them."),
		grace:       desc("cluster_rows_in_grace", "Rows whose state was lost and that grant no locks yet."),
		graceInPart: desc("cluster_rows_in_grace_in_part", "Those of the rows in grace that went on from a disk: what was answered last may be lost."),
		cold:        desc("cluster_rows_cold", "Rows that nobody owns because they wait for the disk of a process that is dead."),
		moving:      desc("cluster_rows_to_move", "Rows that do not stand where the ring wants them."),
		lost:        desc("rows_lost_total", lostHelp),
		lostInPart:  desc("rows_lost_in_part_total", lostInPartHelp),
		leader:      desc("raft_leading", "1 if the node leads in raft."),
		voters:      desc("cluster_voters", "Nodes that vote in raft."),
		ready:       desc("ready", "1 if the node is a member that may act."),
	}
}

// Describe implements prometheus.Collector.
func (m *clusterCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *clusterCollector) Collect(ch chan<- prometheus.Metric) {
	t := m.c.Table()
	voters, _ := m.c.group.Servers()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(m.lease, m.c.group.LeaseLeft().Seconds())
	gauge(m.members, float64(len(t.Members)))
	gauge(m.rows, float64(len(t.Rows)))
	owned, standby := rowsOf(t, m.c.Self())
	gauge(m.owned, float64(owned))
	gauge(m.standby, float64(standby))
	gauge(m.unprotected, float64(t.Unprotected()))
	gauge(m.grace, float64(t.InGrace()))
	gauge(m.graceInPart, float64(t.InGraceInPart()))
	gauge(m.cold, float64(t.Cold()))
	gauge(m.moving, float64(len(t.Moves())))
	gauge(m.voters, float64(len(voters)))
	gauge(m.leader, one(m.c.group.Leader() == m.c.cfg.ID))
	gauge(m.ready, one(m.c.ready() == nil))
	ch <- prometheus.MustNewConstMetric(m.lost, prometheus.CounterValue, float64(m.c.lost.Load()))
	ch <- prometheus.MustNewConstMetric(m.lostInPart, prometheus.CounterValue, float64(m.c.lostInPart.Load()))
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
