package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

func newLimit(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "limit",
		Short: "Check rate limits",
		Example: `  keystead limit check 203.0.113.7 --name api --limit 20/1m
  keystead limit peek 203.0.113.7 --name api --limit 20/1m
  keystead limit refund 203.0.113.7 1 --name api --limit 20/1m
  keystead limit reset 203.0.113.7 --name api`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newLimitCheck(std, false), newLimitCheck(std, true), newLimitRefund(std), newLimitReset(std))
	return cmd
}

type limitFlags struct {
	remote
	name      string
	rate      rate
	burst     uint64
	cost      uint64
	refund    int64
	algorithm string
	exitCode  bool
	anywhere  bool
	key       idempotencyKey
}

// exitDenied is the exit code of a denied check with --exit-code.
const exitDenied = 3

func newLimitCheck(std Process, peek bool) *cobra.Command {
	var f limitFlags
	verb, short, long := "check", "Spend from a limit if there is room", `Asks the owner of KEY whether --cost may be spent, and spends it if so.

Over the limit is an answer, not a failure: the exit code is 0 either way, or 3
for "denied" with --exit-code.

With --refund it gives tokens back that were spent and not used, at most up to
full, and spends nothing. What was spent a period ago or longer has come back by
itself, and is not to be refunded.`
	if peek {
		verb, short, long = "peek", "Show what a check would answer, spending nothing", `Answers as "limit check" would, and changes nothing.`
	}
	cmd := &cobra.Command{
		Use:   verb + " KEY --limit COUNT/PERIOD",
		Short: short,
		Long: long + `

With --json: {"allowed": bool, "limit": tokens at most, "remaining": tokens,
"retry_after": seconds, "reset_after": seconds, "epoch": number}, and "lost_epoch":
number in the grace period of a loss. "slack": tokens by which a refusal may be early,
with --anywhere, or when others have them. "parts": how many, if the limit is split; then
what is left is that of the part that answers.`,
		Example: fmt.Sprintf(`  keystead limit %[1]s 203.0.113.7 --name api --limit 20/1m
  keystead limit %[1]s tenant-42 --limit 100/s --burst 500 --cost 25 --json
  keystead limit %[1]s tenant-42 --limit 10000/24h --algorithm fixed-window
  keystead limit %[1]s tenant-42 --limit 100/1h --algorithm sliding-window`, verb),
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.refund != 0 && cmd.Flags().Changed("cost") {
				return usageError{errors.New("--refund and --cost exclude each other: a check spends, or gives back")}
			}
			if f.anywhere && f.key != "" {
				return usageError{errors.New("--anywhere and --idempotency-key exclude each other: a node that decides by itself keeps no keys")}
			}
			return f.run(cmd.Context(), std.Out, args[0], peek)
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which limit of the key (default \"limit\")")
	cmd.Flags().Var(&f.rate, "limit", "tokens that come back per period, like 20/1m (required)")
	cmd.Flags().Uint64Var(&f.burst, "burst", 0, "most tokens at once (default: the count of --limit)")
	cmd.Flags().Uint64Var(&f.cost, "cost", 1, "tokens to spend")
	cmd.Flags().StringVar(&f.algorithm, "algorithm", defaultAlgorithm, algorithmNames)
	if !peek {
		cmd.Flags().Int64Var(&f.refund, "refund", 0, "tokens to give back instead of spending")
		cmd.Flags().BoolVar(&f.anywhere, "anywhere", false, "let the node at --addr decide by itself where it can")
		f.key.flags(cmd)
	}
	cmd.Flags().BoolVar(&f.exitCode, "exit-code", false, "exit with 3 when denied")
	return cmd
}

const (
	defaultAlgorithm = "token-bucket"
	algorithmNames   = "token-bucket, fixed-window or sliding-window"
)

// algorithm is how a limit refills, for the Go client and for what calls without it.
type algorithm struct {
	client client.Algorithm
	wire   limitpb.Algorithm
}

var algorithms = map[string]algorithm{
	client.TokenBucket.String():   {client.TokenBucket, limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET},
	client.FixedWindow.String():   {client.FixedWindow, limitpb.Algorithm_ALGORITHM_FIXED_WINDOW},
	client.SlidingWindow.String(): {client.SlidingWindow, limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW},
}

// parseAlgorithm accepts underscores as well, as the API writes the names.
func parseAlgorithm(name string) (algorithm, error) {
	if a, ok := algorithms[strings.ReplaceAll(name, "_", "-")]; ok {
		return a, nil
	}
	return algorithm{}, usageError{fmt.Errorf("--algorithm %q: choose %s", name, algorithmNames)}
}

func (f *limitFlags) run(ctx context.Context, out io.Writer, key string, peek bool) error {
	if f.rate.limit == 0 {
		return usageError{errors.New("--limit is missing\n  hint: for example --limit 20/1m")}
	}
	if f.cost == 0 {
		return usageError{errors.New("--cost 0 spends nothing\n  hint: use `keystead limit peek`")}
	}
	if f.refund < 0 {
		return usageError{fmt.Errorf("--refund %d: choose 1 or more", f.refund)}
	}
	algorithm, err := parseAlgorithm(f.algorithm)
	if err != nil {
		return err
	}
	node, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	d, err := f.ask(ctx, node.Client, key, algorithm.client, peek)
	if err != nil {
		return node.explain(err)
	}
	if err := f.show(out, &d); err != nil {
		return err
	}
	if f.exitCode && !d.Allowed {
		return exitCode(exitDenied)
	}
	return nil
}

func (f *limitFlags) ask(ctx context.Context, c *client.Client, key string, algorithm client.Algorithm, peek bool) (client.Decision, error) {
	var opts []client.LimitOption
	if f.anywhere {
		opts = append(opts, client.Anywhere())
	}
	l := c.Limit(f.name, client.Rate{Limit: f.rate.limit, Period: f.rate.period, Burst: f.burst, Algorithm: algorithm}, opts...)
	switch {
	case f.refund != 0:
		return l.Refund(ctx, key, uint64(f.refund), f.key.option())
	case peek:
		return l.PeekN(ctx, key, f.cost)
	}
	return l.CheckN(ctx, key, f.cost, f.key.option())
}

func (f *limitFlags) show(out io.Writer, d *client.Decision) error {
	if f.json {
		return printJSON(out, struct {
			Allowed    bool    `json:"allowed"`
			Limit      uint64  `json:"limit"`
			Remaining  uint64  `json:"remaining"`
			RetryAfter seconds `json:"retry_after"`
			ResetAfter seconds `json:"reset_after"`
			Epoch      uint64  `json:"epoch"`
			Lost       uint64  `json:"lost_epoch,omitempty"`
			Slack      uint64  `json:"slack,omitempty"`
			Parts      int     `json:"parts,omitempty"`
		}{d.Allowed, d.Capacity, d.Remaining, seconds(d.RetryAfter), seconds(d.ResetAfter), d.Epoch, d.LostEpoch, d.Slack, d.Parts})
	}
	marks := partsMark(d.Parts) + graceMark(d.LostEpoch)
	var err error
	if f.refund != 0 {
		_, err = fmt.Fprintf(out, "refunded %d of %d left, full in %s%s\n", d.Remaining, d.Capacity, people(d.ResetAfter), marks)
	} else if d.Allowed {
		_, err = fmt.Fprintf(out, "allowed  %d of %d left, full in %s%s\n", d.Remaining, d.Capacity, people(d.ResetAfter), marks)
	} else {
		_, err = fmt.Fprintf(out, "denied   %d of %d left, try again in %s, full in %s%s\n",
			d.Remaining, d.Capacity, people(d.RetryAfter), people(d.ResetAfter), marks)
	}
	return err
}
