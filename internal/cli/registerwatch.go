package cli

import (
	"context"
	"fmt"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

func newRegisterWatch(std Process) *cobra.Command {
	var f registerFlags
	var after uint64
	var once bool
	cmd := &cobra.Command{
		Use:   "watch KEY",
		Short: "Print a register, and each later state of it",
		Long: `Prints the register of KEY as it is, and again whenever it has changed, until Ctrl-C: a line
with the version and the value in quotes, or "removed". It is the latest state, not each
change, and versions never fall. With --after, what is not newer is left out; with --once,
it ends after the first line. With --timeout, it ends after so long; with --once the exit
code is 3 then.

A line comes again with "stale" when no node says any more that it is the latest state, and
without when one does again. "unknown" says that the state of the key was lost, and the
register with it, if there was one.

With --json: one line for each state, {"exists": bool, "value": "base64", "version": "…",
"epoch": number}, "value_text" if it is UTF-8, "lost_epoch": number in the grace period of
a loss, and "stale": true.`,
		Example: `  keystead register watch shop
  keystead register watch shop --after 117440513 --once     # waits for the next change
  keystead register watch shop --once --after "$version" --timeout 1m || echo "still the same"
  keystead register watch shop --json | while read -r state; do reload "$state"; done`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			limit := context.Background()
			if cmd.Flags().Changed("timeout") {
				var cancel context.CancelFunc
				limit, cancel = context.WithTimeout(limit, f.timeout)
				defer cancel()
				defer context.AfterFunc(limit, stop)()
			}
			node, err := f.client(ctx)
			if err != nil {
				return err
			}
			defer node.Close()
			for s, err := range node.Register(f.name).Watch(ctx, args[0], after) {
				if err != nil {
					return node.explain(err)
				}
				if err := f.printWatched(std, &s); err != nil || once {
					return err
				}
			}
			if once && limit.Err() != nil {
				return exitCode(exitDenied)
			}
			return nil
		},
	}
	f.named(cmd)
	cmd.Flags().Lookup("timeout").Usage = "end after this long, if given"
	cmd.Flags().Uint64Var(&after, "after", 0, "leave out states up to this `VERSION`")
	cmd.Flags().BoolVar(&once, "once", false, "end after the first line")
	return cmd
}

func (f *registerFlags) printWatched(std Process, s *client.Watched) error {
	if f.json {
		return printJSON(std.Out, struct {
			registerJSON
			Stale bool `json:"stale,omitempty"`
		}{registerJSONOf(s.Stored, s.Meta), s.Stale})
	}
	state := strconv.Quote(string(s.Value))
	switch {
	case s.Unknown():
		state = "unknown"
	case !s.Exists:
		state = "removed"
	}
	if s.Stale {
		state += "  stale"
	}
	_, err := fmt.Fprintf(std.Out, "%d  %s\n", s.Version, state)
	return err
}
