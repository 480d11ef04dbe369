package postgres

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keystead/keystead/client/fence"
)

// asHolder is the variable that makes this program a holder: what it does is in holder.
const asHolder = "KEYSTEAD_TEST_HOLDER"

// holder is a process that has a lock, under the token of its variable. It reads the
// report, is stopped at a point that nobody chooses in life, and writes. It exits with 3 if
// it is told that it is late.
func holder() int {
	db, err := sql.Open("pgx", os.Getenv("DSN"))
	if err != nil {
		return fail(err)
	}
	defer db.Close()
	token, err := strconv.ParseUint(os.Getenv(asHolder), 10, 64)
	if err != nil {
		return fail(err)
	}
	ctx := context.Background()
	var body string
	if err := db.QueryRowContext(ctx, "SELECT body FROM report WHERE id = 1").Scan(&body); err != nil {
		return fail(err)
	}
	fmt.Println("read")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil { // it is stopped here
		return fail(err)
	}
	body += os.Getenv("ADDS")
	if os.Getenv("FENCED") == "" {
		_, err = db.ExecContext(ctx, "UPDATE report SET body = $1 WHERE id = 1", body)
	} else {
		err = fence.Rows{Table: "report", Key: []string{"id"}}.Update(ctx, db, token, []any{1}, fence.Set("body", body))
	}
	if errors.Is(err, fence.ErrStale) {
		return 3
	}
	return fail(err)
}

func fail(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// held is a holder that was started.
type held struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

// hold acquires the lock of a key, and starts a holder that has read.
func hold(t *testing.T, key, adds string, fenced bool) *held {
	t.Helper()
	acquire := exec.Command(binary, "lock", "acquire", key, "--ttl", "300ms", "--wait", "1m", "--addr", node)
	acquire.Stderr = os.Stderr
	token, err := acquire.Output()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asHolder+"="+strings.TrimSpace(string(token)), "DSN="+dsn(sockets, schema(t)), "ADDS="+adds)
	if fenced {
		cmd.Env = append(cmd.Env, "FENCED=yes")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	h := &held{cmd, in}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "read\n" {
		t.Fatalf("%q %v", line, err)
	}
	return h
}

func (h *held) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := h.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// writes lets a holder write, and returns its exit code.
func (h *held) writes(t *testing.T) int {
	t.Helper()
	if _, err := io.WriteString(h.in, "\n"); err != nil {
		t.Fatal(err)
	}
	_ = h.cmd.Wait()
	return h.cmd.ProcessState.ExitCode()
}

// A holder is stopped past its lease, between what it read and what it writes. The next one
// reads and writes. Then the first one goes on: without a fence what the other wrote is lost,
// with one it is refused.
func TestPausedHolder(t *testing.T) {
	for name, tc := range map[string]struct {
		fenced bool
		code   int
		body   string
	}{"without": {false, 0, "late"}, "fenced": {true, 3, "next"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, "pgx")
			run(t, db, "INSERT INTO report VALUES (1)")
			late := hold(t, schema(t), "late", tc.fenced)
			late.signal(t, syscall.SIGSTOP)
			began := time.Now()
			next := hold(t, schema(t), "next", tc.fenced) // waits until the lease is over
			if code := next.writes(t); code != 0 {
				t.Fatal(code)
			}
			t.Logf("the next one had written after %s", time.Since(began))
			late.signal(t, syscall.SIGCONT)
			if code := late.writes(t); code != tc.code {
				t.Errorf("the late one exits with %d", code)
			}
			if got := text(t, db, "SELECT body FROM report"); got != tc.body {
				t.Errorf("the report is by %q", got)
			}
		})
	}
}
