package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience is how long a server may take to serve.
const patience = 30 * time.Second

// servers are what is measured.
type servers struct {
	dir               string
	etcd, redis, node string // addresses
	three             []string
	echo              string

	stops []func()
}

// start starts all servers. binary is keystead; "" = it is built of this tree.
func start(data, binary string) (*servers, error) {
	s := &servers{}
	if err := s.start(data, binary); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *servers) start(data, binary string) (err error) {
	if s.dir, err = os.MkdirTemp(data, "keystead-peers-"); err != nil {
		return err
	}
	if binary, err = s.keystead(binary); err != nil {
		return err
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	s.etcd, s.redis = local(ports[0]), local(ports[2])
	peer := "http://" + local(ports[1])
	err = errors.Join(
		s.run("etcd", "--data-dir", filepath.Join(s.dir, "etcd"), "--listen-client-urls", "http://"+s.etcd, "--advertise-client-urls", "http://"+s.etcd,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--log-level", "error", "--logger", "zap"),
		s.run("redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(ports[2]), "--save", "", "--appendonly", "no", "--dir", s.dir),
	)
	if err != nil {
		return missing(err)
	}
	if s.node, err = s.serve(binary, "keystead"); err != nil {
		return err
	}
	if s.echo, err = s.serve(binary, "tuned-echo"); err != nil {
		return err
	}
	return errors.Join(s.cluster(binary), reachable(s.etcd), reachable(s.redis))
}

// keystead returns the program to run: binary, or, if that is "", what is built of this tree.
func (s *servers) keystead(binary string) (string, error) {
	if binary != "" {
		return binary, nil
	}
	binary = filepath.Join(s.dir, "keystead")
	build := exec.Command("go", "build", "-o", binary, "github.com/keystead/keystead/cmd/keystead")
	build.Dir = "../../.." // the module of the program
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build keystead: %w\n%s", err, out)
	}
	return binary, nil
}

// missing adds to what kept etcd or Redis from starting where they come from.
func missing(err error) error {
	return fmt.Errorf("%w\n  hint: apt-get install etcd-server redis-server", err)
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePorts returns ports that nobody listens at.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// command returns a process that ends with this one.
func command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "KEYSTEAD_") || strings.HasPrefix(v, "ETCD_") })
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run starts a server that is killed in the end.
func (s *servers) run(name string, args ...string) error {
	_, err := s.launch(command(name, args...))
	return err
}

// launch is run, and returns the server's process id.
func (s *servers) launch(cmd *exec.Cmd) (pid int, err error) {
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	s.stops = append(s.stops, func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid, nil
}

// serve starts what `keystead bench` measures, and returns its address.
func (s *servers) serve(binary, target string) (addr string, err error) {
	cmd := command(binary, "bench", "serve", target)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return "", err
	}
	s.stops = append(s.stops, func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s does not serve: %w", target, err)
	}
	return strings.TrimSpace(line), nil
}

// cluster starts three nodes, on ports that are free now, with more flags.
func (s *servers) cluster(binary string, flags ...string) error {
	cmd := command(binary, append([]string{"dev", "--nodes", "3", "--grpc-addr", "127.0.0.1:0", "--admin-addr", ""}, flags...)...)
	var log lines
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return err
	}
	s.stops = append(s.stops, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if s.three = log.nodes(); len(s.three) == 3 {
			return nil
		}
	}
	return fmt.Errorf("the cluster is not ready:\n%s", log.String())
}

// reachable waits until something listens.
func reachable(addr string) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		c, e := net.DialTimeout("tcp", addr, time.Second)
		if e == nil {
			return c.Close()
		}
		err = e
	}
	return err
}

func (s *servers) stop() {
	for _, stop := range slices.Backward(s.stops) {
		stop()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// lines is what a process has written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// nodes returns the addresses that `keystead dev` lists, if it has listed them.
func (l *lines) nodes() (addrs []string) {
	for line := range strings.Lines(l.String()) {
		if f := strings.Fields(line); len(f) > 1 && (f[0] == "n1" || f[0] == "n2" || f[0] == "n3") && strings.HasPrefix(f[1], "127.0.0.1:") {
			addrs = append(addrs, f[1])
		}
	}
	return addrs
}
