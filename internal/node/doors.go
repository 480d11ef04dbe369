package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/internal/admin"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/ring/epoch/table"
)

// openAdmin starts the admin server. It is there first and goes last: it reports that
// the node is not ready while it comes and goes.
func (n *Node) openAdmin(reg *prometheus.Registry, calls *rpc.Metrics) error {
	if n.cfg.AdminAddr == "" && n.cfg.MetricsAddr == "" {
		return nil
	}
	conf := admin.Config{
		Addr: n.cfg.AdminAddr, MetricsAddr: n.cfg.MetricsAddr, Gatherer: reg,
		Status: func() any { return n.Status() }, Ready: n.ready, Drain: n,
	}
	if n.cfg.AdminAddr != "" {
		conf.Page = n.openConsole(calls)
	}
	a, err := admin.Start(conf)
	if at := (*admin.ListenError)(nil); errors.As(err, &at) && at.Metrics {
		return cannotListen("metrics and probes", "--metrics-addr", err)
	} else if err != nil {
		return cannotListen("operators", "--admin-addr", err)
	}
	n.admin.Store(a)
	n.stops = append(n.stops, a.Stop)
	if addr := a.Addr(); addr != "" && !onLoopback(addr) {
		n.cfg.Log.Warn("anybody who reaches the admin address can drain this node and take profiles: keep --admin-addr on loopback, and give Prometheus and probes --metrics-addr", "admin", addr)
	}
	return nil
}

// onLoopback reports whether an address can be reached from its machine alone.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// AdminAddr returns where operators come, "" if they do not.
func (n *Node) AdminAddr() string {
	if a := n.admin.Load(); a != nil {
		return a.Addr()
	}
	return ""
}

// MetricsAddr returns where metrics and probes are served, "" if they are not.
func (n *Node) MetricsAddr() string {
	if a := n.admin.Load(); a != nil {
		return a.MetricsAddr()
	}
	return ""
}

// copiesPatience is how long a node that has just started waits to be ready until
// rows have their copies. Rollouts go on when a node is ready, so it is longer than a
// full node takes to be copied at the default rate. It ends, so that nodes which are
// restarted while no copy can be made do not leave a service without any node.
const copiesPatience = 5 * time.Minute

// ready says why the node cannot serve yet, nil if it can.
func (n *Node) ready() error {
	if n.cluster == nil {
		return nil
	}
	if err := n.cluster.ready(); err != nil {
		return err
	}
	if n.complete.Load() {
		return nil
	}
	if err := checkSettled(n.cluster.Table(), n.cluster.group.Self()); err != nil && time.Since(n.began) < copiesPatience {
		return err
	}
	n.complete.Store(true)
	return nil
}

// checkSettled returns what a process that has just been admitted still waits for, nil if
// nothing: after that, the next node may be stopped without a loss.
func checkSettled(t *table.Table, self table.Holder) error {
	if m, _ := t.Member(self.Node); m.Phase == table.Joining {
		return errors.New("not ready: the node has not been given its keys yet")
	}
	if n := t.Cold(); n > 0 {
		return fmt.Errorf("not ready: %d of %d rows wait for disks", n, len(t.Rows))
	}
	if n := t.Unprotected(); n > 0 {
		return fmt.Errorf("not ready: %d of %d rows have no copy yet", n, len(t.Rows))
	}
	return nil
}
