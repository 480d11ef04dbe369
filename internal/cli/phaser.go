package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
)

func newPhaser(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "phaser",
		Short: "Wait for each other, phase after phase, with parties that come and go",
		Long: `A phaser is a barrier whose parties are those that are registered, each under a lease: a
phase is passed when all of them have arrived.`,
		Example: `  keystead phaser register crawl --party "$HOSTNAME" --ttl 5m
  keystead phaser wait crawl --party "$HOSTNAME"
  keystead phaser leave crawl --party "$HOSTNAME"`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newPhaserRegister(std), newPhaserWait(std), newPhaserLeave(std), newPhaserBreak(std), newPhaserInspect(std))
	return cmd
}

type phaserFlags struct {
	awaitFlags
	party string
}

func (f *phaserFlags) ofParty(cmd *cobra.Command) {
	f.ofPhaser(cmd)
	cmd.Flags().StringVar(&f.party, "party", "", "the id of the party (required): 1 to 64 bytes, its own among all")
}

func (f *phaserFlags) ofPhaser(cmd *cobra.Command) { f.named(cmd, "phaser") }

// of is the name of the phaser.
func (f *phaserFlags) of() string {
	if f.name == "" {
		return "phaser"
	}
	return f.name
}

func (f *phaserFlags) check() error {
	if f.party == "" {
		return usageError{errors.New("--party is missing: name the party")}
	}
	return nil
}

// call makes one call about the party.
func (f *phaserFlags) call(ctx context.Context, do func(ctx context.Context, b barrierpb.BarrierServiceClient) error) error {
	if err := f.check(); err != nil {
		return err
	}
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	return f.remote.call(ctx, func(ctx context.Context) error { return do(ctx, barrierpb.NewBarrierServiceClient(conn)) })
}

func newPhaserRegister(std Process) *cobra.Command {
	var f phaserFlags
	var ttl time.Duration
	var drop bool
	var parent string
	cmd := &cobra.Command{
		Use:   "register KEY --party ID",
		Short: "Take part, or go on to, and print the phase",
		Long: `Makes a party one of the phaser of KEY for --ttl, or prolongs that, and prints the phase that
is under way: the first one for which it has to arrive.`,
		Example: `  keystead phaser register crawl --party "$HOSTNAME" --ttl 5m
  keystead phaser register crawl --party "$HOSTNAME" --ttl 5m --drop   # the others go on if it dies
  keystead phaser register crawl-eu --party "$HOSTNAME" --parent crawl       # its phases are passed with those of crawl`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := &barrierpb.RegisterRequest{Key: args[0], Name: f.of(), Party: f.party, TtlNs: int64(ttl), Loss: barrierpb.Loss_LOSS_BREAK}
			if parent != "" {
				q.Parent = &barrierpb.Parent{Key: parent}
			}
			if drop {
				q.Loss = barrierpb.Loss_LOSS_DROP
			}
			return f.call(cmd.Context(), func(ctx context.Context, b barrierpb.BarrierServiceClient) error {
				r, err := b.Register(ctx, q)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(std.Out, r.Phase)
				return err
			})
		},
	}
	f.ofParty(cmd)
	cmd.Flags().DurationVar(&ttl, "ttl", stepTTL, "how long it takes part without another register")
	cmd.Flags().StringVar(&parent, "parent", "", "key of the phaser of which this one is a party: it arrives there when all parties are here")
	cmd.Flags().BoolVar(&drop, "drop", false, "go on without it when that is over (default: the phase is broken for all)")
	return cmd
}

func newPhaserWait(std Process) *cobra.Command {
	var f phaserFlags
	var phase uint64
	cmd := &cobra.Command{
		Use:   "wait KEY --party ID",
		Short: "Arrive, wait until all parties have, and print the phase",
		Long: `Arrives for the phase that is under way, and waits until all parties have arrived. Nobody
prolongs the lease meanwhile.

` + barrierCodes + ` 76 also if the party is not registered, or not any more.`,
		Example: `  keystead phaser wait crawl --party "$HOSTNAME" --wait 10m
  keystead phaser wait crawl --party "$HOSTNAME" --phase "$phase"   # if what was done was for that phase`,
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
			p := node.Phaser(f.name)
			a, err := p.Arrive(ctx, args[0], f.party, client.InPhase(phase))
			if err == nil && !a.Last {
				err = p.Await(ctx, args[0], a.Phase)
			}
			if errors.Is(err, client.ErrNotRegistered) {
				printError(std.Err, node.explain(err))
				return exitCode(exitLockLost)
			}
			if err != nil {
				return f.ended(std, node, err)
			}
			_, err = fmt.Fprintln(std.Out, a.Phase)
			return err
		},
	}
	f.ofParty(cmd)
	cmd.Flags().Uint64Var(&phase, "phase", 0, "arrive only if this phase is under way (default: whichever is)")
	f.waits(cmd, "the others")
	return cmd
}

func newPhaserLeave(std Process) *cobra.Command {
	var f phaserFlags
	cmd := &cobra.Command{
		Use:     "leave KEY --party ID",
		Short:   "Take part no more: the others go on",
		Long:    "Ends the registration of a party. The phase goes on without it.\n\nExit codes: 0 if it was registered, 3 if it was not.",
		Example: `  keystead phaser leave crawl --party "$HOSTNAME"`,
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.call(cmd.Context(), func(ctx context.Context, b barrierpb.BarrierServiceClient) error {
				r, err := b.Leave(ctx, &barrierpb.LeaveRequest{Key: args[0], Name: f.of(), Party: f.party})
				if err == nil && !r.Left {
					return exitCode(exitDenied)
				}
				return err
			})
		},
	}
	f.ofParty(cmd)
	return cmd
}

func newPhaserBreak(std Process) *cobra.Command {
	cmd := newBarrierBreak(std)
	asPhaser(cmd)
	cmd.Long = "Ends the phase of the phaser of KEY that is under way: all callers that wait for it hear\nthat it is broken, and the next phase begins.\n\nExit codes: 0 if there was a phase, 3 if there was none."
	cmd.Example = `  keystead phaser break crawl`
	return cmd
}

func newPhaserInspect(std Process) *cobra.Command {
	cmd := newBarrierInspect(std)
	asPhaser(cmd)
	cmd.Example = `  keystead phaser inspect crawl`
	return cmd
}

// asPhaser makes a command about barriers one about phasers.
func asPhaser(cmd *cobra.Command) {
	name := cmd.Flags().Lookup("name")
	name.Usage, name.DefValue = "which phaser of the key", "phaser"
	_ = name.Value.Set("phaser")
}
