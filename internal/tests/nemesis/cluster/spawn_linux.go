package cluster

import "syscall"

// attached makes a process end with the one that started it.
func attached() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
