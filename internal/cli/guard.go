package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/keystead/keystead/client"
)

// passedOn are the signals that a guarded command gets from keystead.
var passedOn = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGWINCH,
}

// untilSignal returns a context that ends with the first SIGINT, SIGTERM or
// SIGHUP, and a function that ends the watch and returns that signal's number,
// or 0.
func untilSignal(ctx context.Context) (context.Context, func() int) {
	ctx, cancel := context.WithCancel(ctx)
	ch := make(chan os.Signal, 1)
	got := make(chan int, 1)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case s := <-ch:
			n := int(s.(syscall.Signal))
			cancel()
			got <- n
		case <-ctx.Done():
			select {
			case s := <-ch: // both at once
				got <- int(s.(syscall.Signal))
			default:
				got <- 0
			}
		}
	}()
	return ctx, func() int {
		signal.Stop(ch)
		cancel()
		return <-got
	}
}

// guard runs a command while the lock is held. It returns the command's
// exit code, or why the lock was lost, in which case the command and its
// children have been killed.
func (f *lockFlags) guard(held heldGrant, key, path string, command []string, signals <-chan os.Signal, std Process) (code int, lost, err error) {
	// The kernel kills the command when the thread that started it ends, that
	// is, when keystead dies in whatever way.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(path, command[1:]...)
	cmd.Args[0] = command[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = std.In, std.Out, std.Err
	cmd.Env = append(os.Environ(),
		"KEYSTEAD_FENCING_TOKEN="+strconv.FormatUint(held.Token(), 10),
		"KEYSTEAD_LOCK_KEY="+key,
		"KEYSTEAD_LOCK_HOLDER="+f.holder)
	attr, restore := ownGroup(std.In)
	cmd.SysProcAttr = attr
	defer restore()
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("cannot run %q: %w", command[0], err)
	}
	group := cmd.Process.Pid
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = syscall.Kill(-group, s.(syscall.Signal)) // it may have ended just now
		case <-held.Context().Done(): // a tenth of the TTL before the lock can be granted again
			_ = syscall.Kill(-group, syscall.SIGKILL)
			lost = whyLost(held)
			select {
			case <-exited:
			case <-time.After(killTimeout):
				lost = fmt.Errorf("%w; and process %d does not die", lost, group)
			}
			return 0, lost, nil
		case err := <-exited:
			return commandCode(cmd, err)
		}
	}
}

// killTimeout is how long a killed command may take to end. One that runs as
// another user cannot be killed at all.
const killTimeout = 2 * time.Second

// whyLost is why the context of a lock has ended.
func whyLost(held heldGrant) error {
	cause := context.Cause(held.Context())
	var e *client.Error
	if errors.As(cause, &e) {
		return errors.New(e.Message)
	}
	return cause
}

func commandCode(cmd *exec.Cmd, err error) (int, error, error) {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, nil, err
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil, nil
	}
	return cmd.ProcessState.ExitCode(), nil, nil
}
