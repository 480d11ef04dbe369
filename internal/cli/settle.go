package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

// settleFlags are those of "keystead settle".
type settleFlags struct {
	remote
	name, tag string
	release   bool
	key       idempotencyKey
}

func newSettle(std Process) *cobra.Command {
	var f settleFlags
	cmd := &cobra.Command{
		Use:   "settle KEY {HOLD | --tag TEXT} [[KEY//]NAME=COST]...",
		Short: "Say what a hold has really cost, or release it",
		Long: `Ends a hold that "keystead admit --hold" has printed. NAME=COST says what a demand has really cost;
one that is not named has cost what it reserved. More than was reserved is always taken, as debt:
nothing is admitted until it is paid. With --release nothing was used. With --tag, it ends one of
the holds that were made with the same --tag: the one that ends first.

After the time of the hold it corrects what its expiry did, for five minutes. Then the hold is
unknown: nothing happens, and the exit code is 3. A HOLD that is - was admitted by a fallback:
there is nothing to settle. With --json:
{"late": bool, "costs": [{"name", "charged", "back", "taken", "debt"}], "epoch": number}.`,
		Example: `  keystead settle org:7 "$hold" tpm=3127
  keystead settle org:7 "$hold" --release
  keystead settle org:7 --tag "req-$id" --release`,
		Args: f.args,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, std, args) },
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", admissionNameText)
	cmd.Flags().StringVar(&f.tag, "tag", "", "end one of the holds of this `TEXT`")
	cmd.Flags().BoolVar(&f.release, "release", false, "nothing was used: give all back")
	f.key.flags(cmd)
	return cmd
}

// args judges the arguments: HOLD is not among them if a tag names the hold.
func (f *settleFlags) args(_ *cobra.Command, args []string) error {
	switch {
	case f.tag != "" && len(args) == 0:
		return usageError{errors.New("KEY is missing\n  hint: keystead settle KEY --tag TEXT NAME=COST")}
	case f.tag == "" && len(args) < 2:
		return usageError{errors.New("KEY and HOLD are missing\n  hint: keystead settle KEY HOLD NAME=COST, or --tag TEXT in place of HOLD")}
	case f.tag != "" && len(args) > 1 && !strings.Contains(args[1], "="):
		return usageError{fmt.Errorf("HOLD and --tag exclude each other: leave %q out", args[1])}
	}
	return nil
}

func (f *settleFlags) run(cmd *cobra.Command, std Process, args []string) error {
	key, hold, said := args[0], "", args[1:]
	if f.tag == "" {
		hold, said = args[1], args[2:]
	}
	costs, err := parseCosts(said)
	if err != nil {
		return err
	}
	if hold == noHold {
		return showNoHold(std, f.json)
	}
	if f.release && len(costs) > 0 {
		return usageError{errors.New("--release and costs exclude each other: nothing was used, or it is said how much")}
	}
	node, err := f.client(cmd.Context())
	if err != nil {
		return err
	}
	defer node.Close()
	a := node.Admission(f.name)
	var s client.Settled
	switch {
	case f.tag != "" && f.release:
		s, err = a.ReleaseTag(cmd.Context(), key, f.tag, f.key.option())
	case f.tag != "":
		s, err = a.SettleTag(cmd.Context(), key, f.tag, costs, f.key.option())
	case f.release:
		s, err = a.Release(cmd.Context(), key, hold, f.key.option())
	default:
		s, err = a.Settle(cmd.Context(), key, hold, costs, f.key.option())
	}
	if errors.Is(err, client.ErrHoldUnknown) {
		return unknownHold(std)
	}
	if err != nil {
		return node.explain(err)
	}
	return showSettled(std, &s, f.json)
}

type costJSON struct {
	Name    string `json:"name"`
	Charged uint64 `json:"charged"`
	Back    uint64 `json:"back"`
	Taken   uint64 `json:"taken"`
	Debt    uint64 `json:"debt"`
}

func showSettled(std Process, s *client.Settled, asJSON bool) error {
	if asJSON {
		j := struct {
			Late  bool       `json:"late"`
			Costs []costJSON `json:"costs"`
			Epoch uint64     `json:"epoch"`
			Lost  uint64     `json:"lost_epoch,omitempty"`
		}{Late: s.Late, Epoch: s.Epoch, Lost: s.LostEpoch}
		for _, c := range s.Costs {
			j.Costs = append(j.Costs, costJSON(c))
		}
		return printJSON(std.Out, j)
	}
	line := "settled"
	if s.Late {
		line += "  after its time"
	}
	for _, c := range s.Costs {
		line += fmt.Sprintf("  %s: %d", printable(c.Name), c.Charged)
		if c.Debt > 0 {
			line += fmt.Sprintf(" (owes %d)", c.Debt)
		}
	}
	_, err := fmt.Fprintln(std.Out, line)
	return err
}
