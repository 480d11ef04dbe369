package system

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is wrong is said with the flag that was typed, in its units.
func TestErrorsInTheWordsOfFlags(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"keystead: --idle-ttl -5s: choose 1ms to 366d":                   {"counter", "add", "words", "--idle-ttl", "-5s"},
		"keystead: key: has 600 bytes; at most 512 are allowed":          {"counter", "get", strings.Repeat("k", 600)},
		`keystead: --wait "5": missing unit; write 5s for seconds`:       {"lock", "words", "--wait", "5", "--", "true"},
		`keystead: --cost "-1": write a whole number of 0 or more`:       {"limit", "check", "words", "--limit", "20/1m", "--cost", "-1"},
		`keystead: --members "x": write a whole number`:                  {"status", "--members", "x"},
		`keystead: --json "maybe": write true or false`:                  {"members", "--json=maybe"},
		"keystead: --metadata: has 9000 bytes; at most 1024 are allowed": {"lock", "words", "--metadata", strings.Repeat("k", 9000), "--", "true"},
		`keystead: --limit "20": write a limit as COUNT/PERIOD`:          {"limit", "check", "words", "--limit", "20"},
	} {
		refuses(t, 2, says, args...)
	}
	refuses(t, 2, `keystead: --addr "127.0.0.1:99999": a port is a number from 1 to 65535`, "status", "--addr", "127.0.0.1:99999")
	refuses(t, 2, `keystead: --ack-owner "foo": choose among limits, counters, locks`, "server", "--ack-owner", "foo")
	n := startNode(t, nil, "server", "--id", "a", "--max-lock-ttl", "10m", "--lease-ttl", "5s")
	refuses(t, 2, "keystead: --ttl 1h: this node allows at most 10m, its --max-lock-ttl", "lock", "k", "--ttl", "1h", "--addr", n.grpc, "--", "true")
	if !strings.Contains(n.err(), `"level":"WARN","msg":"these settings have no effect on a node that runs alone`) || !strings.Contains(n.err(), `"settings":["--lease-ttl"]`) {
		t.Errorf("it does not warn of a setting without effect: %s", n.err())
	}
	refuses(t, 1, "with --data-dir its next process goes on from what it has", "drain", "a", "--addr", n.grpc)
	refuses(t, 1, "keystead: "+n.admin+" speaks HTTP, not the API\n  hint: it may be the port for operators (--admin-addr", "status", "--addr", n.admin)
	n.stop(t)
}

// A port that hangs up is none of the API, and a dead one is said to be dead.
func TestWrongPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(c, make([]byte, 16))
			c.Close()
		}
	}()
	refuses(t, 1, l.Addr().String()+" speaks something else, like raft or gossip, not the API", "status", "--timeout", "2s", "--addr", l.Addr().String())
	l.Close()
	<-done
	refuses(t, 1, "connection refused\n  hint: start one with `keystead dev`, see that the one you mean runs", "status", "--addr", l.Addr().String())
}

// A start that a data directory does not allow names the way out.
func TestServerDataDirErrors(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	in := func(name string) string {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Join(dir, "raft"), 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	damaged, newerState, newerEpoch, locked := in("damaged"), in("state"), in("epoch"), in("locked")
	write(t, filepath.Join(damaged, "raft", "log.db"), strings.Repeat("x", 64<<10))
	write(t, filepath.Join(newerState, "state"), "keystead state 2\n")
	write(t, filepath.Join(newerEpoch, "epoch.json"), `{"version":2,"epoch":5}`)
	if err := os.Mkdir(filepath.Join(locked, "LOCK"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		says string
		args []string
	}{
		{"start with --join: the node joins anew", inPool("a", "c", "--data-dir", damaged)},
		{"the state file is of a newer Keystead: start that program", []string{"--id", "a", "--data-dir", newerState}},
		{"it is of version 2, of a newer Keystead", []string{"--id", "a", "--data-dir", newerEpoch}},
		{"the data directory cannot be used: ", []string{"--id", "a", "--data-dir", locked}},
	} {
		refuses(t, 1, tc.says, append([]string{"server", "--grpc-addr", "127.0.0.1:0", "--admin-addr", ""}, tc.args...)...)
	}
	if got := files(t, filepath.Join(newerState, "."))["state"]; got != "keystead state 2\n" {
		t.Error("the state of a newer program was put aside")
	}
}
