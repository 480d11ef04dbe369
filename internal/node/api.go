package node

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/keystead/keystead/internal/forgo"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/ring/epoch"
)

// newRegistry returns the node's metrics but those of its servers.
func (n *Node) newRegistry() (*prometheus.Registry, error) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newStoreCollector(n), newLimitCollector(n), newDiskCollector(n), newKeeperCollector(n), newHotCollector(n.observer))
	if n.cluster == nil {
		return reg, nil
	}
	reg.MustRegister(newClusterCollector(n.cluster), newCopyCollector(n.cluster.state))
	if n.cfg.ProcessMetrics {
		return reg, showLibraries(reg)
	}
	return reg, nil
}

// apiConfig returns the settings of the API: those of any node, and those of one that is
// alone or in a cluster.
func (n *Node) apiConfig(reg *prometheus.Registry) rpc.Config {
	conf := rpc.Config{
		Store: n.store, Clock: n.cfg.Clock, Metrics: rpc.NewMetrics(reg, n.moreServices()...), MaxConns: n.cfg.MaxConns, MaxCalls: n.cfg.MaxCalls,
		AckOwner: n.cfg.AckOwner, Node: n.cfg.ID, GRPCAddr: n.GRPCAddr(),
		Warnings: n.warnings, Register: n.register, Hot: n.observer.Last, Ready: n.ready,
		Policies: n.policies(),
	}
	if n.rule != nil {
		conf.Alone = rpc.Alone{Epoch: n.rule.epoch.Load, Incarnation: epoch.NewIncarnation(n.cfg.Wires.Wall()), Version: n.cfg.Version}
	}
	if k := n.keeper(); k != nil {
		conf.Disk = n.disk
		if n.cluster == nil {
			conf.Copies, conf.Untold, conf.Backup, conf.LostInPart = onDisk{k}, notOnDisk, n.backup, n.lossPartial
		} else {
			conf.Untold = n.cluster.disk.untold
		}
	}
	if n.cluster != nil {
		conf.Cluster, conf.Dial, conf.Copies = n.cluster, n.cfg.Wires.Dial, n.cluster.state.source
		conf.Forgo = (&forgo.Giver{Group: n.cluster.group, NewID: n.cluster.newID}).Give
	}
	return conf
}
