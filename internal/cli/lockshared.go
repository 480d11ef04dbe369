package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// sharedFlags are how a lock is acquired that more than one may have, and what all acquisitions have.
func (f *lockFlags) sharedFlags(cmd *cobra.Command) {
	f.named(cmd)
	f.acquireFlags(cmd)
	cmd.Flags().BoolVar(&f.shared, "shared", false, "share the lock with others that do: readers, of whom none is there with a writer")
	cmd.Flags().IntVarP(&f.most, "limit", "n", 1, "how many may have it at once: with more than 1 it is a semaphore of so many permits")
	cmd.Flags().DurationVar(&f.permits.delay, "delay", 0, "how long nobody gets the lock if its holder is lost; up to 1m")
}

// share checks the flags of sharedFlags: a lock that more than one may have at once is a semaphore.
func (f *lockFlags) share() error {
	switch {
	case f.most == 1:
		return nil
	case f.most < 1 || f.most > client.MaxCapacity:
		return usageError{fmt.Errorf("-n %d: choose 1 to %d", f.most, client.MaxCapacity)}
	case f.shared:
		return usageError{errors.New("-n and --shared: so many have it at once, or all that share it")}
	}
	f.permits.n, f.permits.capacity = 1, f.most
	return nil
}

// lockUnderToken is a command about the grant of a token. do reports whether the token held the
// lock; ends says that it does not any more, so that an attempt whose answer was lost may have
// done it.
func lockUnderToken(std Process, use, short, long, yes string, ends bool, do func(ctx context.Context, f *lockFlags, locks lockpb.LockServiceClient, key string, token uint64) (bool, *lockpb.Holder, error)) *cobra.Command {
	var f lockFlags
	var typed string
	cmd := &cobra.Command{
		Use:     use + " KEY --token TOKEN",
		Short:   short,
		Long:    long + "\n\nExit codes: 0 if it is, 76 if the token does not hold the lock any more.\n\nWith --json: {\"" + yes + "\": bool}, also with 76.",
		Example: "  keystead lock " + use + " deploy --token \"$token\"",
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			token, err := parseToken(typed)
			if err != nil {
				return err
			}
			var ok bool
			var other *lockpb.Holder
			before, err := f.step(cmd.Context(), func(ctx context.Context, locks lockpb.LockServiceClient) (err error) {
				ok, other, err = do(ctx, &f, locks, args[0], token)
				return err
			})
			if err != nil {
				return err
			}
			ok = ok || before && ends
			if f.json {
				if err := printJSON(std.Out, map[string]bool{yes: ok}); err != nil {
					return err
				}
			}
			if !ok {
				return notHeld(std, args[0], token, other)
			}
			if f.json {
				return nil
			}
			_, err = fmt.Fprintln(std.Out, yes)
			return err
		},
	}
	f.named(cmd)
	cmd.Flags().StringVar(&typed, "token", "", "the `TOKEN` under which it is held (required)")
	if ends {
		f.key.flags(cmd)
	}
	return cmd
}

func newLockVerify(std Process) *cobra.Command {
	return lockUnderToken(std, "verify", "Ask whether a token still holds the lock", `Asks whether a token still holds the lock: for a job that may have outlived its lease. It was
so when the owner answered; what is written after that needs the token all the same.`, "held", false,
		func(ctx context.Context, f *lockFlags, locks lockpb.LockServiceClient, key string, token uint64) (bool, *lockpb.Holder, error) {
			r, err := locks.Verify(ctx, &lockpb.VerifyRequest{Key: key, Name: f.name, Token: token})
			return r.GetHeld(), r.GetHolder(), err
		})
}

func newLockDowngrade(std Process) *cobra.Command {
	return lockUnderToken(std, "downgrade", "Share a lock that is held alone", `Has others share the lock from now on, under the same token: those that are next in line with
--shared get it as well, and nobody has it alone in between. A shared lock never becomes an
exclusive one: release it, and acquire it anew.`, "shared", false,
		func(ctx context.Context, f *lockFlags, locks lockpb.LockServiceClient, key string, token uint64) (bool, *lockpb.Holder, error) {
			r, err := locks.Downgrade(ctx, &lockpb.DowngradeRequest{Key: key, Name: f.name, Token: token})
			return r.GetDowngraded(), nil, err
		})
}

func newLockRevoke(std Process) *cobra.Command {
	return lockUnderToken(std, "revoke", "End another's grant", `Ends a grant for its holder, who learns of it at its next renewal. The --delay that it asked
for runs before others get the lock.`, "revoked", true,
		func(ctx context.Context, f *lockFlags, locks lockpb.LockServiceClient, key string, token uint64) (bool, *lockpb.Holder, error) {
			r, err := locks.Revoke(ctx, &lockpb.RevokeRequest{Key: key, Name: f.name, Token: token, IdempotencyKey: string(f.key)})
			return r.GetRevoked(), nil, err
		})
}
