package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

// Exit codes of commands that wait for others. That of a lock that was lost is theirs, too.
const exitNotYet = exitNotAcquired // EX_TEMPFAIL: it was not so within --wait

// awaitFlags are those of a command that waits.
type awaitFlags struct {
	remote
	name string
	wait time.Duration
}

func (f *awaitFlags) named(cmd *cobra.Command, kind string) {
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which "+kind+" of the key (default \""+kind+"\")")
}

func (f *awaitFlags) waits(cmd *cobra.Command, what string) {
	cmd.Flags().DurationVar(&f.wait, "wait", 0, "how long to wait for "+what+" (default: until it is so)")
}

// until bounds the wait of a command.
func (f *awaitFlags) until(ctx context.Context) (context.Context, context.CancelFunc) {
	if f.wait <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, f.wait)
}

// ended turns the end of a wait into an exit code.
func (f *awaitFlags) ended(std Process, node *atNode, err error) error {
	switch {
	case errors.Is(err, client.ErrBroken), errors.Is(err, client.ErrLost):
		printError(std.Err, node.explain(err))
		return exitCode(exitLockLost)
	case errors.Is(err, context.DeadlineExceeded) && f.wait > 0:
		printError(std.Err, fmt.Errorf("it was not so within %s", f.wait))
		return exitCode(exitNotYet)
	}
	return node.explain(err)
}

func newBarrier(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "barrier",
		Short: "Wait until a number of parties are there",
		Example: `  keystead barrier wait build-17 --parties 3
  keystead barrier inspect build-17`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newBarrierWait(std), newBarrierArrive(std), newBarrierAwait(std), newBarrierBreak(std), newBarrierInspect(std))
	return cmd
}

type barrierFlags struct {
	awaitFlags
	parties int
	party   string
	within  time.Duration
	phase   uint64
}

func (f *barrierFlags) arrives(cmd *cobra.Command) {
	f.named(cmd, "barrier")
	cmd.Flags().IntVarP(&f.parties, "parties", "n", 0, "how many parties there are (required); all say the same")
	cmd.Flags().StringVar(&f.party, "party", "", "the party that arrives: it counts once in a phase, also when it is started again (default: a party of its own)")
	cmd.Flags().DurationVar(&f.within, "within", 0, "break the phase if not all are there so long after this one; up to 24h, the default")
	cmd.Flags().Uint64Var(&f.phase, "phase", 0, "arrive only if this phase is under way (default: whichever is)")
}

func (f *barrierFlags) options() []client.BarrierOption {
	return []client.BarrierOption{client.Party(f.party), client.Within(f.within), client.InPhase(f.phase)}
}

func (f *barrierFlags) check() error {
	if f.parties < 1 || f.parties > client.MaxParties {
		return usageError{fmt.Errorf("--parties %d: choose 1 to %d", f.parties, client.MaxParties)}
	}
	return nil
}

// show prints the phase for which a party has arrived.
func (f *barrierFlags) show(out io.Writer, a client.Arrival) error {
	if f.json {
		return printJSON(out, struct {
			Phase string `json:"phase"`
			Last  bool   `json:"last"`
			Epoch uint64 `json:"epoch"`
		}{strconv.FormatUint(a.Phase, 10), a.Last, a.Epoch})
	}
	_, err := fmt.Fprintln(out, a.Phase)
	return err
}

const barrierCodes = `Exit codes: 0 when the phase was passed, 75 if not all were there within --wait, 76 if
the phase was broken, or was lost with all nodes that kept it: all come again then.`

func newBarrierWait(std Process) *cobra.Command {
	var f barrierFlags
	cmd := &cobra.Command{
		Use:   "wait KEY --parties N",
		Short: "Arrive, wait until N parties are there, and print the phase",
		Long: `Arrives at the barrier of KEY, and waits until as many parties as --parties have arrived;
then all go on, and the next phase begins. One that stops waiting does not count any more.

` + barrierCodes + `

With --json: {"phase": "…", "last": whether it was the last to arrive, "epoch": number}.`,
		Example: `  keystead barrier wait build-17 --parties 3 && ./deploy.sh
  keystead barrier wait build-17 -n 3 --party "$HOSTNAME" --wait 10m || exit
  keystead barrier wait build-17 -n 3 --within 5m      # broken for all if one is missing by then`,
		Args: oneKey,
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
			a, err := node.Barrier(f.name, f.parties).Wait(ctx, args[0], f.options()...)
			if err != nil {
				return f.ended(std, node, err)
			}
			return f.show(std.Out, a)
		},
	}
	f.arrives(cmd)
	f.waits(cmd, "the others")
	return cmd
}

func newBarrierArrive(std Process) *cobra.Command {
	var f barrierFlags
	cmd := &cobra.Command{
		Use:   "arrive KEY --parties N",
		Short: "Arrive, do not wait, and print the phase",
		Long: `Arrives at the barrier of KEY and prints the phase, for which "keystead barrier await" waits.

With --json: {"phase": "…", "last": whether it was the last to arrive, "epoch": number}.`,
		Example: `  keystead barrier arrive build-17 --parties 3
  phase=$(keystead barrier arrive build-17 -n 3) && ./more-work.sh && keystead barrier await build-17 "$phase"`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			a, err := node.Barrier(f.name, f.parties).Arrive(cmd.Context(), args[0], f.options()...)
			if err != nil {
				return node.explain(err)
			}
			return f.show(std.Out, a)
		},
	}
	f.arrives(cmd)
	return cmd
}

func newBarrierAwait(std Process) *cobra.Command {
	var f awaitFlags
	cmd := &cobra.Command{
		Use:     "await KEY PHASE",
		Short:   "Wait until a phase is passed",
		Long:    "Waits until PHASE of the barrier of KEY is passed. It does not count as a party.\n\n" + barrierCodes,
		Example: `  keystead barrier await build-17 "$phase" --wait 1m`,
		Args:    exactArgs("KEY", "PHASE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			phase, err := strconv.ParseUint(args[1], 10, 64)
			if err != nil || phase == 0 {
				return usageError{fmt.Errorf("PHASE %q is not a number that `keystead barrier arrive` has printed", args[1])}
			}
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			ctx, cancel := f.until(cmd.Context())
			defer cancel()
			if err := node.Barrier(f.name, 1).Await(ctx, args[0], phase); err != nil {
				return f.ended(std, node, err)
			}
			return nil
		},
	}
	f.named(cmd, "barrier")
	f.waits(cmd, "it")
	return cmd
}

func newBarrierBreak(std Process) *cobra.Command {
	var f awaitFlags
	cmd := &cobra.Command{
		Use:   "break KEY",
		Short: "End the phase for all that wait for it",
		Long: `Ends the phase of the barrier of KEY that is under way: all callers that wait for it hear
that it is broken, and the next phase begins.

Exit codes: 0 if there was a phase, 3 if there was none.`,
		Example: `  keystead barrier break build-17`,
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			ok, err := node.Barrier(f.name, 1).Break(cmd.Context(), args[0])
			if err == nil && !ok {
				return exitCode(exitDenied)
			}
			return node.explain(err)
		},
	}
	f.named(cmd, "barrier")
	return cmd
}

func newBarrierInspect(std Process) *cobra.Command {
	var f awaitFlags
	cmd := &cobra.Command{
		Use:     "inspect KEY",
		Short:   "Show which parties have arrived",
		Example: `  keystead barrier inspect build-17`,
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			s, err := node.Barrier(f.name, 1).Inspect(cmd.Context(), args[0])
			if err != nil {
				return node.explain(err)
			}
			return showBarrier(std.Out, f.json, &s)
		},
	}
	f.named(cmd, "barrier")
	return cmd
}

type barrierPartyJSON struct {
	ID      string `json:"id"`
	Arrived bool   `json:"arrived"`
}

func showBarrier(out io.Writer, json bool, s *client.BarrierState) error {
	if json {
		v := struct {
			Phase   string             `json:"phase"`
			Arrived int                `json:"arrived"`
			Parties int                `json:"parties"`
			Phaser  bool               `json:"phaser"`
			Passed  uint64             `json:"passed"`
			Listed  []barrierPartyJSON `json:"listed"`
			Parent  string             `json:"parent,omitempty"`
			Above   bool               `json:"waits_for_parent,omitempty"`
			Epoch   uint64             `json:"epoch"`
			Lost    uint64             `json:"lost_epoch,omitempty"`
		}{strconv.FormatUint(s.Phase, 10), s.Arrived, s.Parties, s.Phaser, s.Passed, []barrierPartyJSON{}, s.Parent, s.WaitsForParent, s.Epoch, s.LostEpoch}
		for _, p := range s.Listed {
			v.Listed = append(v.Listed, barrierPartyJSON(p))
		}
		return printJSON(out, v)
	}
	if s.Phase == 0 {
		_, err := fmt.Fprintf(out, "nobody has arrived%s\n", graceMark(s.LostEpoch))
		return err
	}
	fmt.Fprintf(out, "%d of %d parties have arrived for phase %d, %d phases passed%s\n", s.Arrived, s.Parties, s.Phase, s.Passed, graceMark(s.LostEpoch))
	switch {
	case s.WaitsForParent:
		fmt.Fprintf(out, "      waits for its parent, the phaser of %s\n", printable(s.Parent))
	case s.Parent != "":
		fmt.Fprintf(out, "      party of the phaser of %s\n", printable(s.Parent))
	}
	for _, p := range s.Listed {
		mark := "is missing"
		if p.Arrived {
			mark = "has arrived"
		}
		fmt.Fprintf(out, "      %s %s\n", printable(p.ID), mark)
	}
	if more := s.Parties - len(s.Listed); more > 0 && s.Phaser {
		fmt.Fprintf(out, "      and %d more parties\n", more)
	}
	return nil
}
