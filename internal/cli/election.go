package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

func newElection(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "election",
		Short: "Lead, and see who leads",
		Long: `One leader at a time for a key, under a lease. Candidates wait in one line; when the term of
a leader ends, the next in line leads. Each term has a fencing token greater than all before
it: what a leader writes elsewhere carries it, so that late writes are refused.`,
		Example: `  keystead election campaign mains --value "$HOST:8080" -- ./main-instance.sh
  keystead election observe mains
  keystead election show mains`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newCampaign(std), newObserve(std), newResign(std), newProclaim(std), newElectionShow(std))
	return cmd
}

func (f *lockFlags) electionNamed(cmd *cobra.Command) {
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which election of the key (default \"election\")")
}

func newCampaign(std Process) *cobra.Command {
	var f lockFlags
	var value string
	var delay time.Duration
	cmd := &cobra.Command{
		Use:   "campaign KEY [-- COMMAND [ARG]...]",
		Short: "Wait to lead, and run a command while leading",
		Long: `Waits in line to lead KEY, runs COMMAND while it leads, and resigns when that has ended.
Without a COMMAND it prints the token of its term and leads until a signal.

Others see --value. COMMAND finds the fencing token in KEYSTEAD_FENCING_TOKEN. All else is as
with "keystead lock": the renewals, the signals, the exit code, and what happens if the term is
lost: COMMAND and its children are killed before another can lead.

Exit codes of keystead itself: 75 if it was not elected within --wait, 76 if the term was lost.`,
		Example: `  keystead election campaign mains --value "$HOST:8080" -- ./main-instance.sh
  keystead election campaign mains --try --holder "$HOST" -- ./once.sh    # exit code 75 at once if another leads
  keystead election campaign mains --ttl 5s --delay 2s                    # leads until Ctrl-C`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("KEY is missing\n  hint: keystead election campaign KEY -- COMMAND")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.other = &otherHeld{what: "election", refused: notElected,
				ask: func(ctx context.Context, node *atNode, key string, opts []client.LockOption) (heldGrant, error) {
					held, err := node.Election(f.name).Campaign(ctx, key, []byte(value), append(opts, client.Delay(delay))...)
					if err != nil {
						return nil, err
					}
					return held, nil
				}}
			if len(args) > 1 {
				return f.run(cmd.Context(), std, args[0], args[1:])
			}
			return f.keep(cmd.Context(), std, args[0])
		},
	}
	f.electionNamed(cmd)
	cmd.Flags().StringVar(&value, "value", "", "what others are told of the leader, such as an address")
	cmd.Flags().StringVar(&f.holder, "holder", "", "who you are, shown to others (default host:pid)")
	cmd.Flags().DurationVar(&f.wait, "wait", 24*time.Hour, "how long to wait to lead; 0 = do not")
	cmd.Flags().BoolVar(&f.try, "try", false, "do not wait to lead, whatever --wait says")
	cmd.Flags().DurationVar(&f.ttl, "ttl", 10*time.Second, "how long the term outlives a keystead that died; 300ms or more")
	cmd.Flags().DurationVar(&delay, "delay", 0, "how long nobody is elected if the leader is lost; up to 1m")
	return cmd
}

// notElected reports who leads instead; nil if an error is another.
func notElected(std Process, key string, e *client.Error) error {
	if !errors.Is(e, client.ErrNotElected) {
		return nil
	}
	who := "nobody leads yet"
	if h := e.Holder; h != nil {
		who = fmt.Sprintf("%s has led for %s", printable(h.ID), people(h.Held))
	}
	fmt.Fprintf(std.Err, "keystead: not elected for %q: %s; %d in line before you\n", key, who, max(e.Place-1, 0))
	return exitCode(exitNotAcquired)
}

// keep acquires, prints the token and holds until a signal.
func (f *lockFlags) keep(ctx context.Context, std Process, key string) error {
	if err := f.check(os.Getpid()); err != nil {
		return err
	}
	node, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	ctx, stop := untilSignal(ctx)
	held, err := f.acquire(ctx, node, key, std)
	if err == nil {
		err = f.printGrant(std.Out, held.Token())
	}
	if held != nil && err == nil {
		select {
		case <-ctx.Done():
		case <-held.Context().Done():
			stop()
			printError(std.Err, fmt.Errorf("the %s on %q was lost: %w", f.what(), key, whyLost(held)))
			return exitCode(exitLockLost)
		}
	}
	interrupted := stop()
	if held != nil {
		f.release(held)
	}
	if interrupted != 0 {
		return exitCode(128 + interrupted)
	}
	return err
}

type leaderJSON struct {
	Candidate string  `json:"candidate"`
	Token     string  `json:"token"`
	Value     []byte  `json:"value"` // base64
	Text      *string `json:"value_text,omitempty"`
	Led       seconds `json:"led,omitempty"`
	TTL       seconds `json:"ttl,omitempty"`
}

func leaderJSONOf(l *client.Leader) *leaderJSON {
	if l == nil {
		return nil
	}
	j := &leaderJSON{Candidate: l.Candidate, Token: strconv.FormatUint(l.Token, 10), Value: l.Value, Led: seconds(l.Led), TTL: seconds(l.TTL)}
	if j.Value == nil {
		j.Value = []byte{}
	}
	if text := string(l.Value); utf8.ValidString(text) {
		j.Text = &text
	}
	return j
}

func newObserve(std Process) *cobra.Command {
	var f lockFlags
	var after uint64
	var once bool
	cmd := &cobra.Command{
		Use:   "observe KEY",
		Short: "Print who leads, and each later leader",
		Long: `Prints who leads KEY, and again whenever that or the value has changed, until Ctrl-C: a line
with the version, the candidate, the token and the value, or "nobody". It is the latest state,
not each change, and versions never fall. With --after, what is not newer is left out; with
--once, it ends after the first line.

A line comes again with "stale" when no node says any more that it is the latest state, and
without when one does again. "unknown" says that the state of the key was lost, and somebody
may lead.

With --json: one line for each state, {"leader": {"candidate", "token": "…", "value": "base64",
"value_text"}, "version": "…", "epoch": number}, without "leader" if nobody leads,
"lost_epoch": number in the grace period of a loss, and "stale": true.`,
		Example: `  keystead election observe mains
  keystead election observe mains --json | while read -r state; do route "$state"; done
  keystead election observe mains --after 117440513 --once     # waits for the next change`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			node, err := f.client(ctx)
			if err != nil {
				return err
			}
			defer node.Close()
			for o, err := range node.Election(f.name).Observe(ctx, args[0], after) {
				if err != nil {
					return node.explain(err)
				}
				if err := f.printObserved(std, &o); err != nil || once {
					return err
				}
			}
			return nil
		},
	}
	f.electionNamed(cmd)
	cmd.Flags().Uint64Var(&after, "after", 0, "leave out states up to this `VERSION`")
	cmd.Flags().BoolVar(&once, "once", false, "end after the first line")
	return cmd
}

func (f *lockFlags) printObserved(std Process, o *client.Observed) error {
	if f.json {
		return printJSON(std.Out, struct {
			Leader  *leaderJSON `json:"leader,omitempty"`
			Version string      `json:"version"`
			Epoch   uint64      `json:"epoch"`
			Lost    uint64      `json:"lost_epoch,omitempty"`
			Stale   bool        `json:"stale,omitempty"`
		}{leaderJSONOf(o.Leader), strconv.FormatUint(o.Version, 10), o.Epoch, o.LostEpoch, o.Stale})
	}
	state := "nobody"
	switch {
	case o.Leader != nil:
		state = fmt.Sprintf("%s  token %d  %q", printable(o.Leader.Candidate), o.Leader.Token, o.Leader.Value)
	case o.Unknown():
		state = "unknown"
	}
	if o.Stale {
		state += "  stale"
	}
	_, err := fmt.Fprintf(std.Out, "%d  %s\n", o.Version, state)
	return err
}

func newResign(std Process) *cobra.Command {
	var f lockFlags
	var typed string
	var revoked bool
	cmd := &cobra.Command{
		Use:   "resign KEY --token TOKEN",
		Short: "End a term, and have the next in line lead",
		Long: `Ends the term of a token; the next in line leads at once. The leader has to have stopped what
it does. With --revoke it is another's term that ends: its leader learns of it at its next
renewal, and the --delay that it asked for runs before others are elected.

Exit codes: 0 if it was ended, 76 if the token does not lead any more.`,
		Example: `  keystead election resign mains --token "$token"
  keystead election resign mains --revoke --token "$(keystead election show mains --json | jq -r .leader.token)"`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.underTerm(cmd.Context(), std, args[0], typed, "resigned", func(ctx context.Context, n client.Election, token uint64) (bool, error) {
				if revoked {
					return n.Revoke(ctx, args[0], token, f.key.option())
				}
				return n.Resign(ctx, args[0], token, f.key.option())
			})
		},
	}
	f.electionNamed(cmd)
	f.key.flags(cmd)
	cmd.Flags().StringVar(&typed, "token", "", "the `TOKEN` of the term (required)")
	cmd.Flags().BoolVar(&revoked, "revoke", false, "it is another's term")
	return cmd
}

func newProclaim(std Process) *cobra.Command {
	var f lockFlags
	var typed string
	cmd := &cobra.Command{
		Use:   "proclaim KEY VALUE --token TOKEN",
		Short: "Change what others are told of a leader",
		Long: `Replaces the value of a term. It is refused when the term is over, even if nobody has led
since.

Exit codes: 0 if it was replaced, 76 if the token does not lead any more.`,
		Example: `  keystead election campaign mains -- sh -c 'keystead election proclaim mains ready --token "$KEYSTEAD_FENCING_TOKEN" && serve'`,
		Args:    exactArgs("KEY", "VALUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.underTerm(cmd.Context(), std, args[0], typed, "proclaimed", func(ctx context.Context, n client.Election, token uint64) (bool, error) {
				return n.Proclaim(ctx, args[0], token, []byte(args[1]), f.key.option())
			})
		},
	}
	f.electionNamed(cmd)
	f.key.flags(cmd)
	cmd.Flags().StringVar(&typed, "token", "", "the `TOKEN` of the term (required)")
	return cmd
}

// underTerm does something under the token of a term, and reports whether it is in force.
func (f *lockFlags) underTerm(ctx context.Context, std Process, key, typed, done string, do func(ctx context.Context, n client.Election, token uint64) (bool, error)) error {
	token, err := parseToken(typed)
	if err != nil {
		return err
	}
	node, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	ok, err := do(ctx, node.Election(f.name), token)
	switch {
	case err != nil:
		return node.explain(err)
	case f.json:
		if err := printJSON(std.Out, map[string]bool{done: ok}); err != nil {
			return err
		}
	case ok:
		fmt.Fprintln(std.Out, done)
	}
	if !ok {
		fmt.Fprintf(std.Err, "keystead: token %d does not lead %q: its term is over\n", token, key)
		return exitCode(exitLockLost)
	}
	return nil
}

func newElectionShow(std Process) *cobra.Command {
	var f lockFlags
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show who leads and who waits",
		Long: `Shows who leads KEY and who waits in line.

With --json: {"leader": {"candidate", "token": "…", "value": "base64", "value_text", "led":
seconds, "ttl": seconds}, "delay": seconds until somebody can be elected, "candidates":
[{"holder", "waited": seconds}], "waiting": how many in all, "epoch": number}, without
"leader" if nobody leads. In the grace period of a loss, "lost_epoch": number besides.`,
		Example: `  keystead election show mains
  keystead election show mains --json | jq -r '.leader.value_text // "nobody"'`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			s, err := node.Election(f.name).Inspect(cmd.Context(), args[0])
			if err != nil {
				return node.explain(err)
			}
			return f.showElection(std, &s)
		},
	}
	f.electionNamed(cmd)
	return cmd
}

func (f *lockFlags) showElection(std Process, s *client.ElectionState) error {
	if f.json {
		v := struct {
			Leader     *leaderJSON  `json:"leader,omitempty"`
			Delay      seconds      `json:"delay,omitempty"`
			Candidates []waiterJSON `json:"candidates"`
			Waiting    int          `json:"waiting"`
			Epoch      uint64       `json:"epoch"`
			Lost       uint64       `json:"lost_epoch,omitempty"`
		}{leaderJSONOf(s.Leader), seconds(s.Delay), []waiterJSON{}, s.Waiting, s.Epoch, s.LostEpoch}
		for _, c := range s.Candidates {
			v.Candidates = append(v.Candidates, waiterJSON{c.Name, seconds(c.Waited)})
		}
		return printJSON(std.Out, v)
	}
	switch l := s.Leader; {
	case l != nil:
		fmt.Fprintf(std.Out, "led by %s for %s, token %d, over in %s unless renewed%s\nvalue: %q\n",
			printable(l.Candidate), people(l.Led), l.Token, people(l.TTL), graceMark(s.LostEpoch), l.Value)
	case s.Unknown():
		fmt.Fprintf(std.Out, "not known to be led%s\n", graceMark(s.LostEpoch))
	case s.Delay > 0:
		fmt.Fprintf(std.Out, "nobody leads: the last leader was lost, and nobody is elected for %s\n", people(s.Delay))
	default:
		fmt.Fprintln(std.Out, "nobody leads")
	}
	for i, c := range s.Candidates {
		fmt.Fprintf(std.Out, "%4d. %s, waiting %s\n", i+1, printable(c.Name), people(c.Waited))
	}
	if more := s.Waiting - len(s.Candidates); more > 0 {
		fmt.Fprintf(std.Out, "      and %d more\n", more)
	}
	return nil
}
