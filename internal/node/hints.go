package node

import (
	"encoding/json"

	"github.com/keystead/keystead/ring/member"
)

// statusQuery is what may be asked of the pool, as `serf query NAME` does.
const statusQuery = member.EventPrefix + "status"

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
	if query != statusQuery || !c.complete.Load() {
		return nil
	}
	t, self := c.group.Table(), c.group.Self()
	h := hint{Node: self.Node, Ready: c.ready() == nil, Epoch: t.Epoch, LeaseLeftMS: c.group.LeaseLeft().Milliseconds(), Leader: c.group.Leader()}
	if s, ok := t.DrainState(self.Node); ok && s.Member.Holder() == self {
		h.Phase, h.RowsOwned, h.RowsStandby = s.Member.Phase.String(), s.Owned, s.Standby
	}
	b, err := json.Marshal(h)
	if err != nil {
		panic("node: " + err.Error()) // nothing in it can fail
	}
	return b
}
