package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

// onceFlags are how a command is run once.
type onceFlags struct {
	lockFlags
	print string
	keep  time.Duration
}

// heldTurn is a turn, as what a guarded command needs.
type heldTurn struct{ *client.Turn }

// Release ends the turn as if it had never begun.
func (t heldTurn) Release(ctx context.Context, _ ...client.CallOption) error { return t.Abandon(ctx) }

func newOnce(std Process) *cobra.Command {
	f := onceFlags{lockFlags: lockFlags{turn: true}}
	cmd := &cobra.Command{
		Use:   "once KEY -- COMMAND [ARG]...",
		Short: "Run a command if nobody has, and print what it printed",
		Long: `Runs COMMAND if nobody has run it for KEY, and keeps what it printed and its exit code. Who
comes later gets both, and runs nothing; who comes while it runs waits for it.

COMMAND finds a fencing token in KEYSTEAD_FENCING_TOKEN: it is greater than that of every
earlier run for KEY, so whatever COMMAND changes can refuse a late one. If keystead or its
machine dies, the next one runs COMMAND again after --ttl, and says that it does: what was
done before the death is done twice, unless COMMAND bears that.

Kept are the first 60,000 bytes of standard output, for --keep. An exit code of 75, and a death
by a signal (129 to 192), are no result: after 75 the next one runs COMMAND at once, for 75
says that nothing was done; after a signal the turn ends with --ttl.

Another COMMAND or other arguments under the same KEY are refused. --fingerprint says instead
what must be the same.

What is kept is in the memory of two nodes. If both die at once, COMMAND may be run again.

Exit codes of keystead itself: 75 if another still ran COMMAND after --wait, 76 if the turn was
lost and COMMAND killed. A key that is called like a command below comes after "--", with its
command.`,
		Example: `  keystead once "report-$(date +%F)" -- ./report.sh                # cron, on every machine
  keystead once migrate-42 --keep 168h -- ./migrate.sh 42
  keystead once "order-$ID" --fingerprint "$(sha256sum <order.json)" -- ./charge.sh order.json
  keystead once show migrate-42
  keystead once forget migrate-42`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return usageError{errors.New("KEY is missing\n  hint: keystead once KEY -- COMMAND")}
			case 1:
				return usageError{errors.New("COMMAND is missing\n  hint: keystead once KEY -- COMMAND")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("fingerprint") {
				f.print = fingerprintOf(args[1:])
			}
			return f.runOnce(cmd.Context(), std, args[0], args[1:])
		},
	}
	f.onceNamed(cmd)
	cmd.Flags().StringVar(&f.holder, "holder", "", "who you are, shown to others (default host:pid)")
	cmd.Flags().DurationVar(&f.ttl, "ttl", 10*time.Second, "how long the turn outlives a keystead that died; 300ms or more")
	cmd.Flags().DurationVar(&f.keep, "keep", client.DefaultKeep, "how long the result is kept: 1s to 168h")
	cmd.Flags().DurationVar(&f.wait, "wait", 24*time.Hour, "how long to wait while another runs the command; 0 = do not")
	cmd.Flags().StringVar(&f.print, "fingerprint", "", "what must be the same under the same key (default a hash of COMMAND and its arguments)")
	cmd.AddCommand(newOnceShow(std), newOnceForget(std))
	return cmd
}

func (f *onceFlags) onceNamed(cmd *cobra.Command) {
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which of the key's (default \"once\")")
}

// fingerprintOf returns that of a command.
func fingerprintOf(command []string) string {
	h := sha256.New()
	for _, arg := range command {
		fmt.Fprintf(h, "%d %s", len(arg), arg)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// runOnce runs a command, or prints what it has printed.
func (f *onceFlags) runOnce(ctx context.Context, std Process, key string, command []string) error {
	if err := f.checkOnce(); err != nil {
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
	begun, err := f.begin(ctx, node, key, std)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	if interrupted := stop(); interrupted != 0 {
		if begun.Turn != nil {
			f.release(heldTurn{begun.Turn})
		}
		return exitCode(128 + interrupted)
	}
	switch {
	case err != nil:
		return err
	case begun.Turn == nil:
		return replayRun(std, key, begun.Result)
	}
	if n := begun.Turn.Attempt(); n > 1 {
		fmt.Fprintf(std.Err, "keystead: attempt %d of %q: the one before did not end, and may have done its work\n", n, key)
	}
	return f.firstRun(std, node, begun.Turn, key, path, command, signals)
}

func (f *onceFlags) checkOnce() error {
	if err := f.check(os.Getpid()); err != nil {
		return err
	}
	if f.keep < time.Second || f.keep > 7*24*time.Hour {
		return usageError{fmt.Errorf("--keep %s: choose 1s to 168h", plainTimes(f.keep.String()))}
	}
	if len(f.print) > sha256.Size*2 {
		f.print = fingerprintOf([]string{f.print})
	}
	return nil
}

// begin asks for the turn, or the result.
func (f *onceFlags) begin(ctx context.Context, node *atNode, key string, std Process) (client.Begun, error) {
	g := &graceWait{f: &f.lockFlags, node: node, std: std, key: key, began: time.Now(), end: time.Now().Add(f.wait)}
	node.refused = g.refused
	begun, err := node.Once(f.name).Begin(ctx, key, f.print, client.TTL(f.ttl), client.Wait(f.wait), client.HeldBy(f.holder), client.Keep(f.keep))
	var e *client.Error
	if errors.As(err, &e) && errors.Is(err, client.ErrOnceBusy) && ctx.Err() == nil {
		var h client.Holder
		if e.Holder != nil {
			h = *e.Holder
		}
		fmt.Fprintf(std.Err, "keystead: %s has run the command of %q for %s, and another may in %s unless it goes on\n", printable(h.ID), key, people(h.Held), people(h.TTL))
		return begun, exitCode(exitNotAcquired)
	}
	return begun, node.explain(err)
}

// firstRun runs the command in its turn, and keeps what it printed.
func (f *onceFlags) firstRun(std Process, node *atNode, turn *client.Turn, key, path string, command []string, signals <-chan os.Signal) error {
	out, err := newTee(std.Out)
	if err != nil {
		f.release(heldTurn{turn})
		return err
	}
	guarded := std
	guarded.Out = out.to
	code, lost, err := f.guard(heldTurn{turn}, key, path, command, signals, guarded)
	printed, cut, unheard := out.end()
	switch {
	case lost != nil:
		printError(std.Err, hinted{fmt.Errorf("the turn of %q was lost and the command killed: %w", key, lost), "raise --ttl if renewals are late"})
		return exitCode(exitLockLost)
	case err != nil || code == exitNotAcquired: // it was not run, or says that it did nothing
		f.release(heldTurn{turn})
		if err == nil {
			err = exitCode(code)
		}
		return err
	case bySignal(code):
		return exitCode(code) // nobody knows what it has done: the turn ends with its lease
	}
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	if err := turn.Complete(ctx, encodeRun(code, cut, printed)); err != nil {
		return hinted{fmt.Errorf("the command has run, and its result could not be kept: %w", node.explain(err)), "it may be run again for this key"}
	}
	if unheard != nil {
		return hinted{fmt.Errorf("the command has run, and what it printed could not be passed on: %w", unheard), "its result is kept: the same command prints it"}
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}

// lastSignal is the highest number of a signal.
const lastSignal = 64

// bySignal reports whether an exit code is that of a death by a signal, of a command or, as a shell
// says it, of what it ran.
func bySignal(code int) bool { return code > 128 && code <= 128+lastSignal }

// maxPrinted is how much of what a command prints is kept: with what stands before it, it is a result.
const maxPrinted = 60_000

// runHead stands before what a command printed: its exit code, and whether something is missing.
const runHead = "keystead-once 1 exit=%d cut=%t\n"

func encodeRun(code int, cut bool, printed []byte) []byte {
	return append(fmt.Appendf(nil, runHead, code, cut), printed...)
}

// decodeRun reads what encodeRun wrote. ok is false for a result of another program.
func decodeRun(result []byte) (code int, cut bool, printed []byte, ok bool) {
	n, err := fmt.Sscanf(string(result[:min(len(result), len(runHead)+8)]), runHead, &code, &cut)
	if err != nil || n != 2 {
		return 0, false, result, false
	}
	return code, cut, result[len(fmt.Sprintf(runHead, code, cut)):], true
}

// replayRun prints what a run has printed, and exits as it did.
func replayRun(std Process, key string, result []byte) error {
	code, cut, printed, ok := decodeRun(result)
	if !ok {
		fmt.Fprintf(std.Err, "keystead: the result of %q is of another program\n", key)
	}
	if _, err := std.Out.Write(printed); err != nil {
		return err
	}
	if cut {
		fmt.Fprintf(std.Err, "keystead: of what the command printed, only the first %d bytes were kept\n", len(printed))
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}

// tee passes on what a command prints, and keeps its beginning. The command gets a pipe: what it
// leaves in the background, and may hold it, is not waited for.
type tee struct {
	to    *os.File
	from  *os.File
	ended atomic.Bool // the command has
	done  chan struct{}
	kept  keeper
	err   error // of what it is passed on to
}

// keeper keeps the first maxPrinted bytes.
type keeper struct {
	bytes []byte
	cut   bool
}

func (k *keeper) keep(b []byte) {
	n := min(len(b), maxPrinted-len(k.bytes))
	k.bytes, k.cut = append(k.bytes, b[:n]...), k.cut || n < len(b)
}

func newTee(out io.Writer) (*tee, error) {
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	t := &tee{to: to, from: from, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.copy(out)
	}()
	return t, nil
}

const (
	// teeRest is how long after the end of a command a pipe has to be silent for what it has
	// printed to be there.
	teeRest = 250 * time.Millisecond
	// teeMost is how much may be in a pipe when the command ends: its room. What comes then is
	// of what it has left in the background.
	teeMost = 64 << 10
)

// copy goes on when nothing can be passed on any more: the command must not wait for that.
func (t *tee) copy(out io.Writer) {
	buf := make([]byte, 32<<10)
	for rest, silent := teeMost, 0; rest > 0 && silent < 2; {
		ended := t.ended.Load()
		if ended { // the deadline may have passed while it was passed on
			_ = t.from.SetReadDeadline(time.Now().Add(teeRest))
		}
		n, err := t.from.Read(buf)
		t.kept.keep(buf[:n])
		if n > 0 && t.err == nil {
			_, t.err = out.Write(buf[:n])
		}
		if ended {
			rest -= n
		}
		switch {
		case err == nil:
			silent = 0
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return
		case ended:
			silent++
		}
	}
}

// end returns what was kept, and why it could not be passed on, if so.
func (t *tee) end() (printed []byte, cut bool, err error) {
	_ = t.to.Close()
	t.ended.Store(true)
	_ = t.from.SetReadDeadline(time.Now().Add(teeRest)) // what is in the background may hold the pipe
	<-t.done
	_ = t.from.Close()
	return t.kept.bytes, t.kept.cut, t.err
}

func newOnceShow(std Process) *cobra.Command {
	var f onceFlags
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show whether it was run, by whom, and what it printed",
		Long: `Shows what is known of KEY: who runs the command, in which attempt, or what it printed.

With --json: {"state": "none", "under way" or "done", "token": "…", "attempt": number, "holder":
"…", "fingerprint": "…", "age": seconds, "ttl": seconds, "exit": number, "output": "…"}.

Exit codes: 0 if it is done, 3 if not.`,
		Example: "  keystead once show migrate-42",
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			s, err := node.Once(f.name).Get(cmd.Context(), args[0])
			if err != nil {
				return node.explain(err)
			}
			if err := f.showOnce(std.Out, &s); err != nil || s.Done {
				return err
			}
			return exitCode(exitDenied)
		},
	}
	f.onceNamed(cmd)
	return cmd
}

func (f *onceFlags) showOnce(out io.Writer, s *client.OnceState) error {
	code, _, printed, _ := decodeRun(s.Result)
	state := "none"
	switch {
	case s.Done:
		state = "done"
	case s.Begun:
		state = "under way"
	}
	if f.json {
		return printJSON(out, struct {
			State       string  `json:"state"`
			Token       string  `json:"token"`
			Attempt     int     `json:"attempt"`
			Holder      string  `json:"holder"`
			Fingerprint string  `json:"fingerprint"`
			Age         seconds `json:"age"`
			TTL         seconds `json:"ttl"`
			Exit        int     `json:"exit"`
			Output      string  `json:"output"`
			Epoch       uint64  `json:"epoch"`
			Lost        uint64  `json:"lost_epoch,omitempty"`
		}{state, strconv.FormatUint(s.Token, 10), s.Attempt, s.Holder, s.Fingerprint, seconds(s.Age), seconds(s.TTL), code, string(printed), s.Epoch, s.LostEpoch})
	}
	switch {
	case s.Done:
		fmt.Fprintf(out, "done %s ago, exit code %d, token %d, kept for %s%s\n", people(s.Age), code, s.Token, people(s.TTL), graceMark(s.LostEpoch))
		_, err := out.Write(printed)
		return err
	case !s.Begun:
		_, err := fmt.Fprintf(out, "nobody has run it%s\n", graceMark(s.LostEpoch))
		return err
	case s.TTL == 0:
		_, err := fmt.Fprintf(out, "attempt %d by %s did not end, token %d: the next one runs it again%s\n", s.Attempt, printable(s.Holder), s.Token, graceMark(s.LostEpoch))
		return err
	}
	_, err := fmt.Fprintf(out, "run by %s for %s, attempt %d, token %d, free in %s unless renewed%s\n", printable(s.Holder), people(s.Age), s.Attempt, s.Token, people(s.TTL), graceMark(s.LostEpoch))
	return err
}

func newOnceForget(std Process) *cobra.Command {
	var f onceFlags
	running := false
	cmd := &cobra.Command{
		Use:   "forget KEY",
		Short: "Forget that it was run, so that the next one runs it again",
		Long: `Forgets what is known of KEY: the next one runs the command again. A run that is under way is
left alone, unless --running is given: then another may begin beside it, until it learns of
that at its next renewal and is killed.

Exit codes: 0 if something was forgotten, 3 if not.`,
		Example: "  keystead once forget migrate-42",
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			was, err := node.Once(f.name).Forget(cmd.Context(), args[0], running, f.key.option())
			if err != nil {
				return node.explain(err)
			}
			if f.json {
				if err := printJSON(std.Out, map[string]bool{"forgotten": was}); err != nil {
					return err
				}
			}
			if !was {
				return exitCode(exitDenied)
			}
			return nil
		},
	}
	f.onceNamed(cmd)
	f.key.flags(cmd)
	cmd.Flags().BoolVar(&running, "running", false, "also while it is run")
	return cmd
}
