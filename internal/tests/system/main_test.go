package system

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// What all tests share.
var (
	binary string // the program, as it is built
	shared string // address of a node that lives as long as the tests
)

// The tests run the program as its users do: as processes. TestMain builds it
// and starts the node that most tests talk to.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.fuzzworker").Value.String() == "true" {
		os.Exit(m.Run()) // fuzzing needs no processes
	}
	moreAtOnce()
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// moreAtOnce lets three tests run at a time unless -parallel says otherwise: they are
// of processes, and wait more than they work.
func moreAtOnce() {
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said && runtime.GOMAXPROCS(0) < 3 {
		_ = flag.Set("test.parallel", "3")
	}
}

func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "keystead-test-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "keystead")
	build := exec.Command("go", slices.Concat([]string{"build", "-o", binary}, raceFlags, []string{"github.com/keystead/keystead/cmd/keystead"})...)
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("building keystead: %w\n%s", err, out)
	}
	keep, stdin, err := os.Pipe() // the node ends with its standard input, that is, with the tests
	if err != nil {
		return 0, err
	}
	node, err := spawn(dir, func(cmd *exec.Cmd) { cmd.Stdin = keep }, "bench", "serve", "keystead")
	_ = keep.Close()
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = stdin.Close()
		if status := node.wait(); status != 0 {
			err = errors.Join(err, fmt.Errorf("the node of the tests ended with %d: %s", status, node.err()))
		}
	}()
	if !poll(func() bool { return strings.HasSuffix(node.out(), "\n") }) {
		return 0, fmt.Errorf("the node of the tests does not serve: %s", node.err())
	}
	shared = strings.TrimSpace(node.out())
	code = m.Run()
	return code, goleak.Find(goleak.IgnoreAnyFunction("os/exec.(*Cmd).Wait"))
}

// process is a keystead that was started.
type process struct {
	cmd  *exec.Cmd
	dir  string        // holds what it writes
	done chan struct{} // closed when it has ended
}

// cleanEnv returns the environment of the tests without settings of keystead.
func cleanEnv(more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, envPrefix) })
	path := "PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH")
	// A program with the race detector would sleep for a second at its end.
	return append(append(env, path, "GORACE=atexit_sleep_ms=0"), more...)
}

const envPrefix = "KEYSTEAD_"

// spawn starts keystead. What it writes goes to files, so that nobody who
// inherits its output can hold up the test.
func spawn(dir string, prepare func(*exec.Cmd), args ...string) (*process, error) {
	p := &process{cmd: exec.Command(binary, args...), dir: dir, done: make(chan struct{})}
	for name, to := range map[string]func(*os.File){
		"out": func(f *os.File) { p.cmd.Stdout = f }, "err": func(f *os.File) { p.cmd.Stderr = f },
	} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		to(f)
	}
	p.cmd.Env = cleanEnv()
	p.cmd.SysProcAttr = endWithTests()
	if prepare != nil {
		prepare(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the tests look at the ProcessState
	}()
	return p, nil
}

func (p *process) read(name string) string {
	b, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (p *process) out() string { return p.read("out") }
func (p *process) err() string { return p.read("err") }

// wait returns the exit code: -1 after a signal, or if it does not end.
func (p *process) wait() int {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		return -1
	}
}

// start starts keystead against the shared node, and ends it with the test.
func start(t *testing.T, prepare func(*exec.Cmd), args ...string) *process {
	t.Helper()
	p, err := spawn(t.TempDir(), func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "KEYSTEAD_ADDR="+shared)
		if prepare != nil {
			prepare(cmd)
		}
	}, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended, mostly
		<-p.done
	})
	return p
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	if s == syscall.SIGSTOP { // its threads go on for a moment
		eventually(t, "it stops", p.stopped)
	}
}

// stopped reports whether no thread of the process runs.
func (p *process) stopped() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	for _, name := range threads {
		stat, gone := os.ReadFile(name)
		_, state, _ := strings.Cut(string(stat), ") ")
		if gone == nil && !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return err == nil && len(threads) > 0
}

// ends waits for the exit code that is wanted.
func (p *process) ends(t *testing.T, want int) {
	t.Helper()
	if got := p.wait(); got != want {
		t.Fatalf("%q ended with %d, want %d\n%s%s", p.cmd.Args[1:], got, want, p.out(), p.err())
	}
}

// env adds to the environment of a process.
func env(vars ...string) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, vars...) }
}

// result is what a process left.
type result struct {
	code     int
	out, err string
}

// keystead runs keystead against the shared node, to its end.
func keystead(t *testing.T, args ...string) result {
	t.Helper()
	p := start(t, nil, args...)
	code := p.wait()
	return result{code, p.out(), p.err()}
}

// succeeds runs keystead, which has to exit with 0, and returns its output.
func succeeds(t *testing.T, args ...string) string {
	t.Helper()
	r := keystead(t, args...)
	if r.code != 0 || r.err != "" {
		t.Fatalf("%q: exit code %d\n%s", args, r.code, r.err)
	}
	return r.out
}

// refuses runs keystead, which has to exit with a code and say something.
func refuses(t *testing.T, code int, says string, args ...string) {
	t.Helper()
	r := keystead(t, args...)
	if r.code != code || !strings.Contains(r.err, says) {
		t.Errorf("%q: exit code %d, want %d and %q\n%s", args, r.code, code, says, r.err)
	}
	if r.out != "" {
		t.Errorf("%q: prints %q, though it fails", args, r.out)
	}
}

// object reads one line of JSON, numbers as they are written.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	v := map[string]any{}
	if err := d.Decode(&v); err != nil || strings.Count(text, "\n") != 1 {
		t.Fatalf("not one line of JSON (%v): %q", err, text)
	}
	return v
}

// hasFields checks that v has these fields and no others.
func hasFields(t *testing.T, v any, want ...string) {
	t.Helper()
	var got []string
	for name := range v.(map[string]any) {
		got = append(got, name)
	}
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
		t.Errorf("fields %v, want %v", got, want)
	}
}

// patience is how long a test waits for what has to come: long, because the
// machine may be busy.
const patience = 30 * time.Second

// poll waits until cond holds, and reports whether it does.
func poll(cond func() bool) bool {
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			return cond()
		}
	}
	return true
}

// eventually waits until cond holds, or fails.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	if !poll(cond) {
		t.Fatalf("in %s, not: %s", patience, what)
	}
}

// write puts a file into a directory of the test.
func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// input gives a process a text to read.
func input(text []byte) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.Stdin = bytes.NewReader(text) }
}
