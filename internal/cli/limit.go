package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

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
  keystead limit wait crawler --limit 10/s --burst 300 --max-delay 30s && ./fetch.sh
  keystead limit refund 203.0.113.7 1 --name api --limit 20/1m
  keystead limit reset 203.0.113.7 --name api
  keystead limit override set tenant-42 --name api --limit 1000/1m --for 2h`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newLimitCheck(std, false), newLimitCheck(std, true), newLimitWait(std), newLimitRefund(std), newLimitReset(std), newLimitOverride(std))
	return cmd
}

type limitFlags struct {
	remote
	name      string
	rate      rate
	burst     uint64
	cost      uint64
	refund    int64
	overdraft bool
	algorithm string
	exitCode  bool
	anywhere  bool
	maxDelay  time.Duration
	key       idempotencyKey
	policy    string
	calendar  calendarFlags
	fallback  fallbackFlags
}

// exitDenied is the exit code of a denied check with --exit-code.
const exitDenied = 3

func newLimitCheck(std Process, peek bool) *cobra.Command {
	var f limitFlags
	verb, short, long := "check", "Spend from a limit if there is room", `Asks the owner of KEY whether --cost may be spent, and spends it if so.

Over the limit is an answer, not a failure: the exit code is 0 either way, or 3
for "denied" with --exit-code.

With --overdraft it spends whether or not there is room: what is owed comes back first.

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
what is left is that of the part that answers. "delay": seconds until it may run, of a
leaky-bucket. "period_ends": when the period ends, of a calendar-window: COUNT/day, /week,
/month or /year of --time-zone, or whole seconds by the clock. "policy_version":
number, with --policy. "overridden": true if an override was in force. "degraded":
"local-cap" or "last-known" if --fallback decided. "debt": tokens spent beyond the limit.`,
		Example: fmt.Sprintf(`  keystead limit %[1]s 203.0.113.7 --name api --limit 20/1m
  keystead limit %[1]s tenant-42 --limit 100/s --burst 500 --cost 25 --json
  keystead limit %[1]s tenant-42 --limit 10000/24h --algorithm fixed-window
  keystead limit %[1]s tenant-42 --limit 100/1h --algorithm sliding-window
  keystead limit %[1]s tenant-42 --limit 10/s --algorithm leaky-bucket --max-delay 2s
  keystead limit %[1]s tenant-42 --limit 10000/month --algorithm calendar-window --time-zone Europe/Berlin --first-day 15
  keystead limit %[1]s tenant-42 --limit 100/1h --algorithm calendar-window
  keystead limit %[1]s tenant-42 --limit 100/1m --fallback local-cap:10/1m --budget 100ms
  keystead limit %[1]s tenant-42 --policy per-tenant`, verb),
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.judgeCheck(cmd); err != nil {
				return err
			}
			return f.run(cmd.Context(), std.Out, args[0], peek)
		},
	}
	f.rateFlags(cmd)
	cmd.Flags().Uint64Var(&f.cost, "cost", 1, "tokens to spend")
	f.calendar.flags(cmd)
	f.fallback.flags(cmd)
	cmd.Flags().DurationVar(&f.maxDelay, "max-delay", 0, "of a leaky-bucket: how late it may run; 0 = only at once")
	if !peek {
		cmd.Flags().Int64Var(&f.refund, "refund", 0, "tokens to give back instead of spending")
		cmd.Flags().BoolVar(&f.anywhere, "anywhere", false, "let the node at --addr decide by itself where it can")
		cmd.Flags().BoolVar(&f.overdraft, "overdraft", false, "spend --cost whether or not it is there: it was used already")
		f.key.flags(cmd)
	}
	cmd.Flags().BoolVar(&f.exitCode, "exit-code", false, "exit with 3 when denied")
	return cmd
}

// rateFlags adds the flags that say which limit, and how much of it there is.
func (f *limitFlags) rateFlags(cmd *cobra.Command) {
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which limit of the key (default \"limit\")")
	cmd.Flags().Var(&f.rate, "limit", "tokens that come back per period, like 20/1m (required without --policy)")
	cmd.Flags().Uint64Var(&f.burst, "burst", 0, "most tokens at once (default: the count of --limit)")
	cmd.Flags().StringVar(&f.algorithm, "algorithm", cmp.Or(f.algorithm, defaultAlgorithm), algorithmNames)
	cmd.Flags().StringVar(&f.policy, "policy", "", "`NAME` of the policy that says --name, --limit, --burst and --algorithm")
}

// judgeCheck says which flags do not go together.
func (f *limitFlags) judgeCheck(cmd *cobra.Command) error {
	if f.refund != 0 && cmd.Flags().Changed("cost") {
		return usageError{errors.New("--refund and --cost exclude each other: a check spends, or gives back")}
	}
	if cmd.Flags().Changed("refund") && f.refund == 0 {
		return usageError{errors.New("--refund 0 gives nothing back: choose 1 or more, or leave the check out")}
	}
	for _, other := range []string{"refund", "anywhere"} {
		if f.overdraft && cmd.Flags().Changed(other) {
			return usageError{fmt.Errorf("--overdraft and --%s exclude each other", other)}
		}
	}
	if f.anywhere && f.key != "" {
		return usageError{errors.New("--anywhere and --idempotency-key exclude each other: a node that decides by itself keeps no keys")}
	}
	return f.judgePolicy(cmd)
}

// judgePolicy says what does not go with a policy.
func (f *limitFlags) judgePolicy(cmd *cobra.Command) error {
	for _, other := range []string{"name", "limit", "burst", "algorithm", "anywhere", "time-zone", "first-day", "first-month", "carry-over", "fallback", "budget"} {
		if f.policy != "" && cmd.Flags().Lookup(other) != nil && cmd.Flags().Changed(other) {
			return usageError{fmt.Errorf("--policy and --%s exclude each other\n  hint: `keystead policy explain %s` shows what it says", other, f.policy)}
		}
	}
	return nil
}

const (
	defaultAlgorithm = "token-bucket"
	algorithmNames   = "token-bucket, fixed-window, sliding-window, calendar-window or leaky-bucket"
)

// algorithm is how a limit refills, for the Go client and for what calls without it.
type algorithm struct {
	client client.Algorithm
	wire   limitpb.Algorithm
}

var algorithms = map[string]algorithm{
	client.TokenBucket.String():    {client.TokenBucket, limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET},
	client.FixedWindow.String():    {client.FixedWindow, limitpb.Algorithm_ALGORITHM_FIXED_WINDOW},
	client.SlidingWindow.String():  {client.SlidingWindow, limitpb.Algorithm_ALGORITHM_SLIDING_WINDOW},
	client.CalendarWindow.String(): {client.CalendarWindow, limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW},
	client.LeakyBucket.String():    {client.LeakyBucket, limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET},
}

// parseAlgorithm accepts underscores as well, as the API writes the names.
func parseAlgorithm(name string) (algorithm, error) {
	if a, ok := algorithms[strings.ReplaceAll(name, "_", "-")]; ok {
		return a, nil
	}
	return algorithm{}, usageError{fmt.Errorf("--algorithm %q: choose %s", name, algorithmNames)}
}

// judge reports a flag that cannot be, and returns how the limit refills.
func (f *limitFlags) judge() (algorithm, error) {
	as, err := parseAlgorithm(f.algorithm)
	switch {
	case f.rate.limit == 0 && f.policy == "":
		return as, usageError{errors.New("--limit is missing\n  hint: for example --limit 20/1m")}
	case f.cost == 0:
		return as, usageError{errors.New("--cost 0 spends nothing\n  hint: use `keystead limit peek`")}
	case f.refund < 0:
		return as, usageError{fmt.Errorf("--refund %d: choose 1 or more", f.refund)}
	case f.maxDelay < 0:
		return as, usageError{fmt.Errorf("--max-delay %s: choose 0 or more", f.maxDelay)}
	case err == nil && f.maxDelay != 0 && f.policy == "" && as.client != client.LeakyBucket:
		return as, usageError{errors.New("--max-delay goes with --algorithm leaky-bucket: the others never delay")}
	case err == nil && f.fallback.judge() != nil:
		return as, f.fallback.judge()
	case err == nil && f.policy == "":
		err = f.calendar.judge(&f.rate, as.client)
	}
	return as, err
}

func (f *limitFlags) run(ctx context.Context, out io.Writer, key string, peek bool) error {
	algorithm, err := f.judge()
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

// limit returns the limit that the flags say.
func (f *limitFlags) limit(c *client.Client, algorithm client.Algorithm) client.Limit {
	opts := append(f.fallback.options(), client.MaxDelay(f.maxDelay))
	if f.anywhere {
		opts = append(opts, client.Anywhere())
	}
	if f.policy != "" {
		return c.Policy(f.policy, opts...)
	}
	rate := client.Rate{Limit: f.rate.limit, Period: f.rate.period, Burst: f.burst, Algorithm: algorithm}
	return c.Limit(f.name, f.calendar.onto(rate, f.rate.unit), opts...)
}

func (f *limitFlags) ask(ctx context.Context, c *client.Client, key string, algorithm client.Algorithm, peek bool) (client.Decision, error) {
	l := f.limit(c, algorithm)
	switch {
	case f.refund != 0:
		return l.Refund(ctx, key, uint64(f.refund), f.key.option())
	case peek:
		return reached(l.PeekN(ctx, key, f.cost))
	case f.overdraft:
		return l.Overdraw(ctx, key, f.cost, f.key.option())
	}
	return reached(l.CheckN(ctx, key, f.cost, f.key.option()))
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
			Delay      seconds `json:"delay,omitempty"`
			Debt       uint64  `json:"debt,omitempty"`
			Overridden bool    `json:"overridden,omitempty"`
			Policy     uint64  `json:"policy_version,omitempty"`
			Ends       string  `json:"period_ends,omitempty"`
			Degraded   string  `json:"degraded,omitempty"`
		}{d.Allowed, d.Capacity, d.Remaining, seconds(d.RetryAfter), seconds(d.ResetAfter), d.Epoch, d.LostEpoch, d.Slack, d.Parts, seconds(d.Delay), d.Debt, d.Overridden, d.PolicyVersion, periodEnds(d), string(d.Degraded)})
	}
	marks := degradedMark(d) + debtMark(d.Debt) + overrideMark(d.Overridden) + endsMark(d) + partsMark(d.Parts) + graceMark(d.LostEpoch)
	var err error
	if f.refund != 0 {
		_, err = fmt.Fprintf(out, "refunded %d of %d left, %s%s\n", d.Remaining, d.Capacity, fullIn(d.ResetAfter), marks)
	} else if d.Allowed && d.Delay > 0 {
		_, err = fmt.Fprintf(out, "allowed  in %s, %d of %d left, %s%s\n", people(d.Delay), d.Remaining, d.Capacity, fullIn(d.ResetAfter), marks)
	} else if d.Allowed {
		_, err = fmt.Fprintf(out, "allowed  %d of %d left, %s%s\n", d.Remaining, d.Capacity, fullIn(d.ResetAfter), marks)
	} else {
		_, err = fmt.Fprintf(out, "denied   %d of %d left, %s, %s%s\n",
			d.Remaining, d.Capacity, againIn(d.RetryAfter), fullIn(d.ResetAfter), marks)
	}
	return err
}

// debtMark says what is spent beyond the limit.
func debtMark(debt uint64) string {
	if debt == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d owed)", debt)
}

// overrideMark says that other numbers apply than those of the command.
func overrideMark(overridden bool) string {
	if !overridden {
		return ""
	}
	return " (overridden)"
}
