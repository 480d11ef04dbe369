package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

func newLimitRefund(std Process) *cobra.Command {
	f := limitFlags{cost: 1}
	cmd := &cobra.Command{
		Use:   "refund KEY [TOKENS] --limit COUNT/PERIOD",
		Short: "Give tokens back to a limit (1 by default)",
		Long: `Gives tokens back that were spent and not used, at most up to full. What was spent a
period ago or longer has come back by itself, and is not to be refunded. Give the same
--limit, --burst and --algorithm as the checks.

With --json: as "limit check".`,
		Example: `  keystead limit refund 203.0.113.7 --name api --limit 20/1m
  keystead limit refund tenant-42 25 --limit 100/s --burst 500
  keystead limit refund tenant-42 25 --limit 100/s --idempotency-key job-7   # once, however often it is sent`,
		Args: rangeArgs(1, "KEY", "TOKENS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.refund = 1; len(args) == 2 {
				var err error
				if f.refund, err = strconv.ParseInt(args[1], 10, 64); err != nil || f.refund < 1 {
					return usageError{fmt.Errorf("TOKENS %q is not a whole number from 1 on", args[1])}
				}
			}
			if err := f.judgePolicy(cmd); err != nil {
				return err
			}
			return f.run(cmd.Context(), std.Out, args[0], false)
		},
	}
	f.rateFlags(cmd)
	f.calendar.flags(cmd)
	f.key.flags(cmd)
	return cmd
}

func newLimitReset(std Process) *cobra.Command {
	var f remote
	var name string
	var key idempotencyKey
	cmd := &cobra.Command{
		Use:   "reset KEY",
		Short: "Make a limit full and print how many tokens had been spent",
		Long: `Makes the limit of KEY full: nothing of it is spent. Prints how many tokens had been spent
and had not come back.

With --json: {"spent": tokens, "epoch": number}, and "lost_epoch": number in the grace
period of a loss.`,
		Example: `  keystead limit reset 203.0.113.7 --name api`,
		Args:    exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			// A reset needs no rate: each check says its own.
			r, err := node.Limit(name, client.Rate{}).Reset(cmd.Context(), args[0], key.option())
			if err != nil {
				return node.explain(err)
			}
			if f.json {
				return printJSON(std.Out, struct {
					Spent uint64 `json:"spent"`
					Epoch uint64 `json:"epoch"`
					Lost  uint64 `json:"lost_epoch,omitempty"`
				}{r.Spent, r.Epoch, r.LostEpoch})
			}
			_, err = fmt.Fprintf(std.Out, "full     %d had been spent%s\n", r.Spent, graceMark(r.LostEpoch))
			return err
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&name, "name", "", "which limit of the key (default \"limit\")")
	key.flags(cmd)
	return cmd
}
