package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keystead/keystead/envoy/xds"
	"github.com/keystead/keystead/ring/epoch/table"
	"github.com/keystead/keystead/ring/member"
)

// Defaults of Config.XDS on the command line; left empty, there is no listener.
const (
	DefaultXDSListener  = xds.DefaultListener
	DefaultXDSKeyHeader = xds.DefaultKeyHeader
)

// lookUpTime bounds how long the name of a host is looked up at the start.
const lookUpTime = 5 * time.Second

// ErrAppAddr says that an address of an application is none.
var ErrAppAddr = errors.New("write HOST:PORT as other machines reach the application beside the node, like 10.0.0.1:8080")

// CheckAppAddr says what is wrong with the address of an application: an ErrAppAddr,
// with the address. "" is right, and means that there is none. A name is not looked
// up.
func CheckAppAddr(addr string) error {
	if addr == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(addr)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || n == 0 || host == "" {
		return fmt.Errorf("%q is not HOST:PORT: %w", addr, ErrAppAddr)
	}
	if a, err := netip.ParseAddrPort(addr); err == nil {
		if err := xds.CheckAddr(a); err != nil {
			return fmt.Errorf("%w; %w", err, ErrAppAddr)
		}
	}
	return nil
}

// appAddr returns where the application is reached, IP:port, as others are told: they
// may not know a name that this machine does.
func (c Config) appAddr() (string, error) {
	if c.AppAddr == "" {
		return "", nil
	}
	a, err := lookUp(c.AppAddr)
	if err == nil {
		err = xds.CheckAddr(a) // a name may stand for anything
	}
	if err != nil {
		return "", fmt.Errorf("the application at %s (--app-addr): %w", c.AppAddr, err)
	}
	return a.String(), nil
}

// lookUp returns the IP address of host:port, IPv4 if it has one.
func lookUp(addr string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddrPort(addr); err == nil {
		return a, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q: the port is not a number from 0 to 65535", addr)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookUpTime)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	best := ips[0].Unmap()
	for _, ip := range ips {
		if ip = ip.Unmap(); ip.Is4() {
			best = ip
			break
		}
	}
	return netip.AddrPortFrom(best, uint16(n)), nil
}

// ringAnnouncer announces the ring to xDS clients.
type ringAnnouncer struct {
	n       *Node
	server  *xds.Server
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex                // guards what follows
	stable  map[table.Holder]bool     // members of the ring when last no transition ran; nil = not known
	seen    map[table.Holder]xds.Node // those of the last View, as gossip knew them
	useless map[table.Holder]string   // what was wrong with addresses of the last View
}

// announceRing starts to announce the ring to clients, as this node knows it.
func (n *Node) announceRing(reg prometheus.Registerer) (*ringAnnouncer, error) {
	server, err := xds.New(xds.Config{Settings: n.cfg.XDS, Metrics: reg, Log: n.cfg.Log})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &ringAnnouncer{n: n, server: server, cancel: cancel}
	if n.cluster == nil {
		v, err := n.standaloneView()
		if err == nil {
			err = server.Publish(v)
		}
		if err != nil {
			cancel()
			return nil, err
		}
		return r, nil
	}
	r.running.Go(func() { r.followTable(ctx) })
	r.running.Go(func() { r.followGossip(ctx) })
	return r, nil
}

// stop ends it, and all streams.
func (r *ringAnnouncer) stop() {
	r.cancel()
	r.server.Close()
	r.running.Wait()
}

// standaloneView returns the ring of a standalone node, which owns all. It is empty if clients
// could not reach the node.
func (n *Node) standaloneView() (xds.View, error) {
	addr, err := advertised(n.GRPCAddr(), n.cfg.Cluster.Advertise)
	if err != nil { // a machine that has nothing but its loopback
		_, port, _ := net.SplitHostPort(n.GRPCAddr())
		addr = net.JoinHostPort("127.0.0.1", port)
	}
	node := xds.Node{HashKey: cmp.Or(n.cfg.Cluster.HashKey, addr)}
	if node.GRPC, err = lookUp(addr); err == nil {
		err = xds.CheckAddr(node.GRPC)
	}
	if err != nil {
		n.cfg.Log.Warn("xDS clients are not told of this node: they need an IP address by which they reach it; set --advertise", "addr", addr, "error", err)
		return xds.View{}, nil
	}
	app, err := n.cfg.appAddr()
	if err != nil {
		return xds.View{}, err
	}
	node.App, _ = netip.ParseAddrPort(app) // "" is none
	return xds.View{Epoch: n.epoch(), Nodes: []xds.Node{node}}, nil
}

func (r *ringAnnouncer) followTable(ctx context.Context) {
	for {
		t := r.announce()
		if _, err := r.n.cluster.group.Await(ctx, t.Epoch); err != nil {
			return
		}
	}
}

// followGossip looks again when gossip tells where an application is.
func (r *ringAnnouncer) followGossip(ctx context.Context) {
	for {
		changed := r.n.cluster.pool.Changed()
		r.announce()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// announce publishes the ring by the newest table, which it returns.
func (r *ringAnnouncer) announce() *table.Table {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.n.cluster.group.Table()
	members := onRing(t, r.stable)
	if t.Transition == nil {
		r.stable = make(map[table.Holder]bool, len(members))
		for _, m := range members {
			r.stable[m.Holder()] = true
		}
	}
	v := r.view(t.Epoch, members, r.n.cluster.pool.Facts())
	v.SplitKeys = splitKeys(t)
	if err := r.server.Publish(v); err != nil {
		r.n.cfg.Log.Error("telling xDS clients of the ring", "error", err)
	}
	return t
}

// onRing returns the members on the ring as it stands; while it changes, on the ring
// before. A node that joins comes when its transition has ended, one that is drained
// goes when its transition has, and one that was removed is gone at once. stable is the
// members when last no transition ran; nil if this node did not see that.
func onRing(t *table.Table, stable map[table.Holder]bool) []table.Member {
	var on []table.Member
	for _, m := range t.Members {
		is := m.Phase == table.Active
		switch {
		case t.Transition == nil || stable == nil:
			is = is || m.Phase == table.Leaving
		default:
			is = is || m.Phase != table.Drained && stable[m.Holder()]
		}
		if is {
			on = append(on, m)
		}
	}
	if len(on) > 0 {
		return on
	}
	for _, node := range t.WantedNodes() { // the first ring, and one whose old nodes have all died
		if m, ok := t.Member(node); ok && len(t.Rows) > 0 {
			on = append(on, m)
		}
	}
	return on
}

// splitKeys returns the keys of the objects whose parts are served. Another object of such
// a key is reached by a hop.
func splitKeys(t *table.Table) (keys []string) {
	for i := range t.Splits {
		if t.Splits[i].Phase == table.Open {
			keys = append(keys, t.Splits[i].Key)
		}
	}
	return keys
}

// view returns the ring as xDS clients are told of it. Whom gossip does not know, or not
// yet, is where he was. Addresses that are no use to clients are left out, so that
// one of them does not keep all others from being told. r.mu must be held.
func (r *ringAnnouncer) view(epoch uint64, members []table.Member, facts []member.Fact) xds.View {
	v := xds.View{Epoch: epoch}
	known := make(map[string]member.Fact, len(facts))
	for _, f := range facts {
		if f.Ours {
			known[f.Self.Node] = f
		}
	}
	seen, useless := make(map[table.Holder]xds.Node, len(members)), map[table.Holder]string{}
	for _, m := range members {
		node := r.seen[m.Holder()]
		node.HashKey = m.HashKey
		f, ok := known[m.Node]
		if a, is := reached(m.GRPCAddr, f.Addr); is {
			node.GRPC = a
		}
		if ok {
			node.App, _ = netip.ParseAddrPort(f.Self.AppAddr) // "" is none
		}
		wrong, logged := dropUseless(&node), r.useless[m.Holder()]
		switch {
		case wrong != nil && wrong.Error() != logged:
			r.n.cfg.Log.Error("xDS clients are not told of an address of a node, for they could not use it", "node", m.Node, "error", wrong)
			logged = wrong.Error()
		case wrong == nil && ok:
			logged = ""
		}
		useless[m.Holder()] = logged
		seen[m.Holder()] = node
		if node.GRPC.IsValid() {
			v.Nodes = append(v.Nodes, node)
		} else if _, before := r.seen[m.Holder()]; !before && wrong == nil {
			r.n.cfg.Log.Warn("xDS clients are not told of a node yet: its address has a name, and gossip does not know where that is", "node", m.Node, "addr", m.GRPCAddr)
		}
	}
	r.seen, r.useless = seen, useless
	return v
}

// dropUseless takes the addresses away that clients cannot use, and says what is
// wrong with them.
func dropUseless(n *xds.Node) error {
	check := func(what string, a *netip.AddrPort) error {
		if *a == (netip.AddrPort{}) {
			return nil
		}
		err := xds.CheckAddr(*a)
		if err != nil {
			*a, err = netip.AddrPort{}, fmt.Errorf("that of its %s: %w", what, err)
		}
		return err
	}
	return errors.Join(check("API", &n.GRPC), check("application", &n.App))
}

// reached returns the IP address of host:port, as xDS clients need it. A node that goes by a
// name is where it gossips.
func reached(addr, gossips string) (netip.AddrPort, bool) {
	if a, err := netip.ParseAddrPort(addr); err == nil {
		return a, true
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return netip.AddrPort{}, false
	}
	host, err := netip.ParseAddrPort(gossips)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(host.Addr(), uint16(n)), true
}
