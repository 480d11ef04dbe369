package system

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// token runs a command under the lock of key and returns its fencing token.
func token(t *testing.T, key string, args ...string) uint64 {
	t.Helper()
	args = append(append([]string{"lock", key}, args...), "--", "sh", "-c", "echo $KEYSTEAD_FENCING_TOKEN")
	n, err := strconv.ParseUint(strings.TrimSpace(succeeds(t, args...)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// inspect returns what --inspect --json says of a lock.
func inspect(t *testing.T, key string, args ...string) map[string]any {
	t.Helper()
	v := object(t, succeeds(t, append([]string{"lock", key, "--inspect", "--json"}, args...)...))
	fields := []string{"held", "waiters", "waiting", "epoch"}
	if v["held"] == true {
		fields = append(fields, "holder")
	}
	hasFields(t, v, fields...)
	return v
}

func waiting(t *testing.T, key string) float64 {
	t.Helper()
	return number(t, inspect(t, key)["waiting"])
}

// untilGone is a command that prints "begin", and "end" when a file is there.
func untilGone(file string) []string {
	return []string{"sh", "-c", `echo begin; until [ -e "$0" ]; do sleep 0.02; done; echo end`, file}
}

func begins(t *testing.T, p *process) {
	t.Helper()
	eventually(t, "the command runs", func() bool {
		select {
		case <-p.done:
			t.Fatalf("it ended: %s%s", p.out(), p.err())
		default:
		}
		return strings.HasPrefix(p.out(), "begin\n")
	})
}

func TestLockTokensRise(t *testing.T) {
	t.Parallel()
	last := uint64(0)
	for range 4 {
		got := token(t, "tokens")
		if got <= last {
			t.Errorf("token %d after %d", got, last)
		}
		last = got
	}
}

func TestLockTellsTheCommand(t *testing.T) {
	t.Parallel()
	got := succeeds(t, "lock", "env", "--holder", "me", "--", "sh", "-c", `echo "$KEYSTEAD_LOCK_KEY $KEYSTEAD_LOCK_HOLDER $1"; cat`, "0", "a  b")
	if got != "env me a  b\n" {
		t.Errorf("got %q", got)
	}
	p := start(t, input([]byte("from stdin")), "lock", "env", "--", "cat")
	p.ends(t, 0)
	if p.out() != "from stdin" {
		t.Errorf("standard input came as %q", p.out())
	}
}

// What the command calls finds the same settings, and the variables that the
// lock adds are not taken for misspelt ones.
func TestLockAroundKeystead(t *testing.T) {
	t.Parallel()
	if got := succeeds(t, "lock", "around", "--", "keystead", "counter", "add", "around"); got != "1\n" {
		t.Errorf("got %q", got)
	}
}

func TestLockExitCodes(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{
		"exit 0": 0, "exit 7": 7, "exit 255": 255, "kill -TERM $$": 128 + 15, "kill -KILL $$": 128 + 9, "kill -USR1 $$": 128 + 10,
	} {
		if r := keystead(t, "lock", "codes", "--", "sh", "-c", script); r.code != want || r.err != "" {
			t.Errorf("%q: %+v, want %d", script, r, want)
		}
	}
	if v := inspect(t, "codes"); v["held"] != false {
		t.Errorf("afterwards: %v", v)
	}
}

func TestLockPassesSignalsOn(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		signal syscall.Signal
		trap   string
		want   int
	}{
		{syscall.SIGTERM, "trap 'echo got; exit 9' TERM", 9},
		{syscall.SIGINT, "trap 'echo got; exit 8' INT", 8},
		{syscall.SIGHUP, "trap 'echo got; exit 7' HUP", 7},
		{syscall.SIGUSR1, "trap 'echo got; exit 6' USR1", 6},
		{syscall.SIGTERM, ":", 128 + 15},
		{syscall.SIGINT, ":", 128 + 2},
	} {
		p := start(t, nil, "lock", "signals", "--", "sh", "-c", tc.trap+"; echo begin; while :; do sleep 0.02; done")
		begins(t, p)
		p.signal(t, tc.signal)
		p.ends(t, tc.want)
		if want := "begin\n" + map[bool]string{true: "got\n"}[tc.want < 128]; p.out() != want {
			t.Errorf("%v with %q: prints %q %q", tc.signal, tc.trap, p.out(), p.err())
		}
		if v := inspect(t, "signals"); v["held"] != false {
			t.Errorf("after %v: %v", tc.signal, v)
		}
	}
}

func TestLocksSerialise(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, goOn := filepath.Join(dir, "log"), filepath.Join(dir, "go-on")
	command := func(name string) []string {
		return []string{"lock", "serial", "--", "sh", "-c",
			`echo begin; echo "$1 begins with $KEYSTEAD_FENCING_TOKEN" >>"$2"; until [ -e "$3" ]; do sleep 0.02; done; echo "$1 ends" >>"$2"`,
			"0", name, log, goOn}
	}
	first := start(t, nil, command("first")...)
	begins(t, first)
	var others []*process
	for i, name := range []string{"second", "third"} {
		others = append(others, start(t, nil, command(name)...))
		eventually(t, name+" waits", func() bool { return waiting(t, "serial") == float64(i+1) })
	}
	for _, p := range others {
		if p.out() != "" {
			t.Fatal("a second command runs beside the first")
		}
	}
	write(t, goOn, "")
	for _, p := range append(others, first) {
		p.ends(t, 0)
	}
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	last := uint64(0)
	for i, name := range []string{"first", "second", "third"} {
		var token uint64
		if len(lines) != 6 {
			t.Fatalf("%q", lines)
		}
		if _, err := fmt.Sscanf(lines[2*i], name+" begins with %d", &token); err != nil || lines[2*i+1] != name+" ends" || token <= last {
			t.Errorf("%v: %q", err, lines)
		}
		last = token
	}
}

func TestLockNotFree(t *testing.T) {
	t.Parallel()
	goOn := filepath.Join(t.TempDir(), "go-on")
	holder := start(t, nil, append([]string{"lock", "taken", "--holder", "the holder", "--"}, untilGone(goOn)...)...)
	begins(t, holder)
	for _, wait := range []string{"0", "100ms"} {
		r := keystead(t, "lock", "taken", "--wait", wait, "--", "echo", "no")
		if r.code != 75 || r.out != "" || !strings.HasPrefix(r.err, `keystead: "taken" has been held by the holder for `) || !strings.Contains(r.err, "; 0 in the queue before you") {
			t.Errorf("--wait %s: %+v", wait, r)
		}
	}
	if v := inspect(t, "taken"); number(t, v["waiting"]) != 0 {
		t.Errorf("a waiter stayed behind: %v", v)
	}
	write(t, goOn, "")
	holder.ends(t, 0)
}

func TestLockInspect(t *testing.T) {
	t.Parallel()
	if got := succeeds(t, "lock", "seen", "--inspect"); got != "free\n" {
		t.Errorf("a free lock: %q", got)
	}
	goOn := filepath.Join(t.TempDir(), "go-on")
	holder := start(t, nil, append([]string{"lock", "seen", "--holder", "h1", "--metadata", "run <7>", "--"}, untilGone(goOn)...)...)
	begins(t, holder)
	waiter := start(t, nil, append([]string{"lock", "seen", "--holder", "w1", "--"}, untilGone(goOn)...)...)
	eventually(t, "the second waits", func() bool { return waiting(t, "seen") == 1 })
	v := inspect(t, "seen")
	h := v["holder"].(map[string]any)
	hasFields(t, h, "holder", "token", "held", "ttl", "metadata")
	if h["holder"] != "h1" || h["metadata"] != "run <7>" {
		t.Errorf("holder: %v", h)
	}
	if n, err := strconv.ParseUint(h["token"].(string), 10, 64); err != nil || n == 0 {
		t.Errorf("token %v", h["token"])
	}
	within(t, "held", h["held"], 0, patience.Seconds())
	within(t, "ttl", h["ttl"], 0, 10)
	waiters := v["waiters"].([]any)
	if len(waiters) != 1 {
		t.Fatalf("waiters: %v", waiters)
	}
	hasFields(t, waiters[0], "holder", "waited")
	if waiters[0].(map[string]any)["holder"] != "w1" {
		t.Errorf("waiters: %v", waiters)
	}
	text := succeeds(t, "lock", "seen", "--inspect")
	for _, want := range []string{"held by h1 for ", ", token " + h["token"].(string) + ", free in ", "metadata: \"run <7>\"\n", "\n   1. w1, waiting "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
	write(t, goOn, "")
	holder.ends(t, 0)
	waiter.ends(t, 0)
	if v := inspect(t, "seen"); v["held"] != false || number(t, v["waiting"]) != 0 {
		t.Errorf("afterwards: %v", v)
	}
}

// A lock is kept for as long as the command runs, however short its TTL.
func TestLockIsRenewed(t *testing.T) {
	t.Parallel()
	goOn := filepath.Join(t.TempDir(), "go-on")
	p := start(t, nil, append([]string{"lock", "renewed", "--ttl", "1500ms", "--"}, untilGone(goOn)...)...)
	begins(t, p)
	before := inspect(t, "renewed")["holder"].(map[string]any)["token"]
	eventually(t, "it is held for two TTLs", func() bool {
		h, held := inspect(t, "renewed")["holder"].(map[string]any)
		if !held || h["token"] != before {
			t.Fatalf("it was lost: %v\n%s", h, p.err())
		}
		within(t, "ttl", h["ttl"], 0, 1.5)
		return number(t, h["held"]) > 3
	})
	write(t, goOn, "")
	p.ends(t, 0)
}

// watched is a lock whose command, and all that it started, hold the writing
// end of a pipe: the pipe ends when the last of them is dead.
type watched struct {
	*process
	lines *bufio.Reader
}

func watch(t *testing.T, prepare func(*exec.Cmd), args ...string) *watched {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, func(cmd *exec.Cmd) {
		cmd.Stdout = w
		if prepare != nil {
			prepare(cmd)
		}
	}, args...)
	_ = w.Close()
	t.Cleanup(func() { _ = r.Close() })
	if err := r.SetReadDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(r)
	if line, err := lines.ReadString('\n'); line != "begin\n" {
		t.Fatalf("it printed %q, %v, %s", line, err, p.err())
	}
	return &watched{p, lines}
}

// allDead waits for the end of the pipe.
func (w *watched) allDead(t *testing.T) time.Time {
	t.Helper()
	if rest, err := io.ReadAll(w.lines); err != nil || len(rest) > 0 {
		t.Fatalf("after %q: %v", rest, err)
	}
	return time.Now()
}

// When the node is gone, the command and its children are killed before the
// lock can be anybody else's.
func TestLockLost(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			node := startNode(t, nil, "dev")
			const ttl = 4 * time.Second
			// The command has a child, and the child one of its own; none of them ends by itself or by SIGTERM.
			p := watch(t, env("KEYSTEAD_ADDR="+node.grpc), "lock", "lost", "--ttl", ttl.String(), "--timeout", "1s",
				"--", "sh", "-c", "trap '' TERM; (sh -c 'sleep 600' & wait) & echo begin; wait")
			began := time.Now()
			node.signal(t, s)
			dead := p.allDead(t)
			if after := dead.Sub(began); after > ttl || after < ttl/4 {
				t.Errorf("the command died after %s; the TTL is %s", after, ttl)
			}
			p.ends(t, 76)
			if !strings.HasPrefix(p.err(), `keystead: the lock on "lost" was lost and the command killed: `) || !strings.Contains(p.err(), "hint: ") {
				t.Errorf("it says %q", p.err())
			}
		})
	}
}

// When a node forgot the lock, the command is killed, too: another may have it.
func TestLockForgotten(t *testing.T) {
	t.Parallel()
	node := startNode(t, nil, "dev")
	p := watch(t, env("KEYSTEAD_ADDR="+node.grpc), "lock", "forgotten", "--ttl", "3s", "--", "sh", "-c", "echo begin; sleep 600")
	node.signal(t, syscall.SIGTERM)
	node.ends(t, 0)
	startNode(t, nil, "dev", "--grpc-addr", node.grpc, "--http-addr", "127.0.0.1:0")
	p.allDead(t)
	p.ends(t, 76)
	if !strings.Contains(p.err(), "or another holder has it") {
		t.Errorf("it says %q", p.err())
	}
}

func TestLockInterruptedWaiter(t *testing.T) {
	t.Parallel()
	goOn := filepath.Join(t.TempDir(), "go-on")
	holder := start(t, nil, append([]string{"lock", "queue", "--"}, untilGone(goOn)...)...)
	begins(t, holder)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		waiter := start(t, nil, "lock", "queue", "--", "echo", "no")
		eventually(t, "it waits", func() bool { return waiting(t, "queue") == 1 })
		waiter.signal(t, s)
		waiter.ends(t, 128+int(s))
		if waiter.out() != "" {
			t.Errorf("the command of an interrupted waiter printed %q", waiter.out())
		}
		eventually(t, "the place in the queue is left", func() bool { return waiting(t, "queue") == 0 })
	}
	write(t, goOn, "")
	holder.ends(t, 0)
}

func TestLockMisuse(t *testing.T) {
	noExec := write(t, filepath.Join(t.TempDir(), "data"), "text")
	for _, tc := range []struct {
		says string
		args []string
	}{
		{"KEY is missing", nil},
		{"COMMAND is missing", []string{"misuse"}},
		{"COMMAND is missing", []string{"misuse", "--"}},
		{"--inspect runs no command", []string{"misuse", "--inspect", "--", "true"}},
		{"--ttl 100ms: choose 300ms to 24h", []string{"misuse", "--ttl", "100ms", "--", "true"}},
		{"--ttl 25h: choose 300ms to 24h", []string{"misuse", "--ttl", "25h", "--", "true"}},
		{"missing unit", []string{"misuse", "--ttl", "10", "--", "true"}},
		{"--wait -1s: choose 0 to 24h", []string{"misuse", "--wait", "-1s", "--", "true"}},
		{"--wait 25h: choose 0 to 24h", []string{"misuse", "--wait", "25h", "--", "true"}},
		{"key: is empty", []string{"", "--", "true"}},
		{"holder: ", []string{"misuse", "--holder", strings.Repeat("h", 129), "--", "true"}},
		{"metadata: ", []string{"misuse", "--metadata", strings.Repeat("m", 1025), "--", "true"}},
		{`what begins with "-" and is no flag of this command goes after "--"`, []string{"misuse", "ls", "-l"}},
		{`cannot run "no-such-program": `, []string{"misuse", "--", "no-such-program"}},
		{"no such file or directory", []string{"misuse", "--", "/no/such/program"}},
		{"permission denied", []string{"misuse", "--", noExec}},
		{"is a directory", []string{"misuse", "--", filepath.Dir(noExec)}},
	} {
		refuses(t, 2, tc.says, append([]string{"lock"}, tc.args...)...)
	}
	if v := inspect(t, "misuse"); v["held"] != false {
		t.Errorf("afterwards: %v", v)
	}
	refuses(t, 1, "cannot reach a node at 127.0.0.1:1: ", "lock", "misuse", "--addr", "127.0.0.1:1", "--", "echo", "no")
}

// A program that the kernel refuses is found out only under the lock, which is
// then given back.
func TestLockGivenBackWhenTheCommandDoesNotStart(t *testing.T) {
	t.Parallel()
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte{0x7f, 'E', 'L', 'F', 0, 0}, 0o700); err != nil {
		t.Fatal(err)
	}
	refuses(t, 1, "cannot run ", "lock", "garbage", "--", garbage)
	if v := inspect(t, "garbage"); v["held"] != false {
		t.Errorf("afterwards: %v", v)
	}
}
