package system

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestHotSettings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		says string
		args []string
	}{
		{`--hot-split "maybe": choose on or off`, []string{"--hot-split", "maybe"}},
		{"--hot-per-part 0.5: choose 1 to 1,000,000,000 operations a second", []string{"--hot-per-part", "0.5"}},
		{"--hot-max 101: choose 1 to 100", []string{"--hot-max", "101"}},
		{"--hot-max -1: choose 1 to 100", []string{"--hot-max", "-1"}},
		{"--hot-stay 500ms: choose 1s to 1h0m0s", []string{"--hot-stay", "500ms"}},
		{"--hot-stay 2h0m0s: choose 1s to 1h0m0s", []string{"--hot-stay", "2h"}},
		{`--hot-whole "limits:api": "limits" is not a kind that can be split`, []string{"--hot-whole", "web,limits:api"}},
		{`--hot-whole "limit:": a name is missing`, []string{"--hot-whole", "limit:"}},
	} {
		refuses(t, exitUsage, tc.says, append([]string{"server"}, tc.args...)...)
	}
}

// The switch is on unless it is said otherwise, in any of the ways to say so.
func TestHotSplitSwitch(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, want string
		env, file  string
		args       []string
	}{
		{name: "default", want: "on"},
		{name: "flag", want: "off", args: []string{"--hot-split", "off"}},
		{name: "variable", want: "off", env: "KEYSTEAD_HOT_SPLIT=false"},
		{name: "file", want: "off", file: "hot:\n  split: off\n  whole: [api, 'limit:batch-*']\n"},
		{name: "flag over file", want: "on", file: "hot-split: false\n", args: []string{"--hot-split=true"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"server", "--show-config"}, tc.args...)
			if tc.file != "" {
				args = append(args, "--config", write(t, filepath.Join(t.TempDir(), "k.yaml"), tc.file))
			}
			p := start(t, env(tc.env), args...)
			p.ends(t, 0)
			if !regexp.MustCompile(`(?m)^hot-split:? +` + tc.want + `\b`).MatchString(p.out()) {
				t.Errorf("not %s:\n%s", tc.want, p.out())
			}
			if strings.Contains(tc.file, "whole") && !strings.Contains(p.out(), "limit:batch-*") {
				t.Errorf("no names:\n%s", p.out())
			}
		})
	}
}

// Settings come to the nodes of a dev cluster as they were given.
func TestHotSettingsOfDev(t *testing.T) {
	t.Parallel()
	refuses(t, exitUsage, "unknown flag: --hot-node", "dev", "--hot-node")
	n := startNode(t, nil, "dev", "--hot-split", "off", "--hot-per-part", "500", "--hot-whole", "api,counter:*", "--hot-max", "3", "--hot-stay", "2s")
	n.stop(t)
}
