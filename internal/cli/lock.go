package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/internal/clock"
	"github.com/keystead/keystead/owner/lock"
	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// Exit codes of `lock` when the command is not what ended it. They are those
// of sysexits.h, which programs hardly use themselves.
const (
	exitNotAcquired = 75 // EX_TEMPFAIL: somebody else holds the lock
	exitLockLost    = 76 // EX_PROTOCOL: the lock was lost and the command killed
)

type lockFlags struct {
	remote
	name, holder, metadata string
	ttl, wait              time.Duration
	inspect                bool
}

func newLock(std Process) *cobra.Command {
	var f lockFlags
	cmd := &cobra.Command{
		Use:   "lock KEY -- COMMAND [ARG]...",
		Short: "Run a command under a lock",
		Long: `Acquires the lock of KEY, runs COMMAND with it, and releases it.

The command finds the fencing token in KEYSTEAD_FENCING_TOKEN: it is greater than
every earlier one of this lock, so whatever the lock protects can refuse a late
holder. The lock is renewed while the command runs; signals are passed on, except
for that of Ctrl-Z; the exit code is the command's. If the lock cannot be renewed
in time, the command and its children are killed before the lock can be anybody
else's.

That is keystead's own work: while it is stopped, or the machine sleeps, only the
token protects. If keystead is killed, the kernel kills COMMAND, but not what
COMMAND started. What COMMAND leaves in the background is not waited for.

After a loss of state (see the documents on guarantees) a lock is granted to nobody
until the longest lease of before is over; keystead says for how long it waits.

Exit codes of keystead itself: 75 if the lock was not got within --wait, 76 if
it was lost. With --inspect nothing is run; it shows who holds the lock and who
waits; with --json: {"held": bool, "holder": {"holder", "token": "…", "held":
seconds, "ttl": seconds, "metadata"}, "waiters": [{"holder", "waited": seconds}],
"waiting": how many in all, "epoch": number}, and no "holder" if it is free. In the
grace period of a loss, "lost_epoch": number besides.`,
		Example: `  keystead lock nightly-report -- ./report.sh
  keystead lock deploy --wait 0 --ttl 1m -- make deploy    # fail at once if held
  keystead lock deploy --inspect
  keystead lock db -- sh -c 'psql -c "select guarded_write($KEYSTEAD_FENCING_TOKEN)"'`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usageError{errors.New("KEY is missing\n  hint: keystead lock KEY -- COMMAND")}
			case f.inspect && len(args) > 1:
				return usageError{errors.New("--inspect runs no command")}
			case !f.inspect && len(args) == 1:
				return usageError{errors.New("COMMAND is missing\n  hint: keystead lock KEY -- COMMAND, or --inspect")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.inspect {
				return f.show(cmd.Context(), std.Out, args[0])
			}
			return f.run(cmd.Context(), std, args[0], args[1:])
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which lock of the key (default \"lock\")")
	cmd.Flags().StringVar(&f.holder, "holder", "", "who you are, shown to others (default host:pid)")
	cmd.Flags().StringVar(&f.metadata, "metadata", "", "text shown to others")
	cmd.Flags().DurationVar(&f.ttl, "ttl", 10*time.Second, "how long the lock outlives a keystead that died; 300ms or more")
	cmd.Flags().DurationVar(&f.wait, "wait", 24*time.Hour, "how long to wait for the lock; 0 = do not")
	cmd.Flags().BoolVar(&f.inspect, "inspect", false, "show the lock and run nothing")
	return cmd
}

// minTTL leaves room for three renewals over a slow network.
const minTTL = 300 * time.Millisecond

// lease is the lock while the command runs.
type lease struct {
	f      *lockFlags
	client pb.LockServiceClient
	clock  clock.Clock
	key    string
	token  uint64
	until  int64 // on clock: the lock is ours before it, by our own count

	saidGrace bool // that a grace period is waited for
}

func (f *lockFlags) run(ctx context.Context, std Process, key string, command []string) error {
	if f.ttl < minTTL || f.ttl > lock.MaxTTL {
		return usageError{fmt.Errorf("--ttl %s: choose %s to 24h", f.ttl, minTTL)}
	}
	if f.wait < 0 || f.wait > lock.MaxWait {
		return usageError{fmt.Errorf("--wait %s: choose 0 to 24h", f.wait)}
	}
	if f.holder == "" {
		host, _ := os.Hostname() // an empty name is as good as any
		f.holder = host + ":" + strconv.Itoa(os.Getpid())
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return usageError{fmt.Errorf("cannot run %q: %w", command[0], err)}
	}
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, stop := untilSignal(ctx)
	l, err := f.acquire(ctx, pb.NewLockServiceClient(conn), key, std)
	// From here until the lock is given back, no signal ends keystead itself.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	interrupted := stop()
	if interrupted != 0 {
		if l != nil {
			l.release()
		}
		return exitCode(128 + interrupted)
	}
	if err != nil {
		return err
	}
	code, lost, err := l.guard(path, command, signals, std)
	if lost != nil {
		printError(std.Err, hinted{fmt.Errorf("the lock on %q was lost and the command killed: %w", key, lost),
			"raise --ttl if renewals are late; fencing tokens keep late writes out"})
		return exitCode(exitLockLost)
	}
	l.release()
	if err != nil {
		return err
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}

// acquire waits for the lock: one call stands in the queue all the time. If the
// node does not remember a call that it may have granted, or the grant was over
// before its answer came, it asks anew: a grant that nobody took ends by its TTL.
func (f *lockFlags) acquire(ctx context.Context, client pb.LockServiceClient, key string, std Process) (*lease, error) {
	l := &lease{f: f, client: client, clock: clock.System(), key: key}
	ids, end := newIdentity(), l.clock.Now()+int64(f.wait)
	for {
		first := l.clock.Now()
		r, err := f.ask(ctx, l, ids.begin(), end)
		if errorReason(err) == "REQUEST_TOO_OLD" {
			continue
		}
		if errorReason(err) == "RECOVERING" {
			if err := f.sitOut(ctx, std, l, retryAfter(err), end); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if !r.Acquired {
			return nil, f.notAcquired(std, key, r)
		}
		// The grant was not before our first attempt plus the time in the queue.
		l.token, l.until = r.Token, first+r.WaitedNs+int64(f.ttl)
		if r.TtlNs > 0 && l.until > l.clock.Now() {
			return l, nil
		}
	}
}

// graceLook is the longest pause between two looks whether a grace period is over.
const graceLook = time.Second

// sitOut waits, a little, for the end of a grace period in which the lock is granted to
// nobody. It says so once. Where --wait is over before that, the lock is not got.
func (f *lockFlags) sitOut(ctx context.Context, std Process, l *lease, grace time.Duration, end int64) error {
	left := time.Duration(end - l.clock.Now())
	const what = "keystead: what was kept of %q was lost, and the lock may still be held: it is granted to nobody for another %s"
	if grace > left {
		fmt.Fprintf(std.Err, what+"; --wait %s is too short for that\n", l.key, people(grace), f.wait)
		return exitCode(exitNotAcquired)
	}
	if !l.saidGrace {
		l.saidGrace = true
		fmt.Fprintf(std.Err, what+" (--max-lock-ttl of the cluster); waiting\n", l.key, people(grace))
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(min(grace, graceLook)):
		return nil
	}
}

// ask is one Acquire and its retries. That the lock is granted to nobody in a grace
// period it returns at once.
func (f *lockFlags) ask(ctx context.Context, l *lease, op *operation, end int64) (r *pb.AcquireResponse, err error) {
	waiting := *f
	waiting.timeout = f.timeout + time.Duration(max(end-l.clock.Now(), 0))
	var recovering error
	err = waiting.call(ctx, func(ctx context.Context) (err error) {
		r, err = l.client.Acquire(ctx, &pb.AcquireRequest{
			Key: l.key, Name: f.name, Holder: f.holder, TtlNs: int64(f.ttl), WaitNs: max(end-l.clock.Now(), 0),
			Metadata: []byte(f.metadata), RequestId: op.requestID(),
		})
		if errorReason(err) == "RECOVERING" {
			recovering = err
			return nil
		}
		return err
	})
	if recovering != nil {
		return nil, recovering
	}
	return r, err
}

// notAcquired says who has the lock instead.
func (f *lockFlags) notAcquired(std Process, key string, r *pb.AcquireResponse) error {
	h := r.GetHolder()
	fmt.Fprintf(std.Err, "keystead: %q has been held by %s for %s, and is free in %s unless renewed; %d in the queue before you\n",
		key, h.GetHolder(), people(time.Duration(h.GetHeldNs())), people(time.Duration(h.GetTtlNs())), max(int(r.Place)-1, 0))
	return exitCode(exitNotAcquired)
}

// renew prolongs the lease by one attempt, and fails for good if it is lost.
func (l *lease) renew(ctx context.Context) (held bool, err error) {
	sent := l.clock.Now()
	r, err := l.client.Renew(ctx, l.renewal(sent))
	if err != nil {
		return true, err // not known to be lost
	}
	if !r.Renewed {
		return false, nil
	}
	if !r.Reclaimed { // else it is held for as long as was left
		l.until = sent + int64(l.f.ttl)
	}
	return true, nil
}

// renewal is a Renew that is sent at a moment. It says what is left of the lease, so
// that the owner gives the lock back if it was lost with those who kept it.
func (l *lease) renewal(now int64) *pb.RenewRequest {
	req := &pb.RenewRequest{Key: l.key, Name: l.f.name, Token: l.token, TtlNs: int64(l.f.ttl)}
	if left := l.until - now; left > 0 {
		req.Reclaim = &pb.Reclaim{LeftNs: left, Holder: l.f.holder, Metadata: []byte(l.f.metadata)}
	}
	return req
}

// release gives the lock back. It makes one attempt, and one more if the owner has
// to be told first that the lock is held: the TTL does the rest.
func (l *lease) release() {
	ctx, cancel := context.WithTimeout(context.Background(), min(l.f.timeout, l.f.ttl))
	defer cancel()
	req := &pb.ReleaseRequest{Key: l.key, Name: l.f.name, Token: l.token}
	if _, err := l.client.Release(ctx, req); errorReason(err) == "RECOVERING" {
		_, _ = l.client.Renew(ctx, l.renewal(l.clock.Now()))
		_, _ = l.client.Release(ctx, req)
	}
}

func (f *lockFlags) show(ctx context.Context, out io.Writer, key string) error {
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := pb.NewLockServiceClient(conn)
	var r *pb.InspectResponse
	err = f.call(ctx, func(ctx context.Context) (err error) {
		r, err = client.Inspect(ctx, &pb.InspectRequest{Key: key, Name: f.name})
		return err
	})
	if err != nil {
		return err
	}
	if f.json {
		return printJSON(out, lockJSON(r))
	}
	if r.Holder == nil {
		free := "free"
		if r.LostEpoch != 0 {
			free = "not known to be held"
		}
		_, err := fmt.Fprintln(out, free+graceMark(r.LostEpoch))
		return err
	}
	h := r.Holder
	fmt.Fprintf(out, "held by %s for %s, token %d, free in %s unless renewed%s\n",
		h.Holder, people(time.Duration(h.HeldNs)), h.Token, people(time.Duration(h.TtlNs)), graceMark(r.LostEpoch))
	if len(h.Metadata) > 0 {
		fmt.Fprintf(out, "metadata: %q\n", h.Metadata)
	}
	for i, w := range r.Waiters {
		fmt.Fprintf(out, "%4d. %s, waiting %s\n", i+1, w.Holder, people(time.Duration(w.WaitedNs)))
	}
	if more := int(r.Waiting) - len(r.Waiters); more > 0 {
		fmt.Fprintf(out, "      and %d more\n", more)
	}
	return nil
}

type holderJSON struct {
	Holder   string  `json:"holder"`
	Token    string  `json:"token"`
	Held     seconds `json:"held"`
	TTL      seconds `json:"ttl"`
	Metadata string  `json:"metadata"`
}

type waiterJSON struct {
	Holder string  `json:"holder"`
	Waited seconds `json:"waited"`
}

func lockJSON(r *pb.InspectResponse) any {
	v := struct {
		Held    bool         `json:"held"`
		Holder  *holderJSON  `json:"holder,omitempty"`
		Waiters []waiterJSON `json:"waiters"`
		Waiting uint32       `json:"waiting"`
		Epoch   uint64       `json:"epoch"`
		Lost    uint64       `json:"lost_epoch,omitempty"`
	}{Held: r.Holder != nil, Waiters: []waiterJSON{}, Waiting: r.Waiting, Epoch: r.Epoch, Lost: r.LostEpoch}
	if h := r.Holder; h != nil {
		v.Holder = &holderJSON{h.Holder, strconv.FormatUint(h.Token, 10), seconds(h.HeldNs), seconds(h.TtlNs), string(h.Metadata)}
	}
	for _, w := range r.Waiters {
		v.Waiters = append(v.Waiters, waiterJSON{w.Holder, seconds(w.WaitedNs)})
	}
	return v
}
