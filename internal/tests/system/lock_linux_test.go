package system

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// When keystead itself is killed, the command dies with it, and the lock is
// free when its TTL ends.
func TestLockKeysteadKilled(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	p := watch(t, nil, "lock", "orphan", "--ttl", ttl.String(), "--", "sh", "-c", "echo begin; exec sleep 600")
	next := start(t, nil, "lock", "orphan", "--", "echo", "begin")
	eventually(t, "another waits", func() bool { return waiting(t, "orphan") == 1 })
	killed := time.Now()
	p.signal(t, syscall.SIGKILL)
	dead := p.allDead(t)
	next.ends(t, 0)
	if free := time.Since(killed); free < ttl/2 {
		t.Errorf("the lock was free after %s; its TTL is %s", free, ttl)
	} else if dead.Sub(killed) > free {
		t.Errorf("the command lived for %s, and the lock was free after %s", dead.Sub(killed), free)
	}
}

// terminal opens a terminal and returns its two ends.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
	if errno != 0 {
		t.Fatal(errno)
	}
	slave = os.NewFile(fd, "terminal")
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

// session runs a shell script as the leader of a session with a terminal, with
// its output in a file.
func session(t *testing.T, script string) (*process, *os.File) {
	t.Helper()
	master, slave := terminal(t)
	p := start(t, func(cmd *exec.Cmd) {
		sh, err := exec.LookPath("sh")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path, cmd.Args = sh, []string{"sh", "-c", script}
		cmd.Stdin = slave
		cmd.SysProcAttr = endWithTests()
		cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	})
	return p, master
}

func typed(t *testing.T, master *os.File, text string) {
	t.Helper()
	if _, err := master.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// At a terminal, the command can read what is typed, gets Ctrl-C and is not
// stopped by Ctrl-Z, from which nobody could wake it; afterwards the shell that started keystead has
// the terminal again.
func TestLockAtATerminal(t *testing.T) {
	t.Parallel()
	p, master := session(t, `echo begin; trap : INT
		keystead lock terminal -- sh -c 'while read line; do echo command: $line; done'
		echo code $?; read line; echo script: $line`)
	begins(t, p)
	typed(t, master, "one\n")
	eventually(t, "the command reads", func() bool { return strings.Contains(p.out(), "command: one\n") })
	typed(t, master, "\x1a")
	typed(t, master, "more\n")
	eventually(t, "the command still reads", func() bool { return strings.Contains(p.out(), "command: more\n") })
	typed(t, master, "\x03")
	eventually(t, "the command was interrupted", func() bool { return strings.Contains(p.out(), "code 130\n") })
	typed(t, master, "two\n")
	p.ends(t, 0)
	if !strings.HasSuffix(p.out(), "script: two\n") {
		t.Errorf("got %q %q", p.out(), p.err())
	}
}

// In the background of a shell, keystead leaves the terminal to the shell.
func TestLockInTheBackgroundOfATerminal(t *testing.T) {
	t.Parallel()
	p, master := session(t, `set -m; echo begin
		keystead lock background -- sh -c 'sleep 0.1; echo done' <&0 &
		read line; echo shell: $line; wait`)
	begins(t, p)
	eventually(t, "the command ran", func() bool { return strings.Contains(p.out(), "done\n") })
	typed(t, master, "one\n")
	p.ends(t, 0)
	if !strings.Contains(p.out(), "shell: one\n") {
		t.Errorf("got %q %q", p.out(), p.err())
	}
}
