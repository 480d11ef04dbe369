package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/keystead/keystead/proto/keystead/v1"
)

func newCounter(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "counter",
		Short: "Count exactly",
		Example: `  keystead counter add page:/index.html
  keystead counter get page:/index.html`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newCounterAdd(std), newCounterGet(std), newCounterSet(std), newCounterReset(std))
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

// do dials and calls f with a client and a request id for each attempt.
func (f *counterFlags) do(ctx context.Context, call func(context.Context, pb.CounterServiceClient, *operation) error) error {
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client, op := pb.NewCounterServiceClient(conn), newIdentity().begin()
	return f.call(ctx, func(ctx context.Context) error { return call(ctx, client, op) })
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
	Parts   uint32 `json:"parts,omitempty"`
}

// counterAnswer is what every answer about a counter says.
type counterAnswer interface {
	GetVersion() uint64
	GetEpoch() uint64
	GetLostEpoch() uint64
}

// partsOf is into how many parts the counter is split that an answer is about: only a
// whole one is set or reset.
func partsOf(r counterAnswer) uint32 {
	if p, ok := r.(interface{ GetParts() uint32 }); ok {
		return p.GetParts()
	}
	return 0
}

// show prints an answer. That the counter was lost goes to where errors go, so that
// what is printed stays a number.
func (f *counterFlags) show(std Process, value int64, r counterAnswer, applied *bool, refused string) error {
	if f.json {
		return printJSON(std.Out, counterJSON{strconv.FormatInt(value, 10), strconv.FormatUint(r.GetVersion(), 10), applied, refused, r.GetEpoch(), r.GetLostEpoch(), partsOf(r)})
	}
	if lost := r.GetLostEpoch(); lost != 0 {
		fmt.Fprintln(std.Err, "keystead: "+graceText(lost)+": it may have been another number")
	}
	if refused != "" {
		_, err := fmt.Fprintf(std.Out, "%d  refused: %s\n", value, refused)
		return err
	}
	_, err := fmt.Fprintln(std.Out, value)
	return err
}

var refusalText = map[pb.Refusal]string{
	pb.Refusal_REFUSAL_BELOW_MIN: "it would be below --min",
	pb.Refusal_REFUSAL_ABOVE_MAX: "it would be above --max",
	pb.Refusal_REFUSAL_OVERFLOW:  "it would not fit in 64 bits",
}

func newCounterAdd(std Process) *cobra.Command {
	var f counterFlags
	var low, high int64
	var idle time.Duration
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
			req := &pb.AddRequest{Key: args[0], Name: f.name, Delta: delta, IdleTtlNs: int64(idle)}
			if cmd.Flags().Changed("min") {
				req.Min = &low
			}
			if cmd.Flags().Changed("max") {
				req.Max = &high
			}
			return f.add(cmd.Context(), std, req)
		},
	}
	f.flags(cmd)
	cmd.Flags().Int64Var(&low, "min", 0, "refuse to go below this")
	cmd.Flags().Int64Var(&high, "max", 0, "refuse to go above this")
	cmd.Flags().DurationVar(&idle, "idle-ttl", 0, "forget the counter when it was not changed for so long (default: never)")
	return cmd
}

func (f *counterFlags) add(ctx context.Context, std Process, req *pb.AddRequest) error {
	var r *pb.AddResponse
	err := f.do(ctx, func(ctx context.Context, c pb.CounterServiceClient, op *operation) (err error) {
		req.RequestId = op.requestID()
		r, err = c.Add(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	if err := f.show(std, r.Value, r, &r.Applied, refusalText[r.Refusal]); err != nil || r.Applied {
		return err
	}
	return exitCode(exitDenied)
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
			var r *pb.GetResponse
			err := f.do(cmd.Context(), func(ctx context.Context, c pb.CounterServiceClient, _ *operation) (err error) {
				r, err = c.Get(ctx, &pb.GetRequest{Key: args[0], Name: f.name})
				return err
			})
			if err != nil {
				return err
			}
			return f.show(std, r.Value, r, nil, "")
		},
	}
	f.flags(cmd)
	return cmd
}

func newCounterSet(std Process) *cobra.Command {
	var f counterFlags
	var expected uint64
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
			var r *pb.SetIfResponse
			err = f.do(cmd.Context(), func(ctx context.Context, c pb.CounterServiceClient, op *operation) (err error) {
				r, err = c.SetIf(ctx, &pb.SetIfRequest{Key: args[0], Name: f.name, Value: value, Version: expected, RequestId: op.requestID()})
				return err
			})
			if err != nil {
				return err
			}
			refused := ""
			if !r.Applied {
				refused = fmt.Sprintf("its version is %d, not %d", r.Version, expected)
			}
			if err := f.show(std, r.Value, r, &r.Applied, refused); err != nil || r.Applied {
				return err
			}
			return exitCode(exitDenied)
		},
	}
	f.flags(cmd)
	cmd.Flags().Uint64Var(&expected, "if-version", 0, "the version that the counter must have")
	return cmd
}

func newCounterReset(std Process) *cobra.Command {
	var f counterFlags
	cmd := &cobra.Command{
		Use:   "reset KEY",
		Short: "Set a counter back to 0 and print what it was",
		Long: `Sets the counter of KEY back to 0 and prints what it was.

With --json: {"value": "…", "version": "…", "epoch": number}: the value before,
and the version after.`,
		Example: `  keystead counter reset page:/index.html`,
		Args:    exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var r *pb.ResetResponse
			err := f.do(cmd.Context(), func(ctx context.Context, c pb.CounterServiceClient, op *operation) (err error) {
				r, err = c.Reset(ctx, &pb.ResetRequest{Key: args[0], Name: f.name, RequestId: op.requestID()})
				return err
			})
			if err != nil {
				return err
			}
			return f.show(std, r.Previous, r, nil, "")
		},
	}
	f.flags(cmd)
	return cmd
}
