package system

import "syscall"

// endWithTests has a process killed when the tests end in whatever way.
func endWithTests() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
