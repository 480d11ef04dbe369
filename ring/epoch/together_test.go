package epoch

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch/lease"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestDeathsOfOneMoment: two of four members die at one moment, and each had renewed its lease some time before. They are
// removed together whatever these times are: else the standby, which is dead, would be promoted, and rows would wait for its
// disk alone. One that dies alone is removed as soon as its lease is over.
func TestDeathsOfOneMoment(t *testing.T) {
	const ttl, margin, tick = int64(2 * time.Second), int64(50 * time.Millisecond), int64(50 * time.Millisecond)
	n := []table.Holder{process("n1", 1), process("n2", 1), process("n3", 1), process("n4", 1)}
	tab := durableTable(t, 4, table.Always)
	for _, h := range n {
		for _, by := range n {
			if c := copies(tab, h, by); len(c.Sync.Rows) > 0 {
				tab = grown(t, tab, c)
			}
		}
	}
	for _, dead := range [][]table.Holder{n[:1], n[:2], {n[2], n[0]}, n[1:4]} {
		for phase := range int64(14) {
			cfg := Config{TTL: time.Duration(ttl), Margin: time.Duration(margin), Log: slog.New(slog.DiscardHandler),
				Dial: func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody is there") },
				Peers: func() (all []Peer) {
					for _, h := range dead {
						all = append(all, Peer{Node: h.Node})
					}
					return all
				}}
			g := &Group{rule: serving.New(n[3]), cfg: cfg, halt: t.Context()}
			k := &keeper{g: g, cfg: cfg}
			k.grants, k.synced, k.mutes, k.candidates = lease.NewGrants[table.Holder](cfg.lease()), tab, mutes{}, map[string]candidate{}
			k.grants.BeginTerm(1, 0)
			k.grants.Ready(cfg.lease())
			k.grants.Members(0, n)
			died, granted := 5*ttl, map[table.Holder]uint64{}
			var over []table.Holder
			for k.now = 0; len(over) == 0 && k.now < 20*ttl; k.now += tick {
				for i, h := range n {
					if slices.Contains(dead, h) && k.now > died || (k.now+int64(i)*phase*tick)%(ttl/3/tick*tick) != 0 {
						continue
					}
					granted[h], _ = k.grants.Grant(h, k.now, 1, granted[h])
				}
				k.grants.Tick(k.now)
				over = k.overTogether()
			}
			if len(over) != len(dead) {
				t.Errorf("phase %d: of %v, who have died together, %v are removed first", phase, dead, over)
			}
			if late := k.now - died - ttl - margin; late > 2*tick && len(dead) == 1 {
				t.Errorf("phase %d: it is removed %s after its lease", phase, time.Duration(late))
			}
		}
	}
}

// copies makes a process the synced standby of the rows of an owner that want it.
func copies(tab *table.Table, owner, standby table.Holder) table.Command {
	c := &table.Sync{WantSince: tab.WantSince, Owner: owner, Standby: standby, Kept: true}
	for i, r := range tab.Rows {
		after, upTo := tab.Segment(i)
		if _, wanted := tab.Wants(upTo); r.Owner == owner && wanted == standby {
			c.Rows = append(c.Rows, table.Stamp{After: after, End: upTo, Since: r.Since})
		}
	}
	return table.Command{Sync: c}
}
