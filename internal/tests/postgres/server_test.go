package postgres

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
)

const top = "../../.."

var (
	rounds = flag.Int("rounds", 100, "writes of each of several writers at a time")

	sockets string // directory of the server's socket
	binary  string // keystead
	node    string // address of a node that runs as long as the tests
)

// drivers are those that the tests run with, one after the other.
var drivers = []string{"pgx", "postgres"}

func TestMain(m *testing.M) {
	if os.Getenv(asHolder) != "" {
		os.Exit(holder())
	}
	flag.Parse()
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "keystead-postgres-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	stop, err := startPostgres(dir)
	if err != nil {
		return 0, err
	}
	defer stop()
	sockets, binary = dir, filepath.Join(dir, "keystead")
	build := exec.Command("go", "build", "-o", binary, "./cmd/keystead")
	build.Dir = top
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("building keystead: %w\n%s", err, out)
	}
	end, err := startNode()
	if err != nil {
		return 0, err
	}
	defer end()
	return m.Run(), nil
}

// program finds one of PostgreSQL, which Debian does not put into the PATH.
func program(name string) (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) > 0 {
		return found[len(found)-1], err
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: `apt-get install postgresql` has it", err)
	}
	return path, nil
}

// unprivileged has a command run as a user that PostgreSQL takes: root it refuses.
func unprivileged(cmd *exec.Cmd, dir string) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return err
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return errors.Join(err1, err2, os.Chown(dir, uid, gid))
}

// startPostgres starts a server that listens on a socket in a directory.
func startPostgres(dir string) (stop func(), err error) {
	data := filepath.Join(dir, "data")
	for _, c := range []struct {
		name string
		args []string
	}{
		{"initdb", []string{"--pgdata", data, "--username", "test", "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C"}},
		{"postgres", []string{"-D", data, "-c", "listen_addresses=", "-c", "unix_socket_directories=" + dir, "-c", "fsync=off", "-c", "max_connections=200"}},
	} {
		path, err := program(c.name)
		if err != nil {
			return nil, err
		}
		cmd := exec.Command(path, c.args...)
		cmd.Dir = dir
		if err := unprivileged(cmd, dir); err != nil {
			return nil, err
		}
		log := filepath.Join(dir, c.name+".log")
		out, err := os.Create(log)
		if err != nil {
			return nil, err
		}
		defer out.Close()
		cmd.Stdout, cmd.Stderr = out, out
		if c.name == "initdb" {
			if err := cmd.Run(); err != nil {
				text, _ := os.ReadFile(log)
				return nil, fmt.Errorf("initdb: %w\n%s", err, text)
			}
			continue
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		stop = func() {
			_ = cmd.Process.Signal(syscall.SIGQUIT) // at once: nothing of it is kept
			_ = cmd.Wait()
		}
		if err := answers(dir); err != nil {
			stop()
			text, _ := os.ReadFile(log)
			return nil, fmt.Errorf("postgres: %w\n%s", err, text)
		}
	}
	return stop, nil
}

// patience is for a machine that is busy.
const patience = 60 * time.Second

// answers waits until the server does.
func answers(dir string) error {
	db, err := sql.Open("pgx", dsn(dir, "public"))
	if err != nil {
		return err
	}
	defer db.Close()
	return poll(func(ctx context.Context) error { return db.PingContext(ctx) })
}

// poll tries until something works.
func poll(try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("in %s, not: %w", patience, err)
		}
	}
}

func dsn(dir, schema string) string {
	return "host=" + dir + " user=test dbname=postgres sslmode=disable search_path=" + schema
}

// startNode starts a node that ends when its standard input is closed.
func startNode() (stop func(), err error) {
	cmd := exec.Command(binary, "bench", "serve", "keystead")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "KEYSTEAD_") })
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	line := make([]byte, 64)
	n, err := out.Read(line)
	if err != nil {
		stop()
		return nil, fmt.Errorf("the node does not serve: %w", err)
	}
	node = strings.TrimSpace(string(line[:n]))
	return stop, nil
}

// each runs a test with each driver, in a schema of its own.
func each(t *testing.T, f func(t *testing.T, db *sql.DB)) {
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f(t, open(t, driver))
		})
	}
}

// open returns a database with the tables of the tests.
func open(t *testing.T, driver string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn(sockets, schema(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, statement := range []string{
		"DROP SCHEMA IF EXISTS " + schema(t) + " CASCADE", // of a run before
		"CREATE SCHEMA " + schema(t),
		"CREATE TABLE report (id bigint PRIMARY KEY, body text NOT NULL DEFAULT '', last_token bigint NOT NULL DEFAULT 0)",
		"CREATE TABLE entry (n bigserial PRIMARY KEY, token bigint NOT NULL, text text NOT NULL DEFAULT '')",
	} {
		run(t, db, statement)
	}
	return db
}

// schema is a name for a test.
func schema(t *testing.T) string {
	return strings.ToLower(strings.NewReplacer("/", "_", "#", "_").Replace(t.Name()))
}

// runner runs statements.
type runner interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// run runs a statement, and returns how many rows it changed.
func run(t *testing.T, db runner, query string, args ...any) int64 {
	t.Helper()
	r, err := db.ExecContext(t.Context(), query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	n, err := r.RowsAffected()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// text asks for one value, as text.
func text(t *testing.T, db runner, query string, args ...any) string {
	t.Helper()
	var s string
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s
}

// begin begins a transaction that is rolled back with the test, if it has not ended.
func begin(t *testing.T, db *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func commit(t *testing.T, tx *sql.Tx) {
	t.Helper()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// blocked waits until somebody waits for a process of the server.
func blocked(t *testing.T, db *sql.DB, pid string) {
	t.Helper()
	err := poll(func(ctx context.Context) error {
		var waits bool
		err := db.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE "+pid+" = ANY (pg_blocking_pids(pid)))").Scan(&waits)
		if err == nil && !waits {
			err = errors.New("nobody waits for " + pid)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pidOf is the process of the server that a transaction is in.
func pidOf(t *testing.T, tx *sql.Tx) string { return text(t, tx, "SELECT pg_backend_pid()::text") }
