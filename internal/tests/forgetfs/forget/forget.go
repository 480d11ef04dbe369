// Package forget starts forgetfs from a Go test, as a process of its own. A test that served
// the file system it uses could wait for itself.
package forget

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/keystead/keystead/internal/tests/forgetfs/disk"
)

// Device is what FUSE needs of the machine, beside root.
const Device = "/dev/fuse"

// Build builds the program into a directory, and returns its path.
func Build(dir string) (string, error) {
	to := filepath.Join(dir, "forgetfs")
	out, err := exec.Command("go", "build", "-o", to, "github.com/keystead/keystead/internal/tests/forgetfs").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building forgetfs: %w\n%s", err, out)
	}
	return to, nil
}

// Disk is a file system of a directory: NAME is where it is mounted, NAME.disk what it
// keeps. It is used by one goroutine.
type Disk struct {
	Path string // where it is mounted

	program string
	names   string
	cmd     *exec.Cmd
}

// New makes a disk, and mounts it. names is "posix" or "ext4". Close it.
func New(program, path, names string) (*Disk, error) {
	d := &Disk{Path: path, program: program, names: names}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	return d, d.Mount()
}

// Backing returns the directory of what is kept.
func (d *Disk) Backing() string { return d.Path + ".disk" }

// Socket returns the path of the socket that takes commands.
func (d *Disk) Socket() string { return d.Path + ".sock" }

// Mount mounts what is kept. The disk is not mounted.
func (d *Disk) Mount() error {
	if d.cmd != nil {
		return errors.New("forgetfs: it is mounted")
	}
	cmd := exec.Command(d.program, d.Path, "--backing", d.Backing(), "--control", d.Socket(), "--names", d.names)
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		_ = cmd.Process.Kill()
		return fmt.Errorf("forgetfs: it does not mount: %q, %w, %v", line, err, cmd.Wait())
	}
	d.cmd = cmd
	return nil
}

// Do has it do a command of package control, and returns what it answers after "ok".
func (d *Disk) Do(args ...string) (string, error) {
	c, err := net.Dial("unix", d.Socket())
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := fmt.Fprintln(c, strings.Join(args, " ")); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "", err
	}
	answer, ok := strings.CutPrefix(strings.TrimSpace(line), "ok")
	if !ok {
		return "", fmt.Errorf("forgetfs: %s: %s", strings.Join(args, " "), strings.TrimSpace(line))
	}
	return strings.TrimSpace(answer), nil
}

// Stats returns its counts.
func (d *Disk) Stats() (disk.Stats, error) {
	var s disk.Stats
	text, err := d.Do("stats")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(text), &s)
}

// Unmount ends it in order; all is kept, unless it has crashed.
func (d *Disk) Unmount() error {
	if d.cmd == nil {
		return nil
	}
	err := d.cmd.Process.Signal(syscall.SIGTERM)
	err = errors.Join(err, d.cmd.Wait())
	d.cmd = nil
	return err
}

// Remount takes a disk that has crashed away, and mounts what is kept.
func (d *Disk) Remount() error { return errors.Join(d.Unmount(), d.Mount()) }

// Close ends it.
func (d *Disk) Close() { _ = d.Unmount() }
