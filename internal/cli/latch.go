package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

func newLatch(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "latch",
		Short: "Open a gate, once, when a number have arrived",
		Long: `A latch opens when --arrivals have arrived, once, and stays open. It is a counter of the
arrivals, called "latch": "keystead counter get KEY --name latch" shows it.`,
		Example: `  keystead latch arrive migrated --arrivals 3 --idempotency-key "$HOSTNAME"
  keystead latch await migrated --arrivals 3 && ./start.sh`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newLatchArrive(std), newLatchAwait(std), newLatchReset(std))
	return cmd
}

type latchFlags struct {
	awaitFlags
	arrivals int
}

func (f *latchFlags) counts(cmd *cobra.Command) {
	f.named(cmd, "latch")
	cmd.Flags().IntVarP(&f.arrivals, "arrivals", "n", 0, "how many arrivals open it (required); all say the same")
}

func (f *latchFlags) check() error {
	if f.arrivals < 1 {
		return usageError{errors.New("--arrivals is missing: choose 1 or more")}
	}
	return nil
}

func newLatchArrive(std Process) *cobra.Command {
	var f latchFlags
	var key idempotencyKey
	cmd := &cobra.Command{
		Use:     "arrive KEY --arrivals N",
		Short:   "Count an arrival, and do not wait",
		Long:    "Counts an arrival, and prints whether the latch is open by now: \"open\" or \"shut\".",
		Example: `  keystead latch arrive migrated -n 3 --idempotency-key "$HOSTNAME"   # counts once in five minutes`,
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			open, err := node.Latch(f.name, f.arrivals).Arrive(cmd.Context(), args[0], key.option())
			if err != nil {
				return node.explain(err)
			}
			state := map[bool]string{true: "open", false: "shut"}[open]
			if f.json {
				return printJSON(std.Out, map[string]bool{"open": open})
			}
			_, err = fmt.Fprintln(std.Out, state)
			return err
		},
	}
	f.counts(cmd)
	key.flags(cmd)
	return cmd
}

func newLatchAwait(std Process) *cobra.Command {
	var f latchFlags
	cmd := &cobra.Command{
		Use:     "await KEY --arrivals N",
		Short:   "Wait until the latch is open",
		Long:    "Waits until the latch of KEY is open.\n\nExit codes: 0 when it is open, 75 if it was not within --wait, 76 if it was lost with all\nnodes that kept it: all parties arrive again.",
		Example: `  keystead latch await migrated -n 3 --wait 10m && ./start.sh`,
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			ctx, cancel := f.until(cmd.Context())
			defer cancel()
			if err := node.Latch(f.name, f.arrivals).Await(ctx, args[0]); err != nil {
				return f.ended(std, node, err)
			}
			return nil
		},
	}
	f.counts(cmd)
	f.waits(cmd, "it")
	return cmd
}

func newLatchReset(std Process) *cobra.Command {
	var f awaitFlags
	cmd := &cobra.Command{
		Use:     "reset KEY",
		Short:   "Shut the latch, for other arrivals",
		Example: `  keystead latch reset migrated`,
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			return node.explain(node.Latch(f.name, 1).Reset(cmd.Context(), args[0]))
		},
	}
	f.named(cmd, "latch")
	return cmd
}

func newCounterAwait(std Process) *cobra.Command {
	var f awaitFlags
	var most, least int64
	cmd := &cobra.Command{
		Use:   "await KEY --at-most N",
		Short: "Wait until a counter is at most, or at least, a value, and print it",
		Long: `Waits until the counter of KEY exists and is at most, or at least, a value: until all is
done, for one that counts what is left to do. One that does not exist never is so.

Exit codes: 0 when it is so, 75 if it was not within --wait, 76 if it was lost with all nodes
that kept it.

With --json: {"value": "…", "version": "…", "epoch": number}.`,
		Example: `  keystead counter add jobs 3
  keystead counter await jobs --at-most 0 --wait 1h && ./report.sh`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			until := client.AtMost(most)
			if cmd.Flags().Changed("at-most") == cmd.Flags().Changed("at-least") {
				return usageError{errors.New("one of --at-most and --at-least says what to wait for")}
			} else if cmd.Flags().Changed("at-least") {
				until = client.AtLeast(least)
			}
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			ctx, cancel := f.until(cmd.Context())
			defer cancel()
			v, err := node.Counter(f.name).Await(ctx, args[0], until)
			if err != nil {
				return f.ended(std, node, err)
			}
			return f.showCount(cmd.Context(), std, &v)
		},
	}
	f.named(cmd, "counter")
	f.waits(cmd, "it")
	cmd.Flags().Int64Var(&most, "at-most", 0, "wait until it is this or below")
	cmd.Flags().Int64Var(&least, "at-least", 0, "wait until it is this or above")
	return cmd
}

func (f *awaitFlags) showCount(_ context.Context, std Process, v *client.Count) error {
	if f.json {
		return printJSON(std.Out, struct {
			Value   string `json:"value"`
			Version string `json:"version"`
			Epoch   uint64 `json:"epoch"`
		}{strconv.FormatInt(v.Value, 10), strconv.FormatUint(v.Version, 10), v.Epoch})
	}
	_, err := fmt.Fprintln(std.Out, v.Value)
	return err
}
