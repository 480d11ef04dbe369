package drain

import (
	"context"
	"time"
)

// The events by which everybody that may gossip orders drains, as `serf event NAME ID`
// does; the payload is the id of a node.
const (
	EventDrain   = "keystead-drain"
	EventUndrain = "keystead-undrain"
)

// Event is what was said to all nodes at once.
type Event struct {
	Name    string
	Payload []byte
	// Fresh returns nil for an event that was said while this process listened, and
	// else why it must not be acted on; stale reports that it is known to be older.
	Fresh func(context.Context) (stale bool, err error)
}

const (
	// eventPatience bounds what is done about one event.
	eventPatience = 15 * time.Second
	// maxQuoted bounds what the log quotes from others, in bytes.
	maxQuoted = 64
)

// Heard acts on an event that is an order about this node. Each node acts for itself
// alone.
func (d *Drainer) Heard(ctx context.Context, e Event) {
	if e.Name != EventDrain && e.Name != EventUndrain {
		return
	}
	g, named := d.cfg.Group, string(e.Payload)
	log := d.cfg.Log.With("event", e.Name, "for", clip(named))
	// Of an event for nobody one node is to speak: the one that leads.
	if _, is := g.Table().Member(named); named != d.cfg.Node && (is || g.Leader() != d.cfg.Node) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, eventPatience)
	defer cancel()
	switch stale, err := e.Fresh(ctx); {
	case stale:
		log.Info("ignored a stale event", "why", err)
		return
	//guard:drain-fresh
	case err != nil:
		log.Warn("ignored an event that may be a stale one; say it again", "why", err)
		return
	}
	if named != d.cfg.Node {
		log.Warn("an event names no member of the cluster; its payload has to be the id of a node", "bytes", len(named))
		return
	}
	s, err := d.Give(ctx, Order{Node: d.cfg.Node, Undo: e.Name == EventUndrain})
	if err != nil {
		log.Warn("did not apply an event", "why", err)
		return
	}
	log.Info("applied an event", "phase", s.Member.Phase, "already", s.Already, "rows", s.Owned, "standby rows", s.Standby)
}

func clip(s string) string {
	if len(s) > maxQuoted {
		return s[:maxQuoted] + "…"
	}
	return s
}
