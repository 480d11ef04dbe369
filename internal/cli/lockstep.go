package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// stepTTL is how long a lock is held by a script that renews it itself, if it renews it.
const stepTTL = time.Minute

// oneKey has a step of a lock take KEY and nothing else. A command after "--" means the
// key that has the name of the step, which has to be written otherwise.
func oneKey(cmd *cobra.Command, args []string) error {
	if cmd.ArgsLenAtDash() >= 0 {
		of := cmd.Parent().Name()
		return usageError{fmt.Errorf("`%s` runs no command\n  hint: for the %s of a key %q, write `keystead %s -- %s COMMAND`", cmd.CommandPath(), of, cmd.Name(), of, cmd.Name())}
	}
	return exactArgs("KEY")(cmd, args)
}

func (f *lockFlags) named(cmd *cobra.Command) {
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which lock of the key (default \"lock\")")
}

func newLockAcquire(std Process) *cobra.Command {
	var f lockFlags
	cmd := &cobra.Command{
		Use:   "acquire KEY",
		Short: "Acquire a lock and print its token",
		Long: `Acquires the lock of KEY and prints its fencing token. Nobody renews it: it is held for
--ttl, unless "keystead lock renew" prolongs it or "keystead lock release" gives it back.
Whenever a command can stand for the time of the lock, "keystead lock KEY -- COMMAND" is
safer: it renews the lock, and stops the command when that fails.

With --idempotency-key, the same command again prints the same token and renews the lock,
as long as it is held: a script that was interrupted goes on. After that, and after a
refusal, the key is used up.

With --ticket as well, it does not wait unless --wait says so, and its place in the queue
stands for so long after it: the same command again takes the place up. When it is its turn,
the lock is kept for --ttl, so run it again sooner than that, or it has to queue anew.
Without --ticket, and with --try, it leaves the queue.

Exit codes: 0 with the lock, 75 if it was not got within --wait, 76 if the grant under the
key is over, 77 if it was not got and the place in the queue stands.

With --json: {"token": "…", "ttl": seconds, "holder": who has it}. With 77: {"waiting": true,
"ahead": how many are in the queue before you, "stands": seconds that the place stands}.`,
		Example: `  keystead lock acquire deploy --holder me --ttl 5m
  token=$(keystead lock acquire deploy --ttl 5m --try) || exit    # 75: somebody has it
  keystead lock renew deploy --token "$token" --ttl 5m || exit    # 76: it was lost
  keystead lock release deploy --token "$token"
  keystead lock acquire gpu --idempotency-key "job-$id" --ticket 10m   # from cron; 77: it waits its turn`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.patient(cmd)
			return f.take(cmd.Context(), std, args[0])
		},
	}
	f.named(cmd)
	f.acquireFlags(cmd)
	cmd.Flags().BoolVar(&f.shared, "shared", false, "share the lock with others that do")
	cmd.Flags().DurationVar(&f.permits.delay, "delay", 0, "how long nobody gets the lock if its holder is lost; up to 1m")
	cmd.Flags().Lookup("holder").Usage = "who you are, shown to others (default host:pid of the caller, or the idempotency key)"
	f.key.flags(cmd)
	f.ticketFlags(cmd)
	cmd.Flags().DurationVar(&f.ttl, "ttl", stepTTL, "how long the lock is held without a renewal; 300ms or more")
	return cmd
}

// take acquires the lock and leaves it to its TTL.
func (f *lockFlags) take(ctx context.Context, std Process, key string) error {
	if err := f.check(os.Getppid()); err != nil {
		return err
	}
	if err := f.checkTicket(); err != nil {
		return err
	}
	node, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	ctx, stop := untilSignal(ctx)
	held, err := f.acquire(ctx, node, key, std)
	if errors.Is(err, client.ErrLockLost) {
		printError(std.Err, hinted{err, "choose another key to acquire the lock again"})
		err = exitCode(exitLockLost)
	}
	if interrupted := stop(); interrupted != 0 {
		if held != nil {
			f.release(held)
		}
		return exitCode(128 + interrupted)
	}
	if err != nil {
		return err
	}
	if err := f.printGrant(std.Out, held.Token()); err != nil {
		f.release(held) // nobody knows the token
		return err
	}
	return nil
}

func (f *lockFlags) printGrant(out io.Writer, token uint64) (err error) {
	text := strconv.FormatUint(token, 10)
	if f.json {
		return printJSON(out, struct {
			Token  string  `json:"token"`
			TTL    seconds `json:"ttl"`
			Holder string  `json:"holder"`
		}{text, seconds(f.ttl), f.holder})
	}
	_, err = fmt.Fprintln(out, text)
	return err
}

func newLockRenew(std Process) *cobra.Command {
	var f lockFlags
	var token string
	cmd := &cobra.Command{
		Use:   "renew KEY --token TOKEN",
		Short: "Prolong a lock that is held",
		Long: `Has the lock of KEY held for --ttl from now on, under the token that
"keystead lock acquire" printed.

Exit codes: 0 if it was renewed, 76 if the token does not hold it any more: then it is
lost for good.

With --json: {"renewed": bool, "ttl": seconds that are left}, also with 76.`,
		Example: `  keystead lock renew deploy --token "$token" --ttl 5m`,
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.renew(cmd.Context(), std, args[0], token)
		},
	}
	f.named(cmd)
	cmd.Flags().StringVar(&token, "token", "", "the `TOKEN` under which it is held (required)")
	cmd.Flags().DurationVar(&f.ttl, "ttl", stepTTL, "how long it is held from now on; 300ms or more")
	return cmd
}

func (f *lockFlags) renew(ctx context.Context, std Process, key, typed string) error {
	if err := f.check(os.Getppid()); err != nil {
		return err
	}
	token, err := parseToken(typed)
	if err != nil {
		return err
	}
	var r *lockpb.RenewResponse
	if _, err := f.step(ctx, func(ctx context.Context, locks lockpb.LockServiceClient) (err error) {
		r, err = locks.Renew(ctx, &lockpb.RenewRequest{Key: key, Name: f.name, Token: token, TtlNs: int64(f.ttl)})
		return err
	}); err != nil {
		return err
	}
	if f.json {
		if err := printJSON(std.Out, struct {
			Renewed bool    `json:"renewed"`
			TTL     seconds `json:"ttl"`
		}{r.Renewed, seconds(r.TtlNs)}); err != nil {
			return err
		}
	}
	if !r.Renewed {
		return notHeld(std, key, token, r.Holder)
	}
	if f.json {
		return nil
	}
	_, err = fmt.Fprintf(std.Out, "renewed, free in %s unless renewed\n", people(time.Duration(r.TtlNs)))
	return err
}

func newLockRelease(std Process) *cobra.Command {
	var f lockFlags
	var token string
	cmd := &cobra.Command{
		Use:   "release KEY --token TOKEN",
		Short: "Give a lock back",
		Long: `Gives the lock of KEY back that is held under the token which "keystead lock acquire"
printed.

Exit codes: 0 if it was released, 76 if the token did not hold it any more.

With --json: {"released": bool}, also with 76.`,
		Example: `  keystead lock release deploy --token "$token"`,
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.giveBack(cmd.Context(), std, args[0], token)
		},
	}
	f.named(cmd)
	cmd.Flags().StringVar(&token, "token", "", "the `TOKEN` under which it is held (required)")
	f.key.flags(cmd)
	return cmd
}

func (f *lockFlags) giveBack(ctx context.Context, std Process, key, typed string) error {
	token, err := parseToken(typed)
	if err != nil {
		return err
	}
	var r *lockpb.ReleaseResponse
	before, err := f.step(ctx, func(ctx context.Context, locks lockpb.LockServiceClient) (err error) {
		r, err = locks.Release(ctx, &lockpb.ReleaseRequest{Key: key, Name: f.name, Token: token, IdempotencyKey: string(f.key)})
		return err
	})
	if err != nil {
		return err
	}
	released := r.Released || before // an attempt whose answer was lost may have released it
	if f.json {
		if err := printJSON(std.Out, struct {
			Released bool `json:"released"`
		}{released}); err != nil {
			return err
		}
	}
	if !released {
		return notHeld(std, key, token, nil)
	}
	if f.json {
		return nil
	}
	_, err = fmt.Fprintln(std.Out, "released")
	return err
}

func parseToken(typed string) (uint64, error) {
	const want = "the number that the acquire printed"
	if typed == "" {
		return 0, usageError{errors.New("--token is missing: " + want)}
	}
	token, err := strconv.ParseUint(typed, 10, 64)
	if err != nil || token == 0 {
		return 0, usageError{fmt.Errorf("--token %q: write %s", typed, want)}
	}
	return token, nil
}

// step is retried for locks.
func (f *lockFlags) step(ctx context.Context, do func(context.Context, lockpb.LockServiceClient) error) (before bool, err error) {
	return f.retried(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return do(ctx, lockpb.NewLockServiceClient(conn))
	})
}

// retried makes a call for the holder of a token. before = an attempt before the last one may
// have been carried out: it was sent, and its answer was lost.
func (f *lockFlags) retried(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) (before bool, err error) {
	conn, err := f.dial()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	err = f.call(ctx, func(ctx context.Context) error {
		err := do(ctx, conn)
		before = before || status.Code(err) == codes.Unavailable && errorReason(err) == "" && !unsent(err)
		return err
	})
	return before, err
}

// notHeld reports that a token does not hold a lock, and who does instead if that is known.
func notHeld(std Process, key string, token uint64, h *lockpb.Holder) error {
	who := ""
	if h != nil {
		who = fmt.Sprintf("; %s has held it for %s under token %d", printable(h.Id), people(time.Duration(h.HeldNs)), h.Token)
	}
	fmt.Fprintf(std.Err, "keystead: token %d does not hold the lock on %q: it was lost, or released before%s\n", token, key, who)
	return exitCode(exitLockLost)
}

func newLockInspect(std Process) *cobra.Command {
	var f lockFlags
	cmd := &cobra.Command{
		Use:   "inspect KEY",
		Short: "Show who holds a lock, and who waits",
		Long: `Shows who holds the lock of KEY and who waits for it, like "keystead lock KEY --inspect".

` + inspectJSON,
		Example: `  keystead lock inspect deploy
  keystead lock inspect deploy --json | jq -r '.holder.holder // "free"'`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error { return f.show(cmd.Context(), std.Out, args[0]) },
	}
	f.named(cmd)
	return cmd
}

// inspectJSON is what the JSON of an inspection is.
const inspectJSON = `With --json: {"held": bool, "holder": {"holder", "token": "…", "held":
seconds, "ttl": seconds, "metadata"}, "waiters": [{"holder", "waited": seconds}],
"waiting": how many in all, "epoch": number}, and no "holder" if it is free. If
several share it, "holder" is the first of them, and "holders": [holder…]. A holder
has "shared": true if it shares the lock, "session" if one keeps it alive, and, if it
was lost, "delay": seconds until the lock is free of it, with a ttl of 0. In the grace
period of a loss, "lost_epoch": number besides.`
