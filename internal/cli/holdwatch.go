package cli

import (
	"context"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

// heldState is a lock or a semaphore as a watch sees it.
type heldState struct {
	state   string // a line for people, but for version and Stale
	version uint64
	stale   bool
	json    any
}

// watchFlags are how a lock or a semaphore is watched.
type watchFlags struct {
	*lockFlags
	after uint64
	once  bool
}

func (f *watchFlags) flags(cmd *cobra.Command) {
	cmd.Flags().Lookup("timeout").Usage = "end after this long, if given"
	cmd.Flags().Uint64Var(&f.after, "after", 0, "leave out states up to this `VERSION`")
	cmd.Flags().BoolVar(&f.once, "once", false, "end after the first line")
}

// watch prints what follow tells, until a signal, or as long as --timeout says.
func (f *watchFlags) watch(cmd *cobra.Command, std Process, follow func(ctx context.Context, node *atNode, tell func(heldState) bool) error) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	limit := context.Background()
	if cmd.Flags().Changed("timeout") {
		var cancel context.CancelFunc
		limit, cancel = context.WithTimeout(limit, f.timeout)
		defer cancel()
		defer context.AfterFunc(limit, stop)()
	}
	node, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	var broken error
	told := false
	err = follow(ctx, node, func(s heldState) bool {
		broken, told = f.printHeld(std, s), true
		return broken == nil && !f.once
	})
	switch {
	case broken != nil:
		return broken
	case err != nil:
		return node.explain(err)
	case f.once && !told && limit.Err() != nil:
		return exitCode(exitDenied)
	}
	return nil
}

func (f *watchFlags) printHeld(std Process, s heldState) error {
	if f.json {
		return printJSON(std.Out, s.json)
	}
	if s.stale {
		s.state += "  stale"
	}
	_, err := fmt.Fprintf(std.Out, "%d  %s\n", s.version, s.state)
	return err
}

// watchedJSON is what every state of a watch has.
type watchedJSON struct {
	Version string `json:"version"`
	Epoch   uint64 `json:"epoch"`
	Lost    uint64 `json:"lost_epoch,omitempty"`
	Stale   bool   `json:"stale,omitempty"`
}

// watchedHolderJSON is a holder of a lock, or of permits, without what is true of one moment only.
type watchedHolderJSON struct {
	Holder   string `json:"holder"`
	Token    string `json:"token"`
	Permits  int    `json:"permits,omitempty"`
	Metadata string `json:"metadata"`
	Shared   bool   `json:"shared,omitempty"`
}

func watchedHolder(h *client.Holder, permits int) (watchedHolderJSON, string) {
	text := fmt.Sprintf("%s token %d", printable(h.ID), h.Token)
	switch {
	case permits > 0:
		text += fmt.Sprintf(" permits %d", permits)
	case h.Shared:
		text += " shared"
	}
	return watchedHolderJSON{h.ID, strconv.FormatUint(h.Token, 10), permits, string(h.Metadata), h.Shared}, text
}

// holdersLine returns who holds something, how many more there are, and whether others may.
func holdersLine(listed []string, holding int, unknown bool) string {
	if more := holding - len(listed); more > 0 {
		listed = append(listed, fmt.Sprintf("and %d more", more))
	}
	switch {
	case len(listed) == 0 && unknown:
		return "unknown"
	case len(listed) == 0:
		return "free"
	case unknown:
		listed = append(listed, "others unknown")
	}
	return strings.Join(listed, ", ")
}

func newLockWatch(std Process) *cobra.Command {
	var f lockFlags
	w := watchFlags{lockFlags: &f}
	cmd := &cobra.Command{
		Use:   "watch KEY",
		Short: "Print who holds a lock, and each later holder",
		Long: `Prints who holds the lock of KEY, and again whenever that has changed, until Ctrl-C: a line
with the version, and the holders with their tokens or "free". It is the latest state, not
each change, and versions never fall. Who waits is not told. With --after, what is not newer
is left out; with --once, it ends after the first line. With --timeout, it ends after so
long; with --once the exit code is 3 then.

A line comes again with "stale" when no node says any more that it is the latest state, and
without when one does again. "unknown" says that the state of the key was lost, and
somebody may hold the lock.

With --json: one line for each state, {"holders": [{"holder", "token": "…", "metadata",
"shared"}], "holding": how many in all, "version": "…", "epoch": number}, "lost_epoch":
number in the grace period of a loss, and "stale": true.`,
		Example: `  keystead lock watch nightly
  keystead lock watch nightly --after 117440513 --once      # waits for the next change
  keystead lock watch nightly --json | jq --unbuffered -r '.holders[0].holder // "free"'`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.watch(cmd, std, func(ctx context.Context, node *atNode, tell func(heldState) bool) error {
				for s, err := range node.Lock(f.name).Watch(ctx, args[0], w.after) {
					if err != nil || !tell(lockSeen(&s)) {
						return err
					}
				}
				return nil
			})
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which lock of the key (default \"lock\")")
	w.flags(cmd)
	return cmd
}

func lockSeen(s *client.WatchedLock) heldState {
	var lines []string
	holders := []watchedHolderJSON{}
	for i := range s.Holders {
		h, line := watchedHolder(&s.Holders[i], 0)
		holders, lines = append(holders, h), append(lines, line)
	}
	return heldState{holdersLine(lines, s.Holding, s.Unknown()), s.Version, s.Stale, struct {
		Holders []watchedHolderJSON `json:"holders"`
		Holding int                 `json:"holding"`
		watchedJSON
	}{holders, s.Holding, watchedJSON{strconv.FormatUint(s.Version, 10), s.Epoch, s.LostEpoch, s.Stale}}}
}

func newSemaphoreWatch(std Process) *cobra.Command {
	var f lockFlags
	w := watchFlags{lockFlags: &f}
	cmd := &cobra.Command{
		Use:   "watch KEY",
		Short: "Print who holds permits, and each later state",
		Long: `Prints who holds permits of KEY, and again whenever that, or the capacity that is set, has
changed, until Ctrl-C: a line with the version, how many of how many are held, and the
holders, or "free". It is the latest state, not each change, and versions never fall. Who
waits is not told. With --after, what is not newer is left out; with --once, it ends after
the first line. With --timeout, it ends after so long; with --once the exit code is 3 then.

A line comes again with "stale" when no node says any more that it is the latest state, and
without when one does again. "unknown" says that the state of the key was lost, and others
may hold permits.

With --json: one line for each state, {"capacity": number, "capacity_set": bool, "held":
number, "holders": [{"holder", "token": "…", "permits", "metadata"}], "holding": how many in
all, "version": "…", "epoch": number}, "lost_epoch": number in the grace period of a loss,
and "stale": true. A capacity of 0 is what the next caller says.`,
		Example: `  keystead semaphore watch db
  keystead semaphore watch db --json | jq --unbuffered -r '"\(.held) of \(.capacity)"'`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.watch(cmd, std, func(ctx context.Context, node *atNode, tell func(heldState) bool) error {
				for s, err := range node.Semaphore(f.name, 0).Watch(ctx, args[0], w.after) {
					if err != nil || !tell(permitsSeen(&s)) {
						return err
					}
				}
				return nil
			})
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which semaphore of the key (default \"semaphore\")")
	w.flags(cmd)
	return cmd
}

func permitsSeen(s *client.WatchedSemaphore) heldState {
	var lines []string
	holders := []watchedHolderJSON{}
	for i := range s.Holders {
		h, line := watchedHolder(&s.Holders[i].Holder, s.Holders[i].Permits)
		holders, lines = append(holders, h), append(lines, line)
	}
	state := holdersLine(lines, s.Holding, s.Unknown())
	if s.Capacity > 0 {
		state = fmt.Sprintf("%d of %d  %s", s.Held, s.Capacity, state)
	}
	return heldState{state, s.Version, s.Stale, struct {
		Capacity int                 `json:"capacity"`
		Set      bool                `json:"capacity_set"`
		Held     int                 `json:"held"`
		Holders  []watchedHolderJSON `json:"holders"`
		Holding  int                 `json:"holding"`
		watchedJSON
	}{s.Capacity, s.Set, s.Held, holders, s.Holding, watchedJSON{strconv.FormatUint(s.Version, 10), s.Epoch, s.LostEpoch, s.Stale}}}
}
