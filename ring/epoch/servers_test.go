package epoch

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/ring/epoch/table"
)

// TestServerAddr: where a server is, only the process says that has its name in gossip.
func TestServerAddr(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		peers []Peer
		want  raft.ServerAddress // "" = that of raft's configuration
	}{
		{name: "itself", peers: []Peer{{Node: "n2", RaftID: "n2/1", RaftAddr: "home:1", Alive: true}}, want: "n2/1@home:1"},
		{name: "it has failed, and is where it was", peers: []Peer{{Node: "n2", RaftID: "n2/1", RaftAddr: "home:1"}}, want: "n2/1@home:1"},
		{name: "a name before it", peers: []Peer{{Node: "aa", RaftID: "n2/1", RaftAddr: "far:1", Alive: true}, {Node: "n2", RaftID: "n2/1", RaftAddr: "home:1", Alive: true}}, want: "n2/1@home:1"},
		{name: "a name before it, which has left", peers: []Peer{{Node: "aa", RaftID: "n2/1", RaftAddr: "far:1"}, {Node: "n2", RaftID: "n2/1", RaftAddr: "home:1", Alive: true}}, want: "n2/1@home:1"},
		{name: "another name alone", peers: []Peer{{Node: "zz", RaftID: "n2/1", RaftAddr: "far:1", Alive: true}}},
		{name: "a later process of the name", peers: []Peer{{Node: "n2", RaftID: "n2/2", RaftAddr: "home:2", Alive: true}}},
		{name: "no address", peers: []Peer{{Node: "n2", RaftID: "n2/1", Alive: true}}},
	} {
		g := &Group{cfg: Config{Peers: func() []Peer { return tc.peers }}}
		if got, err := g.ServerAddr("n2/1"); got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("%s: %q, %v; want %q", tc.name, got, err, tc.want)
		}
	}
}

// TestForgedServers: gossip tells of many servers where nobody is, and of members at other
// addresses. None becomes a server, those that are stay, and a node that is there joins.
func TestForgedServers(t *testing.T) {
	t.Parallel()
	p := newPool()
	const forged = 40
	hints := func() []Peer {
		peers := p.list()
		for _, q := range p.list() {
			peers = slices.Insert(peers, 0, Peer{Node: "aa" + q.Node, RaftID: q.RaftID, RaftAddr: "127.0.0.1:1", Alive: true})
		}
		for i := range forged {
			node := fmt.Sprintf("bb%d", i)
			peers = slices.Insert(peers, 0, Peer{Node: node, RaftID: node + "/1", RaftAddr: "127.0.0.1:1", Alive: true})
		}
		return peers
	}
	groups := form(t, p, 3, func(c *Config) { c.Peers = hints })
	voters(t, 3, groups...)
	for range 3 {
		g := groups[0]
		if _, err := g.Propose(t.Context(), table.Command{Raise: &table.Raise{Above: g.Table().Epoch}}); err != nil {
			t.Errorf("nothing is agreed on: %v", err)
		}
	}
	if all, others := groups[0].Servers(); len(all) != 3 || len(others) != 0 {
		t.Errorf("%v vote and %v follow", all, others)
	}
}
