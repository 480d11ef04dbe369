// Command recording draws docs/failover.svg from a real run: three nodes, a counter that goes
// on, and the death of the node that owns it. The ring in it is what `keystead ring --watch`
// draws on a terminal meanwhile.
//
//	go run ./internal/tests/recording docs/failover.svg
//
// It writes nothing if an add was lost or counted twice, or was answered by an error.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/keystead/keystead/client"
)

const (
	before = 2 * time.Second // that is shown before the kill
	after  = 7 * time.Second // and after it
	end    = 3 * time.Second // for which the last picture stays

	addEvery = 25 * time.Millisecond
	key      = "page:/home"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: recording FILE.svg")
		os.Exit(2)
	}
	if err := record(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

func record(path string) error {
	dir, err := os.MkdirTemp("", "recording")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "keystead")
	if out, err := exec.Command("go", "build", "-o", program, "./cmd/keystead").CombinedOutput(); err != nil {
		return fmt.Errorf("building: %w: %s", err, out)
	}
	nodes, stop, err := startCluster(program)
	if err != nil {
		return err
	}
	defer stop()
	if out, err := exec.Command(program, "status", "--wait", "30s", "--members", "3", "--addr", nodes["n1"].addr).CombinedOutput(); err != nil {
		return fmt.Errorf("waiting: %w: %s", err, out)
	}
	film, err := play(program, nodes)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(film.svg()), 0o644)
}

// process is a node of the cluster.
type process struct {
	addr string
	pid  int
}

var row = regexp.MustCompile(`^  (n\d) +(\S+) .*\b(\d+)$`)

// startCluster starts three nodes, and returns them by name.
func startCluster(program string) (map[string]process, func(), error) {
	cmd := exec.Command(program, "dev", "--nodes", "3", "--grpc-addr", "127.0.0.1:0", "--http-addr", "", "--admin-addr", "", "--log-level", "error")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
	nodes := map[string]process{}
	for lines := bufio.NewScanner(out); len(nodes) < 3; {
		if !lines.Scan() {
			stop()
			return nil, nil, errors.New("the cluster said nothing of its nodes")
		}
		if m := row.FindStringSubmatch(lines.Text()); m != nil {
			pid, _ := strconv.Atoi(m[3])
			nodes[m[1]] = process{m[2], pid}
		}
	}
	return nodes, stop, nil
}

// play records the run.
func play(program string, nodes map[string]process) (*film, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, nodes["n1"].addr, nodes["n2"].addr, nodes["n3"].addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	k, err := c.Admin().InspectKey(ctx, key)
	if err != nil {
		return nil, err
	}
	asked := nodes["n1"]
	if k.Owner == "n1" {
		asked = nodes["n2"]
	}
	f := &film{began: time.Now(), victim: k.Owner}
	running, done := context.WithCancel(ctx)
	defer done()
	var both sync.WaitGroup
	both.Go(func() { f.count(ctx, running, c) })
	both.Go(func() { f.watch(running, program, asked.addr) })
	time.Sleep(before)
	f.killed = time.Since(f.began)
	if err := syscall.Kill(nodes[k.Owner].pid, syscall.SIGKILL); err != nil {
		return nil, err
	}
	time.Sleep(after)
	done()
	both.Wait()
	if f.err != nil {
		return nil, f.err
	}
	n, err := c.Counter("").Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if n.Value != f.sent {
		return nil, fmt.Errorf("%d adds were answered, and the counter says %d", f.sent, n.Value)
	}
	return f, nil
}

// film is what was seen.
type film struct {
	began  time.Time
	killed time.Duration // when
	victim string

	mu    sync.Mutex
	rings []picture // guarded by mu: what `keystead ring --watch` drew
	adds  []answer  // guarded by mu
	sent  int64     // guarded by mu
	err   error     // guarded by mu
}

type picture struct {
	at   time.Duration
	text string
}

// answer is one of the counter.
type answer struct {
	at, took time.Duration
	value    int64
}

func (f *film) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = errors.Join(f.err, err)
}

// count adds 1 again and again until running ends.
func (f *film) count(ctx, running context.Context, c *client.Client) {
	for running.Err() == nil {
		sent := time.Now()
		v, err := c.Counter("").Add(ctx, key, 1)
		if err != nil {
			f.fail(err)
			return
		}
		f.mu.Lock()
		f.sent++
		f.adds = append(f.adds, answer{time.Since(f.began), time.Since(sent), v.Value})
		f.mu.Unlock()
		time.Sleep(addEvery)
	}
}

// watch keeps what `keystead ring --watch` draws on a terminal until running ends.
func (f *film) watch(running context.Context, program, addr string) {
	cmd := exec.CommandContext(running, program, "ring", "--watch", "--color", "always", "--addr", addr)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	screen, err := onTerminal(cmd, columns, ringLines)
	if err != nil {
		f.fail(fmt.Errorf("ring: %w", err))
		return
	}
	defer screen.Close()
	drawings := bufio.NewScanner(screen) // until the terminal is gone
	drawings.Buffer(nil, 1<<20)
	drawings.Split(whole)
	for drawings.Scan() {
		f.mu.Lock()
		f.rings = append(f.rings, picture{time.Since(f.began), drawings.Text()})
		f.mu.Unlock()
	}
	_ = cmd.Wait() // it was told to end
}

// What the program writes around a drawing, and at the end of its lines.
const (
	drawingStarts = "\x1b[H"
	drawingEnds   = "\x1b[J"
	lineEnds      = "\x1b[K\r\n"
)

// whole is a split function: a drawing, as lines.
func whole(data []byte, _ bool) (advance int, token []byte, err error) {
	seen, rest, ends := strings.Cut(string(data), drawingEnds)
	if !ends {
		return 0, nil, nil
	}
	_, drawing, _ := strings.Cut(seen, drawingStarts)
	return len(data) - len(rest), []byte(strings.TrimRight(strings.ReplaceAll(drawing, lineEnds, "\n"), "\n")), nil
}
