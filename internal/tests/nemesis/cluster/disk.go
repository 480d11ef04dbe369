package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// diskSize is that of a disk of its own: room for a log and for the state of a small
// history, and little enough to be filled in no time.
const diskSize = 64 << 20

// disk is a file system of one node, in a file. It can be filled, and made to hang.
type disk struct {
	image string
	mount string
}

const disksHint = "disks of their own need root, loop devices, and Debian's mount and e2fsprogs"

// newDisk makes and mounts a disk.
func newDisk(image, mount string) (*disk, error) {
	f, err := os.Create(image)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(diskSize), f.Close(), os.MkdirAll(mount, 0o700)); err != nil {
		return nil, err
	}
	if err := command("mkfs.ext4", "-q", "-F", "-m", "0", image); err != nil {
		return nil, err
	}
	if err := command("mount", "-o", "loop", image, mount); err != nil {
		return nil, err
	}
	return &disk{image: image, mount: mount}, nil
}

// command runs a program of the system.
func command(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("cluster: %v: %w: %s: %s", args, err, out, disksHint)
	}
	return nil
}

// data returns where the node keeps what it has.
func (d *disk) data() string { return filepath.Join(d.mount, "data") }

// hang has all writes wait, or go on.
func (d *disk) hang(on bool) error {
	if on {
		return command("fsfreeze", "--freeze", d.mount)
	}
	return command("fsfreeze", "--unfreeze", d.mount)
}

// fill leaves no byte free, or gives the room back.
func (d *disk) fill(on bool) error {
	ballast := filepath.Join(d.mount, "ballast")
	if !on {
		return os.Remove(ballast)
	}
	f, err := os.Create(ballast)
	if err != nil {
		return err
	}
	defer f.Close()
	for chunk := make([]byte, 1<<20); len(chunk) > 0; {
		_, err := f.Write(chunk)
		switch {
		case errors.Is(err, syscall.ENOSPC):
			chunk = chunk[:len(chunk)/2]
		case err != nil:
			return err
		}
	}
	return f.Sync()
}

// close unmounts the disk, which no process may use.
func (d *disk) close() {
	_ = command("umount", "--lazy", d.mount)
	_ = os.Remove(d.image)
}
