package system

import (
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// On a terminal the ring is drawn in colours on a screen of its own, again when
// the terminal changes, and what was seen last stays.
func TestRingOnTerminal(t *testing.T) {
	t.Parallel()
	master, slave := terminal(t)
	unix.CloseOnExec(int(slave.Fd())) // what other tests start shall not keep it open
	resize := func(rows, columns uint16) {
		if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
			t.Fatal(err)
		}
	}
	resize(24, 80)
	var mu sync.Mutex
	var seen strings.Builder // guarded by mu
	read := make(chan struct{})
	go func() {
		defer close(read)
		for buf := make([]byte, 4096); ; {
			n, err := master.Read(buf)
			mu.Lock()
			seen.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	shows := func(text string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(seen.String(), text)
		}
	}
	p := start(t, func(cmd *exec.Cmd) {
		cmd.Stdout = slave
		cmd.Env = append(cmd.Env, "NO_COLOR=", "TERM=xterm")
	}, "ring", "--watch")
	eventually(t, "it draws", shows("\x1b[H"+"Ring of a node that runs alone"))
	eventually(t, "in colours", shows("\x1b[30;48;5;39mA\x1b[0m"))
	eventually(t, "a circle", shows("1 node"))
	resize(24, 40)
	p.signal(t, syscall.SIGWINCH)
	eventually(t, "it draws for the new width", shows("A character: who owns most of a stretch.\x1b[K"))
	p.signal(t, syscall.SIGINT)
	p.ends(t, 0)
	eventually(t, "the last drawing stays", shows(screenClose+"Ring of a node that runs alone"))
	_ = slave.Close()
	<-read
}
