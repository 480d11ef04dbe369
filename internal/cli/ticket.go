package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/owner/hold"
)

func (f *lockFlags) ticketFlags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.ticket, "ticket", 0, "how long the place in the queue stands, for the same command again; up to 24h")
}

// patient has a command with a ticket not wait, unless it is told to.
func (f *lockFlags) patient(cmd *cobra.Command) {
	if f.ticket != 0 && !cmd.Flags().Changed("wait") {
		f.wait = 0
	}
}

func (f *lockFlags) checkTicket() error {
	switch {
	case f.ticket == 0:
	case f.ticket < minTTL || f.ticket > hold.MaxWait-f.wait:
		return usageError{fmt.Errorf("--ticket %s: choose %s to 24h, together with --wait", plainTimes(f.ticket.String()), minTTL)}
	case f.key == "":
		return usageError{errors.New("--ticket needs --idempotency-key, under which the place is found again")}
	}
	return nil
}

// waits says that the place in the queue stands.
func (f *lockFlags) waits(std Process, key string, e *client.Error) error {
	if f.json {
		if err := printJSON(std.Out, struct {
			Waiting bool    `json:"waiting"`
			Ahead   int     `json:"ahead"`
			Stands  seconds `json:"stands"`
		}{true, max(e.Place-1, 0), seconds(f.ticket)}); err != nil {
			return err
		}
	}
	fmt.Fprintf(std.Err, "keystead: %q is not free; %d in the queue before you, and your place stands for %s: run the same command again\n",
		key, max(e.Place-1, 0), plainTimes(f.ticket.String()))
	return exitCode(exitWaits)
}
