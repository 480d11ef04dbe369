// Command forgetfs mounts a file system that forgets what was not synced, so that tests of
// real processes see what a power cut leaves. `kill -9` keeps the page cache, and proves no
// fsync.
//
//	forgetfs MOUNTPOINT --backing DIR --control SOCKET [--names posix|ext4]
//
// Written data, and names, are in memory until they are synced; then they are in the backing
// directory, which is at every moment what a power cut leaves. Package disk has the rules.
// It prints one line when it is mounted, and ends with SIGTERM, which unmounts in order:
// all is kept, unless the disk has crashed.
//
// The control socket takes one command a line, and answers each with a line that begins with
// "ok" or "error": package control has them. Package forget does all of it from a Go test.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/keystead/keystead/internal/tests/forgetfs/control"
	"github.com/keystead/keystead/internal/tests/forgetfs/disk"
	"github.com/keystead/keystead/internal/tests/forgetfs/mount"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("forgetfs", flag.ContinueOnError)
	backing := flags.String("backing", "", "directory that has what was synced; made if there is none")
	socket := flags.String("control", "", "path of the socket that takes commands")
	names := flags.String("names", "posix", "when names are kept: posix, by fsync of their directory; ext4, by any fsync")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: forgetfs MOUNTPOINT --backing DIR --control SOCKET [--names posix|ext4]")
		flags.PrintDefaults()
	}
	if len(args) == 0 || args[0] == "" || args[0][0] == '-' {
		flags.Usage()
		return errors.New("forgetfs: no mount point")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if *backing == "" || *socket == "" || flags.NArg() > 0 || *names != "posix" && *names != "ext4" {
		flags.Usage()
		return errors.New("forgetfs: it needs --backing and --control, and --names is posix or ext4")
	}
	return serve(args[0], *backing, *socket, disk.Options{Ext4: *names == "ext4"})
}

// serve mounts, takes commands, and ends with a signal.
func serve(point, backing, socket string, o disk.Options) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	d, err := disk.Open(backing, o)
	if err != nil {
		return err
	}
	c, err := control.Listen(socket, d)
	if err != nil {
		return err
	}
	defer c.Close()
	m, err := mount.At(point, d)
	if err != nil {
		return err
	}
	fmt.Println("forgetfs: mounted at", point)
	<-signals
	return errors.Join(m.Close(), d.Close())
}
