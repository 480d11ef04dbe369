package node

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/envoy/rls"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
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
	Cluster       *ClusterStatus   `json:"cluster,omitempty"` // of a node that is in one
	RLS           *rls.Status      `json:"rls,omitempty"`     // of a node that has Envoy's rate limit service
}

// ClusterStatus is what a node says of its part in the cluster.
type ClusterStatus struct {
	ID              string   `json:"id"`
	Incarnation     string   `json:"incarnation"`
	Ready           bool     `json:"ready"`
	NotReady        string   `json:"not_ready,omitempty"` // why
	Degraded        string   `json:"degraded,omitempty"`  // what keeps it from doing its part although it may serve
	LeaseSeconds    float64  `json:"lease_seconds"`
	Leader          string   `json:"leader"`
	Voters          []string `json:"voters"`
	Members         []string `json:"members"`
	Phase           string   `json:"phase"` // "" = it is no member
	RowsOwned       int      `json:"rows_owned"`
	RowsStandby     int      `json:"rows_standby"`
	Rows            int      `json:"rows"`
	RowsToMove      int      `json:"rows_to_move"`
	RowsUnprotected int      `json:"rows_unprotected"`  // without the standby that the ring has for them
	RowsInGrace     int      `json:"rows_in_grace"`     // in which the grace period of a loss runs
	RowsLost        int64    `json:"rows_lost"`         // that came to this node without their state
	RowsLostInPart  int64    `json:"rows_lost_in_part"` // of these, on a disk that may have lacked the last moments
	RaftAddr        string   `json:"raft_addr"`
	GossipAddr      string   `json:"gossip_addr"`

	Copies []CopyStatus `json:"copies"` // that this node makes
}

// CopyStatus is what a node says of a copy that it makes.
type CopyStatus struct {
	To              string  `json:"to"` // node
	Rows            int     `json:"rows"`
	Objects         int64   `json:"objects"`          // sent so far
	ObjectsExpected int64   `json:"objects_expected"` // about how many there are
	Bytes           int64   `json:"bytes"`            // sent so far
	AgeSeconds      float64 `json:"age_seconds"`
	CaughtUp        bool    `json:"caught_up"`
}

func (c *cluster) status() *ClusterStatus {
	t, self := c.Table(), c.Self()
	s := &ClusterStatus{
		ID: c.cfg.Cluster.ID, Incarnation: strconv.FormatUint(self.Incarnation, 10), Ready: true, LeaseSeconds: c.group.LeaseLeft().Seconds(),
		Leader: c.group.Leader(), Rows: len(t.Rows), RowsToMove: len(t.Moves()), RowsUnprotected: t.Unprotected(), RowsInGrace: t.InGrace(), RowsLost: c.lost.Load(), RowsLostInPart: c.lostInPart.Load(),
		RaftAddr: c.self.RaftAddr, GossipAddr: c.pool.Addr(),
	}
	if err := c.ready(); err != nil {
		s.Ready, s.NotReady = false, err.Error()
	}
	if err := c.degraded(); err != nil {
		s.Degraded = err.Error()
	}
	s.RowsOwned, s.RowsStandby = rowsOf(t, self)
	if m, ok := t.Member(self.Node); ok && m.Holder() == self {
		s.Phase = m.Phase.String()
	}
	s.Copies = []CopyStatus{}
	for _, y := range c.state.source.Progress().Copies {
		s.Copies = append(s.Copies, CopyStatus{y.To, y.Rows, y.Objects, y.Expected, y.Bytes, y.Age.Seconds(), y.Caught})
	}
	s.Voters, _ = c.group.Servers()
	for _, m := range t.Members {
		s.Members = append(s.Members, m.Node)
	}
	return s
}

// rowsOf counts the rows that a process owns, and those that it stands by for.
func rowsOf(t *table.Table, h table.Holder) (owned, standby int) {
	if s, ok := t.DrainState(h.Node); ok && s.Member.Holder() == h {
		return s.Owned, s.Standby
	}
	return 0, 0
}

// Status returns the present status.
func (n *Node) Status() Status {
	st := n.store.Stats()
	out := Status{
		ID: n.cfg.ID, Version: n.cfg.Version, GRPCAddr: n.GRPCAddr(), AdminAddr: n.AdminAddr(),
		Epoch: n.epoch(), UptimeSeconds: time.Since(n.began).Seconds(),
		Objects: byName(st.Objects), Expired: byName(st.Expired),
		LapsedLocks: st.Lapsed, Bytes: st.Bytes, Waiting: st.Waiting,
	}
	if n.cluster != nil {
		out.Cluster = n.cluster.status()
	}
	if n.rls != nil {
		st := n.rls.Status()
		out.RLS = &st
	}
	return out
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
	n                                               *Node
	objects, expired, lapsed, bytes, waiting, epoch *prometheus.Desc
	sessions, sessionHolds                          *prometheus.Desc
	lost, lostInPart                                *prometheus.Desc // of a node that runs alone, or nil
}

func newStoreCollector(n *Node) *storeCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("keystead_"+name, help, labels, nil)
	}
	c := &storeCollector{
		n:       n,
		objects: desc("objects", "Objects held.", "kind"),
		expired: desc("expired_total", "Objects forgotten because their time was over.", "kind"),
		lapsed:  desc("lapsed_locks_total", "Locks whose TTL ended while they were held."),
		bytes:   desc("store_bytes", "Memory allocated for objects and request ids."),
		waiting: desc("lock_waiters", "Callers waiting for locks."),
		epoch:   desc("epoch", "Ownership epoch under which the node serves."),

		sessions:     desc("sessions", "Sessions that hold something at the node."),
		sessionHolds: desc("session_holds", "What sessions hold at the node."),
	}
	if n.cluster == nil {
		c.lost = desc("rows_lost_total", lostHelp)
		c.lostInPart = desc("rows_lost_in_part_total", lostInPartHelp)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *storeCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *storeCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.n.store.Stats()
	for k, v := range st.Objects {
		ch <- prometheus.MustNewConstMetric(c.objects, prometheus.GaugeValue, float64(v), k.String())
	}
	for k, v := range st.Expired {
		ch <- prometheus.MustNewConstMetric(c.expired, prometheus.CounterValue, float64(v), k.String())
	}
	ch <- prometheus.MustNewConstMetric(c.lapsed, prometheus.CounterValue, float64(st.Lapsed))
	ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(st.Bytes))
	ch <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(st.Waiting))
	ch <- prometheus.MustNewConstMetric(c.epoch, prometheus.GaugeValue, float64(c.n.epoch()))
	ch <- prometheus.MustNewConstMetric(c.sessions, prometheus.GaugeValue, float64(st.Sessions))
	ch <- prometheus.MustNewConstMetric(c.sessionHolds, prometheus.GaugeValue, float64(st.SessionHolds))
	if c.lost != nil {
		part := int64(0)
		if c.n.lossPartial {
			part = c.n.lostRows
		}
		ch <- prometheus.MustNewConstMetric(c.lost, prometheus.CounterValue, float64(c.n.lostRows))
		ch <- prometheus.MustNewConstMetric(c.lostInPart, prometheus.CounterValue, float64(part))
	}
}
