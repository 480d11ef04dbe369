package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

func newLimitWait(std Process) *cobra.Command {
	f := limitFlags{algorithm: client.LeakyBucket.String()}
	cmd := &cobra.Command{
		Use:   "wait KEY --limit COUNT/PERIOD",
		Short: "Wait for a turn: calls by anybody run evenly at the limit",
		Long: `Waits until it is the caller's turn, and exits: turns of all callers of KEY come one after
the other, evenly at --limit (a leaky bucket, which has --burst places). It never exits
with 0 before its turn. A caller that is ended while it waits leaves its turn unused.

Exit codes: 0 at its turn, 75 at once if no turn comes within --max-delay or there is no
place. With --json: as "limit check"; "delay" is how long it has waited.`,
		Example: `  keystead limit wait crawler --limit 10/s && ./fetch.sh
  keystead limit wait mails --limit 100/1m --burst 1000 --max-delay 10m && ./send.sh
  keystead limit wait mails --limit 100/1m --cost 20 --json
  keystead limit wait supplier.example --policy crawler`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.wait(cmd.Context(), std, args[0]) },
	}
	f.rateFlags(cmd)
	cmd.Flags().Lookup("algorithm").Usage = "leaky-bucket: no other has turns"
	cmd.Flags().Lookup("burst").Usage = "for how many tokens there are places; who comes to a full queue is refused at once (default: the count of --limit)"
	cmd.Flags().Uint64Var(&f.cost, "cost", 1, "tokens to spend: it takes the time of as many")
	cmd.Flags().DurationVar(&f.maxDelay, "max-delay", 24*time.Hour, "how long to wait; 0 = do not")
	f.key.flags(cmd)
	return cmd
}

// wait waits for a turn.
func (f *limitFlags) wait(ctx context.Context, std Process, key string) error {
	if as, err := parseAlgorithm(f.algorithm); err == nil && as.client != client.LeakyBucket {
		return usageError{fmt.Errorf("--algorithm %s has no turns to wait for: leave it out, for leaky-bucket\n  hint: `keystead limit check` asks without waiting", f.algorithm)}
	}
	algorithm, err := f.judge()
	if err != nil {
		return err
	}
	node, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	l := f.limit(node.Client, algorithm.client)
	if f.maxDelay == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
		return f.atOnce(ctx, std, node, l, key)
	}
	d, err := l.WaitN(ctx, key, f.cost, f.key.option())
	if errors.Is(err, client.ErrNoTurn) {
		return f.noTurn(std, key, &d)
	}
	if e := (*client.Error)(nil); errors.As(err, &e) && e.Field == "policy" { // what the client says of the node's answer
		return err
	}
	if err != nil {
		return node.explain(err)
	}
	return f.turn(std, &d)
}

// turn reports that it is the caller's turn.
func (f *limitFlags) turn(std Process, d *client.Decision) error {
	if f.json {
		return f.show(std.Out, d)
	}
	_, err := fmt.Fprintf(std.Out, "turn     after %s, %d of %d places left%s\n", people(d.Delay), d.Remaining, d.Capacity, graceMark(d.LostEpoch))
	return err
}

// atOnce takes a turn that is now.
func (f *limitFlags) atOnce(ctx context.Context, std Process, node *atNode, l client.Limit, key string) error {
	d, err := l.CheckN(ctx, key, f.cost, f.key.option())
	if err != nil {
		return node.explain(err)
	}
	if !d.Allowed {
		return f.noTurn(std, key, &d)
	}
	return f.turn(std, &d)
}

// noTurn reports that there is no turn in time.
func (f *limitFlags) noTurn(std Process, key string, d *client.Decision) error {
	if f.json {
		if err := f.show(std.Out, d); err != nil {
			return err
		}
		return exitCode(exitNotAcquired)
	}
	if d.Remaining < f.cost {
		fmt.Fprintf(std.Err, "keystead: the queue of %q is full, %d of %d places are free; %s\n  hint: raise --burst, the number of places, or try again then\n",
			key, d.Remaining, d.Capacity, in("there is room", d.RetryAfter, "there never is room"))
		return exitCode(exitNotAcquired)
	}
	if _, err := fmt.Fprintf(std.Err, "keystead: no turn of %q within %s: %d of %d places are free, %s\n",
		key, plainTimes(f.maxDelay.String()), d.Remaining, d.Capacity, againIn(d.RetryAfter)); err != nil {
		return err
	}
	return exitCode(exitNotAcquired)
}
