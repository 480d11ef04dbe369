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
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/owner/hold"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// Exit codes of `lock` when the command is not what ended it. They are those
// of sysexits.h, which programs hardly use themselves.
const (
	exitNotAcquired = 75 // EX_TEMPFAIL: another holds the lock
	exitLockLost    = 76 // EX_PROTOCOL: the lock was lost and the command killed
	exitWaits       = 77 // another holds the lock, and the place in the queue stands
)

type lockFlags struct {
	remote
	name, holder, metadata string
	ttl, wait, ticket      time.Duration
	inspect, try, shared   bool
	most                   int // how many may have it at once
	key                    idempotencyKey
	permits                permitFlags // of a semaphore
	turn                   bool        // of work that is done once
	other                  *otherHeld  // of what is neither a lock nor a semaphore; nil for these
}

// otherHeld is what is acquired as a lock is, and is neither a lock nor a semaphore.
type otherHeld struct {
	what string
	hint string // what to do when it is lost; "" = as for a lock
	ask  func(ctx context.Context, node *atNode, key string, opts []client.LockOption) (heldGrant, error)
	// refused reports why it was not to be had. It returns nil for an error that it does not know.
	refused func(std Process, key string, e *client.Error) error
}

// heldGrant is a lock, or permits, that are held and renewed.
type heldGrant interface {
	Token() uint64
	Context() context.Context
	Release(ctx context.Context, opts ...client.CallOption) error
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
waits. A key that is called like a command below comes after "--", with its command.

` + inspectJSON,
		Example: `  keystead lock nightly-report -- ./report.sh
  keystead lock deploy --try --ttl 1m -- make deploy       # exit code 75 at once if held
  keystead lock catalog --shared -- ./read.sh              # readers together, never beside a writer
  keystead lock -n 3 import -- ./import.sh                 # three at once at most
  keystead lock inspect deploy
  token=$(keystead lock acquire deploy --ttl 5m) && keystead lock release deploy --token "$token"
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
			if err := f.share(); err != nil {
				return err
			}
			return f.run(cmd.Context(), std, args[0], args[1:])
		},
	}
	f.sharedFlags(cmd)
	cmd.Flags().DurationVar(&f.ttl, "ttl", 10*time.Second, "how long the lock outlives a keystead that died; 300ms or more")
	cmd.Flags().BoolVar(&f.inspect, "inspect", false, "show the lock and run nothing")
	cmd.AddCommand(newLockAcquire(std), newLockRenew(std), newLockRelease(std), newLockVerify(std), newLockDowngrade(std), newLockRevoke(std), newLockInspect(std), newLockWatch(std))
	return cmd
}

// acquireFlags are those of an acquisition.
func (f *lockFlags) acquireFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.holder, "holder", "", "who you are, shown to others (default host:pid)")
	cmd.Flags().StringVar(&f.metadata, "metadata", "", "text shown to others")
	cmd.Flags().DurationVar(&f.wait, "wait", 24*time.Hour, "how long to wait for the lock; 0 = do not")
	cmd.Flags().BoolVar(&f.try, "try", false, "do not wait for the lock, whatever --wait says")
}

// minTTL leaves room for three renewals over a slow network.
const minTTL = 300 * time.Millisecond

// check validates the flags, and fills in the holder, which is a process.
func (f *lockFlags) check(pid int) error {
	if f.ttl < minTTL || f.ttl > hold.MaxTTL {
		return usageError{fmt.Errorf("--ttl %s: choose %s to 24h", plainTimes(f.ttl.String()), minTTL)}
	}
	if f.wait < 0 || f.wait > hold.MaxWait {
		return usageError{fmt.Errorf("--wait %s: choose 0 to 24h", plainTimes(f.wait.String()))}
	}
	if f.try {
		f.wait = 0
	}
	if f.holder == "" {
		f.holder = string(f.key) // a command with the same key is this holder
	}
	if f.holder == "" {
		host, _ := os.Hostname() // an empty name is as good as any
		f.holder = host + ":" + strconv.Itoa(pid)
	}
	return nil
}

func (f *lockFlags) run(ctx context.Context, std Process, key string, command []string) error {
	if err := f.check(os.Getpid()); err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return usageError{fmt.Errorf("cannot run %q: %w", command[0], err)}
	}
	node, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	ctx, stop := untilSignal(ctx)
	held, err := f.acquire(ctx, node, key, std)
	// From here until the lock is given back, no signal ends keystead itself.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	interrupted := stop()
	if interrupted != 0 {
		if held != nil {
			f.release(held)
		}
		return exitCode(128 + interrupted)
	}
	if err != nil {
		return err
	}
	code, lost, err := f.guard(held, key, path, command, signals, std)
	if lost != nil {
		hint := "raise --ttl if renewals are late; fencing tokens keep late writes out"
		if f.other != nil && f.other.hint != "" {
			hint = f.other.hint
		}
		printError(std.Err, hinted{fmt.Errorf("the %s on %q was lost and the command killed: %w", f.what(), key, lost), hint})
		return exitCode(exitLockLost)
	}
	f.release(held)
	if err != nil {
		return err
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}

// acquire waits for the lock.
func (f *lockFlags) acquire(ctx context.Context, node *atNode, key string, std Process) (heldGrant, error) {
	g := &graceWait{f: f, node: node, std: std, key: key, began: time.Now(), end: time.Now().Add(f.wait)}
	node.refused = g.refused
	held, err := f.ask(ctx, node, key)
	var e *client.Error
	switch isOne := errors.As(err, &e); {
	case isOne && f.other != nil && ctx.Err() == nil:
		if refused := f.other.refused(std, key, e); refused != nil {
			return nil, refused
		}
	case isOne && e.Waiting && ctx.Err() == nil:
		return nil, f.waits(std, key, e)
	case isOne && errors.Is(err, client.ErrLockHeld) && ctx.Err() == nil:
		return nil, notAcquired(std, key, e)
	case isOne && errors.Is(err, client.ErrNoPermits) && ctx.Err() == nil:
		free := "no permit"
		if f.permits.n > 1 {
			free = fmt.Sprintf("no %d permits", f.permits.n)
		}
		fmt.Fprintf(std.Err, "keystead: %q has %s free; %d in the queue before you\n", key, free, max(e.Place-1, 0))
		return nil, exitCode(exitNotAcquired)
	}
	return held, node.explain(err)
}

// ask acquires the lock, or the permits.
func (f *lockFlags) ask(ctx context.Context, node *atNode, key string) (heldGrant, error) {
	opts := []client.LockOption{client.TTL(f.ttl), client.Wait(f.wait), client.HeldBy(f.holder), client.Metadata([]byte(f.metadata)), f.key.option()}
	if f.other != nil {
		return f.other.ask(ctx, node, key, opts)
	}
	opts = append(opts, client.Delay(f.permits.delay), client.Ticket(f.ticket))
	if f.shared {
		opts = append(opts, client.Shared())
	}
	if f.permits.n != 0 {
		held, err := node.Semaphore(f.name, f.permits.capacity).Acquire(ctx, key, f.permits.n, opts...)
		if err != nil {
			return nil, err
		}
		return held, nil
	}
	held, err := node.Lock(f.name).Acquire(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return held, nil
}

// gracePoll is the longest pause between two attempts in a grace period.
const gracePoll = time.Second

// graceWait is how an Acquire waits for the end of a grace period, in which no lock is
// granted. It reports once that it waits. If --wait ends before the period does, it does
// not wait at all.
type graceWait struct {
	f          *lockFlags
	node       *atNode
	std        Process
	key        string
	began, end time.Time // of --wait
	said       sync.Once // that it waits for the end of a grace period
	saidNobody sync.Once // that nobody answers for the key
}

// nobodyAfter is how long a lock is tried before it is said that nobody answers for its
// key: more than another node takes to act for one that died.
const nobodyAfter = 4 * time.Second

// nobody reports once that the key has had no owner for a while: a wait of up to a day must
// not look like a lock that is held.
func (g *graceWait) nobody(method string, err error) {
	if !acquires(method) || status.Code(err) != codes.Unavailable || time.Since(g.began) < nobodyAfter {
		return
	}
	g.saidNobody.Do(func() {
		msg, _ := explain(err)
		fmt.Fprintf(g.std.Err, "keystead: nobody grants the %s on %q for now: %s; trying on for --wait %s\n", g.f.what(), g.key, msg, plainTimes(g.f.wait.String()))
	})
}

// refused shortens the pause that the node asks for: the period may end early.
func (g *graceWait) refused(method string, err error) error {
	if !acquires(method) || errorReason(err) != string(client.ErrRecovering) {
		g.nobody(method, err)
		return err
	}
	what := "keystead: what was kept of %q was lost, and the lock may still be held: it is granted to nobody for another %s"
	switch {
	case g.f.permits.n != 0:
		what = "keystead: what was kept of %q was lost, and permits may still be held: none is granted for another %s"
	case g.f.turn:
		what = "keystead: what was kept of %q was lost, and another may still run the command: nobody begins for another %s"
	}
	if fieldOf(status.Convert(err)) == "idempotency_key" {
		what = "keystead: whether this idempotency key was used on %q before is not known for another %s"
	}
	grace := retryAfter(err)
	if grace > time.Until(g.end) {
		fmt.Fprintf(g.std.Err, what+"; --wait %s is too short for that\n", g.key, people(grace), g.f.wait)
		g.node.end(exitCode(exitNotAcquired))
		return err
	}
	g.said.Do(func() {
		fmt.Fprintf(g.std.Err, what+" (--max-lock-ttl of the cluster); waiting\n", g.key, people(grace))
	})
	return &client.Error{Code: status.Code(err), Reason: client.ErrRecovering, Message: status.Convert(err).Message(), RetryAfter: min(grace, gracePoll)}
}

// notAcquired reports who has the lock instead.
func notAcquired(std Process, key string, e *client.Error) error {
	h := e.Holder
	if h == nil {
		fmt.Fprintf(std.Err, "keystead: %q is free, and kept for the first of its queue; %d in the queue before you\n", key, max(e.Place-1, 0))
		return exitCode(exitNotAcquired)
	}
	fmt.Fprintf(std.Err, "keystead: %q has been held by %s for %s, and is free in %s unless renewed; %d in the queue before you\n",
		key, printable(h.ID), people(h.Held), people(h.TTL), max(e.Place-1, 0))
	return exitCode(exitNotAcquired)
}

// release gives the lock back. Where that fails, the TTL does the rest.
func (f *lockFlags) release(held heldGrant) {
	ctx, cancel := context.WithTimeout(context.Background(), min(f.timeout, f.ttl))
	defer cancel()
	_ = held.Release(ctx)
}

func (f *lockFlags) show(ctx context.Context, out io.Writer, key string) error {
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	locks := lockpb.NewLockServiceClient(conn)
	var r *lockpb.InspectResponse
	err = f.call(ctx, func(ctx context.Context) (err error) {
		r, err = locks.Inspect(ctx, &lockpb.InspectRequest{Key: key, Name: f.name})
		return err
	})
	if err != nil {
		return err
	}
	if f.json {
		return printJSON(out, lockJSON(r))
	}
	return printLock(out, r)
}

// printLock prints a lock for people.
func printLock(out io.Writer, r *lockpb.InspectResponse) error {
	holders := r.Holders
	if len(holders) == 0 && r.Holder != nil { // a node of before tells the one
		holders = []*lockpb.Holder{r.Holder}
	}
	if len(holders) == 0 {
		free := "free"
		switch {
		case r.LostEpoch != 0:
			free = "not known to be held"
		case len(r.Waiters) > 0:
			free = "free, and kept for the first of its queue"
		}
		fmt.Fprintln(out, free+graceMark(r.LostEpoch))
	}
	for _, h := range holders {
		printHolder(out, h, graceMark(r.LostEpoch))
	}
	if more := int(r.Holding) - len(holders); more > 0 {
		fmt.Fprintf(out, "and by %d more\n", more)
	}
	for i, w := range r.Waiters {
		fmt.Fprintf(out, "%4d. %s, waiting %s\n", i+1, printable(w.Id), people(time.Duration(w.WaitedNs)))
	}
	if more := int(r.Waiting) - len(r.Waiters); more > 0 {
		fmt.Fprintf(out, "      and %d more\n", more)
	}
	return nil
}

func printHolder(out io.Writer, h *lockpb.Holder, mark string) {
	how := "held"
	if h.Shared {
		how = "shared"
	}
	until := people(time.Duration(h.TtlNs)) + " unless renewed"
	if h.TtlNs == 0 {
		until = people(time.Duration(h.DelayNs)) + ": it was lost"
	}
	if h.Session != nil {
		until += ", session " + sessionName(h.Session)
	}
	fmt.Fprintf(out, "%s by %s for %s, token %d, free in %s%s\n", how, printable(h.Id), people(time.Duration(h.HeldNs)), h.Token, until, mark)
	if len(h.Metadata) > 0 {
		fmt.Fprintf(out, "metadata: %q\n", h.Metadata)
	}
}

type holderJSON struct {
	Holder   string  `json:"holder"`
	Token    string  `json:"token"`
	Held     seconds `json:"held"`
	TTL      seconds `json:"ttl"`
	Metadata string  `json:"metadata"`
	Shared   bool    `json:"shared,omitempty"`
	Delay    seconds `json:"delay,omitempty"`   // until it is free, of one that was lost
	Session  string  `json:"session,omitempty"` // that keeps it alive
}

type waiterJSON struct {
	Holder string  `json:"holder"`
	Waited seconds `json:"waited"`
}

func lockHolderJSON(h *lockpb.Holder) holderJSON {
	return holderJSON{Holder: h.Id, Token: strconv.FormatUint(h.Token, 10), Held: seconds(h.HeldNs), TTL: seconds(h.TtlNs), Metadata: string(h.Metadata), Shared: h.Shared, Delay: seconds(h.DelayNs), Session: sessionName(h.Session)}
}

// sessionName returns a name for a session, "" if there is none.
func sessionName(s *commonpb.Session) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%x/%d", s.Client, s.Generation)
}

func lockJSON(r *lockpb.InspectResponse) any {
	first := r.Holder
	if first == nil && len(r.Holders) > 0 {
		first = r.Holders[0] // it was lost, and nobody gets the lock yet
	}
	v := struct {
		Held    bool         `json:"held"`
		Holder  *holderJSON  `json:"holder,omitempty"`
		Holders []holderJSON `json:"holders,omitempty"`
		Waiters []waiterJSON `json:"waiters"`
		Waiting uint32       `json:"waiting"`
		Epoch   uint64       `json:"epoch"`
		Lost    uint64       `json:"lost_epoch,omitempty"`
	}{Held: first != nil, Waiters: []waiterJSON{}, Waiting: r.Waiting, Epoch: r.Epoch, Lost: r.LostEpoch}
	if h := first; h != nil {
		one := lockHolderJSON(h)
		v.Holder = &one
	}
	if r.Holding > 1 {
		for _, h := range r.Holders {
			v.Holders = append(v.Holders, lockHolderJSON(h))
		}
	}
	for _, w := range r.Waiters {
		v.Waiters = append(v.Waiters, waiterJSON{w.Id, seconds(w.WaitedNs)})
	}
	return v
}
