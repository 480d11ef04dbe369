package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// When a command paints.
func TestColorMode(t *testing.T) {
	for _, tc := range []struct {
		mode     colorMode
		terminal bool
		env      map[string]string
		want     bool
	}{
		{colorAuto, true, nil, true},
		{colorAuto, true, map[string]string{"TERM": "xterm-256color"}, true},
		{colorAuto, true, map[string]string{"NO_COLOR": "1"}, false},
		{colorAuto, true, map[string]string{"TERM": "dumb"}, false},
		{colorAuto, false, nil, false},
		{colorAlways, false, map[string]string{"NO_COLOR": "1", "TERM": "dumb"}, true},
		{colorNever, true, nil, false},
	} {
		if got := tc.mode.paints(tc.terminal, func(name string) string { return tc.env[name] }); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
	m := colorAuto
	if err := m.Set("sometimes"); err == nil || !strings.Contains(err.Error(), "choose auto, always or never") || m != colorAuto {
		t.Error(m, err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if colorAuto.canvas(f).color || !colorAlways.canvas(f).color || colorAuto.canvas(&strings.Builder{}).color {
		t.Error("a file is not painted, unless that is asked for")
	}
}

// The colours say how something stands, and nothing that the text does not say.
func TestStatusColors(t *testing.T) {
	const red, yellow, green = "\x1b[31m", "\x1b[33m", "\x1b[32m"
	for _, tc := range []struct {
		name   string
		change func(st *clusterpb.GetStatusResponse, m []*clusterpb.MemberStatus)
		has    []string
		lacks  []string
	}{
		{"healthy", func(*clusterpb.GetStatusResponse, []*clusterpb.MemberStatus) {}, []string{green + "healthy"}, []string{red, yellow}},
		{"drained", func(_ *clusterpb.GetStatusResponse, m []*clusterpb.MemberStatus) {
			m[2].Member.Phase = clusterpb.Phase_PHASE_DRAINED
		}, []string{yellow + "healthy, but n03 is drained", yellow + "drained"}, []string{red, green}},
		{"cut off", func(st *clusterpb.GetStatusResponse, m []*clusterpb.MemberStatus) {
			st.Leader, st.Serving, st.LeaseLeftNs, st.RowsUnowned = "", false, 0, 3
			m[2].Gossip = clusterpb.Gossip_GOSSIP_FAILED
		}, []string{red + "n01 knows no leader", red + "n01 does not serve", red + "1024, 0 to move, 3 without owner", red + "-", red + "n01: does not serve", red + "failed"}, []string{green}},
		{"left", func(_ *clusterpb.GetStatusResponse, m []*clusterpb.MemberStatus) {
			m[1].Gossip, m[2].Gossip, m[2].Member = clusterpb.Gossip_GOSSIP_LEFT, clusterpb.Gossip_GOSSIP_LEFT, nil
		}, []string{red + "left", "nonvoter  left"}, nil},
	} {
		st, members := statusOf(4)
		tc.change(st, members)
		if tc.name == "left" { // a node that is no member any more may be gone
			members[2].Raft = clusterpb.Raft_RAFT_NONVOTER
		}
		o := newOverview(st, members, 0)
		for _, print := range []func(out *strings.Builder, on canvas) error{
			func(out *strings.Builder, on canvas) error { return o.print(out, "127.0.0.1:7400", on) },
			func(out *strings.Builder, on canvas) error { return printMembers(out, o.Members, on) },
		} {
			var without, with strings.Builder
			if err := print(&without, canvas{width: 80, cut: true}); err != nil {
				t.Fatal(err)
			}
			if err := print(&with, canvas{width: 80, cut: true, color: true}); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(without.String(), "\x1b") || escapes.ReplaceAllString(with.String(), "") != without.String() {
				t.Errorf("%s: in colours it says something else:\n%s\n%s", tc.name, with.String(), without.String())
			}
			for _, bit := range tc.lacks {
				if strings.Contains(with.String(), bit) {
					t.Errorf("%s: has %q:\n%q", tc.name, bit, with.String())
				}
			}
		}
		var out strings.Builder
		_ = o.print(&out, "", canvas{width: 200, cut: true, color: true})
		for _, bit := range tc.has {
			if !strings.Contains(out.String(), bit) {
				t.Errorf("%s: lacks %q:\n%q", tc.name, bit, out.String())
			}
		}
	}
}

// A key that is hot is painted, and its line is as wide as without.
func TestHotColors(t *testing.T) {
	v := &hotJSON{
		Nodes: []hotNodeJSON{{ID: "n1"}, {ID: "n2", Error: "cannot reach a node"}},
		Keys: []hotKeyJSON{
			{Key: "a\x1b[31mb", Kind: "limit", Owner: "n1", Hot: true, HotFor: seconds(12e9)}, {Key: "calm", Kind: "limit", Owner: "n1"},
			{Key: "split", Kind: "limit", Split: &hotSplitJSON{Phase: "opening"}}, {Key: "parts", Kind: "limit", Split: &hotSplitJSON{Phase: "open"}},
		},
	}
	without, with := v.draw(canvas{}), v.draw(canvas{color: true})
	if got := escapes.ReplaceAllString(with, ""); got != without {
		t.Errorf("%s\n%s", got, without)
	}
	for bit, want := range map[string]int{"\x1b[33mhot 12s": 1, "\x1b[33mopening": 1, "\x1b[31mNothing of n2": 1, "\x1b[33m": 2, "\x1b[31m": 1} {
		if n := strings.Count(with, bit); n != want {
			t.Errorf("%q: %d times in\n%q", bit, n, with)
		}
	}
}

// A line that is cut for a terminal keeps its colours, and they end with it.
func TestClip(t *testing.T) {
	const red, end = "\x1b[31m", "\x1b[0m"
	for _, tc := range []struct {
		line  string
		width int
		want  string
	}{
		{"plain text", 6, "plain…"},
		{red + "text" + end, 4, red + "text" + end},
		{red + "text" + end, 3, red + "te…" + end},
		{"a " + red + "text" + end + " b", 8, "a " + red + "text" + end + " b"},
		{"a " + red + "text" + end + " b", 7, "a " + red + "text" + end + "…"},
		{red + "ä" + end + "öü", 2, red + "ä" + end + "…"},
		{red + "text" + end, 1, red + "…" + end},
	} {
		if got := clip(tc.line, tc.width); got != tc.want {
			t.Errorf("%q at %d: %q, want %q", tc.line, tc.width, got, tc.want)
		}
	}
}
