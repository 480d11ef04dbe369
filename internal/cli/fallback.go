package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/fallback"
)

// fallbackFlags are flags for what a check is answered when the owner of its key cannot be
// asked in time.
type fallbackFlags struct {
	text   string
	budget time.Duration
}

func (f *fallbackFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.text, "fallback", "none", "what decides without the owner: local-cap:10/1m, last-known:30s or none")
	cmd.Flags().DurationVar(&f.budget, "budget", 0, "of --fallback: how long to wait for the owner (default 250ms)")
}

// rule returns what the flags say.
func (f *fallbackFlags) rule() (fallback.Rule, error) {
	if f.text == "" { // a command without these flags
		return fallback.Rule{}, nil
	}
	r, err := fallback.Parse(f.text)
	if err != nil {
		return r, usageError{fmt.Errorf("--fallback %w", err)}
	}
	if r.Budget = f.budget; r.Source == fallback.None && f.budget != 0 {
		return r, usageError{fmt.Errorf("--budget goes with --fallback\n  hint: --timeout is how long a command may take")}
	}
	if err := r.Validate(); err != nil {
		return r, usageError{err}
	}
	return r, nil
}

func (f *fallbackFlags) judge() error {
	_, err := f.rule()
	return err
}

// options returns those of a limit.
func (f *fallbackFlags) options() []client.LimitOption {
	r, _ := f.rule() // judged before
	switch r.Source {
	case fallback.LocalCap:
		return []client.LimitOption{client.LocalCap(r.Cap, r.Period), client.Budget(r.Budget)}
	case fallback.LastKnown:
		return []client.LimitOption{client.LastKnown(r.KnownFor), client.Budget(r.Budget)}
	}
	return nil
}

// reached returns a decision of a node. This process does not decide by itself: it remembers nothing
// of the one before it, so a script would have no limit at all.
func reached(d client.Decision, err error) (client.Decision, error) {
	if err == nil && d.Degraded != "" && d.Owner == "" {
		return d, &client.Error{Code: codes.Unavailable, Reason: client.ErrUnavailable, Message: "no node answered in time",
			Hint: "a command has no fallback of its own: it would begin anew each time"}
	}
	return d, err
}

// degradedMark says by what a check was decided without its owner.
func degradedMark(d *client.Decision) string {
	if d.Degraded == "" {
		return ""
	}
	return fmt.Sprintf(" (degraded: %s of %s)", d.Degraded, d.Owner)
}
