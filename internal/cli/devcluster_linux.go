package cli

import (
	"os/exec"
	"syscall"
)

// endWithParent keeps Ctrl-C away from a node, which its parent stops, and stops
// it when the parent dies.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
