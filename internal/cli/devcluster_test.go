package cli

import (
	"testing"

	"github.com/spf13/cobra"
)

// What was set for the command is set for each of its nodes, as it was written.
func TestDevPassesSettingsOn(t *testing.T) {
	t.Parallel()
	var f nodeFlags
	cmd := &cobra.Command{}
	f.flags(cmd)
	for name, value := range map[string]string{"ack-owner": "limits,counters", "copy-rate": "64MB", "max-calls": "7"} {
		if err := cmd.Flags().Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	args := (&devNode{id: "n1"}).args(cmd, "", "")
	cmd = newServer(Process{})
	if err := cmd.ParseFlags(args[1:]); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"ack-owner": "[limits,counters]", "copy-rate": "62500KiB", "max-calls": "7"} {
		if got := cmd.Flags().Lookup(name).Value.String(); got != want {
			t.Errorf("%s is %s for a node, want %s", name, got, want)
		}
	}
}
