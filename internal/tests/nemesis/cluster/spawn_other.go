//go:build !linux

package cluster

import "syscall"

// attached would make a process end with the one that started it, which only
// Linux can do.
func attached() *syscall.SysProcAttr { return nil }
