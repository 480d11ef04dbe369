package node

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/ring/member"
)

// What may be said to the pool, as `serf event NAME ID` does, and asked of it, as
// `serf query NAME` does.
const (
	drainEvent   = member.EventPrefix + "drain"   // payload: the id of a node
	undrainEvent = member.EventPrefix + "undrain" // likewise
	statusQuery  = member.EventPrefix + "status"
)

// heedPatience bounds what is done about one event.
const heedPatience = 15 * time.Second

// heed does what events ask this node to do, one after the other. Each node acts
// for itself alone.
func (c *cluster) heed() {
	for {
		select {
		case e := <-c.pool.Events():
			c.heard(e)
		case <-c.ctx.Done():
			return
		}
	}
}

func (c *cluster) heard(e member.Event) {
	if e.Name != drainEvent && e.Name != undrainEvent {
		return
	}
	named := string(e.Payload)
	log := c.log.With("event", e.Name, "for", clip(named))
	// Of an event for nobody one node is to speak: the one that leads.
	if _, is := c.group.Table().Member(named); named != c.cfg.ID && (is || c.group.Leader() != c.cfg.ID) {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, heedPatience)
	defer cancel()
	switch err := c.pool.Fresh(ctx, e); {
	case errors.Is(err, member.ErrStale):
		log.Info("an old event is not heeded", "why", err)
		return
	case err != nil:
		log.Warn("an event is not heeded: it may be an old one; say it again", "why", err)
		return
	}
	if named != c.cfg.ID {
		log.Warn("an event names no member of the cluster; its payload has to be the id of a node", "bytes", len(named))
		return
	}
	s, err := c.Drain(ctx, rpc.DrainOrder{Node: c.cfg.ID, Undo: e.Name == undrainEvent})
	if err != nil {
		log.Warn("an event was not obeyed", "why", err)
		return
	}
	log.Info("an event was obeyed", "phase", s.Member.Phase, "already", s.Already, "rows", s.Owned, "standby rows", s.Standby)
}

// maxQuoted bounds what the log quotes from others, in bytes.
const maxQuoted = 64

func clip(s string) string {
	if len(s) > maxQuoted {
		return s[:maxQuoted] + "…"
	}
	return s
}

// hint is the answer to a status query: what one node thinks, in few bytes.
type hint struct {
	Node        string `json:"node"`
	Phase       string `json:"phase"` // "" = it is no member
	Ready       bool   `json:"ready"`
	Epoch       uint64 `json:"epoch"`
	LeaseLeftMS int64  `json:"lease_left_ms"`
	RowsOwned   int    `json:"rows_owned"`
	RowsStandby int    `json:"rows_standby"`
	Leader      string `json:"leader"` // "" = it knows none
}

// answer answers queries of the pool. It may be asked before the cluster is whole.
func (c *cluster) answer(query string, _ []byte) []byte {
	if query != statusQuery || !c.whole.Load() {
		return nil
	}
	t, self := c.group.Table(), c.group.Self()
	h := hint{Node: self.Node, Ready: c.ready() == nil, Epoch: t.Epoch, LeaseLeftMS: c.group.LeaseLeft().Milliseconds(), Leader: c.group.Leader()}
	if s, ok := rpc.DrainStateOf(t, self.Node); ok && s.Member.Holder() == self {
		h.Phase, h.RowsOwned, h.RowsStandby = s.Member.Phase.String(), s.Owned, s.Standby
	}
	b, err := json.Marshal(h)
	if err != nil {
		panic("node: " + err.Error()) // nothing in it can fail
	}
	return b
}
