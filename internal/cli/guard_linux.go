package cli

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup puts a command in a process group of its own, so that it can be
// killed with its children, and has it killed when keystead dies. If keystead
// is in the foreground of a terminal, the command gets that place, until
// restore takes it back for whatever the terminal's shell runs next.
func ownGroup(in io.Reader) (attr *syscall.SysProcAttr, restore func()) {
	attr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	f, ok := in.(*os.File)
	if !ok {
		return attr, func() {}
	}
	fd, own := int(f.Fd()), unix.Getpgrp()
	if front, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil || front != own {
		return attr, func() {} // no terminal, or another process group has it
	}
	attr.Foreground, attr.Ctty = true, fd
	// Ctrl-Z would stop the command alone: its shell, which waits for keystead,
	// would not notice, and nobody could wake it. The command inherits this.
	signal.Ignore(syscall.SIGTSTP)
	return attr, func() {
		signal.Reset(syscall.SIGTSTP)
		// A process that is not in the foreground is stopped by SIGTTOU for taking it.
		signal.Ignore(syscall.SIGTTOU)
		_ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, own) // the terminal may be gone
		signal.Reset(syscall.SIGTTOU)
	}
}
