//go:build unix && !linux

package cli

import (
	"os/exec"
	"syscall"
)

// endWithParent keeps Ctrl-C away from a node, which its parent stops.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
