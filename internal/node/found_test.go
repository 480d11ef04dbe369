package node

import (
	"strings"
	"testing"
	"time"

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

// TestVigil: the founders are to be seen without a break, by looks without a gap.
func TestVigil(t *testing.T) {
	t.Parallel()
	const wait, step = int64(20 * time.Second), int64(founderPoll)
	run := func(change func(now int64, seen *bool) int64) (at int64) {
		v := &founderWatch{wait: wait}
		for now := int64(1); now < 10*wait; now += step {
			seen := true
			now += change(now, &seen)
			if v.poll(now, seen) {
				return now - 1
			}
		}
		return -1
	}
	for name, tc := range map[string]struct {
		change   func(now int64, seen *bool) int64
		from, to time.Duration // when it is over; from < 0 = never
	}{
		"all the time":       {func(int64, *bool) int64 { return 0 }, 20 * time.Second, 20 * time.Second},
		"never":              {func(_ int64, seen *bool) int64 { *seen = false; return 0 }, -1, -1},
		"not once":           {func(now int64, seen *bool) int64 { *seen = now/step != 30; return 0 }, 35 * time.Second, 36 * time.Second},
		"now and then":       {func(now int64, seen *bool) int64 { *seen = now/step%39 != 0; return 0 }, -1, -1},
		"slow looks":         {func(int64, *bool) int64 { return int64(founderGap) - step }, 23 * time.Second, 24 * time.Second},
		"looks far apart":    {func(int64, *bool) int64 { return int64(founderGap) }, -1, -1},
		"stopped for a time": {func(now int64, _ *bool) int64 { return map[bool]int64{true: wait}[now/step == 38] }, 59 * time.Second, 60 * time.Second},
	} {
		if at := run(tc.change); tc.from < 0 && at != -1 || tc.from >= 0 && (at < int64(tc.from) || at > int64(tc.to)) {
			t.Errorf("%s: after %s, want %s to %s", name, time.Duration(at), tc.from, tc.to)
		}
	}
	v := newFounderWatch(member.LAN)
	v.poll(0, true)
	if v.fresh(int64(founderGap)) != nil || v.fresh(int64(founderGap)+1) == nil {
		t.Error("a look counts for longer, or not for so long")
	}
	if v.wait <= int64(2*member.LAN.Reconnect()) {
		t.Errorf("it waits %s, no longer than two rounds of reconnects", time.Duration(v.wait))
	}
	for now := int64(0); now <= v.wait; now += step {
		v.poll(now, true)
	}
	if v.restart(); v.poll(v.wait+step, true) {
		t.Error("it does not begin anew")
	}
}

// TestFewFounders: two that lose their disks cannot tell that from a first start.
func TestFewFounders(t *testing.T) {
	t.Parallel()
	for ids, want := range map[string]string{"n1": "only 1", "n1,n2": "only 2 in --founders: name at least 3", "n1,n2,n3": ""} {
		err := ClusterConfig{Founders: strings.Split(ids, ",")}.validateFounders()
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--bootstrap")) {
			t.Errorf("%s: %v", ids, err)
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
