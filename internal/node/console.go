package node

import (
	"cmp"
	"context"
	"sync"

	"github.com/keystead/keystead/internal/console"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/owner"
)

// openConsole makes the page of the admin address. It shows the API once there is one.
func (n *Node) openConsole(calls *rpc.Metrics) *console.Console {
	n.console = console.New(console.Config{
		Totals: func() console.Totals {
			t := calls.Totals()
			return console.Totals{Operations: t.Operations, Upper: t.Upper, Calls: t.Calls}
		},
		Stock: func() console.Stock {
			st := n.store.Stats()
			return console.Stock{Objects: byName(st.Objects), Bytes: st.Bytes, MaxBytes: cmp.Or(n.cfg.Store.MaxBytes, owner.DefaultMaxBytes)}
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { n.console.Run(ctx) })
	n.stops = append(n.stops, func() { cancel(); running.Wait() })
	return n.console
}
