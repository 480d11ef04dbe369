package cli

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

func newGroup(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "Join a group, and list its members",
		Long: `The members of a key, each under a lease, with an id and a text of its own, such as an address.
A group has up to 500 members, and one of each id: a Join under the id of a member takes its
place. A member that dies is there until its lease is over.`,
		Example: `  keystead group join web --metadata "$HOST:8080" -- ./serve.sh
  keystead group list web --metadata
  keystead group watch web`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newJoin(std), newGroupList(std), newGroupWatch(std), newGroupUpdate(std), newGroupLeave(std), newGroupVerify(std))
	return cmd
}

func (f *lockFlags) groupNamed(cmd *cobra.Command) {
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which group of the key (default \"group\")")
}

func newJoin(std Process) *cobra.Command {
	var f lockFlags
	cmd := &cobra.Command{
		Use:   "join KEY [-- COMMAND [ARG]...]",
		Short: "Be a member while a command runs",
		Long: `Joins the group of KEY, runs COMMAND, and leaves when that has ended. Without a COMMAND it prints
the token of its membership and is a member until a signal.

Others see --id and --metadata. If the membership is lost, because no node could be reached for
as long as --ttl, it joins again and COMMAND goes on. If another joins under the same --id,
COMMAND and its children are killed: give each process an id of its own. COMMAND finds the first
token in KEYSTEAD_FENCING_TOKEN; each time that it joins again it has another. The signals and
the exit code are as with "keystead lock".

Exit codes of keystead itself: 75 if the group is full, 76 if another has taken its place.`,
		Example: `  keystead group join web --metadata "$HOST:8080" -- ./serve.sh
  keystead group join web --id "$HOST" --ttl 5s -- ./serve.sh    # gone 5 s after a crash
  keystead group join batch                                      # until Ctrl-C`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("KEY is missing\n  hint: keystead group join KEY -- COMMAND")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.other = &otherHeld{what: "membership", hint: "give each process an --id of its own", refused: notJoined,
				ask: func(ctx context.Context, node *atNode, key string, _ []client.LockOption) (heldGrant, error) {
					m, err := node.Group(f.name).Join(ctx, key, client.TTL(f.ttl), client.HeldBy(f.holder), client.Metadata([]byte(f.metadata)))
					if err != nil {
						return nil, err
					}
					return m, nil
				}}
			if len(args) > 1 {
				return f.run(cmd.Context(), std, args[0], args[1:])
			}
			return f.keep(cmd.Context(), std, args[0])
		},
	}
	f.groupNamed(cmd)
	cmd.Flags().StringVar(&f.metadata, "metadata", "", "what others are told of this member, such as an address; up to 1,024 bytes")
	cmd.Flags().StringVar(&f.holder, "id", "", "the id, shown to others; a group has one member of an id (default host:pid)")
	cmd.Flags().DurationVar(&f.ttl, "ttl", 10*time.Second, "how long others see a member that died; 300ms or more")
	return cmd
}

// notJoined reports that a group is full; nil if an error is another.
func notJoined(std Process, key string, e *client.Error) error {
	if !errors.Is(e, client.ErrGroupFull) {
		return nil
	}
	fmt.Fprintf(std.Err, "keystead: the group %q is full: it has %d members\n", key, client.MaxMembers)
	return exitCode(exitNotAcquired)
}

type joinedJSON struct {
	ID       string  `json:"id"`
	Token    string  `json:"token"`
	Metadata []byte  `json:"metadata"` // base64
	Text     *string `json:"metadata_text,omitempty"`
	Joined   seconds `json:"joined,omitempty"`
	TTL      seconds `json:"ttl,omitempty"`
}

type groupJSON struct {
	Members []joinedJSON `json:"members"`
	Version string       `json:"version"`
	Epoch   uint64       `json:"epoch"`
	Lost    uint64       `json:"lost_epoch,omitempty"`
	Stale   bool         `json:"stale,omitempty"`
}

func groupJSONOf(g *client.GroupState, stale bool) groupJSON {
	j := groupJSON{[]joinedJSON{}, strconv.FormatUint(g.Version, 10), g.Epoch, g.LostEpoch, stale}
	for _, m := range g.Members {
		one := joinedJSON{ID: m.ID, Token: strconv.FormatUint(m.Token, 10), Metadata: m.Metadata, Joined: seconds(m.Joined), TTL: seconds(m.TTL)}
		if one.Metadata == nil {
			one.Metadata = []byte{}
		}
		if text := string(m.Metadata); utf8.ValidString(text) {
			one.Text = &text
		}
		j.Members = append(j.Members, one)
	}
	return j
}

const groupJSONText = `{"members": [{"id", "token": "…", "metadata": "base64", "metadata_text"}], "version": "…",
"epoch": number}, and "lost_epoch": number in the grace period of a loss`

func newGroupList(std Process) *cobra.Command {
	var f lockFlags
	var metadata bool
	cmd := &cobra.Command{
		Use:   "list KEY",
		Short: "List the members",
		Long: `Lists the members of the group of KEY, in the order in which they have joined, a line each: the id,
the token, for how long, and the metadata. A member that died is listed until its lease is over.
After a loss of state, a line on standard error says that there may be others.

With --metadata: only the metadata of each, as a script reads them. With --json:
` + groupJSONText + `,
and of each member "joined": seconds and "ttl": seconds.`,
		Example: `  keystead group list web
  keystead group list web --metadata | while read -r addr; do curl -s "http://$addr/health"; done
  keystead group list web --json | jq -r '.members[] | select(.ttl > 1) | .metadata_text'`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			g, err := node.Group(f.name).Members(cmd.Context(), args[0])
			if err != nil {
				return node.explain(err)
			}
			if f.json {
				return printJSON(std.Out, groupJSONOf(&g, false))
			}
			for _, m := range g.Members {
				line := fmt.Sprintf("%s  token %d  for %s  %q", printable(m.ID), m.Token, people(m.Joined), m.Metadata)
				if metadata {
					line = printable(string(m.Metadata))
				}
				if _, err := fmt.Fprintln(std.Out, line); err != nil {
					return err
				}
			}
			if g.Partial() {
				fmt.Fprintf(std.Err, "keystead: what was kept of %q was lost: there may be members that have not come back yet\n", args[0])
			}
			return nil
		},
	}
	f.groupNamed(cmd)
	cmd.Flags().BoolVar(&metadata, "metadata", false, "print only the metadata of each member")
	return cmd
}

func newGroupWatch(std Process) *cobra.Command {
	var f lockFlags
	var after uint64
	var once bool
	cmd := &cobra.Command{
		Use:   "watch KEY",
		Short: "Print the members, and again whenever they change",
		Long: `Prints the members of the group of KEY, and again whenever one has joined, left or died, or has other
metadata, until Ctrl-C: a line with the version, how many there are, and id=metadata of each. It
is the latest state, not each change, and versions never fall. With --after, what is not newer is
left out; with --once, it ends after the first line.

A line comes again with "stale" when no node says any more that it is the latest state, and
without when one does again. "partial" says that the state of the key was lost, and that there
may be members that have not come back yet.

With --json: one line for each state,
` + groupJSONText + `,
and "stale": true.`,
		Example: `  keystead group watch web
  keystead group watch web --json | while read -r state; do ./new-upstreams.sh "$state"; done
  keystead group watch web --after 117440513 --once     # waits for the next change`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			node, err := f.client(ctx)
			if err != nil {
				return err
			}
			defer node.Close()
			for g, err := range node.Group(f.name).Watch(ctx, args[0], after) {
				if err != nil {
					return node.explain(err)
				}
				if err := f.printWatchedGroup(std, &g); err != nil || once {
					return err
				}
			}
			return nil
		},
	}
	f.groupNamed(cmd)
	cmd.Flags().Uint64Var(&after, "after", 0, "leave out states up to this `VERSION`")
	cmd.Flags().BoolVar(&once, "once", false, "end after the first line")
	return cmd
}

func (f *lockFlags) printWatchedGroup(std Process, g *client.WatchedGroup) error {
	if f.json {
		return printJSON(std.Out, groupJSONOf(&g.GroupState, g.Stale))
	}
	var line strings.Builder
	fmt.Fprintf(&line, "%d  %d", g.Version, len(g.Members))
	for _, m := range g.Members {
		fmt.Fprintf(&line, "  %s=%q", printable(m.ID), m.Metadata)
	}
	if g.Partial() {
		line.WriteString("  partial")
	}
	if g.Stale {
		line.WriteString("  stale")
	}
	_, err := fmt.Fprintln(std.Out, line.String())
	return err
}

func newGroupUpdate(std Process) *cobra.Command {
	var f lockFlags
	var typed string
	cmd := &cobra.Command{
		Use:   "update KEY METADATA --token TOKEN",
		Short: "Change what others are told of a member",
		Long: `Replaces the metadata of a member.

Exit codes: 0 if they were replaced, 76 if the token is not that of a member any more.`,
		Example: `  keystead group update web "$HOST:8080 draining" --token "$token"`,
		Args:    exactArgs("KEY", "METADATA"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.underMember(cmd.Context(), std, args[0], typed, "updated", func(ctx context.Context, g client.Group, token uint64) (bool, error) {
				return g.Update(ctx, args[0], token, []byte(args[1]), f.key.option())
			})
		},
	}
	f.groupNamed(cmd)
	f.key.flags(cmd)
	cmd.Flags().StringVar(&typed, "token", "", "the `TOKEN` of the membership (required)")
	return cmd
}

func newGroupLeave(std Process) *cobra.Command {
	var f lockFlags
	var typed string
	cmd := &cobra.Command{
		Use:   "leave KEY --token TOKEN",
		Short: "End a membership",
		Long: `Ends the membership of a token, also that of another. A "keystead group join" that still runs
joins again at its next renewal: end that, or have it end.

Exit codes: 0 if it was ended, 76 if the token is not that of a member any more.`,
		Example: `  keystead group leave web --token "$(keystead group list web --json | jq -r '.members[] | select(.id == "old") | .token')"`,
		Args:    exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.underMember(cmd.Context(), std, args[0], typed, "left", func(ctx context.Context, g client.Group, token uint64) (bool, error) {
				return g.Remove(ctx, args[0], token, f.key.option())
			})
		},
	}
	f.groupNamed(cmd)
	f.key.flags(cmd)
	cmd.Flags().StringVar(&typed, "token", "", "the `TOKEN` of the membership (required)")
	return cmd
}

func newGroupVerify(std Process) *cobra.Command {
	var f lockFlags
	var typed string
	cmd := &cobra.Command{
		Use:   "verify KEY --token TOKEN",
		Short: "Say whether a token is that of a member",
		Long: `Says whether a token is that of a member now.

Exit codes: 0 if it is, 76 if it is not any more.`,
		Example: `  keystead group verify web --token "$token" && ./go-on.sh`,
		Args:    exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.underMember(cmd.Context(), std, args[0], typed, "member", func(ctx context.Context, g client.Group, token uint64) (bool, error) {
				return g.Verify(ctx, args[0], token)
			})
		},
	}
	f.groupNamed(cmd)
	cmd.Flags().StringVar(&typed, "token", "", "the `TOKEN` of the membership (required)")
	return cmd
}

// underMember does something under the token of a membership, and reports whether it is in force.
func (f *lockFlags) underMember(ctx context.Context, std Process, key, typed, done string, do func(ctx context.Context, g client.Group, token uint64) (bool, error)) error {
	token, err := parseToken(typed)
	if err != nil {
		return err
	}
	node, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	ok, err := do(ctx, node.Group(f.name), token)
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
		fmt.Fprintf(std.Err, "keystead: token %d is not that of a member of %q: its membership is over\n", token, key)
		return exitCode(exitLockLost)
	}
	return nil
}
