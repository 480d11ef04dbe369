//go:build unix && !linux

package cli

import (
	"io"
	"syscall"
)

// ownGroup puts a command in a process group of its own, so that it can be
// killed with its children.
func ownGroup(io.Reader) (*syscall.SysProcAttr, func()) {
	return &syscall.SysProcAttr{Setpgid: true}, func() {}
}
