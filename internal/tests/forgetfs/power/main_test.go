package power

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/tests/forgetfs/forget"
	"github.com/keystead/keystead/internal/tests/nemesis/cluster"
)

var (
	cycles = flag.Int("cycles", 10, "how often the power of each test is cut")
	seed   = flag.Uint64("seed", 1, "chooses the moments, and what is torn")
)

// The programs, as they are built.
var binary, forgetfs string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "keystead-power-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := 1
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func build(dir string) (err error) {
	if forgetfs, err = forget.Build(dir); err != nil {
		return err
	}
	binary = filepath.Join(dir, "keystead")
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/keystead")
	cmd.Dir = "../../../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building keystead: %w\n%s", err, out)
	}
	return nil
}

// patience is how long a node may need to be back: the machine may be busy.
const patience = 60 * time.Second

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mounted makes a disk, which is mounted.
func mounted(t *testing.T, path string) *forget.Disk {
	t.Helper()
	if _, err := os.Stat(forget.Device); err != nil {
		t.Fatalf("there is no %s: the tests of what a power cut leaves need it, and root", forget.Device)
	}
	d, err := forget.New(forgetfs, path, "posix")
	must(t, err)
	t.Cleanup(d.Close)
	return d
}

// crash cuts off a disk; in every second cycle it is torn.
func crash(t *testing.T, d *forget.Disk, cycle int, r *rand.Rand) {
	t.Helper()
	command := []string{"crash"}
	if cycle%2 == 1 {
		command = append(command, "--torn", fmt.Sprint(r.Uint64()))
	}
	_, err := d.Do(command...)
	must(t, err)
}

// lone is a node that runs alone, on a disk of its own.
type lone struct {
	t     *testing.T
	disk  *forget.Disk
	addr  string
	flags []string
	log   *os.File
	cmd   *exec.Cmd
	ended chan struct{}
}

// newLone makes a node, which does not run yet. Its data directory is not there yet either.
func newLone(t *testing.T, flags ...string) *lone {
	t.Helper()
	ports := new(cluster.Ports) // a port of the system's choice may be taken while the node is down
	t.Cleanup(ports.Close)
	port, err := ports.Next()
	must(t, err)
	dir := t.TempDir()
	n := &lone{t: t, addr: net.JoinHostPort("127.0.0.1", port)}
	n.disk = mounted(t, filepath.Join(dir, "disk"))
	n.flags = append([]string{"server", "--id", "a", "--data-dir", n.data(n.disk.Path), "--grpc-addr", n.addr, "--admin-addr", ""}, flags...)
	n.log, err = os.Create(filepath.Join(dir, "log"))
	must(t, err)
	t.Cleanup(func() {
		n.kill()
		if text, err := os.ReadFile(n.log.Name()); err == nil && t.Failed() {
			t.Logf("the node says, in the end:\n%s", text[max(0, len(text)-4000):])
		}
		_ = n.log.Close()
	})
	return n
}

// data returns the data directory in a disk, or in what that keeps.
func (n *lone) data(disk string) string { return filepath.Join(disk, "var", "keystead") }

func (n *lone) start(more ...string) {
	n.t.Helper()
	n.cmd = exec.Command(binary, append(append([]string(nil), n.flags...), more...)...)
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	n.cmd.Env = environ()
	must(n.t, n.cmd.Start())
	cmd, ended := n.cmd, make(chan struct{})
	n.ended = ended
	go func() { _ = cmd.Wait(); close(ended) }()
}

func environ() (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KEYSTEAD_") {
			env = append(env, v)
		}
	}
	return env
}

func (n *lone) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		<-n.ended
	}
}

// await waits until the node serves, which no start may refuse.
func (n *lone) await() *client.Client {
	n.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		select {
		case <-n.ended:
			n.t.Fatalf("the node does not start: %v", n.cmd.ProcessState)
		default:
		}
		ctx, cancel := context.WithTimeout(n.t.Context(), time.Second)
		c, err := client.Dial(ctx, n.addr)
		if err == nil {
			if _, err = c.Counter("ready").Get(ctx, "ready"); err == nil {
				cancel()
				return c
			}
			c.Close()
		}
		cancel()
		if time.Now().After(deadline) {
			n.t.Fatalf("the node does not serve within %s: %v", patience, err)
		}
		pause(5 * time.Millisecond)
	}
}

// cut cuts the power: the disk fails at once, then the process is gone.
func (n *lone) cut(cycle int, r *rand.Rand) {
	n.t.Helper()
	crash(n.t, n.disk, cycle, r)
	n.kill()
	must(n.t, n.disk.Remount())
}

func pause(d time.Duration) { <-time.After(d) }
