package system

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// files reads a directory: what is in each file but the lock.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		found[e.Name()] = string(b)
	}
	return found
}

// sameFiles checks that nothing in a directory has changed.
func sameFiles(t *testing.T, dir string, before map[string]string) {
	t.Helper()
	after := files(t, dir)
	for name, text := range before {
		if got, ok := after[name]; !ok || got != text {
			t.Errorf("%s was changed, or is gone", name)
		}
	}
	if len(after) != len(before) {
		t.Errorf("there are %d files, and were %d", len(after), len(before))
	}
}

// value is a counter, as the command shows it.
func value(t *testing.T, n *served, key string) string {
	t.Helper()
	return strings.TrimSpace(succeeds(t, "counter", "get", key, "--addr", n.grpc))
}

// A node that runs alone does not start on the data directory of another node, and
// changes nothing there. Who wrote it is found in directories of before, too.
func TestServerWrongID(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for name, older := range map[string]bool{"of this version": false, "of before": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			n := startNode(t, nil, "server", "--id", "a", "--data-dir", dir)
			succeeds(t, "counter", "add", "stock", "42", "--addr", n.grpc)
			n.stop(t)
			if older { // the file of the epoch did not name the node
				write(t, filepath.Join(dir, "epoch.json"), strings.Replace(files(t, dir)["epoch.json"], `,"node":"a"`, "", 1))
			}
			before := files(t, dir)
			says := `belongs to the node "a", not to "`
			addrs := []string{"--data-dir", dir, "--grpc-addr", "127.0.0.1:0", "--admin-addr", ""}
			refuses(t, 1, says+`b": use that --id`, append([]string{"server", "--id", "b"}, addrs...)...)
			refuses(t, 1, says+host+`"`, append([]string{"server"}, addrs...)...)
			sameFiles(t, dir, before)
			n = startNode(t, nil, "server", "--id", "a", "--data-dir", dir)
			if v := value(t, n, "stock"); v != "42" {
				t.Errorf("the counter is %s", v)
			}
			n.signal(t, syscall.SIGKILL) // nothing but the file of the epoch is left
			n.ends(t, -1)
			refuses(t, 1, says+`b": use that --id`, append([]string{"server", "--id", "b"}, addrs...)...)
		})
	}
}

// The death of a node that runs alone is declared when it is back: in its log, in its
// status, in a metric and in answers. A first start and an orderly stop are no losses.
func TestServerDeclaresItsDeath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const lost = "the state of the last process "
	up := func() *served {
		return startNode(t, nil, "server", "--id", "a", "--data-dir", dir, "--durability", "none", "--max-lock-ttl", "1h")
	}
	declares := func(n *served, want bool) {
		t.Helper()
		_, metrics := n.get(t, "/metrics")
		status := succeeds(t, "status", "--addr", n.grpc)
		answer := succeeds(t, "counter", "get", "k", "--json", "--addr", n.grpc)
		code := keystead(t, "status", "--exit-code", "--addr", n.grpc).code
		for what, is := range map[string]bool{
			"log": strings.Contains(n.err(), `"level":"WARN","msg":"`+lost), "status": strings.Contains(status, lost+"was lost"),
			"metric": strings.Contains(metrics, "\nkeystead_rows_lost_total 256\n"), "answer": strings.Contains(answer, `"lost_epoch":`),
			"exit code": code == exitUnhealthy,
		} {
			if is != want {
				t.Errorf("in the %s: %v\n%s%s", what, is, status, answer)
			}
		}
		if !want && !strings.Contains(metrics, "\nkeystead_rows_lost_total 0\n") {
			t.Error("there is no metric of no loss")
		}
	}
	n := up()
	declares(n, false)
	n.stop(t)
	n = up()
	declares(n, false)
	n.signal(t, syscall.SIGKILL)
	n.ends(t, -1)
	n = up()
	declares(n, true)
	if got := token(t, "free", "--addr", n.grpc); got == 0 {
		t.Error("no lock is granted")
	}
	n.stop(t) // in order: the answers after it know of the loss still
	n = up()
	if answer := succeeds(t, "counter", "get", "k", "--json", "--addr", n.grpc); !strings.Contains(answer, `"lost_epoch":`) {
		t.Errorf("after an orderly stop the loss is forgotten: %s", answer)
	}
	n.stop(t)
}

// One epoch, incarnation and version are in the status of the command, in that of the
// admin port, and in answers.
func TestLoneNodeSaysOneEpoch(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil, "server", "--id", "a")
	st := object(t, succeeds(t, "status", "--json", "--addr", n.grpc))
	answer := object(t, succeeds(t, "counter", "add", "k", "--json", "--addr", n.grpc))
	_, page := n.get(t, "/status")
	if e := `"epoch":` + answer["epoch"].(interface{ String() string }).String(); "\"epoch\":"+st["epoch"].(string) != e || !strings.Contains(strings.ReplaceAll(page, " ", ""), e) {
		t.Errorf("epoch %v in the status, %v in an answer, and %s", st["epoch"], answer["epoch"], page)
	}
	if st["version"] == "" || st["incarnation"] == "1" {
		t.Errorf("version %v, incarnation %v", st["version"], st["incarnation"])
	}
	n.stop(t)
}
