package node

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/hotkey/divide"
	"github.com/keystead/keystead/hotkey/home"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Split implements owner.Splits.
func (m *inCluster) Split(hash uint64) bool { return m.rule.Table().MaySplit(hash) }

// May implements owner.Splits: an operation may act as is agreed in the table that this
// node has applied.
func (m *inCluster) May(ref owner.Ref, kind owner.Kind) (weight uint32, err error) {
	return divide.May(m.rule.Table(), ref, kind)
}

// stalePart reports whether the object under a key is a part of a split that is over.
func (m *inCluster) stalePart(_ uint64, key []byte) bool { return divide.Stale(m.rule.Table(), key) }

// serveAPI makes the server of the API and, in a cluster, the home that splits objects: it
// reaches other nodes by the server's links, and the server asks it for splits.
func (n *Node) serveAPI(conf rpc.Config, reg *prometheus.Registry) error {
	if n.cluster == nil {
		n.rpc = rpc.NewServer(conf)
		go n.rpc.Trees(context.Background())
		go n.rpc.Across(context.Background())
		return nil
	}
	pauses := newPauses()
	h, err := n.newHome(func(phase table.SplitPhase, took time.Duration) {
		pauses.WithLabelValues(phase.String()).Observe(took.Seconds())
	})
	if err != nil {
		return err
	}
	conf.Splits = h
	n.rpc = rpc.NewServer(conf)
	go n.rpc.Trees(context.Background())  // until it stops
	go n.rpc.Across(context.Background()) // likewise
	reg.MustRegister(newSplitCollector(n.cluster, h), pauses)
	n.cluster.running.Go(func() { h.Run(n.cluster.ctx, n.rpc) })
	return nil
}

// newHome returns the home of the node's hot objects; it does nothing before it runs.
func (n *Node) newHome(paused func(table.SplitPhase, time.Duration)) (*home.Home, error) {
	c := n.cluster
	return home.New(home.Config{
		Settings: n.cfg.Hot, Cluster: agreement{c}, Store: n.store, Copies: c.state.source, Now: n.cfg.Clock.Now,
		Hot: n.observer.Last, HotNodes: c.hotNodes, Paused: paused, Log: c.log,
	})
}

// agreement is the cluster as a home needs it.
type agreement struct{ *cluster }

// Propose implements home.Cluster.
func (a agreement) Propose(ctx context.Context, c table.Command) (uint64, error) {
	c.ID = a.newID()
	return a.group.Propose(ctx, c)
}

// ownedObjects is about how many objects the node holds as their owner. The store does
// not count those apart that it holds for others; they are taken to be spread over the
// rows alike.
func (n *Node) ownedObjects() (objects int64) {
	for _, count := range n.store.Stats().Objects {
		objects += count
	}
	if n.cluster == nil {
		return objects
	}
	owned, standby := rowsOf(n.cluster.Table(), n.cluster.Self())
	return objects * int64(owned) / int64(max(owned+standby, 1))
}
