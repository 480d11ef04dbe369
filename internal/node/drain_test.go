package node

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/drain"
	"github.com/keystead/keystead/ring/epoch/table"
	"github.com/keystead/keystead/ring/member"
)

// TestDrainWithoutOthers asks nodes that cannot be drained: one that runs alone,
// and the only one of a cluster.
func TestDrainWithoutOthers(t *testing.T) {
	n := start(t, nil)
	if s, err := n.Drain(t.Context()); !errors.Is(err, drain.ErrAlone) || s.Member.Node != n.cfg.ID || n.DrainState().Owned != 0 {
		t.Errorf("alone: %+v %v", s, err)
	}
	c := start(t, func(c *Config) {
		c.Cluster = ClusterConfig{ID: "c", Bootstrap: true, RaftAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", Profile: "local"}
	})
	eventually(t, "it is ready", func() bool { return c.ready() == nil && c.DrainState().Member.Phase == table.Active })
	if _, err := c.Drain(t.Context()); err == nil || !strings.Contains(err.Error(), "nobody would be left") {
		t.Errorf("the only one: %v", err)
	}
	if s := c.DrainState(); s.Member.Phase != table.Active || s.Owned != 256 {
		t.Errorf("it is %+v", s)
	}
	c.DrainBeforeStop(context.Background(), patience) // says so, and waits for nothing
	var h hint
	if err := json.Unmarshal(c.cluster.answer(statusQuery, nil), &h); err != nil || h.Node != "n1" || h.Phase != "active" || !h.Ready || h.RowsOwned != 256 || h.Leader != "n1" {
		t.Errorf("it answers %+v, %v", h, err)
	}
	if c.cluster.answer("keystead-other", nil) != nil {
		t.Error("it answers what it does not know")
	}
}

// TestHintFits makes the longest answer that there can be.
func TestHintFits(t *testing.T) {
	b, err := json.Marshal(hint{
		Node: strings.Repeat("n", 64), Phase: "leaving", Epoch: 1<<64 - 1, LeaseLeftMS: -1 << 63,
		RowsOwned: -1 << 63, RowsStandby: -1 << 63, Leader: strings.Repeat("l", 64),
	})
	if err != nil || len(b) > member.MaxAnswer {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
