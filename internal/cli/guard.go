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

// guard runs a command while the lease is renewed. It returns the command's
// exit code, or why the lease was lost, in which case the command and its
// children have been killed.
func (l *lease) guard(path string, command []string, signals <-chan os.Signal, std Process) (code int, lost, err error) {
	// The kernel kills the command when the thread that started it ends, that
	// is, when keystead dies in whatever way.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(path, command[1:]...)
	cmd.Args[0] = command[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = std.In, std.Out, std.Err
	cmd.Env = append(os.Environ(),
		"KEYSTEAD_FENCING_TOKEN="+strconv.FormatUint(l.token, 10),
		"KEYSTEAD_LOCK_KEY="+l.key,
		"KEYSTEAD_LOCK_HOLDER="+l.f.holder)
	attr, restore := ownGroup(std.In)
	cmd.SysProcAttr = attr
	defer restore()
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("cannot run %q: %w", command[0], err)
	}
	group := cmd.Process.Pid
	ctx, done := context.WithCancel(context.Background())
	defer done()
	ended := make(chan error, 1)
	go func() { ended <- l.keep(ctx) }()
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = syscall.Kill(-group, s.(syscall.Signal)) // it may have ended just now
		case lost := <-ended:
			_ = syscall.Kill(-group, syscall.SIGKILL)
			select {
			case <-exited:
			case <-time.After(lastBreath):
				lost = fmt.Errorf("%w; and process %d does not die", lost, group)
			}
			return 0, lost, nil
		case err := <-exited:
			done()
			<-ended
			return commandCode(cmd, err)
		}
	}
}

// lastBreath is how long a killed command may take to end. One that runs as
// another user cannot be killed at all.
const lastBreath = 2 * time.Second

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

// keep renews the lease at a third of its TTL, and quickly after a failure,
// until ctx ends. It returns an error when the lease is lost, a tenth of the TTL
// before it can be granted to anybody else.
func (l *lease) keep(ctx context.Context) error {
	ttl := int64(l.f.ttl)
	margin := ttl / 10
	pause := ttl / 3
	var last error
	for {
		left := l.until - margin - l.clock.Now()
		if left <= 0 {
			if last == nil {
				last = errors.New("this machine stood still for longer than the TTL")
			}
			return last
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Duration(min(pause, left))):
		}
		if left = l.until - margin - l.clock.Now(); left <= 0 {
			continue
		}
		call, cancel := context.WithTimeout(ctx, time.Duration(min(left, ttl/3)))
		held, err := l.renew(call)
		cancel()
		if !held {
			return errors.New("its time ran out, or another holder has it")
		}
		if last, pause = err, ttl/3; err != nil {
			pause = ttl / 20
		}
	}
}
