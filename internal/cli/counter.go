package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

func newCounter(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "counter",
		Short: "Count exactly",
		Example: `  keystead counter add page:/index.html
  keystead counter get page:/index.html`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newCounterAdd(std), newCounterGet(std), newCounterAwait(std), newCounterSet(std), newCounterReset(std), newCounterDelete(std))
	return cmd
}

type counterFlags struct {
	remote
	name string
}

func (f *counterFlags) flags(cmd *cobra.Command) {
	f.remote.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which counter of the key (default \"counter\")")
}

// counted is what counter commands show.
type counted struct {
	value   int64
	version uint64
	applied *bool  // nil = nothing was to be applied
	refused string // why it was not applied; "" = it was, or need not be
	parts   int
	client.Meta
}

// changed returns what there is to show of a change. why says it was not applied, if so.
func changed(v client.Change, why string) counted {
	return counted{v.Value, v.Version, &v.Applied, why, v.Parts, v.Meta}
}

// do makes a call of a client and shows its answer.
func (f *counterFlags) do(ctx context.Context, std Process, call func(context.Context, client.Counter) (counted, error)) error {
	node, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	v, err := call(ctx, node.Counter(f.name))
	if err != nil {
		return node.explain(err)
	}
	if err := f.show(std, &v); err != nil || v.applied == nil || *v.applied {
		return err
	}
	return exitCode(exitDenied)
}

// counterJSON is what counter commands print with --json. The value is a
// string: it may be above what JSON numbers hold exactly.
type counterJSON struct {
	Value   string `json:"value"`
	Version string `json:"version"`
	Applied *bool  `json:"applied,omitempty"`
	Refused string `json:"refused,omitempty"`
	Epoch   uint64 `json:"epoch"`
	Lost    uint64 `json:"lost_epoch,omitempty"`
	Parts   int    `json:"parts,omitempty"`
}

// show prints an answer. A loss of the counter is reported on standard error, so that the
// output stays a number.
func (f *counterFlags) show(std Process, v *counted) error {
	if f.json {
		return printJSON(std.Out, counterJSON{strconv.FormatInt(v.value, 10), strconv.FormatUint(v.version, 10), v.applied, v.refused, v.Epoch, v.LostEpoch, v.parts})
	}
	if v.LostEpoch != 0 {
		fmt.Fprintln(std.Err, "keystead: "+graceText(v.LostEpoch)+": it may have been another number")
	}
	if v.refused != "" {
		_, err := fmt.Fprintf(std.Out, "%d  refused: %s\n", v.value, v.refused)
		return err
	}
	_, err := fmt.Fprintln(std.Out, v.value)
	return err
}

var refusalText = map[client.Refusal]string{
	client.BelowMin: "it would be below --min",
	client.AboveMax: "it would be above --max",
	client.Overflow: "it would not fit in 64 bits",

	client.OtherRefusal: "for a reason that this keystead does not know: the node is newer",
}

func newCounterAdd(std Process) *cobra.Command {
	var f counterFlags
	var low, high int64
	var idle time.Duration
	var key idempotencyKey
	cmd := &cobra.Command{
		Use:   "add KEY [DELTA]",
		Short: "Add to a counter (1 by default) and print it",
		Long: `Adds DELTA, of any sign, to the counter of KEY and prints the new value.
Give a negative DELTA after "--": keystead counter add KEY -- -3.

An add that would leave --min or --max is refused and changes nothing; the exit
code is then 3.

With --json: {"value": "…", "version": "…", "applied": bool, "epoch": number}, and
"refused": "why" if it was not applied, "lost_epoch": number in the grace period of a
loss, and "parts": number if the counter is split.`,
		Example: `  keystead counter add page:/index.html
  keystead counter add stock:42 --min 0 -- -1
  keystead counter add stock:42 --min 0 --idempotency-key order-7 -- -1
  keystead counter add visits 10 --name 2026-11 --json`,
		Args: rangeArgs(1, "KEY", "DELTA"),
		RunE: func(cmd *cobra.Command, args []string) error {
			delta := int64(1)
			if len(args) == 2 {
				var err error
				if delta, err = strconv.ParseInt(args[1], 10, 64); err != nil {
					return usageError{fmt.Errorf("DELTA %q is not a whole 64-bit number", args[1])}
				}
			}
			opts := []client.CounterOption{client.IdleTTL(idle), key.option()}
			if cmd.Flags().Changed("min") {
				opts = append(opts, client.AtLeast(low))
			}
			if cmd.Flags().Changed("max") {
				opts = append(opts, client.AtMost(high))
			}
			return f.do(cmd.Context(), std, func(ctx context.Context, c client.Counter) (counted, error) {
				v, err := c.Add(ctx, args[0], delta, opts...)
				return changed(v, refusalText[v.Refusal]), err
			})
		},
	}
	f.flags(cmd)
	cmd.Flags().Int64Var(&low, "min", 0, "refuse to go below this")
	cmd.Flags().Int64Var(&high, "max", 0, "refuse to go above this")
	cmd.Flags().DurationVar(&idle, "idle-ttl", 0, "forget the counter when it was not changed for so long (default: never)")
	key.flags(cmd)
	return cmd
}

func newCounterGet(std Process) *cobra.Command {
	var f counterFlags
	cmd := &cobra.Command{
		Use:   "get KEY",
		Short: "Print a counter",
		Long: `Prints the counter of KEY; 0 if it was never touched.

With --json: {"value": "…", "version": "…", "epoch": number}, "lost_epoch": number in the
grace period of a loss, and "parts": number if the counter is split.`,
		Example: `  keystead counter get page:/index.html
  keystead counter get visits --name 2026-11 --json`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.do(cmd.Context(), std, func(ctx context.Context, c client.Counter) (counted, error) {
				v, err := c.Get(ctx, args[0])
				return counted{value: v.Value, version: v.Version, parts: v.Parts, Meta: v.Meta}, err
			})
		},
	}
	f.flags(cmd)
	return cmd
}

func newCounterSet(std Process) *cobra.Command {
	var f counterFlags
	var expected uint64
	var key idempotencyKey
	cmd := &cobra.Command{
		Use:   "set KEY VALUE --if-version VERSION",
		Short: "Set a counter whose version is known (compare and set)",
		Long: `Sets the counter of KEY if its version is still VERSION, as printed by
"counter get --json"; 0 means that the counter must not exist. If the version is
another one, nothing changes and the exit code is 3.
Give a negative VALUE after "--".

With --json: as "counter add".`,
		Example: `  keystead counter set stock:42 100 --if-version 0`,
		Args:    exactArgs("KEY", "VALUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			value, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil {
				return usageError{fmt.Errorf("VALUE %q is not a whole 64-bit number", args[1])}
			}
			if !cmd.Flags().Changed("if-version") {
				return usageError{errors.New("--if-version is missing\n  hint: `keystead counter get KEY --json` prints the version; 0 if the counter must not exist")}
			}
			return f.do(cmd.Context(), std, func(ctx context.Context, c client.Counter) (counted, error) {
				v, err := c.CompareAndSet(ctx, args[0], value, expected, key.option())
				refused := ""
				if !v.Applied {
					refused = fmt.Sprintf("its version is %d, not %d", v.Version, expected)
				}
				return changed(v, refused), err
			})
		},
	}
	f.flags(cmd)
	cmd.Flags().Uint64Var(&expected, "if-version", 0, "the version that the counter must have")
	key.flags(cmd)
	return cmd
}

func newCounterReset(std Process) *cobra.Command {
	var f counterFlags
	var key idempotencyKey
	cmd := &cobra.Command{
		Use:   "reset KEY",
		Short: "Set a counter back to 0 and print what it was",
		Long: `Sets the counter of KEY back to 0 and prints what it was.

With --json: {"value": "…", "version": "…", "epoch": number}: the value before,
and the version after.`,
		Example: `  keystead counter reset page:/index.html`,
		Args:    exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.do(cmd.Context(), std, func(ctx context.Context, c client.Counter) (counted, error) {
				v, err := c.Reset(ctx, args[0], key.option())
				return counted{value: v.Previous, version: v.Version, Meta: v.Meta}, err
			})
		},
	}
	f.flags(cmd)
	key.flags(cmd)
	return cmd
}

func newCounterDelete(std Process) *cobra.Command {
	var f counterFlags
	var key idempotencyKey
	cmd := &cobra.Command{
		Use:   "delete KEY",
		Short: "Remove a counter and print what it was",
		Long: `Removes the counter of KEY and prints what it was. If it is made again, its versions
are above all that it had.

With --json: {"value": "…", "version": "…", "applied": bool, "epoch": number}: the value
before, the version of the deletion, and whether there was a counter.`,
		Example: `  keystead counter delete page:/index.html`,
		Args:    exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			v, err := node.Counter(f.name).Delete(cmd.Context(), args[0], key.option())
			if err != nil {
				return node.explain(err)
			}
			return f.show(std, &counted{value: v.Previous, version: v.Version, applied: &v.Existed, Meta: v.Meta})
		},
	}
	f.flags(cmd)
	key.flags(cmd)
	return cmd
}
