package cli

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

func newLimitOverride(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "override",
		Short: "Have a limit go by other numbers than its callers state",
		Long: `An override beats what callers state of the limit of a key, from the next check on: for a
time, or until it is cleared. It goes where the key goes, and survives what the limit
survives. The algorithm stays that of each check.`,
		Example: `  keystead limit override set tenant-42 --name api --limit 1000/1m --for 2h
  keystead limit override set tenant-42 --name api --limit 1000/1m --burst 5000
  keystead limit override show tenant-42 --name api
  keystead limit override clear tenant-42 --name api
  keystead limit override list --prefix tenant-`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newOverrideSet(std), newOverrideShow(std), newOverrideClear(std), newOverrideList(std))
	return cmd
}

type overrideFlags struct {
	remote
	name  string
	rate  rate
	burst uint64
	lasts time.Duration
	key   idempotencyKey
}

func (f *overrideFlags) named(cmd *cobra.Command) {
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which limit of the key (default \"limit\")")
}

// do asks a node about a limit.
func (f *overrideFlags) do(ctx context.Context, ask func(l client.Limit) error) error {
	node, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	if err := ask(node.Limit(f.name, client.Rate{})); err != nil {
		return node.explain(err)
	}
	return nil
}

func newOverrideSet(std Process) *cobra.Command {
	var f overrideFlags
	cmd := &cobra.Command{
		Use:   "set KEY --limit COUNT/PERIOD",
		Short: "Override a limit, for a time or until it is cleared",
		Long: `Has the limit of KEY go by --limit and --burst, whatever its callers state, from the next
check on. What was spent stays spent.

With --json: {"limit": tokens, "period": seconds, "burst": tokens, "ends_after": seconds,
"existed": bool}: whether it took the place of another one.`,
		Example: `  keystead limit override set tenant-42 --name api --limit 1000/1m --for 2h
  keystead limit override set tenant-42 --limit 1/1h             # until it is cleared`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.rate.limit == 0:
				return usageError{errors.New("--limit is missing\n  hint: for example --limit 1000/1m")}
			case f.rate.period == 0:
				return usageError{fmt.Errorf("--limit %s: an override has no calendar, a calendar window keeps its own\n  hint: write a length, for example --limit 1000/24h", &f.rate)}
			case f.lasts < 0 || f.lasts == 0 && cmd.Flags().Changed("for"):
				return usageError{fmt.Errorf("--for %s: choose more than 0, or leave it out: it lasts until it is cleared then", f.lasts)}
			}
			o := client.Override{Rate: client.Rate{Limit: f.rate.limit, Period: f.rate.period, Burst: f.burst}, Left: f.lasts}
			var existed bool
			err := f.do(cmd.Context(), func(l client.Limit) (err error) {
				existed, err = l.SetOverride(cmd.Context(), args[0], o.Rate, f.lasts, f.key.option())
				return err
			})
			if err != nil {
				return err
			}
			if f.json {
				return printJSON(std.Out, struct {
					overrideJSON
					Existed bool `json:"existed"`
				}{jsonOfOverride(&o), existed})
			}
			replaced := ""
			if existed {
				replaced = ", in the place of another"
			}
			_, err = fmt.Fprintf(std.Out, "set      %s%s\n", overrideText(&o), replaced)
			return err
		},
	}
	f.named(cmd)
	cmd.Flags().Var(&f.rate, "limit", "tokens per period that apply, like 1000/1m (required)")
	cmd.Flags().Uint64Var(&f.burst, "burst", 0, "most tokens at once (default: the count of --limit)")
	cmd.Flags().DurationVar(&f.lasts, "for", 0, "how long it lasts (default: until it is cleared)")
	f.key.flags(cmd)
	return cmd
}

func newOverrideShow(std Process) *cobra.Command {
	var f overrideFlags
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show the override of a limit",
		Long: `Shows by what the limit of KEY goes. Exit code 3 if it has no override.

With --json: {"limit": tokens, "period": seconds, "burst": tokens, "ends_after": seconds},
without "ends_after" if it lasts until it is cleared.`,
		Example: `  keystead limit override show tenant-42 --name api`,
		Args:    exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o *client.Override
			err := f.do(cmd.Context(), func(l client.Limit) (err error) {
				o, err = l.Override(cmd.Context(), args[0])
				return err
			})
			switch {
			case err != nil:
			case o == nil:
				_, err = fmt.Fprintf(std.Err, "keystead: the limit of %q has no override\n", args[0])
			case f.json:
				err = printJSON(std.Out, jsonOfOverride(o))
			default:
				_, err = fmt.Fprintln(std.Out, overrideText(o))
			}
			if err == nil && o == nil {
				return exitCode(exitDenied)
			}
			return err
		},
	}
	f.named(cmd)
	return cmd
}

func newOverrideClear(std Process) *cobra.Command {
	var f overrideFlags
	cmd := &cobra.Command{
		Use:     "clear KEY",
		Short:   "End the override of a limit: its callers' numbers apply again",
		Long:    "Ends the override of the limit of KEY.\n\nWith --json: {\"existed\": bool}.",
		Example: `  keystead limit override clear tenant-42 --name api`,
		Args:    exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var existed bool
			err := f.do(cmd.Context(), func(l client.Limit) (err error) {
				existed, err = l.ClearOverride(cmd.Context(), args[0], f.key.option())
				return err
			})
			switch {
			case err != nil:
				return err
			case f.json:
				return printJSON(std.Out, struct {
					Existed bool `json:"existed"`
				}{existed})
			case existed:
				_, err = fmt.Fprintln(std.Out, "cleared")
			default:
				_, err = fmt.Fprintln(std.Out, "none")
			}
			return err
		},
	}
	f.named(cmd)
	f.key.flags(cmd)
	return cmd
}

func newOverrideList(std Process) *cobra.Command {
	var f overrideFlags
	filter := client.Filter{Kind: client.KindLimit, Overridden: true}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the limits that have an override",
		Long: `Lists the limits of all nodes that have an override, or those of --node. Each node looks
through all its objects.

With --json, a line each: {"key": "…", "name": "…", "node": "…"}.`,
		Example: `  keystead limit override list --prefix tenant-`,
		Args:    exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			filter.Name = f.name
			w := tabwriter.NewWriter(std.Out, 0, 0, 2, ' ', 0)
			some := false
			moved, err := node.Admin().ListObjects(cmd.Context(), filter, func(at string, o client.Object) bool {
				if f.json {
					return printJSON(std.Out, struct {
						Key  string `json:"key"`
						Name string `json:"name"`
						Node string `json:"node"`
					}{o.Key, o.Name, at}) == nil
				}
				if !some {
					fmt.Fprintln(w, "KEY\tNAME\tNODE")
				}
				some = true
				_, err := fmt.Fprintf(w, "%s\t%s\t%s\n", printable(o.Key), printable(o.Name), at)
				return err == nil
			})
			if err != nil {
				return node.explain(err)
			}
			if moved {
				fmt.Fprintln(std.Err, "keystead: keys have moved between nodes meanwhile: some may be missing, or be listed twice")
			}
			if !some && !f.json {
				fmt.Fprintln(w, "none")
			}
			return w.Flush()
		},
	}
	f.named(cmd)
	cmd.Flags().Lookup("name").Usage = "only limits of this name"
	cmd.Flags().StringVar(&filter.Node, "node", "", "only those of this node")
	cmd.Flags().StringVar(&filter.Prefix, "prefix", "", "only keys that begin so")
	return cmd
}

// overrideJSON is an override as --json prints it.
type overrideJSON struct {
	Limit  uint64  `json:"limit"`
	Period seconds `json:"period"`
	Burst  uint64  `json:"burst"`
	Ends   seconds `json:"ends_after,omitempty"`
}

func jsonOfOverride(o *client.Override) overrideJSON {
	burst := o.Rate.Burst
	if burst == 0 {
		burst = o.Rate.Limit
	}
	return overrideJSON{o.Rate.Limit, seconds(o.Rate.Period), burst, seconds(o.Left)}
}

// overrideText is an override in words.
func overrideText(o *client.Override) string {
	r := rate{limit: o.Rate.Limit, period: o.Rate.Period}
	text := r.String()
	if o.Rate.Burst != 0 {
		text += fmt.Sprintf(", burst %d", o.Rate.Burst)
	}
	if o.Left == 0 {
		return text + ", until it is cleared"
	}
	return text + ", for " + people(o.Left)
}
