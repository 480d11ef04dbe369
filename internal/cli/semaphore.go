package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/owner/hold"
	electionpb "github.com/keystead/keystead/proto/keystead/election/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// permitFlags are what an acquisition of permits has beside that of a lock.
type permitFlags struct {
	n, capacity int
	delay       time.Duration
}

// maxDelay is the longest --delay.
const maxDelay = time.Duration(hold.MaxDelay)

// what returns what is acquired.
func (f *lockFlags) what() string {
	switch {
	case f.other != nil:
		return f.other.what
	case f.permits.n != 0:
		return "semaphore"
	case f.turn:
		return "turn"
	}
	return "lock"
}

// acquires reports whether a method is one that waits for a grant.
func acquires(method string) bool {
	switch method {
	case lockpb.LockService_Acquire_FullMethodName, semaphorepb.SemaphoreService_Acquire_FullMethodName, oncepb.OnceService_Begin_FullMethodName, electionpb.ElectionService_Campaign_FullMethodName:
		return true
	}
	return false
}

func newSemaphore(std Process) *cobra.Command {
	var f lockFlags
	cmd := &cobra.Command{
		Use:   "semaphore KEY [-n PERMITS] [--capacity N] -- COMMAND [ARG]...",
		Short: "Run a command with permits of a semaphore",
		Long: `Acquires permits of the semaphore of KEY, runs COMMAND with them, and releases them: at
most --capacity permits are held at any time. First come, first served: a
caller that wants more permits than are free lets nobody pass.

The capacity belongs to the semaphore. All callers give the same --capacity, or none;
the first one has to, unless "keystead semaphore set-capacity" did. Another one is refused.

All else is as with "keystead lock": the token in KEYSTEAD_FENCING_TOKEN, the renewals, the
signals, the exit code, and what happens if the permits are lost.

Exit codes of keystead itself: 75 if the permits were not got within --wait, 76 if they were
lost. A key that is called like a command below comes after "--", with its command.`,
		Example: `  keystead semaphore db --capacity 10 -- ./import.sh              # ten at once at most
  keystead semaphore gpu --capacity 8 -n 4 --wait 1h -- ./train.sh
  keystead semaphore db --capacity 10 --try -- ./report.sh        # exit code 75 at once if none is free
  token=$(keystead semaphore acquire db --capacity 10 --ttl 5m) && keystead semaphore release db --token "$token"
  keystead semaphore inspect db
  keystead semaphore set-capacity db 20`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return usageError{errors.New("KEY is missing\n  hint: keystead semaphore KEY --capacity N -- COMMAND")}
			case 1:
				return usageError{errors.New("COMMAND is missing\n  hint: keystead semaphore KEY --capacity N -- COMMAND")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.permits.check(); err != nil {
				return err
			}
			return f.run(cmd.Context(), std, args[0], args[1:])
		},
	}
	f.permitsNamed(cmd)
	f.permitFlags(cmd)
	cmd.Flags().DurationVar(&f.ttl, "ttl", 10*time.Second, "how long the permits outlive a keystead that died; 300ms or more")
	cmd.AddCommand(newPermitsAcquire(std), newPermitsRenew(std), newPermitsRelease(std), newPermitsVerify(std), newPermitsRevoke(std), newSetCapacity(std), newPermitsInspect(std), newSemaphoreWatch(std))
	return cmd
}

func (f *lockFlags) permitsNamed(cmd *cobra.Command) {
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which semaphore of the key (default \"semaphore\")")
}

func (f *lockFlags) permitFlags(cmd *cobra.Command) {
	f.acquireFlags(cmd)
	cmd.Flags().Lookup("wait").Usage = "how long to wait for the permits; 0 = do not"
	cmd.Flags().Lookup("try").Usage = "do not wait for the permits, whatever --wait says"
	cmd.Flags().IntVarP(&f.permits.n, "permits", "n", 1, "how many permits")
	cmd.Flags().IntVar(&f.permits.capacity, "capacity", 0, "permits of the semaphore in all; 0 = what it has")
	cmd.Flags().DurationVar(&f.permits.delay, "delay", 0, "how long nobody gets the permits if their holder is lost; up to 1m")
}

func (p *permitFlags) check() error {
	switch {
	case p.capacity < 0 || p.capacity > client.MaxCapacity:
		return usageError{fmt.Errorf("--capacity %d: choose 1 to %d, or 0 for what the semaphore has", p.capacity, client.MaxCapacity)}
	case p.n < 1 || p.n > client.MaxCapacity || p.capacity != 0 && p.n > p.capacity:
		return usageError{fmt.Errorf("--permits %d: choose 1 to the capacity", p.n)}
	case p.delay < 0 || p.delay > maxDelay || p.delay%time.Millisecond != 0:
		return usageError{fmt.Errorf("--delay %s: choose 0 to %s, in whole milliseconds", plainTimes(p.delay.String()), plainTimes(maxDelay.String()))}
	}
	return nil
}

func newPermitsAcquire(std Process) *cobra.Command {
	var f lockFlags
	cmd := &cobra.Command{
		Use:   "acquire KEY",
		Short: "Acquire permits and print their token",
		Long: `Acquires permits of the semaphore of KEY and prints their fencing token. Nobody renews
them: they are held for --ttl, unless "keystead semaphore renew" prolongs them or "keystead
semaphore release" gives them back.

With --idempotency-key and --ticket, it does not wait unless --wait says so, and its place in
the queue stands for so long after it: the same command again takes the place up. When it is
its turn, the permits are kept for --ttl, so run it again sooner than that, or it has to queue
anew. Without --ticket, and with --try, it leaves the queue.

Exit codes: 0 with the permits, 75 if they were not got within --wait, 76 if the grant under
the key is over, 77 if they were not got and the place in the queue stands.

With --json: {"token": "…", "ttl": seconds, "holder": who has them}.`,
		Example: `  keystead semaphore acquire db --capacity 10 --ttl 5m
  token=$(keystead semaphore acquire db --capacity 10 --try) || exit    # 75: none is free
  keystead semaphore renew db --token "$token" --ttl 5m || exit         # 76: they were lost
  keystead semaphore release db --token "$token"`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.permits.check(); err != nil {
				return err
			}
			f.patient(cmd)
			return f.take(cmd.Context(), std, args[0])
		},
	}
	f.permitsNamed(cmd)
	f.permitFlags(cmd)
	f.key.flags(cmd)
	f.ticketFlags(cmd)
	cmd.Flags().DurationVar(&f.ttl, "ttl", stepTTL, "how long the permits are held without a renewal; 300ms or more")
	return cmd
}

// underToken is a command about the grant of a token. do reports whether it is in force, or,
// if it ends the grant, whether it was.
func (f *lockFlags) underToken(std Process, use, short, long, yes string, ends bool, do func(ctx context.Context, permits semaphorepb.SemaphoreServiceClient, key string, token uint64) (bool, error)) *cobra.Command {
	var typed string
	cmd := &cobra.Command{
		Use:     use + " KEY --token TOKEN",
		Short:   short,
		Long:    long + "\n\nExit codes: 0 if it is, 76 if the token does not hold anything any more.\n\nWith --json: {\"" + yes + "\": bool}, also with 76.",
		Example: "  keystead semaphore " + use + " db --token \"$token\"",
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			token, err := parseToken(typed)
			if err != nil {
				return err
			}
			ok := false
			before, err := f.retried(cmd.Context(), func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
				ok, err = do(ctx, semaphorepb.NewSemaphoreServiceClient(conn), args[0], token)
				return err
			})
			if err != nil {
				return err
			}
			ok = ok || before && ends // an attempt whose answer was lost may have ended it
			if f.json {
				if err := printJSON(std.Out, map[string]bool{yes: ok}); err != nil {
					return err
				}
			}
			if !ok {
				fmt.Fprintf(std.Err, "keystead: token %d does not hold permits of %q: they were lost, or released before\n", token, args[0])
				return exitCode(exitLockLost)
			}
			if f.json {
				return nil
			}
			_, err = fmt.Fprintln(std.Out, yes)
			return err
		},
	}
	f.permitsNamed(cmd)
	cmd.Flags().StringVar(&typed, "token", "", "the `TOKEN` under which they are held (required)")
	return cmd
}

func newPermitsRenew(std Process) *cobra.Command {
	var f lockFlags
	cmd := f.underToken(std, "renew", "Prolong permits that are held", "Has permits held for --ttl from now on.", "renewed", false,
		func(ctx context.Context, permits semaphorepb.SemaphoreServiceClient, key string, token uint64) (bool, error) {
			if err := f.check(os.Getppid()); err != nil {
				return false, err
			}
			r, err := permits.Renew(ctx, &semaphorepb.RenewRequest{Key: key, Name: f.name, Token: token, TtlNs: int64(f.ttl)})
			return r.GetRenewed(), err
		})
	cmd.Flags().DurationVar(&f.ttl, "ttl", stepTTL, "how long they are held from now on; 300ms or more")
	return cmd
}

func newPermitsRelease(std Process) *cobra.Command {
	var f lockFlags
	cmd := f.underToken(std, "release", "Give permits back", "Gives permits back.", "released", true,
		func(ctx context.Context, permits semaphorepb.SemaphoreServiceClient, key string, token uint64) (bool, error) {
			r, err := permits.Release(ctx, &semaphorepb.ReleaseRequest{Key: key, Name: f.name, Token: token, IdempotencyKey: string(f.key)})
			return r.GetReleased(), err
		})
	f.key.flags(cmd)
	return cmd
}

func newPermitsVerify(std Process) *cobra.Command {
	var f lockFlags
	return f.underToken(std, "verify", "Ask whether a token still holds its permits", `Asks whether a token still holds its permits: for a job that may have outlived its lease. It
was so when the owner answered; what is written after that needs the token all the same.`, "held", false,
		func(ctx context.Context, permits semaphorepb.SemaphoreServiceClient, key string, token uint64) (bool, error) {
			r, err := permits.Verify(ctx, &semaphorepb.VerifyRequest{Key: key, Name: f.name, Token: token})
			return r.GetHeld(), err
		})
}

func newPermitsRevoke(std Process) *cobra.Command {
	var f lockFlags
	cmd := f.underToken(std, "revoke", "End another's grant", `Ends a grant for its holder, who learns of it at its next renewal. The --delay that it asked
for runs before others get the permits.`, "revoked", true,
		func(ctx context.Context, permits semaphorepb.SemaphoreServiceClient, key string, token uint64) (bool, error) {
			r, err := permits.Revoke(ctx, &semaphorepb.RevokeRequest{Key: key, Name: f.name, Token: token, IdempotencyKey: string(f.key)})
			return r.GetRevoked(), err
		})
	f.key.flags(cmd)
	return cmd
}

func newSetCapacity(std Process) *cobra.Command {
	var f lockFlags
	cmd := &cobra.Command{
		Use:   "set-capacity KEY N",
		Short: "Change how many permits there are",
		Long: `Makes the capacity of the semaphore of KEY another one, from now on and also while nobody
holds permits or waits; 0 leaves it to the next acquire. More wakes the waiters.
Under less, nothing is granted until what is held is below it, and waiters for more than it
are refused. An acquire under another --capacity is refused from then on.`,
		Example: `  keystead semaphore set-capacity db 20
  keystead semaphore set-capacity db 0`,
		Args: exactArgs("KEY", "N"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[1], 10, 32)
			if err != nil || n > client.MaxCapacity {
				return usageError{fmt.Errorf("the capacity %q: choose 1 to %d, or 0", args[1], client.MaxCapacity)}
			}
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			return node.explain(node.Semaphore(f.name, 0).SetCapacity(cmd.Context(), args[0], int(n)))
		},
	}
	f.permitsNamed(cmd)
	return cmd
}

func newPermitsInspect(std Process) *cobra.Command {
	var f lockFlags
	cmd := &cobra.Command{
		Use:     "inspect KEY",
		Short:   "Show who holds permits and who waits",
		Example: `  keystead semaphore inspect db`,
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			s, err := node.Semaphore(f.name, 0).Inspect(cmd.Context(), args[0])
			if err != nil {
				return node.explain(err)
			}
			return f.showPermits(std, &s)
		},
	}
	f.permitsNamed(cmd)
	return cmd
}

type permitHolderJSON struct {
	holderJSON
	Permits int `json:"permits"`
}

type permitWaiterJSON struct {
	waiterJSON
	Permits int `json:"permits"`
}

func (f *lockFlags) showPermits(std Process, s *client.SemaphoreState) error {
	if f.json {
		v := struct {
			Capacity int                `json:"capacity"`
			Set      bool               `json:"capacity_set"`
			Held     int                `json:"held"`
			Delayed  int                `json:"delayed"`
			Holders  []permitHolderJSON `json:"holders"`
			Holding  int                `json:"holding"`
			Waiters  []permitWaiterJSON `json:"waiters"`
			Waiting  int                `json:"waiting"`
			Epoch    uint64             `json:"epoch"`
			Lost     uint64             `json:"lost_epoch,omitempty"`
		}{s.Capacity, s.Set, s.Held, s.Delayed, []permitHolderJSON{}, s.Holding, []permitWaiterJSON{}, s.Waiting, s.Epoch, s.LostEpoch}
		for _, h := range s.Holders {
			v.Holders = append(v.Holders, permitHolderJSON{holderJSON{Holder: h.ID, Token: strconv.FormatUint(h.Token, 10), Held: seconds(h.Held), TTL: seconds(h.TTL), Metadata: string(h.Metadata), Delay: seconds(h.Delay), Session: h.Session}, h.Permits})
		}
		for _, w := range s.Waiters {
			v.Waiters = append(v.Waiters, permitWaiterJSON{waiterJSON{w.Name, seconds(w.Waited)}, w.Permits})
		}
		return printJSON(std.Out, v)
	}
	set := ""
	if s.Set {
		set = " (set)"
	}
	if s.Capacity == 0 {
		nobody := "nobody holds permits"
		if s.LostEpoch != 0 {
			nobody = "not known whether anybody holds permits"
		}
		fmt.Fprintf(std.Out, "%s%s\n", nobody, graceMark(s.LostEpoch))
		return nil
	}
	fmt.Fprintf(std.Out, "%d of %d permits held%s%s\n", s.Held, s.Capacity, set, graceMark(s.LostEpoch))
	for _, h := range s.Holders {
		state := "free in " + people(h.TTL) + " unless renewed"
		if h.TTL == 0 {
			state = "lost, free in " + people(h.Delay)
		}
		if h.Session != "" {
			state += ", session " + h.Session
		}
		fmt.Fprintf(std.Out, "      %d by %s for %s, token %d, %s\n", h.Permits, printable(h.ID), people(h.Held), h.Token, state)
		if len(h.Metadata) > 0 {
			fmt.Fprintf(std.Out, "        metadata: %q\n", h.Metadata)
		}
	}
	if more := s.Holding - len(s.Holders); more > 0 {
		fmt.Fprintf(std.Out, "      and %d more holders\n", more)
	}
	for i, w := range s.Waiters {
		fmt.Fprintf(std.Out, "%4d. %s, waiting %s for %d\n", i+1, printable(w.Name), people(w.Waited), w.Permits)
	}
	if more := s.Waiting - len(s.Waiters); more > 0 {
		fmt.Fprintf(std.Out, "      and %d more\n", more)
	}
	return nil
}
