package system

import (
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// On a terminal the table is drawn on a screen of its own, and what was seen last
// stays.
func TestHotOnTerminal(t *testing.T) {
	t.Parallel()
	master, slave := terminal(t)
	unix.CloseOnExec(int(slave.Fd())) // what other tests start shall not keep it open
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
	shows := func(text string, times int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Count(seen.String(), text) >= times
		}
	}
	p := start(t, func(cmd *exec.Cmd) { cmd.Stdout = slave }, "hot", "--watch")
	eventually(t, "it draws", shows(screenOpen+screenHome+"1 node, ", 1))
	eventually(t, "it draws again", shows(screenHome+"1 node, ", 2))
	p.signal(t, syscall.SIGINT)
	p.ends(t, 0)
	eventually(t, "the last drawing stays", shows(screenClose+"1 node, ", 1))
	_ = slave.Close()
	<-read
}
