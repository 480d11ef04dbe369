package system

import (
	"github.com/keystead/keystead/internal/cli"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// eachCommand calls f with the words of each command that help shows.
func eachCommand(cmd *cobra.Command, f func(words []string)) {
	f(strings.Fields(cmd.CommandPath())[1:])
	for _, sub := range cmd.Commands() {
		if !sub.Hidden && sub.Name() != "completion" {
			eachCommand(sub, f)
		}
	}
}

func TestHelp(t *testing.T) {
	n := 0
	eachCommand(cli.New(cli.Process{}), func(words []string) {
		n++
		t.Run(strings.Join(words, " "), func(t *testing.T) {
			t.Parallel()
			flag := succeeds(t, append(words, "--help")...)
			for _, want := range []string{"Usage:\n  keystead", "\nExamples:\n  keystead ", "--help"} {
				if !strings.Contains(flag, want) {
					t.Errorf("%q is not in:\n%s", want, flag)
				}
			}
			if command := succeeds(t, append([]string{"help"}, words...)...); command != flag {
				t.Errorf("`help` and --help differ:\n%s\n%s", command, flag)
			}
			for _, line := range strings.Split(flag, "\n") {
				if len([]rune(line)) > 160 {
					t.Errorf("a line of %d characters: %s", len(line), line)
				}
			}
		})
	})
	if n < 12 {
		t.Errorf("only %d commands", n)
	}
}

func TestUnknownCommands(t *testing.T) {
	for _, tc := range []struct {
		says string
		args []string
	}{
		{"did you mean `keystead limit`?", []string{"limt"}},
		{"did you mean `keystead server`?", []string{"serve"}},
		{"did you mean `keystead limit check`", []string{"limit", "chek", "k"}},
		{"did you mean `keystead counter get`", []string{"counter", "gt"}},
		{"unknown command \"version\" for `keystead`\n  hint: see `keystead --help`", []string{"version"}},
		{"unknown command \"nope\" for `keystead`", []string{"help", "nope"}},
		{"did you mean `keystead limit check`", []string{"help", "limit", "chek"}},
		{"did you mean --config?\n", []string{"--confg"}},
		{"hint: see `keystead limit --help`", []string{"limit", "-x"}},
		{"takes nothing but flags", []string{"dev", "now"}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			refuses(t, 2, tc.says, tc.args...)
		})
	}
}

// Wrong settings do not keep the help away.
func TestHelpWithWrongSettings(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--help"}, {"help"}, {"help", "server"}, {"server", "--help"}, {"--version"}} {
		p := start(t, env("KEYSTEAD_NO_SUCH=1", "KEYSTEAD_CONFIG=/no/such/file"), args...)
		p.ends(t, 0)
		if p.out() == "" || p.err() != "" {
			t.Errorf("%q prints %q %q", args, p.out(), p.err())
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	if got := succeeds(t, "completion", "bash"); !strings.Contains(got, "keystead") {
		t.Errorf("got %q", got)
	}
	if r := keystead(t, "__complete", "limit", "ch"); r.code != 0 || !strings.HasPrefix(r.out, "check\t") {
		t.Errorf("got %+v", r)
	}
}
