package node

import (
	"strings"
	"testing"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	"github.com/keystead/keystead/ring/member"
)

func TestWaitsFor(t *testing.T) {
	ours := func(name, uid string) member.Fact {
		return member.Fact{Name: name, Ours: true, State: member.Alive, Cluster: "c", Self: member.Self{Node: name, UID: uid}}
	}
	self := ours("n1", "")
	for name, tc := range map[string]struct {
		settings ClusterConfig
		facts    []member.Fact
		want     string
		voters   []string
	}{
		"a majority is missing": {settings: ClusterConfig{ID: "c"}, voters: []string{"n1", "n2", "n3"},
			want: "a majority of the voters that its log names, n1, n2, n3, has to run: of n2, n3 nothing is heard"},
		"a majority is missing, and one is there": {settings: ClusterConfig{ID: "c", Join: []string{"a:1"}}, voters: []string{"n1", "n2", "n3", "n4", "n5"},
			facts: []member.Fact{ours("n2", "u")}, want: "a majority of the voters that its log names, n1, n2, n3, n4, n5, has to run: of n3, n4, n5 nothing is heard"},
		"a majority is there": {settings: ClusterConfig{ID: "c", Join: []string{"a:1"}}, voters: []string{"n1", "n2", "n3"},
			facts: []member.Fact{ours("n2", "u")}, want: "it has asked n2, which is in it, and is not admitted yet"},
		"told nothing":     {settings: ClusterConfig{ID: "c"}, facts: nil, want: "it was told neither to make one (--bootstrap, --founders) nor whom to --join"},
		"nobody there":     {settings: ClusterConfig{ID: "c", Join: []string{"a:1", "b:1"}}, facts: nil, want: "nobody at --join a:1,b:1 answers"},
		"founders missing": {settings: ClusterConfig{ID: "c", Founders: []string{"n1", "n2", "n3"}}, facts: []member.Fact{ours("n3", "")}, want: "waiting for founders n2"},
		"founders there": {settings: ClusterConfig{ID: "c", Founders: []string{"n1", "n2", "n3"}}, facts: []member.Fact{ours("n3", ""), ours("n2", "")},
			want: "all founders are there; n1 makes the cluster when they have been for a while"},
		"no cluster either": {settings: ClusterConfig{ID: "c", Join: []string{"a:1"}}, facts: []member.Fact{ours("n3", ""), ours("n2", "")},
			want: "it has found n2, n3, which are in no cluster either: start one node with --bootstrap"},
		"asked":         {settings: ClusterConfig{ID: "c", Join: []string{"a:1"}}, facts: []member.Fact{ours("n2", "u")}, want: "it has asked n2, which is in it, and is not admitted yet"},
		"another":       {settings: ClusterConfig{ID: "c", Join: []string{"a:1"}}, facts: []member.Fact{{Name: "n2", State: member.Alive, Cluster: "d"}}, want: `n2 is of cluster "d", this node is of "c"`},
		"a stock agent": {settings: ClusterConfig{ID: "c", Join: []string{"a:1"}}, facts: []member.Fact{{Name: "agent", State: member.Alive}}, want: "nobody at --join a:1 answers"},
		"taken id": {settings: ClusterConfig{ID: "c", Join: []string{"a:1"}}, facts: []member.Fact{{Name: "n1", State: member.Alive, Ours: true, Conflict: "b:2"}, ours("n2", "u")},
			want: `another node, at b:2, has the --id "n1", too`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.settings.waitsFor("n1", tc.voters, append([]member.Fact{self}, tc.facts...)); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// TestCallsOfANodeThatWaits: a call to a node that has not heard of its cluster is told
// so, instead of waiting for an owner.
func TestCallsOfANodeThatWaits(t *testing.T) {
	t.Parallel()
	n := start(t, oneOf("n1", "", func(c *Config) { c.Cluster.Founders = []string{"n1", "n2", "n3"} }))
	conn := dial(t, n)
	eventually(t, "the call is told so", func() bool {
		_, err := counterpb.NewCounterServiceClient(conn).Get(bounded(t), &counterpb.GetRequest{Key: "k"})
		return err != nil && strings.Contains(err.Error(), `is no member of the cluster "c" yet: waiting for founders n2, n3; nothing happened`)
	})
	st, err := clusterpb.NewClusterServiceClient(conn).GetStatus(bounded(t), &clusterpb.GetStatusRequest{})
	if err != nil || st.Cluster != "c" || st.Waiting != "waiting for founders n2, n3" {
		t.Errorf("the status: %v, %v", st, err)
	}
}
