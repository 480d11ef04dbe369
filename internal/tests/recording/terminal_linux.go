package main

import (
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// onTerminal starts a command on a terminal of this size, and returns what it draws there.
func onTerminal(cmd *exec.Cmd, columns, lines uint16) (io.ReadCloser, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (io.ReadCloser, error) { _ = master.Close(); return nil, err }
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return fail(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
	if errno != 0 {
		return fail(errno)
	}
	terminal := os.NewFile(fd, "terminal")
	defer terminal.Close()
	if err := unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: lines, Col: columns}); err != nil {
		return fail(err)
	}
	raw, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
	if err != nil {
		return fail(err)
	}
	raw.Oflag &^= unix.OPOST // what is written is what is read
	if err := unix.IoctlSetTermios(int(fd), unix.TCSETS, raw); err != nil {
		return fail(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	return master, nil
}
