package node

import (
	"strings"
	"testing"

	"github.com/keystead/keystead/ring/member"
)

// TestUnfounded: one founder that is missing, failed, of another cluster, named twice
// or a member of a cluster is enough for none to be made.
func TestUnfounded(t *testing.T) {
	t.Parallel()
	c := &cluster{cfg: Config{ID: "n1", Cluster: ClusterConfig{Founders: []string{"n1", "n2", "n3"}}}}
	fact := func(name, uid string, change ...func(*member.Fact)) member.Fact {
		f := member.Fact{Name: name, Ours: true, State: member.Alive, Self: member.Self{Node: name, UID: uid}}
		for _, ch := range change {
			ch(&f)
		}
		return f
	}
	failed := func(f *member.Fact) { f.State = member.Failed }
	for _, tc := range []struct {
		name  string
		facts []member.Fact
		want  string // "" = the cluster is made
	}{
		{"all are there", []member.Fact{fact("n1", ""), fact("n2", ""), fact("n3", "")}, ""},
		{"others as well", []member.Fact{fact("n1", ""), fact("n2", ""), fact("n3", ""), fact("n4", "")}, ""},
		{"it drew a number before a crash", []member.Fact{fact("n1", "u"), fact("n2", ""), fact("n3", "")}, ""},
		{"it is alone", []member.Fact{fact("n1", "")}, "n2, n3 not seen"},
		{"one is missing, and another node is there", []member.Fact{fact("n1", ""), fact("n2", ""), fact("n4", "")}, "n3 not seen"},
		{"one has failed", []member.Fact{fact("n1", ""), fact("n2", ""), fact("n3", "", failed)}, "n3 not seen"},
		{"one leaves", []member.Fact{fact("n1", ""), fact("n2", "", func(f *member.Fact) { f.State = member.Leaving }), fact("n3", "")}, "n2 not seen"},
		{"one is a stranger", []member.Fact{fact("n1", ""), fact("n2", ""), fact("n3", "", func(f *member.Fact) { f.Ours = false })}, "n3 not seen"},
		{"its own name is another's as well", []member.Fact{fact("n1", "", func(f *member.Fact) { f.Conflict = "10.0.0.9:7402" }), fact("n2", ""), fact("n3", "")}, "n1 not seen, or not under its name alone"},
		{"a founder belongs to a cluster", []member.Fact{fact("n1", ""), fact("n2", "u"), fact("n3", "")}, "n2 belongs to a cluster"},
		{"another node does", []member.Fact{fact("n1", ""), fact("n2", ""), fact("n3", ""), fact("n4", "u")}, "n4 belongs to a cluster"},
		{"one that has failed did", []member.Fact{fact("n1", ""), fact("n2", ""), fact("n3", ""), fact("n4", "u", failed)}, "n4 belongs to a cluster"},
	} {
		got := c.unfounded(tc.facts)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// TestFoundsAlone: only the first founder ever makes the cluster.
func TestFoundsAlone(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{"n1": true, "n2": false, "n4": false} {
		c := &cluster{cfg: Config{ID: id, Cluster: ClusterConfig{Founders: []string{"n1", "n2"}}}}
		if c.founds() != want {
			t.Errorf("%s: %v", id, !want)
		}
	}
	if (&cluster{cfg: Config{ID: "n1"}}).founds() {
		t.Error("a node without founders")
	}
}
