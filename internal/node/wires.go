package node

import (
	"context"
	"net"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/memberlist"

	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Wires are how a node reaches others; the zero Wires are the machine's sockets.
type Wires struct {
	Listen func(addr string) (net.Listener, error)
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	Gossip memberlist.Transport
	Wall   func() time.Time
	// Storage outlives the node, when a simulation restarts it.
	Storage *epoch.Storage
	// Disk is the file system of the store on disk; nil = the system's.
	Disk vfs.FS
	// Snapshots says when the log of the cluster is cut short. Default: epoch's.
	Snapshots epoch.Snapshots
	// AdoptAfter is epoch.Config.AdoptAfter.
	AdoptAfter time.Duration
	// Level is that which the node tells by gossip. Default table.Level. With a lower one, a
	// cluster is made as if an old program were there, and adopts its level later.
	Level uint32
}

func (w Wires) withDefaults() Wires {
	if w.Listen == nil {
		w.Listen = func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }
	}
	if w.Dial == nil {
		w.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", addr)
		}
	}
	if w.Wall == nil {
		w.Wall = time.Now
	}
	if w.Level == 0 {
		w.Level = table.Level
	}
	return w
}
